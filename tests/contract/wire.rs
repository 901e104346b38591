//! The exact requests of the S3 store, and how it treats every response, against a server with prepared responses.

use std::time::Duration;

use bucketq::config::{Credentials, S3Checksum, S3Options};
use bucketq::error::{Code, Kind};
use bucketq::store::{Expect, Got, Listed, Put, S3Store, Store, Version};
use bucketq_tests::http::{Say, Seen, Stub};
use bucketq_tests::servers::free_port;
use bytes::Bytes;

const ETAG: &str = "\"9a0364b9e99bb480dd25e1f0284c8555-x\"";

fn options(endpoint: &str) -> S3Options {
    S3Options {
        endpoint: Some(endpoint.to_owned()),
        region: Some("eu-test-1".to_owned()),
        credentials: Some(Credentials {
            access_key: "AKIAPUBLIC".to_owned(),
            secret_key: "TOPSECRET".to_owned(),
            session_token: None,
        }),
        connect_timeout: Some(Duration::from_millis(300)),
        request_timeout: Some(Duration::from_millis(600)),
        ..S3Options::default()
    }
}

async fn store(endpoint: &str) -> S3Store {
    S3Store::open("acme", "team/", &options(endpoint)).await.expect("the options are right")
}

fn stored() -> Say {
    Say::status(200, &[("etag", ETAG), ("date", "Tue, 15 Nov 1994 08:12:31 GMT")], "")
}

fn current() -> Expect {
    Expect::Is(Version::new(ETAG))
}

/// The request for one conditional put.
async fn sent(checksum: S3Checksum, expect: &Expect, body: &'static str) -> Seen {
    let stub = Stub::saying([stored()]).await;
    let options = S3Options { checksum, ..options(&stub.endpoint) };
    let store = S3Store::open("acme", "team/", &options).await.expect("the options are right");
    let put = store.put_if("jobs.head", Bytes::from(body), expect).await;
    assert!(matches!(put, Put::Stored { .. }), "{put:?}");
    let mut seen = stub.seen();
    assert_eq!(seen.len(), 1);
    seen.remove(0)
}

#[tokio::test]
async fn a_replacing_put_carries_the_etag_to_the_letter() {
    let seen = sent(S3Checksum::Crc32, &current(), "hello").await;
    assert!(seen.line.starts_with("PUT /acme/team/jobs.head"), "{}", seen.line);
    assert_eq!(seen.header("if-match"), Some(ETAG));
    assert_eq!(seen.header("if-none-match"), None);
}

#[tokio::test]
async fn a_creating_put_carries_a_star() {
    let seen = sent(S3Checksum::Crc32, &Expect::Absent, "hello").await;
    assert_eq!(seen.header("if-none-match"), Some("*"));
    assert_eq!(seen.header("if-match"), None);
}

#[tokio::test]
async fn the_body_goes_in_one_piece_with_its_checksum_in_a_header() {
    for (checksum, name, value) in [
        (S3Checksum::Crc32, "x-amz-checksum-crc32", Some("NhCmhg==")),
        (S3Checksum::Sha256, "x-amz-checksum-sha256", Some("LPJNul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ=")),
        (S3Checksum::None, "x-amz-checksum-crc32", None),
    ] {
        let seen = sent(checksum, &current(), "hello").await;
        assert_eq!(seen.header(name), value, "{checksum:?}");
        assert_eq!(seen.body, b"hello", "{checksum:?}");
        assert_eq!(seen.header("content-length"), Some("5"));
        // The signature covers the body's hash: a body cut short on the way is refused even without a checksum.
        let hash = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
        assert_eq!(seen.header("x-amz-content-sha256"), Some(hash), "{checksum:?}");
        for header in [
            "transfer-encoding",
            "content-encoding",
            "x-amz-trailer",
            "x-amz-decoded-content-length",
            "expect",
        ] {
            assert_eq!(seen.header(header), None, "{checksum:?}: {header}");
        }
    }
}

#[tokio::test]
async fn stored_gives_the_etag_to_the_letter_and_the_date() {
    let stub = Stub::saying([stored()]).await;
    match store(&stub.endpoint).await.put_if("jobs.head", Bytes::from("x"), &current()).await {
        Put::Stored { version, date_ms } => {
            assert_eq!((version.as_str(), date_ms), (ETAG, Some(784_887_151_000)));
        }
        other => panic!("{other:?}"),
    }
}

