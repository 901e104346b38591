//! Dedup keys are found whichever writer wrote them, and whatever was undone meanwhile.

use bucketq::internals::db::{Db, violations};
use bucketq::internals::pages::{Delta, PageFile, Pages};
use bucketq::job::DedupScope;
use bucketq::op::{Op, Outcome};
use bucketq::policy::Changes;
use bucketq::{Error, JobId, State};
use bucketq_tests::queue_db::{START_MS, World, claim, enqueue, held, id, job, keyed};
use proptest::prelude::*;

const MAX_PAGES: u32 = 10_000;

/// A writer with separate pages.
struct Writer {
    file: PageFile,
    world: World,
}

impl Writer {
    fn on(pages: Pages) -> Self {
        let file = PageFile::new(pages);
        let db = Db::open(file.connect(MAX_PAGES).expect("it connects")).expect("it opens");
        Self { file, world: World { db, ..World::default() } }
    }

    /// A writer with an empty memory, on the same state.
    fn fresh(&self) -> Self {
        let mut fresh = Self::on(Pages::thaw(&self.file.with(|p| p.image())));
        (fresh.world.now_ms, fresh.world.commit_seq) = (self.world.now_ms, self.world.commit_seq);
        fresh
    }

    /// The outcomes of the ops, in a transaction that stays open.
    fn run(&mut self, ops: &[Op]) -> Vec<Result<Outcome, Error>> {
        self.world.db.begin().expect("begins");
        ops.iter().map(|op| self.world.apply(op)).collect()
    }

    fn is_known(&mut self, commit_seq: u64) {
        self.world.db.rewind(commit_seq);
        self.file.reset_cache(self.world.db.connection()).expect("nothing is open");
    }
}

fn same(here: &[Result<Outcome, Error>], there: &[Result<Outcome, Error>]) {
    let plain = |all: &[Result<Outcome, Error>]| {
        all.iter().map(|r| r.clone().map_err(|e| e.code())).collect::<Vec<_>>()
    };
    assert_eq!(plain(here), plain(there), "who remembers and who does not answer differently");
}

/// The fate of a batch.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Stored,
    /// Another commit was faster: undone after it was committed here.
    Lost,
    RolledBack,
}

#[derive(Clone, Debug)]
enum Act {
    Enqueue {
        key: u8,
        queue: u8,
        window: Option<i64>,
    },
    /// Enqueues a key; then the whole atomic is refused.
    Refused {
        key: u8,
        deletes: bool,
    },
    ClaimAndAck {
        queue: u8,
    },
    Cancel {
        back: u32,
    },
    Requeue {
        back: u32,
    },
    Purge {
        queue: u8,
    },
}

#[derive(Clone, Debug)]
struct Step {
    writer: usize,
    acts: Vec<Act>,
    fate: Fate,
    wait: i64,
}

