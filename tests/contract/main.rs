//! The promises of every store, on every store.

mod file;
mod measure;
mod probe;
mod url;
mod wire;

use bucketq_tests::ground::{Ground, suite};
use bucketq_tests::{each_promise, servers};

macro_rules! on_memory {
    ($($name:ident)*) => {
        mod on_memory {
            $( #[tokio::test]
            async fn $name() {
                super::suite::$name(&super::Ground::memory()).await;
            } )*
        }
    };
}

macro_rules! on_a_directory {
    ($($name:ident)*) => {
        mod on_a_directory {
            $( #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                let dir = tempfile::tempdir().expect("a temporary directory can be made");
                super::suite::$name(&super::Ground::directory(dir.path())).await;
            } )*
        }
    };
}

macro_rules! on_s3 {
    ($($name:ident)*) => {
        mod on_s3 {
            $( #[tokio::test]
            async fn $name() {
                let Some(server) = super::servers::s3().await else { return };
                super::suite::$name(&super::Ground::server(&server).await).await;
            } )*
        }
    };
}

each_promise!(on_memory);
each_promise!(on_a_directory);
each_promise!(on_s3);
