//! Opens every commit of a seed in order and explains every change by an op.
//!
//! Called by run.rs in deep seeds. It reads the HEADs of the history through the public API, so it sees what any reader
//! would have seen at that commit. Then each change of a job must have its op.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bucketq::QueueFile;
use bucketq::error::{Code, Error, Result};
use bucketq::job::{Job, JobId, State};
use bucketq::op::{Op, Outcome};
use bucketq::query::{Answer, Filter, Query};

use crate::archive;
use crate::check::{Jobs, claim_open};
use crate::history::{Call, History, Verdict};
use crate::museum::Museum;
use crate::ops::{Effect, effects, ends_before, enqueued, finishes, parts, purges, takes_away};
use crate::policies::{PolicyState, RETAINED, due_of};
use crate::workload::QUEUES;
use crate::world::World;

/// Every job of a queue file.
pub async fn list_all(file: &QueueFile) -> Result<Jobs> {
    let (mut jobs, mut after) = (Jobs::new(), None);
    loop {
        let query = Query::List { filter: Filter::default(), after, limit: 1_000 };
        let Answer::Page(page) = file.ask(query, None).await? else {
            return Err(Error::new(Code::Internal, "a list is answered with something else"));
        };
        jobs.extend(page.jobs.into_iter().map(|job| (job.id, job)));
        after = page.next;
        if after.is_none() {
            return Ok(jobs);
        }
    }
}

/// Walks through every commit of the current chain and returns the changes that no op explains.
pub async fn walk(world: &Arc<World>, history: &History) -> Vec<String> {
    let museum = Museum::of(world);
    let mut bad = Vec::new();
    let (mut before, mut was_paused, mut archived) = (Jobs::new(), BTreeSet::new(), BTreeSet::new());
    let mut file: Option<QueueFile> = None;
    let mut policies = PolicyState::default();
    let mut read = archive::Read::new();
    let mut begun = BTreeMap::new();
    for (n, made) in museum.commits.iter().enumerate() {
        museum.show(n).await;
        let (seq, at_ms) = (n as u64 + 1, made.commit_ms);
        if file.is_none() {
            match museum.open(world).await {
                Ok(opened) => file = Some(opened),
                Err(e) => return vec![format!("G7: commit {seq} cannot be opened: {e:?}")],
            }
        }
        let Some(handle) = &file else { continue };
        let paused = paused(handle).await;
        let object = |key: &str| museum.ever.get(key).cloned();
        match archive::whole(handle, object, (&history.expired, seq), &mut read).await {
            Ok(whole) => {
                forgotten(seq, &before, &whole, &archived, &mut bad);
                bad.extend(whole.bad.into_iter().map(|what| format!("commit {seq}: {what}")));
                archived = with_archive(handle).await;
                let jobs = whole.jobs;
                once(seq, &jobs, &mut begun, &mut bad);
                from_paused(history, seq, &jobs, &was_paused, &paused, &mut bad);
                was_paused = paused;
                explain(
                    history,
                    Moment { seq, commit_ms: at_ms, landed_ms: made.landed_ms },
                    &before,
                    &jobs,
                    &mut bad,
                );
                policies.look(handle, seq, at_ms, &jobs, &mut bad).await;
                before = jobs;
            }
            Err(e) => return vec![format!("G7: commit {seq} cannot be read: {e:?}")],
        }
        // Now and then without a cache, so that bases and segments are read as well as tails.
        if n % 37 == 36
            && let Some(handle) = file.take()
        {
            let _ = handle.close().await;
        }
    }
    policies.end(world.plan.catch_up, &mut bad);
    bad
}

async fn paused(file: &QueueFile) -> BTreeSet<String> {
    let Ok(Answer::Queues(queues)) = file.ask(Query::Queues, None).await else { return BTreeSet::new() };
    queues.into_iter().filter(|q| q.paused).map(|q| q.name).collect()
}

/// The queues that have an archive.
async fn with_archive(file: &QueueFile) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for name in QUEUES {
        if let Ok(queue) = file.queue(name)
            && queue.policy().await.is_ok_and(|policy| policy.archive)
        {
            found.insert(name.to_owned());
        }
    }
    found
}

/// A run begins once, also when its job has left and the enqueue is repeated.
fn once(seq: u64, jobs: &Jobs, begun: &mut BTreeMap<(JobId, u32), u64>, bad: &mut Vec<String>) {
    for job in jobs.values() {
        let first = *begun.entry((job.id, job.run)).or_insert(job.seq);
        if first != job.seq {
            let (first, now) = (first >> 24, job.seq >> 24);
            bad.push(format!(
                "G6: life {} of {} begins in commit {first} and again in {now}, seen in {seq}",
                job.run, job.id
            ));
        }
    }
}

