//! A raw conditional PUT on the version before it: the lowest possible cost of a commit on a store.

use std::sync::Arc;
use std::time::Duration;

use bucketq::error::{Code, Error, Result};
use bucketq::store::{Expect, Put, Store};
use bytes::Bytes;

use crate::stats::now;

/// One object that is overwritten again and again.
#[derive(Debug)]
pub struct RawPut {
    store: Arc<dyn Store>,
    key: String,
    expect: Expect,
    body: Bytes,
}

impl RawPut {
    /// Creates the handle; the object must not exist yet.
    pub fn new(store: Arc<dyn Store>, key: &str) -> Self {
        Self { store, key: key.to_owned(), expect: Expect::Absent, body: Bytes::new() }
    }

    /// Overwrites it with `size` bytes. Returns the time it took.
    pub async fn put(&mut self, size: usize) -> Result<Duration> {
        if self.body.len() != size {
            self.body = body(size);
        }
        let start = now();
        match self.store.put_if(&self.key, self.body.clone(), &self.expect).await {
            Put::Stored { version, .. } => {
                self.expect = Expect::Is(version);
                Ok(now() - start)
            }
            Put::Conflict => Err(Error::new(Code::Internal, "somebody else writes the benchmark's object")),
            Put::Unknown { error, .. } => Err(error),
        }
    }
}

/// Returns bytes that no layer below can compress.
fn body(size: usize) -> Bytes {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut out = Vec::with_capacity(size + 8);
    while out.len() < size {
        // xorshift64: good enough to look random to a compressor.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend_from_slice(&state.to_le_bytes());
    }
    out.truncate(size);
    Bytes::from(out)
}
