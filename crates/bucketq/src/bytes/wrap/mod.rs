//! Wrappers around a store: one caches objects on this machine, one counts requests, one limits how long a call takes.

/// The methods of [`crate::bytes::store::Store`] that every wrapper passes on to its `inner`: what the store is, not
/// what it does.
macro_rules! facts_of_inner {
    () => {
        fn describe(&self) -> String {
            self.inner.describe()
        }

        fn place(&self) -> String {
            self.inner.place()
        }

        fn default_max_skew(&self) -> std::time::Duration {
            self.inner.default_max_skew()
        }

        fn needs_probe(&self) -> bool {
            self.inner.needs_probe()
        }
    };
}

pub mod cached;
pub mod counted;
pub mod limited;
