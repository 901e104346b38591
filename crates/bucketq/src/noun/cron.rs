//! Cron expressions: five fields that say which minutes match. Pure.
//!
//! Called by `schedule`, which knows time zones. As in Unix cron, a day matches when either of its two fields does,
//! unless one of them is `*`.

use jiff::civil::Date;

use crate::noun::error::{Error, Result};

/// A parsed expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cron {
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    /// Both day fields are restricted: a match of one of them is enough.
    either_day: bool,
    /// The hour field is restricted.
    names_hours: bool,
}

/// A field: its name, its range, and words for its values from the first on.
struct CronField {
    name: &'static str,
    from: u64,
    to: u64,
    words: &'static [&'static str],
}

const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const WEEKDAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
const FIELDS: [CronField; 5] = [
    CronField { name: "minute", from: 0, to: 59, words: &[] },
    CronField { name: "hour", from: 0, to: 23, words: &[] },
    CronField { name: "day of the month", from: 1, to: 31, words: &[] },
    CronField { name: "month", from: 1, to: 12, words: &MONTHS },
    CronField { name: "day of the week", from: 0, to: 7, words: &WEEKDAYS },
];
const SHORT: [(&str, &str); 7] = [
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
    ("@monthly", "0 0 1 * *"),
    ("@weekly", "0 0 * * 0"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@hourly", "0 * * * *"),
];

impl Cron {
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = |what: String| {
            Error::invalid(format!(
                "{text:?} is not a cron expression: {what}; five fields are minute, hour, day of the month, month and \
                 day of the week, as in \"*/15 9-17 * * mon-fri\""
            ))
        };
        let trimmed = text.trim().to_ascii_lowercase();
        let long = SHORT.iter().find(|(short, _)| *short == trimmed).map_or(&trimmed[..], |(_, long)| long);
        let parts: Vec<&str> = long.split_ascii_whitespace().collect();
        if parts.len() != FIELDS.len() {
            return Err(wrong(format!("it has {} fields", parts.len())));
        }
        let mut sets = [0; 5];
        for ((set, field), part) in sets.iter_mut().zip(&FIELDS).zip(&parts) {
            *set = field.parse(part).map_err(|what| wrong(format!("{}: {what}", field.name)))?;
        }
        let [minutes, hours, days, months, weekdays] = sets;
        // Both 0 and 7 are Sunday.
        let weekdays = (weekdays | weekdays >> 7) & 0x7f;
        Ok(Self {
            minutes,
            hours,
            days,
            months,
            weekdays,
            either_day: !parts[2].starts_with('*') && !parts[4].starts_with('*'),
            names_hours: !parts[1].starts_with('*'),
        })
    }

    pub fn is_at(&self, minute: i8) -> bool {
        has(self.minutes, minute)
    }

    pub fn is_in_hour(&self, hour: i8) -> bool {
        has(self.hours, hour)
    }

    pub fn is_on(&self, date: Date) -> bool {
        let day = has(self.days, date.day());
        let weekday = has(self.weekdays, date.weekday().to_sunday_zero_offset());
        has(self.months, date.month()) && if self.either_day { day || weekday } else { day && weekday }
    }

    /// Returns whether the hour field is restricted: then the expression means times of day, not an interval.
    pub const fn names_hours(&self) -> bool {
        self.names_hours
    }
}

fn has(set: u64, value: i8) -> bool {
    set >> value & 1 == 1
}

impl CronField {
    /// Returns the set of values, one bit each.
    fn parse(&self, text: &str) -> Result<u64, String> {
        text.split(',').try_fold(0, |set, part| Ok(set | self.range(part)?))
    }

    fn range(&self, text: &str) -> Result<u64, String> {
        let (range, step) = match text.split_once('/') {
            Some((range, step)) => (range, Some(step)),
            None => (text, None),
        };
        let by = match step.map(str::parse::<u64>) {
            None => 1,
            Some(Ok(by)) if by >= 1 && by <= self.to => by,
            Some(_) => return Err(format!("the step in {text:?} must be a number from 1 to {}", self.to)),
        };
        let (from, to) = match range.split_once('-') {
            _ if range == "*" => (self.from, self.to),
            Some((from, to)) => (self.value(from)?, self.value(to)?),
            // 5/15 means every 15 from 5 on.
            None if step.is_some() => (self.value(range)?, self.to),
            None => (self.value(range)?, self.value(range)?),
        };
        if from > to {
            return Err(format!("{range:?} runs backwards"));
        }
        Ok((from..=to).step_by(by as usize).fold(0, |set, value| set | 1 << value))
    }

    fn value(&self, text: &str) -> Result<u64, String> {
        let word = self.words.iter().position(|word| *word == text).map(|at| at as u64 + self.from);
        word.or_else(|| text.parse().ok())
            .filter(|value| (self.from..=self.to).contains(value))
            .ok_or_else(|| format!("{text:?} is not between {} and {}", self.from, self.to))
    }
}
