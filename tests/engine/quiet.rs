//! Logs, traces and errors never contain the contents of jobs.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use bucketq::{Options, Payload, Result};
use bucketq_tests::given::{inline, puppet, refused};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::util::SubscriberInitExt;

const CARRIED: &str = "what-this-job-carries";

#[derive(Clone, Debug, Default)]
struct Traces(Arc<Mutex<Vec<u8>>>);

impl Traces {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }
}

impl Write for Traces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn payloads_and_results_are_in_no_trace_and_no_error() -> Result<()> {
    let told = Traces::default();
    let writer = told.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(LevelFilter::TRACE)
        .with_ansi(false)
        .with_span_events(tracing_subscriber::fmt::format::FmtSpan::FULL)
        .with_writer(move || writer.clone())
        .finish();
    let _guard = subscriber.set_default();
    let (puppet, file) = puppet(Options { max_payload: 100, ..inline() }).await?;
    let q = file.queue("q")?;
    q.enqueue(Payload::text(CARRIED)).await?;
    q.enqueue(Payload::text(CARRIED)).await?;
    let too_long = refused(q.enqueue(Payload::text(CARRIED.repeat(50))).await);
    let mut taken = file.claim(2).await?;
    file.ack_with(taken.remove(0).held(), Payload::text(CARRIED)).await?;
    let held = taken.remove(0).held();
    file.nack(held, None, Some("no good".into())).await?;
    let stale = refused(file.ack_with(held, Payload::text(CARRIED)).await);
    for error in [too_long, stale] {
        assert!(!format!("{error} {error:?}").contains(CARRIED), "{error:?}");
    }
    file.close().await?;
    drop(puppet);
    let text = told.text();
    assert!(text.contains("made a queue file"), "what is told is seen here: {text}");
    assert!(!text.contains(CARRIED), "{text}");
    Ok(())
}
