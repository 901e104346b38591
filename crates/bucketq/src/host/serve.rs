//! The leader's side: accepts the other processes of this host, and puts their requests into the writer's mailbox.
//!
//! It runs on a thread of its own, so that heartbeats leave while the writer is busy. It never decides anything about an
//! op.

use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::hello::{self, BEAT, Introduction, SILENCE};
use super::place::{MeetingPlace, SEATS, Seat};
use super::served::{LEAVING, Served};
use super::socket::Socket;
use super::stream::Connection;
use crate::door::{Door, Info, Mail, Shared, millis};
use crate::fork;
use crate::noun::config::Options;
use crate::noun::env::Env;
use crate::noun::error::{Code, Error, Result};
use crate::noun::session::SessionId;

/// Most connections at the same time; further processes write directly.
const CONNECTIONS: usize = 512;
/// Most requests of one connection without a reply ...
pub(super) const CREDIT: u32 = 16 * 1_024;
/// ... and most bytes of their ops, beyond one op of any size.
pub(super) const CREDIT_BYTES: u64 = 8 * 1024 * 1024;
/// Largest message: an op that enqueues millions of jobs. Memory is taken for bytes that have arrived only.
pub(super) const LARGEST: usize = 1024 * 1024 * 1024;
/// The pause after a connection could not be accepted, for lack of descriptors.
const NO_DESCRIPTORS: Duration = Duration::from_millis(100);
/// How often a leader looks whether another process has taken over, beside the times after it was stopped itself.
const SUCCESSOR: Duration = Duration::from_secs(5);

/// The state that the leader's connections share with its writer.
pub(crate) struct Leader {
    /// The mailbox. It does not keep the writer alive.
    pub mail: mpsc::WeakUnboundedSender<Mail>,
    /// Ends when the last handle of this process is gone.
    pub handles: watch::Receiver<()>,
    /// The queue file, once it is open.
    pub info: watch::Receiver<Option<Info>>,
    pub shared: Arc<Shared>,
    pub options: Arc<Options>,
    pub place: MeetingPlace,
    pub introduction: Introduction,
    pub env: Env,
    /// Becomes true when the writer has ended.
    pub ended: watch::Receiver<bool>,
}

impl Leader {
    /// Returns a door to the writer for one request, unless the writer has ended.
    pub fn door(&self) -> Option<Arc<Door>> {
        let info = self.info.borrow().clone()?;
        Some(Arc::new(Door {
            tx: self.mail.upgrade()?,
            shared: Arc::clone(&self.shared),
            options: Arc::clone(&self.options),
            env: self.env.clone(),
            info,
            began: self.env.monotonic(),
            ended: self.ended.clone(),
            handles: watch::Sender::new(()),
        }))
    }
}

impl Leader {
    /// Lets the writer hand its mailbox to the next leader, which may be one of this process.
    fn resign(&self) {
        if let Some(mail) = self.mail.upgrade() {
            let _ = mail.send(Mail::Resign);
        }
    }
}

/// Starts to serve the other processes of the host. It ends when the writer or its last handle is gone.
pub(crate) fn start(seat: Seat, leader: Leader) -> Result<()> {
    let listener = UnixListener::bind(seat.socket());
    let listener =
        listener.and_then(|listener| listener.set_nonblocking(true).map(|()| listener)).map_err(|e| {
            Error::new(Code::Disk, "the socket for the other processes cannot be made").because(e)
        })?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Error::exhausted("the runtime for the other processes cannot be started", &e))?;
    let serve = async move {
        serve(Socket::new(listener)?, seat, Arc::new(leader)).await;
        Ok::<_, std::io::Error>(())
    };
    std::thread::Builder::new()
        .name("bucketq host".to_owned())
        .spawn(move || {
            fork::apart();
            if let Err(error) = runtime.block_on(fork::stepwise(serve)) {
                tracing::warn!(%error, "the other processes of this host cannot be served");
            }
            // Requests of the other processes may still run, such as a collection.
            runtime.shutdown_background();
        })
        .map_err(|e| Error::exhausted("the thread for the other processes cannot be started", &e))?;
    Ok(())
}

