//! Two versions of the library on one host: a leader refuses a process that speaks another protocol, and that process
//! writes directly.

use std::os::unix::net::UnixListener;

use bucketq::HostRole;
use bucketq::internals::message::{Greeting, Hello, LINK_OLDEST, LINK_VERSION};
use serde::Serialize;

use crate::client::{Client, hello};
use crate::kit::temporary;
use crate::peers::{Host, Peer, assert_jobs};

const OTHER_PROTOCOL: &str = "its version of bucketq speaks another protocol";

#[test]
fn a_leader_refuses_versions_that_it_does_not_know_and_accepts_newer_ones_that_know_its_own() {
    let host = Host::new();
    let leader = host.peer();
    let hello = hello(&host);
    let others = [
        Hello { version: LINK_VERSION + 1, oldest: LINK_VERSION + 1, ..hello.clone() },
        Hello { version: LINK_OLDEST - 1, oldest: 0, ..hello.clone() },
        Hello { ops: hello.ops + 1, ..hello.clone() },
        Hello { ops: hello.ops - 1, ..hello.clone() },
    ];
    for other in others {
        let mut client = Client::connect(&host.socket(0));
        client.sends(&other);
        assert_eq!(client.refusal(), OTHER_PROTOCOL, "{other:?}");
        client.is_ended();
    }
    let newer = Hello { version: LINK_VERSION + 7, ..hello };
    drop(Client::joins(&host, &newer));
    let joined = host.peer();
    assert!(joined.is_joined_to(&leader));
    joined.enqueues("a job");
    assert_jobs(&leader, ["a job".to_owned()]);
}

/// A greeting that this version does not know.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Newer {
    Introduce { by: String },
}

/// The reason why a process writes alone whose leader, of another version, greets it like this.
fn reason<T: Serialize>(greeting: &T) -> String {
    let host = Host::new();
    let mut first = host.peer();
    let elsewhere = temporary();
    let name = host.socket(0).file_name().expect("a socket has a name").to_owned();
    let listener = UnixListener::bind(elsewhere.path().join(name)).expect("the directory is ours");
    let peer = Peer::start();
    let opened = peer.opens_at(&host, elsewhere.path(), &[]);
    let (stream, _) = listener.accept().expect("the process connects");
    let mut client = Client::over(stream);
    client.next::<Hello>().expect("the process introduces itself");
    client.sends(greeting);
    opened.done();
    let HostRole::Alone { reason } = peer.role() else { panic!("{:?}", peer.role()) };
    // It writes directly, beside the other one.
    let (one, two) = (first.begins_many("first", 20), peer.begins_many("peer", 20));
    one.into_iter().chain(two).for_each(super::peers::Pending::done);
    assert!(peer.metrics().count("puts") > 0);
    first.dies();
    let all = ["first", "peer"].into_iter().flat_map(|name| (0..20).map(move |i| format!("{name}{i}")));
    assert_jobs(&peer, all);
    reason.expect("it says why")
}

#[test]
fn a_process_that_a_leader_of_another_version_greets_writes_directly() {
    let refused = Greeting::Refused { reason: OTHER_PROTOCOL.to_owned() };
    assert_eq!(reason(&refused), OTHER_PROTOCOL);
    let unknown = Newer::Introduce { by: "a newer version".to_owned() };
    assert_eq!(reason(&unknown), "a message of the other side cannot be read");
}
