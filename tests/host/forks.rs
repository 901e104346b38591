//! Forked children of processes that share a writer.

use std::fs;

use bucketq_tests::peer::Order;
use rustix::process::{Pid, Signal, kill_process};

use crate::peers::{Host, Peer, until};

/// A forked child. It ends with this value.
struct Forked(i32);

impl Forked {
    fn of(peer: &Peer) -> Self {
        Self(peer.begins(Order::Fork).ok())
    }
}

impl Drop for Forked {
    fn drop(&mut self) {
        if let Some(pid) = Pid::from_raw(self.0) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// The sockets that this process has open.
#[cfg(target_os = "linux")]
fn sockets(pid: u32) -> usize {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).expect("it lives").flatten();
    let names = open.filter_map(|file| fs::read_link(file.path()).ok());
    names.filter(|name| name.to_string_lossy().starts_with("socket:")).count()
}

#[cfg(target_os = "linux")]
#[test]
fn a_forked_child_closes_the_sockets_to_other_processes() {
    let host = Host::new();
    let (leader, joined) = (host.peer(), host.peer());
    assert!(joined.is_joined_to(&leader));
    // The leader listens and has a connection, the other one has its end of it. The rest belongs to the runtime.
    for (peer, own) in [(&leader, 2), (&joined, 1)] {
        let child = Forked::of(peer);
        assert_eq!(sockets(child.0.unsigned_abs()) + own, sockets(peer.pid()));
    }
    // The parents have theirs as before.
    joined.enqueues("a job");
    assert_eq!(leader.claims(1).len(), 1);
    assert!(host.peer().is_joined_to(&leader));
}

#[test]
fn a_forked_child_of_a_killed_leader_keeps_its_connections_from_nobody() {
    let host = Host::new();
    let (mut leader, joined) = (host.peer(), host.peer());
    let _child = Forked::of(&leader);
    let calls = joined.begins_many("job", 50);
    leader.dies();
    calls.into_iter().for_each(super::peers::Pending::done);
    until("a new leader", || joined.leads());
    assert!(host.peer().is_joined_to(&joined));
}
