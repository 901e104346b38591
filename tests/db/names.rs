//! Texts that jobs share: unreferenced ones are deleted, a few in each commit.

use bucketq::job::{Backoff, New, Payload, State};
use bucketq::op::{Claim, Op};
use bucketq::policy::Changes;
use bucketq_tests::queue_db::{World, claim, enqueue, held, id, job};

use crate::policies::configure;

fn names(w: &World) -> i64 {
    w.db.connection().query_row("SELECT count(*) FROM names", [], |row| row.get(0)).unwrap()
}

/// One job with its own worker, content type, result type and back-off, from enqueue to end.
fn life(w: &mut World, n: u32, ends: impl Fn(u32) -> Op) {
    let payload = Payload { content_type: format!("type/{n}"), ..job(n).payload };
    let backoff = Some(Backoff::Fixed { delay_ms: n.into() });
    w.ok(&enqueue("q", [New { payload, backoff, ..job(n) }]));
    let worker = format!("worker {n}");
    w.claim(Claim { worker, ..claim("q", 1, 1) });
    w.ok(&ends(n));
}

fn ack(n: u32) -> Op {
    Op::Ack {
        held: held(n, 1),
        result: Some(Payload { content_type: format!("result/{n}"), ..Payload::text("r") }),
    }
}

#[test]
fn what_nothing_refers_to_any_more_goes_and_the_rest_stays() {
    let mut w = World::default();
    w.ok(&configure("q", Changes { keep: Some(3), ..Changes::default() }));
    // Dead jobs keep their workers in their attempts, and have a retention count of their own.
    for n in 0..3 {
        life(&mut w, n, |n| Op::Reject { held: held(n, 1), error: Some("never".into()) });
    }
    let mut most = 0;
    for n in 10..1_500 {
        life(&mut w, n, ack);
        most = most.max(names(&w));
        if n % 97 == 0 {
            w.db.forget();
        }
    }
    assert!(most < 2_000, "{most} texts at some time, of six thousand");
    let job = w.detail(1_499).expect("kept");
    assert_eq!(job.job.worker.as_deref(), Some("worker 1499"));
    assert_eq!(job.result.expect("kept").content_type, "result/1499");
    let dead = w.detail(1).expect("kept");
    assert_eq!(dead.attempts[0].worker.as_deref(), Some("worker 1"));
    assert_eq!(dead.payload.content_type, "type/1");
}

#[test]
fn a_text_that_comes_into_use_again_during_a_pass_stays() {
    let mut w = World::default();
    w.ok(&configure("q", Changes { keep: Some(0), ..Changes::default() }));
    // An old job that is handed back, so that its row is behind the walk whenever it is claimed again.
    w.ok(&enqueue("old", [job(1)]));
    let back = |w: &mut World, worker: &str, t: u8| {
        w.claim(Claim { worker: worker.into(), ..claim("old", 1, t) });
        w.ok(&Op::Release { held: held(1, t) });
    };
    for n in 0..3_000_u32 {
        life(&mut w, 10 + n, ack);
        let t = 1 + (n % 200) as u8;
        // In turns, so that each text is used by only this row, and by none in between.
        back(&mut w, ["ann", "bob", "cid"][(n / 5 % 3) as usize], t);
        if n % 41 == 0 {
            w.db.rewind(w.commit_seq - 1);
        }
    }
    assert_eq!(w.state(1), State::Ready);
    assert_eq!(w.job(1).id, id(1));
    assert!(names(&w) < 3_000, "{}", names(&w));
}
