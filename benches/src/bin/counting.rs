//! `counting SERVER`: forwards connections to this address and counts requests. `make bench-peers` starts it.
//!
//! The first line of its output is its own address. It replies to each line of input with the counts so far, as JSON.

use bucketq_benches::counting::{Counts, serve};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpListener;

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::io::Result<()> {
    let server = std::env::args().nth(1).unwrap_or_else(|| panic!("usage: counting SERVER"));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    let counts = Counts::default();
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    let proxy = tokio::spawn(serve(listener, server, counts.clone()));
    while lines.next_line().await?.is_some() {
        println!("{}", counts.told());
    }
    proxy.abort();
    Ok(())
}
