//! The public handles on memory and file: what users rely on.

mod basics;
