//! Starts real object stores and a faulty network for tests, and stops them by drop.
//!
//! Programs come from `$BUCKETQ_TOOLS` or `.tools/bin` (`.ci/tools` installs them). A missing one gives `None` and a
//! message, or a failure when `BUCKETQ_REQUIRE_SERVERS=1`. Everything listens on 127.0.0.1 only.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use bucketq::config::{Credentials, S3Options};
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::http;

/// The bucket every server has.
pub const BUCKET: &str = "bucketq-test";
const USER: &str = "bucketq";
const SECRET: &str = "bucketq-secret";
/// moto and MinIO may take some seconds on a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(40);
/// Another process may take the port between its choice and its use.
const START_TRIES: u32 = 3;

/// A running server with a bucket called [`BUCKET`], stopped when dropped.
#[derive(Debug)]
pub struct Server {
    /// Its name, for messages.
    pub name: &'static str,
    /// Its address.
    pub endpoint: String,
    credentials: Credentials,
    child: Option<Child>,
    /// Removed after the child has ended.
    _data: Option<TempDir>,
}

impl Server {
    /// Options to connect to it.
    pub fn options(&self) -> S3Options {
        self.options_at(&self.endpoint)
    }

    /// Options to connect to it through a proxy.
    pub fn options_at(&self, endpoint: &str) -> S3Options {
        S3Options {
            endpoint: Some(endpoint.to_owned()),
            region: Some("us-east-1".to_owned()),
            credentials: Some(self.credentials.clone()),
            ..S3Options::default()
        }
    }

