//! Jobs that are enqueued repeatedly: when, what, and what happens to missed times. Pure arithmetic, no I/O.
//!
//! `Op::Schedule` stores them in the queue file; claims enqueue the due ones. Time zones come from the database
//! compiled into the library, so that all machines agree.

use jiff::tz::{TimeZone, TimeZoneDatabase};
use jiff::{SignedDuration, Timestamp, Zoned};
use serde::{Deserialize, Serialize};

use crate::noun::config::LAST_MS;
use crate::noun::cron::Cron;
use crate::noun::error::{Error, Result};
use crate::noun::job::New;
use crate::noun::policy::span;

/// Formats a time for people, to the second in UTC.
pub(crate) fn stamp(ms: i64) -> String {
    let second = Timestamp::from_second(ms.div_euclid(1_000));
    second.map_or_else(|_| format!("{ms} ms since 1970"), |second| second.to_string())
}

/// A job that is enqueued repeatedly.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Schedule {
    /// Its times.
    pub timing: Timing,
    /// How missed times are handled: those that passed while no worker claimed.
    #[serde(default)]
    pub missed: Missed,
    /// The job to enqueue; its id is derived from the schedule and the time, and the id and time given here are
    /// ignored.
    pub job: New,
}

/// When a schedule enqueues.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Timing {
    /// At a fixed interval.
    Every {
        /// The interval.
        every_ms: i64,
        /// The first time; by default one interval after the schedule is created.
        #[serde(default)]
        from_ms: Option<i64>,
    },
    /// By the clock and the calendar of a time zone.
    Cron {
        /// Five fields: minute, hour, day of the month, month, day of the week; or `@hourly` and the like.
        expression: String,
        /// An IANA name such as `Europe/Berlin`.
        #[serde(default = "utc")]
        zone: String,
    },
}

fn utc() -> String {
    "UTC".into()
}

/// How missed times are handled: those that passed while no worker claimed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Missed {
    /// Only the newest of them enqueues its job.
    #[default]
    Skip,
    /// Each of them enqueues its job, oldest first.
    CatchUp,
}

/// A parsed timing.
#[derive(Debug)]
pub(crate) enum ParsedTiming {
    Every { every_ms: i64, from_ms: i64 },
    Cron { cron: Cron, zone: TimeZone },
}

impl Timing {
    /// Returns the first time after `ms`; none when there is none. Fails if the timing is invalid.
    pub fn after(&self, ms: i64) -> Result<Option<i64>> {
        Ok(self.clock(ms)?.after(ms))
    }

    /// Parses it, or fails with an error that says what is valid. `now_ms` is when the schedule is created.
    pub(crate) fn clock(&self, now_ms: i64) -> Result<ParsedTiming> {
        match self {
            Self::Every { every_ms, from_ms } => {
                span("the interval of a schedule", *every_ms, 1)?;
                let from_ms = from_ms.unwrap_or(now_ms.saturating_add(*every_ms));
                if !(0..=LAST_MS).contains(&from_ms) {
                    return Err(Error::invalid(format!(
                        "the first time of a schedule, {from_ms} ms, is outside the years 1970 to 9999"
                    )));
                }
                Ok(ParsedTiming::Every { every_ms: *every_ms, from_ms })
            }
            Self::Cron { expression, zone } => {
                let cron = Cron::parse(expression)?;
                let zone = TimeZoneDatabase::bundled().get(zone).map_err(|_| {
                    Error::invalid(format!(
                        "there is no time zone {zone:?}: give an IANA name such as \"Europe/Berlin\" or \"UTC\""
                    ))
                })?;
                let clock = ParsedTiming::Cron { cron, zone };
                clock.after(now_ms).map_or_else(
                    || Err(Error::invalid(format!("no date matches {expression:?}"))),
                    |_| Ok(()),
                )?;
                Ok(clock)
            }
        }
    }
}

