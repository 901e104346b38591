//! `soak ORDERS`: the Rust process of a soak, which `make soak` starts beside two in Python.

use std::alloc::System;
use std::process::ExitCode;

use bucketq_tests::soak::{Orders, work};
use cap::Cap;

#[global_allocator]
static MEMORY: Cap<System> = Cap::new(System, usize::MAX);

fn main() -> ExitCode {
    let orders = std::env::args().nth(1).unwrap_or_default();
    let orders = match Orders::from_text(&orders) {
        Ok(orders) => orders,
        Err(wrong) => {
            eprintln!("the orders are not as tests/chaos/soak.py writes them: {wrong}");
            return ExitCode::FAILURE;
        }
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime can be made");
    let ended = runtime.block_on(work(orders, || MEMORY.allocated()));
    // A read of the standard input may still block, which no longer matters.
    runtime.shutdown_background();
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