/// A run ends when its job begins another one; it is then found in the file or in the archive.
fn forgotten(
    seq: u64,
    before: &Jobs,
    now: &archive::Whole,
    archived: &BTreeSet<String>,
    bad: &mut Vec<String>,
) {
    for job in before.values().filter(|job| archived.contains(&job.queue)) {
        let goes_on = now.jobs.get(&job.id).is_some_and(|now| now.seq > job.seq && now.run > job.run);
        // A job that waits ends no run when it moves to another queue.
        let moved = matches!(job.state, State::Scheduled | State::Ready)
            && now.jobs.get(&job.id).is_some_and(|now| now.queue != job.queue);
        if goes_on && !moved && !now.lives.get(&job.id).is_some_and(|lives| lives.contains(&job.run)) {
            bad.push(format!("G6: life {} of {} is forgotten in commit {seq}", job.run, job.id));
        }
    }
}

/// Claims get no job of a queue that is paused before and after their commit, unless it was resumed in between.
fn from_paused(
    history: &History,
    seq: u64,
    jobs: &Jobs,
    before: &BTreeSet<String>,
    after: &BTreeSet<String>,
    bad: &mut Vec<String>,
) {
    for job in jobs.values().filter(|j| j.fence == Some(seq) && j.state == State::Leased) {
        let stays = before.contains(&job.queue) && after.contains(&job.queue);
        let resumes = |call: &Call| {
            effects(&call.op)
                .iter()
                .any(|effect| matches!(effect, Effect::Opens(queue) if *queue == job.queue))
        };
        if stays && !somebody(history, seq, resumes) {
            bad.push(format!("{} is claimed in commit {seq} from {}, which is paused", job.id, job.queue));
        }
    }
}

/// Each change from one commit to the next has its op, and each reply matches its commit.
fn explain(history: &History, now: Moment, before: &Jobs, after: &Jobs, bad: &mut Vec<String>) {
    let seq = now.seq;
    for call in &history.calls {
        if !call.again && call.commit().is_some_and(|(s, ..)| s == seq) {
            for (id, told) in enqueued(call) {
                let there = after.contains_key(&id) || somebody(history, seq, |c| purges_any(&c.op));
                if matches!(told, Some((true, _))) && (before.contains_key(&id) || !there) {
                    bad.push(format!("G2: {id} is reported as new in commit {seq} and is not"));
                }
            }
        }
    }
    for hold in history.holds.iter().filter(|h| h.fence == seq) {
        let shown = after.get(&hold.job).and_then(|j| j.fence) == Some(seq);
        // A later op of this commit may have taken it away from a claim that came with an ack.
        let taken = || somebody(history, seq, |c| purges_any(&c.op) || takes_away(&c.op, hold.job));
        if !shown && !taken() {
            bad.push(format!("G1: {} is handed out in commit {seq}, which does not show it", hold.job));
        }
    }
    for (id, job) in after {
        let old = before.get(id);
        if old == Some(job) {
            continue;
        }
        // Only an earlier run is left of a job that was purged.
        if old.is_some_and(|old| old.seq > job.seq) {
            if !somebody(history, seq, |call| purges_any(&call.op)) {
                bad.push(format!("G1: the newest life of {id} disappears in commit {seq}"));
            }
            continue;
        }
        if old.is_none()
            && due_of(job).is_none()
            && !somebody(history, seq, |call| enqueued(call).iter().any(|(j, _)| j == id))
        {
            bad.push(format!("G6: {id} appears in commit {seq} and nobody put it there"));
        }
        if job.fence == Some(seq) {
            claimed(history, now, *id, before, bad);
        }
        let finished = |state| job.state == state && old.is_none_or(|o| o.state != state);
        if finished(State::Done) {
            let acks = |call: &Call| {
                finishes(&call.op).is_some_and(|(held, s)| held.id == *id && s == Some(State::Done))
                    || effects(&call.op).iter().any(|e| matches!(e, Effect::Completes(about) if about == id))
            };
            if !somebody(history, seq, acks) {
                bad.push(format!("G5: {id} is done in commit {seq} and nobody acked it there"));
            }
        }
    }
    gone(history, seq, before, after, bad);
}

fn purges_any(op: &Op) -> bool {
    effects(op).iter().any(|effect| matches!(effect, Effect::Deletes(..) | Effect::Removes(_)))
}

fn removes(op: &Op, id: JobId) -> bool {
    effects(op).iter().any(|effect| matches!(effect, Effect::Removes(about) if *about == id))
}

