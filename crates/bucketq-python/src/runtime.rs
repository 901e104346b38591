//! The one runtime of this process: timers and background tasks. Started by the first call, never by an import.

use std::process;
use std::sync::OnceLock;

use bucketq::{Code, Error, Result};
use tokio::runtime::{Builder, Runtime};

static RUNTIME: OnceLock<(u32, Result<Runtime>)> = OnceLock::new();

/// The runtime, started if need be.
pub fn get() -> Result<&'static Runtime> {
    let (pid, runtime) = RUNTIME.get_or_init(|| (process::id(), start()));
    if *pid != process::id() {
        // Its threads did not survive the fork, and locks of theirs may never open again.
        return Err(Error::new(
            Code::Closed,
            "this process was forked after bucketq was used: open queue files in the child only, or use the start method spawn",
        ));
    }
    runtime.as_ref().map_err(Clone::clone)
}

/// True in the process that made an object with this process id.
pub fn is_home(pid: u32) -> bool {
    pid == process::id()
}

fn start() -> Result<Runtime> {
    Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("bucketq python")
        .enable_all()
        .build()
        .map_err(|e| Error::new(Code::Internal, "no runtime can be started").because(e))
}
