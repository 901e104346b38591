//! The layers, the tables and the docs keep to what they say.
//!
//! Reads the repository as text and the public error table; starts nothing and needs no network.

mod decisions;
mod docs;
mod errors;
mod files;
mod layers;
mod licences;
mod makefile;
mod rust;
