//! The explorer finds mistakes: each of those planted in the engine, one at a time. Needs the feature `planted`;
//! `FERRITE_FLAW=Name` tries one.
#![cfg(feature = "planted")]

use std::time::Duration;

use ferrite_crash::explore::{Effort, Search};
use ferrite_crash::source::{Name, Source};
use ferrite_crash::{MAPPINGS, Mapping, Variant, plan, shrink};
use ferrite_fs::planted::{Flaw, plant};

/// Different images after which the search for a mistake has failed.
const PATIENCE: u64 = 100_000;

#[test]
fn every_planted_mistake_is_found() {
    let effort = Effort {
        per_point: 16,
        ..Effort::default()
    };
    // The messages of an engine that stops itself are expected here.
    std::panic::set_hook(Box::new(|_| {}));
    let mut missed = Vec::new();
    // The search for each mistake uses one mapping that it concerns; with more time, all of them.
    let soak = std::env::var_os("FERRITE_SOAK").is_some();
    let only = std::env::var("FERRITE_FLAW").ok();
    let wanted = |flaw: &Flaw| only.as_ref().is_none_or(|name| *name == format!("{flaw:?}"));
    for flaw in Flaw::ALL.into_iter().filter(wanted) {
        // The search still runs for a mistake that the environment names.
        if only.is_none()
            && let Some(test) = flaw.own_test()
        {
            println!("{flaw:?}: left to {test}");
            continue;
        }
        let concerned = MAPPINGS.iter().copied().filter(|&mapping| flaw.concerns(mapping));
        // A mistake particular to some mappings was written for each of them.
        let is_general = flaw.concerns(Mapping::default());
        for mapping in concerned.filter(|&mapping| soak || !is_general || mapping == Mapping::default()) {
            plant(Some(flaw));
            let variant = Variant {
                mapping,
                // One mistake can be made only there.
                data_checksum: flaw == Flaw::FoldSumLate,
                held: flaw.is_held(),
            };
            let search = Search::new(variant, effort);
            let enough = |search: &Search| search.distinct() > PATIENCE;
            let report = match is_general {
                _ if flaw.is_held() => search.run(std::iter::once(folds()).chain(plan::held(1)), 2, &enough),
                // First a workload that unlinks an open file: few do, and one mistake shows there alone.
                true => search.run(std::iter::once(held()).chain(plan::chances(1)), 2, &enough),
                false => search.run(plan::crowds(1), 2, &enough),
            };
            match report.failure {
                None => missed.push((mapping, flaw)),
                Some(failure) => {
                    // Nobody has to find the cause, so a workload that is somewhat longer does.
                    let failure = shrink::shrink(failure, effort, Duration::from_millis(700));
                    let first = failure.what.lines().next().unwrap_or_default();
                    let operations: usize = failure.name.workload().threads.iter().map(Vec::len).sum();
                    println!(
                        "{mapping:?}, {flaw:?}: after {} images; {} ({operations} operations): {first:.150}",
                        report.distinct, failure.name
                    );
                }
            }
        }
        plant(None);
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}

/// A workload that writes to pages after folding them.
fn folds() -> Name {
    Source::Churn(1_000_031).into()
}

fn held() -> Name {
    Source::Random(1, 2).into()
}
