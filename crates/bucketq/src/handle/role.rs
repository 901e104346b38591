//! The life of a process on a queue file: it writes for itself and for the other processes of its host, or sends its ops
//! to the one that does, and changes from the second to the first when that one is lost.
//!
//! Started by registry, one for each open queue file. Which process writes decides only how fast it is.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};

use crate::bytes::store::Store;
use crate::bytes::wrap::limited::CallLimit;
use crate::door::{self, Inbox, Info, Mail, Shared};
use crate::engine::local::Dir;
use crate::engine::writer::{Opening, ProvenStores, Writer};
#[cfg(unix)]
use crate::host::{Exporter, Forwarder, Introduction, Joined, Leader, MeetingPlace, Parted, Role, Seat};
use crate::noun::config::Options;
use crate::noun::env::Env;
use crate::noun::error::{Error, Kind, Result};

/// Opens the store of a queue file, once for each writer of this process.
pub(super) type Stores = Arc<dyn Fn() -> OpenedStores + Send + Sync>;
/// The store, over one connection or several.
pub(super) type OpenedStores = Pin<Box<dyn Future<Output = Result<Vec<Arc<dyn Store>>>> + Send>>;

/// First and longest pause before a writer that takes over opens the queue file again.
const AGAIN: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// Where and how the processes of this host share a writer.
#[cfg(unix)]
pub(super) struct HostSharing {
    pub place: MeetingPlace,
    pub introduction: Introduction,
    pub exporter: Exporter,
}

/// Everything that a process needs to serve a mailbox.
pub(super) struct Serving {
    pub stores: Stores,
    pub name: String,
    pub options: Arc<Options>,
    pub env: Env,
    pub wake: mpsc::WeakUnboundedSender<Mail>,
    pub shared: Arc<Shared>,
    pub proven_stores: Arc<ProvenStores>,
    pub dir: Option<Arc<dyn Dir>>,
    /// The limit of the call that opens the queue file.
    pub call_limit: Arc<CallLimit>,
    /// Gets the outcome of that call.
    pub opened: Option<oneshot::Sender<Result<Info>>>,
    pub ended: watch::Sender<bool>,
    /// Ends when the last handle of this process is gone.
    pub handles: watch::Receiver<()>,
}

/// The mailbox of a process whose role is open, with what belongs to it.
#[cfg(unix)]
enum BetweenRoles {
    /// It was never sent to another process, or not in this session.
    New(Inbox, [u8; 16]),
    /// A leader was lost: ops without a final result go to the next one.
    Joined(Box<Forwarder>),
}

#[cfg(unix)]
impl BetweenRoles {
    fn session(&self) -> [u8; 16] {
        match self {
            Self::New(_, session) => *session,
            Self::Joined(forwarder) => forwarder.session(),
        }
    }

    fn into_inbox(self) -> Inbox {
        match self {
            Self::New(inbox, _) => inbox,
            Self::Joined(forwarder) => forwarder.into_inbox(),
        }
    }

    fn into_forwarder(self, life: &Serving, sharing: &HostSharing, born: u64) -> Forwarder {
        match self {
            Self::New(inbox, session) => {
                let (options, shared) = (Arc::clone(&life.options), Arc::clone(&life.shared));
                let exporter = Arc::clone(&sharing.exporter);
                Forwarder::new(inbox, exporter, options, shared, life.env.clone(), session, born)
            }
            Self::Joined(forwarder) => *forwarder,
        }
    }
}

impl Serving {
    /// Serves the mailbox with a writer of this process.
    pub async fn alone(mut self, rx: mpsc::UnboundedReceiver<Mail>) {
        self.write(Inbox { rx, mail: VecDeque::new() }, None).await;
    }

    /// Serves the mailbox through the writer of this host, which may be one of this process.
    #[cfg(unix)]
    pub async fn share(mut self, rx: mpsc::UnboundedReceiver<Mail>, sharing: HostSharing) {
        self.shared.set_host_dir(sharing.place.dir());
        let mut part = BetweenRoles::New(Inbox { rx, mail: VecDeque::new() }, self.env.bytes());
        loop {
            let role = self.find_role(&sharing, part.session()).await;
            part = match role {
                Role::Joined(joined) => {
                    self.joined(&joined);
                    let mut forwarder = part.into_forwarder(&self, &sharing, joined.welcome.born);
                    match forwarder.run(*joined).await {
                        Parted::Closed => {
                            self.shared.watchers.end();
                            let _ = self.ended.send(true);
                            return;
                        }
                        Parted::Lost(reason) => {
                            tracing::info!(
                                name = self.name,
                                reason,
                                "the process that wrote for this host is lost"
                            );
                        }
                    }
                    BetweenRoles::Joined(Box::new(forwarder))
                }
                Role::Lead(seat) => match self.lead(part.into_inbox(), *seat, &sharing).await {
                    Some(inbox) => BetweenRoles::New(inbox, self.env.bytes()),
                    None => return,
                },
                Role::Alone(reason) => {
                    self.apart(reason);
                    self.write(part.into_inbox(), None).await;
                    return;
                }
            };
        }
    }

    #[cfg(unix)]
    async fn find_role(&self, sharing: &HostSharing, session: [u8; 16]) -> Role {
        let finding = crate::host::find_role(&sharing.place, &sharing.introduction, session, &self.env);
        if self.opened.is_none() {
            return finding.await;
        }
        let found = self.call_limit.run(&opening(&self.name), async { Ok(finding.await) }).await;
        found.unwrap_or_else(|error| Role::Alone(error.message().to_owned()))
    }

