//! The simulation: seeds that pass, the same seed run twice with the same trace, and broken variants that are caught.

mod faults;
#[cfg(feature = "mutants")]
mod mutants;
mod seeds;
mod variants;
