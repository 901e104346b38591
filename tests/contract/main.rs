//! What every store promises, on every store.
