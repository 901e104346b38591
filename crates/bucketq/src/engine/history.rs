//! Lists the commits in the log, newest first. The writer runs it in a background task: old segments are fetched.

use crate::bucket::head::Head;
use crate::bucket::keys;
use crate::bucket::record::Record;
use crate::bucket::wire::corrupt;
use crate::bytes::store::Got;
use crate::engine::catchup::{FetchError, Source, absent_head};
use crate::noun::error::Result;
use crate::noun::query::Commit;

/// Reads of HEAD before a missing segment counts as lost.
const TRIES: u32 = 8;

/// Returns up to `limit` commits of the log of `head`, newest first. If a segment was collected meanwhile, reads HEAD
/// again (P18), and the list begins with the newest commit of that HEAD.
pub(crate) async fn history(source: Source, mut head: Head, limit: u32) -> Result<Vec<Commit>> {
    let key = keys::head(&source.name);
    let mut tries = 0;
    loop {
        let missing = match walk(&source, &head, limit).await {
            Ok(commits) => return Ok(commits),
            Err(FetchError::Error(error)) => return Err(error),
            Err(FetchError::Missing(missing)) => missing,
        };
        tries += 1;
        let newer = match source.store.get(&key, None).await? {
            Got::Object { bytes, .. } => Head::decode(&key, &bytes)?,
            _ => return Err(absent_head(&key)),
        };
        if newer.commit_id == head.commit_id || tries == TRIES {
            return Err(corrupt(&missing, "HEAD refers to it, and it does not exist"));
        }
        head = newer;
    }
}

async fn walk(source: &Source, head: &Head, limit: u32) -> Result<Vec<Commit>, FetchError> {
    let mut commits = vec![];
    let mut older = head.segments.iter().rev();
    let mut records = head.tail.clone();
    loop {
        for record in records.iter().rev() {
            if commits.len() == limit as usize {
                return Ok(commits);
            }
            commits.push(to_commit(record, source.max_pages)?);
        }
        match older.next() {
            Some(s) if commits.len() < limit as usize => records = source.segment(head, s).await?,
            _ => return Ok(commits),
        }
    }
}

fn to_commit(record: &Record, max_pages: u32) -> Result<Commit> {
    Ok(Commit {
        commit_seq: record.seq,
        commit_id: keys::hex(&record.commit_id),
        commit_ms: record.commit_ms,
        writer: keys::hex(&record.writer),
        ops: record.ops,
        bytes: record.encoded_len() as u64,
        pages_changed: record.delta(max_pages)?.patched() as u64,
        pages: u64::from(record.page_count),
    })
}
