//! A process without a library: it speaks to the socket of a leader by itself, and decides each byte and each stamp.

use std::collections::VecDeque;
use std::fs;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;

use bucketq::internals::frame::{Arrived, FrameReader, put_beat, put_message};
use bucketq::internals::message::{
    Greeting, Hello, OpReply, OpRequest, Reply, Request, Welcome, WireWait, decode, encode,
};
use bucketq::internals::proof::{Credential, Proof, sign};
use bucketq::op::Claim;
use bucketq::{Answer, Env, Op, Outcome, Query, Queues, Stats, Token};
use bucketq_tests::peer::QUEUE;
use bytes::Bytes;
use serde::Serialize;
use serde::de::{DeserializeOwned, IgnoredAny};

use crate::kit::temporary;
use crate::peers::{Host, LONG_MS, PATIENCE, Peer};

/// Any message may be this large.
const LARGEST: usize = 64 * 1024 * 1024;
/// No commit is as late as this.
const NEVER_MS: i64 = i64::MAX;

/// A connection to a leader.
pub struct Client {
    pub stream: UnixStream,
    reader: FrameReader,
    arrived: VecDeque<Bytes>,
}

impl Client {
    /// Connects, and says nothing.
    pub fn connect(socket: &Path) -> Self {
        Self::over(UnixStream::connect(socket).expect("a process leads"))
    }

    pub fn over(stream: UnixStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).expect("it is no zero");
        Self { stream, reader: FrameReader::new(LARGEST), arrived: VecDeque::new() }
    }

    /// A session of a process that may write the queue file.
    pub fn joins(host: &Host, hello: &Hello) -> Self {
        let mut client = Self::connect(&host.socket(0));
        client.sends(hello);
        let proof = proof(host, &client.nonce());
        client.sends(&proof);
        client.welcome();
        client
    }

    pub fn nonce(&mut self) -> [u8; 32] {
        match self.next() {
            Some(Greeting::Prove { nonce }) => nonce,
            other => panic!("{other:?}"),
        }
    }

    pub fn welcome(&mut self) -> Welcome {
        match self.next() {
            Some(Greeting::Welcome(welcome)) => welcome,
            other => panic!("{other:?}"),
        }
    }

    /// The reason why it may not share the writer.
    pub fn refusal(&mut self) -> String {
        match self.next() {
            Some(Greeting::Refused { reason }) => reason,
            other => panic!("{other:?}"),
        }
    }

    pub fn sends<T: Serialize>(&mut self, message: &T) {
        let mut bytes = vec![];
        put_message(&mut bytes, &encode(message).expect("it is data"));
        self.stream.write_all(&bytes).expect("the leader reads");
    }

    /// A heartbeat with this time of its clock.
    pub fn beats(&mut self, stamp: u64) {
        let mut bytes = vec![];
        put_beat(&mut bytes, stamp);
        self.stream.write_all(&bytes).expect("the leader reads");
    }

    /// The next message; none once the leader has ended the connection.
    pub fn next<T: DeserializeOwned>(&mut self) -> Option<T> {
        let mut chunk = vec![0; 64 * 1024];
        loop {
            if let Some(message) = self.arrived.pop_front() {
                return Some(decode(&message).expect("it is a message"));
            }
            let count = match self.stream.read(&mut chunk) {
                Ok(0) => return None,
                Ok(count) => count,
                Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(e) => panic!("the leader neither writes nor ends the connection: {e}"),
            };
            let mut arrived = vec![];
            self.reader.feed(&chunk[..count], &mut arrived).expect("a leader writes frames");
            self.arrived.extend(arrived.into_iter().filter_map(|one| match one {
                Arrived::Message(bytes) => Some(bytes),
                Arrived::Beat(_) => None,
            }));
        }
    }

    /// Waits until the leader has ended the connection.
    pub fn is_ended(&mut self) {
        while self.next::<IgnoredAny>().is_some() {}
    }

    /// Sends an op under this number; `again` if it was sent before.
    pub fn op(&mut self, n: u64, op: &Op, wait: WireWait, again: bool) {
        let op = encode(op).expect("it is data");
        self.request(n, op, wait, again);
    }

    fn request(&mut self, n: u64, op: Bytes, wait: WireWait, again: bool) {
        let request = OpRequest {
            n,
            have: 0,
            again,
            cancel: false,
            last_ms: NEVER_MS,
            stamp: 0,
            watched: false,
            wait,
            op,
        };
        self.sends(&Request::Op(request));
    }

    /// Waits until the leader has read everything that this client sent. It replies to an op that it does not know
    /// without its writer.
    pub fn is_read(&mut self, n: u64) {
        self.request(n, Bytes::from_static(b"\xc1"), WireWait::No, false);
        let reply = self.op_reply(n);
        assert!(reply.unknown.is_some(), "{reply:?}");
    }

    /// The result of this op.
    pub fn op_reply(&mut self, n: u64) -> OpReply {
        loop {
            match self.next::<Reply>().expect("the leader stays") {
                Reply::Ops(replies) => {
                    if let Some(reply) = replies.into_iter().find(|reply| reply.n == n) {
                        return reply;
                    }
                }
                Reply::Answer { .. } | Reply::Parked { .. } | Reply::Trouble(_) => {}
                Reply::Moving => panic!("the leader leaves"),
            }
        }
    }

    /// The statistics, at most this old, for a client that has seen this commit.
    pub fn stats(&mut self, id: u64, max_age_ms: u64, seen: u64) -> Stats {
        let query = encode(&Query::Stats).expect("it is data");
        self.sends(&Request::Ask { id, query, max_age_ms: Some(max_age_ms), seen });
        loop {
            if let Reply::Answer { id: its, result } = self.next::<Reply>().expect("the leader stays")
                && its == id
            {
                match decode(&result.expect("a read succeeds")).expect("it is an answer") {
                    Answer::Stats(stats) => return stats,
                    other => panic!("{other:?}"),
                }
            }
        }
    }

    pub fn leaves(self) {
        self.stream.shutdown(Shutdown::Both).expect("it is connected");
    }
}

