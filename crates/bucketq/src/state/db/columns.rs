//! The columns of a statement, named once: for its SELECT list and for the struct that receives its rows.
//!
//! Used by every file here that reads rows of several columns.

use rusqlite::Row;
use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ValueRef};

use crate::noun::error::{Code, Error};
use crate::noun::job::State;

/// A part of a row: the value of one column, or a struct of several.
pub(super) trait Cell<'r>: Sized {
    /// Its number of columns.
    const WIDTH: usize = 1;

    /// Reads it from this column on.
    fn at(row: &'r Row<'_>, first: usize) -> rusqlite::Result<Self>;
}

impl<T: FromSql> Cell<'_> for T {
    fn at(row: &Row<'_>, first: usize) -> rusqlite::Result<Self> {
        row.get(first)
    }
}

impl FromSql for State {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        let code = value.as_i64()?;
        let unknown = || Error::new(Code::Corrupt, format!("a job has state {code}"));
        Self::from_code(code).ok_or_else(|| FromSqlError::Other(Box::new(unknown())))
    }
}

/// A text or bytes, not copied from the row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Borrowed<'r>(ValueRef<'r>);

impl<'r> Cell<'r> for Borrowed<'r> {
    fn at(row: &'r Row<'_>, first: usize) -> rusqlite::Result<Self> {
        row.get_ref(first).map(Self)
    }
}

impl<'r> Borrowed<'r> {
    pub fn text(self) -> rusqlite::Result<&'r str> {
        Ok(self.0.as_str()?)
    }

    pub fn maybe_text(self) -> rusqlite::Result<Option<&'r str>> {
        Ok(self.0.as_str_or_null()?)
    }

    pub fn bytes(self) -> rusqlite::Result<&'r [u8]> {
        Ok(self.0.as_blob()?)
    }
}

/// Reads the next part of a row.
pub(super) fn next<'r, T: Cell<'r>>(row: &'r Row<'_>, at: &mut usize) -> rusqlite::Result<T> {
    let part = T::at(row, *at)?;
    *at += T::WIDTH;
    Ok(part)
}

/// Joins constant texts to one, at compile time.
macro_rules! sql {
    ($($part:expr),+ $(,)?) => {{
        const PARTS: &[&str] = &[$($part),+];
        const BYTES: [u8; $crate::state::db::columns::length(PARTS)] = $crate::state::db::columns::joined(PARTS);
        const TEXT: &str = match str::from_utf8(&BYTES) {
            Ok(text) => text,
            Err(_) => panic!("parts of SQL are valid UTF-8"),
        };
        TEXT
    }};
}

pub(super) const fn length(parts: &[&str]) -> usize {
    let (mut length, mut i) = (0, 0);
    while i < parts.len() {
        length += parts[i].len();
        i += 1;
    }
    length
}

pub(super) const fn joined<const N: usize>(mut parts: &[&str]) -> [u8; N] {
    let (mut bytes, mut at) = ([0; N], 0);
    while let [part, rest @ ..] = parts {
        let mut i = 0;
        while i < part.len() {
            bytes[at] = part.as_bytes()[i];
            (at, i) = (at + 1, i + 1);
        }
        parts = rest;
    }
    bytes
}

/// Defines the struct that receives the rows of a statement, with its SELECT list, `COLUMNS`. A field without SQL has
/// the name of its column. After `as` stand the names of two lists: SQL after `=>` is for the second one. Fields after
/// `;` are no columns and begin as defaults.
macro_rules! row {
    ($(#[$meta:meta])* $vis:vis struct $Row:ident $(as $list:ident, $other:ident)? { $($body:tt)* }) => {
        $crate::state::db::columns::row! {
            @ [$(#[$meta])*] [$vis] $Row [] [] ['r] [$($list, $other)?] { $($body)* }
        }
    };
    ($(#[$meta:meta])* $vis:vis struct $Row:ident<$r:lifetime> $(as $list:ident, $other:ident)? { $($body:tt)* }) => {
        $crate::state::db::columns::row! {
            @ [$(#[$meta])*] [$vis] $Row [<$r>] [$r] [$r] [$($list, $other)?] { $($body)* }
        }
    };
    (@ [$($meta:tt)*] [$vis:vis] $Row:ident [$($of:tt)*] [$($from:lifetime)?] [$r:lifetime] [$($lists:tt)*] {
        $($(#[$doc:meta])* $field:ident: $type:ty $(= $sql:expr $(=> $also:expr)?)?),+ $(,)?
        $(; $($(#[$own_doc:meta])* $own:ident: $own_type:ty),+ $(,)?)?
    }) => {
        $($meta)* $vis struct $Row $($of)* {
            $($(#[$doc])* pub $field: $type,)+
            $($($(#[$own_doc])* pub $own: $own_type,)+)?
        }

        impl<$r> $crate::state::db::columns::Cell<$r> for $Row $($of)* {
            const WIDTH: usize = 0 $(+ <$type as $crate::state::db::columns::Cell<$r>>::WIDTH)+;

            fn at(row: &$r ::rusqlite::Row<'_>, first: usize) -> ::rusqlite::Result<Self> {
                let mut at = first;
                Ok(Self {
                    $($field: $crate::state::db::columns::next(row, &mut at)?,)+
                    $($($own: Default::default(),)+)?
                })
            }
        }

        impl $($of)* $Row $($of)* {
            $crate::state::db::columns::lists! {
                [$($lists)*] $([$field $(= $sql $(=> $also)?)?])+
            }

            /// Reads a row of a statement with this SELECT list.
            #[allow(dead_code, reason = "some structs are only parts of others")]
            pub fn read(row: &$($from)? ::rusqlite::Row<'_>) -> ::rusqlite::Result<Self> {
                let width = <Self as $crate::state::db::columns::Cell<'_>>::WIDTH;
                debug_assert_eq!(row.as_ref().column_count(), width, "a row of another statement");
                $crate::state::db::columns::Cell::at(row, 0)
            }
        }
    };
}

/// The SELECT lists of a row.
macro_rules! lists {
    ([] $($columns:tt)+) => { $crate::state::db::columns::lists! { [COLUMNS] $($columns)+ } };
    ([$list:ident, $other:ident] $([$($column:tt)+])+) => {
        $crate::state::db::columns::lists! { [$list] $([$($column)+])+ }
        $crate::state::db::columns::lists! { [$other] $([@ $($column)+])+ }
    };
    ([$list:ident] [$($first:tt)+] $([$($next:tt)+])*) => {
        pub const $list: &'static str = $crate::state::db::columns::sql!(
            $crate::state::db::columns::column!($($first)+)
            $(, ", ", $crate::state::db::columns::column!($($next)+))*
        );
    };
}

/// The SQL of a column in the first list, or after `@` in the second.
macro_rules! column {
    ($(@)? $field:ident) => {
        stringify!($field)
    };
    ($(@)? $field:ident = $sql:expr) => {
        $sql
    };
    ($field:ident = $sql:expr => $also:expr) => {
        $sql
    };
    (@ $field:ident = $sql:expr => $also:expr) => {
        $also
    };
}

pub(super) use {column, lists, row, sql};
