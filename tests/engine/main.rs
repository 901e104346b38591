//! The public handles: what users rely on, on every store and under faults.

/// Each function is a test on memory, a test on a directory, and part of one test on S3.
macro_rules! on_every_store {
    ($($name:ident)*) => {
        mod on_memory {
            $( #[tokio::test]
            async fn $name() -> bucketq::Result<()> {
                super::$name(&bucketq_tests::ground::Ground::memory()).await
            } )*
        }

        mod on_a_directory {
            $( #[tokio::test]
            async fn $name() -> bucketq::Result<()> {
                let dir = tempfile::tempdir().expect("a temporary directory can be made");
                super::$name(&bucketq_tests::ground::Ground::directory(dir.path())).await
            } )*
        }

        mod on_s3 {
            #[tokio::test]
            async fn the_same() -> bucketq::Result<()> {
                let Some(server) = bucketq_tests::servers::s3().await else { return Ok(()) };
                $( {
                    // Shown when the test fails.
                    println!(stringify!($name));
                    super::$name(&bucketq_tests::ground::Ground::server(&server).await).await?;
                } )*
                Ok(())
            }
        }
    };
}

mod basics;
mod claims;
mod commits;
mod damage;
mod deadlines;
mod enqueues;
mod faults;
mod finished;
mod finishes;
mod handles;
mod keeper;
mod managing;
mod processes;
mod reads;
mod refusals;
mod replaced;
mod waiting;