/// A claim of one job.
pub fn claim() -> Op {
    Op::Claim(Claim {
        queues: Queues::Named(vec![QUEUE.to_owned()]),
        max: 1,
        lease_ms: Some(LONG_MS as i64),
        worker: "client".to_owned(),
        token: Token(Env::default().bytes()),
        again: false,
    })
}

/// The jobs of a claim's result.
pub fn claimed(reply: &OpReply) -> Vec<bucketq::job::Claimed> {
    let outcome = reply.result.as_ref().expect("the claim succeeds");
    match decode(outcome).expect("it is an outcome") {
        Outcome::Claimed(jobs) => jobs,
        other => panic!("{other:?}"),
    }
}

pub fn proof(host: &Host, nonce: &[u8; 32]) -> Proof {
    sign(&Credential::Directory(host.store.path().to_owned()), nonce).expect("the directory is ours")
}

/// A hello as a process of this host would send it, with a session of its own. A process has led, so that the name of
/// its socket is known.
pub fn hello(host: &Host) -> Hello {
    let elsewhere = temporary();
    let name = host.socket(0).file_name().expect("a socket has a name").to_owned();
    let listener = UnixListener::bind(elsewhere.path().join(name)).expect("the directory is ours");
    let peer = Peer::start();
    let opened = peer.opens_at(host, elsewhere.path(), &[]);
    let (stream, _) = listener.accept().expect("the process connects");
    let mut client = Client::over(stream);
    let hello: Hello = client.next().expect("the process introduces itself");
    client.sends(&Greeting::Refused { reason: "it is only overheard".to_owned() });
    opened.done();
    let role = peer.role();
    assert!(format!("{role:?}").contains("only overheard"), "{role:?}");
    Hello { session: Env::default().bytes(), ..hello }
}

/// A wire between a process and the leader of its host, which can lose the replies.
pub struct Wire {
    ends: [UnixStream; 2],
    loses: Arc<AtomicBool>,
}

impl Wire {
    /// Lets a process open the queue file. It finds the leader at the other end of the wire.
    pub fn to(host: &Host, peer: &Peer, elsewhere: &Path) -> Self {
        let leader = host.socket(0);
        let socket = elsewhere.join(leader.file_name().expect("a socket has a name"));
        let listener = UnixListener::bind(&socket).expect("the directory is ours");
        let opened = peer.opens_at(host, elsewhere, &[]);
        let (near, _) = listener.accept().expect("the process connects");
        fs::remove_file(socket).expect("it is ours");
        let far = UnixStream::connect(leader).expect("a process leads");
        let loses = Arc::new(AtomicBool::new(false));
        let copy = |from: &UnixStream, to: &UnixStream, loses: Option<Arc<AtomicBool>>| {
            let [mut from, mut to] = [from, to].map(|stream| stream.try_clone().expect("it is open"));
            thread::spawn(move || {
                let mut chunk = vec![0; 64 * 1024];
                while let Ok(count @ 1..) = from.read(&mut chunk) {
                    let lost = loses.as_ref().is_some_and(|loses| loses.load(SeqCst));
                    if !lost && to.write_all(&chunk[..count]).is_err() {
                        return;
                    }
                }
            });
        };
        copy(&near, &far, None);
        copy(&far, &near, Some(Arc::clone(&loses)));
        opened.done();
        Self { ends: [near, far], loses }
    }

    pub fn loses_replies(&self) {
        self.loses.store(true, SeqCst);
    }

    pub fn cut(self) {
        for end in self.ends {
            end.shutdown(Shutdown::Both).expect("it is connected");
        }
    }
}

/// Holds the lock that a commit needs, so that its body is made and does not land.
pub struct HeldStore(fs::File);

impl HeldStore {
    pub fn of(host: &Host) -> Self {
        let head = fs::File::open(host.head()).expect("the queue file is there");
        head.lock().expect("nobody keeps it");
        Self(head)
    }

    /// Whether a body waits for the lock.
    pub fn has_a_body(host: &Host) -> bool {
        let files = fs::read_dir(host.store.path()).expect("it is ours").flatten();
        let is_body =
            |name: String| name.strip_suffix(".tmp").is_some_and(|name| name.starts_with(".jobs.head."));
        files.map(|file| file.file_name().to_string_lossy().into_owned()).any(is_body)
    }

    pub fn release(self) {
        self.0.unlock().expect("it is locked");
    }
}
