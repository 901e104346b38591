//! The page store alone, against a plain vector of bytes.

use bucketq::error::Code;
use bucketq::internals::pages::{Checksum, Delta, PAGE, PageChanges, Pages};
use proptest::prelude::*;

use crate::{Rng, contents, whole};

const MAX_PAGES: u64 = 12;

#[derive(Clone, Debug)]
enum Step {
    Write {
        offset: u64,
        len: usize,
        seed: u64,
    },
    /// Move a stretch inside the file, as SQLite moves cells.
    Move {
        from: u64,
        to: u64,
        len: usize,
    },
    Truncate(u64),
    Read {
        offset: u64,
        len: usize,
    },
    Take,
    Undo,
}

/// The store, its oracle, and a follower that only ever gets deltas.
#[derive(Default)]
struct World {
    pages: Pages,
    now: Vec<u8>,
    taken: Vec<u8>,
    history: Vec<(Vec<u8>, PageChanges)>,
    follower: Pages,
    follower_history: Vec<PageChanges>,
}

impl World {
    fn step(&mut self, step: &Step) {
        match *step {
            Step::Write { offset, len, seed } => self.write(offset, &Rng(seed).bytes(len)),
            Step::Move { from, to, len } => {
                let mut data = vec![0; len];
                self.pages.read(from, &mut data);
                self.write(to, &data);
            }
            Step::Truncate(bytes) => {
                self.pages.truncate(bytes);
                self.now.resize(bytes as usize, 0);
                self.now.resize(self.now.len().next_multiple_of(PAGE), 0);
            }
            Step::Read { offset, len } => {
                let mut got = vec![0xAA; len];
                let all = self.pages.read(offset, &mut got);
                let mut want: Vec<u8> = self.now.iter().skip(offset as usize).take(len).copied().collect();
                assert_eq!(all, want.len() == len);
                want.resize(len, 0);
                assert_eq!(got, want);
            }
            Step::Take => self.take(),
            Step::Undo => self.undo(),
        }
        assert_eq!(self.pages.bytes(), self.now.len() as u64);
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        self.pages.write(offset, data);
        let end = offset as usize + data.len();
        if !data.is_empty() && end > self.now.len() {
            self.now.resize(end.next_multiple_of(PAGE), 0);
        }
        self.now[offset as usize..end].copy_from_slice(data);
    }

    fn take(&mut self) {
        let changes = self.pages.take_changes();
        let differing = differing(&self.taken, &self.now);
        assert_eq!(changes.pages(), differing, "exactly the pages that differ");
        assert_eq!(changes.is_empty(), differing == 0);
        assert_eq!(
            (u64::from(changes.old_count()), u64::from(changes.new_count())),
            ((self.taken.len() / PAGE) as u64, (self.now.len() / PAGE) as u64)
        );
        assert_eq!(changes.old_checksum(), checksum(&self.taken));
        assert_eq!(changes.new_checksum(), checksum(&self.now));

        let sent = changes.delta();
        let got = Delta::decode(&sent.encode(), MAX_PAGES as u32 + 8).expect("what was encoded decodes");
        assert_eq!(got, sent);
        let theirs = self.follower.apply(&got).expect("a settled follower takes the delta");
        assert_eq!(theirs.pages(), differing);
        self.follower_history.push(theirs);

        self.history.push((std::mem::replace(&mut self.taken, self.now.clone()), changes));
        self.settled();
    }

    /// Undo the newest `take`; with open changes it is refused first.
    fn undo(&mut self) {
        let Some((before, changes)) = self.history.pop() else { return };
        if self.now != self.taken {
            let refused = self.pages.undo(changes.clone()).expect_err("open changes are not thrown away");
            assert_eq!(refused.code(), Code::Internal);
            assert_eq!(contents(&self.pages), self.now, "a refusal changes nothing");
            self.history.push((before, changes));
            return;
        }
        self.pages.undo(changes).expect("the newest take can be undone");
        self.follower.undo(self.follower_history.pop().expect("as many")).expect("so it can there");
        self.now.clone_from(&before);
        self.taken = before;
        self.settled();
    }

    fn settled(&self) {
        for pages in [&self.pages, &self.follower] {
            assert!(contents(pages) == self.taken, "contents are not the oracle's");
            assert_eq!(pages.checksum(), checksum(&self.taken));
        }
    }

