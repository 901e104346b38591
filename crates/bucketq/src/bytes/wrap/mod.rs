//! Wrappers around a store: one caches objects on this machine, one counts requests, one limits how long a call takes.

/// In the impl of a [`Store`](crate::store::Store): the methods that the wrapper passes on to its field `inner`.
#[doc(hidden)]
#[macro_export]
macro_rules! forward_to_inner {
    ($($method:ident)+) => { $($crate::forward_to_inner!(@ $method);)+ };
    // A request is a method of `async_trait`, written out because that macro does not look into this one.
    (@ request $name:ident($($arg:ident: $type:ty),*) -> $reply:ty; $($life:lifetime)+) => {
        fn $name<$($life,)+ 'async_trait>(
            &'life0 self,
            $($arg: $type),*
        ) -> std::pin::Pin<Box<dyn std::future::Future<Output = $reply> + Send + 'async_trait>>
        where
            $($life: 'async_trait,)+
            Self: 'async_trait,
        {
            self.inner.$name($($arg),*)
        }
    };
    (@ get) => {
        $crate::forward_to_inner!(@ request get(
            key: &'life1 str, unless: Option<&'life2 $crate::store::Version>
        ) -> $crate::Result<$crate::store::Got>; 'life0 'life1 'life2);
    };
    (@ put_if) => {
        $crate::forward_to_inner!(@ request put_if(
            key: &'life1 str, body: ::bytes::Bytes, expect: &'life2 $crate::store::Expect
        ) -> $crate::store::Put; 'life0 'life1 'life2);
    };
    (@ put_new) => {
        $crate::forward_to_inner!(@ request put_new(
            key: &'life1 str, body: ::bytes::Bytes
        ) -> $crate::Result<()>; 'life0 'life1);
    };
    (@ delete) => {
        $crate::forward_to_inner!(@ request delete(key: &'life1 str) -> $crate::Result<()>; 'life0 'life1);
    };
    (@ list) => {
        $crate::forward_to_inner!(@ request list(
            prefix: &'life1 str
        ) -> $crate::Result<Vec<$crate::store::Listed>>; 'life0 'life1);
    };
    (@ describe) => {
        fn describe(&self) -> String {
            self.inner.describe()
        }
    };
    (@ place) => {
        fn place(&self) -> String {
            self.inner.place()
        }
    };
    (@ default_max_skew) => {
        fn default_max_skew(&self) -> std::time::Duration {
            self.inner.default_max_skew()
        }
    };
    (@ needs_probe) => {
        fn needs_probe(&self) -> bool {
            self.inner.needs_probe()
        }
    };
}

pub mod cached;
pub mod counted;
pub mod limited;
