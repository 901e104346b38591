//! A proxy that counts requests on their way to a server, so that the count does not depend on the measured library.
//!
//! It forwards bytes unchanged. It parses only the head of each request, to know its kind and where the next one
//! begins. Used by `make bench-peers`, which starts the program `counting`.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

/// The longest head of a request that is parsed.
const MAX_HEAD: usize = 64 * 1024;

/// The requests and bytes so far.
#[derive(Clone, Debug, Default)]
pub struct Counts(Arc<Mutex<Seen>>);

#[derive(Debug, Default)]
struct Seen {
    requests: BTreeMap<String, u64>,
    sent: u64,
    received: u64,
    /// Bytes of the bodies of PUTs: of a HEAD, and of anything else.
    put: (u64, u64),
}

impl Counts {
    fn change(&self, change: impl FnOnce(&mut Seen)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Returns requests by kind, and bytes to and from the server, heads included.
    pub fn told(&self) -> Value {
        let seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        json!({ "requests": seen.requests, "sent": seen.sent, "received": seen.received })
    }

    /// Returns the bytes of the bodies of PUTs so far: of a HEAD, and of anything else.
    pub fn put_bytes(&self) -> (u64, u64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).put
    }
}

/// Forwards the connections of `listener`, until the runtime ends.
pub async fn serve(listener: TcpListener, server: String, counts: Counts) -> io::Result<()> {
    loop {
        let (near, _) = listener.accept().await?;
        let (server, counts) = (server.clone(), counts.clone());
        tokio::spawn(async move {
            let Ok(far) = TcpStream::connect(&server).await else { return };
            // A small request must not wait for the next one.
            if near.set_nodelay(true).and_then(|()| far.set_nodelay(true)).is_err() {
                return;
            }
            let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
            let answers = tokio::spawn(back(far_in, near_out, counts.clone()));
            // A broken connection just ends: to the client the server has closed it.
            let _ = forth(near_in, far_out, counts).await;
            answers.abort();
        });
    }
}

async fn back(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, counts: Counts) -> io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let read = from.read(&mut buffer).await?;
        if read == 0 {
            return to.shutdown().await;
        }
        counts.change(|seen| seen.received += read as u64);
        to.write_all(&buffer[..read]).await?;
    }
}

async fn forth(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, counts: Counts) -> io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    let mut requests = Requests::default();
    loop {
        let read = from.read(&mut buffer).await?;
        if read == 0 {
            return to.shutdown().await;
        }
        let found = requests.feed(&buffer[..read]);
        counts.change(|seen| {
            seen.sent += read as u64;
            for request in found {
                if request.kind == "PUT" {
                    let sum = if request.is_head { &mut seen.put.0 } else { &mut seen.put.1 };
                    *sum += request.body;
                }
                *seen.requests.entry(request.kind).or_default() += 1;
            }
        });
        to.write_all(&buffer[..read]).await?;
    }
}

/// A request, as its head describes it.
#[derive(Debug, PartialEq)]
struct Request {
    kind: String,
    /// Bytes of the body; 0 if it is chunked.
    body: u64,
    /// It is for the HEAD of a queue file.
    is_head: bool,
}

/// The position in a stream of requests.
#[derive(Debug, Default)]
struct Requests {
    head: Vec<u8>,
    /// Bytes of the body still to come; in a chunked body, until its end is found.
    body: u64,
    chunked: bool,
}

impl Requests {
    /// Returns the requests whose heads end in these bytes.
    fn feed(&mut self, mut bytes: &[u8]) -> Vec<Request> {
        let mut found = vec![];
        while !bytes.is_empty() {
            if self.body > 0 && !self.chunked {
                let skip = bytes.len().min(usize::try_from(self.body).unwrap_or(usize::MAX));
                self.body -= skip as u64;
                bytes = &bytes[skip..];
                continue;
            }
            self.head.push(bytes[0]);
            bytes = &bytes[1..];
            if self.chunked {
                if self.head.ends_with(b"\r\n0\r\n\r\n") {
                    *self = Self::default();
                } else if self.head.len() > 16 {
                    self.head.drain(..8);
                }
            } else if self.head.ends_with(b"\r\n\r\n") {
                let head = std::mem::take(&mut self.head);
                let head = String::from_utf8_lossy(&head);
                let mut words = head.split(' ');
                let (method, target) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
                let field = |name: &str| {
                    head.lines().find_map(|line| {
                        let (key, value) = line.split_once(':')?;
                        key.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
                    })
                };
                self.body = field("content-length").and_then(|v| v.parse().ok()).unwrap_or(0);
                self.chunked = field("transfer-encoding").is_some_and(|v| v.eq_ignore_ascii_case("chunked"));
                found.push(Request {
                    kind: if target.contains("list-type=") { "LIST" } else { method }.to_owned(),
                    body: self.body,
                    is_head: target.split(['?', '.']).any(|part| part == "head"),
                });
                // An empty chunked body is only its end mark, which begins with the head's last line break.
                if self.chunked {
                    self.head.extend_from_slice(b"\r\n");
                }
            } else if self.head.len() > MAX_HEAD {
                self.head.clear();
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::{Request, Requests};

    #[test]
    fn requests_are_told_apart_however_they_are_cut() {
        let stream = b"PUT /b/k.head?x HTTP/1.1\r\nContent-Length: 20\r\n\r\nGET / HTTP/1.1\r\n\r\n..\
            GET /b?list-type=2 HTTP/1.1\r\nhost: a\r\n\r\nPUT /c HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n\
            5\r\nhello\r\n0\r\n\r\nDELETE /d HTTP/1.1\r\n\r\n";
        for size in [1, 2, 3, 7, 1_000] {
            let mut requests = Requests::default();
            let found: Vec<Request> = stream.chunks(size).flat_map(|part| requests.feed(part)).collect();
            let kinds: Vec<&str> = found.iter().map(|request| &request.kind[..]).collect();
            assert_eq!(kinds, ["PUT", "LIST", "PUT", "DELETE"], "in pieces of {size}");
            let first = Request { kind: "PUT".to_owned(), body: 20, is_head: true };
            assert_eq!((&found[0], found[2].is_head), (&first, false));
        }
    }
}
