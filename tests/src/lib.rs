//! Helpers shared by the tests.
#![expect(clippy::missing_panics_doc, reason = "a helper of a test panics when the test has failed")]

pub mod chaos;
pub mod clock;
pub mod crash;
pub mod fuzz;
pub mod gate;
pub mod given;
pub mod ground;
pub mod http;
pub mod peer;
pub mod puppet;
pub mod servers;
pub mod soak;

pub mod queue_db;

/// Each function becomes a test on memory, a test on a directory, and part of one test on S3.
#[macro_export]
macro_rules! on_every_store {
    ($($name:ident)*) => {
        mod on_memory {
            $( #[tokio::test]
            async fn $name() -> bucketq::Result<()> {
                super::$name(&$crate::ground::Ground::memory()).await
            } )*
        }

        mod on_a_directory {
            $( #[tokio::test]
            async fn $name() -> bucketq::Result<()> {
                let dir = tempfile::tempdir().expect("a temporary directory can be made");
                super::$name(&$crate::ground::Ground::directory(dir.path())).await
            } )*
        }

        mod on_s3 {
            #[tokio::test]
            async fn the_same() -> bucketq::Result<()> {
                let Some(server) = $crate::servers::s3().await else { return Ok(()) };
                $( {
                    // Shown when the test fails.
                    println!(stringify!($name));
                    super::$name(&$crate::ground::Ground::server(&server).await).await?;
                } )*
                Ok(())
            }
        }
    };
}
