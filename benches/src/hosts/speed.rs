//! The speed of several processes over that of one with as many callers, the times of their calls, and the bytes they
//! upload.

use std::path::Path;
use std::time::Duration;

use bucketq::config::S3Options;
use bucketq::error::{Code, Error, Result};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::process::{Program, Team};
use super::puts::Puts;
use super::seen::Seen;
use super::{Effort, Ground, p50, p99, say, stretch};
use crate::counting::{Counts, serve};
use crate::stats::{mean, number};

/// The mean pause of the callers whose uploads are counted.
const LIGHT_MS: u64 = 250;

/// One side of a ratio.
struct Side {
    name: &'static str,
    processes: usize,
    callers: usize,
    program: Program,
    rates: Vec<f64>,
    seen: Seen,
    puts: Vec<Duration>,
}

impl Side {
    fn new(name: &'static str, processes: usize, callers: usize, program: Program) -> Self {
        Self { name, processes, callers, program, rates: vec![], seen: Seen::default(), puts: vec![] }
    }

    /// Measures one stretch in fresh processes on a fresh queue file.
    async fn round(&mut self, ground: &Ground, effort: &Effort, round: usize) -> Result<()> {
        let name = format!("{}-{round}", self.name);
        let mut team = Team::start(ground.place(&name), self.program.clone(), self.processes).await?;
        let group = json!({ "do": "enqueue", "callers": self.callers });
        let order = stretch(effort.warm, effort.window, &[group]);
        let puts = Puts::start(ground, &name).await?;
        let seen = Seen::together(team.run(|_| order.clone()).await?);
        self.puts.push(puts.end().await?);
        team.end().await;
        self.rates.push(seen.ops as f64 / effort.window.as_secs_f64());
        self.seen.add(seen);
        Ok(())
    }

    fn ops_s(&self) -> f64 {
        self.rates.iter().sum::<f64>() / self.rates.len() as f64
    }

    fn put_us(&self) -> f64 {
        mean(&self.puts).as_secs_f64() * 1e6
    }

    fn tell(&self) {
        let ms = |us: Option<f64>| us.unwrap_or(f64::NAN) / 1e3;
        say(&format!(
            "  {:<16} {:>7.0} ops/s, p50 {:.0} ms, p99 {:.0} ms, PUT {:.1} ms{}",
            self.name,
            self.ops_s(),
            ms(p50(&self.seen.times_us)),
            ms(p99(&self.seen.times_us)),
            self.put_us() / 1e3,
            self.seen.failures(),
        ));
    }
}

/// Measures `shared_ratio`, `p99_puts` and, if there is an interpreter, `python_ratio`. The sides take turns.
pub async fn measure(ground: &Ground, effort: &Effort) -> Result<Value> {
    let mut sides = vec![
        Side::new("8x8", 8, 8, Program::Rust),
        Side::new("1x64", 1, 64, Program::Rust),
        Side::new("4x1", 4, 1, Program::Rust),
        Side::new("1x4", 1, 4, Program::Rust),
    ];
    if let Some(python) = &ground.python {
        let with = |api| Program::Python(Path::to_owned(python), api);
        sides.push(Side::new("blocking-8x8", 8, 8, with("blocking")));
        sides.push(Side::new("async-8x8", 8, 8, with("async")));
    }
    for round in 0..effort.rounds {
        for side in &mut sides {
            side.round(ground, effort, round).await?;
        }
    }
    for side in &sides {
        side.tell();
    }
    let ratio = |a: usize, b: usize| number(sides[a].ops_s() / sides[b].ops_s(), 3);
    let p99_us = p99(&sides[0].seen.times_us).unwrap_or(f64::NAN);
    let mut told = json!({
        "shared_ratio": { "8x8": ratio(0, 1), "4x1": ratio(2, 3) },
        "p99_puts": number(p99_us / sides[0].put_us(), 1),
    });
    if sides.len() > 4 {
        told["python_ratio"] = json!({ "blocking": ratio(4, 0), "async": ratio(5, 0) });
    }
    Ok(told)
}

/// Returns the bytes in PUTs per job of eight processes with one caller each over those of one process with eight. All
/// callers pause, so that both sides enqueue at about the same rate.
pub async fn uploads(ground: &Ground, effort: &Effort) -> Result<Value> {
    let eight = bytes_per_job(ground, effort, 8, 1).await?;
    let one = bytes_per_job(ground, effort, 1, 8).await?;
    Ok(number(eight / one, 2))
}

async fn bytes_per_job(ground: &Ground, effort: &Effort, processes: usize, callers: usize) -> Result<f64> {
    let broken = |e: std::io::Error| Error::new(Code::Internal, "the counting proxy").because(e);
    let listener = TcpListener::bind("127.0.0.1:0").await.map_err(broken)?;
    let address = listener.local_addr().map_err(broken)?;
    let counts = Counts::default();
    let server = ground.s3.endpoint.clone().unwrap_or_default().replace("http://", "");
    let proxy = tokio::spawn(serve(listener, server, counts.clone()));
    let s3 = S3Options { endpoint: Some(format!("http://{address}")), ..ground.s3.clone() };
    let counted = Ground { s3, ..ground.clone() };

    let place = counted.place(&format!("uploads-{processes}"));
    let mut team = Team::start(place, Program::Rust, processes).await?;
    let group = json!({ "do": "enqueue", "callers": callers, "pause_ms": LIGHT_MS });
    let order = stretch(effort.warm, effort.whole(), &[group]);
    team.order(|_| order.clone()).await?;
    tokio::time::sleep(effort.warm).await;
    let before = counts.put_bytes();
    tokio::time::sleep(effort.whole()).await;
    let (head, bulk) = (counts.put_bytes().0 - before.0, counts.put_bytes().1 - before.1);
    let seen = Seen::together(team.replies().await?);
    team.end().await;
    proxy.abort();
    let per_job = |bytes: u64| bytes as f64 / seen.ops as f64;
    say(&format!(
        "  {processes} x {callers}: {} jobs, bytes a job: {:.0} in HEAD, {:.0} in segments and bases{}",
        seen.ops,
        per_job(head),
        per_job(bulk),
        seen.failures(),
    ));
    Ok(per_job(head + bulk))
}
