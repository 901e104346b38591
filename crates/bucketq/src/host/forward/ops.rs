//! Ops on their way to the leader, and what becomes of their results.

use std::time::Duration;

use super::Forwarder;
use crate::bytes::metrics::Counters;
use crate::door::{Done, Mail, ReplyTo, Slot, Wait};
use crate::host::stream::Connection;
use crate::link::client::{Call, Meaning};
use crate::link::message::{OpReply, Request, WireWait, decode, encode};
use crate::noun::error::{Code, Error, Result};
use crate::noun::event::{Event, Happened};
use crate::noun::op::{Held, Op, Outcome};

/// Most bytes of a message beside the op in it.
const ENVELOPE: u64 = 4 * 1024;
/// Ops without a wait may be executed for this long after they were sent; their callers have left long before.
const LAST: Duration = Duration::from_hours(1);

impl Forwarder {
    /// Sends an op of this process for the first time.
    pub(super) fn send(&mut self, op: &Op, slot: Slot, connection: &mut Connection) -> Result<()> {
        let encoded = encode(op)?;
        if encoded.len() as u64 + ENVELOPE > self.largest {
            let text = format!("one call may have at most {} bytes: use several calls", self.largest);
            if let ReplyTo::Caller(caller) = slot.reply {
                let _ = caller.send(Err(Error::new(Code::PayloadTooLarge, text)));
            }
            return Ok(());
        }
        if !slot.stage.send_elsewhere() {
            return Ok(());
        }
        let now = self.env.monotonic();
        let (wait, lasts) = match slot.wait {
            Wait::No => (WireWait::No, LAST),
            Wait::Until(end) => {
                let left = end.saturating_duration_since(now);
                (WireWait::Ms(u64::try_from(left.as_millis()).unwrap_or(u64::MAX)), left)
            }
            Wait::Forever => (WireWait::Forever, Duration::MAX),
        };
        // Nobody wants a job that is claimed after the wait, and after the lease that it would have had.
        let lasts = match (op.lease_ms(), slot.wait) {
            (_, Wait::No) | (None, _) => lasts.max(LAST),
            (Some(lease_ms), _) => {
                lasts.saturating_add(Duration::from_millis(u64::try_from(lease_ms).unwrap_or(0)))
            }
        };
        let lasts = i64::try_from(lasts.as_millis()).unwrap_or(i64::MAX);
        let call = Call {
            op: encoded,
            wait,
            last_ms: self.env.wall_ms().saturating_add(lasts),
            stamp: self.stamp(),
            watched: self.shared.watchers.any(),
        };
        let request = self.session.send(call);
        self.newest_op = request.n;
        self.ops.insert(request.n, slot);
        connection.send(&Request::Op(request))
    }

    pub(super) fn op_reply(&mut self, reply: OpReply) -> Result<()> {
        let n = reply.n;
        match self.session.reply(self.session.connection(), &reply) {
            Meaning::Final => {
                let Some(slot) = self.ops.remove(&n) else { return Ok(()) };
                self.shared.set_newest(reply.commit_seq);
                self.report(&reply);
                self.done(slot, reply)
            }
            Meaning::Again => {
                self.again.push(n);
                Ok(())
            }
            Meaning::Renew => {
                self.renew = true;
                if let Some(slot) = self.ops.remove(&n) {
                    self.inbox.mail.push_front(Mail::Op(slot));
                }
                Ok(())
            }
            Meaning::Unknown => {
                self.renew = true;
                let text = "it may have been applied: the results of its session are not kept any more";
                self.fail(n, Error::new(Code::OutcomeUnknown, text));
                Ok(())
            }
            // The greeting compares the versions of ops, so this is a bug on the other side.
            Meaning::Direct => Err(Error::bug("the leader does not know an op")),
            Meaning::Late => Ok(()),
        }
    }

    pub(super) fn done(&mut self, slot: Slot, reply: OpReply) -> Result<()> {
        let OpReply { result, commit_seq, commit_ms, stamp, .. } = reply;
        let began = self.epoch + Duration::from_millis(stamp.min(self.stamp()));
        let result = match result {
            Ok(outcome) => {
                let outcome: Outcome = decode(&outcome)?;
                Ok(Done { outcome, commit_seq, commit_ms, began })
            }
            Err(error) => Err(error.into_error()),
        };
        let unclaimed = match slot.reply {
            ReplyTo::Caller(caller) => caller.send(result).err(),
            ReplyTo::Nobody | ReplyTo::Connection(_) => Some(result),
        };
        if let Some(Ok(Done { outcome: Outcome::Claimed(jobs), .. })) = unclaimed
            && !jobs.is_empty()
        {
            let held = jobs.iter().map(|c| Held { id: c.job.id, token: c.lease.token }).collect();
            self.inbox.mail.push_front(Mail::HandBack(held));
        }
        Ok(())
    }

    /// Emits the events of an op, and observes its times, in the process that called it.
    pub(super) fn report(&self, reply: &OpReply) {
        let length = |ms: &i64| u64::try_from(*ms).unwrap_or(0);
        let observed = &self.shared.observed;
        reply.report.waits_ms.iter().map(length).for_each(|ms| observed.wait_ms.observe(ms));
        reply.report.runs_ms.iter().map(length).for_each(|ms| observed.run_ms.observe(ms));
        if reply.report.events.is_empty() {
            return;
        }
        // An event of a newer version is no reason to lose the result.
        let Ok(events) = decode::<Vec<Happened>>(&reply.report.events) else { return };
        let (commit_seq, commit_ms) = (reply.commit_seq, reply.commit_ms);
        let events: Vec<Event> =
            events.into_iter().map(|what| Event { commit_seq, commit_ms, what }).collect();
        let missed = self.shared.watchers.emit(&events);
        Counters::add(&self.shared.counters.events_missed, missed);
    }

    pub(super) fn fail(&mut self, n: u64, error: Error) {
        if let Some(Slot { reply: ReplyTo::Caller(caller), .. }) = self.ops.remove(&n) {
            let _ = caller.send(Err(error));
        }
    }
}
