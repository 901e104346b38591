//! Jobs leave for the archive, piece by piece, from pages that still have the earlier state.

use bucketq::internals::db::Gone;
use bucketq::job::JobId;
use bucketq::life::LifeKind;
use bucketq::op::Op;
use bucketq::policy::Changes;
use bucketq_tests::queue_db::{World, claim, enqueue, held, id, job};

use crate::policies::configure;

/// A queue that archives all but `keep` jobs, with finished jobs; every third is dead.
fn finished(w: &mut World, queue: &str, keep: u64, jobs: std::ops::Range<u32>) {
    w.ok(&configure(queue, Changes { keep: Some(keep), archive: Some(true), ..Changes::default() }));
    for n in jobs {
        w.ok(&enqueue(queue, [job(n)]));
        w.claim(claim(queue, 1, 1));
        let held = held(n, 1);
        let dies = n % 3 == 0;
        w.ok(&if dies { Op::Reject { held, error: None } } else { Op::Ack { held, result: None } });
    }
}

#[test]
fn pieces_of_one_state_hold_each_life_that_is_to_leave_once() {
    let mut w = World::default();
    finished(&mut w, "a", 2, 0..30);
    finished(&mut w, "b", 0, 100..112);
    w.ok(&Op::Requeue { id: id(101), run: None });
    let (at, mut gone) = (w.at(), Gone::default());
    let mut lives: Vec<(JobId, u32)> = vec![];
    let mut pieces = vec![];
    while let Some(leaving) = w.db.leaving(&at, 4, usize::MAX, &gone).expect("it can be read") {
        assert!(leaving.lives.len() <= 4 && lives.len() < 42, "{lives:?}");
        assert_eq!(leaving.parts.iter().map(|p| p.jobs).sum::<u64>(), leaving.lives.len() as u64);
        gone.add(leaving.queue, &leaving.parts);
        pieces.extend(leaving.parts.iter().map(|p| (leaving.queue, p.kind)));
        lives.extend(leaving.lives.iter().map(|l| (l.id, l.run)));
    }
    // The newest two of both kinds stay in "a": 28 and 29, 24 and 27.
    let mut wanted: Vec<_> =
        (0..28).filter(|n| ![24, 27].contains(n)).chain(100..112).map(|n| (id(n), 0)).collect();
    wanted.sort_unstable();
    lives.sort_unstable();
    assert_eq!(lives, wanted);
    assert!(pieces.iter().filter(|(_, kind)| *kind == LifeKind::Done).count() > 5, "{pieces:?}");
    assert!(pieces.iter().any(|(_, kind)| *kind == LifeKind::Past));
}
