//! A [`Pages`] as the file under an SQLite connection: the only unsafe code of the crate.
//!
//! Called by SQLite through the VFS `bucketq`, registered once per process and never as the default, and by `file.rs`.
//! It decides nothing: every callback checks its arguments and passes them to [`Pages`].
//!
//! The unsafe code relies on these invariants:
//! 1. SQLite calls an io method only between a successful `open` and its one `close` on that file, and passes the
//!    `szOsFile` bytes that `open` filled. `open` stores one strong count of the `SharedPages` there, `close` takes it.
//! 2. Buffers are valid for the length passed with them, and never alias the pages. The pages are accessed only under
//!    the lock, and their addresses never leave this file.
//! 3. Nothing unwinds into C: callbacks that run more than arithmetic do so under `catch_unwind`.
//! 4. `Vfs` and `METHODS` are never written after registration and live as long as the process.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use rusqlite::{Connection, ffi};

use super::{PAGE, Pages};
use crate::noun::error::{Error, Result};

/// SQLite's name of the VFS.
pub(super) const NAME: &CStr = c"bucketq";

/// The state shared by a page file and its connection.
#[derive(Debug)]
pub(super) struct SharedPages {
    name: String,
    pages: Mutex<Pages>,
    max_bytes: AtomicU64,
    connected: AtomicBool,
}

/// The files that SQLite may open, by name.
static FILES: Mutex<BTreeMap<String, Weak<SharedPages>>> = Mutex::new(BTreeMap::new());

/// A panic under one of these locks leaves nothing half done: the registry and the page store change in single steps,
/// and the caller of `with` is responsible for its closure.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SharedPages {
    /// Registers these pages under a unique name, which SQLite can open as long as this value lives.
    pub(super) fn register(pages: Pages) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let name = format!("pages-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let shared = Arc::new(Self {
            name: name.clone(),
            pages: Mutex::new(pages),
            max_bytes: AtomicU64::new(0),
            connected: AtomicBool::new(false),
        });
        lock(&FILES).insert(name, Arc::downgrade(&shared));
        shared
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Pages> {
        lock(&self.pages)
    }

    /// Sets the size up to which SQLite may extend the file; it may always keep its current size.
    pub(super) fn set_max_pages(&self, pages: u32) {
        self.max_bytes.store(u64::from(pages) * PAGE as u64, Ordering::Relaxed);
    }
}

impl Drop for SharedPages {
    fn drop(&mut self) {
        lock(&FILES).remove(&self.name);
    }
}

/// Returns whether no transaction and no statement is open.
pub(super) fn idle(connection: &Connection) -> bool {
    // SAFETY: the handle is open as long as the connection is borrowed.
    let state = unsafe { ffi::sqlite3_txn_state(connection.handle(), c"main".as_ptr()) };
    state == ffi::SQLITE_TXN_NONE && connection.is_autocommit()
}

/// Drops every page that SQLite has cached; without effect unless [`idle`].
pub(super) fn reset_page_cache(connection: &Connection) -> Result<()> {
    // SAFETY: the handle is open as long as the connection is borrowed; this op takes no argument.
    let rc = unsafe {
        let op = ffi::SQLITE_FCNTL_RESET_CACHE;
        ffi::sqlite3_file_control(connection.handle(), c"main".as_ptr(), op, ptr::null_mut())
    };
    if rc == ffi::SQLITE_OK {
        Ok(())
    } else {
        Err(Error::bug(format!("reset of the page cache failed with {rc}")))
    }
}

/// Sets one of SQLite's limits.
pub(super) fn limit(connection: &Connection, limit: c_int, value: c_int) {
    // SAFETY: the handle is open as long as the connection is borrowed.
    unsafe { ffi::sqlite3_limit(connection.handle(), limit, value) };
}

/// Registers the VFS with SQLite, once.
pub(super) fn register() -> Result<()> {
    static DONE: OnceLock<c_int> = OnceLock::new();
    let rc = *DONE.get_or_init(|| {
        let vfs = Box::leak(Box::new(ffi::sqlite3_vfs {
            iVersion: 1,
            szOsFile: size_of::<File>() as c_int,
            mxPathname: 64,
            pNext: ptr::null_mut(),
            zName: NAME.as_ptr(),
            pAppData: ptr::null_mut(),
            xOpen: Some(open),
            xDelete: Some(delete),
            xAccess: Some(access),
            xFullPathname: Some(full_pathname),
            xDlOpen: None,
            xDlError: None,
            xDlSym: None,
            xDlClose: None,
            xRandomness: Some(randomness),
            xSleep: Some(sleep),
            xCurrentTime: Some(current_time),
            xGetLastError: None,
            xCurrentTimeInt64: None,
            xSetSystemCall: None,
            xGetSystemCall: None,
            xNextSystemCall: None,
        }));
        // SAFETY: leaked, so it outlives SQLite's list (invariant 4).
        unsafe { ffi::sqlite3_vfs_register(vfs, 0) }
    });
    if rc == ffi::SQLITE_OK { Ok(()) } else { Err(Error::bug(format!("SQLite refused the VFS with {rc}"))) }
}

