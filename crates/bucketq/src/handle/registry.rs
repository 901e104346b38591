//! One writer per process and queue file, however often it is opened: the registry of open doors, and how a writer is
//! started. Called by file.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};

use tokio::sync::{mpsc, oneshot, watch};

use crate::bytes::store::{Store, StoreUrl, open_separately, surroundings};
use crate::bytes::wrap::limited::CallLimit;
use crate::door::{Door, Info, Shared};
use crate::engine::local::Dir;
use crate::engine::writer::{Opening, ProvenStores, Writer};
use crate::fork::{self, PerProcess};
use crate::noun::config::{Host, Options};
use crate::noun::env::Env;
use crate::noun::error::{Code, Error, Result};
use crate::noun::settings::Setting;

/// Connections that the probe races.
const PROBE_CONNECTIONS: usize = 4;

/// An entry for one queue file in this process: concurrent opens of it take turns.
type SharedDoor = Arc<tokio::sync::Mutex<Weak<Door>>>;

static OPEN: PerProcess<HashMap<String, SharedDoor>> = PerProcess::new();

/// The stores that passed the probe in this process.
static PROVEN_STORES: PerProcess<Arc<ProvenStores>> = PerProcess::new();

type Stores = Pin<Box<dyn Future<Output = Result<Vec<Arc<dyn Store>>>> + Send>>;

/// Returns the door to the queue file at `url`, shared with every other handle of this process on it.
pub(crate) async fn open(url: &str, options: Options) -> Result<Arc<Door>> {
    options.check()?;
    let url = StoreUrl::parse(url)?;
    let call_limit = CallLimit::new(&Env::default(), options.deadline);
    let what = opening(url.name());
    call_limit.run(&what, open_shared(url, options, &call_limit)).await
}

async fn open_shared(url: StoreUrl, options: Options, call_limit: &Arc<CallLimit>) -> Result<Arc<Door>> {
    let entry = entry(&url, &options);
    let mut open = entry.lock().await;
    if let Some(door) = open.upgrade().filter(|d| !d.tx.is_closed() && !d.shared.is_dead()) {
        if *door.options != options {
            return Err(Error::new(
                Code::OptionsDiffer,
                format!(
                    "{} is open in this process already, with other options: {}",
                    url.name(),
                    Setting::differences(&door.options, &options)
                ),
            ));
        }
        return Ok(door);
    }
    let env = Env::default();
    let name = url.name().to_owned();
    let (for_stores, env_for_stores) = (options.clone(), env.clone());
    let stores: Stores =
        Box::pin(async move { open_separately(&url, &for_stores, &env_for_stores, PROBE_CONNECTIONS).await });
    let door = host(stores, name, options, env, Arc::clone(call_limit), proven_stores(), None).await?;
    *open = Arc::downgrade(&door);
    Ok(door)
}

/// Returns the stores that this process trusts.
fn proven_stores() -> Arc<ProvenStores> {
    PROVEN_STORES.with(|proven_stores| Arc::clone(proven_stores))
}

/// Opens a door to a queue file in this store; it is never shared.
pub(crate) async fn open_with(
    store: Arc<dyn Store>,
    name: &str,
    options: Options,
    env: Env,
    dir: Option<Arc<dyn Dir>>,
) -> Result<Arc<Door>> {
    options.check()?;
    StoreUrl::check_name(name)?;
    let stores: Stores = Box::pin(async move { Ok(vec![store]) });
    let call_limit = CallLimit::new(&env, options.deadline);
    let opened = host(stores, name.to_owned(), options, env, Arc::clone(&call_limit), Arc::default(), dir);
    call_limit.run(&opening(name), opened).await
}

fn opening(name: &str) -> String {
    format!("opening {name}")
}

fn entry(url: &StoreUrl, options: &Options) -> SharedDoor {
    // One directory must not get two writers because its URL was written in two ways. A read-only handle is no writer
    // and may exist beside one. And the same URL must not mean two servers when the environment changes.
    let around = surroundings(url, options);
    let place = format!("{:?} {:?} {} {around}", url.resolved(), options.s3.endpoint, options.read_only);
    OPEN.with(|map| {
        // Drop entries that no handle uses and nobody is opening.
        map.retain(|_, e| {
            Arc::strong_count(e) > 1 || e.try_lock().map_or(true, |door| door.strong_count() > 0)
        });
        Arc::clone(map.entry(place).or_default())
    })
}

/// Starts a writer where the options say, and waits until it is open.
async fn host(
    stores: Stores,
    name: String,
    options: Options,
    env: Env,
    call_limit: Arc<CallLimit>,
    proven_stores: Arc<ProvenStores>,
    dir: Option<Arc<dyn Dir>>,
) -> Result<Arc<Door>> {
    let began = env.monotonic();
    let (tx, rx) = mpsc::unbounded_channel();
    let wake = tx.downgrade();
    let (opened_tx, opened_rx) = oneshot::channel::<Result<Info>>();
    let (ended_tx, ended) = watch::channel(false);
    let (shared, options) = (Shared::fresh(), Arc::new(options));
    let on_thread = options.host == Host::OwnThread;
    let thread_name = format!("bucketq {name}");
    let (for_shared, for_options, for_env) = (Arc::clone(&shared), Arc::clone(&options), env.clone());
    // SQLite's own locks belong to all connections of the process: no fork happens while one of them is held.
    let life = fork::stepwise(async move {
        let what = opening(&name);
        let for_opening = Arc::clone(&call_limit);
        let opened = async {
            let stores = stores.await?;
            Writer::open(Opening {
                stores,
                name,
                options: for_options,
                env: for_env,
                rx,
                wake,
                shared: for_shared,
                call_limit: for_opening,
                proven_stores,
                dir,
            })
            .await
        };
        match call_limit.run(&what, opened).await {
            Ok(writer) => {
                writer.set_unsynced();
                if opened_tx.send(Ok(writer.info())).is_ok() {
                    writer.run(ended_tx).await;
                }
            }
            Err(error) => {
                let _ = opened_tx.send(Err(error));
            }
        }
    });
    if on_thread {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .on_thread_start(fork::apart)
            .build()
            .map_err(|e| Error::exhausted("the writer's runtime cannot be started", &e))?;
        std::thread::Builder::new()
            .name(thread_name)
            .spawn(move || {
                fork::apart();
                runtime.block_on(life);
            })
            .map_err(|e| Error::exhausted("the writer's thread cannot be started", &e))?;
    } else {
        tokio::spawn(life);
    }
    let info = opened_rx.await.unwrap_or_else(|_| Err(Error::bug("the writer ended while it was opened")))?;
    Ok(Arc::new(Door { tx, shared, options, env, info, began, ended }))
}
