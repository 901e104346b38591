//! The link between processes: frames, messages, and sessions over several writers.

mod frames;
mod messages;
mod world;
mod worlds;