/// SQLite's data per open file; it must begin with the pointer to the methods.
#[repr(C)]
struct File {
    base: ffi::sqlite3_file,
    shared: *const SharedPages,
}

static METHODS: ffi::sqlite3_io_methods = ffi::sqlite3_io_methods {
    // Version 1: no shared memory, hence no WAL, and no memory mapping.
    iVersion: 1,
    xClose: Some(close),
    xRead: Some(read),
    xWrite: Some(write),
    xTruncate: Some(truncate),
    xSync: Some(sync),
    xFileSize: Some(file_size),
    xLock: Some(lock_level),
    xUnlock: Some(lock_level),
    xCheckReservedLock: Some(check_reserved_lock),
    xFileControl: Some(file_control),
    xSectorSize: Some(sector_size),
    xDeviceCharacteristics: Some(device_characteristics),
    xShmMap: None,
    xShmLock: None,
    xShmBarrier: None,
    xShmUnmap: None,
    xFetch: None,
    xUnfetch: None,
};

/// Runs `f`; a panic becomes `failed`.
fn guarded(failed: c_int, f: impl FnOnce() -> c_int) -> c_int {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or(failed)
}

/// SAFETY: `file` is one that `open` filled and `close` has not seen (invariant 1).
unsafe fn shared<'a>(file: *mut ffi::sqlite3_file) -> &'a SharedPages {
    unsafe { &*(*file.cast::<File>()).shared }
}

unsafe extern "C" fn open(
    _: *mut ffi::sqlite3_vfs,
    name: *const c_char,
    file: *mut ffi::sqlite3_file,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    // SAFETY: SQLite passes szOsFile bytes to fill; null methods mean "nothing to close".
    unsafe { (*file).pMethods = ptr::null() };
    guarded(ffi::SQLITE_CANTOPEN, || {
        if name.is_null() || flags & ffi::SQLITE_OPEN_MAIN_DB == 0 {
            return ffi::SQLITE_CANTOPEN;
        }
        // SAFETY: a name that is not null ends with a NUL.
        let name = unsafe { CStr::from_ptr(name) };
        let found = name.to_str().ok().and_then(|name| lock(&FILES).get(name).and_then(Weak::upgrade));
        let Some(found) = found else { return ffi::SQLITE_CANTOPEN };
        if found.connected.swap(true, Ordering::AcqRel) {
            return ffi::SQLITE_CANTOPEN;
        }
        // SAFETY: as above; out_flags may be null.
        unsafe {
            (*file.cast::<File>()).shared = Arc::into_raw(found);
            (*file).pMethods = &raw const METHODS;
            if !out_flags.is_null() {
                *out_flags = flags;
            }
        }
        ffi::SQLITE_OK
    })
}

unsafe extern "C" fn close(file: *mut ffi::sqlite3_file) -> c_int {
    guarded(ffi::SQLITE_IOERR_CLOSE, || {
        // SAFETY: takes back the count that `open` stored; SQLite does not use the file again (invariant 1).
        let shared = unsafe { Arc::from_raw((*file.cast::<File>()).shared) };
        shared.connected.store(false, Ordering::Release);
        ffi::SQLITE_OK
    })
}

unsafe extern "C" fn read(file: *mut ffi::sqlite3_file, buf: *mut c_void, len: c_int, offset: i64) -> c_int {
    guarded(ffi::SQLITE_IOERR_READ, || {
        let (Ok(len), Ok(offset)) = (usize::try_from(len), u64::try_from(offset)) else {
            return ffi::SQLITE_IOERR_READ;
        };
        // SAFETY: invariants 1 and 2. SQLite's buffer may be uninitialised, so it is zeroed before it is a slice.
        let (shared, buf) = unsafe {
            ptr::write_bytes(buf.cast::<u8>(), 0, len);
            (shared(file), std::slice::from_raw_parts_mut(buf.cast::<u8>(), len))
        };
        let whole = lock(&shared.pages).read(offset, buf);
        if whole { ffi::SQLITE_OK } else { ffi::SQLITE_IOERR_SHORT_READ }
    })
}

