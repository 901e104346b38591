//! Every await point cancelled in turn: the future is polled n times and dropped, for every n until it is done.
//!
//! Between two polls the writer and the store take some steps, so that the drop hits each moment of a commit: before
//! the writer reads its channel, during the put, after it landed, with the reply on its way or in the channel.

mod claims;
mod steps;
mod writes;
