//! Checks P1 to P28 on each HEAD as it arrives: what it must keep of the HEAD before, and what its writer knew.
//!
//! The bucket calls this for every HEAD that lands, the faulty store for every one that is sent or read. Faults are
//! added to `broken`. Only the consequences of a commit that the store lost (P25) are judged later, by loss.rs.

use bucketq::internals::head::Head;
use bytes::Bytes;

use crate::bucket::{Betrayal, Bucket, Landed, Who};
use crate::clock::EPOCH_MS;
use crate::garbage::floor_kept;

/// A writer may be off by the skew, and its Date by a second on top.
pub const RESOLUTION_MS: i64 = 1_000;

impl Bucket {
    /// Checks a HEAD that is about to replace `old`.
    pub(crate) fn judge(&mut self, by: Who, at_ms: u64, body: &Bytes, old: Option<&Head>) {
        let head = match Head::decode("HEAD", body) {
            Ok(head) => head,
            Err(e) => return self.broken.push(format!("{by} put a HEAD nobody can read: {e}")),
        };
        let seq = head.commit_seq;
        let mut broken = Vec::new();
        match old {
            Some(old) => {
                if seq != old.commit_seq + 1 || head.prev_commit_id != old.commit_id {
                    broken.push(format!(
                        "G2: commit {seq} is not built on commit {} it replaces",
                        old.commit_seq
                    ));
                }
                succeeds(old, &head, &mut broken);
                let grace = self.grace_ms.filter(|_| self.asked_to_collect == 0);
                floor_kept(old, &head, grace, &mut broken);
            }
            None if self.landed.is_empty() && (seq != 1 || head.prev_commit_id != [0; 16]) => {
                broken.push(format!("the first HEAD is commit {seq}"));
            }
            None => {}
        }
        let not_there = |(known, id): (u64, [u8; 16])| {
            let there = if known == seq { Some(&head.commit_id) } else { self.chain.get(&known) };
            // Commits beyond the log window cannot be compared (P23).
            there != Some(&id) && known >= reach(&head)
        };
        if let Some(&known) = self.known.get(&by)
            && not_there(known)
        {
            let known = known.0;
            broken.push(format!(
                "P21, P22: {by} knew commit {known} and put commit {seq} over a history without it"
            ));
        }
        if let Some(&mine) = self.mine.get(&by)
            && not_there(mine)
        {
            broken.push(format!(
                "P25: {by} puts commit {seq} over a history without its own commit {}",
                mine.0
            ));
        }
        // The same body lands again when the store put its HEAD back.
        if self.landed.iter().any(|l| l.head.commit_id == head.commit_id && l.head != head) {
            broken.push(format!("P1: the commit id of commit {seq} has been used before"));
        }
        let ahead = head.commit_ms - EPOCH_MS - at_ms.cast_signed();
        if ahead > self.max_skew_ms.cast_signed() + RESOLUTION_MS && !self.time_free {
            broken.push(format!("P28: commit {seq} is {ahead} ms ahead of true time"));
        }
        for record in &head.tail {
            if record.seq < seq && self.chain.get(&record.seq).is_some_and(|id| *id != record.commit_id) {
                broken.push(format!("P21: the tail of commit {seq} tells another commit {}", record.seq));
            }
        }
        // A HEAD that was put back may refer to objects that were collected since (P23).
        let missing = self.missing(&head).filter(|_| !self.meddled);
        broken.extend(missing.map(|what| format!("G7: commit {seq} refers to {what}, which is not there")));
        self.broken.extend(broken.into_iter().map(|what| format!("{at_ms} ms, {by}: {what}")));
        self.chain.insert(seq, head.commit_id);
        self.landed.push(Landed { bytes: body.clone(), head, at_ms, by });
    }

    /// A life sends a body while its clock, at its fastest of late, shows `wall_ms`, which no Date corrects. It must
    /// not send it when HEAD is further in its future than the skew allows (P28).
    pub fn sent(&mut self, by: Who, wall_ms: i64, body: &[u8]) {
        let Ok(head) = Head::decode("HEAD", body) else { return };
        if !self.sent.insert(head.commit_id) {
            return;
        }
        let Some(old) = self.landed.iter().rev().find(|l| l.head.commit_id == head.prev_commit_id) else {
            return;
        };
        let ahead = old.head.commit_ms - wall_ms;
        if ahead > self.max_skew_ms.cast_signed() + RESOLUTION_MS {
            let seq = head.commit_seq;
            self.broken
                .push(format!("P28: {by} sends commit {seq} although HEAD is {ahead} ms ahead of its clock"));
        }
    }

