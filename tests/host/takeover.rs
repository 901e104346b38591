//! The leader is lost, or stopped for a while: the others continue, and no op is lost or done twice.

use std::fs;
use std::time::Duration;

use bucketq::internals::message::WireWait;
use bucketq::{Held, Op};
use bucketq_tests::peer::{Got, Order};

use crate::client::{Client, HeldStore, Wire, claim, claimed, hello};
use crate::kit::temporary;
use crate::peers::{Host, Peer, assert_jobs, until};

const HOUR: Duration = Duration::from_hours(1);

#[test]
fn a_killed_leader_costs_no_call_of_the_others_and_no_acknowledged_job() {
    let host = Host::new();
    let (mut leader, second, third) = (host.peer(), host.peer(), host.peer());
    let own = leader.begins_many("leader", 100);
    let first = second.begins(Order::Enqueue { text: "first".to_owned() });
    let calls = [second.begins_many("second", 300), third.begins_many("third", 300)];
    first.done();
    leader.dies();
    calls.into_iter().flatten().for_each(super::peers::Pending::done);
    until("a new leader", || {
        (second.leads() && third.is_joined_to(&second)) || (third.leads() && second.is_joined_to(&third))
    });
    // Calls of the killed process itself may have been applied without a reply.
    let acknowledged = own.into_iter().enumerate().filter_map(|(i, call)| {
        call.outcome().map(|outcome| outcome.map(|_| format!("leader{i}")).expect("no call fails"))
    });
    let acknowledged: Vec<String> = acknowledged.collect();
    let got: Vec<Got> = second.claims(10_000);
    let mut texts: Vec<String> = got.into_iter().map(|got| got.text).collect();
    texts.sort();
    for text in &acknowledged {
        assert!(texts.binary_search(text).is_ok(), "{text} is lost");
    }
    texts.retain(|text| !text.starts_with("leader") || acknowledged.contains(text));
    let theirs = (0..300).flat_map(|i| [format!("second{i}"), format!("third{i}")]);
    let mut expected: Vec<String> = theirs.chain(["first".to_owned()]).chain(acknowledged).collect();
    expected.sort();
    assert_eq!(texts, expected);
}

#[test]
fn while_a_leader_is_stopped_the_others_continue_and_it_joins_when_it_wakes_up() {
    let host = Host::new();
    let (leader, second, third) = (host.peer(), host.peer(), host.peer());
    let first = second.begins(Order::Enqueue { text: "first".to_owned() });
    let mut calls = second.begins_many("second", 100);
    first.done();
    leader.stops();
    calls.extend(third.begins_many("third", 100));
    let own = leader.begins_many("leader", 100);
    let claim = leader.begins_claim(1, HOUR);
    calls.into_iter().for_each(super::peers::Pending::done);
    until("a new leader", || second.leads() || third.leads());

    leader.wakes_up();
    own.into_iter().for_each(super::peers::Pending::done);
    let got: Vec<Got> = claim.ok();
    assert_eq!(got.len(), 1);
    until("the old leader joins", || leader.is_joined_to(&second) || leader.is_joined_to(&third));
    leader.begins(Order::Enqueue { text: "awake".to_owned() }).done();
    let all = (0..100).flat_map(|i| [format!("second{i}"), format!("third{i}"), format!("leader{i}")]);
    let all = all.chain(["first".to_owned(), "awake".to_owned()]);
    assert_jobs(&third, all.filter(|text| *text != got[0].text));
    leader.acks(got[0].held);
}

/// A leader and another process, whose files in the meeting place are deleted while both work: these with one of the ends.
fn after_tidying(ends: &[&str]) {
    let host = Host::new();
    let (leader, second) = (host.peer(), host.peer());
    assert!(second.is_joined_to(&leader));
    let mut calls = leader.begins_many("leader", 100);
    calls.extend(second.begins_many("second", 100));
    for file in fs::read_dir(host.meeting.path()).expect("it is ours").flatten() {
        let name = file.file_name().to_string_lossy().into_owned();
        if ends.iter().any(|end| name.ends_with(end)) {
            fs::remove_file(file.path()).expect("it is ours");
        }
    }
    // It finds nobody, or the old leader in the middle of leaving.
    let third = host.peer();
    calls.extend(third.begins_many("third", 100));
    until("one leader", || {
        let all = [&leader, &second, &third];
        let leads: Vec<&Peer> = all.into_iter().filter(|peer| peer.leads()).collect();
        let [leads] = leads[..] else { return false };
        all.into_iter().filter(|peer| peer.is_joined_to(leads)).count() == 2
    });
    let fourth = host.peer();
    assert!(!fourth.leads());
    calls.extend(fourth.begins_many("fourth", 100));
    calls.into_iter().for_each(super::peers::Pending::done);
    let all = ["leader", "second", "third", "fourth"];
    assert_jobs(&third, all.into_iter().flat_map(|name| (0..100).map(move |i| format!("{name}{i}"))));
}

#[test]
fn a_leader_whose_files_were_tidied_away_takes_a_new_seat() {
    after_tidying(&["lock", "sock"]);
    after_tidying(&["lock"]);
    after_tidying(&["sock"]);
}

