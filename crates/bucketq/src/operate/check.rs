//! Reads everything that belongs to a queue file and reports what is wrong with it. Never writes, and continues after a
//! problem; only a store that does not reply ends a check.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;

use super::report::{Problem, Report};
use crate::bucket::head::{BaseRef, Head, SegmentRef};
use crate::bucket::keys::{self, Named, Object};
use crate::bucket::record::Record;
use crate::bucket::wire::hash;
use crate::bucket::{base, segment};
use crate::bytes::store::{Got, MAX_OBJECT, Store, StoreUrl, open_store};
use crate::bytes::wrap::limited::CallLimit;
use crate::engine::{catchup::Source, gc};
use crate::fork;
use crate::noun::config::{MAX_HEAD, Options};
use crate::noun::env::Env;
use crate::noun::error::{Code, Error, Kind, Result};
use crate::noun::life::Archived;
use crate::state::db::{self, Db};
use crate::state::pages::{PAGE, PageFile, Pages};

/// Times to start over because HEAD moved on and objects it had referred to were collected.
const TRIES: u32 = 8;
/// The object name in problems of the database as a whole.
const DATABASE: &str = "database";

/// Checks the queue file at `url`. Writes nothing; GET and LIST permissions suffice. Works while others commit. Fails
/// only if there is nothing to check or the store cannot be read; everything wrong with the file is in the report. Ends
/// at the deadline, or later as soon as the store has been silent for a third of the deadline.
pub async fn check(url: &str, options: Options) -> Result<Report> {
    let options = Options { read_only: true, ..options };
    options.check()?;
    let (url, env) = (StoreUrl::parse(url)?, Env::default());
    let call_limit = CallLimit::new(&env, options.deadline);
    let checked = async {
        let store = open_store(&url, &options, &env).await?;
        whole(&call_limit, store, url.name(), &options).await
    };
    call_limit.run(&format!("the check of {}", url.name()), Box::pin(checked)).await
}

/// Does the same as [`check`] in the given store.
pub async fn check_with(store: Arc<dyn Store>, name: &str, options: Options) -> Result<Report> {
    options.check()?;
    StoreUrl::check_name(name)?;
    let call_limit = CallLimit::new(&Env::default(), options.deadline);
    call_limit.run(&format!("the check of {name}"), whole(&call_limit, store, name, &options)).await
}

async fn whole(
    call_limit: &Arc<CallLimit>,
    store: Arc<dyn Store>,
    name: &str,
    options: &Options,
) -> Result<Report> {
    let store = call_limit.over_store(store);
    let max_pages = u32::try_from(options.max_file / PAGE as u64).unwrap_or(u32::MAX - 1);
    let source = Source::new(store, name.to_owned(), max_pages);
    for _ in 0..TRIES {
        let mut checking = Checking { source: &source, archives: None, report: Report::default() };
        if checking.whole().await? {
            return Ok(checking.report);
        }
    }
    Err(Error::new(
        Code::Contended,
        format!(
            "writers replaced the HEAD of {name} {TRIES} times during the check and deleted the objects to be read: check it again"
        ),
    ))
}

struct Checking<'a> {
    source: &'a Source,
    /// The archive objects that HEAD's database lists, once that is read.
    archives: Option<Vec<Archived>>,
    report: Report,
}

