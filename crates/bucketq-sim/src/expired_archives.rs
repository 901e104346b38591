//! Archive objects that expired: not too early, not too late, and not collected before the floor has passed the commit
//! that expired them.
//!
//! Called by run.rs at the end. The runs in them count as archived in every check over all runs.

use std::collections::BTreeMap;

use bucketq::QueueFile;
use bucketq::error::Error;
use bucketq::internals::archive::decode;
use bucketq::life::{Archived, Life};

use crate::bucket::Bucket;
use crate::museum::Museum;
use crate::world::World;

/// An object that left the list.
#[derive(Clone, Debug)]
pub struct Gone {
    /// The commit that expired it.
    pub seq: u64,
    /// The runs in it.
    pub lives: Vec<Life>,
}

/// By key.
pub type ExpiredArchives = BTreeMap<String, Gone>;

/// Returns the objects that left the list, commit by commit; or the fault if one left too soon.
pub async fn look(world: &World) -> Result<ExpiredArchives, String> {
    let mut expired = ExpiredArchives::new();
    let Some(age) = world.plan.archive_ms() else { return Ok(expired) };
    let museum = Museum::of(world);
    let unreadable =
        |seq: u64| move |e: Error| format!("G7: the archive cannot be read at commit {seq}: {e:?}");
    let file = museum.open(world).await.map_err(unreadable(1))?;
    let mut before: BTreeMap<String, Archived> = BTreeMap::new();
    for (n, made) in museum.commits.iter().enumerate() {
        museum.show(n).await;
        let seq = n as u64 + 1;
        let now = listed(&file).await.map_err(unreadable(seq))?;
        for (key, old) in before.iter().filter(|(key, _)| !now.contains_key(*key)) {
            let early = old.last_ms + age - made.commit_ms;
            if early >= 0 {
                return Err(format!("retention: {key} is given up by commit {seq}, {early} ms too soon"));
            }
            let bytes = museum.ever.get(key).ok_or_else(|| format!("G7: {key} was never there"))?;
            let (_, lives) = decode(key, bytes.clone()).map_err(|e| format!("G7: {key}: {e:?}"))?;
            expired.insert(key.clone(), Gone { seq, lives });
        }
        before = now;
    }
    Ok(expired)
}

async fn listed(file: &QueueFile) -> bucketq::Result<BTreeMap<String, Archived>> {
    Ok(file.archives(None, 0).await?.objects.into_iter().map(|o| (o.key.clone(), o)).collect())
}

/// Readers can read expired objects until the floor has passed that commit (P15).
pub fn collected_too_soon(expired: &ExpiredArchives, bucket: &Bucket) -> Option<String> {
    bucket.archives_deleted.iter().find_map(|(key, floor)| {
        let seq = expired.get(key)?.seq;
        (*floor <= seq)
            .then(|| format!("P15: {key}, given up by commit {seq}, is deleted while the floor is {floor}"))
    })
}
