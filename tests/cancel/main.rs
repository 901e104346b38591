//! Every await point cancelled in turn: the future is polled n times and dropped, for every n until it is done.
//!
//! Between two polls the writer and the store take some steps, so that the drop falls into each moment of a commit:
//! before the mail is read, during the put, after it landed, with the answer on its way or lying in the slot.

mod claims;
mod steps;
mod writes;
