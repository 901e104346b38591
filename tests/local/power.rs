//! A directory in memory that loses unsynced bytes at a power cut, and a store whose puts are lost, get no reply, or
//! arrive late.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;
use bucketq::internals::local::{Dir, Lock};
use bucketq::store::{Expect, Got, Put, Store, Version};
use bucketq::{Code, Error, Result};
use bucketq_sim::rng::Rng;
use bytes::Bytes;

#[derive(Clone, Debug, Default)]
struct File {
    bytes: Vec<u8>,
    /// The bytes that survive a power cut.
    on_disk: Vec<u8>,
}

#[derive(Debug, Default)]
struct Disk {
    files: BTreeMap<String, File>,
    /// The number of further operations before its process dies.
    left: Option<u64>,
}

/// A directory. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Power(Arc<Mutex<Disk>>);

impl Power {
    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.0.lock().expect("no test panics while it holds this")
    }

    /// The process that has it open dies after this number of further operations.
    pub fn dies_after(&self, steps: u64) {
        self.disk().left = Some(steps);
    }

    pub fn is_dead(&self) -> bool {
        self.disk().left == Some(0)
    }

    /// Lets the next process begin. With a power cut, unsynced bytes are lost, or some of them.
    pub fn revive(&self, cut: bool, rng: &Rng) {
        let mut disk = self.disk();
        disk.left = None;
        for file in disk.files.values_mut().filter(|_| cut) {
            let mut left = file.on_disk.clone();
            let common = file.bytes.len().min(left.len());
            if file.bytes[..common] == left[..common] && file.bytes.len() > left.len() {
                // The system had begun to write: a part of it, perhaps with a hole.
                let more = rng.below((file.bytes.len() - left.len()) as u64 + 1) as usize;
                let from = left.len();
                left.extend_from_slice(&file.bytes[from..from + more]);
                if more > 0 && rng.one_in(3) {
                    let hole = from + rng.below(more as u64) as usize;
                    let end = (hole + 512).min(left.len());
                    left[hole..end].fill(0);
                }
            }
            file.bytes.clone_from(&left);
            file.on_disk = left;
        }
    }

    /// Do one operation, if the process is alive. The last one may be done in part.
    fn step<T>(&self, work: impl FnOnce(&mut Disk, bool) -> io::Result<T>) -> io::Result<T> {
        let mut disk = self.disk();
        match disk.left {
            Some(0) => return Err(io::Error::other("the process is gone")),
            Some(n) => disk.left = Some(n - 1),
            None => {}
        }
        let last = disk.left == Some(0);
        let done = work(&mut disk, last);
        if last { Err(io::Error::other("the process is gone")) } else { done }
    }
}

fn there<'a>(disk: &'a mut Disk, name: &str) -> io::Result<&'a mut File> {
    disk.files.get_mut(name).ok_or_else(|| io::ErrorKind::NotFound.into())
}

impl Dir for Power {
    fn path(&self) -> PathBuf {
        PathBuf::from("power")
    }

    fn lock(&self) -> Result<Lock> {
        Ok(Box::new(()))
    }

    fn names(&self) -> io::Result<Vec<String>> {
        self.step(|disk, _| Ok(disk.files.keys().cloned().collect()))
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        self.step(|disk, _| there(disk, name).map(|f| f.bytes.clone()))
    }

    fn create(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.step(|disk, last| {
            // The process dies before the rename, or after it.
            if !last || bytes.len().is_multiple_of(2) {
                let file = File { bytes: bytes.to_vec(), on_disk: bytes.to_vec() };
                disk.files.insert(name.to_owned(), file);
            }
            Ok(())
        })
    }

    fn append(&self, name: &str, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.step(|disk, last| {
            let file = there(disk, name)?;
            let (at, part) = (at as usize, if last { bytes.len() / 2 } else { bytes.len() });
            file.bytes.resize(file.bytes.len().max(at + part), 0);
            file.bytes[at..at + part].copy_from_slice(&bytes[..part]);
            Ok(())
        })
    }

    fn sync(&self, name: &str) -> io::Result<()> {
        self.step(|disk, last| {
            let file = there(disk, name)?;
            if !last {
                file.on_disk.clone_from(&file.bytes);
            }
            Ok(())
        })
    }

    fn cut(&self, name: &str, len: u64) -> io::Result<()> {
        self.step(|disk, _| {
            there(disk, name)?.bytes.truncate(len as usize);
            Ok(())
        })
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.step(|disk, _| {
            disk.files.remove(name);
            Ok(())
        })
    }
}

/// The fate of a conditional put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Pass,
    LoseRequest,
    LoseAnswer,
    /// It is on its way until the test lets it in.
    Late,
    /// A late put arrives just before it.
    Behind,
    Refuse,
}

#[derive(Debug, Default)]
struct Line {
    fates: Vec<Fate>,
    blind: bool,
    late: Vec<(String, Bytes, Expect)>,
}

/// A connection to a store. Clones are the same.
#[derive(Clone, Debug)]
pub struct Faulty {
    inner: Arc<dyn Store>,
    line: Arc<Mutex<Line>>,
}

impl Faulty {
    pub fn over(inner: Arc<dyn Store>) -> Self {
        Self { inner, line: Arc::default() }
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().expect("no test panics while it holds this")
    }

    /// Sets the fates of the next puts; later ones pass. `blind`: gets return no reply.
    pub fn set(&self, fates: Vec<Fate>, blind: bool) {
        let mut line = self.line();
        line.fates = fates;
        line.fates.reverse();
        line.blind = blind;
    }

    /// Lets one late put arrive.
    pub async fn let_in(&self, rng: &Rng) {
        let n = self.line().late.len() as u64;
        self.arrive(rng.below(n) as usize).await;
    }

    async fn arrive(&self, at: usize) {
        let late = {
            let mut line = self.line();
            if at >= line.late.len() {
                return;
            }
            line.late.remove(at)
        };
        self.inner.put_if(&late.0, late.1, &late.2).await;
    }
}

fn trouble() -> Error {
    Error::new(Code::Unreachable, "as told")
}

#[async_trait]
impl Store for Faulty {
    async fn get(&self, key: &str, unless: Option<&Version>) -> Result<Got> {
        if self.line().blind {
            return Err(trouble());
        }
        self.inner.get(key, unless).await
    }

    async fn put_if(&self, key: &str, body: Bytes, expect: &Expect) -> Put {
        let fate = {
            let mut line = self.line();
            let fate = line.fates.pop().unwrap_or(Fate::Pass);
            if fate == Fate::Late {
                line.late.push((key.to_owned(), body.clone(), expect.clone()));
            }
            fate
        };
        let unknown = |sent| Put::Unknown { error: trouble(), sent, retry_after: None };
        match fate {
            Fate::Pass => self.inner.put_if(key, body, expect).await,
            Fate::Behind => {
                self.arrive(0).await;
                self.inner.put_if(key, body, expect).await
            }
            Fate::LoseAnswer => {
                self.inner.put_if(key, body, expect).await;
                unknown(true)
            }
            Fate::LoseRequest | Fate::Late => unknown(true),
            Fate::Refuse => unknown(false),
        }
    }

    fn needs_probe(&self) -> bool {
        false
    }

    bucketq::forward_to_inner!(put_new delete list describe default_max_skew);
}
