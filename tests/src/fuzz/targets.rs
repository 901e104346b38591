//! The decoders that read untrusted input. Each target returns text: `accepted`, or the error without its numbers.

use std::fmt::Debug;

use bucketq::internals::frame::{Arrived, FrameReader, put_beat, put_message};
use bucketq::internals::gap::Gap;
use bucketq::internals::head::{BaseRef, Head, SegmentRef};
use bucketq::internals::message::{
    Greeting, Hello, OpReply, OpReport, OpRequest, RepeatableTask, Reply, Request, Unknown, Welcome,
    WireError, WireWait, decode, encode,
};
use bucketq::internals::pages::{Delta, Pages};
use bucketq::internals::proof::Proof;
use bucketq::internals::record::Record;
use bucketq::internals::wire::hash;
use bucketq::internals::{archive, base, keys, segment};
use bucketq::life::Life;
use bucketq::settings::SETTINGS;
use bucketq::store::StoreUrl;
use bucketq::{Answer, Error, Happened, JobId, Kind, New, Op, Options, Outcome, Payload, Query, State};
use bytes::Bytes;

use super::Dice;

/// Size limit of the file that the inputs claim to belong to: one MiB.
const PAGES: u32 = 256;
const MIB: usize = 1 << 20;

/// One reader.
#[derive(Debug)]
pub struct Target {
    /// Its name, and that of its folder of the corpus.
    pub name: &'static str,
    /// Inputs that it accepts, as a start.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Makes hashes right, most of the time: an input with a wrong one gets no further.
    pub mend: fn(&mut [u8], &mut Dice),
    /// Read one input.
    pub run: fn(&[u8]) -> String,
    /// Most memory for an input of this length, all allocations together.
    pub bound: fn(usize) -> usize,
}

/// All targets.
pub const TARGETS: &[Target] = &[
    Target { name: "head", seeds: heads, mend: seal, run: head, bound: |len| 64 * len + 64 * 1024 },
    Target { name: "segment", seeds: segments, mend: seal, run: segment, bound: |len| 64 * len + 64 * 1024 },
    Target { name: "delta", seeds: deltas, mend: leave, run: delta, bound: |len| 64 * len + 12 * MIB },
    Target { name: "base", seeds: bases, mend: leave, run: base, bound: |len| 64 * len + 4 * MIB },
    Target { name: "archive", seeds: archives, mend: leave, run: archive, bound: |len| 64 * len + 8 * MIB },
    Target { name: "key", seeds: key_texts, mend: leave, run: key, bound: |len| 16 * len + 4 * 1024 },
    Target { name: "url", seeds: urls, mend: leave, run: url, bound: |len| 64 * len + 16 * 1024 },
    Target { name: "setting", seeds: settings, mend: leave, run: setting, bound: |len| 64 * len + 64 * 1024 },
    // For a list that promises more than it has, serde takes up to 1 MiB, for each level and each try to read it.
    Target { name: "link", seeds: streams, mend: leave, run: stream, bound: |len| 256 * len + 4 * MIB },
];

const GOLDEN: [&[u8]; 3] = [
    include_bytes!("../../format/golden/head.bin"),
    include_bytes!("../../format/golden/bucket/jobs.head"),
    include_bytes!("../../format/golden/bucket-2/jobs.head"),
];
const SEGMENTS: [&[u8]; 3] = [
    include_bytes!("../../format/golden/segment.bin"),
    include_bytes!(
        "../../format/golden/bucket/jobs.seg-ecf46d06-0000000000000004-0000000000000006-0606060606060606"
    ),
    include_bytes!(
        "../../format/golden/bucket-2/jobs.seg-ecf46d06-0000000000000004-0000000000000006-0606060606060606"
    ),
];
const BASES: [&[u8]; 2] = [
    include_bytes!("../../format/golden/bucket/jobs.base-ecf46d06-0000000000000003-0303030303030303"),
    include_bytes!("../../format/golden/bucket-2/jobs.base-ecf46d06-0000000000000003-0303030303030303"),
];

fn heads() -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = GOLDEN.iter().map(|bytes| bytes.to_vec()).collect();
    if let Ok(mut head) = Head::decode("jobs.head", GOLDEN[0]) {
        head.set_gap(Some(Gap { writer: [7; 8], ms: 1_500 }));
        all.push(head.encode());
    }
    all
}

fn segments() -> Vec<Vec<u8>> {
    SEGMENTS.iter().map(|bytes| bytes.to_vec()).collect()
}