/// Short names for the three results.
#[derive(Debug, PartialEq)]
enum Answer {
    Conflict,
    Unknown { code: Code, sent: bool, retry_after: Option<u64> },
}

async fn answer_to(say: Say, expect: &Expect) -> Answer {
    let stub = Stub::saying([say.clone()]).await;
    let put = store(&stub.endpoint).await.put_if("jobs.head", Bytes::from("x"), expect).await;
    assert_eq!(stub.seen().len(), 1, "a conditional put is sent once, whatever comes back: {say:?}");
    match put {
        Put::Conflict => Answer::Conflict,
        Put::Unknown { error, sent, retry_after } => {
            assert!(!format!("{error} {error:?}").contains("TOPSECRET"));
            assert!(error.message().contains("PUT s3://acme/team/jobs.head: "), "{error}");
            Answer::Unknown { code: error.code(), sent, retry_after: retry_after.map(|d| d.as_secs()) }
        }
        Put::Stored { .. } => panic!("stored, by {say:?}"),
    }
}

#[tokio::test]
async fn every_answer_to_a_conditional_put_means_what_the_protocol_says() {
    let unknown = |code, sent| Answer::Unknown { code, sent, retry_after: None };
    let slow = |header: &str| {
        let headers = [("retry-after", header), ("date", "Tue, 15 Nov 1994 08:12:31 GMT")];
        Say::status(503, &headers, "<Error><Code>SlowDown</Code></Error>")
    };
    for (say, answer) in [
        (Say::s3_error(412, "PreconditionFailed"), Answer::Conflict),
        (Say::status(412, &[], ""), Answer::Conflict),
        (Say::s3_error(409, "ConditionalRequestConflict"), Answer::Conflict),
        (Say::s3_error(404, "NoSuchKey"), Answer::Conflict),
        (Say::status(404, &[], ""), unknown(Code::Unreachable, true)),
        (Say::s3_error(404, "NoSuchBucket"), unknown(Code::NoSuchBucket, false)),
        (Say::s3_error(404, "XAdminUserNotFound"), unknown(Code::Denied, false)),
        (Say::s3_error(404, "SomethingElse"), unknown(Code::Unreachable, true)),
        (Say::status(200, &[], ""), unknown(Code::Unreachable, true)),
        (Say::s3_error(403, "AccessDenied"), unknown(Code::Denied, false)),
        (Say::s3_error(403, "SignatureDoesNotMatch"), unknown(Code::Denied, false)),
        (Say::s3_error(401, "Unauthorized"), unknown(Code::Denied, false)),
        (Say::s3_error(403, "RequestTimeTooSkewed"), unknown(Code::ClockSkew, false)),
        (Say::s3_error(501, "NotImplemented"), unknown(Code::NoCompareAndSwap, false)),
        (Say::s3_error(429, "TooManyRequests"), unknown(Code::Throttled, true)),
        (Say::s3_error(503, "SlowDown"), unknown(Code::Throttled, true)),
        (slow("7"), Answer::Unknown { code: Code::Throttled, sent: true, retry_after: Some(7) }),
        (
            slow("Tue, 15 Nov 1994 08:12:51 GMT"),
            Answer::Unknown { code: Code::Throttled, sent: true, retry_after: Some(20) },
        ),
        (Say::s3_error(500, "InternalError"), unknown(Code::Unreachable, true)),
        (Say::s3_error(502, "BadGateway"), unknown(Code::Unreachable, true)),
        (Say::s3_error(400, "RequestTimeout"), unknown(Code::Unreachable, true)),
        (Say::s3_error(301, "PermanentRedirect"), unknown(Code::Unreachable, true)),
        (Say::Close, unknown(Code::Unreachable, true)),
        (Say::Hang, unknown(Code::Unreachable, true)),
        (Say::Raw("HTTP/1.1 200 OK\r\netag: \"x".to_owned()), unknown(Code::Unreachable, true)),
        (Say::Raw("nonsense\r\n\r\n".to_owned()), unknown(Code::Unreachable, true)),
    ] {
        assert_eq!(answer_to(say.clone(), &current()).await, answer, "{say:?}");
    }
    let missing = answer_to(Say::s3_error(404, "NoSuchKey"), &Expect::Absent).await;
    assert_eq!(missing, unknown(Code::Unreachable, true), "404 means nothing to If-None-Match: *");
}

