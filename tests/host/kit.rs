//! Other processes, and directories with the rights that a test needs.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// A user that is not the one of these tests.
pub const STRANGER: u32 = 64_711;

/// Another process. It ends with this value, and its forked children too.
pub struct Neighbour {
    child: Child,
    orders: ChildStdin,
    replies: BufReader<ChildStdout>,
    forked: Vec<Pid>,
}

impl Neighbour {
    /// A process with only these variables of its environment.
    pub fn start(variables: &[(&str, &Path)]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_host"))
            .env_clear()
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let orders = child.stdin.take().expect("it is piped");
        let replies = BufReader::new(child.stdout.take().expect("it is piped"));
        Self { child, orders, replies, forked: vec![] }
    }

    /// A process that has found the place of a queue file `jobs` in this directory.
    pub fn at(dir: &Path) -> Self {
        let mut started = Self::start(&[]);
        let found = started.is_told(&format!("find {} jobs", dir.display()));
        assert!(found.starts_with("found "), "{found}");
        started
    }

    /// Give it an order, and return its reply.
    pub fn is_told(&mut self, order: &str) -> String {
        writeln!(self.orders, "{order}").expect("it reads");
        let mut reply = String::new();
        self.replies.read_line(&mut reply).expect("it writes");
        reply.trim_end().to_owned()
    }

    /// Let it fork, and return the child.
    pub fn forks(&mut self) -> Pid {
        let reply = self.is_told("fork");
        let pid = reply.strip_prefix("forked ").and_then(|pid| pid.parse().ok()).and_then(Pid::from_raw);
        let pid = pid.unwrap_or_else(|| panic!("{reply}"));
        self.forked.push(pid);
        pid
    }

    /// Stop it in the middle of its work: it keeps all that it has.
    pub fn stops(&self) {
        kill_process(Pid::from_child(&self.child), Signal::STOP).expect("it lives");
    }

    /// Kill it. Its forked children live.
    pub fn dies(&mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it is a child of this process");
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        for pid in &self.forked {
            let _ = kill_process(*pid, Signal::KILL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An empty directory that only this user can access.
pub fn temporary() -> TempDir {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    set_mode(dir.path(), 0o700);
    dir
}

/// A new directory with this mode.
pub fn directory(path: PathBuf, mode: u32) -> PathBuf {
    fs::create_dir(&path).expect("it can be made");
    set_mode(&path, mode);
    path
}

pub fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("it is ours");
}

pub fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("it is there").permissions().mode() & 0o7777
}

/// Whether these tests may give files away and mount disks, as in CI. Without that, a test that needs it says so.
pub fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("only root can give files away and mount disks: this test proves nothing here");
    }
    is_root
}

/// A disk in memory, as long as this value lives.
pub struct Mounted(PathBuf);

impl Mounted {
    /// Mounts it over this directory. None where that is not allowed, as in most containers.
    pub fn over(dir: &Path, options: &str) -> Option<Self> {
        let mut command = Command::new("mount");
        command.args(["-t", "tmpfs", "-o", options, "bucketq-test"]).arg(dir).stderr(Stdio::null());
        let is_done = is_root() && command.status().is_ok_and(|status| status.success());
        is_done.then(|| Self(dir.to_owned()))
    }

    /// Makes it read-only.
    pub fn is_only_read(&self) {
        let status = Command::new("mount").args(["-o", "remount,ro"]).arg(&self.0).status();
        assert!(status.expect("it has mounted before").success());
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}