    /// Host and port.
    pub fn address(&self) -> &str {
        self.endpoint.trim_start_matches("http://")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The fast S3 server of the ordinary tests: gofakes3, or the one at `BUCKETQ_TEST_S3` (credentials from the usual
/// variables; it has the bucket already).
pub async fn s3() -> Option<Server> {
    if let Ok(endpoint) = std::env::var("BUCKETQ_TEST_S3") {
        let variable = |name: &str| std::env::var(name).unwrap_or_default();
        return Some(Server {
            name: "BUCKETQ_TEST_S3",
            endpoint,
            credentials: Credentials {
                access_key: variable("AWS_ACCESS_KEY_ID"),
                secret_key: variable("AWS_SECRET_ACCESS_KEY"),
                session_token: std::env::var("AWS_SESSION_TOKEN").ok(),
            },
            child: None,
            _data: None,
        });
    }
    gofakes3().await
}

/// gofakes3: in memory, accepts any credentials.
pub async fn gofakes3() -> Option<Server> {
    start("gofakes3", "gofakes3", |port, _, command| {
        command.args(["-backend", "memory", "-autobucket", "-host", &at(port)]);
    })
    .await
}

/// versitygw over a directory.
pub async fn versitygw() -> Option<Server> {
    start("versitygw", "versitygw", |port, data, command| {
        let bucket = data.join(BUCKET);
        std::fs::create_dir(&bucket).expect("a fresh directory can be written");
        command.env("ROOT_ACCESS_KEY", USER).env("ROOT_SECRET_KEY", SECRET);
        command.args(["--port", &at(port), "--region", "us-east-1", "posix"]).arg(data);
    })
    .await
}

/// MinIO over a directory.
pub async fn minio() -> Option<Server> {
    let console = free_port().await;
    start("minio", "minio", |port, data, command| {
        // A directory beside MinIO's own becomes a bucket.
        let bucket = data.join(BUCKET);
        std::fs::create_dir(&bucket).expect("a fresh directory can be written");
        command.env("MINIO_ROOT_USER", USER).env("MINIO_ROOT_PASSWORD", SECRET);
        command.env("MINIO_BROWSER", "off").env("MINIO_UPDATE", "off");
        command.arg("server").arg(data).args(["--address", &at(port), "--console-address", &at(console)]);
    })
    .await
}

/// s3rver: ignores conditions, so that every writer wins. For tests that such a store is refused.
pub async fn s3rver() -> Option<Server> {
    let mut server = start("s3rver", "s3rver", |port, data, command| {
        command.arg("--directory").arg(data).args(["--address", "127.0.0.1", "--port", &port.to_string()]);
        command.args(["--silent", "--configure-bucket", BUCKET]);
    })
    .await?;
    "S3RVER".clone_into(&mut server.credentials.access_key);
    "S3RVER".clone_into(&mut server.credentials.secret_key);
    Some(server)
}

/// moto: it checks the condition first and writes later, so that two may win a race. Its threads are made to switch
/// often, because by default they hardly ever switch between the check and the write.
pub async fn moto() -> Option<Server> {
    const OFTEN: &str =
        "import sys, moto.server; sys.setswitchinterval(1e-6); moto.server.main(sys.argv[1:])";
    let server = start("moto", "../moto/bin/python", |port, _, command| {
        command.args(["-c", OFTEN, "-H", "127.0.0.1", "-p", &port.to_string()]);
    })
    .await?;
    let made = http::request(server.address(), "PUT", &format!("/{BUCKET}"), "").await;
    assert_eq!(made.expect("moto answers").status, 200, "moto makes a bucket without a signature");
    Some(server)
}

/// Returns the path of a program of `.ci/tools`; prints a message if it is missing.
pub fn tool(name: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("BUCKETQ_TOOLS")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../.tools/bin"), PathBuf::from);
    let path = folder.join(name);
    if path.exists() {
        return Some(path);
    }
    assert!(
        std::env::var("BUCKETQ_REQUIRE_SERVERS").as_deref() != Ok("1"),
        "{name} is not installed and BUCKETQ_REQUIRE_SERVERS=1: run `make tools`"
    );
    eprintln!("skipped: {name} is not installed (make tools)");
    None
}

fn at(port: u16) -> String {
    format!("127.0.0.1:{port}")
}

/// Returns a port that no process listens on.
pub async fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    listener.local_addr().expect("a listener has an address").port()
}

async fn start(
    name: &'static str,
    program: &str,
    arrange: impl Fn(u16, &std::path::Path, &mut Command),
) -> Option<Server> {
    let path = tool(program)?;
    for _ in 0..START_TRIES {
        let (port, data) =
            (free_port().await, tempfile::tempdir().expect("a temporary directory can be made"));
        let mut command = Command::new(&path);
        arrange(port, data.path(), &mut command);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let mut server = Server {
            name,
            endpoint: format!("http://{}", at(port)),
            credentials: Credentials {
                access_key: USER.to_owned(),
                secret_key: SECRET.to_owned(),
                session_token: None,
            },
            child: Some(child.unwrap_or_else(|e| panic!("{} does not start: {e}", path.display()))),
            _data: Some(data),
        };
        if answers(&mut server).await {
            return Some(server);
        }
    }
    panic!("{name} does not answer within {START_TIMEOUT:?}");
}

/// Wait until the server speaks HTTP; false if it ended or stays silent.
async fn answers(server: &mut Server) -> bool {
    let mut tick = interval(Duration::from_millis(10));
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let waiting = async {
        loop {
            tick.tick().await;
            if server.child.as_mut().is_some_and(|c| c.try_wait().ok().flatten().is_some()) {
                return false;
            }
            // MinIO listens before it is ready, and returns 503 until then.
            let ready = http::request(server.address(), "GET", &format!("/{BUCKET}/none"), "").await;
            if ready.is_ok_and(|answer| answer.status < 500) {
                return true;
            }
        }
    };
    timeout(START_TIMEOUT, waiting).await.unwrap_or(false)
}

/// A faulty network: toxiproxy in front of one server.
#[derive(Debug)]
pub struct Network {
    /// The address that clients use instead of the server's.
    pub endpoint: String,
    api: String,
    child: Child,
}

impl Network {
    /// A network without faults in front of this server.
    pub async fn before(server: &Server) -> Option<Self> {
        let path = tool("toxiproxy")?;
        let port = free_port().await;
        let child = Command::new(path)
            .args(["-host", "127.0.0.1", "-port", &port.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("toxiproxy starts");
        let mut network = Self { endpoint: String::new(), api: at(port), child };
        let mut tick = interval(Duration::from_millis(10));
        let up = timeout(START_TIMEOUT, async {
            while TcpStream::connect(&network.api).await.is_err() {
                tick.tick().await;
            }
        });
        up.await.expect("toxiproxy answers");
        let proxy = serde_json::json!({
            "name": "store", "listen": "127.0.0.1:0", "upstream": server.address(), "enabled": true,
        });
        let made = network.call("POST", "/proxies", &proxy.to_string()).await;
        let made: serde_json::Value = serde_json::from_str(&made).expect("toxiproxy answers JSON");
        network.endpoint = format!("http://{}", made["listen"].as_str().expect("toxiproxy tells its port"));
        Some(network)
    }

    /// Add a fault: `stream` is `upstream` or `downstream`; kinds and attributes are toxiproxy's own.
    pub async fn add(&self, name: &str, kind: &str, stream: &str, attributes: serde_json::Value) {
        let toxic =
            serde_json::json!({ "name": name, "type": kind, "stream": stream, "attributes": attributes });
        self.call("POST", "/proxies/store/toxics", &toxic.to_string()).await;
    }

    /// Remove a fault. Connections that it stopped continue.
    pub async fn remove(&self, name: &str) {
        self.call("DELETE", &format!("/proxies/store/toxics/{name}"), "").await;
    }

    /// Refuse connections, or accept them again.
    pub async fn set_enabled(&self, enabled: bool) {
        let change = serde_json::json!({ "enabled": enabled });
        self.call("POST", "/proxies/store", &change.to_string()).await;
    }

    async fn call(&self, method: &str, path: &str, body: &str) -> String {
        let answer = http::request(&self.api, method, path, body).await.expect("toxiproxy answers");
        assert!(answer.status < 300, "toxiproxy: {method} {path}: {} {}", answer.status, answer.body);
        answer.body
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