#[tokio::test]
async fn without_a_connection_nothing_was_sent() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let silent = silent.local_addr().expect("a listener has an address");
    for endpoint in [
        format!("http://127.0.0.1:{}", free_port().await),
        "http://no-such-host.invalid".to_owned(),
        // Accepts nothing and so never finishes the handshake.
        format!("https://{silent}"),
    ] {
        let store = store(&endpoint).await;
        match store.put_if("jobs.head", Bytes::from("x"), &current()).await {
            Put::Unknown { error, sent: false, .. } => {
                assert_eq!(
                    (error.kind(), error.code()),
                    (Kind::Unavailable, Code::Unreachable),
                    "{endpoint}: {error}"
                );
            }
            other => panic!("{endpoint}: {other:?}"),
        }
        let error = store.get("jobs.head", None).await.expect_err("nobody is there");
        assert_eq!(error.code(), Code::Unreachable, "{endpoint}: {error}");
    }
}

#[tokio::test]
async fn a_connection_the_server_closed_meanwhile_is_replaced() {
    let closing = Say::status(200, &[("etag", ETAG), ("connection", "close")], "");
    let stub = Stub::saying([closing.clone(), closing, stored()]).await;
    let store = store(&stub.endpoint).await;
    for _ in 0..3 {
        let put = store.put_if("jobs.head", Bytes::from("x"), &current()).await;
        assert!(matches!(put, Put::Stored { .. }), "{put:?}");
    }
}

#[tokio::test]
async fn get_says_what_is_known_and_understands_what_comes() {
    let body = Say::status(200, &[("etag", ETAG), ("date", "Tue, 15 Nov 1994 08:12:31 GMT")], "hello");
    let same = Say::status(304, &[("etag", ETAG), ("date", "Tue, 15 Nov 1994 08:12:32 GMT")], "");
    let gone = Say::s3_error(404, "NoSuchKey");
    let stub = Stub::saying([body.clone(), same, body, gone]).await;
    let store = store(&stub.endpoint).await;
    let version = match store.get("jobs.head", None).await.expect("it answers") {
        Got::Object { bytes, version, date_ms } => {
            assert_eq!((&bytes[..], version.as_str(), date_ms), (&b"hello"[..], ETAG, Some(784_887_151_000)));
            version
        }
        other => panic!("{other:?}"),
    };
    let got = store.get("jobs.head", Some(&version)).await.expect("it answers");
    assert!(matches!(got, Got::Unchanged { date_ms: Some(784_887_152_000) }), "{got:?}");
    let got = store.get("jobs.head", Some(&version)).await.expect("it answers");
    assert!(matches!(got, Got::Unchanged { .. }), "a server that sends it again all the same: {got:?}");
    let got = store.get("jobs.head", None).await.expect("it answers");
    assert!(matches!(got, Got::Absent { .. }), "{got:?}");
    let seen = stub.seen();
    let conditions: Vec<_> = seen.iter().map(|s| s.header("if-none-match")).collect();
    assert_eq!(conditions, [None, Some(ETAG), Some(ETAG), None]);
}

#[tokio::test]
async fn only_a_missing_key_is_absent() {
    for (say, code) in [
        (Say::s3_error(404, "NoSuchBucket"), Code::NoSuchBucket),
        (Say::status(404, &[], "<html>lost</html>"), Code::Unreachable),
        (Say::s3_error(403, "AccessDenied"), Code::Denied),
        (Say::status(200, &[], "no etag"), Code::Unreachable),
        (Say::status(304, &[], ""), Code::Unreachable),
    ] {
        let stub = Stub::saying([say.clone()]).await;
        let error = store(&stub.endpoint).await.get("jobs.head", None).await.expect_err("it is not absent");
        assert_eq!((error.kind(), error.code()), (Kind::Unavailable, code), "{say:?}: {error}");
        assert!(error.message().contains("GET s3://acme/team/jobs.head: "), "{error}");
    }
}

