//! Leases of claims from other processes count from a time of their own clock that is before the commit.

use bucketq::internals::message::WireWait;
use bucketq_tests::peer::Order;

use crate::client::{Client, HeldStore, claim, claimed, hello};
use crate::peers::{Host, LONG_MS, until};

/// The stamps of heartbeats before and after the body of a claim was made.
const BEFORE: u64 = 5_000;
const AFTER: u64 = 9_000;

/// The stamp from which the lease of a claim counts that waited, and that of its repeat.
fn counts_from(host: &Host) -> (u64, u64) {
    let leader = host.peer();
    leader.enqueues("the first");
    assert_eq!(leader.claims(1).len(), 1);
    let mut client = Client::joins(host, &hello(host));
    client.op(1, &claim(), WireWait::Ms(LONG_MS), false);
    client.beats(BEFORE);
    client.is_read(100);

    let held = HeldStore::of(host);
    let enqueue = leader.begins(Order::Enqueue { text: "the second".to_owned() });
    until("the body", || HeldStore::has_a_body(host));
    client.beats(AFTER);
    client.is_read(101);
    held.release();

    enqueue.done();
    let reply = client.op_reply(1);
    assert_eq!(claimed(&reply).len(), 1);
    // The body that was held had both: the job, and its claim.
    assert_eq!(reply.commit_seq, leader.stats(None).commit_seq);
    client.beats(2 * AFTER);
    client.op(1, &claim(), WireWait::No, true);
    let again = client.op_reply(1);
    assert_eq!(again.commit_seq, reply.commit_seq);
    (reply.stamp, again.stamp)
}

#[test]
fn a_claim_that_waits_counts_from_a_heartbeat_before_its_commit() {
    assert_eq!(counts_from(&Host::new()), (BEFORE, BEFORE));
}

/// The test above notices a lease that counts from a heartbeat after the body was made.
#[cfg(feature = "mutants")]
#[allow(non_snake_case, reason = "a test has the name of its variant")]
mod mutants {
    use bucketq::broken::Broken;

    use super::{AFTER, counts_from};
    use crate::peers::Host;

    #[test]
    fn StampAtReply() {
        assert!(counts_from(&Host::broken(Broken::StampAtReply)).0 >= AFTER);
    }
}
