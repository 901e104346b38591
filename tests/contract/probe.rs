//! The probe passes stores that keep their promises and refuses the others, with the fault it saw.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bucketq::env::Env;
use bucketq::error::{Code, Error, Kind, Result};
use bucketq::store::probe::{ROUNDS_AT_CREATION, WRITERS};
use bucketq::store::{Expect, Got, Memory, Put, Store, Version, probe};
use bucketq_tests::ground::Ground;
use bucketq_tests::servers;
use bytes::Bytes;

/// Longer than any probe takes.
const DEADLINE: Duration = Duration::from_mins(5);

/// One fault that a store can have.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Flaw {
    None,
    IgnoresIfNoneMatch,
    IgnoresIfMatch,
    CreatesWithIfMatch,
    RefusesEverything,
    NeverWinsARace,
    TwoWinnersNowAndThen,
    WinnerIsNotWritten,
    RefusesAndWrites,
    StaleGet,
    OtherVersionOnGet,
    OneVersionForAll,
    KeepsTheDeleted,
    LosesConnections,
    Throttles,
    ThrottlesNowAndThen,
}

#[derive(Debug)]
struct Flawed {
    flaw: Flaw,
    inner: Memory,
    before: Mutex<BTreeMap<String, Got>>,
    puts: AtomicU64,
}

impl Flawed {
    fn stores(flaw: Flaw) -> Vec<Arc<dyn Store>> {
        let (inner, before, puts) = (Memory::new(), Mutex::default(), AtomicU64::new(0));
        vec![Arc::new(Self { flaw, inner, before, puts })]
    }

    async fn force(&self, key: &str, body: Bytes) -> Put {
        self.inner.put_new(key, body).await.expect("memory answers");
        match self.inner.get(key, None).await.expect("memory answers") {
            Got::Object { version, date_ms, .. } => Put::Stored { version, date_ms },
            other => panic!("{other:?}"),
        }
    }

    fn trouble(code: Code) -> Put {
        let error = Error::new(code, "as told");
        Put::Unknown { error, sent: true, retry_after: Some(Duration::from_secs(1)) }
    }
}

#[async_trait]
impl Store for Flawed {
    async fn get(&self, key: &str, unless: Option<&Version>) -> Result<Got> {
        let got = self.inner.get(key, unless).await?;
        let before = self.before.lock().expect("nothing panics here").get(key).cloned();
        Ok(match (self.flaw, got, before) {
            (Flaw::StaleGet | Flaw::KeepsTheDeleted, _, Some(before)) => before,
            (Flaw::OtherVersionOnGet, Got::Object { bytes, version, date_ms }, _) => {
                Got::Object { bytes, version: Version::new(format!("\"{}\"", version.as_str())), date_ms }
            }
            (Flaw::OneVersionForAll, Got::Object { bytes, date_ms, .. }, _) => {
                Got::Object { bytes, version: Version::new("same"), date_ms }
            }
            (_, got, _) => got,
        })
    }

    async fn put_if(&self, key: &str, body: Bytes, expect: &Expect) -> Put {
        let number = self.puts.fetch_add(1, Ordering::Relaxed);
        if self.flaw == Flaw::StaleGet {
            let now = self.inner.get(key, None).await.expect("memory answers");
            self.before.lock().expect("nothing panics here").insert(key.to_owned(), now);
        }
        // The quiet part of the probe has five puts.
        let alone = number < 5;
        match (self.flaw, expect) {
            (Flaw::IgnoresIfNoneMatch, Expect::Absent) | (Flaw::IgnoresIfMatch, Expect::Is(_)) => {
                self.force(key, body).await
            }
            (Flaw::CreatesWithIfMatch, Expect::Is(_)) => {
                match self.inner.put_if(key, body.clone(), &Expect::Absent).await {
                    Put::Conflict => self.inner.put_if(key, body, expect).await,
                    stored => stored,
                }
            }
            (Flaw::RefusesEverything, _) => Put::Conflict,
            (Flaw::NeverWinsARace, _) if !alone => Put::Conflict,
            (Flaw::TwoWinnersNowAndThen, _) if number > 60 && number.is_multiple_of(31) => {
                self.force(key, body).await
            }
            (Flaw::WinnerIsNotWritten, _) if !alone => {
                let put = self.inner.put_if(key, body, expect).await;
                if matches!(put, Put::Stored { .. }) {
                    self.force(key, Bytes::from("somebody else's")).await;
                }
                put
            }
            (Flaw::RefusesAndWrites, _) if !alone => {
                self.force(key, body).await;
                Put::Conflict
            }
            (Flaw::OneVersionForAll, Expect::Is(_)) => self.force(key, body).await.with_version("same"),
            (Flaw::OneVersionForAll, Expect::Absent) => {
                self.inner.put_if(key, body, expect).await.with_version("same")
            }
            (Flaw::LosesConnections, _) => Self::trouble(Code::Unreachable),
            (Flaw::Throttles, _) => Self::trouble(Code::Throttled),
            (Flaw::ThrottlesNowAndThen, _) if !alone && !number.is_multiple_of(3) => {
                Self::trouble(Code::Throttled)
            }
            _ => self.inner.put_if(key, body, expect).await,
        }
    }

