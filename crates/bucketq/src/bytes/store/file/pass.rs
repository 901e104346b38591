//! Replaces an object whose lock belongs to a process that does not continue (docs/decisions/0034-passing.md).
//!
//! A process may be stopped between its comparison and its rename, and continue a day later. Its lock cannot simply be
//! taken over. But a rename fails once its source is gone: deleting the temporary file of another writer cancels its
//! replacement. So a writer that passes first makes itself visible, in a directory beside the object, then cancels
//! every other writer, and only then compares and renames. Each writer that has the lock cancels those that pass,
//! before it compares. At least one of two writers sees the other, and one that was cancelled changes nothing.
//!
//! Called by `replace_lock`. Does not decide when to pass.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use crate::bytes::disk;

/// A new body in its temporary file, and the object that it replaces.
#[derive(Clone, Copy, Debug)]
pub(super) struct Replacement<'a> {
    /// The temporary file.
    pub written: &'a Path,
    /// The object.
    pub object: &'a Path,
}

impl Replacement<'_> {
    /// Replaces the object. Returns false if another writer has cancelled that.
    pub fn rename(&self) -> io::Result<bool> {
        rename(self.written, self.object)
    }

    /// Replaces the object without its lock if `is_still`. Returns false if it is another object by now, or if another
    /// writer has cancelled this one.
    pub fn pass(&self, is_still: impl Fn() -> io::Result<bool>) -> io::Result<bool> {
        let place = passing(self.object);
        let Some(mine) = self.enter(&place)? else { return Ok(false) };
        let name = mine.file_name();
        cancel_all(&place, |other| Some(other) != name)?;
        let (dir, beginning) = (self.object.with_file_name(""), format!(".{}.", key(self.object)));
        cancel_all(&dir, |other| other.to_str().is_some_and(|other| is_of(other, &beginning)))?;
        let replaced = is_still()? && rename(&mine, self.object)?;
        if !replaced {
            remove(&mine)?;
        }
        // Another writer may be in it.
        let _ = fs::remove_dir(&place);
        Ok(replaced)
    }

    /// Moves the written file into the directory of those that pass; none if it was cancelled before.
    fn enter(&self, place: &Path) -> io::Result<Option<PathBuf>> {
        let mine = place.join(self.written.file_name().unwrap_or_default());
        loop {
            disk::make_one(place)?;
            match fs::rename(self.written, &mine) {
                Ok(()) => return Ok(Some(mine)),
                // Another one that has passed may have removed the directory.
                Err(e) if e.kind() == ErrorKind::NotFound && fs::exists(self.written)? => {}
                Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
                Err(e) => return Err(e),
            }
        }
    }
}

/// Cancels the writers that pass this object now. The caller has its lock.
pub(super) fn cancel(object: &Path) -> io::Result<()> {
    cancel_all(&passing(object), |_| true)
}

/// Returns the directory of those that pass this object.
fn passing(object: &Path) -> PathBuf {
    object.with_file_name(format!(".{}.passing", key(object)))
}

fn key(object: &Path) -> &str {
    object.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}

/// Returns whether a file is a temporary one with this beginning.
fn is_of(name: &str, beginning: &str) -> bool {
    let random = name.strip_prefix(beginning).and_then(|rest| rest.strip_suffix(".tmp"));
    random.is_some_and(|random| random.len() == 16 && random.bytes().all(|b| b.is_ascii_hexdigit()))
}

fn rename(from: &Path, to: &Path) -> io::Result<bool> {
    match fs::rename(from, to) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == ErrorKind::NotFound && !fs::exists(from)? => Ok(false),
        Err(e) => Err(e),
    }
}

