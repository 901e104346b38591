//! Processes of one host share a writer: every call works from each of them, and only one makes requests.

use bucketq::HostRole;
use bucketq_tests::peer::{Got, Order};
use serde_json::Value;

use crate::peers::{Host, PATIENCE, Peer, assert_jobs, until};

/// Without polls for an hour: only a notice wakes a claim.
const NO_POLLS: [(&str, &str); 2] = [("poll_min", "3600"), ("poll_max", "3600")];

/// The reason why a process writes for itself.
fn reason(peer: &Peer) -> Option<String> {
    match peer.role() {
        HostRole::Alone { reason } => reason,
        role => panic!("{role:?}"),
    }
}

/// Jobs go both ways between the two.
fn work_together(one: &Peer, other: &Peer) {
    for (from, to) in [(one, other), (other, one)] {
        let id = from.enqueues("hello");
        assert_eq!(to.gets(id).expect("it is acknowledged").text, "hello");
        let got = to.claims(1).pop().expect("there is a job");
        assert_eq!((got.held.id, got.text.as_str()), (id, "hello"));
        assert_eq!(from.claims(1), []);
        to.begins(Order::Extend { held: got.held, lease_ms: 1_200_000 }).done();
        assert_eq!(from.gets(id).expect("it is there").state, "leased");
        to.acks(got.held);
        assert_eq!(from.gets(id).expect("it is there").state, "done");
    }
}

#[test]
fn a_second_process_joins_the_first_and_makes_no_request_of_its_own() {
    let host = Host::new();
    let (first, second) = (host.peer(), host.peer());
    assert!(matches!(first.role(), HostRole::Leads { processes: 1, .. }), "{:?}", first.role());
    assert!(second.is_joined_to(&first), "{:?}", second.role());
    work_together(&first, &second);
    assert_eq!(second.stats(None).commit_seq, first.stats(None).commit_seq);
    let metrics = second.metrics();
    for name in ["puts", "gets", "lists", "uploads", "deletes", "commits"] {
        assert_eq!(metrics.count(name), 0, "{name}");
    }
    assert!(first.metrics().count("puts") >= 8);
    second.closes();
    until("the end of the second process", || matches!(first.role(), HostRole::Leads { processes: 0, .. }));
    assert_eq!(first.claims(1), []);
}

#[test]
fn a_claim_that_waits_in_one_process_gets_the_job_that_another_enqueues() {
    let host = Host::new();
    let (leader, joined) = (host.peer_with(&NO_POLLS), host.peer_with(&NO_POLLS));
    let third = host.peer_with(&NO_POLLS);
    for (waits, enqueues) in [(&joined, &leader), (&leader, &joined), (&joined, &third)] {
        let claim = waits.begins_claim(1, PATIENCE * 2);
        // A read after it: the claim waits by then.
        waits.stats(None);
        let id = enqueues.enqueues("wake up");
        let got: Vec<Got> = claim.ok();
        assert_eq!(got[0].held.id, id);
        waits.acks(got[0].held);
    }
}

#[test]
fn a_leader_that_closes_hands_over_and_no_call_fails() {
    let host = Host::new();
    let (leader, second, third) = (host.peer(), host.peer(), host.peer());
    let waits = second.begins(Order::Enqueue { text: "before".to_owned() });
    let mut calls = second.begins_many("second", 200);
    calls.extend(third.begins_many("third", 200));
    waits.done();
    leader.closes();
    calls.extend(second.begins_many("later", 50));
    calls.into_iter().for_each(super::peers::Pending::done);
    until("a new leader", || {
        let joined = [second.is_joined_to(&third), third.is_joined_to(&second)];
        let leads = [third.leads(), second.leads()];
        joined == leads && joined[0] != joined[1]
    });
    let expected = [("second", 200), ("third", 200), ("later", 50)];
    let expected =
        expected.iter().flat_map(|(prefix, count)| (0..*count).map(move |i| format!("{prefix}{i}")));
    assert_jobs(&third, expected.chain(["before".to_owned()]));
}

#[test]
fn a_process_with_another_option_for_the_store_writes_alone_and_says_why() {
    let host = Host::new();
    let leader = host.peer();
    let other = host.peer_with(&[("max_file", "500000000")]);
    let reason = reason(&other).expect("it says why");
    assert!(reason.contains("other options for the store"), "{reason}");
    work_together(&leader, &other);
    assert!(other.metrics().count("puts") > 0);
    // An option of its calls alone keeps nobody away.
    assert!(host.peer_with(&[("deadline", "20"), ("max_payload", "1000")]).is_joined_to(&leader));
}

#[test]
fn a_process_that_does_not_want_to_share_writes_alone() {
    let host = Host::new();
    let leader = host.peer();
    let alone = host.peer_with(&[("share", "false")]);
    assert_eq!(reason(&alone), None);
    work_together(&leader, &alone);
    assert!(alone.metrics().count("puts") > 0);
    assert!(matches!(leader.role(), HostRole::Leads { processes: 0, .. }));
}

#[test]
fn events_and_times_count_in_the_process_whose_call_it_was() {
    let host = Host::new();
    let (leader, joined) = (host.peer(), host.peer());
    for peer in [&leader, &joined] {
        peer.begins(Order::Listen).done();
    }
    let id = joined.enqueues("mine");
    let got = joined.claims(1).pop().expect("there is a job");
    joined.acks(got.held);
    let theirs = leader.enqueues("yours");
    // Events follow their commit: a read after it makes sure that it is settled.
    leader.stats(None);
    let of = |peer: &Peer, job| -> Vec<String> {
        let events: Vec<Value> = peer.begins(Order::Events).ok();
        let of_job = |event: &&Value| event["id"] == serde_json::json!(job);
        let kind = |event: &Value| event["event"].as_str().expect("it has a kind").to_owned();
        events.iter().filter(of_job).map(kind).collect()
    };
    assert_eq!(of(&joined, id), ["enqueued", "claimed", "acked"]);
    assert_eq!(of(&joined, theirs), Vec::<String>::new());
    assert_eq!(of(&leader, theirs), ["enqueued"]);
    let times = |peer: &Peer| -> Value { peer.begins(Order::Times).ok() };
    assert_eq!(times(&joined), serde_json::json!({ "waits": 1, "runs": 1 }));
    assert_eq!(times(&leader), serde_json::json!({ "waits": 0, "runs": 0 }));
}

#[test]
fn calls_of_a_joined_process_share_commits() {
    let host = Host::new();
    let (leader, joined) = (host.peer(), host.peer());
    let before = leader.metrics().count("commits");
    for call in joined.begins_many("x", 256) {
        call.done();
    }
    let commits = leader.metrics().count("commits") - before;
    assert!(commits < 128, "{commits}");
    assert_jobs(&leader, (0..256).map(|i| format!("x{i}")));
}
