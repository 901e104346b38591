//! The writers of a world: each has a database of its own, and competes for the next commit of the chain.

use bucketq::error::Error;
use bucketq::internals::db::{Delivered, Moment};
use bucketq::internals::message::{OpReply, OpReport, OpRequest, Unknown, WireError, decode, encode};
use bucketq::internals::pages::Pages;
use bucketq::internals::session::{Delivery, SessionId};
use bucketq::op::{Op, Outcome};

use super::{Body, LIMITS, Rule, World};

impl World {
    /// A writer drops the row of every session, as it may in any commit (P33).
    pub(super) fn forget(&mut self) {
        let at = self.dice.below(self.writers.len());
        if !self.drops
            || self.dice.below(3) > 0
            || self.writers[at].stopped
            || self.writers[at].unsettled.is_some()
        {
            return;
        }
        self.follow(at);
        let keeps = self.breaks(Rule::NotForgotten);
        let writer = &mut self.writers[at];
        let conn = writer.db.connection();
        let newest: u64 = conn
            .query_row("SELECT ifnull(max(born), 0) FROM sessions", [], |row| row.get::<_, i64>(0))
            .expect("sessions are counted") as u64;
        if newest == 0 {
            return;
        }
        if keeps {
            conn.execute("DELETE FROM sessions", []).expect("rows are deleted");
            writer.db.forget();
        } else {
            writer.db.drop_sessions(newest).expect("rows are dropped");
        }
        self.body(at, vec![], vec![]);
    }

    /// A writer that is not busy reads some of what was sent to it, and runs it.
    pub(super) fn read(&mut self) {
        let at = self.dice.below(self.writers.len());
        if self.writers[at].stopped || self.writers[at].unsettled.is_some() {
            return;
        }
        let mut batch = vec![];
        for _ in 0..=self.dice.below(3) {
            let full: Vec<usize> = (0..self.connections.len())
                .filter(|c| self.connections[*c].writer == at && !self.connections[*c].up.is_empty())
                .collect();
            if full.is_empty() {
                break;
            }
            let connection = *self.dice.pick(&full);
            let request = self.connections[connection].up.pop_front().expect("it is not empty");
            batch.push((connection, request));
        }
        if !batch.is_empty() {
            self.execute(at, batch);
        }
    }

    fn execute(&mut self, at: usize, batch: Vec<(usize, OpRequest)>) {
        let now_ms = self.now_ms - self.writers[at].slow_ms;
        let moment = Moment { now_ms, commit_seq: self.writers[at].seq + 1 };
        self.writers[at].db.begin().expect("begins");
        let mut replies = vec![];
        for (connection, request) in &batch {
            replies.push((*connection, self.deliver(at, *connection, request, &moment)));
        }
        self.writers[at].db.commit().expect("commits");
        self.body(at, batch, replies);
    }

    fn deliver(&mut self, at: usize, connection: usize, request: &OpRequest, moment: &Moment) -> OpReply {
        let (session, born) = (self.connections[connection].session, self.connections[connection].born);
        let op: Op = decode(&request.op).expect("an op is decoded");
        let delivery = Delivery {
            session: SessionId(session),
            born,
            n: request.n,
            have: request.have,
            again: request.again,
            cancel: request.cancel,
            last_ms: request.last_ms,
            stamp: request.stamp,
        };
        if request.cancel && self.breaks(Rule::CancelWithoutCommit) {
            let refused = Err(Error::new(bucketq::Code::Timeout, "given up"));
            return reply(request.n, refused, true, None, moment, 0);
        }
        let db = &mut self.writers[at].db;
        if self.rule == Some(Rule::NoRecord) {
            let result = db.apply(&op, moment, &LIMITS);
            return reply(request.n, result, true, None, moment, request.stamp);
        }
        match db.deliver(&delivery, &op, false, moment, &LIMITS).expect("nothing is damaged") {
            Delivered::Executed { result, recorded } => {
                reply(request.n, result, recorded, None, moment, request.stamp)
            }
            Delivered::Recorded { result, stamp, .. } => reply(request.n, result, true, None, moment, stamp),
            Delivered::Forgotten => {
                let refused = Err(Error::new(bucketq::Code::OutcomeUnknown, "forgotten"));
                reply(request.n, refused, false, Some(Unknown::Session), moment, 0)
            }
        }
    }

