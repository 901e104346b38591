//! Connections that break the rules of the link: the leader ends them, and serves the others as before.

use std::fs;
use std::io::Write;

use bucketq::HostRole;
use bucketq::internals::frame::{PIECE, put_message};
use bucketq::internals::message::{Hello, Request, WireWait, encode};
use bucketq::internals::proof::Proof;
use bucketq::{Env, JobId, New, Op, Payload, Query};
use bucketq_tests::given::noise;
use bucketq_tests::peer::{Got, QUEUE};
use serde::de::IgnoredAny;

use crate::client::{Client, claim, claimed, hello, proof};
use crate::peers::{Host, Peer, until};

/// More than the leader accepts.
const CONNECTIONS: usize = 600;
/// Those that it accepts.
const ACCEPTED: usize = 512;
/// The memory that requests without a reader may take: a multiple of the leader's own bounds for one connection.
const MEMORY: u64 = 256 * 1024 * 1024;

/// The leader serves a process that has joined, and another one that joins now.
fn serves(host: &Host, leader: &Peer, joined: &Peer) {
    let newcomer = host.peer();
    for peer in [joined, &newcomer] {
        assert!(peer.is_joined_to(leader), "{:?}", peer.role());
        let id = peer.enqueues("a job");
        let got: Vec<Got> = leader.claims(1);
        assert_eq!(got[0].held.id, id);
        peer.acks(got[0].held);
    }
}

/// The connection ends after these bytes.
fn is_ended_by(host: &Host, bytes: &[u8]) {
    let mut client = Client::connect(&host.socket(0));
    // The leader may end it before it has read everything.
    let _ = client.stream.write_all(bytes);
    assert!(client.next::<IgnoredAny>().is_none());
}

#[test]
fn foreign_bytes_end_their_connection() {
    let host = Host::new();
    let (leader, joined) = (host.peer(), host.peer());
    is_ended_by(&host, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    is_ended_by(&host, &[0; 4_096]);
    is_ended_by(&host, &noise(7, 4_096));
    let mut message = vec![];
    put_message(&mut message, &noise(8, 1_000));
    is_ended_by(&host, &message);
    serves(&host, &leader, &joined);
}

#[test]
fn a_frame_that_names_the_largest_length_ends_its_connection() {
    let host = Host::new();
    let (leader, joined) = (host.peer(), host.peer());
    let before = memory(&leader);
    is_ended_by(&host, &[1, 0xff, 0xff, 0xff]);
    is_ended_by(&host, &[2, 0xff, 0xff, 0xff]);
    // Larger than a hello may be, in frames that are allowed.
    let mut large = vec![];
    put_message(&mut large, &noise(9, 4 * PIECE));
    is_ended_by(&host, &large);
    // A session may send larger messages, and no message of any size.
    let mut client = Client::joins(&host, &hello(&host));
    client.stream.write_all(&[2, 0xff, 0xff, 0xff]).expect("the leader reads");
    client.is_ended();
    assert!(memory(&leader) - before < MEMORY);
    serves(&host, &leader, &joined);
}

#[test]
fn a_process_that_never_proves_itself_is_disconnected() {
    let host = Host::new();
    let (leader, joined) = (host.peer(), host.peer());
    let mut client = Client::connect(&host.socket(0));
    client.sends(&hello(&host));
    client.nonce();
    serves(&host, &leader, &joined);
    client.is_ended();
    serves(&host, &leader, &joined);
}

#[test]
fn a_process_with_a_wrong_proof_is_refused_and_told_why() {
    let host = Host::new();
    let (leader, joined) = (host.peer(), host.peer());
    let hello = hello(&host);
    let forged = |nonce: &[u8; 32]| match proof(&host, nonce) {
        Proof::Directory { device, inode, mac } => Proof::Directory { device, inode: inode + 1, mac },
        Proof::Key { .. } => panic!("it is a directory"),
    };
    // For another nonce, and for another directory.
    let stolen = |_: &[u8; 32]| proof(&host, &[7; 32]);
    for prove in [&forged as &dyn Fn(&[u8; 32]) -> Proof, &stolen] {
        let mut client = Client::connect(&host.socket(0));
        client.sends(&hello);
        let nonce = client.nonce();
        client.sends(&prove(&nonce));
        assert_eq!(client.refusal(), "its proof of access is wrong");
        client.is_ended();
    }
    serves(&host, &leader, &joined);
}

#[test]
fn a_process_that_reads_no_replies_is_disconnected_and_takes_bounded_memory() {
    let host = Host::new();
    let (leader, joined) = (host.peer(), host.peer());
    let mut client = Client::joins(&host, &hello(&host));
    let env = Env::default();
    let id = JobId::new(env.wall_ms(), env.bytes());
    let jobs = vec![New::new(id, Payload::bytes(noise(1, 100_000)))];
    let op = Op::Enqueue { queue: QUEUE.to_owned(), jobs };
    client.op(1, &op, WireWait::No, false);
    assert!(client.op_reply(1).result.is_ok());
    let before = memory(&leader);
    let query = encode(&Query::Get(id)).expect("it is data");
    // It writes until the leader has ended the connection, and reads nothing.
    let mut sent = 0;
    loop {
        let request = Request::Ask { id: sent, query: query.clone(), max_age_ms: Some(600_000), seen: 0 };
        let mut bytes = vec![];
        put_message(&mut bytes, &encode(&request).expect("it is data"));
        if client.stream.write_all(&bytes).is_err() {
            break;
        }
        sent += 1;
    }
    let grown = memory(&leader).saturating_sub(before);
    assert!(grown < MEMORY, "{grown} bytes for {sent} requests");
    assert_eq!(leader.claims(10).len(), 1);
    serves(&host, &leader, &joined);
}

#[test]
fn six_hundred_connections_leave_the_first_ones_served_and_the_last_ones_write_directly() {
    let host = Host::new();
    let leader = host.peer();
    let hello = hello(&host);
    let session = |i: usize| -> [u8; 16] { [i.to_le_bytes(); 2].concat().try_into().expect("sixteen bytes") };
    let mut joined: Vec<Client> = (0..ACCEPTED)
        .map(|i| Client::joins(&host, &Hello { session: session(i), ..hello.clone() }))
        .collect();
    let beat = |joined: &mut Vec<Client>| joined.iter_mut().for_each(|client| client.beats(1));
    for _ in ACCEPTED..CONNECTIONS {
        beat(&mut joined);
        let mut client = Client::connect(&host.socket(0));
        assert_eq!(client.refusal(), "512 processes share it already");
    }
    beat(&mut joined);
    let refused = host.peer();
    let HostRole::Alone { reason } = refused.role() else { panic!("{:?}", refused.role()) };
    assert_eq!(reason.as_deref(), Some("512 processes share it already"));
    let id = refused.enqueues("a job");
    beat(&mut joined);
    let last = joined.last_mut().expect("there are many");
    last.op(1, &claim(), WireWait::No, false);
    assert_eq!(claimed(&last.op_reply(1))[0].job.id, id);
    drop(joined);
    until("their end", || matches!(leader.role(), HostRole::Leads { processes: 0, .. }));
    serves(&host, &leader, &host.peer());
}

/// The memory that this process has taken at most, in bytes.
fn memory(peer: &Peer) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", peer.pid())).expect("it lives");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("Linux says it");
    let kib: u64 = line.trim().trim_end_matches(" kB").trim().parse().expect("it is a number");
    kib * 1024
}
