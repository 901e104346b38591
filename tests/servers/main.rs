//! The engine against real servers behind a faulty network.
