//! The simulation: seeds that hold and broken variants that are caught.
