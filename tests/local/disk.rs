//! The files of the local state: torn, damaged, full, failing.

use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use bucketq::internals::local::{Dir, Disk, Lock};
use bucketq::{Code, Env, Kind, QueueFile, Result};
use bucketq_tests::given::{NAME, refused};
use bucketq_tests::ground::Ground;

use crate::fixture::{Machine, abandon, durable, enqueue, texts};

#[tokio::test]
async fn a_torn_last_entry_is_cut_off_wherever_it_was_torn() -> Result<()> {
    let ground = Ground::memory();
    let machine = Machine::new();
    let file = machine.open(&ground).await?;
    enqueue(&file, "a").await?;
    let whole = std::fs::read(machine.state()).expect("readable").len();
    enqueue(&file, "b").await?;
    abandon(file).await?;
    let all = std::fs::read(machine.state()).expect("readable");
    let old = machine.copy();
    for cut in (whole..all.len()).step_by(7).chain([all.len() - 1]) {
        for garbage in [0, 5, 4096] {
            machine.restore(&old);
            let mut bytes = all[..cut].to_vec();
            bytes.resize(cut + garbage, 0xa5);
            std::fs::write(machine.state(), bytes).expect("writable");
            let file = machine.open(&ground).await?;
            assert_eq!(texts(&file).await?, ["a"], "cut at {cut} of {}", all.len());
            enqueue(&file, "c").await?;
            abandon(file).await?;
            let file = machine.open(&ground).await?;
            assert_eq!(texts(&file).await?, ["a", "c"]);
            file.close().await?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn damage_before_the_end_is_corrupt_and_nothing_is_overwritten() -> Result<()> {
    let ground = Ground::memory();
    let machine = Machine::new();
    let file = machine.open(&ground).await?;
    let begin = std::fs::read(machine.state()).expect("readable").len();
    for text in ["a", "b"] {
        enqueue(&file, text).await?;
    }
    let last = std::fs::read(machine.state()).expect("readable").len();
    enqueue(&file, "c").await?;
    abandon(file).await?;
    let path = machine.state();
    let all = std::fs::read(&path).expect("readable");
    for at in (0..64).chain((64..begin).step_by(997)).chain((begin..last).step_by(13)) {
        let mut bytes = all.clone();
        bytes[at] ^= 0x10;
        std::fs::write(&path, &bytes).expect("writable");
        let error = refused(machine.open(&ground).await);
        assert_eq!(error.kind(), Kind::Corrupt, "byte {at}: {error}");
        assert_eq!(std::fs::read(&path).expect("readable"), bytes, "byte {at}");
    }
    std::fs::write(&path, &all).expect("writable");
    let file = machine.open(&ground).await?;
    assert_eq!(texts(&file).await?, ["a", "b", "c"]);
    file.close().await
}

#[tokio::test]
async fn a_log_that_outgrew_its_base_begins_anew_and_keeps_everything() -> Result<()> {
    let ground = Ground::memory();
    let machine = Machine::with(bucketq::Fsync::Never);
    let file = machine.open(&ground).await?;
    let first = machine.state();
    let mut expected = vec![];
    for i in 0..40 {
        let random: [u8; 150_000] = Env::default().bytes();
        let text: String = random.iter().map(|b| char::from(b'!' + b % 90)).collect();
        let text = format!("{i} {text}");
        enqueue(&file, &text).await?;
        expected.push(text);
        if i == 20 {
            file.sync().await?;
        }
    }
    assert_ne!(machine.state(), first, "another generation");
    let synced = file.dirty()?;
    abandon(file).await?;
    let file = machine.open(&ground).await?;
    assert_eq!(file.dirty()?.commits, synced.commits);
    assert_eq!(texts(&file).await?, expected);
    file.sync().await?;
    let all = durable(&ground).await?;
    assert_eq!(texts(&all).await?, expected);
    all.close().await?;
    file.close().await
}

#[tokio::test]
async fn a_generation_that_is_there_though_the_disk_denied_it_hides_no_later_commit() -> Result<()> {
    let (ground, machine) = (Ground::memory(), Machine::with(bucketq::Fsync::Never));
    let disk = DiskPuppet::new(&machine);
    let file = disk.open(&machine, &ground).await?;
    disk.create_fails_late.store(true, Ordering::SeqCst);
    let mut expected = vec![];
    // Once the log has outgrown its base and it is unknown which generation counts, no more changes are taken.
    let error = loop {
        let random: [u8; 150_000] = Env::default().bytes();
        let text: String = random.iter().map(|b| char::from(b'!' + b % 90)).collect();
        assert!(expected.len() < 100, "the log never begins anew");
        match enqueue(&file, &text).await {
            Ok(()) => expected.push(text),
            Err(error) => break error,
        }
    };
    assert_eq!(error.code(), Code::Disk);
    disk.create_fails_late.store(false, Ordering::SeqCst);
    enqueue(&file, "afterwards").await?;
    expected.push("afterwards".into());
    abandon(file).await?;
    let file = disk.open(&machine, &ground).await?;
    assert_eq!(texts(&file).await?, expected);
    file.close().await
}

/// A disk that a test controls.
#[derive(Debug)]
struct DiskPuppet {
    disk: Disk,
    /// Bytes of free space.
    room: AtomicI64,
    sync_fails: AtomicBool,
    cut_fails: AtomicBool,
    create_fails: AtomicBool,
    /// The file is created, but the call fails.
    create_fails_late: AtomicBool,
    creations: Mutex<Vec<String>>,
}

impl DiskPuppet {
    fn new(machine: &Machine) -> Arc<Self> {
        let path = machine.options().cache.expect("a machine has a disk").join("told");
        Arc::new(Self {
            disk: Disk::new(path),
            room: AtomicI64::new(i64::MAX),
            sync_fails: AtomicBool::new(false),
            cut_fails: AtomicBool::new(false),
            create_fails: AtomicBool::new(false),
            create_fails_late: AtomicBool::new(false),
            creations: Mutex::default(),
        })
    }

    async fn open(self: &Arc<Self>, machine: &Machine, ground: &Ground) -> Result<QueueFile> {
        let dir = Arc::clone(self) as Arc<dyn Dir>;
        QueueFile::open_local(ground.store(), NAME, machine.options(), Env::default(), dir).await
    }
}

fn fail(when: &AtomicBool) -> io::Result<()> {
    if when.load(Ordering::SeqCst) { Err(io::Error::other("as told")) } else { Ok(()) }
}

impl Dir for DiskPuppet {
    fn path(&self) -> PathBuf {
        self.disk.path()
    }

    fn lock(&self) -> Result<Lock> {
        self.disk.lock()
    }

    fn names(&self) -> io::Result<Vec<String>> {
        self.disk.names()
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        self.disk.read(name)
    }

    fn create(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        fail(&self.create_fails)?;
        self.creations.lock().expect("no panic").push(name.to_owned());
        self.disk.create(name, bytes)?;
        fail(&self.create_fails_late)
    }

    fn append(&self, name: &str, at: u64, bytes: &[u8]) -> io::Result<()> {
        let room = self.room.load(Ordering::SeqCst);
        let fits = room.clamp(0, bytes.len() as i64) as usize;
        self.disk.append(name, at, &bytes[..fits])?;
        self.room.fetch_sub(fits as i64, Ordering::SeqCst);
        if fits < bytes.len() { Err(ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    fn sync(&self, name: &str) -> io::Result<()> {
        fail(&self.sync_fails)?;
        self.disk.sync(name)
    }

    fn cut(&self, name: &str, len: u64) -> io::Result<()> {
        fail(&self.cut_fails)?;
        self.disk.cut(name, len)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)
    }
}

#[tokio::test]
async fn a_full_disk_refuses_the_op_and_leaves_everything_as_it_was() -> Result<()> {
    for cut_fails in [false, true] {
        let (ground, machine) = (Ground::memory(), Machine::new());
        let disk = DiskPuppet::new(&machine);
        disk.cut_fails.store(cut_fails, Ordering::SeqCst);
        let file = disk.open(&machine, &ground).await?;
        enqueue(&file, "a").await?;
        for room in [0, 1, 30, 200] {
            disk.room.store(room, Ordering::SeqCst);
            let error = refused(enqueue(&file, "b").await);
            assert_eq!((error.kind(), error.code()), (Kind::Full, Code::DiskFull), "{error}");
            assert_eq!(texts(&file).await?, ["a"]);
            assert_eq!(file.dirty()?.commits, 1);
            // Nor can it be published: there is no space for the intent.
            disk.room.store(room, Ordering::SeqCst);
            assert_eq!(refused(file.sync().await).code(), Code::DiskFull);
        }
        disk.room.store(i64::MAX, Ordering::SeqCst);
        enqueue(&file, "c").await?;
        abandon(file).await?;
        let file = disk.open(&machine, &ground).await?;
        assert_eq!(texts(&file).await?, ["a", "c"], "cut fails {cut_fails}");
        file.sync().await?;
        let all = durable(&ground).await?;
        assert_eq!(texts(&all).await?, ["a", "c"]);
        all.close().await?;
        file.close().await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_discard_that_cannot_be_written_down_is_finished_once_it_can() -> Result<()> {
    let (ground, machine) = (Ground::memory(), Machine::new());
    let disk = DiskPuppet::new(&machine);
    let file = disk.open(&machine, &ground).await?;
    enqueue(&file, "mine").await?;
    let other = durable(&ground).await?;
    enqueue(&other, "theirs").await?;
    other.close().await?;
    assert_eq!(refused(file.sync().await).kind(), Kind::Diverged);
    disk.room.store(0, Ordering::SeqCst);
    disk.create_fails.store(true, Ordering::SeqCst);
    assert_eq!(refused(file.snapshot(true).await).code(), Code::Disk);
    assert_eq!(refused(file.snapshot(file.dirty()?.commits > 0).await).code(), Code::Disk, "nor now");
    disk.room.store(i64::MAX, Ordering::SeqCst);
    disk.create_fails.store(false, Ordering::SeqCst);
    // Most programs do this: discard unpublished changes, if there are any.
    file.snapshot(file.dirty()?.commits > 0).await?;
    assert_eq!(texts(&file).await?, ["theirs"]);
    abandon(file).await?;
    let file = disk.open(&machine, &ground).await?;
    assert_eq!(texts(&file).await?, ["theirs"], "what was dropped does not come back");
    enqueue(&file, "next").await?;
    file.sync().await?;
    file.close().await
}

#[tokio::test]
async fn a_sync_of_the_disk_that_fails_puts_nothing_in_doubt_if_a_new_generation_can_be_made() -> Result<()> {
    let (ground, machine) = (Ground::memory(), Machine::new());
    let disk = DiskPuppet::new(&machine);
    let file = disk.open(&machine, &ground).await?;
    enqueue(&file, "a").await?;
    disk.sync_fails.store(true, Ordering::SeqCst);
    let made = disk.creations.lock().expect("no panic").len();
    let error = refused(enqueue(&file, "b").await);
    assert_eq!((error.kind(), error.code()), (Kind::Unavailable, Code::Disk), "{error}");
    assert_eq!(disk.creations.lock().expect("no panic").len(), made + 1, "written anew");
    disk.create_fails.store(true, Ordering::SeqCst);
    disk.cut_fails.store(true, Ordering::SeqCst);
    let error = refused(enqueue(&file, "b").await);
    assert_eq!(error.kind(), Kind::Unknown, "it may be on the disk: {error}");
    let error = refused(enqueue(&file, "c").await);
    assert_eq!(error.kind(), Kind::Unavailable, "nothing more before the file is sound: {error}");
    assert_eq!(texts(&file).await?, ["a"]);
    for flag in [&disk.sync_fails, &disk.create_fails, &disk.cut_fails] {
        flag.store(false, Ordering::SeqCst);
    }
    enqueue(&file, "d").await?;
    abandon(file).await?;
    let file = disk.open(&machine, &ground).await?;
    assert_eq!(texts(&file).await?, ["a", "d"], "what was refused did not come back");
    file.close().await
}
