//! What the policy of a queue promises when several writers work on it, on every store; and who waits for what.

mod every_store;
mod waiting;
