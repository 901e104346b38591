//! The Python module `bucketq._native`: the engine's handles as Python objects, and nothing more.
//!
//! `call` turns one future of the engine into a blocking call or an awaitable; `waiting` and `awaiting` are the two
//! ways to drive it. `file`, `held`, `op`, `manage` and `fit` wrap the engine's nouns, `operate` the operations on a
//! whole file, `spark` one commit of it, `rows` tables that are enqueued; `events` delivers events; `values` and
//! `settings` convert; `errors` raises; `testing` is for users' tests. The package python/bucketq is the only caller.
//! Rules are in the engine, conveniences in Python.

use pyo3::prelude::*;

mod awaiting;
mod call;
mod errors;
mod events;
mod file;
mod fit;
mod held;
mod manage;
mod op;
mod operate;
mod reads;
mod rows;
mod runtime;
mod settings;
mod spark;
mod testing;
mod values;
mod waiting;

#[pymodule]
mod _native {
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        crate::runtime::tell_of_forks(module.py())
    }

    #[pymodule_export]
    use crate::{
        call::Call,
        errors::{codes, kinds},
        events::{Reader, Teller},
        file::{File, Hooks, Leave, open},
        fit::{fit, fit_problems, measure},
        held::Held,
        op::{New, Op},
        operate::{check, fix_time, probe, restore, set_max_skew},
        rows::enqueues,
        settings::{parse_setting, settings},
        spark::{Objects, Pinned, objects},
        testing::{Clock, open_test},
    };
}
