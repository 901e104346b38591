//! `chaos ORDERS`: one process of a chaos run. `make chaos` starts many of them.

use std::process::ExitCode;

use bucketq_tests::chaos::{Orders, work};

fn main() -> ExitCode {
    let orders = std::env::args().nth(1).unwrap_or_default();
    let orders = match Orders::from_text(&orders) {
        Ok(orders) => orders,
        Err(wrong) => {
            eprintln!("the orders are not as tests/chaos/run.py writes them: {wrong}");
            return ExitCode::FAILURE;
        }
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    match runtime.expect("a runtime can be made").block_on(work(orders)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
