//! Texts that many jobs share, stored once: workers, content types, back-off policies.
//!
//! Called by the ops that write or read jobs. The caches here may be dropped at any time. `names_cleanup.rs` deletes
//! unused texts.

use std::collections::HashMap;
use std::sync::Arc;

use rusqlite::{OptionalExtension, params};

use super::Tx;
use super::columns::{row, sql};
use super::fault::{Fault, Try};
use crate::noun::job::Backoff;

/// Id of the empty text. The first of its width: see schema.sql.
pub(super) const NOBODY: i64 = 65_536;

/// Most cached texts; then the cache starts over, so that a stream of new worker names cannot fill memory.
const REMEMBERED: usize = 10_000;

#[derive(Debug, Default)]
pub(super) struct Names {
    /// Texts stored or found by [`Tx::intern`], which marks them for the running pass.
    ids: HashMap<Arc<str>, i64>,
    texts: HashMap<i64, Arc<str>>,
    /// The most recently read ones: a row names one worker and a type or two, and the next row often the same.
    recent: [Option<(i64, Arc<str>)>; 4],
    oldest: usize,
    backoff_ids: Vec<(Backoff, i64)>,
    backoffs: HashMap<i64, Backoff>,
}

impl Names {
    fn remember(&mut self, id: i64, text: &Arc<str>) {
        if self.texts.len() >= REMEMBERED {
            *self = Self::default();
        }
        self.texts.insert(id, text.clone());
    }

    /// Returns whether this text is known to be stored.
    pub fn has(&self, text: &str) -> bool {
        self.ids.contains_key(text)
    }

    /// Returns whether this back-off is known to be stored.
    pub fn has_backoff(&self, backoff: &Backoff) -> bool {
        self.backoff_ids.iter().any(|(known, _)| known == backoff)
    }

    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

row! { struct NameColumns { id: i64, pass: i64 } }

impl Tx<'_> {
    /// Returns the id of this text; stores the text if it is new.
    pub fn intern(&mut self, text: &str) -> Try<i64> {
        if let Some(id) = self.cache.names.ids.get(text) {
            return Ok(*id);
        }
        let found = self
            .conn
            .prepare_cached(sql!("SELECT ", NameColumns::COLUMNS, " FROM names WHERE name = ?1"))?
            .query_row([text], NameColumns::read)
            .optional()?;
        let pass = self.mark_of_pass()?;
        let id = if let Some(NameColumns { id, pass: mark }) = found {
            if mark < pass {
                self.conn.prepare_cached("UPDATE names SET pass = ?2 WHERE id = ?1")?.execute([id, pass])?;
            }
            id
        } else {
            let sql = "INSERT INTO names (name, pass) VALUES (?1, ?2)";
            let id = self.conn.prepare_cached(sql)?.insert(params![text, pass])?;
            self.stored(id)?;
            id
        };
        let text: Arc<str> = Arc::from(text);
        self.cache.names.remember(id, &text);
        self.cache.names.ids.insert(text, id);
        Ok(id)
    }

    /// Returns the text with this id.
    pub fn text(&mut self, id: i64) -> Try<Arc<str>> {
        let names = &mut self.cache.names;
        if let Some((_, text)) = names.recent.iter().flatten().find(|(of, _)| *of == id) {
            return Ok(text.clone());
        }
        if let Some(text) = names.texts.get(&id).cloned() {
            names.recent[names.oldest] = Some((id, text.clone()));
            names.oldest = (names.oldest + 1) % names.recent.len();
            return Ok(text);
        }
        let text: Option<String> = self
            .conn
            .prepare_cached("SELECT name FROM names WHERE id = ?1")?
            .query_row([id], |row| row.get(0))
            .optional()?;
        let text = Arc::from(text.ok_or_else(|| Fault::corrupt(format!("there is no name {id}")))?);
        self.cache.names.remember(id, &text);
        Ok(text)
    }

    /// Returns the id of this back-off; stores the back-off if it is new.
    pub fn intern_backoff(&mut self, backoff: &Backoff) -> Try<i64> {
        if let Some((_, id)) = self.cache.names.backoff_ids.iter().find(|(b, _)| b == backoff) {
            return Ok(*id);
        }
        let text = serde_json::to_string(backoff).map_err(|e| Fault::corrupt(e.to_string()))?;
        let id = self.intern(&text)?;
        // A list, because a file has only a few of them; with thousands, the text cache serves the rest.
        if self.cache.names.backoff_ids.len() < 16 {
            self.cache.names.backoff_ids.push((backoff.clone(), id));
        }
        Ok(id)
    }

    /// Returns the back-off with this id.
    pub fn backoff(&mut self, id: i64) -> Try<Backoff> {
        if let Some(backoff) = self.cache.names.backoffs.get(&id) {
            return Ok(backoff.clone());
        }
        let text = self.text(id)?;
        let backoff: Backoff = serde_json::from_str(&text)
            .map_err(|_| Fault::corrupt(format!("name {id} is not a back-off policy")))?;
        if self.cache.names.backoffs.len() >= REMEMBERED {
            self.cache.names.backoffs.clear();
        }
        self.cache.names.backoffs.insert(id, backoff.clone());
        Ok(backoff)
    }
}
