//! Measures how several processes of one host share a queue file. `make bench-hosts`; `--quick` only shows that it runs.
//!
//! A table with the aims goes to standard error, JSON to the last line of standard output. README.md beside `src`
//! explains each key. `--unshared` makes every process a writer of its own, `--only KEY` measures one question,
//! `--python PATH` also measures Python callers with this interpreter.

use std::path::PathBuf;
use std::time::Duration;

use bucketq::error::{Code, Error, Result};
use bucketq_benches::hosts::{
    DOWNSTREAM, Effort, Ground, UPSTREAM, beside, child, fair, link, say, speed, takeover,
};
use bucketq_benches::servers::{Missing, SlowServer};
use bucketq_benches::stats::{Aim, judge};
use serde_json::{Map, Value, json};

const FULL: Effort = Effort {
    warm: Duration::from_millis(1_500),
    window: Duration::from_secs(5),
    rounds: 2,
    web: Duration::from_secs(25),
    kills: 10,
    after_kill: Duration::from_millis(2_500),
    joins: 15,
};

const QUICK: Effort = Effort {
    warm: Duration::from_millis(300),
    window: Duration::from_secs(1),
    rounds: 1,
    web: Duration::from_secs(3),
    kills: 2,
    after_kill: Duration::from_secs(1),
    joins: 3,
};

/// No run takes longer.
const AT_MOST: Duration = Duration::from_mins(10);

/// The questions, each with the keys that reply to it.
const QUESTIONS: [(&str, &[&str]); 8] = [
    ("shared_ratio", &["shared_ratio", "p99_puts"]),
    ("web_p99_puts", &["web_p99_puts"]),
    ("wake_ms", &["wake_ms"]),
    ("upload_ratio", &["upload_ratio"]),
    ("takeover_ms", &["takeover_ms"]),
    ("join_ms", &["join_ms"]),
    ("link_us", &["link_us"]),
    ("fair_max_commits", &["fair_max_commits"]),
];

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |name: &str| arguments.iter().any(|a| a == name);
    let after = |name: &str| arguments.iter().position(|a| a == name).and_then(|at| arguments.get(at + 1));
    if has("--child") {
        let ended = child::run().await;
        if let Err(error) = &ended {
            eprintln!("a process of the benchmark: {error}");
        }
        // A read of standard input may still be waiting, and would hold up an ordinary end.
        std::process::exit(i32::from(ended.is_err()));
    }
    let effort = if has("--quick") { QUICK } else { FULL };
    let share = !has("--unshared");
    let python = after("--python").map(PathBuf::from);
    let only = after("--only").map(String::as_str);
    if let Some(only) = only.filter(|only| QUESTIONS.iter().all(|(name, _)| name != only)) {
        let names = QUESTIONS.map(|(name, _)| name).join(", ");
        return Err(Error::invalid(format!("there is no {only}, but {names}")));
    }
    // The processes and servers are killed when they are dropped, so every way out has to drop them.
    let told = tokio::select! {
        told = tokio::time::timeout(AT_MOST, measure(&effort, share, python, only)) => {
            told.map_err(|e| Error::new(Code::Internal, "the benchmark takes too long").because(e))??
        }
        () = asked_to_end() => return Err(Error::new(Code::Internal, "the benchmark was interrupted")),
    };
    print_table(&told);
    println!("{told}");
    Ok(())
}

#[cfg(unix)]
async fn asked_to_end() {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut end) = signal(SignalKind::terminate()) else { return std::future::pending().await };
    tokio::select! {
        _ = end.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
}

#[cfg(not(unix))]
async fn asked_to_end() {
    let _ = tokio::signal::ctrl_c().await;
}

async fn measure(effort: &Effort, share: bool, python: Option<PathBuf>, only: Option<&str>) -> Result<Value> {
    let mut told: Map<String, Value> =
        QUESTIONS.iter().flat_map(|(_, keys)| *keys).map(|key| ((*key).to_owned(), Value::Null)).collect();
    let server = match SlowServer::start_gofakes3(UPSTREAM, DOWNSTREAM).await {
        Ok(server) => server,
        Err(Missing::NotInstalled(why)) => {
            say(&format!("all null: {why}"));
            return Ok(told.into());
        }
        Err(Missing::Failed(error)) => return Err(error),
    };
    // Private to this user, and removed at the end.
    let meeting =
        tempfile::tempdir().map_err(|e| Error::new(Code::LocalFile, "no temporary directory").because(e))?;
    let ground = Ground { s3: server.options.clone(), share, meeting: meeting.path().to_owned(), python };
    for (question, _) in QUESTIONS.iter().filter(|(name, _)| only.is_none_or(|only| only == *name)) {
        say(&format!("measuring: {question}"));
        let found = match *question {
            "web_p99_puts" => beside::web(&ground, effort).await?,
            "wake_ms" => beside::wake(&ground, effort).await?,
            "upload_ratio" => speed::uploads(&ground, effort).await?,
            "takeover_ms" => takeover::kills(&ground, effort).await?,
            "join_ms" => takeover::joins(&ground, effort).await?,
            "link_us" => link::measure(&ground, effort).await?,
            "fair_max_commits" => fair::measure(&ground, effort).await?,
            _ => {
                if let Value::Object(several) = speed::measure(&ground, effort).await? {
                    told.extend(several);
                }
                continue;
            }
        };
        told.insert((*question).to_owned(), found);
    }
    Ok(told.into())
}

/// Prints the results next to their aims, one line each.
fn print_table(told: &Value) {
    use Aim::{AtLeast, AtMost};
    let aims = [
        ("/shared_ratio/8x8", AtLeast(0.90)),
        ("/shared_ratio/4x1", AtLeast(0.90)),
        ("/p99_puts", AtMost(3.0)),
        ("/web_p99_puts", AtMost(3.0)),
        ("/wake_ms", AtMost(10.0)),
        ("/upload_ratio", AtMost(1.2)),
        ("/takeover_ms/p50", AtMost(500.0)),
        ("/takeover_ms/max", AtMost(2_000.0)),
        ("/join_ms", AtMost(10.0)),
        ("/link_us", AtMost(15.0)),
        ("/fair_max_commits", AtMost(8.0)),
        ("/python_ratio/blocking", AtLeast(0.80)),
        ("/python_ratio/async", AtLeast(0.80)),
    ];
    for (path, aim) in aims {
        eprintln!("{}", judge(&path[1..], told.pointer(path).unwrap_or(&json!(null)), aim));
    }
}
