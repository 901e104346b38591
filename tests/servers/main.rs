//! Real servers, directly and behind a faulty network.

mod engine;
mod network;
mod probe;
mod stores;