    async fn delete(&self, key: &str) -> Result<()> {
        if self.flaw == Flaw::KeepsTheDeleted {
            let now = self.inner.get(key, None).await?;
            self.before.lock().expect("nothing panics here").insert(key.to_owned(), now);
        }
        self.inner.delete(key).await
    }

    fn describe(&self) -> String {
        format!("a store with the flaw {:?}", self.flaw)
    }

    fn needs_probe(&self) -> bool {
        true
    }

    bucketq::forward_to_inner!(put_new list default_max_skew);
}

trait WithVersion {
    fn with_version(self, version: &str) -> Self;
}

impl WithVersion for Put {
    fn with_version(self, version: &str) -> Self {
        match self {
            Self::Stored { date_ms, .. } => Self::Stored { version: Version::new(version), date_ms },
            other => other,
        }
    }
}

async fn verdict(flaw: Flaw) -> (Result<bucketq::store::ProbeReport>, Vec<Arc<dyn Store>>) {
    let stores = Flawed::stores(flaw);
    (probe(&stores, "jobs", ROUNDS_AT_CREATION, WRITERS, DEADLINE, &Env::default()).await, stores)
}

#[tokio::test(start_paused = true)]
async fn a_store_that_keeps_its_word_passes_and_is_left_as_it_was() {
    let (report, stores) = verdict(Flaw::None).await;
    let report = report.expect("it keeps its word");
    assert_eq!((report.rounds, report.writers, report.unanswered), (ROUNDS_AT_CREATION, WRITERS, 0));
    // Three in the quiet part, then all but one in two races a round.
    assert_eq!(report.conflicts, 3 + u64::from(ROUNDS_AT_CREATION) * 2 * u64::from(WRITERS - 1));
    assert_eq!(stores[0].list("").await.expect("memory answers"), []);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_breaks_its_word_is_refused_by_what_it_did() {
    for (flaw, what) in [
        (Flaw::IgnoresIfNoneMatch, "wrote twice with If-None-Match: *"),
        (Flaw::IgnoresIfMatch, "wrote with If-Match and a stale ETag"),
        (Flaw::CreatesWithIfMatch, "created a missing object with If-Match"),
        (Flaw::RefusesEverything, "refuses If-None-Match: * for an object that was never written"),
        (Flaw::NeverWinsARace, "no writer won round 1 with If-None-Match: *"),
        (Flaw::TwoWinnersNowAndThen, "2 of 16 writers won round"),
        (
            Flaw::WinnerIsNotWritten,
            "a GET after round 1 with If-None-Match: * on another connection shows another body",
        ),
        (Flaw::RefusesAndWrites, "no writer won round 1 with If-None-Match: *, but one body was written"),
        (Flaw::StaleGet, "a GET right after a PUT on another connection shows nothing"),
        (
            Flaw::OtherVersionOnGet,
            "a GET right after a PUT on another connection has the ETag \"1\", the PUT had 1",
        ),
        (Flaw::OneVersionForAll, "gave another body the same ETag"),
        (Flaw::KeepsTheDeleted, "still shows an object right after its deletion"),
    ] {
        let (report, stores) = verdict(flaw).await;
        let error = report.expect_err("it breaks its word");
        assert_eq!(
            (error.kind(), error.code()),
            (Kind::Unavailable, Code::NoCompareAndSwap),
            "{flaw:?}: {error}"
        );
        assert!(error.message().contains(what), "{flaw:?}: `{}` does not say `{what}`", error.message());
        assert!(error.message().contains("a store with the flaw"), "{flaw:?}: which store? {error}");
        assert_eq!(stores[0].list("").await.expect("memory answers"), [], "{flaw:?} leaves litter");
    }
}

#[tokio::test(start_paused = true)]
async fn trouble_on_the_way_is_no_refusal() {
    for (flaw, code) in [(Flaw::LosesConnections, Code::Unreachable), (Flaw::Throttles, Code::Throttled)] {
        let error = verdict(flaw).await.0.expect_err("nothing was answered");
        assert_eq!((error.kind(), error.code()), (Kind::Unavailable, code), "{flaw:?}: {error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_too_busy_for_some_of_the_writers_passes() {
    let report = verdict(Flaw::ThrottlesNowAndThen).await.0.expect("those it answered saw one winner");
    assert!(report.unanswered > 0, "{report:?}");
}

#[tokio::test]
async fn memory_and_directory_would_pass() {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    for ground in [Ground::memory(), Ground::directory(dir.path())] {
        let stores = ground.stores(4);
        probe(&stores, "jobs", ROUNDS_AT_CREATION, WRITERS, DEADLINE, &Env::default())
            .await
            .expect("it keeps its word");
    }
}

#[tokio::test]
async fn the_s3_server_passes_within_two_seconds() {
    let Some(server) = servers::s3().await else { return };
    let stores = Ground::server(&server).await.stores(WRITERS as usize);
    let report = probe(&stores, "jobs", ROUNDS_AT_CREATION, WRITERS, DEADLINE, &Env::default()).await;
    let report = report.expect("it keeps its word");
    assert!(report.took < Duration::from_secs(2), "{report:?}");
    assert_eq!(stores[0].list("").await.expect("it answers"), [], "the probe cleans up");
}
