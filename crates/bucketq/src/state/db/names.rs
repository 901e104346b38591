//! Texts that many jobs share, stored once: workers, content types, back-off policies.
//!
//! Called by the ops that write or read jobs. The caches here may be dropped at any time. `names_cleanup.rs` deletes
//! unused texts.

use std::collections::HashMap;
use std::sync::Arc;

use rusqlite::{OptionalExtension, params};
use serde::{Deserialize, Serialize};

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
    terms_ids: Vec<(Terms, i64)>,
    terms: HashMap<i64, Terms>,
}

/// How the attempts of a job are made: one text for all jobs that agree in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Terms {
    #[serde(flatten)]
    pub backoff: Backoff,
    /// How long an attempt may take; none for the time in the queue's policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_run_ms: Option<i64>,
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

    /// Returns whether these terms are known to be stored.
    pub fn has_terms(&self, backoff: &Backoff, max_run_ms: Option<i64>) -> bool {
        self.terms_id(backoff, max_run_ms).is_some()
    }

    fn terms_id(&self, backoff: &Backoff, max_run_ms: Option<i64>) -> Option<i64> {
        let found = self
            .terms_ids
            .iter()
            .find(|(known, _)| known.backoff == *backoff && known.max_run_ms == max_run_ms);
        found.map(|(_, id)| *id)
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

    /// Returns the id of these terms; stores them if they are new.
    pub fn intern_terms(&mut self, backoff: &Backoff, max_run_ms: Option<i64>) -> Try<i64> {
        if let Some(id) = self.cache.names.terms_id(backoff, max_run_ms) {
            return Ok(id);
        }
        let terms = Terms { backoff: backoff.clone(), max_run_ms };
        let text = serde_json::to_string(&terms).map_err(|e| Fault::corrupt(e.to_string()))?;
        let id = self.intern(&text)?;
        // Most queues use only a few of them; with thousands, the text cache serves the rest.
        if self.cache.names.terms_ids.len() < 16 {
            self.cache.names.terms_ids.push((terms, id));
        }
        Ok(id)
    }

    /// Returns the terms with this id.
    pub fn terms(&mut self, id: i64) -> Try<Terms> {
        if let Some(terms) = self.cache.names.terms.get(&id) {
            return Ok(terms.clone());
        }
        let text = self.text(id)?;
        let terms: Terms = serde_json::from_str(&text)
            .map_err(|_| Fault::corrupt(format!("name {id} is not a back-off policy")))?;
        if self.cache.names.terms.len() >= REMEMBERED {
            self.cache.names.terms.clear();
        }
        self.cache.names.terms.insert(id, terms.clone());
        Ok(terms)
    }
}
