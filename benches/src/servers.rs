//! A real S3 server behind a slow network, started for one benchmark and stopped on drop.
//!
//! Programs are looked up in `$BUCKETQ_TOOLS` or `.tools/bin`, where `make tools` puts them. Everything listens on
//! 127.0.0.1 only. A missing program is no error: the benchmark says so and leaves its figure out.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use bucketq::config::{Credentials, S3Options};
use bucketq::error::{Code, Error, Result};
use bucketq::store::S3Store;
use bucketq::{Env, Options, QueueFile};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};

/// The bucket of the benchmark.
pub const BUCKET: &str = "bucketq-bench";
const USER: &str = "bucketq";
const SECRET: &str = "bucketq-secret";
/// `MinIO` takes seconds to start on a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(40);

/// A server behind a slow network.
#[derive(Debug)]
pub struct SlowServer {
    /// Name of the server.
    pub name: &'static str,
    /// How to reach it through the slow network.
    pub options: S3Options,
    api: u16,
    // Drop kills both, and removes the server's directory last.
    _network: Child,
    _server: Child,
    _data: TempDir,
}

const KEY_ID: &str = "AWS_ACCESS_KEY_ID";
const SECRET_KEY: &str = "AWS_SECRET_ACCESS_KEY";

fn options_at(endpoint: &str, access_key: String, secret_key: String) -> S3Options {
    S3Options {
        endpoint: Some(endpoint.to_owned()),
        region: Some("us-east-1".to_owned()),
        credentials: Some(Credentials { access_key, secret_key, session_token: None }),
        ..S3Options::default()
    }
}

/// Returns the environment of a child process that opens a queue file there. The keys are not on the command line, where
/// every user of the machine sees them.
pub fn keys_for_child(s3: &S3Options) -> Vec<(&'static str, String)> {
    let keys = s3.credentials.as_ref();
    keys.map_or(vec![], |keys| vec![(KEY_ID, keys.access_key.clone()), (SECRET_KEY, keys.secret_key.clone())])
}

/// Returns how a child process of a benchmark, which has its keys in the environment, reaches the server.
pub fn options_of_child(endpoint: &str) -> S3Options {
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    options_at(endpoint, variable(KEY_ID), variable(SECRET_KEY))
}

/// Opens the queue file in a child process of a benchmark.
pub async fn open_for_child(endpoint: &str, place: &str) -> Result<QueueFile> {
    let store = Arc::new(S3Store::open(BUCKET, place, &options_of_child(endpoint)).await?);
    QueueFile::open_with(store, "jobs", Options::default(), Env::default()).await
}

/// Why there is no server.
#[derive(Debug)]
pub enum Missing {
    /// Neither server, or no toxiproxy, is installed; with advice.
    NotInstalled(String),
    /// It is installed but does not work.
    Failed(Error),
}

impl From<Error> for Missing {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl SlowServer {
    /// Starts `MinIO`, else gofakes3, behind toxiproxy with this latency each way.
    pub async fn start(upstream: Duration, downstream: Duration) -> std::result::Result<Self, Missing> {
        let toxiproxy = tool("toxiproxy").ok_or_else(|| not_installed("no toxiproxy"))?;
        let data = tempfile::tempdir().map_err(|e| broken("a temporary directory").because(e))?;
        let installed = server(&data).await?;
        Self::start_on(data, installed, toxiproxy, upstream, downstream).await
    }

    /// Starts gofakes3, which keeps everything in memory, in the same way.
    pub async fn start_gofakes3(
        upstream: Duration,
        downstream: Duration,
    ) -> std::result::Result<Self, Missing> {
        let toxiproxy = tool("toxiproxy").ok_or_else(|| not_installed("no toxiproxy"))?;
        let data = tempfile::tempdir().map_err(|e| broken("a temporary directory").because(e))?;
        let installed = gofakes3().await?.ok_or_else(|| not_installed("no gofakes3"))?;
        Self::start_on(data, installed, toxiproxy, upstream, downstream).await
    }

    /// Does the same with the server's disk in memory where the system allows it: the time of a real disk varies.
    pub async fn start_in_memory(
        upstream: Duration,
        downstream: Duration,
    ) -> std::result::Result<Self, Missing> {
        let toxiproxy = tool("toxiproxy").ok_or_else(|| not_installed("no toxiproxy"))?;
        let data = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        let data = data.map_err(|e| broken("a temporary directory").because(e))?;
        let installed = server(&data).await?;
        Self::start_on(data, installed, toxiproxy, upstream, downstream).await
    }

