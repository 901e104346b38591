//! Makes forks of this process safe: other threads first finish short pieces of work, and a child inherits neither file
//! locks nor the sockets between processes of a host.
//!
//! A child of a fork has one thread. A lock that another thread held at that moment is never released in the child, and
//! a file lock that the child inherits stays held when the parent is killed. So work under such a lock runs `inside`,
//! and a program that forks calls [`before`] and then [`in_parent`] or [`in_child`]; the Python package does so for
//! every fork. Called by all code that locks something shared by the process. Decision 26.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::process;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

/// The error text when a child uses a handle that it has inherited.
pub const INHERITED: &str =
    "this belongs to the process that this one was forked from: open the queue file again in this process";

/// Number of threads inside, plus FORKING for each thread that is about to fork.
static GATE: AtomicU32 = AtomicU32::new(0);
const FORKING: u32 = 1 << 16;

/// How long a thread that is about to fork waits for those inside: a thousand times this. Then it forks anyway: a
/// hanging disk must not stop a program from starting another.
const PAUSE: Duration = Duration::from_millis(1);
const PAUSES: u32 = 1_000;
/// The pauses of a thread that waits for the end of a fork.
const OUTSIDE: Duration = Duration::from_micros(100);

thread_local! {
    /// This thread works while another one forks.
    static APART: Cell<bool> = const { Cell::new(false) };
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Marks this thread as one that works while others fork: one of the engine's own. An unmarked thread holds Python's
/// lock while it works, as the forking thread does. So no fork can come in between, and waiting for one would never
/// end.
pub fn apart() {
    APART.set(true);
}

/// Runs `work` without Python's lock.
pub fn detached<T>(work: impl FnOnce() -> T) -> T {
    struct Back(bool);
    impl Drop for Back {
        fn drop(&mut self) {
            APART.set(self.0);
        }
    }
    let _back = Back(APART.replace(true));
    work()
}

/// As long as this value lives, no other thread forks the process.
#[derive(Debug)]
pub(crate) struct Inside {
    counts: bool,
    // It counts for the thread that created it.
    _here: std::marker::PhantomData<*const ()>,
}

/// Begins work that a fork must not interrupt. It may be nested. It must be short, and must not wait for Python's lock,
/// which the forking thread holds.
pub(crate) fn inside() -> Inside {
    let counts = APART.get() || DEPTH.get() > 0;
    if counts && DEPTH.get() == 0 {
        loop {
            let now = GATE.load(SeqCst);
            if now >= FORKING {
                thread::park_timeout(OUTSIDE);
            } else if GATE.compare_exchange(now, now + 1, SeqCst, SeqCst).is_ok() {
                break;
            }
        }
    }
    DEPTH.set(DEPTH.get() + u32::from(counts));
    Inside { counts, _here: std::marker::PhantomData }
}

impl Drop for Inside {
    fn drop(&mut self) {
        if self.counts {
            DEPTH.set(DEPTH.get() - 1);
            if DEPTH.get() == 0 {
                GATE.fetch_sub(1, SeqCst);
            }
        }
    }
}

/// Call this in the thread that forks, right before the fork.
pub fn before() {
    GATE.fetch_add(FORKING, SeqCst);
    for pauses in 0..PAUSES {
        if GATE.load(SeqCst) % FORKING <= u32::from(DEPTH.get() > 0) {
            return;
        }
        if pauses < 20 {
            thread::yield_now();
        } else {
            thread::park_timeout(PAUSE);
        }
    }
    tracing::warn!("a thread of bucketq did not pause for a fork within a second");
}

/// Call this in the parent, in the thread that has forked.
pub fn in_parent() {
    GATE.fetch_sub(FORKING, SeqCst);
}

/// Call this in the child: it closes its copies of the locks that its parent holds, and of its parent's sockets.
pub fn in_child() {
    GATE.store(u32::from(DEPTH.get() > 0), SeqCst);
    // Not locked, unless the fork did not wait for a thread inside: then the copies stay open until this process ends.
    if let Ok(mut held) = HELD.try_lock() {
        held.clear();
    }
    if let Ok(mut open) = OPEN.try_lock() {
        for value in std::mem::take(&mut *open).into_values().filter_map(|value| value.upgrade()) {
            value.close();
        }
    }
}

/// A value that each process has separately. A forked child does not drop its parent's value, whose lock a lost thread
/// may hold; it starts with a fresh one.
pub struct PerProcess<T> {
    of: Mutex<Option<(u32, T)>>,
}

impl<T: Default> PerProcess<T> {
    /// Returns a value that this process has not used yet.
    pub const fn new() -> Self {
        Self { of: Mutex::new(None) }
    }

    /// Runs `work` with this process's value. It must be short, as all work [`inside`].
    pub fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        let (_inside, pid) = (inside(), process::id());
        let mut of = lock(&self.of);
        if of.as_ref().is_none_or(|(home, _)| *home != pid) {
            std::mem::forget(of.replace((pid, T::default())));
        }
        work(&mut of.get_or_insert_with(|| (pid, T::default())).1)
    }
}

