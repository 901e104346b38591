//! Replaces an object whose lock belongs to a process that does not continue (docs/decisions/0034-passing.md).
//!
//! A process may be stopped between its comparison and its rename, and continue a day later. Its lock cannot simply be
//! taken over. But a rename fails once its source is gone: deleting the temporary file of another writer cancels its
//! replacement. So a writer that passes first makes itself visible, in a directory beside the object, then cancels
//! every other writer, and only then compares and renames. Each writer that has the lock cancels those that pass,
//! before it compares. At least one of two writers sees the other, and one that was cancelled changes nothing.
//!
//! Called by `replace_lock`. Does not decide when to pass.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use super::{replace_lock, temporary_for};

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
        let key = key(self.object);
        let is_for_it = |other: &OsStr| other.to_str().and_then(temporary_for) == Some(key);
        cancel_all(&self.object.with_file_name(""), is_for_it)?;
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
        let (dir, free) = (self.object.with_file_name(""), self.written.with_extension("passing"));
        loop {
            replace_lock::make_shared(place, &dir, &free)?;
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

fn rename(from: &Path, to: &Path) -> io::Result<bool> {
    match fs::rename(from, to) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == ErrorKind::NotFound && !fs::exists(from)? => Ok(false),
        Err(e) => Err(e),
    }
}

fn cancel_all(dir: &Path, is_other: impl Fn(&OsStr) -> bool) -> io::Result<()> {
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
                Step::Lock => self.go(who, me.body, Step::Enter),
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
        let new = Contender { step: Step::Write, body: Body::Nowhere };
        let first = World { writers: [new; 3], locked_by: None, is_original: true, overwritten: false };
        let (mut seen, mut open) = (BTreeSet::from([first]), vec![first]);
        while let Some(world) = open.pop() {
            for who in 0..3 {
                open.extend(world.step(who, omitted).into_iter().filter(|next| seen.insert(*next)));
            }
        }
        (seen.len(), seen.iter().any(|world| world.overwritten))
    }

    #[cfg(unix)]
    #[test]
    fn the_group_may_use_the_directory_of_those_that_pass_if_it_may_write_to_the_store() {
        use std::fs;
        use std::os::unix::fs::PermissionsExt;

        use super::{Replacement, passing};
        for (mode, expected) in [(0o770, 0o770), (0o2775, 0o770), (0o700, 0o700), (0o777, 0o700)] {
            let dir = tempfile::tempdir().expect("a directory can be made");
            fs::set_permissions(dir.path(), fs::Permissions::from_mode(mode)).expect("it is ours");
            let (object, written) =
                (dir.path().join("jobs.head"), dir.path().join(".jobs.head.0123456789abcdef.tmp"));
            let mode_of = |path| fs::metadata(path).map(|meta| meta.permissions().mode() & 0o777);
            for _ in 0..2 {
                fs::write(&written, "new").expect("it is ours");
                let replacement = Replacement { written: &written, object: &object };
                let is_still = || {
                    assert_eq!(mode_of(passing(&object))?, expected, "in {mode:o}");
                    Ok(true)
                };
                assert!(replacement.pass(is_still).expect("nothing fails"));
            }
            let names =
                fs::read_dir(dir.path()).expect("it is ours").flatten().map(|entry| entry.file_name());
            assert_eq!(names.collect::<Vec<_>>(), ["jobs.head"]);
        }
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
