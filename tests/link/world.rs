//! Clients with sessions, writers with databases of their own, and one chain of commits between them. Connections end,
//! writers stop and wake up, bodies land late or never, and what was sent to a writer is read whenever it likes.

mod writers;

use std::collections::{BTreeMap, VecDeque};

use bucketq::internals::client::{Call, Meaning, Session};
use bucketq::internals::db::{Db, Limits, Moment};
use bucketq::internals::message::{OpReply, OpRequest, WireWait, decode, encode};
use bucketq::internals::pages::{Image, PageChanges, PageFile, Pages};
use bucketq::op::{Op, Outcome};
use bucketq_tests::fuzz::Dice;
use bucketq_tests::queue_db::{START_MS, claim, enqueue, job};

/// A rule of docs/protocol.md, broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// P29: a repeat has a number of its own.
    NewNumber,
    /// P30, P31: no result is recorded, or none is looked up.
    NoRecord,
    /// P31: a result leaves before its commit is stored.
    EarlyReply,
    /// P33: the client says that it has results that it lacks.
    HaveTooMuch,
    /// P33: a row is dropped and `forgotten` is not raised.
    NotForgotten,
    /// P38: a repeat is sent as if it were the first delivery.
    NotMarked,
    /// P32, P38: a result that changed nothing is believed, over a connection that was left too, although the op was
    /// sent twice. (Each of the two rules is enough for that; with one of them broken nothing shows.)
    BelieveRefusal,
    /// P39: giving up is not a commit.
    CancelWithoutCommit,
}

const MAX_PAGES: u32 = 10_000;
const LIMITS: Limits = Limits { max_payload: 1024, max_pages: MAX_PAGES };
/// Jobs that can be claimed.
const JOBS: u32 = 40;

/// The way from one client to one writer; both ends may be left while bytes are still in it.
struct Connection {
    client: usize,
    writer: usize,
    /// Its number in the client's session.
    number: u64,
    session: [u8; 16],
    born: u64,
    up: VecDeque<OpRequest>,
    down: VecDeque<OpReply>,
}

/// A commit that is on its way.
struct Body {
    id: u64,
    base: u64,
    image: Image,
    changes: PageChanges,
    batch: Vec<(usize, OpRequest)>,
    replies: Vec<(usize, OpReply)>,
}

struct Writer {
    pages: PageFile,
    db: Db,
    seq: u64,
    unsettled: Option<Body>,
    stopped: bool,
    slow_ms: i64,
}

struct Client {
    session: Session,
    connection: Option<usize>,
    /// The token of each op by its number, and by session.
    tokens: BTreeMap<([u8; 16], u64), u8>,
}

/// The fate of an op, as its client learned it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    Jobs(usize),
    NotApplied,
    Unknown,
}

pub struct World {
    dice: Dice,
    drops: bool,
    rule: Option<Rule>,
    chain: Vec<(u64, Image)>,
    bodies: Vec<(u64, u64, Image)>,
    writers: Vec<Writer>,
    clients: Vec<Client>,
    connections: Vec<Connection>,
    now_ms: i64,
    next_id: u64,
    next_token: u8,
    told: BTreeMap<u8, Told>,
    pub problems: Vec<String>,
}

impl World {
    /// With an even seed no writer drops a session: then no result is unknown.
    pub fn new(seed: u64, rule: Option<Rule>) -> Self {
        let pages = PageFile::new(Pages::new());
        let conn = pages.connect(MAX_PAGES).expect("it connects");
        conn.pragma_update(None, "page_size", 4096).expect("the page size is set");
        let mut db = Db::create(conn, START_MS).expect("the schema is made");
        let at = Moment { now_ms: START_MS, commit_seq: 1 };
        db.begin().expect("begins");
        db.apply(&enqueue("q", (1..=JOBS).map(job)), &at, &LIMITS).expect("jobs are enqueued");
        db.commit().expect("commits");
        drop(pages.with(Pages::take_changes));
        let image = pages.with(|p| p.image());
        let mut world = Self {
            dice: Dice::new(seed),
            drops: seed % 2 == 1,
            rule,
            chain: vec![(0, image)],
            bodies: vec![],
            writers: vec![],
            clients: vec![],
            connections: vec![],
            now_ms: START_MS,
            next_id: 1,
            next_token: 1,
            told: BTreeMap::new(),
            problems: vec![],
        };
        for _ in 0..3 {
            let writer = world.writer();
            world.writers.push(writer);
        }
        for _ in 0..2 {
            let session = world.session();
            world.clients.push(Client { session, connection: None, tokens: BTreeMap::new() });
        }
        world
    }

    fn breaks(&self, rule: Rule) -> bool {
        self.rule == Some(rule)
    }

