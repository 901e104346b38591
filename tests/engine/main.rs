//! The public handles: the promises to users, on every store and under faults.

mod asleep;
mod basics;
mod bounded;
mod claims;
mod clocks;
mod commits;
mod compound;
mod damage;
mod deadlines;
// The patches of the mutants give these functions the options too.
#[cfg(not(feature = "mutants"))]
mod deciding;
mod enqueues;
mod fairness;
mod faults;
mod finished;
mod finishes;
mod handles;
mod hostile;
mod keeper;
mod managing;
mod payloads;
mod processes;
mod proven;
mod quiet;
mod reads;
mod refusals;
mod replaced;
mod sharing;
mod steps;
mod waiting;
mod watching;