    /// Sends what has changed as a commit; without any change, replies at once.
    fn body(&mut self, at: usize, batch: Vec<(usize, OpRequest)>, replies: Vec<(usize, OpReply)>) {
        let writer = &mut self.writers[at];
        let changes = writer.pages.with(Pages::take_changes);
        if changes.is_empty() {
            return self.answer(replies);
        }
        let image = writer.pages.with(|p| p.image());
        let id = self.next_id;
        self.next_id += 1;
        self.bodies.push((id, writer.seq, image.clone()));
        if self.rule == Some(Rule::EarlyReply) {
            self.answer(replies.clone());
        }
        let base = self.writers[at].seq;
        self.writers[at].unsettled = Some(Body { id, base, image, changes, batch, replies });
    }

    fn answer(&mut self, replies: Vec<(usize, OpReply)>) {
        for (connection, reply) in replies {
            self.connections[connection].down.push_back(reply);
        }
    }

    /// A body lands, if its turn has not passed.
    pub(super) fn land(&mut self) {
        if self.bodies.is_empty() {
            return;
        }
        let at = self.dice.below(self.bodies.len());
        let (id, base, image) = self.bodies[at].clone();
        if base == self.newest() {
            self.chain.push((id, image));
        }
        if base < self.newest() || self.dice.below(4) == 0 {
            self.bodies.remove(at);
        }
    }

    /// A writer finds out what became of its body; if it lost, runs the batch again on the newest state.
    pub(super) fn settle(&mut self) {
        let at = self.dice.below(self.writers.len());
        if self.writers[at].stopped {
            return;
        }
        let newest = self.newest();
        let Some(body) = self.writers[at].unsettled.take_if(|body| body.base < newest) else {
            if self.writers[at].unsettled.is_none() && self.dice.below(3) == 0 {
                self.follow(at);
            }
            return;
        };
        let landed = self.chain[body.base as usize].0 == body.id;
        if landed {
            self.writers[at].seq = body.base + 1;
            self.writers[at].db.rewind(body.base + 1);
            if self.rule != Some(Rule::EarlyReply) {
                self.answer(body.replies);
            }
            drop(body.image);
        } else {
            let writer = &mut self.writers[at];
            writer.pages.with(|p| p.undo(body.changes)).expect("it is undone");
            self.follow(at);
            if !body.batch.is_empty() {
                self.execute(at, body.batch);
            }
        }
    }

    pub(super) fn follow(&mut self, at: usize) {
        let newest = self.newest();
        let image = self.chain.last().expect("there is a commit").1.clone();
        let writer = &mut self.writers[at];
        writer.pages.with(|p| p.go_to(&image)).expect("it follows");
        drop(writer.pages.with(Pages::take_changes));
        writer.db.rewind(newest);
        writer.pages.reset_cache(writer.db.connection()).expect("nothing is open");
        writer.seq = newest;
    }
}

fn reply(
    n: u64,
    result: Result<Outcome, Error>,
    recorded: bool,
    unknown: Option<Unknown>,
    moment: &Moment,
    stamp: u64,
) -> OpReply {
    let result = result.map(|outcome| encode(&outcome).expect("an outcome is encoded"));
    let result = result.map_err(|error| WireError::from(&error));
    let (commit_seq, commit_ms, report) = (moment.commit_seq, moment.now_ms, OpReport::default());
    OpReply { n, result, recorded, unknown, commit_seq, commit_ms, stamp, report }
}
