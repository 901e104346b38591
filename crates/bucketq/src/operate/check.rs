//! Reading everything a queue file consists of and saying what is wrong with it. Never writes, and never stops at the
//! first thing that is wrong; only a store that gives no answer ends a check.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;

use super::report::{Problem, Report};
use crate::catchup::Source;
use crate::config::Options;
use crate::db::{self, Db};
use crate::env::Env;
use crate::error::{Code, Error, Kind, Result};
use crate::head::{BaseRef, Head, SegmentRef};
use crate::keys::{self, Named, Object};
use crate::life::Archived;
use crate::pages::{PAGE, PageFile, Pages};
use crate::record::Record;
use crate::store::{Got, Store, StoreUrl, open_store};
use crate::wire::hash;
use crate::{base, gc, segment};

/// Times to begin again because HEAD moved on and what it had referred to was collected.
const TRIES: u32 = 8;
/// What a problem of the state as a whole is told of.
const DATABASE: &str = "database";

/// Check the queue file at `url`; nothing is written, and GET and LIST are all it needs. Works while others commit.
/// An error means that there is nothing to check or that the store cannot be read; whatever is wrong with the file is
/// in the report.
pub async fn check(url: &str, options: Options) -> Result<Report> {
    let options = Options { read_only: true, ..options };
    let url = StoreUrl::parse(url)?;
    let store = open_store(&url, &options, &Env::default()).await?;
    check_with(store, url.name(), options).await
}

/// [`check`] in a store of one's own.
pub async fn check_with(store: Arc<dyn Store>, name: &str, options: Options) -> Result<Report> {
    options.check()?;
    StoreUrl::check_name(name)?;
    let max_pages = u32::try_from(options.max_file / PAGE as u64).unwrap_or(u32::MAX - 1);
    let source = Source { store, name: name.to_owned(), max_pages };
    for _ in 0..TRIES {
        let mut checking =
            Checking { source: &source, archives: None, options: &options, report: Report::default() };
        if checking.whole().await? {
            return Ok(checking.report);
        }
    }
    Err(Error::new(
        Code::Contended,
        format!(
            "{name} changed {TRIES} times while it was read, and what was to be read was collected: check it again"
        ),
    ))
}

struct Checking<'a> {
    source: &'a Source,
    /// The archive objects that HEAD's database lists, once that is read.
    archives: Option<Vec<Archived>>,
    options: &'a Options,
    report: Report,
}

