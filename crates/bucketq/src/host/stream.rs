//! A connection between two processes of one host: messages and heartbeats over a Unix socket.
//!
//! Used by both sides. Sending never blocks: bytes wait in memory until the other side reads, and the owner of the
//! connection bounds them. Every function may be cancelled while it waits.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};

use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::time::Instant;

use super::socket::Socket;
use crate::link::frame::{Arrived, FrameReader, HELLO_MAX, put_beat, put_message};
use crate::link::message::{decode, encode};
use crate::noun::env::Env;
use crate::noun::error::{Code, Error, Result};

/// Bytes read at once.
const CHUNK: usize = 64 * 1024;
/// A buffer that is larger than this is not kept once it is empty.
const KEPT: usize = 1024 * 1024;

pub(super) struct Connection {
    stream: Socket<std::os::unix::net::UnixStream>,
    /// The user at the other end.
    peer_uid: u32,
    reader: FrameReader,
    arrived: VecDeque<Arrived>,
    buffer: Vec<u8>,
    out: Vec<u8>,
    /// How much of `out` is sent.
    sent: usize,
    /// When the other side was last heard.
    heard: Instant,
    /// When bytes last left, or there were none to send.
    flowed: Instant,
    env: Env,
}

impl Connection {
    pub fn new(stream: UnixStream, env: &Env) -> Result<Self> {
        let now = env.monotonic();
        let peer = stream.peer_cred().map_err(|e| {
            Error::new(Code::Internal, "the system does not say which user is at the other end").because(e)
        })?;
        Ok(Self {
            stream: stream.into_std().and_then(Socket::new).map_err(broken)?,
            peer_uid: peer.uid(),
            reader: FrameReader::new(HELLO_MAX),
            arrived: VecDeque::new(),
            buffer: vec![0; CHUNK],
            out: vec![],
            sent: 0,
            heard: now,
            flowed: now,
            env: env.clone(),
        })
    }

    /// Returns the user id of the other side.
    pub fn peer_uid(&self) -> u32 {
        self.peer_uid
    }

    /// Accepts messages of this size from now on.
    pub fn accept(&mut self, most: usize) {
        self.reader.accept(most);
    }

    pub fn heard(&self) -> Instant {
        self.heard
    }

    /// Returns when bytes last left; now, if none wait.
    pub fn flowed(&self) -> Instant {
        if self.unsent() == 0 { self.env.monotonic() } else { self.flowed }
    }

    /// Returns the bytes that wait for the other side to read.
    pub fn unsent(&self) -> usize {
        self.out.len() - self.sent
    }

    /// Adds a message to the bytes that are to be sent.
    pub fn send<T: Serialize>(&mut self, message: &T) -> Result<()> {
        let bytes = encode(message)?;
        self.about_to_add();
        put_message(&mut self.out, &bytes);
        Ok(())
    }

    /// Adds a heartbeat with this stamp.
    pub fn beat(&mut self, stamp: u64) {
        self.about_to_add();
        put_beat(&mut self.out, stamp);
    }

    fn about_to_add(&mut self) {
        if self.unsent() == 0 {
            self.flowed = self.env.monotonic();
        }
    }

    /// Sends what waits, and returns what arrives next.
    pub async fn next(&mut self) -> Result<Arrived> {
        loop {
            if let Some(arrived) = self.arrived.pop_front() {
                return Ok(arrived);
            }
            let interest =
                if self.unsent() > 0 { Interest::READABLE | Interest::WRITABLE } else { Interest::READABLE };
            let ready = self.stream.ready(interest).await.map_err(broken)?;
            if ready.is_writable() {
                self.write()?;
            }
            if ready.is_readable() || ready.is_read_closed() {
                self.read()?;
            }
        }
    }

    /// Sends what waits, and returns what arrives next if it `reads`.
    pub async fn next_if(&mut self, reads: bool) -> Result<Option<Arrived>> {
        if reads {
            return self.next().await.map(Some);
        }
        self.flush().await?;
        std::future::pending().await
    }

    /// Sends all that waits, and reads nothing.
    pub async fn flush(&mut self) -> Result<()> {
        while self.unsent() > 0 {
            self.stream.ready(Interest::WRITABLE).await.map_err(broken)?;
            self.write()?;
        }
        Ok(())
    }

    /// Returns the next message, without heartbeats.
    pub async fn next_message<T: for<'a> Deserialize<'a>>(&mut self) -> Result<T> {
        loop {
            if let Arrived::Message(bytes) = self.next().await? {
                return decode(&bytes);
            }
        }
    }

    fn write(&mut self) -> Result<()> {
        while self.unsent() > 0 {
            let unsent = &self.out[self.sent..];
            match self.stream.try_io(Interest::WRITABLE, |mut stream| stream.write(unsent)) {
                Ok(0) => return Err(ended()),
                Ok(n) => {
                    self.sent += n;
                    self.flowed = self.env.monotonic();
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) => return Err(broken(e)),
            }
        }
        if self.unsent() == 0 {
            self.out.clear();
            self.out.shrink_to(KEPT);
            self.sent = 0;
        } else if self.sent > KEPT {
            self.out.drain(..self.sent);
            self.sent = 0;
        }
        Ok(())
    }

    fn read(&mut self) -> Result<()> {
        let buffer = &mut self.buffer;
        match self.stream.try_io(Interest::READABLE, |mut stream| stream.read(buffer)) {
            Ok(0) => Err(ended()),
            Ok(n) => {
                self.heard = self.env.monotonic();
                let mut arrived = vec![];
                self.reader.feed(&self.buffer[..n], &mut arrived)?;
                self.arrived.extend(arrived);
                Ok(())
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(()),
            Err(e) => Err(broken(e)),
        }
    }
}

fn ended() -> Error {
    Error::new(Code::Closed, "the other process has ended the connection")
}

fn broken(error: std::io::Error) -> Error {
    Error::new(Code::Closed, "the connection to the other process is broken").because(error)
}
