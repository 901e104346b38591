//! Every byte in the bucket: the layouts of docs/format.md, read by two readers, damaged, limited, kept readable.

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
