//! How long writers that share nothing hold each other off, in commits.

use std::collections::BTreeSet;

use bucketq::error::Result;
use serde_json::{Value, json};

use super::process::{Place, Program, Team};
use super::seen::{Call, Seen};
use super::{Effort, Ground, p50, p99, say, stretch};

const WRITERS: usize = 4;
const CALLERS: usize = 4;
/// Jobs of a large commit.
const LARGE: u64 = 1_000;

/// Returns the most commits of others between the beginning of a call and its own commit. Four processes enqueue, each
/// a writer of its own; one also makes large commits, and one also extends a lease.
pub async fn measure(ground: &Ground, effort: &Effort) -> Result<Value> {
    let place = Place { share: false, ..ground.place("fair") };
    let mut team = Team::start(place, Program::Rust, WRITERS).await?;
    let replies = team.run(|index| {
        let mut groups = vec![json!({ "do": "enqueue", "callers": CALLERS, "logged": true })];
        match index {
            0 => groups.push(json!({ "do": "enqueue", "jobs": LARGE, "pause_ms": 500, "logged": true })),
            1 => groups.push(json!({ "do": "extend", "pause_ms": 200, "logged": true })),
            _ => {}
        }
        stretch(effort.warm, effort.whole(), &groups)
    });
    let seen = replies.await?;
    team.end().await;
    let calls: Vec<&[Call]> = seen.iter().map(|one| &one.calls[..]).collect();
    let held_off = held_off(&calls);
    let all = Seen::together(seen.clone());
    say(&format!(
        "  commits of others during a call: p50 {}, p99 {}, most {:?}; {} calls, p99 {:.0} ms{}",
        p50(&held_off).unwrap_or(f64::NAN),
        p99(&held_off).unwrap_or(f64::NAN),
        held_off.iter().max(),
        held_off.len(),
        p99(&all.times_us).unwrap_or(f64::NAN) / 1e3,
        all.failures(),
    ));
    Ok(json!(held_off.iter().max()))
}

/// Returns for each call how many commits of others landed between its beginning and its own commit. A commit landed
/// before a call if an op of it had returned, anywhere, when the call began.
fn held_off(processes: &[&[Call]]) -> Vec<u64> {
    let mut returned: Vec<(i64, u64)> =
        processes.iter().flat_map(|calls| calls.iter().map(|(_, ended, seq)| (*ended, *seq))).collect();
    returned.sort_unstable();
    let mut newest = 0;
    for (_, seq) in &mut returned {
        newest = newest.max(*seq);
        *seq = newest;
    }
    let landed = |began: i64| {
        let before = returned.partition_point(|(ended, _)| *ended <= began);
        before.checked_sub(1).map(|last| returned[last].1)
    };
    let mut found = vec![];
    for calls in processes {
        let own: BTreeSet<u64> = calls.iter().map(|(_, _, seq)| *seq).collect();
        for (began, _, seq) in *calls {
            // Before the first return nothing is known.
            let Some(landed) = landed(*began).filter(|landed| landed < seq) else { continue };
            let mine = own.range(landed + 1..*seq).count() as u64;
            found.push(seq - landed - 1 - mine);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::held_off;

    #[test]
    fn only_commits_of_others_after_the_call_began_count() {
        let one = [(0, 10, 1), (11, 40, 5), (11, 41, 7)];
        let other = [(0, 20, 2), (12, 25, 3), (26, 35, 4), (36, 39, 6)];
        // Commit 1 had returned when the calls of 11 ms began: 2, 3 and 4 came before 5, and also 6 before 7.
        assert_eq!(held_off(&[&one, &other]), [3, 4, 0, 0, 1]);
    }
}
