//! One function for each promise. [`ALL`] lists them.

use std::collections::BTreeSet;
use std::sync::Arc;

use bucketq::store::{Expect, Got, Listed, Put, Store, Version};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::{BoxFuture, join_all};

use super::Ground;

/// A promise: its name and its test.
pub type Promise = (&'static str, fn(&Ground) -> BoxFuture<'_, ()>);

macro_rules! promises {
    ($( $(#[doc = $doc:literal])* async fn $name:ident($ground:ident) $body:block )*) => {
        $( $(#[doc = $doc])* pub async fn $name($ground: &Ground) $body )*

        /// Every promise, in reading order.
        pub const ALL: &[Promise] = &[ $( (stringify!($name), |ground| Box::pin($name(ground))), )* ];

        /// Give each promise a test of its own: `each_promise!(my_macro)` calls `my_macro!(name ...)`.
        #[macro_export]
        macro_rules! each_promise { ($callback:ident) => { $callback! { $($name)* } } }
    };
}

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

/// Write; fail the test if that fails.
pub async fn must_put(store: &dyn Store, key: &str, body: impl Into<Bytes>, expect: &Expect) -> Version {
    match store.put_if(key, body.into(), expect).await {
        Put::Stored { version, .. } => version,
        other => panic!("put of {key} with {expect:?}: {other:?}"),
    }
}

/// Read an object that must exist.
pub async fn must_get(store: &dyn Store, key: &str) -> (Bytes, Version) {
    match store.get(key, None).await.expect("the store answers") {
        Got::Object { bytes, version, .. } => (bytes, version),
        other => panic!("get of {key}: {other:?}"),
    }
}

fn is_conflict(put: &Put) -> bool {
    matches!(put, Put::Conflict)
}

/// All writers put at once; returns the winners' bodies and versions. All others must get a conflict.
async fn race(stores: &[Arc<dyn Store>], key: &str, round: usize, expect: &Expect) -> Vec<(Bytes, Version)> {
    let puts = stores.iter().enumerate().map(|(i, store)| async move {
        let body = Bytes::from(format!("round {round}, writer {i}"));
        (store.put_if(key, body.clone(), expect).await, body)
    });
    let mut won = Vec::new();
    for (put, body) in join_all(puts).await {
        match put {
            Put::Stored { version, .. } => won.push((body, version)),
            Put::Conflict => {}
            Put::Unknown { error, .. } => panic!("round {round}: {error}"),
        }
    }
    won
}

const WRITERS: usize = 16;
const ROUNDS: usize = 20;

promises! {
    /// An object does not exist before it is written.
    async fn what_was_never_written_is_absent(ground) {
        let got = ground.store().get("jobs.head", None).await.expect("the store answers");
        assert!(matches!(got, Got::Absent { .. }), "{got:?}");
        let unless = Version::new("\"0123\"");
        let got = ground.store().get("jobs.head", Some(&unless)).await.expect("the store answers");
        assert!(matches!(got, Got::Absent { .. }), "{got:?}");
    }

    /// Each put can be read at once by its writer and by all others, with the same version.
    async fn a_put_is_seen_at_once_by_everybody_with_its_version(ground) {
        let version = must_put(&*ground.store(), "jobs.head", bytes("one"), &Expect::Absent).await;
        for store in ground.stores(3) {
            assert_eq!(must_get(&*store, "jobs.head").await, (bytes("one"), version.clone()));
        }
    }

    /// Create never replaces.
    async fn a_second_create_is_a_conflict_and_changes_nothing(ground) {
        let version = must_put(&*ground.store(), "jobs.head", bytes("one"), &Expect::Absent).await;
        let second = ground.store().put_if("jobs.head", bytes("two"), &Expect::Absent).await;
        assert!(is_conflict(&second), "{second:?}");
        assert_eq!(must_get(&*ground.store(), "jobs.head").await, (bytes("one"), version));
    }

    /// The current version is replaced, and the new body has a new version.
    async fn put_with_the_current_version_replaces(ground) {
        let one = must_put(&*ground.store(), "jobs.head", bytes("one"), &Expect::Absent).await;
        let two = must_put(&*ground.store(), "jobs.head", bytes("two"), &Expect::Is(one.clone())).await;
        assert_ne!(one, two);
        assert_eq!(must_get(&*ground.store(), "jobs.head").await, (bytes("two"), two));
    }

    /// Compare and swap.
    async fn put_with_a_stale_version_is_a_conflict_and_changes_nothing(ground) {
        let one = must_put(&*ground.store(), "jobs.head", bytes("one"), &Expect::Absent).await;
        let two = must_put(&*ground.store(), "jobs.head", bytes("two"), &Expect::Is(one.clone())).await;
        let stale = ground.store().put_if("jobs.head", bytes("three"), &Expect::Is(one)).await;
        assert!(is_conflict(&stale), "{stale:?}");
        assert_eq!(must_get(&*ground.store(), "jobs.head").await, (bytes("two"), two));
    }

    /// The version of a deleted object brings nothing back.
    async fn put_with_a_version_of_a_missing_object_is_a_conflict_and_creates_nothing(ground) {
        let store = ground.store();
        let one = must_put(&*store, "jobs.head", bytes("one"), &Expect::Absent).await;
        store.delete("jobs.head").await.expect("the store answers");
        let put = store.put_if("jobs.head", bytes("two"), &Expect::Is(one)).await;
        assert!(is_conflict(&put), "{put:?}");
        let got = store.get("jobs.head", None).await.expect("the store answers");
        assert!(matches!(got, Got::Absent { .. }), "{got:?}");
    }

    /// An unchanged object is not sent again, however often it is requested.
    async fn get_unless_the_current_version_is_unchanged(ground) {
        let store = ground.store();
        let one = must_put(&*store, "jobs.head", bytes("one"), &Expect::Absent).await;
        for _ in 0..3 {
            let got = store.get("jobs.head", Some(&one)).await.expect("the store answers");
            assert!(matches!(got, Got::Unchanged { .. }), "{got:?}");
        }
    }

    /// A changed object is sent at once after another writer wrote it.
    async fn get_unless_an_old_version_gives_the_object(ground) {
        let (reader, writer) = (ground.store(), ground.store());
        let mut version = must_put(&*writer, "jobs.head", bytes("0"), &Expect::Absent).await;
        for round in 1..=50 {
            let got = reader.get("jobs.head", Some(&version)).await.expect("the store answers");
            assert!(matches!(got, Got::Unchanged { .. }), "{got:?}");
            // The same length each time: only the bytes differ.
            let body = Bytes::from(format!("{round:04}"));
            let next = must_put(&*writer, "jobs.head", body.clone(), &Expect::Is(version.clone())).await;
            match reader.get("jobs.head", Some(&version)).await.expect("the store answers") {
                Got::Object { bytes, version, .. } => assert_eq!((bytes, version), (body, next.clone())),
                other => panic!("round {round}: {other:?}"),
            }
            version = next;
        }
    }

    /// Bodies come back unchanged.
    async fn bodies_of_any_size_come_back_whole(ground) {
        let store = ground.store();
        for size in [0, 1, 4096, 131_072, 3_000_017] {
            let body: Bytes = (0..size).map(|i| (i * 7 + i / 251) as u8).collect();
            let key = format!("jobs.base-0a1b2c3d-{size}-00ff");
            store.put_new(&key, body.clone()).await.expect("the store answers");
            assert_eq!(must_get(&*ground.store(), &key).await.0, body, "{size} bytes");
        }
    }

    /// A plain put may be repeated.
    async fn put_new_may_be_repeated(ground) {
        let store = ground.store();
        for _ in 0..2 {
            store.put_new("jobs.seg-0a1b2c3d-1-2-00ff", bytes("same")).await.expect("the store answers");
        }
        assert_eq!(must_get(&*store, "jobs.seg-0a1b2c3d-1-2-00ff").await.0, bytes("same"));
    }

    /// Deleting is final, and repeatable.
    async fn what_was_deleted_is_absent_and_may_be_deleted_again(ground) {
        let store = ground.store();
        store.put_new("jobs.base-1", bytes("one")).await.expect("the store answers");
        for _ in 0..2 {
            store.delete("jobs.base-1").await.expect("the store answers");
            let got = ground.store().get("jobs.base-1", None).await.expect("the store answers");
            assert!(matches!(got, Got::Absent { .. }), "{got:?}");
        }
        must_put(&*store, "jobs.base-1", bytes("two"), &Expect::Absent).await;
    }

    /// Lists are ordered and complete, limited to the prefix, and contain only objects.
    async fn list_gives_every_key_with_the_prefix_in_order(ground) {
        let store = ground.store();
        assert_eq!(store.list("jobs.").await.expect("the store answers"), []);
        must_put(&*store, "jobs.head", bytes("12345"), &Expect::Absent).await;
        for key in ["jobs.base-2", "jobs.base-10", "jobs.arch-1.parquet", "jobs-2.head", "other.base-1", "JOBS.head"] {
            store.put_new(key, bytes("123")).await.expect("the store answers");
        }
        let listed = |key: &str, size| Listed { key: key.to_owned(), size };
        assert_eq!(
            store.list("jobs.").await.expect("the store answers"),
            [listed("jobs.arch-1.parquet", 3), listed("jobs.base-10", 3), listed("jobs.base-2", 3), listed("jobs.head", 5)]
        );
        let bases = store.list("jobs.base-").await.expect("the store answers");
        assert_eq!(bases, [listed("jobs.base-10", 3), listed("jobs.base-2", 3)]);
        assert_eq!(store.list("").await.expect("the store answers").len(), 7);
    }

    /// The store's page limit does not show.
    async fn list_gives_more_keys_than_one_page_holds(ground) {
        let store = ground.store();
        let keys: BTreeSet<String> = (0..1_100).map(|i| format!("jobs.seg-{i:05}")).collect();
        futures_util::stream::iter(&keys)
            .for_each_concurrent(32, |key| {
                let store = &store;
                async move { store.put_new(key, Bytes::new()).await.expect("the store answers") }
            })
            .await;
        let listed: Vec<String> =
            store.list("jobs.").await.expect("the store answers").into_iter().map(|l| l.key).collect();
        assert_eq!(listed, keys.into_iter().collect::<Vec<_>>());
    }

    /// Creation has one winner, whose body is stored.
    async fn one_of_many_creators_wins(ground) {
        let stores = ground.stores(WRITERS);
        for round in 0..ROUNDS {
            let key = format!("jobs-{round}.head");
            let mut won = race(&stores, &key, round, &Expect::Absent).await;
            assert_eq!(won.len(), 1, "round {round}: {won:?}");
            assert_eq!(must_get(&*stores[round % WRITERS], &key).await, won.remove(0));
        }
    }

    /// Replacing has one winner, whose body is stored.
    async fn one_of_many_replacers_wins(ground) {
        let stores = ground.stores(WRITERS);
        let mut version = must_put(&*stores[0], "jobs.head", bytes("first"), &Expect::Absent).await;
        for round in 0..ROUNDS {
            let mut won = race(&stores, "jobs.head", round, &Expect::Is(version)).await;
            assert_eq!(won.len(), 1, "round {round}: {won:?}");
            let winner = won.remove(0);
            assert_eq!(must_get(&*stores[round % WRITERS], "jobs.head").await, winner);
            version = winner.1;
        }
    }

    /// Read, change, write by compare-and-swap: the sum is right.
    async fn concurrent_counters_lose_no_step(ground) {
        let stores = ground.stores(4);
        must_put(&*stores[0], "jobs.head", bytes("0 start"), &Expect::Absent).await;
        join_all(stores.iter().enumerate().map(|(i, store)| count_up(&**store, "jobs.head", i, 10))).await;
        let (body, _) = must_get(&*stores[0], "jobs.head").await;
        assert!(body.starts_with(b"40 "), "{body:?}");
    }
}

/// Add 1 to the number in the object, `steps` times, beside other writers. Each body names its writer.
pub async fn count_up(store: &dyn Store, key: &str, writer: usize, steps: usize) {
    for step in 0..steps {
        loop {
            let (body, version) = must_get(store, key).await;
            let text = String::from_utf8(body.to_vec()).expect("it was written by us");
            let number: u64 =
                text.split(' ').next().and_then(|n| n.parse().ok()).expect("it begins with a number");
            let next = Bytes::from(format!("{} writer {writer} step {step}", number + 1));
            match store.put_if(key, next, &Expect::Is(version)).await {
                Put::Stored { .. } => break,
                Put::Conflict => {}
                Put::Unknown { error, .. } => panic!("{error}"),
            }
        }
    }
}