/// A codec, the length it states in four bytes, and the frame.
fn deltas() -> Vec<Vec<u8>> {
    let heads = heads().into_iter().filter_map(|bytes| Head::decode("jobs.head", &bytes).ok());
    let records = heads.flat_map(|head| head.tail);
    let mut all: Vec<Vec<u8>> =
        records.map(|r| [&[r.codec][..], &r.raw_len.to_le_bytes(), &r.frame].concat()).collect();
    let grow = include_bytes!("../../format/golden/delta-grow.bin");
    let cut = include_bytes!("../../format/golden/delta-cut.bin");
    for plain in [&grow[..], cut] {
        all.push([&[0][..], &(plain.len() as u32).to_le_bytes(), plain].concat());
    }
    all
}

/// A codec and the bytes.
fn bases() -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = BASES.iter().map(|bytes| [&[1][..], bytes].concat()).collect();
    all.push([&[0][..], &[7; 2 * 4096]].concat());
    all
}

fn archives() -> Vec<Vec<u8>> {
    let life = Life {
        finish_seq: (9 << 24) + 4,
        id: JobId::new(1_767_225_600_123, [7; 10]),
        run: 0,
        queue: "mail".into(),
        group: None,
        state: State::Done,
        priority: 0,
        attempts: 1,
        max_attempts: 10,
        worker: Some("w1".into()),
        enqueued_ms: 1_767_225_600_001,
        run_at_ms: 1_767_225_600_001,
        first_claimed_ms: Some(1_767_225_602_004),
        claimed_ms: Some(1_767_225_602_004),
        finished_ms: 1_767_225_604_016,
        seq: (2 << 24) + 1,
        fence: Some(8),
        payload_len: 5,
        payload: Some(Bytes::from_static(b"hello")),
        payload_type: Some("text/plain".into()),
        result: None,
        result_type: None,
        last_error: None,
    };
    let lives: Vec<Life> =
        (0..50).map(|n| Life { finish_seq: life.finish_seq + n, ..life.clone() }).collect();
    [0, 1, 50].map(|n| archive::encode(&lives[..n], &[7; 16], 9).expect("lives can be written")).to_vec()
}

/// The bytes that one side of a connection sends.
fn streams() -> Vec<Vec<u8>> {
    let jobs = vec![New::new(JobId::new(1_767_225_600_123, [7; 10]), Payload::text("hello"))];
    let ops = [
        Op::Enqueue { queue: "mail".into(), jobs: jobs.clone() },
        Op::Atomic(vec![Op::Pause { queue: "mail".into() }, Op::Enqueue { queue: "mail".into(), jobs }]),
    ];
    let mut all = vec![];
    for op in ops {
        let op = encode(&op).expect("an op is encoded");
        let (again, wait) = (true, WireWait::Ms(7));
        let sent =
            OpRequest { n: 3, have: 2, again, cancel: false, watched: true, last_ms: 5, stamp: 6, wait, op };
        let mut bytes = vec![];
        put_beat(&mut bytes, 9);
        put_message(&mut bytes, &encode(&Request::Op(sent)).expect("a request is encoded"));
        put_message(&mut bytes, &encode(&Request::Leave { id: 4 }).expect("a request is encoded"));
        all.push(bytes);
    }
    let refused = Greeting::Refused { reason: "it means another queue file".into() };
    let greetings = [Greeting::Prove { nonce: [7; 32] }, refused, Greeting::Welcome(welcome())];
    let events = encode(&vec![Happened::Deduplicated { queue: "mail".into(), id: JobId::new(1, [2; 10]) }])
        .expect("events are encoded");
    let report = OpReport { events, waits_ms: vec![1], runs_ms: vec![2] };
    let outcome = encode(&Outcome::Acked).expect("an outcome is encoded");
    let failed = WireError { code: "throttled".into(), message: "later".into() };
    let first = OpReply {
        n: 3,
        result: Ok(outcome),
        recorded: true,
        unknown: None,
        commit_seq: 4,
        commit_ms: 5,
        stamp: 6,
        report,
    };
    let second = OpReply { n: 4, result: Err(failed.clone()), unknown: Some(Unknown::Op), ..first.clone() };
    let query = encode(&Query::Stats).expect("a query is encoded");
    let answer = encode(&Answer::History(vec![])).expect("an answer is encoded");
    let collect = RepeatableTask::Collect { grace_ms: 8 };
    let messages = [
        encode(&hello()),
        encode(&Proof::Key { id: "AKIAEXAMPLE".into(), mac: [8; 32] }),
        encode(&Proof::Directory { device: 9, inode: 10, mac: [11; 32] }),
        encode(&Request::Ask { id: 1, query, max_age_ms: Some(2), seen: 3 }),
        encode(&Request::Run { id: 4, task: collect }),
        encode(&Reply::Ops(vec![first, second])),
        encode(&Reply::Answer { id: 5, result: Ok(answer) }),
        encode(&Reply::Trouble(Some(failed))),
        encode(&Reply::Moving),
    ];
    for message in messages.into_iter().chain(greetings.iter().map(encode)) {
        let mut bytes = vec![];
        put_message(&mut bytes, &message.expect("a message is encoded"));
        all.push(bytes);
    }
    all
}

