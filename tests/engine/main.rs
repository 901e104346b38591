//! The public handles: what users rely on, on every store and under faults.

mod basics;
mod claims;
mod commits;
mod damage;
mod deadlines;
mod enqueues;
mod faults;
mod finishes;
mod handles;
mod managing;
mod processes;
mod reads;
mod refusals;
mod replaced;
mod waiting;
