//! Every byte of what lies in the bucket: the layouts of docs/format.md, read by two readers, damaged, bounded, kept.

mod archive;
mod base;
mod damage;
mod fixture;
mod golden;
mod hostile;
mod layout;
mod limits;
mod names;
mod python;
mod versions;
