//! Messages survive the way, unknown fields are ignored, and bytes of any kind are refused without harm.

use bucketq::error::{CODES, Code, Error};
use bucketq::internals::message::{
    Greeting, Hello, OpReply, OpReport, OpRequest, RepeatableTask, Reply, Request, Unknown, WireError,
    WireWait, decode, encode,
};
use bucketq::op::{Held, Op, Outcome};
use bucketq::query::{Answer, Query};
use bucketq::{JobId, New, Payload};
use bucketq_tests::queue_db::{World, claim, enqueue, held, id, job, token};
use bytes::Bytes;
use serde::Serialize;

fn request() -> OpRequest {
    OpRequest {
        n: 3,
        have: 2,
        again: true,
        cancel: false,
        last_ms: 5,
        watched: false,
        stamp: 6,
        wait: WireWait::Ms(7),
        op: encode(&enqueue("q", [job(1)])).expect("an op is encoded"),
    }
}

#[test]
fn every_kind_of_message_survives_the_way() {
    let requests = [
        Request::Op(request()),
        Request::Ask { id: 1, query: Bytes::from_static(b"x"), max_age_ms: Some(1), seen: 9 },
        Request::Await { id: 2, job: id(1) },
        Request::Run { id: 3, task: RepeatableTask::Collect { grace_ms: 4 } },
        Request::Leave { id: 4 },
    ];
    for sent in requests {
        assert_eq!(decode::<Request>(&encode(&sent).expect("encoded")).expect("decoded"), sent);
    }
    let error = WireError::from(&Error::new(Code::NoSuchJob, "no job"));
    let replies = [
        Reply::Ops(vec![OpReply {
            n: 3,
            result: Ok(Bytes::from_static(b"x")),
            recorded: true,
            unknown: Some(Unknown::Session),
            commit_seq: 4,
            commit_ms: 5,
            stamp: 6,
            report: OpReport { waits_ms: vec![12], ..OpReport::default() },
        }]),
        Reply::Answer { id: 1, result: Err(error.clone()) },
        Reply::Trouble(Some(error)),
        Reply::Trouble(None),
        Reply::Moving,
    ];
    for sent in replies {
        assert_eq!(decode::<Reply>(&encode(&sent).expect("encoded")).expect("decoded"), sent);
    }
}

#[test]
fn ops_queries_and_what_they_return_survive_the_way() {
    let mut w = World::default();
    let payload = Payload::bytes((0..=255).collect::<Vec<u8>>());
    let ops = [
        enqueue("q", [New::new(id(1), payload), job(2)]),
        Op::Claim(claim("q", 9, 1)),
        Op::Atomic(vec![
            Op::Ack { held: held(1, 1), result: Some(Payload::text("ü")) },
            Op::Nack {
                held: Held { id: id(2), token: token(1) },
                delay_ms: Some(1),
                error: Some("no".into()),
            },
        ]),
        Op::Pause { queue: "q".into() },
    ];
    for op in ops {
        let bytes = encode(&op).expect("encoded");
        assert_eq!(decode::<Op>(&bytes).expect("decoded"), op);
        let outcome = w.ok(&op);
        assert_eq!(decode::<Outcome>(&encode(&outcome).expect("encoded")).expect("decoded"), outcome);
    }
    for query in [Query::Stats, Query::Queues, Query::Get(id(2)), Query::Policy("q".into())] {
        assert_eq!(decode::<Query>(&encode(&query).expect("encoded")).expect("decoded"), query);
        let answer = w.query(&query);
        assert_eq!(decode::<Answer>(&encode(&answer).expect("encoded")).expect("decoded"), answer);
    }
}

#[test]
fn every_error_code_survives_the_way_and_an_unknown_one_claims_nothing() {
    for code in CODES {
        let sent = Error::new(*code, "why");
        let arrived = WireError::from(&sent).into_error();
        assert_eq!((arrived.code(), arrived.message()), (*code, "why"));
    }
    let newer = WireError { code: "invented_later".into(), message: "why".into() };
    assert_eq!(newer.into_error().code(), Code::OutcomeUnknown);
}

#[test]
fn fields_of_a_newer_version_are_ignored_and_missing_new_ones_have_defaults() {
    #[derive(Serialize)]
    struct Newer {
        n: u64,
        have: u64,
        last_ms: i64,
        stamp: u64,
        wait: WireWait,
        op: Bytes,
        colour: &'static str,
    }
    let OpRequest { n, have, last_ms, stamp, wait, op, .. } = request();
    let newer = Newer { n, have, last_ms, stamp, wait, op, colour: "red" };
    let arrived: OpRequest = decode(&encode(&newer).expect("encoded")).expect("decoded");
    assert_eq!(arrived, OpRequest { again: false, ..request() });
}

#[test]
fn an_op_that_this_library_does_not_know_spoils_only_itself() {
    #[derive(Serialize)]
    #[serde(rename_all = "snake_case")]
    enum Newer {
        Teleport { queue: &'static str },
    }
    let op = encode(&Newer::Teleport { queue: "q" }).expect("encoded");
    let sent = Request::Op(OpRequest { op, ..request() });
    let Request::Op(arrived) = decode(&encode(&sent).expect("encoded")).expect("decoded") else {
        panic!("it is an op")
    };
    assert_eq!(arrived.n, 3);
    assert!(decode::<Op>(&arrived.op).is_err());
}

#[test]
fn nesting_without_end_is_refused() {
    let mut bytes = vec![];
    for _ in 0..100_000 {
        // {"atomic": [ ...
        bytes.extend([0x81, 0xa6]);
        bytes.extend(b"atomic");
        bytes.push(0x91);
    }
    assert!(decode::<Op>(&bytes).is_err());
    // An atomic within an atomic is refused by the engine, but it can be read.
    let nested = Op::Atomic(vec![Op::Atomic(vec![enqueue("q", [job(1)])])]);
    assert_eq!(decode::<Op>(&encode(&nested).expect("encoded")).expect("decoded"), nested);
}

#[test]
fn a_hello_is_small() {
    let hello = Hello {
        magic: Hello::MAGIC.into(),
        version: 1,
        oldest: 1,
        ops: 1,
        place: "s3://bucket/path/name at https://endpoint.example".into(),
        shape: "x".repeat(500),
        session: [1; 16],
        process: "python 12345".into(),
    };
    let bytes = encode(&hello).expect("encoded");
    assert!(bytes.len() < 1_000, "{}", bytes.len());
    assert_eq!(decode::<Hello>(&bytes).expect("decoded"), hello);
    assert!(decode::<Greeting>(&bytes).is_err());
    assert!(decode::<JobId>(b"").is_err());
}