    fn finish(&self) {
        assert!(contents(&self.pages) == self.now);
        let image = self.pages.image();
        assert!(whole(&image) == self.taken, "an image shows the last take, not what is open");
        assert_eq!(image.checksum(), checksum(&self.taken));
        assert_eq!(image.bytes(), self.taken.len() as u64);
    }
}

fn differing(old: &[u8], new: &[u8]) -> usize {
    let count = old.len().max(new.len()) / PAGE;
    (0..count).filter(|n| old.chunks(PAGE).nth(*n) != new.chunks(PAGE).nth(*n)).count()
}

fn checksum(bytes: &[u8]) -> Checksum {
    Pages::from_image(bytes).expect("whole pages").checksum()
}

fn random_step(rng: &mut Rng) -> Step {
    let size = MAX_PAGES * PAGE as u64;
    let offset = match rng.below(3) {
        0 => rng.below(MAX_PAGES) * PAGE as u64,
        1 => rng.below(200),
        _ => rng.below(size),
    };
    match rng.below(12) {
        0..=3 => {
            let len = [1, 4, 100, PAGE as u64, 3 * PAGE as u64][rng.below(5) as usize];
            Step::Write { offset, len: (rng.below(len) + 1) as usize, seed: rng.below(4) }
        }
        4 => Step::Write { offset: offset / PAGE as u64 * PAGE as u64, len: PAGE, seed: rng.below(4) },
        5..=6 => Step::Move { from: offset, to: rng.below(size), len: rng.below(600) as usize + 1 },
        7 => Step::Truncate(offset),
        8 => Step::Read { offset, len: rng.below(3 * PAGE as u64) as usize },
        9..=10 => Step::Take,
        _ => Step::Undo,
    }
}

fn run(seed: u64, steps: usize) {
    let mut rng = Rng(seed);
    let mut world = World::default();
    for _ in 0..steps {
        let step = random_step(&mut rng);
        world.step(&step);
    }
    world.finish();
}

#[test]
fn random_steps_agree_with_a_plain_vector() {
    let (seeds, steps) = if cfg!(miri) { (2, 12) } else { (300, 200) };
    for seed in 0..seeds {
        run(seed, steps);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 2 } else { 128 }, failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn any_seed_agrees_with_a_plain_vector(seed: u64, steps in 1_usize..if cfg!(miri) { 8 } else { 80 }) {
        run(seed, steps);
    }
}

#[test]
fn an_image_stays_what_it_was_while_writing_goes_on() {
    let mut pages = Pages::new();
    pages.write(0, &Rng(1).bytes(3 * PAGE));
    pages.take_changes();
    let image = pages.image();
    let before = whole(&image);
    pages.write(10, b"else");
    pages.truncate(PAGE as u64);
    pages.take_changes();
    assert_eq!(whole(&image), before);
    assert_eq!(image.page_count(), 3);
    assert_ne!(whole(&pages.image()), before);
}

#[test]
fn bytes_that_are_not_whole_pages_are_no_image() {
    assert_eq!(Pages::from_image(&[0; PAGE + 1]).expect_err("one too many").code(), Code::Corrupt);
    assert_eq!(Pages::from_image(&[]).expect("nothing is whole").checksum(), Checksum::default());
}

#[test]
fn only_the_newest_changes_can_be_undone() {
    let mut pages = Pages::new();
    pages.write(0, b"first");
    let first = pages.take_changes();
    pages.write(0, b"second");
    let second = pages.take_changes();
    assert_eq!(pages.undo(first.clone()).expect_err("not the newest").code(), Code::Internal);
    pages.undo(second).expect("the newest");
    pages.undo(first).expect("now the newest");
    assert_eq!((pages.bytes(), pages.checksum()), (0, Checksum::default()));
}

#[test]
fn a_delta_is_refused_while_something_is_open() {
    let mut pages = Pages::new();
    pages.write(0, b"foreign");
    let delta = pages.take_changes().delta();
    let mut other = Pages::new();
    other.write(0, b"open");
    assert_eq!(other.apply(&delta).expect_err("open changes").code(), Code::Internal);
    assert_eq!(&contents(&other)[..4], b"open");
}

#[test]
fn the_checksum_is_the_documented_one() {
    // XXH3-128 of 4,096 zeros with seeds 1 and 2, from the reference implementation, little-endian.
    let checksum = |bytes: &[u8]| checksum(bytes).to_string();
    assert_eq!(checksum(&[0; PAGE]), "2abdb0b7affda1ecb47498e748bb500d");
    assert_eq!(checksum(&[0; 2 * PAGE]), "726439c36c794336a581d83cf99d5e06");
}
