//! The explorer finds mistakes: bugs that are seeded in the engine, and fences and write-backs that are left out of a
//! recording, one at a time. Needs the feature `seeded-bugs`; `FERRITE_BUG=Name` tries one.
#![cfg(feature = "seeded-bugs")]

use std::time::Duration;

use ferrite_checks::fault_injection::{Bug, seed};
use ferrite_crash::explore::{Effort, Search};
use ferrite_crash::omission::Omission;
use ferrite_crash::source::{Name, Source};
use ferrite_crash::{MAPPINGS, Mapping, Variant, plan, shrink};

/// Different images after which the search for a mistake has failed.
const RUNS_MAX: u64 = 100_000;
const EFFORT: Effort = Effort {
    per_point: 16,
    recrash_every: 40,
    per_recovery_point: 6,
    seed: 1,
};

/// A mistake, and how to look for it.
struct Mistake {
    name: String,
    bug: Option<Bug>,
    omission: Option<Omission>,
    /// The mappings with which it can be made, and does harm.
    mappings: Vec<Mapping>,
    /// It was written for each of its mappings, and all of them are tried.
    is_particular: bool,
    /// It concerns deferred write-back.
    is_deferred: bool,
}

/// The name of the test that finds a bug, if the explorer is not expected to; else `None`.
///
/// A merge without a new version harms only concurrent readers, and leaves no image that could show it. The checkpoint
/// advances right after a move of entries, so a forgotten floor does harm only if a second thread commits at that
/// moment. The explorer's workloads bind no files. A torn record comes back only if another one, at the same place of
/// its ring, has the same words where it was torn: the explorer met that once in a million images.
fn own_test(bug: Bug) -> Option<&'static str> {
    match bug {
        Bug::MergeUnannounced => Some("a_merge_is_news_to_readers"),
        Bug::TornRecordAbove => Some("a_torn_record_stays_dead"),
        Bug::MoveForgetsFloor => Some("records_after_a_move_have_higher_numbers"),
        Bug::TailKept | Bug::BoundCovered | Bug::BoundBeforeCheckpoint => Some("mistakes_with_bound_files_are_found"),
        Bug::FreedBeforeDrain => Some("mistakes_behind_packets_are_found"),
        _ => None,
    }
}

impl Mistake {
    fn of_bug(bug: Bug) -> Mistake {
        let particular = match bug {
            Bug::MoveForgetsWord => Some(vec![Mapping::Cuckoo]),
            Bug::SplitForgetsCopy => Some(vec![Mapping::Leaf]),
            Bug::NodeWithoutWords => Some(vec![Mapping::Radix, Mapping::Extent]),
            _ => None,
        };
        Mistake {
            name: format!("{bug:?}"),
            bug: Some(bug),
            omission: None,
            is_particular: particular.is_some(),
            mappings: particular.unwrap_or(MAPPINGS.to_vec()),
            is_deferred: matches!(bug, Bug::MergeWithoutRecord | Bug::GapInPrefix | Bug::NodeWithoutWords),
        }
    }

    /// A forgotten fence, on each mapping on which it is a mistake of its own.
    fn of_omission(omission: Omission) -> impl Iterator<Item = Mistake> {
        let soak = std::env::var_os("FERRITE_SOAK").is_some();
        let own = omission.mappings();
        let mappings = MAPPINGS.iter().filter(move |mapping| soak || own.contains(mapping));
        mappings.map(move |&mapping| Mistake {
            name: format!("{omission:?}"),
            bug: None,
            omission: Some(omission),
            is_particular: mapping != Mapping::default() && own.contains(&mapping),
            mappings: vec![mapping],
            is_deferred: omission.is_deferred(),
        })
    }

    /// Whether it concerns shared blocks, which few workloads have.
    fn is_of_clones(&self) -> bool {
        let of_clones = [
            Bug::ShareUnmarked,
            Bug::ShareUncounted,
            Bug::ShareDroppedEarly,
            Bug::SharedInPlace,
        ];
        self.bug.is_some_and(|bug| of_clones.contains(&bug))
    }

    /// Whether the explorer finds it on pools with this mapping.
    fn is_found(&self, mapping: Mapping) -> bool {
        let variant = Variant {
            mapping,
            // One mistake can be made only there.
            data_checksum: self.bug == Some(Bug::MergedSumLate),
            log_unit_bytes: None,
            deferred: self.is_deferred,
            omission: self.omission,
        };
        seed(self.bug);
        let search = Search::new(variant, EFFORT);
        let enough = |search: &Search| search.distinct() > RUNS_MAX;
        let report = match self.is_particular {
            _ if self.is_of_clones() => search.run(plan::clones(1), 2, &enough),
            _ if self.is_deferred => search.run(std::iter::once(merges()).chain(plan::deferred(1)), 2, &enough),
            // First a workload that unlinks an open file: few do, and one mistake shows there alone.
            false => search.run(std::iter::once(unlinks()).chain(plan::chances(1)), 2, &enough),
            true => search.run(plan::crowds(1), 2, &enough),
        };
        let is_found = report.failure.is_some();
        if let Some(failure) = report.failure {
            // Nobody has to find the cause, so a workload that is somewhat longer does.
            let failure = shrink::shrink(failure, EFFORT, Duration::from_millis(700));
            let first = failure.what.lines().next().unwrap_or_default();
            let operations: usize = failure.name.workload().threads.iter().map(Vec::len).sum();
            println!(
                "{mapping:?}, {}: after {} images; {} ({operations} operations): {first:.150}",
                self.name, report.distinct, failure.name
            );
        }
        seed(None);
        is_found
    }
}

#[test]
fn every_mistake_is_found() {
    // The messages of an engine that stops itself are expected here.
    std::panic::set_hook(Box::new(|_| {}));
    // The search for each mistake uses one mapping that it concerns; with more time, all of them.
    let soak = std::env::var_os("FERRITE_SOAK").is_some();
    let only = std::env::var("FERRITE_BUG").ok();
    let bugs = Bug::of("ferrite-fs").map(Mistake::of_bug);
    let omissions = Omission::EXPLORED.into_iter().flat_map(Mistake::of_omission);
    let wanted = |mistake: &Mistake| only.as_ref().is_none_or(|name| *name == mistake.name);
    let (mut missed, mut tried) = (Vec::new(), 0);
    for mistake in bugs.chain(omissions).filter(wanted) {
        // The search still runs for a mistake that the environment names.
        if only.is_none()
            && let Some(test) = mistake.bug.and_then(own_test)
        {
            println!("{}: left to {test}", mistake.name);
            continue;
        }
        let all = soak || mistake.is_particular || mistake.omission.is_some();
        for &mapping in mistake
            .mappings
            .iter()
            .filter(|&&mapping| all || mapping == Mapping::default())
        {
            tried += 1;
            if !mistake.is_found(mapping) {
                missed.push((mapping, mistake.name.clone()));
            }
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
    assert!(tried > 0, "there is no such mistake: {only:?}");
}

/// A workload that writes to pages after merging them.
fn merges() -> Name {
    Source::Churn(1_000_031).into()
}

/// A workload that unlinks an open file.
fn unlinks() -> Name {
    Source::Random(1, 2).into()
}