    /// Commits are numbered from 1.
    fn newest(&self) -> u64 {
        self.chain.len() as u64
    }

    fn writer(&mut self) -> Writer {
        let (_, image) = self.chain.last().expect("there is a commit");
        let pages = PageFile::new(Pages::thaw(image));
        let db = Db::open(pages.connect(MAX_PAGES).expect("it connects")).expect("it opens");
        let slow_ms = self.dice.below(3) as i64 * 200;
        Writer { pages, db, seq: self.newest(), unsettled: None, stopped: false, slow_ms }
    }

    fn session(&mut self) -> Session {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&self.next_id.to_le_bytes());
        self.next_id += 1;
        Session::new(id, self.newest())
    }

    /// Let something happen.
    pub fn step(&mut self) {
        match self.dice.below(20) {
            0..=3 => self.call(),
            4..=8 => self.read(),
            9..=11 => self.land(),
            12..=13 => self.settle(),
            14..=16 => self.hear(),
            17 => self.reconnect(),
            18 => {
                let at = self.dice.below(self.writers.len());
                self.writers[at].stopped = self.dice.below(2) == 0;
            }
            _ => match self.dice.below(4) {
                0 => self.give_up(),
                1 => self.now_ms += 300,
                2 => self.forget(),
                _ => self.now_ms += 1,
            },
        }
    }

    /// A client sends a claim of one job, with a token of its own.
    fn call(&mut self) {
        if u32::from(self.next_token) > JOBS {
            return;
        }
        let at = self.dice.below(self.clients.len());
        let token = self.next_token;
        self.next_token += 1;
        let op = Op::Claim(bucketq::op::Claim {
            lease_ms: Some(i64::from(u32::MAX)),
            ..claim(if self.dice.below(4) == 0 { "empty" } else { "q" }, 1, token)
        });
        let last_ms = self.now_ms + [400, 100_000][self.dice.below(2)];
        let op = encode(&op).expect("an op is encoded");
        self.send(
            at,
            Call { op, wait: WireWait::No, last_ms, stamp: u64::from(token), watched: false },
            token,
        );
    }

    fn send(&mut self, at: usize, call: Call, token: u8) {
        if self.clients[at].connection.is_none() {
            self.connect(at);
        }
        let client = &mut self.clients[at];
        let request = client.session.send(call);
        client.tokens.insert((client.session.id(), request.n), token);
        self.post(at, request);
    }

    fn post(&mut self, at: usize, mut request: OpRequest) {
        if self.breaks(Rule::NotMarked) {
            request.again = false;
        }
        if self.breaks(Rule::HaveTooMuch) {
            request.have = request.n - 1;
        }
        if self.breaks(Rule::NewNumber) && request.again {
            request.n += 1_000 * self.next_id;
            self.next_id += 1;
        }
        let connection = self.clients[at].connection.expect("it is connected");
        self.connections[connection].up.push_back(request);
    }

    fn connect(&mut self, at: usize) {
        let awake: Vec<usize> = (0..self.writers.len()).filter(|w| !self.writers[*w].stopped).collect();
        let writer = if awake.is_empty() { 0 } else { *self.dice.pick(&awake) };
        let session = &self.clients[at].session;
        self.connections.push(Connection {
            client: at,
            writer,
            number: session.connection(),
            session: session.id(),
            born: session.born(),
            up: VecDeque::new(),
            down: VecDeque::new(),
        });
        self.clients[at].connection = Some(self.connections.len() - 1);
    }

    fn reconnect(&mut self) {
        let at = self.dice.below(self.clients.len());
        if self.clients[at].connection.is_some() {
            self.change_writer(at);
        }
    }

    fn change_writer(&mut self, at: usize) {
        let again = self.clients[at].session.reconnect();
        self.connect(at);
        for request in again {
            self.post(at, request);
        }
    }

    fn give_up(&mut self) {
        let at = self.dice.below(self.clients.len());
        let client = &mut self.clients[at];
        let numbers: Vec<u64> = client.tokens.keys().map(|(_, n)| *n).collect();
        if numbers.is_empty() || client.connection.is_none() {
            return;
        }
        let n = *self.dice.pick(&numbers);
        if let Some(request) = self.clients[at].session.give_up(n) {
            self.post(at, request);
        }
    }

    /// A client hears the next reply of one of its connections, those that it has left included.
    fn hear(&mut self) {
        let full: Vec<usize> =
            (0..self.connections.len()).filter(|c| !self.connections[*c].down.is_empty()).collect();
        if full.is_empty() {
            return;
        }
        let connection = *self.dice.pick(&full);
        let reply = self.connections[connection].down.pop_front().expect("it is not empty");
        let (at, session) = (self.connections[connection].client, self.connections[connection].session);
        if self.clients[at].session.id() != session {
            return;
        }
        let number = if self.breaks(Rule::BelieveRefusal) {
            self.clients[at].session.connection()
        } else {
            self.connections[connection].number
        };
        let mut believed = reply.clone();
        believed.n %= 1_000;
        if self.breaks(Rule::BelieveRefusal) {
            believed.recorded = true;
        }
        let call = self.clients[at].session.call(believed.n).cloned();
        let meaning = self.clients[at].session.reply(number, &believed);
        let token = || self.clients[at].tokens[&(session, believed.n)];
        match meaning {
            Meaning::Late => {}
            Meaning::Final => {
                let told = match &believed.result {
                    Ok(outcome) => match decode(outcome).expect("an outcome is decoded") {
                        Outcome::Claimed(jobs) => Told::Jobs(jobs.len()),
                        other => panic!("no claim returns {other:?}"),
                    },
                    Err(_) => Told::NotApplied,
                };
                self.tell(token(), told);
            }
            Meaning::Unknown => self.tell(token(), Told::Unknown),
            Meaning::Again => {
                if let Some(request) = self.clients[at].session.again(believed.n) {
                    self.post(at, request);
                }
            }
            Meaning::Renew => {
                let token = token();
                self.renew(at, call.expect("it was pending"), token);
            }
            Meaning::Direct => panic!("every writer knows a claim"),
        }
    }

    /// Begins a new session for this call. The other ops of the old one have no known result.
    fn renew(&mut self, at: usize, call: Call, token: u8) {
        let old = self.clients[at].session.id();
        let lost: Vec<u8> = self.clients[at]
            .tokens
            .iter()
            .filter(|((id, n), _)| *id == old && self.clients[at].session.call(*n).is_some())
            .map(|(_, token)| *token)
            .collect();
        for token in lost {
            self.tell(token, Told::Unknown);
        }
        self.clients[at].session = self.session();
        self.connect(at);
        self.send(at, call, token);
    }

    fn tell(&mut self, token: u8, told: Told) {
        if told == Told::Unknown && !self.drops {
            self.problems.push(format!("the result of the claim with token {token} was dropped"));
        }
        if let Some(before) = self.told.insert(token, told) {
            self.problems.push(format!("the claim with token {token} had two results: {before:?}, {told:?}"));
        }
    }

    /// Ends the run: one writer is healthy, every client gets through, then results and effects are compared.
    pub fn end(&mut self) -> &[String] {
        for writer in &mut self.writers {
            writer.stopped = false;
        }
        for _ in 0..60 {
            for at in 0..self.clients.len() {
                if self.clients[at].session.pending() > 0 {
                    self.change_writer(at);
                }
            }
            for _ in 0..400 {
                match self.dice.below(4) {
                    0 => self.read(),
                    1 => self.land(),
                    2 => self.settle(),
                    _ => self.hear(),
                }
            }
            if self.clients.iter().all(|client| client.session.pending() == 0) {
                break;
            }
        }
        if self.clients.iter().any(|client| client.session.pending() > 0) {
            self.problems.push("a client never gets a result".into());
        }
        self.compare();
        &self.problems
    }

    fn compare(&mut self) {
        self.follow(0);
        let mut stmt = self.writers[0]
            .db
            .connection()
            .prepare("SELECT token, count(*) FROM jobs WHERE state = 4 GROUP BY token")
            .expect("it is prepared");
        let held = stmt.query_map([], |row| Ok((row.get::<_, [u8; 16]>(0)?[0], row.get::<_, i64>(1)?)));
        let held: BTreeMap<u8, i64> = held.expect("jobs are read").map(|row| row.expect("a row")).collect();
        for (token, told) in &self.told {
            let there = held.get(token).copied().unwrap_or(0);
            let agrees = match told {
                Told::Jobs(jobs) => there == *jobs as i64,
                Told::NotApplied => there == 0,
                Told::Unknown => there <= 1,
            };
            if !agrees {
                self.problems.push(format!("token {token} holds {there} jobs, its client was told {told:?}"));
            }
        }
        for (token, jobs) in held {
            if jobs > 1 {
                self.problems.push(format!("one claim holds {jobs} jobs with token {token}"));
            }
        }
    }

    /// The number of claims with each kind of result.
    pub fn told(&self) -> [usize; 4] {
        let mut counts = [0; 4];
        for told in self.told.values() {
            counts[match told {
                Told::Jobs(0) => 0,
                Told::Jobs(_) => 1,
                Told::NotApplied => 2,
                Told::Unknown => 3,
            }] += 1;
        }
        counts
    }
}
