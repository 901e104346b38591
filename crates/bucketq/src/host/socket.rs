//! Unix sockets that a forked child of this process closes.
//!
//! Used by both sides of a connection and by the leader's listener. As with the sockets of tokio, waiting is separate from
//! reading and writing, which never wait.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixListener;

use tokio::io::unix::AsyncFd;
use tokio::io::{Interest, Ready};
use tokio::net::UnixStream;

use crate::fork::ClosedInChild;

/// The number of an open socket.
#[derive(Debug)]
struct Number(RawFd);

impl AsRawFd for Number {
    fn as_raw_fd(&self) -> RawFd {
        self.0
    }
}

/// A socket that never blocks.
#[derive(Debug)]
pub(super) struct Socket<S> {
    // Dropped while the socket is still open.
    events: AsyncFd<Number>,
    socket: ClosedInChild<S>,
}

impl<S: AsRawFd + Send + 'static> Socket<S> {
    #[expect(
        deprecated,
        reason = "the other function is unsafe; the number is that of an open socket, see `events`"
    )]
    pub fn new(socket: S) -> io::Result<Self> {
        let events = AsyncFd::new(Number(socket.as_raw_fd()))?;
        Ok(Self { events, socket: ClosedInChild::new(socket) })
    }

    /// Waits until the socket is ready for one of these.
    pub async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        Ok(self.events.ready(interest).await?.ready())
    }

    /// Runs work that returns `WouldBlock` if the socket is not ready after all.
    pub fn try_io<R>(&self, interest: Interest, work: impl FnOnce(&S) -> io::Result<R>) -> io::Result<R> {
        self.events.try_io(interest, |_| self.socket.with(work))
    }
}

impl Socket<UnixListener> {
    /// Waits for the next connection.
    pub async fn accept(&self) -> io::Result<UnixStream> {
        loop {
            self.ready(Interest::READABLE).await?;
            match self.try_io(Interest::READABLE, UnixListener::accept) {
                Ok((stream, _)) => {
                    stream.set_nonblocking(true)?;
                    return UnixStream::from_std(stream);
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return Err(e),
            }
        }
    }
}
