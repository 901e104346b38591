//! The valid URLs of a queue file, and the errors for invalid ones.

use std::path::PathBuf;

use bucketq::config::Options;
use bucketq::env::Env;
use bucketq::error::{Code, Kind};
use bucketq::store::{Expect, Memory, Place, Put, StoreUrl, open_separately, open_store};
use bytes::Bytes;

fn s3(bucket: &str, prefix: &str) -> Place {
    Place::S3 { bucket: bucket.to_owned(), prefix: prefix.to_owned() }
}

fn directory(path: &str) -> Place {
    Place::Directory(PathBuf::from(path))
}

#[test]
fn what_is_right_is_understood() {
    for (text, place, name) in [
        ("s3://acme/jobs", s3("acme", ""), "jobs"),
        ("s3://acme/a/b/jobs", s3("acme", "a/b/"), "jobs"),
        ("S3://acme.example/team x/Jobs_2-b", s3("acme.example", "team x/"), "Jobs_2-b"),
        ("file:///var/lib/jobs", directory("/var/lib"), "jobs"),
        ("file:///jobs", directory("/"), "jobs"),
        ("/var/lib/jobs", directory("/var/lib"), "jobs"),
        ("jobs", directory("."), "jobs"),
        ("./jobs", directory("."), "jobs"),
        ("../data/jobs", directory("../data"), "jobs"),
        ("data//deep/jobs", directory("data/deep"), "jobs"),
        ("dir with@sign/jobs", directory("dir with@sign"), "jobs"),
        ("memory://jobs", Place::Memory, "jobs"),
    ] {
        let url = StoreUrl::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!((url.place(), url.name()), (&place, name), "{text}");
        let again = StoreUrl::parse(&url.to_string()).unwrap_or_else(|e| panic!("{url}: {e}"));
        assert_eq!(url, again, "{text} as shown");
    }
}

#[cfg(windows)]
#[test]
fn windows_paths_are_understood() {
    for text in [r"C:\data\jobs", "C:/data/jobs", "file:///C:/data/jobs"] {
        let url = StoreUrl::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!((url.place(), url.name()), (&directory(r"C:\data"), "jobs"), "{text}");
    }
}

#[test]
fn nonsense_is_refused_with_what_is_wrong_and_what_is_right() {
    let long = format!("s3://acme/{}", "x".repeat(129));
    let deep = format!("s3://acme/{}jobs", "dir/".repeat(200));
    for (text, wrong) in [
        ("", "empty"),
        ("s3://", "bucket is missing"),
        ("s3:///jobs", "bucket is missing"),
        ("s3://acme", "no name"),
        ("s3://acme/", "no name"),
        ("s3://acme/jobs/", "ends in a slash"),
        ("s3://acme/jobs.db", "`.`"),
        ("s3://acme/job s", "` `"),
        ("s3://acme/jöbs", "`ö`"),
        ("s3://acme//jobs", "empty part"),
        ("s3://acme/../jobs", "`..`"),
        ("s3://acme/a\\b/jobs", "backslash"),
        ("s3://ac/jobs", "cannot be a bucket"),
        ("s3://-acme/jobs", "cannot be a bucket"),
        ("s3://ac me/jobs", "cannot be a bucket"),
        ("s3://localhost:9000/acme/jobs", "`endpoint`"),
        ("s3://acme/jobs?region=x", "query"),
        ("s3://acme/jobs#x", "fragment"),
        ("s3://acme/my%20jobs", "`%`"),
        (&long, "129 bytes"),
        (&deep, "800 bytes"),
        ("s3:/acme/jobs", "two slashes"),
        ("s3:acme/jobs", "two slashes"),
        ("FILE:/var/jobs", "two slashes"),
        ("file://var/lib/jobs", "three slashes"),
        ("file://", "three slashes"),
        ("file:///", "slash"),
        ("file:///var/lib/", "slash"),
        ("/", "slash"),
        ("dir/", "slash"),
        (".", "`.`"),
        ("..", "`.`"),
        ("~/jobs", "`~`"),
        ("jobs\n", "control character"),
        ("jo\0bs", "control character"),
        ("memory://", "no name"),
        ("memory://a/b", "without slashes"),
        ("gs://acme/jobs", "gs:// is reserved and not supported yet"),
        ("az://acme/jobs", "az:// is reserved and not supported yet"),
        ("http://acme/jobs", "no store for http://"),
        ("://jobs", "no store for"),
    ] {
        let error = StoreUrl::parse(text).expect_err(text);
        assert_eq!((error.kind(), error.code()), (Kind::Invalid, Code::Url), "{text}: {error}");
        assert!(error.message().contains(wrong), "{text}: `{}` does not say `{wrong}`", error.message());
        assert!(
            error.message().contains("s3://bucket/path/name"),
            "{text}: no example in `{}`",
            error.message()
        );
    }
}

#[test]
fn credentials_in_a_url_are_refused_and_never_repeated() {
    for text in [
        "s3://AKIAEXAMPLE:SECRET@acme/jobs",
        "s3://AKIAEXAMPLE:SEC/RET@acme/jobs",
        "s3://AKIAEXAMPLE:SECRET/acme/jobs",
        "s3://acme/jobs?secret=SECRET",
        "file:///dir/SECRET@x/jobs",
        "memory://SECRET@x",
        "postgres://user:SECRET@host/db",
        "SECRET/SECRET+x://user@host/db",
    ] {
        let error = StoreUrl::parse(text).expect_err(text);
        let shown = format!("{error} {error:?}");
        assert!(!shown.contains("SECRET") && !shown.contains("AKIA"), "{text}: {shown}");
    }
}

#[tokio::test]
async fn a_named_memory_store_is_one_until_it_is_forgotten() {
    let (options, env) = (Options::default(), Env::default());
    let url = StoreUrl::parse("memory://named-once").expect("it is right");
    let open = || open_store(&url, &options, &env);
    let one = open().await.expect("memory opens");
    let two = open().await.expect("memory opens");
    let put = one.put_if("named-once.head", Bytes::from("x"), &Expect::Absent).await;
    assert!(matches!(put, Put::Stored { .. }));
    assert_eq!(two.list("").await.expect("memory answers").len(), 1);
    Memory::forget("named-once");
    let three = open().await.expect("memory opens");
    assert_eq!(three.list("").await.expect("memory answers").len(), 0);
    assert_eq!(one.list("").await.expect("memory answers").len(), 1, "whoever has the old one keeps it");
}

#[tokio::test]
async fn stores_say_what_they_are_and_what_they_need() {
    let (options, env) = (Options::default(), Env::default());
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let path = format!("{}/./jobs", dir.path().display());
    for (text, shown) in
        [("memory://shown", "memory://shown".to_owned()), (&path, format!("file://{}", dir.path().display()))]
    {
        let url = StoreUrl::parse(text).expect("it is right");
        for store in open_separately(&url, &options, &env, 3).await.expect("it opens") {
            assert_eq!((store.describe(), store.needs_probe()), (shown.clone(), false));
            assert!(store.default_max_skew().is_zero(), "one machine has one clock");
        }
    }
    assert_ne!(
        bucketq::store::Store::describe(&Memory::new()),
        bucketq::store::Store::describe(&Memory::new()),
        "private memory stores can be told apart"
    );
}