#[tokio::test]
async fn requests_that_may_be_repeated_are() {
    let cut = Say::Raw(format!("HTTP/1.1 200 OK\r\netag: {ETAG}\r\ncontent-length: 5\r\n\r\nhe"));
    let whole = Say::status(200, &[("etag", ETAG)], "hello");
    for (first, then) in [
        (Say::s3_error(503, "SlowDown"), &whole),
        (Say::Close, &whole),
        (Say::s3_error(500, "InternalError"), &whole),
    ] {
        let stub = Stub::saying([first.clone(), then.clone()]).await;
        let got = store(&stub.endpoint).await.get("jobs.head", None).await;
        assert!(matches!(got, Ok(Got::Object { .. })), "{first:?}: {got:?}");
        let stub = Stub::saying([first.clone(), then.clone()]).await;
        store(&stub.endpoint)
            .await
            .put_new("jobs.base-1", Bytes::from("x"))
            .await
            .expect("the second try works");
        assert_eq!(stub.seen().len(), 2, "{first:?}");
    }
    // The stub keeps the connection after a body that is cut short: only the time limit helps.
    let stub = Stub::saying([cut, whole]).await;
    match store(&stub.endpoint).await.get("jobs.head", None).await.expect("the second try works") {
        Got::Object { bytes, .. } => assert_eq!(bytes, "hello"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn list_follows_every_page_and_takes_the_path_away() {
    let page = |keys: &[&str], next: Option<&str>| {
        let contents: Vec<String> =
            keys.iter().map(|k| format!("<Contents><Key>{k}</Key><Size>7</Size></Contents>")).collect();
        let contents = contents.concat();
        let next =
            next.map_or(String::new(), |n| format!("<NextContinuationToken>{n}</NextContinuationToken>"));
        Say::status(200, &[], &format!("<ListBucketResult>{contents}{next}</ListBucketResult>"))
    };
    let stub =
        Stub::saying([page(&["team/jobs.b", "team/jobs.c"], Some("more+1")), page(&["team/jobs.a"], None)])
            .await;
    let listed = store(&stub.endpoint).await.list("jobs.").await.expect("it answers");
    let expected = ["jobs.a", "jobs.b", "jobs.c"].map(|key| Listed { key: key.to_owned(), size: 7 });
    assert_eq!(listed, expected);
    let seen = stub.seen();
    assert!(seen[0].line.contains("prefix=team%2Fjobs."), "{}", seen[0].line);
    assert!(seen[1].line.contains("continuation-token=more%2B1"), "{}", seen[1].line);
}

/// A list that never ends is an error, however the server produces it.
#[tokio::test]
async fn a_list_that_would_never_end_is_an_error() {
    let page = |truncated: &str, next: &str| {
        let body = format!(
            "<ListBucketResult>{truncated}<Contents><Key>team/jobs.a</Key><Size>7</Size></Contents>{next}</ListBucketResult>"
        );
        Say::status(200, &[], &body)
    };
    let more = "<IsTruncated>true</IsTruncated>";
    let same = "<NextContinuationToken>same</NextContinuationToken>";
    for say in [
        page(more, ""),
        page(more, "<NextContinuationToken></NextContinuationToken>"),
        page(more, same),
        page("", same),
    ] {
        let stub = Stub::saying([say]).await;
        let store = store(&stub.endpoint).await;
        let listed = tokio::time::timeout(Duration::from_mins(1), store.list("jobs.")).await;
        let error = listed.expect("it ends").expect_err("it is no list");
        assert_eq!(error.code(), Code::Unreachable, "{error}");
        assert!(error.message().contains("LIST s3://acme/team/jobs."), "{error}");
        assert!(stub.seen().len() <= 2, "{:?}", stub.seen().len());
    }
    // Some servers do not report whether there is more: the token shows it.
    let stub = Stub::saying([page("", "<NextContinuationToken></NextContinuationToken>")]).await;
    assert_eq!(store(&stub.endpoint).await.list("jobs.").await.expect("it is whole").len(), 1);
    let stub = Stub::saying([page("<IsTruncated>false</IsTruncated>", same)]).await;
    assert_eq!(store(&stub.endpoint).await.list("jobs.").await.expect("it is whole").len(), 1);
}

/// An object that is too large is refused by its stated length, or once too many bytes have come.
#[tokio::test]
async fn no_more_of_an_object_is_read_than_it_may_have() {
    let stated =
        Say::Raw(format!("HTTP/1.1 200 OK\r\netag: {ETAG}\r\ncontent-length: 3000000000\r\n\r\nhello"));
    let endless =
        Say::Endless(format!("HTTP/1.1 200 OK\r\netag: {ETAG}\r\ntransfer-encoding: chunked\r\n\r\n"));
    for say in [stated, endless] {
        let stub = Stub::saying([say.clone()]).await;
        let store = store(&stub.endpoint).await;
        let got =
            tokio::time::timeout(Duration::from_mins(1), store.get_at_most("jobs.head", None, 1 << 20)).await;
        let error = got.expect("it ends").expect_err("it is too large");
        assert_eq!((error.kind(), error.code()), (Kind::Corrupt, Code::Corrupt), "{say:?}: {error}");
        assert!(error.message().contains("jobs.head") && error.message().contains("1048576"), "{error}");
        assert_eq!(stub.seen().len(), 1, "it is not asked for again");
    }
    let stub = Stub::saying([Say::status(200, &[("etag", ETAG)], "hello")]).await;
    let store = store(&stub.endpoint).await;
    assert!(store.get_at_most("jobs.head", None, 4).await.is_err());
    assert!(matches!(store.get_at_most("jobs.head", None, 5).await, Ok(Got::Object { .. })));
}

#[tokio::test]
async fn no_reply_is_read_without_end() {
    let endless = |status: u16| {
        Say::Endless(format!("HTTP/1.1 {status} Told\r\netag: {ETAG}\r\ntransfer-encoding: chunked\r\n\r\n"))
    };
    for status in [200, 403, 404, 412, 500] {
        let stub = Stub::saying([endless(status)]).await;
        let store = store(&stub.endpoint).await;
        let mut errors = vec![
            store.list("jobs.").await.expect_err("no list"),
            store.put_new("jobs.base-1", Bytes::from("x")).await.expect_err("no end"),
            store.delete("jobs.base-1").await.expect_err("no end"),
        ];
        if status != 200 {
            errors.push(store.get("jobs.head", None).await.expect_err("no object"));
        }
        match store.put_if("jobs.head", Bytes::from("x"), &current()).await {
            Put::Conflict if status == 412 => {}
            Put::Unknown { error, sent, .. } => {
                assert_eq!(sent, status != 403, "{status}: {error}");
                errors.push(error);
            }
            other => panic!("{status}: {other:?}"),
        }
        for error in errors {
            assert!(!error.message().contains("timeout"), "{status}: {error}");
            assert_eq!(error.kind(), Kind::Unavailable, "{status}: {error}");
        }
    }
}

#[tokio::test]
async fn deleting_what_is_not_there_is_done() {
    let done = Say::status(204, &[], "");
    let stub =
        Stub::saying([done, Say::s3_error(404, "NoSuchKey"), Say::s3_error(404, "NoSuchBucket")]).await;
    let store = store(&stub.endpoint).await;
    store.delete("jobs.base-1").await.expect("it is gone");
    store.delete("jobs.base-1").await.expect("it was gone");
    assert_eq!(store.delete("jobs.base-1").await.expect_err("no bucket").code(), Code::NoSuchBucket);
}

#[tokio::test]
async fn credentials_are_never_shown() {
    let stub = Stub::saying([Say::s3_error(403, "AccessDenied")]).await;
    let store = store(&stub.endpoint).await;
    let error = store.get("jobs.head", None).await.expect_err("it is denied");
    let shown = format!("{store:?} {} {error} {error:?} {:?}", store.describe(), options("http://x"));
    assert!(!shown.contains("TOPSECRET"), "{shown}");
    assert_eq!(store.describe(), format!("s3://acme/team/ at {}", stub.endpoint));
}

#[tokio::test]
async fn an_endpoint_that_is_none_is_refused_without_repeating_it() {
    for endpoint in [
        "",
        "s3.example.org",
        "ftp://x",
        "http://",
        "http://:9000",
        "http://u:TOPSECRET@x",
        "http://x?a=TOPSECRET",
        "http://a b",
    ] {
        let error = S3Store::open("acme", "", &options(endpoint)).await.expect_err(endpoint);
        assert_eq!((error.kind(), error.code()), (Kind::Invalid, Code::Option), "{endpoint}: {error}");
        assert!(error.message().contains("https://s3.example.org"), "{error}");
        assert!(!error.message().contains("TOPSECRET"), "{error}");
    }
}
