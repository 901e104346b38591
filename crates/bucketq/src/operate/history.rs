//! The commits that the log still has, newest first. Called by the writer, off its path: old segments are fetched.

use crate::catchup::{Source, Trouble};
use crate::error::Result;
use crate::head::Head;
use crate::keys;
use crate::query::Commit;
use crate::record::Record;
use crate::store::Got;
use crate::wire::corrupt;

/// Looks at HEAD before a segment that is not there counts as lost.
const TRIES: u32 = 8;

/// Up to `limit` commits of the log of `head`, newest first. When what it refers to was collected meanwhile, HEAD is read
/// again (P18), and the history ends with the newest commit then.
pub(crate) async fn history(source: Source, mut head: Head, limit: u32) -> Result<Vec<Commit>> {
    let key = keys::head(&source.name);
    let mut tries = 0;
    loop {
        let missing = match walk(&source, &head, limit).await {
            Ok(commits) => return Ok(commits),
            Err(Trouble::Error(error)) => return Err(error),
            Err(Trouble::Missing(missing)) => missing,
        };
        tries += 1;
        let newer = match source.store.get(&key, None).await? {
            Got::Object { bytes, .. } => Head::decode(&key, &bytes)?,
            _ => return Err(corrupt(&key, "it is not there")),
        };
        if newer.commit_id == head.commit_id || tries == TRIES {
            return Err(corrupt(&missing, "HEAD refers to it and it is not there"));
        }
        head = newer;
    }
}

async fn walk(source: &Source, head: &Head, limit: u32) -> Result<Vec<Commit>, Trouble> {
    let mut commits = vec![];
    let mut older = head.segments.iter().rev();
    let mut records = head.tail.clone();
    loop {
        for record in records.iter().rev() {
            if commits.len() == limit as usize {
                return Ok(commits);
            }
            commits.push(told(record, source.max_pages)?);
        }
        match older.next() {
            Some(s) if commits.len() < limit as usize => records = source.segment(head, s).await?,
            _ => return Ok(commits),
        }
    }
}

fn told(record: &Record, max_pages: u32) -> Result<Commit> {
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
