//! Writes the local state as files for people: the changes that a sync could not publish, to be inspected and repeated.
//!
//! Called by the writer. Reads images, never the writer's own state.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::dir::failed;
use crate::bucket::keys;
use crate::engine::image;
use crate::noun::error::{Code, Error, Result};
use crate::noun::job::{Job, JobId};
use crate::noun::query::{Answer, Filter, Query};
use crate::state::db::{Db, Moment};
use crate::state::pages::{Image, PageFile, Pages};

/// Jobs per read.
const PAGE: u32 = 1_000;

/// Writes `now` to a new SQLite file, and a line for each job that differs from `base` to a file beside it.
pub(crate) fn export(path: &Path, base: &Image, now: &Image, rand: [u8; 8], at: Moment) -> Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".jsonl");
    let beside = PathBuf::from(beside);
    let mut lines = String::new();
    for line in changes(&mut ImageDb::of(base, at)?, &mut ImageDb::of(now, at)?)? {
        let _ = writeln!(lines, "{line}");
    }
    // The lines first: if the image exists, so do they.
    let made = File::create_new(&beside)
        .and_then(|mut file| file.write_all(lines.as_bytes()).and_then(|()| file.sync_all()));
    made.map_err(|e| match e.kind() {
        ErrorKind::AlreadyExists => Error::new(
            Code::FileExists,
            format!("there is a file at {} already: choose another path", beside.display()),
        ),
        _ => failed("write", &beside, &e).because(e),
    })?;
    image::export(now, path, false, rand).map(drop).inspect_err(|_| {
        let _ = fs::remove_file(&beside);
    })
}

/// A separate database with the pages of an image.
struct ImageDb {
    db: Db,
    at: Moment,
}

impl ImageDb {
    fn of(image: &Image, at: Moment) -> Result<Self> {
        let mut pages = Pages::new();
        pages.go_to(image)?;
        let file = PageFile::new(pages);
        Ok(Self { db: Db::open(file.connect(image.page_count())?)?, at })
    }

    fn jobs(&mut self) -> Result<Vec<Job>> {
        let (mut all, mut after) = (vec![], None);
        loop {
            let query = Query::List { filter: Filter::default(), after, limit: PAGE };
            let Answer::Page(page) = self.db.query(&query, &self.at)? else { return Err(unexpected()) };
            all.extend(page.jobs);
            after = page.next;
            if after.is_none() {
                return Ok(all);
            }
        }
    }

    fn line(&mut self, change: &str, job: &Job) -> Result<Value> {
        let Answer::Job(Some(detail)) = self.db.query(&Query::Get(job.id), &self.at)? else {
            return Err(unexpected());
        };
        let bytes = &detail.payload.bytes;
        if let Ok(text) = std::str::from_utf8(bytes) {
            return Ok(json!({ "change": change, "job": job, "payload": text }));
        }
        Ok(json!({ "change": change, "job": job, "payload_hex": keys::hex(bytes) }))
    }
}

fn changes(base: &mut ImageDb, now: &mut ImageDb) -> Result<Vec<Value>> {
    let mut before: HashMap<JobId, Job> = base.jobs()?.into_iter().map(|job| (job.id, job)).collect();
    let mut lines = vec![];
    for job in now.jobs()? {
        match before.remove(&job.id) {
            Some(was) if was == job => {}
            Some(_) => lines.push(now.line("changed", &job)?),
            None => lines.push(now.line("added", &job)?),
        }
    }
    let mut removed: Vec<Job> = before.into_values().collect();
    removed.sort_by_key(|job| job.seq);
    for job in removed {
        lines.push(base.line("removed", &job)?);
    }
    Ok(lines)
}

fn unexpected() -> Error {
    Error::bug("the writer returned another kind of value")
}
