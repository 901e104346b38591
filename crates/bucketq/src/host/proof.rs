//! The proof that a process may itself write where the queue file is, so that no process writes with the rights of
//! another one.
//!
//! Called on both sides of a new connection: the joining process signs the nonce of the leader, and the leader compares
//! the proof with its own credential. Nothing here sends a request to the store, and no secret leaves the process.

use std::fmt;
use std::fs::Metadata;
use std::path::{Path, PathBuf};

use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use crate::bytes::disk;
use crate::bytes::store::{FoundStore, Place};

/// Each signed text begins with one of these: no other protocol signs such a text with the same key.
const DIRECTORY: &[u8] = b"bucketq may write to this directory\0";
const KEY: &[u8] = b"bucketq has the secret of this key\0";

/// The credential that a process proves its right with, read from its own options and environment.
#[derive(Clone, PartialEq, Eq)]
pub enum Credential {
    /// The directory with the queue file; the right is that of the process.
    Directory(PathBuf),
    /// The key that signs requests to the store. The session token of temporary credentials is left out: the id decides.
    Key {
        /// The public half.
        id: String,
        /// The secret half.
        secret: String,
    },
    /// Nothing: a store without rights, or a process without a key.
    None,
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(dir) => write!(f, "Directory({})", dir.display()),
            Self::Key { .. } => write!(f, "Key(...)"),
            Self::None => write!(f, "None"),
        }
    }
}

impl Credential {
    /// Returns the credential of this process for a store.
    pub fn of(found: &FoundStore) -> Self {
        match (found.url().resolved().place(), found.signing_key()) {
            (Place::Directory(dir), _) => Self::Directory(dir.clone()),
            (_, Some((id, secret))) => Self::Key { id: id.to_owned(), secret: secret.to_owned() },
            (Place::S3 { .. } | Place::Memory, None) => Self::None,
        }
    }
}

/// The proof of one process for one nonce. It contains no secret.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Proof {
    /// The process may write to the directory with this identity.
    Directory {
        /// The device, and ...
        device: u64,
        /// ... the number of the directory on it; 0 where directories have none.
        inode: u64,
        /// Binds both to the nonce.
        mac: [u8; 32],
    },
    /// The process has the secret of this key.
    Key {
        /// The public half.
        id: String,
        /// The nonce under the secret half.
        mac: [u8; 32],
    },
}

impl fmt::Debug for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Directory { .. } => "Directory(...)",
            Self::Key { .. } => "Key(...)",
        })
    }
}

/// The meaning of a proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proven {
    /// The process may write where the queue file is.
    Valid,
    /// Nothing: it proves with another key or another name of the directory. Let it put an object there instead.
    Unknown,
    /// The proof is forged, damaged or for another nonce.
    Invalid,
}

/// Returns the proof of this process for the nonce. None if it can prove nothing: it has no credential, or it may not
/// write to the directory.
pub fn sign(credential: &Credential, nonce: &[u8; 32]) -> Option<Proof> {
    match credential {
        Credential::Directory(dir) => {
            if !may_write(dir) {
                return None;
            }
            let (device, inode) = identity(dir)?;
            let mac = of_directory(nonce, device, inode).finalize().into_bytes().into();
            Some(Proof::Directory { device, inode, mac })
        }
        Credential::Key { id, secret } => {
            let mac = of_key(secret, nonce).finalize().into_bytes().into();
            Some(Proof::Key { id: id.clone(), mac })
        }
        Credential::None => None,
    }
}

/// Compares a proof with the credential of this process, in a time that does not depend on the secret.
pub fn verify(credential: &Credential, nonce: &[u8; 32], proof: &Proof) -> Proven {
    match (credential, proof) {
        (Credential::Directory(dir), Proof::Directory { device, inode, mac }) => {
            if of_directory(nonce, *device, *inode).verify_slice(mac).is_err() {
                return Proven::Invalid;
            }
            // One path may be two directories in two containers, and two mounts may be one directory.
            let is_same = *inode != 0 && identity(dir) == Some((*device, *inode));
            if is_same { Proven::Valid } else { Proven::Unknown }
        }
        (Credential::Key { id, .. }, Proof::Key { id: other, .. }) if id != other => Proven::Unknown,
        (Credential::Key { secret, .. }, Proof::Key { mac, .. }) => {
            if of_key(secret, nonce).verify_slice(mac).is_ok() { Proven::Valid } else { Proven::Invalid }
        }
        (Credential::None, _) => Proven::Unknown,
        _ => Proven::Invalid,
    }
}

fn hmac(key: &[u8]) -> Hmac<Sha256> {
    Hmac::new_from_slice(key).expect("a key of any length is right")
}

fn of_key(secret: &str, nonce: &[u8; 32]) -> Hmac<Sha256> {
    hmac(secret.as_bytes()).chain_update(KEY).chain_update(nonce)
}

fn of_directory(nonce: &[u8; 32], device: u64, inode: u64) -> Hmac<Sha256> {
    hmac(nonce).chain_update(DIRECTORY).chain_update(device.to_be_bytes()).chain_update(inode.to_be_bytes())
}

/// Returns the device and the number of a directory, both 0 where directories have none; none if it does not exist.
fn identity(dir: &Path) -> Option<(u64, u64)> {
    let meta = dir.metadata().ok().filter(Metadata::is_dir)?;
    Some(disk::identity(&meta).unwrap_or_default())
}

/// Returns whether this process may create and replace files in the directory.
#[cfg(unix)]
fn may_write(dir: &Path) -> bool {
    use rustix::fs::{Access, AtFlags, CWD, accessat};
    accessat(CWD, dir, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS).is_ok()
}

/// On this system processes do not meet.
#[cfg(not(unix))]
fn may_write(_: &Path) -> bool {
    false
}