fn act() -> impl Strategy<Value = Act> {
    let window = prop_oneof![Just(None), Just(Some(5)), Just(Some(40))];
    prop_oneof![
        8 => (0..6_u8, 0..2_u8, window).prop_map(|(key, queue, window)| Act::Enqueue { key, queue, window }),
        1 => (0..6_u8, any::<bool>()).prop_map(|(key, deletes)| Act::Refused { key, deletes }),
        2 => (0..2_u8).prop_map(|queue| Act::ClaimAndAck { queue }),
        2 => (0..8_u32).prop_map(|back| Act::Cancel { back }),
        2 => (0..8_u32).prop_map(|back| Act::Requeue { back }),
        1 => (0..2_u8).prop_map(|queue| Act::Purge { queue }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let fate = prop_oneof![4 => Just(Fate::Stored), 2 => Just(Fate::Lost), 1 => Just(Fate::RolledBack)];
    (0..2_usize, prop::collection::vec(act(), 1..5), fate, 0..20_i64)
        .prop_map(|(writer, acts, fate, wait)| Step { writer, acts, fate, wait })
}

fn queue(n: u8) -> String {
    format!("q{n}")
}

/// The ops of an act; `next` numbers jobs.
fn ops(act: &Act, next: &mut u32) -> Vec<Op> {
    let mut job = |key: u8, window: Option<i64>| {
        *next += 1;
        keyed(*next, &format!("key-{key}"), window.map_or(DedupScope::Unfinished, DedupScope::Window))
    };
    let purge = |n: u8| Op::Purge { queue: queue(n), states: State::ALL.to_vec() };
    match act {
        Act::Enqueue { key, queue: n, window } => vec![enqueue(&queue(*n), [job(*key, *window)])],
        Act::Refused { key, deletes } => {
            let nobody = Op::Cancel { id: JobId::new(START_MS, [9; 10]), leased: false };
            let before = deletes.then(|| purge(0));
            vec![Op::Atomic(before.into_iter().chain([enqueue("q0", [job(*key, None)]), nobody]).collect())]
        }
        Act::ClaimAndAck { queue: n } => {
            // Whichever job the claim gets, one of the acks is for it.
            let acks = (1..=*next).map(|n| Op::Ack { held: held(n, 1), result: None });
            [Op::Claim(claim(&queue(*n), 1, 1))].into_iter().chain(acks).collect()
        }
        Act::Cancel { back } => vec![Op::Cancel { id: id(next.saturating_sub(*back)), leased: true }],
        Act::Requeue { back } => vec![Op::Requeue { id: id(next.saturating_sub(*back)), run: None }],
        Act::Purge { queue: n } => vec![purge(*n)],
    }
}

fn play(steps: &[Step]) {
    let made = PageFile::new(Pages::new());
    drop(Db::create(made.connect(MAX_PAGES).expect("it connects"), START_MS).expect("it is made"));
    made.with(Pages::take_changes);
    let image = made.with(|p| p.image());
    let mut writers = [Writer::on(Pages::thaw(&image)), Writer::on(Pages::thaw(&image))];
    let (mut commit_seq, mut now_ms, mut next) = (1, START_MS, 0);
    // Few finished jobs are kept, so that keys go with them.
    let keep = Changes { keep: Some(2), ..Changes::default() };
    let first = (0..2).map(|n| Op::Configure { queue: queue(n), changes: Box::new(keep.clone()) }).collect();
    let first = (0, first, Fate::Stored);
    let rest = steps.iter().map(|step| {
        now_ms += step.wait;
        let ops: Vec<Op> = step.acts.iter().flat_map(|act| ops(act, &mut next)).collect();
        (now_ms, (step.writer, ops, step.fate))
    });
    for (now_ms, (who, ops, fate)) in [(START_MS, first)].into_iter().chain(rest) {
        let me = &mut writers[who];
        (me.world.now_ms, me.world.commit_seq) = (now_ms, commit_seq);
        let mut fresh = me.fresh();
        same(&me.run(&ops), &fresh.run(&ops));
        if matches!(fate, Fate::RolledBack) {
            me.world.db.rollback().expect("rolls back");
            let changes = me.file.with(Pages::take_changes);
            me.file.with(|p| p.undo(changes)).expect("nothing is open");
            me.is_known(commit_seq - 1);
            continue;
        }
        for writer in [&mut *me, &mut fresh] {
            writer.world.db.commit().expect("commits");
        }
        assert_eq!(violations(me.world.db.connection(), Some(commit_seq)), []);
        let changes = me.file.with(Pages::take_changes);
        fresh.file.with(Pages::take_changes);
        let sums = [&*me, &fresh].map(|w| w.file.with(|p| p.checksum()));
        assert_eq!(sums[0], sums[1], "the same ops on the same state gave other pages");
        if matches!(fate, Fate::Lost) {
            me.file.with(|p| p.undo(changes)).expect("nothing is open");
            me.is_known(commit_seq - 1);
            continue;
        }
        let delta = Delta::decode(&changes.delta().encode(), MAX_PAGES).expect("it is a delta");
        let other = &mut writers[1 - who];
        other.file.with(|p| p.apply(&delta)).expect("it fits");
        other.is_known(commit_seq - 1);
        commit_seq += 1;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn a_writer_that_follows_and_loses_answers_like_one_that_remembers_nothing(
        steps in prop::collection::vec(step(), 1..40),
    ) {
        play(&steps);
    }
}

#[test]
fn a_key_deleted_by_a_commit_that_was_lost_keeps_others_out() {
    let window = DedupScope::Window(1_000);
    let step = |writer, fate, acts: &[Act]| Step { writer, acts: acts.to_vec(), fate, wait: 0 };
    let add = |key| Act::Enqueue { key, queue: 0, window: None };
    // The keys are first read after the job of one was deleted in the same transaction.
    play(&[
        step(0, Fate::Stored, &[add(1), add(2)]),
        step(1, Fate::Lost, &[Act::Purge { queue: 0 }, add(3)]),
        step(1, Fate::Stored, &[add(1), add(2)]),
        // The same for newer keys.
        step(0, Fate::Stored, &[add(4)]),
        step(1, Fate::Lost, &[Act::Purge { queue: 0 }, add(3)]),
        step(1, Fate::Stored, &[add(4)]),
        step(0, Fate::Stored, &[add(5)]),
        step(1, Fate::Stored, &[Act::Refused { key: 3, deletes: true }, add(5)]),
    ]);
    let mut w = World::default();
    w.ok(&enqueue("q", [keyed(1, "k", window)]));
    w.ok(&Op::Purge { queue: "q".into(), states: vec![State::Ready] });
    assert!(matches!(&w.ok(&enqueue("q", [keyed(2, "k", window)])),
        Outcome::Enqueued(all) if all[0].deduplicated && all[0].id == id(1)));
}

#[test]
fn what_is_remembered_of_keys_does_not_grow_with_those_that_came_and_went() {
    // Without the checks of everything after each op.
    let run = |w: &mut World, op: &Op| {
        w.db.begin().expect("begins");
        w.apply(op).expect("it is done");
        w.db.commit().expect("commits");
        w.commit_seq += 1;
    };
    let mut w = World::default();
    let mut n = 0;
    for round in 0..60 {
        let jobs = (0..1_000).map(|_| {
            n += 1;
            keyed(n, &format!("k{n}"), DedupScope::Window(10))
        });
        run(&mut w, &enqueue("q", jobs));
        w.wait(10);
        // Each enqueue clears a hundred.
        for _ in 0..10 {
            n += 1;
            run(&mut w, &enqueue("q", [job(n)]));
        }
        assert!(w.db.remembered_keys() < 11_000, "{} after round {round}", w.db.remembered_keys());
    }
}