fn hello() -> Hello {
    Hello {
        magic: Hello::MAGIC.into(),
        version: 1,
        oldest: 1,
        ops: 1,
        place: "s3://acme/jobs".into(),
        shape: "as usual".into(),
        session: [12; 16],
        process: "process 7".into(),
    }
}

fn welcome() -> Welcome {
    Welcome {
        version: 1,
        born: 2,
        file_id: [3; 16],
        max_skew_ms: 4,
        credit: 5,
        credit_bytes: 6,
        largest: 7,
        process: "process 8".into(),
        since_ms: 9,
    }
}

fn texts(all: &[&str]) -> Vec<Vec<u8>> {
    all.iter().map(|text| text.as_bytes().to_vec()).collect()
}

fn key_texts() -> Vec<Vec<u8>> {
    texts(&[
        "jobs.head",
        "jobs.base-abababab-00000000000012ab-0f0f0f0f0f0f0f0f",
        "jobs.seg-abababab-0000000000000004-0000000000000006-0606060606060606",
        "jobs.arch-abababab-0000000000000004-0606060606060606.parquet",
        "jobs.probe-0606060606060606",
    ])
}

fn urls() -> Vec<Vec<u8>> {
    texts(&[
        "s3://acme/path/to/jobs",
        "file:///var/lib/jobs",
        "memory://jobs",
        "gs://acme/jobs",
        "az://acme/jobs",
        "./a path/jobs",
        "C:\\queues\\jobs",
        "s3://acme/%6aobs?x=1#y",
    ])
}

/// A name, a line feed, a value.
fn settings() -> Vec<Vec<u8>> {
    let values = ["true", "0", "1.5", "1e308", "each_commit", "durable", "zstd", "text", "-1", "NaN", "inf"];
    let all = SETTINGS.iter().enumerate();
    all.map(|(i, setting)| format!("{}\n{}", setting.name, values[i % values.len()]).into_bytes()).collect()
}

fn seal(input: &mut [u8], dice: &mut Dice) {
    if dice.below(8) == 0 || input.len() < 16 {
        return;
    }
    let body = input.len() - 16;
    let sum = hash(&input[..body]);
    input[body..].copy_from_slice(&sum);
}

fn leave(_: &mut [u8], _: &mut Dice) {}

/// The result without what differs from input to input.
fn told<T: Debug>(answer: Result<T, Error>) -> String {
    match answer {
        Ok(_) => "accepted".to_owned(),
        Err(error) => {
            assert!(
                matches!(error.kind(), Kind::Corrupt | Kind::Invalid),
                "an error of another kind than reading gives: {error:?}"
            );
            let words = error.message().chars().filter(|c| c.is_ascii_alphabetic() || *c == ' ').take(120);
            format!("{:?} {}", error.code(), words.collect::<String>())
        }
    }
}

fn head(input: &[u8]) -> String {
    let head = Head::decode("jobs.head", input);
    if let Ok(head) = &head {
        // An accepted input decodes to the same when it is encoded again.
        let again = Head::decode("jobs.head", &head.encode());
        assert!(
            again.as_ref().is_ok_and(|again| again == head),
            "written again it is not the same: {again:?}"
        );
        // A gap that is over leaves the fields after it unchanged.
        let mut ended = head.clone();
        ended.set_gap(None);
        let later = |head: &Head| head.extra.get(24..).map(<[u8]>::to_vec).unwrap_or_default();
        assert!(ended.gap().is_none() && later(&ended) == later(head), "another gap: {ended:?}");
        assert!(Head::decode("jobs.head", &ended.encode()).is_ok(), "without its gap it is refused");
    }
    told(head)
}

/// A stream in two pieces: messages are read as requests, and as replies.
fn stream(input: &[u8]) -> String {
    let (mut reader, mut arrived) = (FrameReader::new(MIB), vec![]);
    let (first, second) = input.split_at(input.len() / 3);
    let fed = reader.feed(first, &mut arrived).and_then(|()| reader.feed(second, &mut arrived));
    let read = |message: &[u8]| {
        // Each side decodes whatever arrives as the message that it expects.
        let request = request(message);
        let others = [
            reply(message),
            decode::<Hello>(message).map(drop),
            decode::<Greeting>(message).map(drop),
            decode::<Proof>(message).map(drop),
        ];
        if others.iter().any(Result::is_ok) { Ok(()) } else { request }
    };
    let messages = arrived.iter().filter_map(|one| match one {
        Arrived::Message(message) => Some(message),
        Arrived::Beat(_) => None,
    });
    told(fed.and_then(|()| messages.map(|message| read(message)).collect::<Result<Vec<()>, Error>>()))
}