/// The commits that a client gets which accepts an old state, but none before the one that it has seen elsewhere: first
/// without that demand, then with it. The last value is the commit that it has seen.
fn reads(host: &Host) -> (u64, u64, u64) {
    let leader = host.peer();
    leader.enqueues("the first");
    let mut client = Client::joins(host, &hello(host));
    let elsewhere = host.peer_with(&[("share", "false")]);
    elsewhere.enqueues("the second");
    let seen = elsewhere.stats(None).commit_seq;
    let age = HOUR.as_millis() as u64;
    let behind = client.stats(1, age, 0).commit_seq;
    (behind, client.stats(2, age, seen).commit_seq, seen)
}

#[test]
fn a_read_with_an_age_limit_never_goes_back() {
    let (behind, read, seen) = reads(&Host::new());
    assert!(behind < seen, "the leader has not read that commit yet");
    assert_eq!(read, seen);

    let host = Host::new();
    let (mut leader, second) = (host.peer(), host.peer());
    second.enqueues("a job");
    let seen = second.stats(Some(HOUR)).commit_seq;
    leader.dies();
    assert!(second.stats(Some(HOUR)).commit_seq >= seen);
}

/// The state of a job, after the connection of the client has ended that claimed it, and the client's result when it
/// repeats the claim.
fn after_the_connection(host: &Host) -> String {
    let leader = host.peer();
    let id = leader.enqueues("a job");
    let hello = hello(host);
    let mut client = Client::joins(host, &hello);
    let (claim, before) = (claim(), leader.stats(None).commit_seq);
    let held = HeldStore::of(host);
    client.op(1, &claim, WireWait::No, false);
    until("the body", || HeldStore::has_a_body(host));
    client.leaves();
    until("the end of the connection", || {
        let role = serde_json::to_value(leader.role()).expect("it is data");
        role["processes"] == 0
    });
    held.release();
    until("the claim", || leader.stats(None).commit_seq > before);
    // This commit has all that the leader does for that connection.
    leader.enqueues("another");
    let state = leader.gets(id).expect("it is there").state;
    if state == "leased" {
        let mut client = Client::joins(host, &hello);
        client.op(1, &claim, WireWait::No, true);
        let jobs = claimed(&client.op_reply(1));
        assert_eq!(jobs[0].job.id, id);
        let held = Held { id, token: jobs[0].lease.token };
        client.op(2, &Op::Ack { held, result: None }, WireWait::No, false);
        assert!(client.op_reply(2).result.is_ok());
        assert_eq!(leader.gets(id).expect("it is there").state, "done");
    }
    state
}

#[test]
fn jobs_of_a_lost_connection_stay_with_their_holder() {
    assert_eq!(after_the_connection(&Host::new()), "leased");

    let host = Host::new();
    let (mut leader, holder, other) = (host.peer(), host.peer(), host.peer());
    holder.enqueues("a job");
    let got = holder.claims(1).pop().expect("there is a job");
    leader.dies();
    let claims = |peer: &Peer| peer.claims(1);
    assert_eq!((claims(&other), claims(&holder)), (vec![], vec![]));
    holder.begins(Order::Extend { held: got.held, lease_ms: 1_200_000 }).done();
    holder.acks(got.held);
    assert_eq!(other.gets(got.held.id).expect("it is there").state, "done");
}

/// The leader has claimed a job for a process and is killed before it replies. While that process opens a writer of its
/// own, the caller of the claim leaves: no lease keeps the job.
#[test]
fn a_job_claimed_by_a_killed_leader_is_handed_back_when_its_caller_has_left() {
    let host = Host::new();
    let (mut leader, peer, elsewhere) = (host.peer(), Peer::start(), temporary());
    let wire = Wire::to(&host, &peer, elsewhere.path());
    assert!(peer.is_joined_to(&leader));
    let id = leader.enqueues("a job");
    wire.loses_replies();
    peer.begins_claim(1, HOUR);
    until("the claim", || leader.gets(id).expect("it is there").state == "leased");
    leader.dies();

    // It finds no queue file that it can read until the caller has left.
    let (head, away) = (host.head(), host.store.path().join("away"));
    fs::rename(&head, &away).expect("it is there");
    fs::create_dir(&head).expect("its name is free");
    wire.cut();
    until("the loss", || !peer.is_joined_to(&leader));
    peer.begins(Order::LeaveClaims).done();
    fs::remove_dir(&head).expect("it is empty");
    fs::rename(&away, &head).expect("its name is free");

    until("the end of the lease", || peer.gets(id).expect("it is there").state == "ready");
    assert_eq!(peer.claims(1).len(), 1);
}

/// The tests above notice the broken rules.
#[cfg(feature = "mutants")]
#[allow(non_snake_case, reason = "a test has the name of its variant")]
mod mutants {
    use bucketq::broken::Broken;

    use super::{after_the_connection, reads};
    use crate::peers::Host;

    #[test]
    fn SeenIgnored() {
        let (behind, read, seen) = reads(&Host::broken(Broken::SeenIgnored));
        assert!(behind < seen && read < seen, "{read} of {seen}");
    }

    #[test]
    fn LostConnectionHandsBack() {
        assert_eq!(after_the_connection(&Host::broken(Broken::LostConnectionHandsBack)), "ready");
    }
}
