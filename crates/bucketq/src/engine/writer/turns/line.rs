//! The line: the order in which writers of one queue file take turns (decision 32).
//!
//! Every writer reads the same order off the commits it sees: the writers of the newest commits, as long as each has only
//! one of them. The first of them is the one whose commit is oldest, and the others wait for it. A writer that does not
//! come loses its place with the next commit. A writer with an older state sees an older line, loses a race and reads on.
//! Knows no times. Correctness does not depend on it.

use std::collections::BTreeMap;

type WriterId = [u8; 8];

/// The writers that take turns, as one of them sees it.
#[derive(Debug, Default)]
pub(super) struct WriterLine {
    /// The first has waited longest.
    order: Vec<WriterId>,
    /// Writers that are not known as always busy.
    others: BTreeMap<WriterId, Other>,
    /// The newest commit.
    seq: u64,
    /// The newest commit at which this writer had waited in vain for one that came only once.
    in_vain: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Other {
    /// Its newest commit.
    seq: u64,
    /// It did not come when it was its turn: no writer waits for it. Otherwise it has come once.
    absent: bool,
}

/// A writer that commits twice within this many turns of each writer, and this many commits more, is sure to come.
const SOON: u64 = 2;
const SOON_AT_LEAST: u64 = 6;
/// After waiting in vain for a writer that came only once, nobody waits for such writers during this many commits: where
/// many short-lived processes come once each, waiting for all of them would cost most of the time.
const WARY: u64 = 64;
/// The longest line. The rest of more writers race.
const LONGEST: usize = 64;
/// A writer without a commit among this many newest ones is forgotten.
const FORGOTTEN: u64 = 256;

impl WriterLine {
    /// Takes in commit `seq`, the next one.
    pub fn committed(&mut self, seq: u64, writer: WriterId) {
        let length = self.order.len() as u64;
        let place = self.place(writer);
        if let Some(at) = place {
            let skipped: Vec<WriterId> = self.order.drain(..at).collect();
            for (before, skipped) in skipped.into_iter().enumerate() {
                if self.waits_for(skipped) && self.others.contains_key(&skipped) {
                    self.in_vain = Some(seq);
                }
                let newest = seq.saturating_sub(length - before as u64);
                self.others.insert(skipped, Other { seq: newest, absent: true });
            }
            self.order.remove(0);
        }
        match self.others.get_mut(&writer) {
            Some(other) if seq.saturating_sub(other.seq) > SOON * length + SOON_AT_LEAST => other.seq = seq,
            Some(_) => drop(self.others.remove(&writer)),
            None if place.is_none() => drop(self.others.insert(writer, Other { seq, absent: false })),
            None => {}
        }
        self.seq = seq;
        self.order.push(writer);
        if self.order.len() > LONGEST {
            self.order.remove(0);
        }
        self.others.retain(|_, other| seq.saturating_sub(other.seq) < FORGOTTEN);
    }

    fn place(&self, writer: WriterId) -> Option<usize> {
        self.order.iter().position(|other| *other == writer)
    }

    /// Returns whether others wait for this writer when it is its turn.
    fn waits_for(&self, writer: WriterId) -> bool {
        let wary = self.in_vain.is_some_and(|in_vain| self.seq < in_vain + WARY);
        self.others.get(&writer).is_none_or(|other| !other.absent && !wary)
    }

    /// Returns how many writers have their turn before this one; `None` for a writer without a place.
    pub fn ahead_of(&self, writer: WriterId) -> Option<u32> {
        let ahead = &self.order[..self.place(writer)?];
        u32::try_from(ahead.iter().filter(|other| self.waits_for(**other)).count()).ok()
    }

    /// Returns whether this writer has a place, and others wait for it when it is its turn.
    pub fn is_sure(&self, writer: WriterId) -> bool {
        self.place(writer).is_some() && self.waits_for(writer)
    }
}

#[cfg(test)]
mod tests {
    use super::WriterLine;

    const A: [u8; 8] = [1; 8];
    const B: [u8; 8] = [2; 8];
    const C: [u8; 8] = [3; 8];
    const D: [u8; 8] = [4; 8];

    fn after(commits: &[[u8; 8]]) -> WriterLine {
        let mut line = WriterLine::default();
        (1..).zip(commits).for_each(|(seq, writer)| line.committed(seq, *writer));
        line
    }

    #[test]
    fn the_writer_whose_commit_is_oldest_is_first() {
        let line = after(&[A, B, C, A, B, C]);
        assert_eq!([A, B, C, D].map(|w| line.ahead_of(w)), [Some(0), Some(1), Some(2), None]);
    }

    #[test]
    fn a_writer_that_does_not_come_loses_its_place() {
        let line = after(&[A, B, C, A, B, C, B]);
        assert_eq!([A, B, C].map(|w| line.ahead_of(w)), [None, Some(1), Some(0)]);
    }

    #[test]
    fn nobody_waits_for_a_writer_that_comes_now_and_then() {
        let often = [A; 40];
        let line = after(&[&[A, B], &often[..], &[B, A]].concat());
        assert_eq!((line.ahead_of(A), line.is_sure(B)), (Some(0), false));
        let line = after(&[&[A, B], &often[..], &[B, A, B, A]].concat());
        assert_eq!((line.ahead_of(A), line.is_sure(B)), (Some(1), true), "B came twice");
    }

    #[test]
    fn a_writer_waits_once_for_those_that_come_once() {
        let mut line = after(&[A, A, B]);
        assert_eq!(line.ahead_of(A), Some(0));
        line.committed(4, A);
        assert_eq!(line.ahead_of(A), Some(1), "B is new");
        line.committed(5, A);
        line.committed(6, C);
        line.committed(7, A);
        assert_eq!(line.ahead_of(A), Some(0), "B did not come");
        for n in 0..1_000_u64 {
            line.committed(8 + n, n.to_le_bytes());
        }
        assert!(line.order.len() <= super::LONGEST && line.others.len() as u64 <= super::FORGOTTEN);
    }
}