impl ParsedTiming {
    /// Returns the first time after `ms`; none when there is none.
    pub(crate) fn after(&self, ms: i64) -> Option<i64> {
        match self {
            Self::Every { every_ms, from_ms } => {
                if ms < *from_ms {
                    return Some(*from_ms);
                }
                let passed = (ms - from_ms) / every_ms;
                from_ms.checked_add((passed + 1).checked_mul(*every_ms)?)
            }
            Self::Cron { cron, zone } => {
                let from = Timestamp::from_millisecond(ms).ok()?.to_zoned(zone.clone());
                next(cron, &from).map(|at| at.timestamp().as_millisecond())
            }
        }
    }

    /// Returns the newest time that is not after `ms`, among the times from `first_ms` on, which is one of them.
    pub(crate) fn newest(&self, first_ms: i64, ms: i64) -> i64 {
        match self {
            Self::Every { every_ms, .. } => first_ms + (ms - first_ms).max(0) / every_ms * every_ms,
            Self::Cron { .. } => {
                // Search backwards in growing steps, then forwards: a schedule of every minute may have missed a year.
                let mut back = 60_000;
                loop {
                    let from = ms.saturating_sub(back).max(first_ms);
                    let mut at = if from == first_ms { Some(first_ms) } else { self.after(from) };
                    let mut newest = None;
                    while let Some(time) = at.filter(|time| *time <= ms) {
                        newest = Some(time);
                        at = self.after(time);
                    }
                    match newest {
                        Some(time) => return time,
                        None if from == first_ms => return first_ms,
                        None => back = back.saturating_mul(4),
                    }
                }
            }
        }
    }
}

const MINUTE: SignedDuration = SignedDuration::from_mins(1);
/// Leap days are up to eight years apart; a schedule that matches less often than a few of those is an error.
const YEARS: i16 = 30;

/// Returns the first match after `from`.
///
/// When the clocks go forward, times in the missing hour match at its end. When they go back, an expression that names
/// hours matches once, and one that repeats every few minutes matches in both hours.
fn next(cron: &Cron, from: &Zoned) -> Option<Zoned> {
    let last_year = from.year().checked_add(YEARS)?;
    let whole = from.timestamp().as_second().div_euclid(60) * 60;
    let mut at =
        Timestamp::from_second(whole).ok()?.to_zoned(from.time_zone().clone()).checked_add(MINUTE).ok()?;
    while at.year() <= last_year {
        if jumped(cron, &at) {
            return Some(at);
        }
        let time = at.datetime();
        if !cron.is_on(time.date()) {
            at = leap(&at, at.start_of_day().ok()?.checked_add(jiff::Span::new().days(1)).ok()?)?;
        } else if !cron.is_in_hour(time.hour()) {
            let rest = i64::from(60 - time.minute());
            at = leap(&at, at.checked_add(SignedDuration::from_mins(rest)).ok()?)?;
        } else if cron.is_at(time.minute()) && !(cron.names_hours() && is_second_time(&at)) {
            return Some(at);
        } else {
            at = at.checked_add(MINUTE).ok()?;
        }
    }
    None
}

/// Moves from one moment to a later one, but not past a clock change.
fn leap(from: &Zoned, to: Zoned) -> Option<Zoned> {
    if from.offset() == to.offset() {
        return Some(to);
    }
    let change = from.time_zone().following(from.timestamp()).next()?;
    let change = change.timestamp().to_zoned(from.time_zone().clone());
    Some(if change > *from && change < to { change } else { to })
}

/// Returns whether the clocks have just gone forward to `at`, past a time that matches.
fn jumped(cron: &Cron, at: &Zoned) -> bool {
    let Ok(before) = at.checked_sub(MINUTE) else { return false };
    if !cron.names_hours() || at.offset() <= before.offset() {
        return false;
    }
    let mut time = before.datetime();
    for _ in 0..24 * 60 {
        let Ok(later) = time.checked_add(MINUTE) else { return false };
        time = later;
        if time >= at.datetime() {
            return false;
        }
        if cron.is_on(time.date()) && cron.is_in_hour(time.hour()) && cron.is_at(time.minute()) {
            return true;
        }
    }
    false
}

/// Returns whether the clocks showed this time before, on the same day and less than a day ago.
fn is_second_time(at: &Zoned) -> bool {
    let first = at.time_zone().to_ambiguous_timestamp(at.datetime()).earlier();
    first.is_ok_and(|first| first < at.timestamp())
}
