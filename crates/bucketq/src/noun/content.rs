//! Values derived from content: the dedup key of a payload, the SHA-256 of its canonical form, and the ids of jobs that
//! are enqueued together with the end of another job. Pure.
//!
//! Called by programs, and by enqueues into queues with `dedup_content`. Equal JSON has the same key: spaces, the order
//! of keys, and 1 or 1.0 make no difference. Anything else is compared by its bytes.

use std::fmt::Write as _;

use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::noun::job::{Dedup, DedupScope, JobId, Payload};
use crate::noun::lease::Token;

impl Dedup {
    /// Returns a key with this scope that is the same for payloads with the same content.
    pub fn of_content(payload: &Payload, scope: DedupScope) -> Self {
        let media = payload.content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        let mut hash = Sha256::new();
        hash.update(media.as_bytes());
        hash.update([0]);
        let is_json = media == "application/json" || media.ends_with("+json");
        match is_json.then(|| serde_json::from_slice::<Value>(&payload.bytes)) {
            Some(Ok(value)) => {
                let mut text = String::with_capacity(payload.bytes.len());
                canonical(&value, &mut text);
                hash.update(text.as_bytes());
            }
            _ => hash.update(&payload.bytes),
        }
        let key = hash.finalize().iter().fold(String::from("sha256:"), |mut key, byte| {
            let _ = write!(key, "{byte:02x}");
            key
        });
        Self { key, scope }
    }
}

impl JobId {
    /// Returns the id of job number `position` among those enqueued in the commit that ends the lease with this token.
    /// The same arguments always give the same id.
    pub fn following(token: &Token, position: u32, claimed_ms: i64) -> Self {
        let mut hash = Sha256::new();
        hash.update(token.0);
        hash.update(position.to_le_bytes());
        let mut random = [0; 10];
        random.copy_from_slice(&hash.finalize()[..10]);
        Self::new(claimed_ms, random)
    }
}

impl Token {
    /// Returns the token of the claim in the commit that ends the lease with this token, and job.
    #[must_use]
    pub fn following(&self, job: &JobId) -> Self {
        let mut hash = Sha256::new();
        hash.update(b"next");
        hash.update(self.0);
        hash.update(job.as_bytes());
        let mut token = [0; 16];
        token.copy_from_slice(&hash.finalize()[..16]);
        Self(token)
    }
}

/// Whole numbers up to here are exact as floats.
const EXACT: f64 = 9_007_199_254_740_992.0;

/// Writes the value with sorted keys, no spaces, and whole numbers without a fraction.
fn canonical(value: &Value, out: &mut String) {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_unstable_by_key(|(key, _)| *key);
            for (i, (key, value)) in entries.into_iter().enumerate() {
                out.push(if i == 0 { '{' } else { ',' });
                let _ = write!(out, "{}:", Value::String(key.clone()));
                canonical(value, out);
            }
            out.push_str(if map.is_empty() { "{}" } else { "}" });
        }
        Value::Array(values) => {
            for (i, value) in values.iter().enumerate() {
                out.push(if i == 0 { '[' } else { ',' });
                canonical(value, out);
            }
            out.push_str(if values.is_empty() { "[]" } else { "]" });
        }
        Value::Number(n) => match n.as_f64() {
            Some(float) if n.is_f64() && float.fract() == 0.0 && float.abs() <= EXACT => {
                let _ = write!(out, "{}", float as i64);
            }
            _ => {
                let _ = write!(out, "{n}");
            }
        },
        other => {
            let _ = write!(out, "{other}");
        }
    }
}