    async fn start_on(
        data: TempDir,
        (name, mut command, port): Installed,
        toxiproxy: PathBuf,
        upstream: Duration,
        downstream: Duration,
    ) -> std::result::Result<Self, Missing> {
        let server = spawn(name, &mut command)?;
        listens(port).await?;
        ready(port).await?;
        let api = free_port().await?;
        let mut command = Command::new(toxiproxy);
        command.args(["-host", "127.0.0.1", "-port", &api.to_string()]);
        let network = spawn("toxiproxy", &mut command)?;
        listens(api).await?;
        let proxy = json!({
            "name": "store", "listen": "127.0.0.1:0", "upstream": at(port), "enabled": true,
        });
        let made = post(api, "/proxies", &proxy).await?;
        let listen = made["listen"].as_str().ok_or_else(|| broken("toxiproxy's answer"))?;
        for (stream, latency) in [("upstream", upstream), ("downstream", downstream)] {
            let toxic = json!({
                "name": stream, "type": "latency", "stream": stream, "attributes": { "latency": whole_ms(latency) },
            });
            post(api, "/proxies/store/toxics", &toxic).await?;
        }
        let options = options_at(&format!("http://{listen}"), USER.to_owned(), SECRET.to_owned());
        Ok(Self { name, options, api, _network: network, _server: server, _data: data })
    }

    /// Sets the latency of the network, each way, from now on.
    pub async fn slow(&self, upstream: Duration, downstream: Duration) -> Result<()> {
        for (stream, latency) in [("upstream", upstream), ("downstream", downstream)] {
            let toxic = json!({ "attributes": { "latency": whole_ms(latency) } });
            post(self.api, &format!("/proxies/store/toxics/{stream}"), &toxic).await?;
        }
        Ok(())
    }
}

fn whole_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The name of a server, its command and its port.
type Installed = (&'static str, Command, u16);

/// Returns the best installed server.
async fn server(data: &TempDir) -> std::result::Result<Installed, Missing> {
    if let Some(path) = tool("minio") {
        let port = free_port().await?;
        // MinIO takes each directory beside its own as a bucket.
        let bucket = data.path().join(BUCKET);
        std::fs::create_dir(bucket).map_err(|e| broken("the bucket's directory").because(e))?;
        let console = free_port().await?;
        let mut command = Command::new(path);
        command.env("MINIO_ROOT_USER", USER).env("MINIO_ROOT_PASSWORD", SECRET);
        command.env("MINIO_BROWSER", "off").env("MINIO_UPDATE", "off");
        command.arg("server").arg(data.path());
        command.args(["--address", &at(port), "--console-address", &at(console)]);
        return Ok(("minio", command, port));
    }
    gofakes3().await?.ok_or_else(|| not_installed("neither minio nor gofakes3"))
}

async fn gofakes3() -> Result<Option<Installed>> {
    let Some(path) = tool("gofakes3") else { return Ok(None) };
    let port = free_port().await?;
    let mut command = Command::new(path);
    command.args(["-backend", "memory", "-autobucket", "-host", &at(port)]);
    Ok(Some(("gofakes3", command, port)))
}

fn tool(name: &str) -> Option<PathBuf> {
    let here = || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../.tools/bin");
    let path = std::env::var_os("BUCKETQ_TOOLS").map_or_else(here, PathBuf::from).join(name);
    path.exists().then_some(path)
}

fn not_installed(what: &str) -> Missing {
    Missing::NotInstalled(format!("{what} found in .tools/bin or $BUCKETQ_TOOLS: run `make tools`"))
}

fn broken(what: &str) -> Error {
    Error::new(Code::Internal, format!("{what} cannot be used by the benchmark"))
}

fn spawn(name: &str, command: &mut Command) -> Result<Child> {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    command.spawn().map_err(|e| broken(name).because(e))
}

fn at(port: u16) -> String {
    format!("127.0.0.1:{port}")
}

async fn free_port() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").await.map_err(|e| broken("no port").because(e))?;
    listener.local_addr().map(|a| a.port()).map_err(|e| broken("no port").because(e))
}

async fn listens(port: u16) -> Result<()> {
    let up = async {
        while TcpStream::connect(at(port)).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(START_TIMEOUT, up)
        .await
        .map_err(|e| broken("a server that does not start").because(e))
}

/// Waits for `MinIO`, which listens before it is ready and replies 503 until then.
async fn ready(port: u16) -> Result<()> {
    let path = format!("/{BUCKET}/none");
    let up = async {
        while exchange(port, "GET", &path, "").await.is_err() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(START_TIMEOUT, up)
        .await
        .map_err(|e| broken("a server that is never ready").because(e))
}

/// Sends one request to toxiproxy's own API.
async fn post(api: u16, path: &str, body: &Value) -> Result<Value> {
    let (status, answer) = exchange(api, "POST", path, &body.to_string()).await?;
    if status >= 300 {
        return Err(broken(&format!("toxiproxy's answer {status} to {path}")));
    }
    serde_json::from_str(&answer).map_err(|e| broken("toxiproxy's answer").because(e))
}

/// Sends one plain HTTP request. Returns status and body. An error status of the server is an error here.
async fn exchange(port: u16, method: &str, path: &str, body: &str) -> Result<(u16, String)> {
    let told = |e: std::io::Error| broken("a local server").because(e);
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{body}",
        at(port),
        body.len()
    );
    let mut stream = TcpStream::connect(at(port)).await.map_err(told)?;
    stream.write_all(request.as_bytes()).await.map_err(told)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.map_err(told)?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.split(' ').nth(1).and_then(|s| s.parse::<u16>().ok()).filter(|s| *s < 500);
    status.map(|s| (s, body.to_owned())).ok_or_else(|| broken("a local server"))
}