    /// A life that got this HEAD knows its commit from now on. If the store acknowledged the commit to its writer, it
    /// is also that writer's own.
    pub fn learn(&mut self, who: Who, bytes: &[u8], acknowledged: bool, at_ms: u64) {
        let Ok(head) = Head::decode("HEAD", bytes) else { return };
        let (seq, id) = (head.commit_seq, head.commit_id);
        if let Some(betrayal) = &mut self.betrayal
            && (betrayal.seq, betrayal.id) == (seq, id)
        {
            betrayal.knew.insert(who);
        }
        if let Some(&(mine, own)) = self.mine.get(&who)
            && seq >= mine
            && mine >= reach(&head)
        {
            let there = head.commit_id_at(mine).or_else(|| self.chain.get(&mine).copied());
            if there != Some(own) {
                self.shown_loss.entry(who).or_insert(at_ms);
            }
        }
        let known = self.known.entry(who).or_insert((0, [0; 16]));
        if seq > known.0 || !self.opened.contains(&who) {
            *known = (seq, id);
        }
        if acknowledged {
            self.mine.insert(who, (seq, id));
        }
    }

    /// Once, at the right moment: lets in a body whose If-Match names the HEAD before the current one, so that a commit
    /// that the store acknowledged is gone (P25). Returns `None` at any other moment.
    pub fn betray(
        &mut self,
        by: Who,
        at_ms: u64,
        key: &str,
        body: &Bytes,
        is: Option<&str>,
    ) -> Option<String> {
        let after = self.betray_after?;
        let stands = self.head()?;
        let (seq, id, victim) = (stands.head.commit_seq, stands.head.commit_id, stands.by);
        let head = Head::decode("HEAD", body).ok()?;
        let old = self.landed.iter().find(|l| l.head.commit_id == head.prev_commit_id)?.head.clone();
        // The second winner must not know the first, and the first's writer must have its acknowledgement.
        let fits = seq > after
            && is.is_some_and(|is| self.version_before(key) == Some(is))
            && (head.commit_seq, victim != by) == (seq, true)
            && self.mine.get(&victim) == Some(&(seq, id))
            && self.known.get(&by).is_none_or(|known| known.0 < seq);
        if !fits {
            return None;
        }
        self.betray_after = None;
        let knew = self.known.iter().filter(|(_, known)| **known == (seq, id)).map(|(who, _)| *who).collect();
        self.betrayal = Some(Betrayal { seq, id, by: victim, at_ms, knew });
        self.judge(by, at_ms, body, Some(&old));
        Some(self.store(key, body.clone()))
    }
}

/// The oldest commit whose id is in this HEAD's tail or segments.
pub fn reach(head: &Head) -> u64 {
    let inline = head.tail.first().map_or(head.commit_seq, |r| r.seq);
    head.segments.first().map_or(inline, |s| s.from)
}

/// Checks what one HEAD must keep of the one it replaces.
fn succeeds(old: &Head, new: &Head, broken: &mut Vec<String>) {
    let seq = new.commit_seq;
    if new.file_id != old.file_id || new.lineage_id != old.lineage_id {
        broken.push(format!("P21: commit {seq} changes the file or the lineage"));
    }
    if new.commit_ms < old.commit_ms {
        broken.push(format!("G8: time goes back by {} ms at commit {seq}", old.commit_ms - new.commit_ms));
    }
    if new.base.seq < old.base.seq || (new.base.seq == old.base.seq && new.base != old.base) {
        broken.push(format!("P17: commit {seq} replaces base {} by base {}", old.base.seq, new.base.seq));
    }
    if new.forgotten_seq < old.forgotten_seq {
        broken.push(format!("P4: forgotten_seq falls at commit {seq}"));
    }
    for entry in &old.writers {
        if new.writers.iter().all(|e| e.id != entry.id) && entry.seq > new.forgotten_seq {
            broken.push(format!(
                "P4: commit {seq} forgets the writer of commit {} without saying so",
                entry.seq
            ));
        }
    }
}
