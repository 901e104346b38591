//! One writer per process and queue file, however often it is opened: the registry of open doors, and how a writer is
//! started. Called by file.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{mpsc, oneshot, watch};

use crate::bytes::store::{FoundStore, Place, Store, StoreUrl, find_store, open_separately, surroundings};
use crate::bytes::wrap::limited::CallLimit;
use crate::door::{Door, Export, Info, Shared};
use crate::engine::local::Dir;
use crate::engine::writer::ProvenStores;
use crate::fork::{self, PerProcess};
use crate::handle::role::{HostSharing, Serving, Stores, opening};
#[cfg(unix)]
use crate::host::proof::Credential;
#[cfg(unix)]
use crate::host::{Exporter, Introduction, MeetingPlace};
use crate::noun::config::{Host, Mode, Options, S3Options};
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

/// Returns the door to the queue file at `url`, shared with every other handle of this process on it.
pub(crate) async fn open(url: &str, options: Options) -> Result<Arc<Door>> {
    options.check()?;
    let url = StoreUrl::parse(url)?;
    let call_limit = CallLimit::new(&Env::default(), options.deadline);
    let called = opening(url.name());
    call_limit.run(&called, Box::pin(open_shared(url, options, &call_limit))).await
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
    let found = find_store(&url, &options).await?;
    let (name, sharing) = (url.name().to_owned(), sharing(&found, &options, &env));
    let (for_stores, env_for_stores) = (options.clone(), env.clone());
    // The first writer opens the store that was found here, a later one what the environment then says.
    let found = Arc::new(Mutex::new(Some(found)));
    let stores: Stores = Arc::new(move || {
        let (url, options, env) = (url.clone(), for_stores.clone(), env_for_stores.clone());
        let found = found.lock().unwrap_or_else(PoisonError::into_inner).take();
        Box::pin(async move {
            match found {
                Some(found) => found.open(&options, &env, PROBE_CONNECTIONS),
                None => open_separately(&url, &options, &env, PROBE_CONNECTIONS).await,
            }
        })
    });
    let hosted = Hosted { stores, name, options, env, proven_stores: proven_stores(), dir: None };
    let door = host(hosted, Arc::clone(call_limit), sharing).await?;
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
    let stores: Stores = Arc::new(move || {
        let store = Arc::clone(&store);
        Box::pin(async move { Ok(vec![store]) })
    });
    let call_limit = CallLimit::new(&env, options.deadline);
    let name = name.to_owned();
    let called = opening(&name);
    let hosted = Hosted { stores, name, options, env, proven_stores: Arc::default(), dir };
    let opened = host(hosted, Arc::clone(&call_limit), Ok(None));
    call_limit.run(&called, opened).await
}

/// Returns where the processes of this host share a writer of the queue file, if they do.
#[cfg(unix)]
fn sharing(found: &FoundStore, options: &Options, env: &Env) -> Result<Option<HostSharing>> {
    let shared = options.share
        && options.mode == Mode::Durable
        && !options.read_only
        && options.host == Host::OwnThread
        && !matches!(found.url().place(), Place::Memory);
    if !shared {
        return Ok(None);
    }
    let place = found.place();
    let meeting_place = MeetingPlace::find(options.host_dir.as_deref(), &place)?;
    let shape = shape(options);
    let credential = Credential::of(found);
    let process = format!("process {}", std::process::id());
    let introduction = Introduction { place, shape, credential, process };
    let exporter = exporter(found.url().clone(), options.clone(), env.clone());
    Ok(Some(HostSharing { place: meeting_place, introduction, exporter }))
}

/// Processes share no writer on this system.
#[cfg(not(unix))]
fn sharing(_: &FoundStore, _: &Options, _: &Env) -> Result<Option<HostSharing>> {
    Ok(None)
}

/// Returns the options that all processes with one writer must have in common, as text without secrets.
fn shape(options: &Options) -> String {
    let S3Options { endpoint, region, path_style, checksum, .. } = &options.s3;
    format!(
        "{endpoint:?} {region:?} {path_style:?} {checksum:?} {} {:?} {:?}",
        options.max_file, options.base_codec, options.cache
    )
}

/// Returns the way to write an export without the writer of another process, which does not know this one's paths.
#[cfg(unix)]
fn exporter(url: StoreUrl, options: Options, env: Env) -> Exporter {
    Arc::new(move |export: Export| {
        let (url, env) = (url.clone(), env.clone());
        let options =
            Options { read_only: true, create: false, host: Host::CurrentRuntime, ..options.clone() };
        tokio::spawn(async move {
            let Export { path, replace, reply, .. } = export;
            let name = url.name().to_owned();
            let call_limit = CallLimit::new(&env, options.deadline);
            let (for_stores, env_for_stores) = (options.clone(), env.clone());
            let stores: Stores = Arc::new(move || {
                let (url, options, env) = (url.clone(), for_stores.clone(), env_for_stores.clone());
                Box::pin(async move { open_separately(&url, &options, &env, 1).await })
            });
            let hosted = Hosted { stores, name, options, env, proven_stores: proven_stores(), dir: None };
            match host(hosted, call_limit, Ok(None)).await {
                Ok(door) => {
                    drop(reply.send(Ok(tokio::spawn(async move { door.export(path, replace).await }))));
                }
                Err(error) => drop(reply.send(Err(error))),
            }
        });
    })
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

/// The arguments of [`host`].
struct Hosted {
    stores: Stores,
    name: String,
    options: Options,
    env: Env,
    proven_stores: Arc<ProvenStores>,
    dir: Option<Arc<dyn Dir>>,
}

/// Begins to serve a queue file where the options say, and waits until it is open.
async fn host(
    hosted: Hosted,
    call_limit: Arc<CallLimit>,
    sharing: Result<Option<HostSharing>>,
) -> Result<Arc<Door>> {
    let Hosted { stores, name, options, env, proven_stores, dir } = hosted;
    let began = env.monotonic();
    let (tx, rx) = mpsc::unbounded_channel();
    let wake = tx.downgrade();
    let (opened_tx, opened_rx) = oneshot::channel::<Result<Info>>();
    let (ended_tx, ended) = watch::channel(false);
    let (handles, for_life) = watch::channel(());
    let (shared, options) = (Shared::fresh(), Arc::new(options));
    let on_thread = options.host == Host::OwnThread;
    let thread_name = format!("bucketq {name}");
    let life = Serving {
        stores,
        name,
        options: Arc::clone(&options),
        env: env.clone(),
        wake,
        shared: Arc::clone(&shared),
        proven_stores,
        dir,
        call_limit,
        opened: Some(opened_tx),
        ended: ended_tx,
        handles: for_life,
    };
    // SQLite's own locks belong to all connections of the process: no fork happens while one of them is held.
    let life = fork::stepwise(async move {
        match sharing {
            #[cfg(unix)]
            Ok(Some(sharing)) => life.share(rx, sharing).await,
            Ok(_) => life.alone(rx).await,
            Err(error) => {
                life.apart(error.message().to_owned());
                life.alone(rx).await;
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
    Ok(Arc::new(Door { tx, shared, options, env, info, began, ended, handles }))
}