    /// Notes why this process writes for itself only.
    pub(super) fn apart(&self, reason: String) {
        tracing::warn!(name = self.name, reason, "this process writes without the others of this host");
        self.shared.set_part(door::HostPart::Alone(Some(reason)));
    }

    #[cfg(unix)]
    fn joined(&mut self, joined: &Joined) {
        let welcome = &joined.welcome;
        let now = self.env.monotonic();
        let since = now.checked_sub(Duration::from_millis(welcome.since_ms)).unwrap_or(now);
        // Before the call that opens the queue file returns.
        self.shared.set_part(door::HostPart::Joined { leader: welcome.process.clone(), since });
        let (file_id, max_skew_ms) = (welcome.file_id, welcome.max_skew_ms);
        if let Some(opened) = self.opened.take() {
            let _ = opened.send(Ok(Info { file_id, max_skew_ms, directory: None }));
        }
        let leader = &welcome.process;
        tracing::info!(name = self.name, leader, "another process of this host writes for this one");
    }

    /// Writes for this process and for the others of the host.
    #[cfg(unix)]
    async fn lead(&mut self, inbox: Inbox, seat: Seat, sharing: &HostSharing) -> Option<Inbox> {
        let (info, for_others) = watch::channel(None);
        let leader = Leader {
            mail: self.wake.clone(),
            handles: self.handles.clone(),
            info: for_others,
            shared: Arc::clone(&self.shared),
            options: Arc::clone(&self.options),
            place: sharing.place.clone(),
            introduction: sharing.introduction.clone(),
            env: self.env.clone(),
            ended: self.ended.subscribe(),
        };
        let number = seat.number();
        match crate::host::start(seat, leader) {
            Ok(()) => {
                tracing::info!(
                    name = self.name,
                    seat = number,
                    "this process writes for the others of this host"
                );
                self.shared.set_part(door::HostPart::Leads(self.env.monotonic()));
                self.write(inbox, Some(info)).await
            }
            Err(error) => {
                self.apart(error.to_string());
                self.write(inbox, None).await
            }
        }
    }

    /// Opens a writer, and serves the mailbox with it. A writer that takes over opens again while the store fails.
    /// Returns the mailbox if another process is to write for this one.
    async fn write(&mut self, inbox: Inbox, info: Option<watch::Sender<Option<Info>>>) -> Option<Inbox> {
        let mut inbox = Some(inbox);
        let mut tries = 0;
        let takes_over = self.opened.is_none();
        loop {
            let error = match self.open(&mut inbox).await {
                Ok(writer) => {
                    writer.set_unsynced();
                    let found = writer.info();
                    // Kept until the writer has ended.
                    if let Some(info) = &info {
                        info.send_replace(Some(found.clone()));
                    }
                    let left = self.opened.take().is_some_and(|opened| opened.send(Ok(found)).is_err());
                    return if left { None } else { writer.run(self.ended.clone()).await };
                }
                Err(error) => error,
            };
            if let Some(opened) = self.opened.take() {
                let _ = opened.send(Err(error));
                return None;
            }
            let closed = inbox.as_ref().is_none_or(|inbox| inbox.rx.is_closed());
            if !takes_over || closed || !matches!(error.kind(), Kind::Unavailable | Kind::Contended) {
                self.shared.die();
                refuse(inbox, &error);
                let _ = self.ended.send(true);
                return None;
            }
            tracing::warn!(name = self.name, %error, "the writer of this host is lost and the queue file cannot be opened; trying again");
            self.shared.trouble(Some(error));
            if let Some(inbox) = &mut inbox {
                inbox.drop_gone();
            }
            let pause = AGAIN.0.saturating_mul(1 << tries.min(8)).min(AGAIN.1);
            tries += 1;
            self.env.sleep(pause).await;
        }
    }

    async fn open(&self, inbox: &mut Option<Inbox>) -> Result<Writer> {
        let call_limit = match self.opened {
            Some(_) => Arc::clone(&self.call_limit),
            None => CallLimit::new(&self.env, self.options.deadline),
        };
        let for_opening = Arc::clone(&call_limit);
        let seen = self.shared.newest();
        let opened = async {
            let stores = (self.stores)().await?;
            Writer::open(Opening {
                stores,
                name: self.name.clone(),
                options: Arc::clone(&self.options),
                env: self.env.clone(),
                inbox,
                wake: self.wake.clone(),
                shared: Arc::clone(&self.shared),
                call_limit: for_opening,
                proven_stores: Arc::clone(&self.proven_stores),
                dir: self.dir.clone(),
                seen,
            })
            .await
        };
        call_limit.run(&opening(&self.name), opened).await
    }
}

/// Fails everything that waits.
fn refuse(inbox: Option<Inbox>, error: &Error) {
    let Some(Inbox { mut rx, mail }) = inbox else { return };
    rx.close();
    let arrived = std::iter::from_fn(|| rx.try_recv().ok());
    for mail in mail.into_iter().chain(arrived) {
        mail.refuse(error);
    }
}

/// Returns the name of the call that opens a queue file.
pub(super) fn opening(name: &str) -> String {
    format!("opening {name}")
}
