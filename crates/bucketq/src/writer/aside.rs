//! What callers ask of the writer that takes longer than a turn may: it takes the settled state, and the rest happens
//! beside it.

use super::Writer;
use crate::door::{Export, Question};
use crate::error::Result;
use crate::keys;
use crate::operate;
use crate::query::{Answer, Exported, Query};

impl Writer {
    /// Answer with the log of the settled HEAD, once its segments are fetched.
    pub(super) fn tell_history(&self, q: Question) {
        let Query::History { limit } = q.query else { return };
        let (source, head) = (self.source.clone(), self.chain.head.clone());
        tokio::spawn(async move {
            let told = operate::history(source, head, limit).await.map(Answer::History);
            let _ = q.reply.send(told);
        });
    }

    /// Take an image that is as new as the question, and write it elsewhere than on this thread.
    pub(super) async fn export(&mut self, export: Export) {
        // In Local mode nothing newer is looked for before a snapshot.
        let old = self.chain.fresh <= export.arrived && self.local.is_none();
        let taken = if old { self.refresh().await.map(drop) } else { Ok(()) };
        let Export { path, replace, reply, .. } = export;
        let _ = reply.send(taken.map(|()| {
            let (image, head, rand) = (self.settled_image(), &self.chain.head, self.env.bytes());
            let (commit_seq, commit_ms, commit_id) =
                (head.commit_seq, head.commit_ms, keys::hex(&head.commit_id));
            tokio::task::spawn_blocking(move || -> Result<Exported> {
                let bytes = operate::export(&image, &path, replace, rand)?;
                Ok(Exported { commit_seq, commit_id, commit_ms, bytes })
            })
        }));
    }
}
