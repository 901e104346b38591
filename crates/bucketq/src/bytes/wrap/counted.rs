//! A store wrapper that counts requests and their bytes.
//!
//! The writer puts it around the store it opens.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use crate::bytes::metrics::Counters;
use crate::bytes::store::{Expect, Got, Listed, MAX_OBJECT, Put, Store, Version};
use crate::noun::error::Result;

/// A store that counts its requests.
#[derive(Debug)]
pub(crate) struct Counted {
    pub inner: Arc<dyn Store>,
    pub counters: Arc<Counters>,
}

#[async_trait]
impl Store for Counted {
    async fn get(&self, key: &str, unless: Option<&Version>) -> Result<Got> {
        self.get_at_most(key, unless, MAX_OBJECT).await
    }

    async fn get_at_most(&self, key: &str, unless: Option<&Version>, most: u64) -> Result<Got> {
        Counters::add(&self.counters.gets, 1);
        let got = self.inner.get_at_most(key, unless, most).await?;
        match &got {
            Got::Object { bytes, .. } => Counters::add(&self.counters.get_bytes, bytes.len() as u64),
            Got::Unchanged { .. } => Counters::add(&self.counters.gets_unchanged, 1),
            Got::Absent { .. } => {}
        }
        Ok(got)
    }

    async fn put_if(&self, key: &str, body: Bytes, expect: &Expect) -> Put {
        Counters::add(&self.counters.puts, 1);
        Counters::add(&self.counters.put_bytes, body.len() as u64);
        self.inner.put_if(key, body, expect).await
    }

    async fn put_new(&self, key: &str, body: Bytes) -> Result<()> {
        Counters::add(&self.counters.uploads, 1);
        Counters::add(&self.counters.upload_bytes, body.len() as u64);
        self.inner.put_new(key, body).await
    }

    async fn delete(&self, key: &str) -> Result<()> {
        Counters::add(&self.counters.deletes, 1);
        self.inner.delete(key).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Listed>> {
        Counters::add(&self.counters.lists, 1);
        self.inner.list(prefix).await
    }

    crate::forward_to_inner!(describe place default_max_skew needs_probe);
}
