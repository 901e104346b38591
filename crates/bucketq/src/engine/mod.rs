//! The engine: the writer, which connects the database with the bucket, and its parts.
//!
//! Only this folder and `operate` see both the database and the store. In `writer` an enqueue becomes a transaction in
//! `durable/gather.rs`, `durable/commit.rs` and `chain/execute.rs`; HEAD is put by `build.rs`, `durable/publish.rs` and
//! `remote/mod.rs`; a conflict is settled by `durable/settle.rs`, `identity.rs` and `engine/settle.rs`, followed
//! by `follow.rs` and `chain/mod.rs`, and run again by `durable/commit.rs`.

pub mod catchup;
pub mod commit;
pub mod duty;
pub mod gap;
pub mod gc;
pub mod history;
pub mod image;
pub mod local;
pub mod settle;
pub mod time;
pub mod upload;
pub mod writer;
