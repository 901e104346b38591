//! Fixes the time of a queue file whose newest commit is ahead of the present, because a writer's clock was.
//!
//! Called by programs when every writer fails with `clock_skew`. Publishes the newest state with its times moved back,
//! in a lineage of its own, as a restore does: time goes backwards, which no commit of a lineage may do (P23, P27).

use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;

use super::image::Sound;
use super::restore::{Before, RestoreTarget, Restoring, Sent};
use crate::bucket::head::Head;
use crate::bucket::wire::corrupt;
use crate::bucket::{base, keys};
use crate::bytes::store::{Expect, Store, StoreUrl, open_separately};
use crate::bytes::wrap::limited::CallLimit;
use crate::engine::catchup::{FetchError, Source};
use crate::noun::config::Options;
use crate::noun::env::Env;
use crate::noun::error::{Code, Error, Result};
use crate::state::db::{BroughtBack, Db, Limits};
use crate::state::pages::{PAGE, PageFile};

/// Connections used to ask the store for its time.
pub(super) const CONNECTIONS: usize = 4;

/// The time of a queue file, and what was changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FixedTime {
    /// The time of the commit that was the newest.
    pub was_ms: i64,
    /// The present, on which this machine's clock and the store agree.
    pub now_ms: i64,
    /// The newest commit is further ahead of the present than clocks may differ. If not, nothing is changed.
    pub ahead: bool,
    /// The commit that fixed it; none if nothing had to be changed, or with `only_look`.
    pub commit_seq: Option<u64>,
    /// Leases that end earlier than before.
    pub leases: u64,
    /// Jobs that had a time after the present, leased ones included.
    pub jobs: u64,
    /// Schedules whose next time is earlier than before.
    pub schedules: u64,
}

/// Moves the time of the queue file at `url` back to the present, if its newest commit is ahead of it. No job is lost.
/// With `only_look` it writes nothing. A second call changes nothing.
///
/// Stop the writer whose clock is wrong first. The others halt with `rolled_back` and open the queue file again.
pub async fn fix_time(url: &str, only_look: bool, options: Options) -> Result<FixedTime> {
    let env = Env::default();
    let url = StoreUrl::parse(url)?;
    options.check()?;
    let call_limit = CallLimit::new(&env, options.deadline);
    let fixed = async {
        let stores = open_separately(&url, &options, &env, CONNECTIONS).await?;
        run(&call_limit, stores, url.name(), only_look, options, env).await
    };
    call_limit.run(&format!("fixing the time of {}", url.name()), Box::pin(fixed)).await
}

/// Does the same as [`fix_time`] in the given store, with the given clock.
pub async fn fix_time_with(
    store: Arc<dyn Store>,
    name: &str,
    only_look: bool,
    options: Options,
    env: Env,
) -> Result<FixedTime> {
    StoreUrl::check_name(name)?;
    options.check()?;
    let call_limit = CallLimit::new(&env, options.deadline);
    let fixed = run(&call_limit, vec![store], name, only_look, options, env);
    call_limit.run(&format!("fixing the time of {name}"), Box::pin(fixed)).await
}

async fn run(
    call_limit: &Arc<CallLimit>,
    stores: Vec<Arc<dyn Store>>,
    name: &str,
    only_look: bool,
    mut options: Options,
    env: Env,
) -> Result<FixedTime> {
    if options.read_only && !only_look {
        return Err(Error::new(Code::ReadOnly, "fix_time writes, and the option read_only forbids that"));
    }
    // Never create a missing queue file.
    options.create = false;
    let max_pages = u32::try_from(options.max_file / PAGE as u64).unwrap_or(u32::MAX - 1);
    let limits = Limits { max_payload: options.max_payload, max_pages };
    let stores: Vec<_> = stores.into_iter().map(|store| call_limit.over_store(store)).collect();
    let mut restoring = Restoring::new(RestoreTarget::new(stores, name, options)?, env);
    restoring.call_limit = Arc::clone(call_limit);
    loop {
        let before = restoring.before().await?;
        let Some(head) = before.head.clone() else {
            return Err(unreadable(name));
        };
        let now_ms = restoring.now_ms().await?;
        let mut done = FixedTime {
            was_ms: head.commit_ms,
            now_ms,
            ahead: restoring.is_ahead(head.commit_ms, now_ms),
            commit_seq: None,
            leases: 0,
            jobs: 0,
            schedules: 0,
        };
        if !done.ahead || only_look {
            return Ok(done);
        }
        let source = Source::new(restoring.store(), name.to_owned(), max_pages);
        let (sound, brought) = match brought_back(&source, &head, now_ms, limits).await {
            Ok(brought) => brought,
            // Collected meanwhile, if HEAD has moved on (P18).
            Err(FetchError::Missing(key)) if !restoring.is_late() => {
                let now = restoring.before().await?;
                if now.version == before.version {
                    return Err(corrupt(&key, "HEAD refers to it, and it does not exist"));
                }
                continue;
            }
            Err(FetchError::Missing(key)) => {
                return Err(corrupt(&key, "HEAD refers to it, and it does not exist"));
            }
            Err(FetchError::Error(error)) => return Err(error),
        };
        let body = Bytes::from(base::encode(&sound.pages)?);
        if let Some(fixed) = publish(&mut restoring, before, sound, body, |_| {}).await? {
            tracing::info!(name, commit_seq = fixed, "brought the time of a queue file back to the present");
            let BroughtBack { leases, jobs, schedules } = brought;
            done = FixedTime { commit_seq: Some(fixed), leases, jobs, schedules, ..done };
            return Ok(done);
        }
    }
}

pub(super) fn unreadable(name: &str) -> Error {
    let text = format!(
        "{} cannot be read, so the time of the queue file is unknown: restore the queue file",
        keys::head(name)
    );
    Error::new(Code::Corrupt, text)
}

/// Replaces the state that was read, with a changed HEAD; returns none if another commit was faster.
pub(super) async fn publish(
    restoring: &mut Restoring,
    before: Before,
    sound: Sound,
    body: Bytes,
    change: impl FnOnce(&mut Head) + Send,
) -> Result<Option<u64>> {
    restoring.take(sound, body);
    let (known, _) = restoring.known(before.head.as_ref()).await?;
    let mut head = restoring.next(&before, known).await?;
    change(&mut head);
    let expect = before.version.map_or(Expect::Absent, Expect::Is);
    match restoring.send(&head, &expect).await? {
        Sent::Stored => Ok(Some(head.commit_seq)),
        Sent::Lost if restoring.is_late() => {
            let what = "other writers committed during every try: stop them first";
            Err(Error::new(Code::Contended, what))
        }
        Sent::Lost => {
            restoring.pause().await;
            Ok(None)
        }
    }
}

/// Returns the state of this HEAD with its times moved back.
async fn brought_back(
    source: &Source,
    head: &Head,
    now_ms: i64,
    limits: Limits,
) -> Result<(Sound, BroughtBack), FetchError> {
    let (pages, _) = source.load(head).await?;
    let file = PageFile::new(pages);
    let mut db = Db::open(file.connect(source.max_pages)?)?;
    let ahead_ms = head.commit_ms.saturating_sub(now_ms);
    let brought = db.bring_back(now_ms, ahead_ms, &limits)?;
    Ok((Sound::of(&file, db, head)?, brought))
}
