//! The start of most tests: an open queue file, on real time or on paused time.

use std::sync::Arc;

use bucketq::store::{Got, Memory, Store};
use bucketq::{Env, Error, Host, Options, QueueFile, Result};
use bytes::Bytes;

use crate::clock::TestClock;
use crate::puppet::Puppet;

/// The name of the queue file in every test.
pub const NAME: &str = "jobs";
/// The key of its HEAD.
pub const HEAD: &str = "jobs.head";

/// Options of an engine that runs on the test's own runtime, whose time may be paused.
pub fn inline() -> Options {
    Options { host: Host::CurrentRuntime, ..Options::default() }
}

/// A queue file with every default and the machine's clock.
pub async fn opened(store: Arc<dyn Store>) -> Result<QueueFile> {
    QueueFile::open_with(store, NAME, Options::default(), Env::default()).await
}

/// A queue file in a store without faults on paused time.
pub async fn puppet(options: Options) -> Result<(Puppet, QueueFile)> {
    let puppet = Puppet::over(Arc::new(Memory::new()));
    let file = on_puppet(&puppet, options).await?;
    Ok((puppet, file))
}

/// Another writer on the queue file in this store.
pub async fn on_puppet(puppet: &Puppet, options: Options) -> Result<QueueFile> {
    QueueFile::open_with(puppet.store(), NAME, options, TestClock::start().env()).await
}

/// Every object, to check that none changes.
pub async fn objects(store: &Arc<dyn Store>) -> Result<Vec<(String, Bytes)>> {
    let mut all = vec![];
    for listed in store.list("").await? {
        let bytes = object(store, &listed.key).await?.expect("a listed object is there");
        all.push((listed.key, bytes));
    }
    Ok(all)
}

/// One object.
pub async fn object(store: &Arc<dyn Store>, key: &str) -> Result<Option<Bytes>> {
    Ok(match store.get(key, None).await? {
        Got::Object { bytes, .. } => Some(bytes),
        _ => None,
    })
}

/// Returns the expected error; panics if the call succeeded.
pub fn refused<T: std::fmt::Debug>(result: Result<T>) -> Error {
    result.expect_err("this must be refused")
}

/// Bytes that do not compress.
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut x = (seed + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x >> 24) as u8
    };
    (0..len).map(|_| next()).collect()
}