impl Checking<'_> {
    fn problem(&mut self, object: &str, check: &str, found: impl Into<String>) {
        let found = found.into();
        self.report.problems.push(Problem { object: object.to_owned(), check: check.to_owned(), found });
    }

    /// The object, counted. None when it is not there.
    async fn read(&mut self, key: &str) -> Result<Option<Bytes>> {
        match self.source.store.get(key, None).await.map_err(|e| e.during(format!("reading {key}")))? {
            Got::Object { bytes, .. } => {
                self.report.read.add(bytes.len() as u64);
                Ok(Some(bytes))
            }
            _ => Ok(None),
        }
    }

    /// One pass. False when HEAD moved on and something it had referred to is gone.
    async fn whole(&mut self) -> Result<bool> {
        self.report.name.clone_from(&self.source.name);
        self.report.store = self.source.store.describe();
        let key = keys::head(&self.source.name);
        let bytes = self.read(&key).await?;
        let head = match &bytes {
            None => Err("there is none".to_owned()),
            Some(bytes) => match Head::decode(&key, bytes) {
                Err(error) if error.code() == Code::TooNew => return Err(error),
                decoded => decoded.map_err(|e| e.message().to_owned()),
            },
        };
        match head {
            Ok(head) => {
                self.headline(&key, &head, bytes.map_or(0, |b| b.len() as u64));
                if !self.referenced(&head).await? && self.moved_on(&key, &head).await? {
                    return Ok(false);
                }
                self.others(Some(&head)).await?;
            }
            Err(found) => {
                self.problem(&key, "HEAD can be read", found);
                let left = self.others(None).await?;
                if bytes.is_none() && left.is_empty() {
                    return Err(Error::new(
                        Code::NoSuchFile,
                        format!("there is no queue file {} in {}", self.report.name, self.report.store),
                    ));
                }
                self.salvage(left).await?;
            }
        }
        Ok(true)
    }

    fn headline(&mut self, key: &str, head: &Head, bytes: u64) {
        self.report.commit_seq = Some(head.commit_seq);
        self.report.commit_id = Some(keys::hex(&head.commit_id));
        self.report.commit_ms = Some(head.commit_ms);
        self.report.file_id = Some(keys::hex(&head.file_id));
        self.report.lineage_id = Some(keys::hex(&head.lineage_id));
        self.report.pages = u64::from(head.page_count);
        self.report.read_only = head.check_writable(key).err().map(|e| e.message().to_owned());
        self.report.referenced.add(bytes);
    }

    async fn moved_on(&mut self, key: &str, head: &Head) -> Result<bool> {
        let now = self.read(key).await?.map(|bytes| Head::decode(key, &bytes));
        Ok(!matches!(now, Some(Ok(now)) if now.commit_id == head.commit_id))
    }

    /// What HEAD refers to, one object after another; then the database they make. False when an object is missing.
    async fn referenced(&mut self, head: &Head) -> Result<bool> {
        let mut there = true;
        let mut pages = Some(Pages::new());
        if head.base.len > 0 {
            let key = keys::base(&self.source.name, &head.file_id, head.base.seq, &head.base.rand);
            let read = self.read(&key).await?;
            there &= read.is_some();
            pages = self.told(&key, "the base is whole", read.as_ref(), |bytes| {
                base::decode(&key, bytes, &head.base, self.source.max_pages)
            });
            self.report.referenced.add(head.base.len);
        }
        let mut parts: Vec<(String, Option<Vec<Record>>)> = vec![];
        for s in &head.segments {
            let key = keys::segment(&self.source.name, &head.file_id, s.from, s.to, &s.rand);
            let read = self.read(&key).await?;
            there &= read.is_some();
            let records = self.told(&key, "the segment is whole", read.as_ref(), |bytes| {
                segment::decode(&key, bytes, s, &head.file_id, &head.lineage_id)
            });
            self.report.referenced.add(u64::from(s.len));
            parts.push((key, records));
        }
        parts.push((keys::head(&self.source.name), Some(head.tail.clone())));
        self.chained(&parts);
        let whole = parts.iter().all(|(_, records)| records.is_some());
        match pages.filter(|_| whole).and_then(|pages| self.replayed(pages, head, &parts)) {
            Some(pages) => {
                self.database(pages, head).await?;
                there &= self.archived().await?;
            }
            None => self.problem(
                DATABASE,
                "the database can be built",
                "what it is built from is damaged: its tables were not looked at",
            ),
        }
        Ok(there)
    }

    /// The decoded object, or a problem.
    fn told<T>(
        &mut self,
        key: &str,
        check: &str,
        read: Option<&Bytes>,
        decode: impl FnOnce(&Bytes) -> Result<T>,
    ) -> Option<T> {
        match read.map(decode) {
            Some(Ok(decoded)) => Some(decoded),
            Some(Err(error)) => {
                self.problem(key, check, error.message());
                None
            }
            None => {
                self.problem(key, check, "HEAD refers to it and it is not there");
                None
            }
        }
    }

    /// Each part continues the one before it, as far as both can be read.
    fn chained(&mut self, parts: &[(String, Option<Vec<Record>>)]) {
        for pair in parts.windows(2) {
            let [(before, Some(first)), (after, Some(second))] = pair else { continue };
            if let (Some(last), Some(next)) = (first.last(), second.first())
                && next.prev_commit_id != last.commit_id
            {
                let found = format!("its commit {} does not follow the last one of {before}", next.seq);
                self.problem(after, "the commits are one chain", found);
            }
        }
    }

    /// The deltas one by one, each with the checksum it must lead to.
    fn replayed(
        &mut self,
        mut pages: Pages,
        head: &Head,
        parts: &[(String, Option<Vec<Record>>)],
    ) -> Option<Pages> {
        for (key, record) in
            parts.iter().flat_map(|(key, records)| records.iter().flatten().map(move |r| (key, r)))
        {
            if record.seq <= head.base.seq {
                continue;
            }
            let applied = record.delta(self.source.max_pages).and_then(|delta| pages.apply(&delta).map(drop));
            let found = match applied {
                Err(error) => error.message().to_owned(),
                Ok(())
                    if (pages.page_count(), pages.checksum().0) != (record.page_count, record.checksum) =>
                {
                    "the database after it does not have the checksum it states".to_owned()
                }
                Ok(()) => {
                    self.report.commits += 1;
                    continue;
                }
            };
            self.problem(key, &format!("the delta of commit {} gives what it states", record.seq), found);
            return None;
        }
        if (pages.page_count(), pages.checksum().0) != (head.page_count, head.checksum) {
            let found =
                format!("the database at commit {} does not have the checksum in HEAD", head.commit_seq);
            self.problem(&keys::head(&self.source.name), "HEAD has the checksum of the database", found);
            return None;
        }
        Some(pages)
    }

    /// The tables, off this task: they may be large.
    async fn database(&mut self, pages: Pages, head: &Head) -> Result<()> {
        let (max_pages, newest, floor) = (self.source.max_pages, head.commit_seq, head.gc_floor);
        let looked = tokio::task::spawn_blocking(move || look(pages, max_pages, Some(newest), floor)).await;
        match looked
            .map_err(|e| Error::new(Code::Internal, "the check of the database ended early").because(e))?
        {
            Ok(looked) => {
                self.report.jobs = looked.jobs;
                self.archives = looked.archives;
                if looked.newer {
                    self.report.read_only =
                        Some("its schema is newer than this library: upgrade bucketq".into());
                }
                self.report.problems.extend(looked.unsound.into_iter().map(|u| Problem {
                    object: DATABASE.to_owned(),
                    check: u.rule.to_owned(),
                    found: u.what,
                }));
            }
            Err(error) => self.problem(DATABASE, "the database can be opened", error.message()),
        }
        Ok(())
    }

    /// Whether HEAD refers to it, itself or by the list in its database. Without a list every archive object may be on it.
    fn refers(&self, head: &Head, object: &Object) -> bool {
        match *object {
            Object::Archive { seq, rand } => {
                self.archives.as_ref().is_none_or(|a| gc::kept(a, &head.file_id).contains(&(seq, rand)))
            }
            _ => gc::refers(head, object),
        }
    }

    fn may_go(&self, head: &Head, object: &Object) -> bool {
        match *object {
            Object::Archive { seq, rand } => {
                let kept = self.archives.as_ref().map(|a| gc::kept(a, &head.file_id));
                gc::archive_may_go(head.gc_floor, kept.as_ref(), seq, rand, self.options)
            }
            _ => gc::may_go(head, object, self.options),
        }
    }

    /// The archive objects that the database lists, one after another. False when one is missing.
    async fn archived(&mut self) -> Result<bool> {
        let mut there = true;
        for a in self.archives.clone().unwrap_or_default() {
            let key = keys::archive(&self.source.name, &keys::hex(&a.file), a.seq, &a.rand);
            let read = self.read(&key).await?;
            there &= read.is_some();
            self.told(&key, "the archive object is what was listed", read.as_ref(), |bytes| {
                let whole = bytes.len() as u64 == a.bytes && hash(bytes) == a.hash;
                if whole { Ok(()) } else { Err(Error::new(Code::Corrupt, "its length or hash is another")) }
            });
            self.report.referenced.add(a.bytes);
        }
        Ok(there)
    }

    /// What else lies under the name. Answers its keys.
    async fn others(&mut self, head: Option<&Head>) -> Result<Vec<(String, Object)>> {
        let listed = match self.source.store.list(&keys::prefix(&self.source.name)).await {
            Ok(listed) => listed,
            // Credentials that may only GET are enough for everything else.
            Err(error) if error.code() == Code::Denied && head.is_some() => return Ok(vec![]),
            Err(error) => return Err(error.during("listing what belongs to the queue file")),
        };
        let ours = head.map(|h| keys::file8(&h.file_id));
        let mut left = vec![];
        for object in listed {
            let Some(Named { file8, object: named }) = keys::parse(&self.source.name, &object.key) else {
                continue;
            };
            if ours.as_ref().is_none_or(|ours| *ours == file8) {
                if head.is_some_and(|h| self.refers(h, &named)) {
                    continue;
                }
                self.report.unreferenced.get_or_insert_default().add(object.size);
                if head.is_some_and(|h| self.may_go(h, &named)) {
                    self.report.collectable.get_or_insert_default().add(object.size);
                }
            } else {
                self.report.foreign.get_or_insert_default().add(object.size);
            }
            left.push((object.key, named));
        }
        for tally in [&mut self.report.unreferenced, &mut self.report.collectable, &mut self.report.foreign] {
            tally.get_or_insert_default();
        }
        Ok(left)
    }

    /// Without HEAD: which objects are whole in themselves.
    async fn salvage(&mut self, left: Vec<(String, Object)>) -> Result<()> {
        for (key, object) in left {
            let Some(bytes) = self.read(&key).await? else { continue };
            let max_pages = self.source.max_pages;
            let sound = tokio::task::spawn_blocking(move || alone(&bytes, object, max_pages)).await;
            let sound = sound
                .map_err(|e| Error::new(Code::Internal, "the check of an object ended early").because(e))?;
            match sound {
                Ok(()) => self.report.sound_objects.push(key),
                Err(error) if error.kind() == Kind::Corrupt => {
                    self.problem(&key, "it is whole in itself", error.message());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// What the tables of a database say.
pub(super) struct Looked {
    /// The archive objects that must stay, if they can be told.
    pub archives: Option<Vec<Archived>>,
    /// Jobs in it.
    pub jobs: u64,
    /// The newest commit anything in it is of.
    pub newest: u64,
    /// Its schema is newer than this library.
    pub newer: bool,
    /// What is wrong.
    pub unsound: Vec<db::Unsound>,
}

/// Look at every table. `newest` is the commit that the database shows, if that is known, and `floor` that of its HEAD.
pub(super) fn look(pages: Pages, max_pages: u32, newest: Option<u64>, floor: u64) -> Result<Looked> {
    let max_pages = max_pages.max(pages.page_count());
    let file = PageFile::new(pages);
    let mut db = Db::open(file.connect(max_pages)?)?;
    let newer = db.check_writable().is_err();
    let mut unsound = db::unsound(db.connection(), newest);
    if !newer {
        unsound.extend(schema_differs(&db)?);
    }
    if newer || !unsound.is_empty() {
        return Ok(Looked { archives: None, jobs: 0, newest: 0, newer, unsound });
    }
    let (jobs, newest) = db::extent(db.connection())?;
    let archives = db.archives_kept(floor).ok();
    Ok(Looked { archives, jobs, newest, newer, unsound })
}

/// The schema is shared by all versions, so it is that of an empty file, to the letter.
fn schema_differs(db: &Db) -> Result<Vec<db::Unsound>> {
    let empty = Db::create(PageFile::new(Pages::new()).connect(1024)?, 0)?;
    let (ours, theirs) = (db::schema(empty.connection())?, db::schema(db.connection())?);
    let names = |of: &BTreeSet<(String, String)>, others: &BTreeSet<(String, String)>| {
        of.difference(others).map(|(name, _)| name.clone()).collect::<BTreeSet<_>>()
    };
    let differ: BTreeSet<String> = &names(&ours, &theirs) | &names(&theirs, &ours);
    Ok(differ
        .into_iter()
        .map(|what| db::Unsound { rule: "the schema is that of this version", what })
        .collect())
}

/// An object that nothing vouches for, by what it says of itself.
fn alone(bytes: &Bytes, object: Object, max_pages: u32) -> Result<()> {
    match object {
        Object::Base { seq, .. } => {
            let codec =
                if bytes.starts_with(b"SQLite format 3\0") { base::CODEC_NONE } else { base::CODEC_ZSTD };
            let r = BaseRef { seq, rand: [0; 8], codec, len: bytes.len() as u64, hash: hash(bytes) };
            let looked = look(base::decode("it", bytes, &r, max_pages)?, max_pages, Some(seq), 0)?;
            looked.unsound.first().map_or(Ok(()), |u| {
                Err(Error::new(Code::Corrupt, format!("{}, but not: {}", u.rule, u.what)))
            })
        }
        // Its rows are for those who read archives; that it is whole its own footer tells them.
        Object::Archive { .. } | Object::Stage { .. } => Ok(()),
        Object::Segment { from, to, .. } => {
            let r =
                SegmentRef { from, to, rand: [0; 8], codec: 0, len: bytes.len() as u32, hash: hash(bytes) };
            let ids = bytes.get(16..48).and_then(|ids| ids.split_first_chunk::<16>());
            let Some((file_id, lineage)) = ids else {
                return Err(Error::new(Code::Corrupt, "it is shorter than its header"));
            };
            let lineage: &[u8; 16] = lineage.first_chunk().unwrap_or(file_id);
            segment::decode("it", bytes, &r, file_id, lineage).map(drop)
        }
    }
}
