//! A machine with a directory for its local state.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bucketq::store::Store;
use bucketq::{Env, Fsync, Mode, Options, Payload, QueueFile, Result};
use bucketq_tests::clock::TestClock;
use bucketq_tests::given::NAME;
use bucketq_tests::ground::Ground;
use bucketq_tests::puppet::Puppet;
use tempfile::TempDir;

/// A machine: its disk outlives its processes.
pub struct Machine {
    disk: TempDir,
    fsync: Fsync,
    clock: TestClock,
}

impl Machine {
    pub fn new() -> Self {
        Self::with(Fsync::EachCommit)
    }

    pub fn with(fsync: Fsync) -> Self {
        let disk = tempfile::tempdir().expect("a temporary directory can be made");
        Self { disk, fsync, clock: TestClock::start() }
    }

    /// Another machine with a copy of this one's disk.
    pub fn copy(&self) -> Self {
        let copy = Self { clock: self.clock.clone(), ..Self::with(self.fsync) };
        copy_all(self.disk.path(), copy.disk.path());
        copy
    }

    /// Put this machine's disk back to the state of the copy.
    pub fn restore(&self, copy: &Self) {
        std::fs::remove_dir_all(self.disk.path()).expect("a directory can be removed");
        std::fs::create_dir(self.disk.path()).expect("a directory can be made");
        copy_all(copy.disk.path(), self.disk.path());
    }

    pub fn options(&self) -> Options {
        Options {
            mode: Mode::Local,
            fsync: self.fsync,
            cache: Some(self.disk.path().to_owned()),
            ..Options::default()
        }
    }

    pub async fn open(&self, ground: &Ground) -> Result<QueueFile> {
        self.open_on(ground.store()).await
    }

    pub async fn open_on(&self, store: Arc<dyn Store>) -> Result<QueueFile> {
        QueueFile::open_with(store, NAME, self.options(), Env::default()).await
    }

    /// A process on paused time.
    pub async fn open_paused(&self, puppet: &Puppet) -> Result<QueueFile> {
        let options = Options { host: bucketq::Host::CurrentRuntime, ..self.options() };
        QueueFile::open_with(puppet.store(), NAME, options, self.clock.env()).await
    }

    /// Its clock.
    pub fn clock(&self) -> &TestClock {
        &self.clock
    }

    /// The directory of the only queue file here.
    pub fn directory(&self) -> PathBuf {
        let mut all = std::fs::read_dir(self.disk.path()).expect("it is there");
        let dir = all.next().expect("a queue file was opened").expect("it can be read").path();
        assert!(all.next().is_none(), "one queue file");
        dir
    }

    /// The file with the local state.
    pub fn state(&self) -> PathBuf {
        let found: Vec<_> = files(&self.directory())
            .into_iter()
            .filter(|p| p.file_name().and_then(|n| n.to_str()).is_some_and(|n| n.starts_with("gen-")))
            .collect();
        assert_eq!(found.len(), 1, "one generation: {found:?}");
        found[0].clone()
    }
}

pub fn files(dir: &Path) -> Vec<PathBuf> {
    let mut all: Vec<_> = std::fs::read_dir(dir)
        .expect("it is there")
        .map(|e| e.expect("it can be read").path())
        .filter(|p| p.is_file())
        .collect();
    all.sort();
    all
}

fn copy_all(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).expect("it is there") {
        let entry = entry.expect("it can be read");
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            std::fs::create_dir(&target).expect("a directory can be made");
            copy_all(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).expect("a file can be copied");
        }
    }
}

/// A process in Durable mode, anywhere.
pub async fn durable(ground: &Ground) -> Result<QueueFile> {
    bucketq_tests::given::opened(ground.store()).await
}

/// A process in Durable mode on paused time, on the store beneath the puppet.
pub async fn watch(machine: &Machine, puppet: &Puppet) -> Result<QueueFile> {
    let options = bucketq_tests::given::inline();
    QueueFile::open_with(Arc::clone(puppet.beneath()), NAME, options, machine.clock.env()).await
}

/// The payloads of all jobs of `q`, in their order.
pub async fn texts(file: &QueueFile) -> Result<Vec<String>> {
    let page = file.queue("q")?.list(&[], None, 1_000).await?;
    let mut out = vec![];
    for job in page.jobs {
        let detail = file.get(job.id).await?.expect("a listed job is there");
        out.push(String::from_utf8(detail.payload.bytes.to_vec()).expect("text"));
    }
    Ok(out)
}

pub async fn enqueue(file: &QueueFile, text: &str) -> Result<()> {
    file.queue("q")?.enqueue(Payload::text(text)).await.map(|_| ())
}

/// A process that is gone: it no longer reaches disk or store.
pub async fn abandon(file: QueueFile) -> Result<()> {
    // A handle closed without a sync leaves the directory as a killed process would, and releases its lock.
    file.close().await
}
