//! Changes how far the clocks of a queue file's processes may differ.
//!
//! Called by programs while nobody works. Every process keeps the value with which it opened the queue file, so the
//! newest state gets a lineage of its own, as in a restore: processes that still run halt instead of judging leases by
//! the old value (P23, P27).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;

use super::fix_time::{CONNECTIONS, publish, unreadable};
use super::image::Sound;
use super::restore::{RestoreTarget, Restoring};
use crate::bucket::base;
use crate::bucket::head::Head;
use crate::bucket::wire::corrupt;
use crate::bytes::store::{Store, StoreUrl, open_separately};
use crate::bytes::wrap::limited::CallLimit;
use crate::engine::catchup::{FetchError, Source};
use crate::noun::config::Options;
use crate::noun::env::Env;
use crate::noun::error::{Code, Error, Result};
use crate::noun::job::State;
use crate::noun::query::{Answer, Query};
use crate::state::db::{Db, Moment};
use crate::state::pages::{PAGE, PageFile};

/// How far clocks may differ, before and now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ChangedSkew {
    /// Before.
    pub was_ms: u32,
    /// Now.
    pub max_skew_ms: u32,
    /// The commit that changed it; none if it was so already.
    pub commit_seq: Option<u64>,
}

/// Changes `max_skew` of the queue file at `url`. Fails while a worker holds a job. Processes that still run halt with
/// `rolled_back` and open the queue file again.
pub async fn set_max_skew(url: &str, max_skew: Duration, options: Options) -> Result<ChangedSkew> {
    let env = Env::default();
    let url = StoreUrl::parse(url)?;
    let options = with(options, max_skew)?;
    let call_limit = CallLimit::new(&env, options.deadline);
    let changed = async {
        let stores = open_separately(&url, &options, &env, CONNECTIONS).await?;
        run(&call_limit, stores, url.name(), options, env).await
    };
    call_limit.run(&format!("changing max_skew of {}", url.name()), Box::pin(changed)).await
}

/// Does the same as [`set_max_skew`] in the given store, with the given clock.
pub async fn set_max_skew_with(
    store: Arc<dyn Store>,
    name: &str,
    max_skew: Duration,
    options: Options,
    env: Env,
) -> Result<ChangedSkew> {
    StoreUrl::check_name(name)?;
    let options = with(options, max_skew)?;
    let call_limit = CallLimit::new(&env, options.deadline);
    let changed = run(&call_limit, vec![store], name, options, env);
    call_limit.run(&format!("changing max_skew of {name}"), Box::pin(changed)).await
}

/// Returns the options with this one changed, if they are valid.
fn with(options: Options, max_skew: Duration) -> Result<Options> {
    // Never create a missing queue file.
    let options = Options { max_skew: Some(max_skew), create: false, ..options };
    options.check()?;
    if options.read_only {
        let text = "changing max_skew writes, and the option read_only forbids that";
        return Err(Error::new(Code::ReadOnly, text));
    }
    Ok(options)
}

async fn run(
    call_limit: &Arc<CallLimit>,
    stores: Vec<Arc<dyn Store>>,
    name: &str,
    options: Options,
    env: Env,
) -> Result<ChangedSkew> {
    let wanted = options.max_skew.unwrap_or_default().as_millis();
    let max_skew_ms = u32::try_from(wanted).unwrap_or(u32::MAX);
    let max_pages = u32::try_from(options.max_file / PAGE as u64).unwrap_or(u32::MAX - 1);
    let stores: Vec<_> = stores.into_iter().map(|store| call_limit.over_store(store)).collect();
    let mut restoring = Restoring::new(RestoreTarget::new(stores, name, options)?, env);
    restoring.call_limit = Arc::clone(call_limit);
    loop {
        let before = restoring.before().await?;
        let Some(head) = before.head.clone() else { return Err(unreadable(name)) };
        let was_ms = head.max_skew_ms;
        if was_ms == max_skew_ms {
            return Ok(ChangedSkew { was_ms, max_skew_ms, commit_seq: None });
        }
        let source = Source::new(restoring.store(), name.to_owned(), max_pages);
        let sound = match at_rest(&source, &head).await {
            Ok(sound) => sound,
            // Collected meanwhile, if HEAD has moved on (P18).
            Err(FetchError::Missing(_)) if restoring.before().await?.version != before.version => continue,
            Err(FetchError::Missing(key)) => {
                return Err(corrupt(&key, "HEAD refers to it, and it does not exist"));
            }
            Err(FetchError::Error(error)) => return Err(error),
        };
        let body = Bytes::from(base::encode(&sound.pages)?);
        let change = |head: &mut Head| head.max_skew_ms = max_skew_ms;
        if let Some(seq) = publish(&mut restoring, before, sound, body, change).await? {
            tracing::info!(name, was_ms, max_skew_ms, "changed max_skew of a queue file");
            return Ok(ChangedSkew { was_ms, max_skew_ms, commit_seq: Some(seq) });
        }
    }
}

/// Returns the state of this HEAD, if no worker holds a job in it.
async fn at_rest(source: &Source, head: &Head) -> Result<Sound, FetchError> {
    let (pages, _) = source.load(head).await?;
    let file = PageFile::new(pages);
    let mut db = Db::open(file.connect(source.max_pages)?)?;
    let at = Moment { now_ms: head.commit_ms, commit_seq: head.commit_seq };
    let Answer::Queues(queues) = db.query(&Query::Queues, &at)? else {
        return Err(Error::bug("this is no list of queues").into());
    };
    let leased: u64 = queues.iter().filter_map(|queue| queue.counts.get(&State::Leased)).sum();
    if leased > 0 {
        let text = format!(
            "workers hold {leased} {}, whose leases count with the present max_skew: drain the queues, or stop the workers and wait until their leases have run out and others have finished these jobs",
            if leased == 1 { "job" } else { "jobs" }
        );
        return Err(Error::new(Code::State, text).into());
    }
    Ok(Sound::of(&file, db, head)?)
}
