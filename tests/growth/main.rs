//! How a queue file grows and shrinks: bases, segments, unreferenced objects, and very large commits.

mod bases;
mod collect;
mod kit;
mod large;
mod orphans;
mod put_back;
mod readers;
mod shrink;
mod stalled;
mod uploads;
