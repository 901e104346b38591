//! Sessions keep their promise whatever connections, writers and commits do, and the check notices each broken rule.

use crate::world::{Rule, World};

const SEEDS: u64 = 150;
const STEPS: usize = 400;

#[test]
fn every_op_has_one_effect_and_one_result() {
    let mut told = [0; 4];
    for seed in 1..=SEEDS {
        let mut world = World::new(seed, None);
        for _ in 0..STEPS {
            world.step();
        }
        assert_eq!(world.end(), [""; 0], "seed {seed}");
        for (sum, n) in told.iter_mut().zip(world.told()) {
            *sum += n;
        }
    }
    assert!(told.iter().all(|n| *n > SEEDS as usize / 10), "each kind of result occurs: {told:?}");
}

#[test]
fn each_broken_rule_is_noticed() {
    let rules = [
        Rule::NewNumber,
        Rule::NoRecord,
        Rule::EarlyReply,
        Rule::HaveTooMuch,
        Rule::NotForgotten,
        Rule::NotMarked,
        Rule::BelieveRefusal,
        Rule::CancelWithoutCommit,
    ];
    let missed: Vec<Rule> = rules.into_iter().filter(|rule| !is_noticed(*rule)).collect();
    assert_eq!(missed, []);
}

fn is_noticed(rule: Rule) -> bool {
    (1..=SEEDS).any(|seed| {
        let mut world = World::new(seed, Some(rule));
        for _ in 0..STEPS {
            world.step();
        }
        !world.end().is_empty()
    })
}