impl<T: Default> Default for PerProcess<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// Locked files, by the number of their [`LockedFile`].
static HELD: Mutex<BTreeMap<u64, File>> = Mutex::new(BTreeMap::new());
static NUMBER: AtomicU64 = AtomicU64::new(0);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A file that this process has locked for as long as this value lives. A forked child does not have the lock.
#[derive(Debug)]
pub(crate) struct LockedFile {
    number: u64,
    pid: u32,
}

/// Locks the file; none if another process has it.
pub(crate) fn hold(file: File) -> io::Result<Option<LockedFile>> {
    let _inside = inside();
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(None),
        Err(TryLockError::Error(e)) => return Err(e),
    }
    let number = NUMBER.fetch_add(1, SeqCst);
    lock(&HELD).insert(number, file);
    Ok(Some(LockedFile { number, pid: process::id() }))
}

impl LockedFile {
    /// Runs short work with the file.
    pub fn with<T>(&self, work: impl FnOnce(&File) -> io::Result<T>) -> io::Result<T> {
        let _inside = inside();
        let held = lock(&HELD);
        work(
            held.get(&self.number)
                .ok_or_else(|| io::Error::other("the parent of this process has the lock"))?,
        )
    }
}

impl Drop for LockedFile {
    fn drop(&mut self) {
        if self.pid == process::id() {
            let _inside = inside();
            if let Some(file) = lock(&HELD).remove(&self.number) {
                // Unlocked, not only closed: a program that is just being started may have a copy until it runs.
                let _ = file.unlock();
            }
        }
    }
}

/// Values of type [`ClosedInChild`], by their number.
static OPEN: Mutex<BTreeMap<u64, Weak<dyn Close>>> = Mutex::new(BTreeMap::new());

trait Close: Send + Sync {
    fn close(&self);
}

impl<T: Send> Close for Mutex<Option<T>> {
    fn close(&self) {
        // Locked only if the fork did not wait for a thread inside.
        if let Ok(mut value) = self.try_lock() {
            drop(value.take());
        }
    }
}

/// A socket that a forked child closes. Otherwise the other end notices the end of this process only when the child
/// ends, too.
#[derive(Debug)]
pub(crate) struct ClosedInChild<T> {
    number: u64,
    value: Arc<Mutex<Option<T>>>,
}

impl<T: Send + 'static> ClosedInChild<T> {
    pub fn new(value: T) -> Self {
        let _inside = inside();
        let (number, value) = (NUMBER.fetch_add(1, SeqCst), Arc::new(Mutex::new(Some(value))));
        let weak: Weak<dyn Close> = Arc::<Mutex<Option<T>>>::downgrade(&value);
        lock(&OPEN).insert(number, weak);
        Self { number, value }
    }

    /// Runs short work with the value.
    pub fn with<R>(&self, work: impl FnOnce(&T) -> io::Result<R>) -> io::Result<R> {
        let _inside = inside();
        work(lock(&self.value).as_ref().ok_or_else(|| io::Error::other(INHERITED))?)
    }
}

impl<T> Drop for ClosedInChild<T> {
    fn drop(&mut self) {
        let _inside = inside();
        lock(&OPEN).remove(&self.number);
    }
}

/// A future whose every poll runs [`inside`].
pub(crate) struct Stepwise<F>(Pin<Box<F>>);

/// Wraps a future in [`Stepwise`].
pub(crate) fn stepwise<F: Future>(future: F) -> Stepwise<F> {
    Stepwise(Box::pin(future))
}

impl<F: Future> Future for Stepwise<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let _inside = inside();
        self.0.as_mut().poll(cx)
    }
}
