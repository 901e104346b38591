//! Which processes mean the same queue file: the server, the bucket and the path decide, and no credentials.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use bucketq_tests::peer::Order;

use crate::kit::{Neighbour, temporary};
use crate::peers::{PATIENCE, Peer, until};

const SECRETS: [&str; 4] = ["AKIAFIRST", "AKIASECOND", "first-secret", "second-secret"];

fn profile(id: &str, secret: &str) -> String {
    format!("[default]\naws_access_key_id = {id}\naws_secret_access_key = {secret}\n")
}

/// The place of a queue file for a process with these variables.
fn place(variables: &[(&str, &str)], url: &str) -> String {
    let variables = variables.iter().map(|(name, value)| (*name, Path::new(*value)));
    let none = [("AWS_EC2_METADATA_DISABLED", Path::new("true"))];
    let all: Vec<_> = variables.chain(none).collect();
    let reply = Neighbour::start(&all).is_told(&format!("place {url}"));
    reply.strip_prefix("place ").unwrap_or_else(|| panic!("{reply}")).to_owned()
}

#[test]
fn the_place_depends_on_the_server_and_the_bucket_and_not_on_credentials() {
    let temp = temporary();
    let (file, config) = (temp.path().join("credentials"), temp.path().join("config"));
    let text = |path: &PathBuf| path.display().to_string();
    let (file_name, config_name) = (text(&file), text(&config));
    let files = [
        ("AWS_SHARED_CREDENTIALS_FILE", file_name.as_str()),
        ("AWS_CONFIG_FILE", config_name.as_str()),
        ("AWS_ENDPOINT_URL_S3", "http://user:first-secret@127.0.0.1:9"),
    ];
    let keys = |id, secret| [("AWS_ACCESS_KEY_ID", id), ("AWS_SECRET_ACCESS_KEY", secret), files[2]];
    let url = "s3://acme/team/jobs";

    fs::write(&file, profile("AKIAFIRST", "first-secret")).expect("it can be written");
    let found = place(&files, url);
    fs::write(&file, profile("AKIASECOND", "second-secret-that-is-longer")).expect("it can be written");
    fs::write(&config, "[profile other]\nregion = eu-west-1\n").expect("it can be written");
    assert_eq!(place(&files, url), found, "other files");
    assert_eq!(place(&keys("AKIAFIRST", "first-secret"), url), found, "another source of the key");
    assert_eq!(place(&keys("AKIASECOND", "second-secret"), url), found, "another key");
    assert!(found.contains("127.0.0.1:9") && found.contains("acme"), "{found}");
    assert!(SECRETS.iter().all(|secret| !found.contains(secret)), "{found}");

    assert_ne!(place(&files, "s3://acme/team/jobs2"), found);
    assert_ne!(place(&files, "s3://acme/jobs"), found);
    let [id, secret, _] = keys("AKIAFIRST", "first-secret");
    let at = |endpoint| place(&[id, secret, ("AWS_ENDPOINT_URL_S3", endpoint)], url);
    assert_ne!(at("http://127.0.0.1:8"), found);
    // The settings of a profile for S3 alone decide too.
    let services = "[default]\nservices = mine\n[services mine]\ns3 =\n  endpoint_url = http://127.0.0.1:7\n";
    fs::write(&config, services).expect("it can be written");
    assert!(place(&[id, secret, files[1]], url).contains("127.0.0.1:7"));
}

/// A process that opens a queue file on a server that never replies, with these variables.
fn opens(meeting: &Path, endpoint: &str, variables: &[(&str, &Path)]) -> Peer {
    let peer = Peer::start_with(variables);
    let settings = [("host_dir", meeting.display().to_string()), ("endpoint", endpoint.to_owned())];
    let settings = BTreeMap::from(settings.map(|(name, text)| (name.to_owned(), text)));
    let _ = peer.begins(Order::Open { url: "s3://acme/jobs".to_owned(), settings, broken: None });
    peer
}

#[test]
fn a_hello_contains_no_credentials_and_processes_with_other_ones_meet() {
    let (meeting, server) = (temporary(), TcpListener::bind("127.0.0.1:0").expect("a port is free"));
    let endpoint = format!("http://{}", server.local_addr().expect("it is bound"));
    let first =
        [("AWS_ACCESS_KEY_ID", Path::new("AKIAFIRST")), ("AWS_SECRET_ACCESS_KEY", Path::new("first-secret"))];
    let sockets = || -> Vec<PathBuf> {
        let files = fs::read_dir(meeting.path()).expect("it is ours").flatten().map(|file| file.path());
        files.filter(|path| path.extension().is_some_and(|end| end == "sock")).collect()
    };
    let mut leader = opens(meeting.path(), &endpoint, &first);
    until("the socket of the leader", || !sockets().is_empty());
    leader.dies();
    let socket = sockets().remove(0);
    fs::remove_file(&socket).expect("it is ours");
    let listener = UnixListener::bind(&socket).expect("the directory is ours");

    let file = meeting.path().join("credentials");
    fs::write(&file, profile("AKIASECOND", "second-secret")).expect("it can be written");
    let _second = opens(meeting.path(), &endpoint, &[("AWS_SHARED_CREDENTIALS_FILE", &file)]);
    listener.set_nonblocking(true).expect("it is a socket");
    let mut found = None;
    until("a connection to the same socket", || {
        found = listener.accept().ok();
        found.is_some()
    });
    let (mut stream, _) = found.expect("it has connected");
    stream.set_nonblocking(false).expect("it is a socket");
    stream.set_read_timeout(Some(PATIENCE)).expect("it is no zero");
    let mut hello = vec![0; 4_096];
    let read = stream.read(&mut hello).expect("the process introduces itself");
    let hello = String::from_utf8_lossy(&hello[..read]).into_owned();
    assert!(hello.contains("bucketq link") && hello.contains("acme"), "{hello}");
    assert!(SECRETS.iter().all(|secret| !hello.contains(secret)), "{hello}");
    assert!(!hello.contains(&file.display().to_string()), "{hello}");
}
