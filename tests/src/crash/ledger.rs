//! Gathers the lines of the victims: which promise each got, and what breaks a promise. Pure.

use std::collections::{BTreeMap, BTreeSet};

use bucketq::State;

/// Two clocks of one machine read in whole milliseconds may differ by this much.
const ROUNDING_MS: i64 = 2;

/// A time in which a victim believed that it held a job.
#[derive(Debug)]
struct Hold {
    victim: u64,
    claim: u64,
    from_ms: i64,
    to_ms: i64,
}

/// The lines on one job.
#[derive(Debug, Default)]
struct JobLines {
    enqueued: bool,
    holds: Vec<Hold>,
    /// Its end, and when the victim reported it.
    ends: Vec<(State, i64)>,
}

/// All lines.
#[derive(Debug, Default)]
pub struct Ledger {
    jobs: BTreeMap<String, JobLines>,
    /// Number of lines of each victim.
    noted: BTreeMap<u64, u64>,
    /// Victims that lead.
    leaders: BTreeSet<u64>,
    /// Events that must never happen, and did.
    pub complaints: Vec<String>,
}

/// Broken promises.
#[derive(Debug, Default)]
pub struct Verdict {
    /// Acknowledged ops.
    pub acked: u64,
    /// Acknowledged ops whose effect is missing.
    pub lost: Vec<String>,
    /// Jobs held twice at once, or finished twice.
    pub doubled: Vec<String>,
}

impl Ledger {
    /// Add one line of a victim.
    pub fn note(&mut self, victim: u64, line: &str) {
        *self.noted.entry(victim).or_default() += 1;
        let words: Vec<&str> = line.split(' ').collect();
        let number = |text: &str| text.parse::<i64>().unwrap_or(i64::MIN);
        match words[..] {
            ["O"] => {}
            ["L"] => drop(self.leaders.insert(victim)),
            ["J"] => drop(self.leaders.remove(&victim)),
            ["E", name] => self.job(name).enqueued = true,
            ["C", name, claim, from, to] => {
                let hold =
                    Hold { victim, claim: number(claim) as u64, from_ms: number(from), to_ms: number(to) };
                self.job(name).holds.push(hold);
            }
            ["X", name, claim, to] => self.hold(victim, name, claim, |h| h.to_ms = number(to)),
            ["F", name, claim, at] => {
                self.hold(victim, name, claim, |h| h.to_ms = h.to_ms.min(number(at)));
            }
            ["A", name, at] => self.job(name).ends.push((State::Done, number(at))),
            ["R", name, at] => self.job(name).ends.push((State::Dead, number(at))),
            ["K", name, at] => self.job(name).ends.push((State::Cancelled, number(at))),
            _ => self.complaints.push(format!("victim {victim}: {line}")),
        }
    }

    /// Lines of all victims but this one.
    pub fn noted_of_others(&self, victim: u64) -> u64 {
        self.noted.iter().filter(|(number, _)| **number != victim).map(|(_, lines)| lines).sum()
    }

    /// Whether this victim leads, as far as it has said so.
    pub fn leads(&self, victim: u64) -> bool {
        self.leaders.contains(&victim)
    }

    fn job(&mut self, name: &str) -> &mut JobLines {
        self.jobs.entry(name.to_owned()).or_default()
    }

    fn hold(&mut self, victim: u64, name: &str, claim: &str, change: impl FnOnce(&mut Hold)) {
        let holds = &mut self.job(name).holds;
        if let Some(hold) = holds.iter_mut().find(|h| h.victim == victim && h.claim.to_string() == claim) {
            change(hold);
        }
    }

    /// The victim is dead: it holds no job any more.
    pub fn died(&mut self, victim: u64, at_ms: i64) {
        for hold in self.jobs.values_mut().flat_map(|lines| &mut lines.holds).filter(|h| h.victim == victim) {
            hold.to_ms = hold.to_ms.min(at_ms);
        }
    }

    /// Compare with the jobs in the file at the end.
    pub fn judge(&mut self, there: &BTreeMap<String, Vec<State>>) -> Verdict {
        let mut verdict = Verdict::default();
        for (name, lines) in &mut self.jobs {
            let found = there.get(name).map_or(&[][..], Vec::as_slice);
            verdict.acked += u64::from(lines.enqueued) + lines.ends.len() as u64;
            if lines.enqueued && found.is_empty() {
                verdict.lost.push(format!("{name} was enqueued and is not there"));
            }
            if let Some((end, _)) = lines.ends.first()
                && !found.contains(end)
            {
                verdict.lost.push(format!("{name} was reported as {end:?} and is {found:?}"));
            }
            if found.len() > 1 {
                verdict.doubled.push(format!("{name} is there {} times", found.len()));
            }
            if lines.ends.len() > 1 {
                verdict.doubled.push(format!("{name} ended more than once: {:?}", lines.ends));
            }
            lines.holds.sort_by_key(|h| h.from_ms);
            for (i, first) in lines.holds.iter().enumerate() {
                let overlap = |later: &&Hold| later.from_ms + ROUNDING_MS < first.to_ms;
                if let Some(second) = lines.holds[i + 1..].iter().find(overlap) {
                    verdict.doubled.push(format!("{name} is held twice: {first:?} and {second:?}"));
                }
                let after = |(_, at): &&(State, i64)| first.from_ms > at + ROUNDING_MS;
                if let Some(end) = lines.ends.iter().find(after) {
                    verdict.doubled.push(format!("{name} was claimed after its end {end:?}: {first:?}"));
                }
            }
        }
        verdict
    }
}
