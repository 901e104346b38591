//! The public handles: queue files, queues, claimed jobs, and the registry of the writers behind them.

pub mod claim;
pub mod file;
pub mod finished;
pub mod keeper;
pub mod manage;
pub mod queue;
pub mod registry;
mod role;
pub mod sync;
pub mod workload;