/// Whether somebody enqueued this job with a time at which it expires.
fn expires(history: &History, id: JobId) -> bool {
    let has_time = |effect: &Effect<'_>| match effect {
        Effect::Enqueues(_, jobs) => jobs.iter().any(|job| job.id == id && job.expires_ms.is_some()),
        _ => false,
    };
    history.calls.iter().any(|call| effects(&call.op).iter().any(has_time))
}

/// A job that disappears was purged, and the purge reports the right number of jobs.
fn gone(history: &History, seq: u64, before: &Jobs, after: &Jobs, bad: &mut Vec<String>) {
    let missing: Vec<&Job> = before.values().filter(|job| !after.contains_key(&job.id)).collect();
    for job in &missing {
        // Another op in this commit may have brought it into a state that is purged.
        let touched = somebody(history, seq, |c| takes_away(&c.op, job.id));
        let purged = |state| somebody(history, seq, |c| purges(&c.op, &job.queue, state));
        // So may a claim whose caller left: the writer returns its jobs.
        let handed_back = job.state == State::Leased
            && history.claims.iter().any(|c| c.dropped || claim_open(c.reply.as_ref()));
        let removed = somebody(history, seq, |c| removes(&c.op, job.id));
        // It may have expired in this commit, before a purge of dead jobs.
        let may_expire = job.claimed_ms.is_none() || job.queue == RETAINED;
        let expired = may_expire && expires(history, job.id) && purged(Some(State::Dead));
        let explained =
            removed || expired || purged(Some(job.state)) || ((touched || handed_back) && purged(None));
        if !explained {
            bad.push(format!("G1: {} disappears in commit {seq}", job.id));
        }
    }
    let perhaps = |c: &Call| c.commit().is_none() && c.verdict() == Verdict::Either && purges_any(&c.op);
    if history.calls.iter().any(perhaps) {
        return;
    }
    let mut told = 0;
    for call in history.calls.iter().filter(|c| c.commit().is_some_and(|(s, ..)| s == seq)) {
        for (_, outcome) in parts(call) {
            if let Some(Outcome::Purged { count }) = outcome {
                told += count;
            }
            told += u64::from(matches!(outcome, Some(Outcome::Deleted { was: Some(_) })));
        }
    }
    // A job may come and go within one commit.
    if (missing.len() as u64) > told {
        bad.push(format!(
            "G6: {} jobs disappear in commit {seq}, whose purges tell of {told}",
            missing.len()
        ));
    }
}

/// One commit: its number, its own time, and when it arrived in true time.
#[derive(Clone, Copy)]
struct Moment {
    seq: u64,
    commit_ms: i64,
    landed_ms: u64,
}

fn claimed(history: &History, now: Moment, id: JobId, before: &Jobs, bad: &mut Vec<String>) {
    let (seq, at_ms) = (now.seq, now.commit_ms);
    let told = history.holds.iter().any(|h| h.job == id && h.fence == seq);
    // A claim that was dropped, or whose reply came too late, may have taken it.
    let open = history.claims.iter().any(|c| {
        let unanswered = c.dropped || claim_open(c.reply.as_ref());
        c.at_ms <= now.landed_ms
            && (unanswered || c.reply.as_ref().is_some_and(|(at, _)| *at >= now.landed_ms))
    });
    // So may a claim that came with an ack.
    let next = history.calls.iter().any(|call| {
        let late = call.reply.as_ref().is_some_and(|reply| reply.at_ms >= now.landed_ms);
        ends_before(&call.op).is_some()
            && call.at_ms <= now.landed_ms
            && (late || call.verdict() == Verdict::Either)
    });
    if !told && !open && !next {
        bad.push(format!("G5: {id} is claimed in commit {seq} for nobody"));
    }
    let Some(old) = before.get(&id) else { return };
    let (State::Leased, Some(fence), Some(expires)) = (old.state, old.fence, old.expires_ms) else { return };
    if expires <= at_ms {
        return;
    }
    if !somebody(history, seq, |call| takes_away(&call.op, id)) && !open {
        bad.push(format!(
            "G4: {id}, leased in commit {fence} until {expires}, is claimed in commit {seq} at {at_ms}"
        ));
    }
}

/// Whether an op of this shape was reported in this commit, or may have been applied in it.
fn somebody(history: &History, seq: u64, shape: impl Fn(&Call) -> bool) -> bool {
    history.calls.iter().filter(|c| shape(c)).any(|c| match c.commit() {
        Some((told, ..)) => told == seq,
        None => c.verdict() == Verdict::Either,
    })
}