impl Checking<'_> {
    fn problem(&mut self, object: &str, check: &str, found: impl Into<String>) {
        let found = found.into();
        self.report.problems.push(Problem { object: object.to_owned(), check: check.to_owned(), found });
    }

    /// Reads and counts the object. None when it does not exist.
    async fn read(&mut self, key: &str, most: u64) -> Result<Option<Bytes>> {
        match self.source.store.get_at_most(key, None, most).await {
            Ok(Got::Object { bytes, .. }) => {
                self.report.read.add(bytes.len() as u64);
                Ok(Some(bytes))
            }
            Ok(_) => Ok(None),
            // Too many bytes for this object: a problem like any other; nothing of it is decoded.
            Err(error) if error.code() == Code::Corrupt => {
                self.problem(key, "its size is possible for an object of its kind", error.message());
                Ok(Some(Bytes::new()))
            }
            Err(error) => Err(error.during(format!("reading {key}"))),
        }
    }

    /// Makes one pass. Returns false when HEAD moved on and an object it had referred to is gone.
    async fn whole(&mut self) -> Result<bool> {
        self.report.name.clone_from(&self.source.name);
        self.report.store = self.source.store.describe();
        let key = keys::head(&self.source.name);
        let bytes = self.read(&key, MAX_HEAD as u64).await?;
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
        let now = self.read(key, MAX_HEAD as u64).await?.map(|bytes| Head::decode(key, &bytes));
        Ok(!matches!(now, Some(Ok(now)) if now.commit_id == head.commit_id))
    }

    /// Reads each object that HEAD refers to, then the database they form. Returns false when an object is missing.
    async fn referenced(&mut self, head: &Head) -> Result<bool> {
        let mut there = true;
        let mut pages = Some(Pages::new());
        if head.base.len > 0 {
            let key = keys::base(&self.source.name, &head.file_id, head.base.seq, &head.base.rand);
            let read = self.read(&key, self.source.most_of_base(head)).await?;
            there &= read.is_some();
            pages = self.decoded(&key, "the base is intact", read.as_ref(), |bytes| {
                base::decode(&key, bytes, &head.base, self.source.max_pages)
            });
            self.report.referenced.add(head.base.len);
        }
        let mut parts: Vec<(String, Option<Vec<Record>>)> = vec![];
        for s in &head.segments {
            let key = keys::segment(&self.source.name, &head.file_id, s.from, s.to, &s.rand);
            let read = self.read(&key, s.len.into()).await?;
            there &= read.is_some();
            let records = self.decoded(&key, "the segment is intact", read.as_ref(), |bytes| {
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
                "its base or a segment is damaged, so its tables were not checked",
            ),
        }
        Ok(there)
    }

    /// Returns the decoded object, or reports a problem.
    fn decoded<T>(
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
                self.problem(key, check, "HEAD refers to it, and it does not exist");
                None
            }
        }
    }

    /// Checks that each part continues the one before it, as far as both can be read.
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

    /// Applies the deltas one by one and checks the checksum after each.
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
                    "the database after it has another checksum".to_owned()
                }
                Ok(()) => {
                    self.report.commits += 1;
                    continue;
                }
            };
            self.problem(
                key,
                &format!("the delta of commit {} leads to the checksum in its record", record.seq),
                found,
            );
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

    /// Checks the tables on a blocking thread: they may be large.
    async fn database(&mut self, pages: Pages, head: &Head) -> Result<()> {
        let (max_pages, newest, floor) = (self.source.max_pages, head.commit_seq, head.gc_floor);
        let looked = tokio::task::spawn_blocking(move || look(pages, max_pages, Some(newest), floor)).await;
        match looked.map_err(|e| Error::bug("the check of the database ended early").because(e))? {
            Ok(looked) => {
                self.report.jobs = looked.jobs;
                self.archives = looked.archives;
                if looked.newer {
                    self.report.read_only =
                        Some("its schema is newer than this library: upgrade bucketq".into());
                }
                self.report.problems.extend(looked.violations.into_iter().map(|u| Problem {
                    object: DATABASE.to_owned(),
                    check: u.rule.to_owned(),
                    found: u.what,
                }));
            }
            Err(error) => self.problem(DATABASE, "the database can be opened", error.message()),
        }
        Ok(())
    }

    /// Returns whether HEAD refers to the object, directly or by the list in its database. Without a list, every
    /// archive object may be on it.
    fn refers(&self, head: &Head, object: &Object) -> bool {
        match *object {
            Object::Archive { seq, rand } => {
                self.archives.as_ref().is_none_or(|a| gc::live(a, &head.file_id).contains(&(seq, rand)))
            }
            _ => gc::refers(head, object),
        }
    }

    fn may_go(&self, head: &Head, object: &Object) -> bool {
        match *object {
            Object::Archive { seq, rand } => {
                let kept = self.archives.as_ref().map(|a| gc::live(a, &head.file_id));
                gc::archive_may_go(head.gc_floor, kept.as_ref(), seq, rand)
            }
            _ => gc::may_go(head, object),
        }
    }

    /// Reads each archive object that the database lists. Returns false when one is missing.
    async fn archived(&mut self) -> Result<bool> {
        let mut there = true;
        for a in self.archives.clone().unwrap_or_default() {
            let key = keys::archive(&self.source.name, &keys::hex(&a.file), a.seq, &a.rand);
            let read = self.read(&key, a.bytes).await?;
            there &= read.is_some();
            self.decoded(&key, "the archive object equals its entry in the list", read.as_ref(), |bytes| {
                let whole = bytes.len() as u64 == a.bytes && hash(bytes) == a.hash;
                if whole { Ok(()) } else { Err(Error::new(Code::Corrupt, "its length or hash differs")) }
            });
            self.report.referenced.add(a.bytes);
        }
        Ok(there)
    }

    /// Lists all other objects under the name. Returns their keys.
    async fn others(&mut self, head: Option<&Head>) -> Result<Vec<(String, Object)>> {
        let listed = match self.source.store.list(&keys::prefix(&self.source.name)).await {
            Ok(listed) => listed,
            // Credentials that may only GET suffice for everything else.
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

    /// Finds, without HEAD, the objects that are intact by themselves.
    async fn salvage(&mut self, left: Vec<(String, Object)>) -> Result<()> {
        for (key, object) in left {
            let Some(bytes) = self.read(&key, MAX_OBJECT).await? else { continue };
            let max_pages = self.source.max_pages;
            let sound = tokio::task::spawn_blocking(move || alone(&bytes, object, max_pages)).await;
            let sound = sound.map_err(|e| Error::bug("the check of an object ended early").because(e))?;
            match sound {
                Ok(()) => self.report.sound_objects.push(key),
                Err(error) if error.kind() == Kind::Corrupt => {
                    self.problem(&key, "it is intact", error.message());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// The content of a database's tables, as far as checks need it.
pub(super) struct Looked {
    /// The archive objects that must be kept, if they are known.
    pub archives: Option<Vec<Archived>>,
    /// The number of jobs.
    pub jobs: u64,
    /// The newest commit that any row mentions.
    pub newest: u64,
    /// Its schema is newer than this library.
    pub newer: bool,
    /// The rules that do not hold.
    pub violations: Vec<db::Violation>,
}

/// Checks every table. `newest` is the commit of the database, if it is known, and `floor` that of its HEAD.
pub(super) fn look(pages: Pages, max_pages: u32, newest: Option<u64>, floor: u64) -> Result<Looked> {
    // SQLite holds its own locks now and then until this returns.
    let _inside = fork::inside();
    let max_pages = max_pages.max(pages.page_count());
    let file = PageFile::new(pages);
    let mut db = Db::open(file.connect(max_pages)?)?;
    let newer = db.check_writable().is_err();
    let mut violations = db::violations(db.connection(), newest);
    if !newer {
        violations.extend(schema_differs(&db)?);
    }
    if newer || !violations.is_empty() {
        return Ok(Looked { archives: None, jobs: 0, newest: 0, newer, violations });
    }
    let (jobs, newest) = db::extent(db.connection())?;
    let archives = db.live_archives(floor).ok();
    Ok(Looked { archives, jobs, newest, newer, violations })
}

/// Compares the schema with that of an empty file: all versions share one schema, so it is the same to the letter.
fn schema_differs(db: &Db) -> Result<Vec<db::Violation>> {
    let empty = Db::create(PageFile::new(Pages::new()).connect(1024)?, 0)?;
    let (ours, theirs) = (db::schema(empty.connection())?, db::schema(db.connection())?);
    let names = |of: &BTreeSet<(String, String)>, others: &BTreeSet<(String, String)>| {
        of.difference(others).map(|(name, _)| name.clone()).collect::<BTreeSet<_>>()
    };
    let differ: BTreeSet<String> = &names(&ours, &theirs) | &names(&theirs, &ours);
    Ok(differ
        .into_iter()
        .map(|what| db::Violation { rule: "the schema is that of this version", what })
        .collect())
}

/// Checks an object without a reference to it, by its own content only.
fn alone(bytes: &Bytes, object: Object, max_pages: u32) -> Result<()> {
    match object {
        Object::Base { seq, .. } => {
            let codec =
                if bytes.starts_with(b"SQLite format 3\0") { base::CODEC_NONE } else { base::CODEC_ZSTD };
            let r = BaseRef { seq, rand: [0; 8], codec, len: bytes.len() as u64, hash: hash(bytes) };
            let looked = look(base::decode("it", bytes, &r, max_pages)?, max_pages, Some(seq), 0)?;
            looked.violations.first().map_or(Ok(()), |u| {
                Err(Error::new(Code::Corrupt, format!("it breaks the rule that {}: {}", u.rule, u.what)))
            })
        }
        // Their rows are not checked here; a Parquet footer shows readers whether the object is whole.
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
