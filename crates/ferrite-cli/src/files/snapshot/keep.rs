//! Rules for the snapshots that are kept: `--keep hourly=24,daily=7`.
//!
//! Invariant: only snapshots with a name that `snapshot create` gives are ever deleted by rules.

use std::collections::BTreeSet;
use std::ffi::OsString;

use jiff::civil::DateTime;

/// The name of a snapshot that the user has not named, in the format of strftime(3). Such names sort by time.
pub(super) const TIME_NAME: &str = "%Y-%m-%dT%H%M%SZ";

pub(super) const HELP: &str = "\
Afterwards, of all snapshots that are called by their time, delete those that no rule keeps. RULES are separated by \
commas: last=N keeps the newest N; hourly=N, daily=N, weekly=N, monthly=N and yearly=N keep the newest snapshot of each \
of the last N hours, days, ... (in UTC) that have one. Snapshots with other names stay";

/// See the head of this module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Keep(Vec<(Every, usize)>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Every {
    One,
    Hour,
    Day,
    Week,
    Month,
    Year,
}

impl Every {
    fn parse(text: &str) -> Option<Every> {
        Some(match text {
            "last" => Every::One,
            "hourly" => Every::Hour,
            "daily" => Every::Day,
            "weekly" => Every::Week,
            "monthly" => Every::Month,
            "yearly" => Every::Year,
            _ => return None,
        })
    }

    /// The period that a time is in; periods of one kind compare.
    fn period(self, time: DateTime) -> String {
        match self {
            Every::One => time.to_string(),
            Every::Hour => time.strftime("%Y-%m-%dT%H").to_string(),
            Every::Day => time.date().to_string(),
            Every::Week => time.strftime("%G-%V").to_string(),
            Every::Month => time.strftime("%Y-%m").to_string(),
            Every::Year => time.year().to_string(),
        }
    }
}

impl Keep {
    pub(super) fn parse(text: &str) -> Result<Keep, String> {
        let rules = text.split(',').map(|rule| {
            let (every, count) = rule
                .split_once('=')
                .ok_or_else(|| format!("`{rule}` is no rule such as daily=7"))?;
            let every = Every::parse(every)
                .ok_or_else(|| format!("`{every}` is unknown; use last, hourly, daily, weekly, monthly or yearly"))?;
            match count.parse() {
                Ok(count @ 1..) => Ok((every, count)),
                _ => Err(format!("`{count}` is no number above 0")),
            }
        });
        rules.collect::<Result<_, _>>().map(Keep)
    }

    /// The names of snapshots that no rule keeps.
    pub(super) fn superfluous(&self, names: &[OsString]) -> Vec<String> {
        let mut timed: Vec<(DateTime, &str)> = names
            .iter()
            .filter_map(|name| {
                let name = name.to_str()?;
                let time = DateTime::strptime(TIME_NAME, name).ok()?;
                // Only what the command itself would write.
                (time.strftime(TIME_NAME).to_string() == name).then_some((time, name))
            })
            .collect();
        timed.sort_unstable();
        timed.reverse();
        let mut kept = BTreeSet::new();
        for &(every, count) in &self.0 {
            let mut last = None;
            let mut left = count;
            for &(time, name) in &timed {
                let period = Some(every.period(time));
                if period == last {
                    continue;
                }
                if left == 0 {
                    break;
                }
                left -= 1;
                last = period;
                kept.insert(name);
            }
        }
        let others = timed.iter().filter(|(_, name)| !kept.contains(name));
        others.map(|&(_, name)| name.to_owned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(rules: &str, names: &[&str]) -> Vec<String> {
        let names: Vec<OsString> = names.iter().map(OsString::from).collect();
        let superfluous = Keep::parse(rules).unwrap().superfluous(&names);
        let names = names.into_iter().map(|name| name.into_string().unwrap());
        names.filter(|name| !superfluous.contains(name)).collect()
    }

    #[test]
    fn the_newest_of_each_period_stays() {
        let names = [
            "2026-01-30T100000Z",
            "2026-01-31T100000Z",
            "2026-01-31T230000Z",
            "2026-01-31T233000Z",
            "2026-02-01T000000Z",
        ];
        assert_eq!(left("last=2", &names), names[3..]);
        assert_eq!(left("hourly=2", &names), names[3..]);
        assert_eq!(left("daily=3", &names), [names[0], names[3], names[4]]);
        assert_eq!(left("monthly=9", &names), names[3..]);
        assert_eq!(left("yearly=1", &names), names[4..]);
        assert_eq!(left("hourly=1,daily=2", &names), names[3..]);
        assert_eq!(left("weekly=1", &names), names[4..]);
    }

    #[test]
    fn names_that_users_gave_stay() {
        let names = [
            "before-upgrade",
            "2026-02-30T000000Z",
            "2026-1-1T000000Z",
            "2026-01-01T000000Zx",
        ];
        assert_eq!(left("last=1", &names), names);
    }

    #[test]
    fn rules_that_mean_nothing_are_refused() {
        for text in [
            "",
            "daily",
            "daily=",
            "daily=0",
            "daily=-1",
            "often=3",
            "daily=7,,",
            "daily=7 hourly=2",
        ] {
            assert!(Keep::parse(text).is_err(), "{text}");
        }
    }
}