async fn serve(listener: Socket<UnixListener>, seat: Seat, leader: Arc<Leader>) {
    let since = leader.env.monotonic();
    let open = Arc::new(AtomicUsize::new(0));
    let mut handles = leader.handles.clone();
    let mut info = leader.info.clone();
    let (alive, mut all_ended) = mpsc::channel::<()>(1);
    let (mut looked, mut awake) = (since, since);
    let (leave, leaving) = watch::channel(());
    leader.place.tidy(leader.env.wall_ms());
    loop {
        // A writer that has stopped for good leads nobody.
        if leader.shared.is_dead() {
            break;
        }
        let now = leader.env.monotonic();
        if now >= looked + SUCCESSOR || now >= awake + SILENCE {
            looked = now;
            if (seat.number() + 1..SEATS).any(|higher| matches!(leader.place.is_taken(higher), Ok(true))) {
                tracing::info!("another process of this host has taken over while this one was stopped");
                leader.resign();
                break;
            }
        }
        awake = now;
        if !seat.is_found() {
            tracing::info!("the files by which other processes find this one were deleted");
            leader.resign();
            break;
        }
        let accepted = tokio::select! {
            biased;
            () = leader.env.sleep(BEAT) => continue,
            _ = handles.changed() => break,
            changed = info.changed() => {
                // The opening has failed, or the writer has ended.
                if changed.is_err() { break }
                continue;
            }
            accepted = listener.accept() => accepted,
        };
        let connection = accepted
            .map_err(|e| Error::new(Code::Internal, "it cannot be accepted").because(e))
            .and_then(|stream| Connection::new(stream, &leader.env));
        match connection {
            Ok(connection) => {
                let (leader, open, alive) = (Arc::clone(&leader), Arc::clone(&open), alive.clone());
                let leaving = leaving.clone();
                tokio::spawn(async move {
                    let many = open.fetch_add(1, SeqCst) >= CONNECTIONS;
                    if let Err(error) = connected(connection, &leader, leaving, (since, many)).await {
                        tracing::info!(%error, "a connection of another process has ended");
                    }
                    open.fetch_sub(1, SeqCst);
                    drop(alive);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection of another process cannot be accepted");
                leader.env.sleep(NO_DESCRIPTORS).await;
            }
        }
    }
    // The others elect a new leader when they hear that this one leaves: its seat must be free then.
    drop(listener);
    drop(seat);
    drop(leave);
    drop(alive);
    tokio::select! {
        biased;
        _ = all_ended.recv() => {}
        () = leader.env.sleep(LEAVING + BEAT) => {}
    }
}

/// Serves one connection until it ends.
async fn connected(
    mut connection: Connection,
    leader: &Arc<Leader>,
    leaving: watch::Receiver<()>,
    (since, many): (Instant, bool),
) -> Result<()> {
    if connection.peer_uid() != rustix::process::geteuid().as_raw() {
        return Err(Error::new(Code::Denied, "a process of another user may not share the writer"));
    }
    if many {
        let reason = format!("{CONNECTIONS} processes share it already");
        return hello::refuse(&mut connection, reason).await.map(drop);
    }
    let hello = hello::receive(&mut connection, &leader.introduction, &leader.env).await?;
    let mut info = leader.info.clone();
    let info = loop {
        if let Some(info) = info.borrow().clone() {
            break info;
        }
        tokio::select! {
            biased;
            changed = info.changed() => changed.map_err(|_| Error::new(Code::Closed, "the writer has ended"))?,
            arrived = connection.next() => drop(arrived?),
            () = leader.env.sleep(BEAT) => {}
        }
        connection.beat(0);
    };
    let since_ms = millis(since, leader.env.monotonic());
    let born = leader.shared.newest();
    connection.send(&hello::welcome(&info, born, since_ms, &leader.introduction))?;
    connection.accept(LARGEST);
    tracing::info!(process = hello.process, "a process of this host shares this writer");
    leader.shared.joined_by(1);
    let served = Served::new(connection, leader, SessionId(hello.session), born).run(leaving).await;
    leader.shared.joined_by(-1);
    served
}
