//! Real servers, directly and behind a faulty network.

mod network;
mod probe;
mod stores;