fn request(message: &[u8]) -> Result<(), Error> {
    match decode(message)? {
        Request::Op(request) => decode::<Op>(&request.op).map(drop),
        Request::Ask { query, .. } => decode::<Query>(&query).map(drop),
        Request::Await { .. } | Request::Run { .. } | Request::Leave { .. } => Ok(()),
    }
}

fn reply(message: &[u8]) -> Result<(), Error> {
    match decode(message)? {
        Reply::Ops(replies) => replies.into_iter().try_for_each(|reply| {
            decode::<Vec<Happened>>(&reply.report.events)?;
            reply.result.map_or(Ok(()), |outcome| decode::<Outcome>(&outcome).map(drop))
        }),
        Reply::Answer { result: Ok(answer), .. } => decode::<Answer>(&answer).map(drop),
        Reply::Answer { .. } | Reply::Trouble(_) | Reply::Parked { .. } | Reply::Moving => Ok(()),
    }
}

fn segment(input: &[u8]) -> String {
    let field = |at: usize, len: usize| input.get(at..at + len).unwrap_or(&[]).to_vec();
    let id = |at: usize| <[u8; 16]>::try_from(field(at, 16)).unwrap_or_default();
    // The range matches the records, so that it is not refused for the range alone.
    let first = field(48, 8).try_into().map_or(1, u64::from_le_bytes);
    let count = field(12, 4).try_into().map_or(1, u32::from_le_bytes);
    let r = SegmentRef {
        from: first,
        to: first.saturating_add(u64::from(count)).saturating_sub(1),
        rand: [0; 8],
        codec: 0,
        len: input.len() as u32,
        hash: hash(input),
    };
    told(segment::decode("a segment", input, &r, &id(16), &id(32)))
}

fn delta(input: &[u8]) -> String {
    let Some((&codec, rest)) = input.split_first() else { return "nothing".to_owned() };
    let Some((len, frame)) = rest.split_at_checked(4) else { return "nothing".to_owned() };
    let record = Record {
        seq: 7,
        commit_id: [1; 16],
        prev_commit_id: [2; 16],
        commit_ms: 0,
        writer: [3; 8],
        ops: 1,
        page_count: 1,
        checksum: [0; 16],
        codec,
        raw_len: len.try_into().map_or(0, u32::from_le_bytes),
        frame: Bytes::copy_from_slice(frame),
    };
    let delta: Result<Delta, Error> = record.delta(PAGES);
    if let Ok(delta) = &delta {
        // An accepted delta applies to a database, or is refused and leaves it unchanged.
        let mut pages = Pages::new();
        pages.write(0, &[5; 3 * 4096]);
        drop(pages.take_changes());
        let before = pages.checksum();
        match pages.apply(delta) {
            Ok(changes) => pages.undo(changes).expect("what was applied can be undone"),
            Err(error) => drop(told::<()>(Err(error))),
        }
        assert!(pages.checksum().0 == before.0, "the pages are not as they were");
    }
    told(delta)
}

fn base(input: &[u8]) -> String {
    let Some((&codec, bytes)) = input.split_first() else { return "nothing".to_owned() };
    let r = BaseRef { seq: 1, rand: [0; 8], codec, len: bytes.len() as u64, hash: hash(bytes) };
    told(base::decode("a base", bytes, &r, PAGES))
}

fn archive(input: &[u8]) -> String {
    told(archive::decode("an archive object", Bytes::copy_from_slice(input)))
}

fn key(input: &[u8]) -> String {
    let text = String::from_utf8_lossy(input);
    keys::parse("jobs", &text).map_or_else(|| "not a key".to_owned(), |_| "accepted".to_owned())
}

fn url(input: &[u8]) -> String {
    told(StoreUrl::parse(&String::from_utf8_lossy(input)))
}

fn setting(input: &[u8]) -> String {
    let text = String::from_utf8_lossy(input);
    let (name, value) = text.split_once('\n').unwrap_or((&text, ""));
    let Some(setting) = SETTINGS.iter().find(|setting| setting.name == name) else {
        return "no such".to_owned();
    };
    let mut options = Options::default();
    let set = setting.parse(value).and_then(|value| setting.set(&mut options, value));
    told(set.and_then(|()| options.check()))
}
