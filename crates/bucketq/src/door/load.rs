//! [`Load`] is the work of a slot. A caller that leaves drops it, however busy the writer is, so that no payload stays
//! in memory unused. [`Room`] limits the bytes of payload that wait in this process.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, PoisonError};

use super::{Door, Shared, Work};
use crate::noun::error::{Code, Error, Result};

/// Work, and the room it takes until its last owner drops it.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub work: Work,
    _room: Option<Room>,
}

/// Work that its caller and the writer share; empty once the caller has left.
#[derive(Clone, Debug)]
pub(crate) struct Load(Arc<Mutex<Option<Arc<Loaded>>>>);

impl Load {
    pub fn new(work: Work, room: Option<Room>) -> Self {
        Self(Arc::new(Mutex::new(Some(Arc::new(Loaded { work, _room: room })))))
    }

    pub fn get(&self) -> Option<Arc<Loaded>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns a load of its own with this work: it stays when the caller leaves.
    pub fn kept(&self) -> Option<Self> {
        self.get().map(|loaded| Self(Arc::new(Mutex::new(Some(loaded)))))
    }

    /// Drops the work: the caller leaves.
    pub fn clear(&self) {
        let left = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        // After unlocking: freeing it may take long.
        drop(left);
    }
}

/// Bytes of waiting payload, given back when this is dropped.
#[derive(Debug)]
pub(crate) struct Room {
    shared: Arc<Shared>,
    bytes: usize,
}

impl Room {
    /// Takes room for this op. An op larger than the limit gets room only when no other payload waits.
    pub fn take(door: &Door, work: &Work) -> Result<Option<Self>> {
        let (most, shared) = (door.options.mailbox_bytes, &door.shared);
        let bytes = work.payload_bytes();
        if bytes == 0 {
            return Ok(None);
        }
        let fits = |held: usize| (held == 0 || held.saturating_add(bytes) <= most).then_some(held + bytes);
        match shared.waiting_bytes.fetch_update(SeqCst, SeqCst, fits) {
            Ok(_) => Ok(Some(Self { shared: Arc::clone(shared), bytes })),
            Err(held) => Err(Error::new(
                Code::MailboxFull,
                format!(
                    "operations with {held} bytes of payloads, headers and keys wait already for this queue file in this process: {bytes} more are over mailbox_bytes, {most}"
                ),
            )),
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.shared.waiting_bytes.fetch_sub(self.bytes, SeqCst);
    }
}

impl Work {
    /// Returns the bytes of payload in it.
    pub fn payload_bytes(&self) -> usize {
        match self {
            Self::Op(op) => op.payload_bytes(),
            Self::Fence | Self::Archive { .. } => 0,
        }
    }
}
