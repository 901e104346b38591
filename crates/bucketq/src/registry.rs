//! One writer per process and queue file, however often it is opened: the registry of open doors, and how a writer is
//! hosted. Called by file.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{mpsc, oneshot, watch};

use crate::config::{Host, Options};
use crate::door::{Door, Info, Shared};
use crate::env::Env;
use crate::error::{Code, Error, Result};
use crate::local::Dir;
use crate::store::{Store, StoreUrl, open_separately};
use crate::writer::{Opening, Writer};

/// Connections the probe races over.
const PROBE_CONNECTIONS: usize = 4;

/// A queue file as this process knows it: openings of the same one take turns.
type Entry = Arc<tokio::sync::Mutex<Weak<Door>>>;

static OPEN: Mutex<Option<HashMap<(u32, String), Entry>>> = Mutex::new(None);

type Stores = Pin<Box<dyn Future<Output = Result<Vec<Arc<dyn Store>>>> + Send>>;

/// The door to the queue file at `url`, shared with every other handle of this process on it.
pub(crate) async fn open(url: &str, options: Options) -> Result<Arc<Door>> {
    options.check()?;
    let url = StoreUrl::parse(url)?;
    let entry = entry(&url, &options);
    let mut open = entry.lock().await;
    if let Some(door) = open.upgrade().filter(|d| !d.tx.is_closed() && !d.shared.is_dead()) {
        if *door.options != options {
            return Err(Error::new(
                Code::OptionsDiffer,
                format!("{} is open in this process already, with other options", url.name()),
            ));
        }
        return Ok(door);
    }
    let env = Env::default();
    let name = url.name().to_owned();
    let (for_stores, env_for_stores) = (options.clone(), env.clone());
    let stores: Stores =
        Box::pin(async move { open_separately(&url, &for_stores, &env_for_stores, PROBE_CONNECTIONS).await });
    let door = host(stores, name, options, env, None).await?;
    *open = Arc::downgrade(&door);
    Ok(door)
}

/// The door to a queue file in this store; never shared.
pub(crate) async fn open_with(
    store: Arc<dyn Store>,
    name: &str,
    options: Options,
    env: Env,
    dir: Option<Arc<dyn Dir>>,
) -> Result<Arc<Door>> {
    options.check()?;
    StoreUrl::check_name(name)?;
    host(Box::pin(async move { Ok(vec![store]) }), name.to_owned(), options, env, dir).await
}

fn entry(url: &StoreUrl, options: &Options) -> Entry {
    // One directory must not get two writers because it was written in two ways. Who only looks is no writer, and may do
    // so beside one.
    let place = format!("{:?} {:?} {}", url.resolved(), options.s3.endpoint, options.read_only);
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    let map = open.get_or_insert_default();
    // What nobody holds open or is opening any more goes.
    map.retain(|_, e| Arc::strong_count(e) > 1 || e.try_lock().map_or(true, |door| door.strong_count() > 0));
    Arc::clone(map.entry((std::process::id(), place)).or_default())
}

/// Start a writer where the options say, and wait until it is open.
async fn host(
    stores: Stores,
    name: String,
    options: Options,
    env: Env,
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
    let life = async move {
        let opening = async {
            let stores = stores.await?;
            Writer::open(Opening {
                stores,
                name,
                options: for_options,
                env: for_env,
                rx,
                wake,
                shared: for_shared,
                dir,
            })
            .await
        };
        match opening.await {
            Ok(writer) => {
                writer.tell_pending();
                if opened_tx.send(Ok(writer.info())).is_ok() {
                    writer.run(ended_tx).await;
                }
            }
            Err(error) => {
                let _ = opened_tx.send(Err(error));
            }
        }
    };
    if on_thread {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| Error::new(Code::Internal, "no runtime for the writer").because(e))?;
        std::thread::Builder::new()
            .name(thread_name)
            .spawn(move || runtime.block_on(life))
            .map_err(|e| Error::new(Code::Internal, "no thread for the writer").because(e))?;
    } else {
        tokio::spawn(life);
    }
    let info = opened_rx
        .await
        .unwrap_or_else(|_| Err(Error::new(Code::Internal, "the writer ended while it was opened")))?;
    Ok(Arc::new(Door { tx, shared, options, env, info, began, ended }))
}
