//! Cache misses of cold lookups, on CPUs that count them.
//!
//! Contents: [`Counting`], counters around a piece of work; [`cold_note`] for figure 5 and [`miss_rows`] for `ferrite
//! bench mapping`. Counted lookups are not timed, and timed ones are not counted, because reading a counter is a system
//! call.
//!
//! Invariant: events that cannot be counted are reported with the reason, and cause no failure.

use ferrite_map::{Mapping, PageId};
use ferrite_pm::{CpuEvent, EventCounter, EventError};
use serde::Serialize;

use crate::churn::ChurnPlan;
use crate::compare::{filled, rounds};
use crate::error::LabError;
use crate::measure::{Cold, FILE, random_pages};
use crate::pool::Pool;
use crate::structure::Structure;
use ferrite_measure::mean;

/// The events counted for a lookup.
pub(crate) const MISSES: [CpuEvent; 2] = [CpuEvent::LastLevelMisses, CpuEvent::L1dReadMisses];
/// How full the pools of [`miss_rows`] are.
const FILL_PERCENT: u32 = 80;
/// Lookups of each mapping for each of the plan's rounds.
const LOOKUPS_PER_ROUND: u32 = 20;

/// Counters around pieces of work, in the order they were asked for.
pub(crate) struct Counting(Vec<EventCounter>);

impl Counting {
    /// Counters of these events, for this thread; the reason if one is unavailable.
    pub(crate) fn open(events: &[CpuEvent]) -> Result<Counting, EventError> {
        events
            .iter()
            .map(|&event| EventCounter::open(event))
            .collect::<Result<_, _>>()
            .map(Counting)
    }

    /// The number of each event during `work`.
    pub(crate) fn around(&self, work: impl FnOnce()) -> Result<Vec<u64>, EventError> {
        let read = || self.0.iter().map(EventCounter::read).collect::<Result<Vec<_>, _>>();
        let before = read()?;
        work();
        let behind = read()?;
        Ok(behind
            .iter()
            .zip(&before)
            .map(|(behind, before)| behind - before)
            .collect())
    }

    /// The average events of each of these lookups, cold, minus the events counted around no lookup at all.
    pub(crate) fn cold_looks(
        &self,
        cold: &mut Cold,
        pool: &Pool,
        pages: impl Iterator<Item = PageId>,
    ) -> Result<Vec<f64>, EventError> {
        let mut lookups = vec![Vec::new(); self.0.len()];
        let mut nothings = lookups.clone();
        for page in pages {
            for (all, counted) in [(&mut lookups, true), (&mut nothings, false)] {
                let counts = cold.around_look(pool, page, |look| {
                    self.around(|| {
                        if counted {
                            look();
                        }
                    })
                })?;
                for (all, count) in all.iter_mut().zip(counts) {
                    all.push(count as f64);
                }
            }
        }
        let pairs = lookups.iter().zip(&nothings);
        Ok(pairs
            .map(|(ours, nothing)| (mean(ours) - mean(nothing)).max(0.0))
            .collect())
    }
}

/// The reason why cache misses are not counted here; `None` if they are.
pub fn uncounted() -> Option<String> {
    Counting::open(&MISSES).err().map(|why| why.to_string())
}

/// The misses of cold lookups of these pages, in words, or the reason why they are unknown.
pub(crate) fn cold_note(
    structure: Structure,
    cold: &mut Cold,
    pool: &Pool,
    pages: impl Iterator<Item = PageId>,
) -> String {
    let name = structure.name();
    match Counting::open(&MISSES).and_then(|counting| counting.cold_looks(cold, pool, pages)) {
        Ok(counts) => {
            let counts: Vec<String> = MISSES
                .iter()
                .zip(&counts)
                .map(|(event, count)| format!("{count:.1} {event}"))
                .collect();
            format!("{name}: a cold lookup at random makes {}", counts.join(" and "))
        }
        Err(why) => format!("{name}: SKIPPED, misses are not counted: {why}"),
    }
}

/// Cache misses of a mapping's cold lookups.
#[derive(Debug, Clone, Serialize)]
pub struct MissRow {
    /// Always "mapping".
    pub group: &'static str,
    /// Always "cold_misses".
    pub name: &'static str,
    /// The mapping.
    pub structure: &'static str,
    /// Misses of the last-level cache for each lookup of a page at random.
    pub last_level_misses: f64,
    /// Read misses of the first-level data cache for each.
    pub l1d_read_misses: f64,
    /// Cache lines of the structure that such a lookup touches.
    pub lines_average: f64,
    /// Share of the data blocks that hold pages.
    pub fill_percent: u32,
}

