//! The layers, the tables and the docs agree with the code.
//!
//! Reads the repository as text, the public error table, and the dependencies from `cargo metadata`.

mod contributing;
mod decisions;
mod docs;
mod errors;
mod files;
mod layers;
mod licences;
mod makefile;
mod maps;
mod mutants;
mod ops;
mod prose;
mod protocol;
mod rust;
mod settings;
mod types;
