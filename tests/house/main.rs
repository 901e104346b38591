//! The layers, the tables and the docs keep to what they say.
//!
//! Reads the repository as text, the public error table, and what `cargo metadata` says about the dependencies.

mod decisions;
mod docs;
mod errors;
mod files;
mod layers;
mod licences;
mod makefile;
mod rust;