/// A row for each mapping, in one file that fills a pool at 80 %; an error of the counters if the CPU has none, before
/// any work. Reports the beginning of each step to `step`.
pub fn miss_rows(plan: &ChurnPlan, step: &mut dyn FnMut(&str)) -> Result<Vec<MissRow>, LabError> {
    let counting = Counting::open(&MISSES)?;
    let mut rows = Vec::new();
    for &mapping in Mapping::ALL {
        step(&format!("cache misses of {mapping}"));
        let (counts, lines_average) = counted(plan, mapping, &counting)?;
        let count = |event: CpuEvent| {
            let place = MISSES.iter().position(|&one| one == event);
            place.and_then(|place| counts.get(place).copied()).unwrap_or(f64::NAN)
        };
        rows.push(MissRow {
            group: "mapping",
            name: "cold_misses",
            structure: mapping.name(),
            last_level_misses: count(CpuEvent::LastLevelMisses),
            l1d_read_misses: count(CpuEvent::L1dReadMisses),
            lines_average,
            fill_percent: FILL_PERCENT,
        });
    }
    Ok(rows)
}

/// The events counted for cold lookups of a mapping, and the lines that they touch.
fn counted(plan: &ChurnPlan, mapping: Mapping, counting: &Counting) -> Result<(Vec<f64>, f64), LabError> {
    let pool = filled(mapping, plan, FILL_PERCENT)?;
    let mut cold = Cold::new(Structure::Product(mapping))?;
    let pages = random_pages(plan.file_pages, plan.seed);
    let pages = &pages[..pages.len().min((rounds(plan) * LOOKUPS_PER_ROUND) as usize)];
    let counts = counting.cold_looks(&mut cold, &pool, pages.iter().map(|&lblk| PageId::from_raw(FILE, lblk)))?;
    let lines: Vec<f64> = pages
        .iter()
        .map(|&lblk| pool.map.lines_touched(PageId::from_raw(FILE, lblk)) as f64)
        .collect();
    Ok((counts, mean(&lines)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counters of an event that every machine has; `None` where even that may not be counted.
    fn faults() -> Option<Counting> {
        match Counting::open(&[CpuEvent::PageFaults, CpuEvent::PageFaults]) {
            Ok(counting) => Some(counting),
            Err(why @ EventError::Forbidden(_)) => {
                eprintln!("SKIPPED: {why}");
                None
            }
            Err(why) => panic!("{why}"),
        }
    }

    #[test]
    fn only_what_happens_within_the_work_is_counted() {
        let Some(counting) = faults() else { return };
        let counts = counting.around(|| drop(vec![1u8; 16 << 20])).expect("they count");
        assert!(counts.len() == 2 && counts.iter().all(|&count| count > 0), "{counts:?}");
        let nothing = counting.around(|| ()).expect("they count");
        assert!(
            nothing.iter().zip(&counts).all(|(none, some)| none < some),
            "{nothing:?}"
        );
    }

    /// The path of cache misses, with an event that every machine has: lookups of resident memory fault next to never.
    #[test]
    fn cold_lookups_are_counted_for_every_mapping() {
        let Some(counting) = faults() else { return };
        for &mapping in Mapping::ALL {
            let (counts, lines) = counted(&ChurnPlan::tiny(), mapping, &counting).expect("it runs");
            assert!(
                counts.len() == 2 && counts.iter().all(|count| (0.0..1.0).contains(count)),
                "{counts:?}"
            );
            assert!(lines >= 1.0);
        }
    }

    /// Misses are counted, or the reason is reported.
    #[test]
    fn where_nothing_counts_misses_it_is_said_aloud() {
        let structure = Structure::Product(Mapping::Hashfs);
        let pool = filled(Mapping::Hashfs, &ChurnPlan::tiny(), FILL_PERCENT).expect("a pool");
        let mut cold = Cold::new(structure).expect("a twin");
        let note = cold_note(
            structure,
            &mut cold,
            &pool,
            (0..3).map(|lblk| PageId::from_raw(FILE, lblk)),
        );
        let rows = miss_rows(&ChurnPlan::tiny(), &mut |_| {});
        match uncounted() {
            Some(why) => {
                assert!(note.contains("SKIPPED") && note.contains(&why), "{note}");
                assert_eq!(rows.expect_err("no counters").to_string(), why);
            }
            None => {
                assert!(note.contains("last-level cache misses"), "{note}");
                assert_eq!(rows.expect("counters").len(), Mapping::ALL.len());
            }
        }
    }
}