unsafe extern "C" fn write(
    file: *mut ffi::sqlite3_file,
    data: *const c_void,
    len: c_int,
    offset: i64,
) -> c_int {
    guarded(ffi::SQLITE_IOERR_WRITE, || {
        let (Ok(len), Ok(offset)) = (usize::try_from(len), u64::try_from(offset)) else {
            return ffi::SQLITE_IOERR_WRITE;
        };
        // SAFETY: invariants 1 and 2.
        let (shared, data) = unsafe { (shared(file), std::slice::from_raw_parts(data.cast::<u8>(), len)) };
        let mut pages = lock(&shared.pages);
        if offset.saturating_add(len as u64) > shared.max_bytes.load(Ordering::Relaxed).max(pages.bytes()) {
            return ffi::SQLITE_FULL;
        }
        pages.write(offset, data);
        ffi::SQLITE_OK
    })
}

unsafe extern "C" fn truncate(file: *mut ffi::sqlite3_file, size: i64) -> c_int {
    guarded(ffi::SQLITE_IOERR_TRUNCATE, || {
        // SAFETY: invariant 1.
        let mut pages = lock(unsafe { &shared(file).pages });
        match u64::try_from(size) {
            Ok(size) if size <= pages.bytes() => pages.truncate(size),
            _ => return ffi::SQLITE_IOERR_TRUNCATE,
        }
        ffi::SQLITE_OK
    })
}

unsafe extern "C" fn file_size(file: *mut ffi::sqlite3_file, size: *mut i64) -> c_int {
    guarded(ffi::SQLITE_IOERR_FSTAT, || {
        // SAFETY: invariants 1 and 2.
        unsafe { *size = lock(&shared(file).pages).bytes() as i64 };
        ffi::SQLITE_OK
    })
}

/// There is nothing to sync: the writer takes care of durability.
unsafe extern "C" fn sync(_: *mut ffi::sqlite3_file, _: c_int) -> c_int {
    ffi::SQLITE_OK
}

/// There is one connection, so every lock is free.
unsafe extern "C" fn lock_level(_: *mut ffi::sqlite3_file, _: c_int) -> c_int {
    ffi::SQLITE_OK
}

unsafe extern "C" fn check_reserved_lock(_: *mut ffi::sqlite3_file, out: *mut c_int) -> c_int {
    // SAFETY: invariant 2.
    unsafe { *out = 0 };
    ffi::SQLITE_OK
}

unsafe extern "C" fn file_control(_: *mut ffi::sqlite3_file, _: c_int, _: *mut c_void) -> c_int {
    ffi::SQLITE_NOTFOUND
}

unsafe extern "C" fn sector_size(_: *mut ffi::sqlite3_file) -> c_int {
    PAGE as c_int
}

/// A write never affects neighbouring bytes, and a part of a page may be read without the rest.
unsafe extern "C" fn device_characteristics(_: *mut ffi::sqlite3_file) -> c_int {
    ffi::SQLITE_IOCAP_POWERSAFE_OVERWRITE | ffi::SQLITE_IOCAP_SUBPAGE_READ
}

/// A page file never has a journal beside it.
unsafe extern "C" fn delete(_: *mut ffi::sqlite3_vfs, _: *const c_char, _: c_int) -> c_int {
    ffi::SQLITE_IOERR_DELETE_NOENT
}

unsafe extern "C" fn access(_: *mut ffi::sqlite3_vfs, _: *const c_char, _: c_int, out: *mut c_int) -> c_int {
    // SAFETY: invariant 2.
    unsafe { *out = 0 };
    ffi::SQLITE_OK
}

unsafe extern "C" fn full_pathname(
    _: *mut ffi::sqlite3_vfs,
    name: *const c_char,
    len: c_int,
    out: *mut c_char,
) -> c_int {
    // SAFETY: both are valid, name ends with a NUL, out has room for len bytes (invariant 2).
    unsafe {
        let bytes = CStr::from_ptr(name).to_bytes_with_nul();
        if bytes.len() > len as usize {
            return ffi::SQLITE_CANTOPEN;
        }
        ptr::copy_nonoverlapping(bytes.as_ptr().cast(), out, bytes.len());
    }
    ffi::SQLITE_OK
}

/// SQL on this file has no random numbers: they are arguments.
unsafe extern "C" fn randomness(_: *mut ffi::sqlite3_vfs, _: c_int, _: *mut c_char) -> c_int {
    0
}

unsafe extern "C" fn sleep(_: *mut ffi::sqlite3_vfs, _: c_int) -> c_int {
    0
}

/// SQL on this file has no clock: `now` is an argument.
unsafe extern "C" fn current_time(_: *mut ffi::sqlite3_vfs, _: *mut f64) -> c_int {
    ffi::SQLITE_ERROR
}
