//! Random steps: few ids, few tokens, few queues, so that ops affect each other.

use bucketq::job::{Backoff, Dedup, DedupScope, JobId, New, Payload, State, When};
use bucketq::lease::Token;
use bucketq::op::{Claim, ClaimWith, Held, Op, Queues};
use bucketq_tests::queue_db::{START_MS, id, token};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use crate::model::Model;

/// One step of a case.
#[derive(Clone, Debug)]
pub enum Step {
    Wait(i64),
    Batch {
        specs: Vec<Spec>,
        commit: bool,
    },
    Forget,
    /// Drops the caches, as other writers may have written since the newest commit.
    Rewind,
    Retain {
        queue: u8,
        keep: i64,
    },
}

/// An op without the part that depends on the state: the token of the job's present lease.
#[derive(Clone, Debug)]
pub enum Spec {
    Op(Op),
    /// An op on a job by its holder, or by a caller with another token.
    Held {
        job: u32,
        other: Option<u8>,
        what: What,
    },
    Atomic(Vec<Spec>),
    /// The end of a job by its holder, and a claim in the same commit.
    Next {
        end: Box<Spec>,
        claim: Claim,
    },
}

/// The op of a holder.
#[derive(Clone, Debug)]
pub enum What {
    Ack(Option<Payload>),
    Nack(Option<i64>, Option<String>),
    Release,
    Reject(Option<String>),
    Extend(i64, bool),
}

pub fn queue_name(n: u8) -> String {
    format!("queue-{n}")
}

/// The op that a spec means in this state.
pub fn op(spec: &Spec, model: &Model) -> Op {
    match spec {
        Spec::Op(op) => op.clone(),
        Spec::Next { end, claim } => {
            let ends = Some(Box::new(op(end, model)));
            Op::ClaimWith(Box::new(ClaimWith { claim: claim.clone(), ids: vec![], ends, done: false }))
        }
        Spec::Atomic(specs) => Op::Atomic(specs.iter().map(|s| op(s, model)).collect()),
        Spec::Held { job, other, what } => {
            let mine = model.job(id(*job)).and_then(|j| j.token).filter(|_| other.is_none());
            let held = Held { id: id(*job), token: mine.unwrap_or(token(other.unwrap_or(200))) };
            match what.clone() {
                What::Ack(result) => Op::Ack { held, result },
                What::Nack(delay_ms, error) => Op::Nack { held, delay_ms, error },
                What::Release => Op::Release { held },
                What::Reject(error) => Op::Reject { held, error },
                What::Extend(lease_ms, at_least) => Op::Extend { held, lease_ms, at_least },
            }
        }
    }
}

pub fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => prop_oneof![Just(0), Just(1), 1..60_i64, Just(1_000)].prop_map(Step::Wait),
        12 => (vec(spec(), 1..6), prop::bool::weighted(0.85)).prop_map(|(specs, commit)| Step::Batch { specs, commit }),
        1 => Just(Step::Forget),
        1 => Just(Step::Rewind),
        1 => (0..3_u8, 0..4_i64).prop_map(|(queue, keep)| Step::Retain { queue, keep }),
    ];
    vec(step, 1..40)
}

fn spec() -> impl Strategy<Value = Spec> {
    prop_oneof![
        12 => single(),
        4 => claim().prop_map(|c| Spec::Op(Op::Claim(c))),
        2 => (number(), option::weighted(0.15, 1..5_u8), end(), claim()).prop_map(|(job, other, what, claim)| {
            Spec::Next { end: Box::new(Spec::Held { job, other, what }), claim }
        }),
        2 => vec(single(), 1..5).prop_map(Spec::Atomic),
    ]
}

fn single() -> impl Strategy<Value = Spec> {
    let queue = || (0..3_u8).prop_map(queue_name);
    prop_oneof![
        6 => (queue(), vec(new(), 1..4)).prop_map(|(queue, jobs)| Spec::Op(Op::Enqueue { queue, jobs })),
        8 => (number(), option::weighted(0.15, 1..5_u8), what())
            .prop_map(|(job, other, what)| Spec::Held { job, other, what }),
        2 => (number(), any::<bool>()).prop_map(|(n, leased)| Spec::Op(Op::Cancel { id: id(n), leased })),
        2 => (number(), option::of(0..3_u32)).prop_map(|(n, run)| Spec::Op(Op::Requeue { id: id(n), run })),
        2 => (number(), option::of(0..3_u32), queue())
            .prop_map(|(n, run, to)| Spec::Op(Op::Move { id: id(n), run, to })),
        1 => (number(), 0..2_u32, option::of(payload()))
            .prop_map(|(n, run, result)| Spec::Op(Op::AckLate { id: id(n), run, result })),
        1 => (number(), any::<bool>()).prop_map(|(n, leased)| Spec::Op(Op::Delete { id: id(n), leased })),
        1 => (queue(), vec(prop::sample::select(State::ALL.to_vec()), 1..3))
            .prop_map(|(queue, states)| Spec::Op(Op::Purge { queue, states })),
        1 => queue().prop_map(|queue| Spec::Op(Op::Pause { queue })),
        2 => queue().prop_map(|queue| Spec::Op(Op::Resume { queue })),
    ]
}

