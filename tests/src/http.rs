//! A minimal HTTP for tests: one request a connection, and a server with prepared responses.

use std::io;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// The response.
#[derive(Debug)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The body as text.
    pub body: String,
}

/// Send one request and read to the end.
pub async fn request(address: &str, method: &str, path: &str, body: &str) -> io::Result<Answer> {
    let mut stream = TcpStream::connect(address).await?;
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await?;
    let text = String::from_utf8_lossy(&bytes);
    let status = text.split(' ').nth(1).and_then(|s| s.parse().ok());
    let status = status.ok_or_else(|| io::Error::other("not an HTTP answer"))?;
    let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body).to_owned();
    Ok(Answer { status, body })
}

/// A request as it came over the wire.
#[derive(Clone, Debug)]
pub struct Seen {
    /// `PUT /bucket/key HTTP/1.1`
    pub line: String,
    /// Names in lower case, in the order they came.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

impl Seen {
    /// The value of a header that came at most once.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut found = self.headers.iter().filter(|(n, _)| n == name);
        let value = found.next().map(|(_, v)| v.as_str());
        assert!(found.next().is_none(), "header {name} came twice");
        value
    }
}

/// The stub's response to one request.
#[derive(Clone, Debug)]
pub enum Say {
    /// Send these bytes and keep the connection.
    Raw(String),
    /// Send these bytes, then chunks of a body that never ends.
    Endless(String),
    /// Close the connection without a response.
    Close,
    /// Never respond.
    Hang,
}

impl Say {
    /// A response with this status, these headers and this body.
    pub fn status(status: u16, headers: &[(&str, &str)], body: &str) -> Self {
        let told: Vec<String> = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let told = told.concat();
        // A 304 response has no body and so no length.
        let length =
            if status == 304 { String::new() } else { format!("content-length: {}\r\n", body.len()) };
        Self::Raw(format!("HTTP/1.1 {status} Told\r\n{told}{length}\r\n{body}"))
    }

    /// An error in S3's format.
    pub fn s3_error(status: u16, code: &str) -> Self {
        let body =
            format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>as told</Message></Error>");
        Self::status(status, &[("content-type", "application/xml")], &body)
    }
}

/// A server that sends these responses in order, and the last one again and again.
#[derive(Debug)]
pub struct Stub {
    /// Its address.
    pub endpoint: String,
    seen: Arc<Mutex<Vec<Seen>>>,
    task: JoinHandle<()>,
}

impl Stub {
    /// Start one on a free port.
    pub async fn saying(answers: impl IntoIterator<Item = Say>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let endpoint = format!("http://{}", listener.local_addr().expect("a listener has an address"));
        let answers: Arc<Vec<Say>> = Arc::new(answers.into_iter().collect());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let all = Arc::clone(&seen);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&answers), Arc::clone(&all)));
            }
        });
        Self { endpoint, seen, task }
    }

    /// Every request so far.
    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().expect("no test panics while it holds this").clone()
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(mut stream: TcpStream, answers: Arc<Vec<Say>>, all: Arc<Mutex<Vec<Seen>>>) {
    while let Some(seen) = read_request(&mut stream).await {
        let say = {
            let mut all = all.lock().expect("no test panics while it holds this");
            all.push(seen);
            answers[(all.len() - 1).min(answers.len() - 1)].clone()
        };
        match say {
            Say::Raw(text) if stream.write_all(text.as_bytes()).await.is_ok() => {}
            Say::Hang => std::future::pending().await,
            Say::Endless(text) => {
                let chunk = format!("10000\r\n{}\r\n", "x".repeat(0x1_0000));
                let mut sent = stream.write_all(text.as_bytes()).await;
                while sent.is_ok() {
                    sent = stream.write_all(chunk.as_bytes()).await;
                }
                return;
            }
            Say::Raw(_) | Say::Close => return,
        }
    }
}

async fn read_request(stream: &mut TcpStream) -> Option<Seen> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let text = String::from_utf8_lossy(&head);
    let mut lines = text.trim_end().split("\r\n");
    let line = lines.next()?.to_owned();
    let headers: Vec<(String, String)> = lines
        .filter_map(|l| l.split_once(':'))
        .map(|(name, value)| (name.trim().to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let length = headers.iter().find(|(n, _)| n == "content-length").and_then(|(_, v)| v.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body).await.ok()?;
    Some(Seen { line, headers, body })
}
