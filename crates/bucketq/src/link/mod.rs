//! The link: how ops of one process reach the writer in another process, and how their results come back.
//!
//! `frame` cuts a stream of bytes into messages and heartbeats, `message` names the messages, and `client` is the client's
//! side of a session: numbers, repeats and results (docs/protocol.md, P29 to P39). No I/O here: bytes go in and come out.

pub mod client;
pub mod frame;
pub mod message;
