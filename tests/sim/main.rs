//! The simulation: seeds that hold, the same story told twice, and broken variants that are caught.

mod faults;
mod seeds;
mod variants;
