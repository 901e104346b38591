//! The public handles: what users rely on, on every store and under faults.

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
mod hostile;
mod keeper;
mod managing;
mod processes;
mod quiet;
mod reads;
mod refusals;
mod replaced;
mod sharing;
mod waiting;
mod watching;
