//! The promises of a queue's policy with several writers, on every store; and callers that wait because of it.

mod every_store;
mod waiting;