fn cancel_all(dir: &Path, is_other: impl Fn(&std::ffi::OsStr) -> bool) -> io::Result<()> {
    let entries = match fs::read_dir(dir) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if is_other(&entry.file_name()) {
            remove(&entry.path())?;
        }
    }
    Ok(())
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    //! Every order in which the steps of three writers can happen, in a model of a file system. Real ones are in
    //! `tests/contract/file.rs` and `tests/python/test_turns.py`.

    use std::collections::BTreeSet;

    /// A step that a writer leaves out: each one must be noticed.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Omitted {
        Nothing,
        CancelPassing,
        CancelOthersThatPass,
        CancelTemporary,
        Enter,
    }

    /// The next step of a writer.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    enum Step {
        Write,
        Lock,
        CancelPassing,
        Compare,
        Rename,
        Enter,
        CancelOthersThatPass,
        CancelTemporary,
        End,
    }

    /// Where the new body of a writer is.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    enum Body {
        Nowhere,
        Temporary,
        Passing,
        Object,
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    struct Contender {
        step: Step,
        body: Body,
        passes: bool,
        replaced: bool,
    }

    /// The object is the original one until a writer has replaced it; `overwritten` when a second one has.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    struct World {
        writers: [Contender; 3],
        locked_by: Option<usize>,
        is_original: bool,
        overwritten: bool,
    }

    impl World {
        fn step(mut self, who: usize, omitted: Omitted) -> Vec<Self> {
            let me = self.writers[who];
            let others = (0..3).filter(|other| *other != who);
            match me.step {
                Step::Write => self.go(who, Body::Temporary, Step::Lock),
                Step::Lock if self.locked_by.is_none() => {
                    self.locked_by = Some(who);
                    // The lock is on the original: that of another object is another lock.
                    self.writers[who].step = if self.is_original { Step::CancelPassing } else { Step::End };
                    if !self.is_original {
                        self.locked_by = None;
                    }
                    vec![self]
                }
                // It waits, or gives up waiting.
                Step::Lock => {
                    self.writers[who].passes = true;
                    self.writers[who].step = Step::Enter;
                    vec![self]
                }
                Step::CancelPassing => {
                    for other in others.filter(|_| omitted != Omitted::CancelPassing) {
                        self.cancel(other, Body::Passing);
                    }
                    self.go(who, me.body, Step::Compare)
                }
                Step::Enter => match me.body {
                    Body::Temporary if omitted == Omitted::Enter => {
                        self.go(who, Body::Temporary, Step::CancelTemporary)
                    }
                    Body::Temporary => self.go(who, Body::Passing, Step::CancelOthersThatPass),
                    _ => self.go(who, me.body, Step::End),
                },
                Step::CancelOthersThatPass => {
                    for other in others.filter(|_| omitted != Omitted::CancelOthersThatPass) {
                        self.cancel(other, Body::Passing);
                    }
                    self.go(who, me.body, Step::CancelTemporary)
                }
                Step::CancelTemporary => {
                    for other in others.filter(|_| omitted != Omitted::CancelTemporary) {
                        self.cancel(other, Body::Temporary);
                    }
                    self.go(who, me.body, Step::Compare)
                }
                Step::Compare => {
                    let next = if self.is_original { Step::Rename } else { Step::End };
                    if next == Step::End {
                        self.cancel(who, me.body);
                    }
                    self.go(who, self.writers[who].body, next)
                }
                Step::Rename => {
                    if matches!(me.body, Body::Temporary | Body::Passing) {
                        self.overwritten |= !self.is_original;
                        self.is_original = false;
                        self.writers[who].replaced = true;
                        self.writers[who].body = Body::Object;
                    }
                    self.go(who, self.writers[who].body, Step::End)
                }
                Step::End => vec![],
            }
        }

        fn cancel(&mut self, who: usize, body: Body) {
            if self.writers[who].body == body {
                self.writers[who].body = Body::Nowhere;
            }
        }

        fn go(mut self, who: usize, body: Body, step: Step) -> Vec<Self> {
            self.writers[who].body = body;
            self.writers[who].step = step;
            if step == Step::End && self.locked_by == Some(who) {
                self.locked_by = None;
            }
            vec![self]
        }
    }

    /// Returns the number of states that can be reached, and whether one writer can overwrite another.
    fn reach(omitted: Omitted) -> (usize, bool) {
        let new = Contender { step: Step::Write, body: Body::Nowhere, passes: false, replaced: false };
        let first = World { writers: [new; 3], locked_by: None, is_original: true, overwritten: false };
        let (mut seen, mut open) = (BTreeSet::from([first]), vec![first]);
        while let Some(world) = open.pop() {
            for who in 0..3 {
                open.extend(world.step(who, omitted).into_iter().filter(|next| seen.insert(*next)));
            }
        }
        (seen.len(), seen.iter().any(|world| world.overwritten))
    }

    #[test]
    fn no_order_of_the_steps_of_three_writers_loses_a_replacement() {
        let (states, overwritten) = reach(Omitted::Nothing);
        assert!(states > 1_000, "{states} states");
        assert!(!overwritten);
    }

    #[test]
    fn without_any_one_of_the_steps_a_replacement_is_lost() {
        let needed =
            [Omitted::CancelPassing, Omitted::CancelOthersThatPass, Omitted::CancelTemporary, Omitted::Enter];
        for omitted in needed {
            assert!(reach(omitted).1, "{omitted:?}");
        }
    }
}