fn number() -> impl Strategy<Value = u32> {
    0..40_u32
}

fn claim() -> impl Strategy<Value = Claim> {
    let queues = prop_oneof![
        2 => Just(Queues::Any),
        3 => vec((0..4_u8).prop_map(queue_name), 1..3).prop_map(Queues::Named),
    ];
    (
        queues,
        1..6_u32,
        1..50_i64,
        prop::sample::select(vec!["", "ann", "bob"]),
        1..5_u8,
        prop::bool::weighted(0.3),
    )
        .prop_map(|(queues, max, lease_ms, worker, t, again)| {
            let token: Token = token(t);
            Claim { queues, max, lease_ms: Some(lease_ms), worker: worker.into(), token, again }
        })
}

/// The end of a job, at a time that does not depend on a draw.
fn end() -> impl Strategy<Value = What> {
    prop_oneof![
        3 => option::of(payload()).prop_map(What::Ack),
        1 => (0..40_i64).prop_map(|delay| What::Nack(Some(delay), None)),
        1 => Just(What::Release),
        1 => Just(What::Reject(None)),
    ]
}

fn what() -> impl Strategy<Value = What> {
    let error = || option::of(prop::sample::select(vec!["bad", "worse"]).prop_map(str::to_owned));
    prop_oneof![
        3 => option::of(payload()).prop_map(What::Ack),
        3 => (option::of(0..40_i64), error()).prop_map(|(delay, error)| What::Nack(delay, error)),
        1 => Just(What::Release),
        1 => error().prop_map(What::Reject),
        1 => (1..80_i64, prop::bool::ANY).prop_map(|(ms, at_least)| What::Extend(ms, at_least)),
    ]
}

fn payload() -> impl Strategy<Value = Payload> {
    prop_oneof![Just(0), 1..40_usize, Just(1024), Just(1025), Just(9000)].prop_map(|len| Payload {
        bytes: vec![len as u8; len].into(),
        content_type: format!("type/{}", len % 3),
    })
}

fn new() -> impl Strategy<Value = New> {
    let when = prop_oneof![
        4 => Just(When::Now),
        2 => (0..60_i64).prop_map(When::In),
        1 => (-50..100_i64).prop_map(|ms| When::At(START_MS + ms)),
    ];
    let backoff = prop_oneof![
        Just(Backoff::None),
        (0..40_i64, 0..100_i64, prop::sample::select(vec![0, 50, 100])).prop_map(
            |(base_ms, max_ms, jitter_percent)| { Backoff::Exponential { base_ms, max_ms, jitter_percent } }
        ),
        (0..40_i64).prop_map(|delay_ms| Backoff::Fixed { delay_ms }),
        (0..40_i64, 0..100_i64).prop_map(|(base_ms, max_ms)| Backoff::Linear { base_ms, max_ms }),
        vec(0..60_i64, 1..3).prop_map(|delays_ms| Backoff::List { delays_ms }),
    ];
    let scope = prop_oneof![Just(DedupScope::Unfinished), (1..80_i64).prop_map(DedupScope::Window)];
    let dedup = (0..3_u8, scope).prop_map(|(key, scope)| Dedup { key: format!("key-{key}"), scope });
    let group = (0..2_u8).prop_map(|n| format!("group-{n}"));
    let names = (option::weighted(0.3, dedup), option::weighted(0.4, group), any::<bool>());
    // Most ids always come with the same content, so that a second enqueue is a repeat.
    let who = (number(), prop::bool::weighted(0.8));
    (who, payload(), -2..3_i32, when, 1..4_u32, backoff, names).prop_map(
        |((n, usual), payload, priority, when, max_attempts, backoff, (dedup, group, header))| {
            let id: JobId = id(n);
            let (payload, priority, dedup, group) = if usual {
                let group = (n % 4 == 0).then(|| format!("group-{}", n % 2));
                (Payload::text(format!("payload {n}")), n as i32 % 5 - 2, dedup.filter(|_| n % 3 == 0), group)
            } else {
                (payload, priority, dedup, group)
            };
            let headers = if header {
                [("k".to_owned(), "v".to_owned())].into()
            } else {
                std::collections::BTreeMap::default()
            };
            let (max_attempts, backoff) = (Some(max_attempts), Some(backoff));
            New {
                id,
                payload,
                priority,
                when,
                max_attempts,
                backoff,
                dedup,
                group,
                headers,
                expires_ms: None,
                max_run_ms: header.then_some(86_400_000),
            }
        },
    )
}
