//! A tiny run: every row is there, and lines, which do not depend on the machine, match the design's promises.

use super::*;
use crate::compare::filled;
use crate::measure::FILE;
use crate::{lookup_rows, run_rows};
use ferrite_map::PageId;

#[test]
fn every_structure_has_every_row_and_hashfs_stays_within_its_lines() {
    let plan = ChurnPlan {
        fills: vec![80],
        ..ChurnPlan::tiny()
    };
    let mut steps = 0;
    let rows = churn_rows(&plan, 80, &mut |_| steps += 1).expect("it runs");
    assert_eq!(rows.len(), Mapping::ALL.len() * plan.churns.len() * KINDS.len());
    assert!(steps > 0);
    let find = |structure: &str, churn, name| {
        rows.iter()
            .find(|row| row.structure == structure && row.churn == Some(churn) && row.name == name)
            .unwrap_or_else(|| panic!("no row for {name} of {structure} after {churn}"))
    };
    for mapping in Mapping::ALL {
        for &churn in &plan.churns {
            for (_, name) in KINDS {
                let row = find(mapping.name(), churn, name);
                let lines = row.lines_average.expect("counted");
                assert!(
                    lines >= 1.0 && row.lines_p99.expect("counted") as f64 >= lines.floor(),
                    "{row:?}"
                );
                assert!(
                    row.ratio > 0.0 && row.cold_ratio.is_some_and(|ratio| ratio > 0.0),
                    "{row:?}"
                );
                assert!(row.median_ns.is_some_and(|ns| ns > 0.0), "{row:?}");
            }
        }
    }
    assert_eq!(find("hashfs", 5, "hit").ratio, 1.0);
    for (name, most) in [("hit", 3.0), ("miss", 5.0)] {
        let row = find("hashfs", 100, name);
        assert!(row.lines_average.is_some_and(|lines| lines <= most), "{row:?}");
    }
}

/// All fills, as full as possible: nothing runs out of space, and the number of pages stays.
#[test]
fn pools_stay_as_full_as_they_were_made() {
    let plan = ChurnPlan::tiny();
    for fill_percent in [50, 95] {
        for &mapping in Mapping::ALL {
            let mut aged = Aged::new(Structure::Product(mapping), &plan, fill_percent).expect("a pool");
            aged.churn_to(u64::from(plan.pool_blocks) * 2).expect("space");
            aged.insert(&plan, &mut Costs::default()).expect("space");
            let mut mapped = 0;
            aged.pool.map.for_each(&mut |_| {
                mapped += 1;
                true
            });
            assert_eq!(
                mapped,
                u64::from(plan.pool_blocks) * u64::from(fill_percent) / 100,
                "{mapping}"
            );
        }
    }
}

#[test]
fn leaf_stands_beside_hashfs() {
    let plan = ChurnPlan::tiny();
    let rows = lookup_rows(&plan, &mut |_| {}).expect("it runs");
    let names: Vec<_> = rows.iter().map(|row| (row.name, row.fill_percent)).collect();
    for name in ["cold_random", "sequential_4k", "cold_sequential_128k"] {
        assert!(names.contains(&(name, 80)) && names.contains(&(name, 95)), "{names:?}");
    }
    assert!(
        rows.iter().all(|row| row.structure == "leaf" && row.ratio > 0.0),
        "{rows:?}"
    );
}

#[test]
fn runs_are_counted() {
    let rows = run_rows(&ChurnPlan::tiny(), &mut |_| {}).expect("it runs");
    let blocks: Vec<_> = rows
        .iter()
        .map(|row| (row.structure, row.run_blocks.unwrap_or(0.0)))
        .collect();
    assert_eq!(blocks.len(), 2);
    assert!(blocks.iter().all(|&(_, blocks)| blocks >= 1.0), "{blocks:?}");
}

/// A countable requirement of `leaf`: files written in order into an aged pool lie in long runs.
#[test]
fn leaf_lays_runs_as_long_as_required() {
    let plan = ChurnPlan {
        runs_pool_bytes: 256 << 20,
        ..ChurnPlan::tiny()
    };
    let rows = run_rows(&plan, &mut |_| {}).expect("it runs");
    let leaf = rows.iter().find(|row| row.structure == "leaf").expect("its row");
    assert_eq!((leaf.required_ratio, leaf.fill_percent), (Some(1.0), 80));
    assert!(
        leaf.ratio <= 1.0 && leaf.run_blocks.is_some_and(|blocks| blocks >= 64.0),
        "{leaf:?}"
    );
    // Pages that the hash places are scattered: so the requirement can fail.
    let hashfs = rows.iter().find(|row| row.structure == "hashfs").expect("its row");
    assert!(hashfs.run_blocks.is_some_and(|blocks| blocks < 64.0), "{hashfs:?}");
}

/// In order, `leaf` touches a line or two for seven pages, whereas HashFS touches two for each.
#[test]
fn leaf_touches_a_third_of_the_lines_in_order() {
    const CHUNK_PAGES: usize = 7;
    let plan = ChurnPlan::tiny();
    for fill_percent in [80, 95] {
        let lines = |mapping: Mapping, step: usize| {
            let pool = filled(mapping, &plan, fill_percent).expect("a pool");
            let touched = (0..plan.file_pages).step_by(step);
            let touched: u64 = touched
                .map(|lblk| pool.map.lines_touched(PageId::from_raw(FILE, lblk)))
                .sum();
            touched as f64 / f64::from(plan.file_pages)
        };
        // The other six pages of a chunk lie in the line that the first one's lookup found.
        let (leaf, hashfs) = (lines(Mapping::Leaf, CHUNK_PAGES), lines(Mapping::Hashfs, 1));
        assert!(
            leaf <= hashfs / 3.0,
            "{fill_percent} %: {leaf:.2} lines a page, hashfs {hashfs:.2}"
        );
        // A lookup at random: one line at home, two in the next.
        let alone = lines(Mapping::Leaf, 1);
        assert!(
            (1.0..=2.0).contains(&alone),
            "{fill_percent} %: {alone:.2} lines a lookup"
        );
    }
}

#[test]
fn the_99th_of_a_hundred() {
    let mut values: Vec<u64> = (1..=200).rev().collect();
    assert_eq!(p99(&mut values, u64::cmp), Some(198));
    assert_eq!(p99(&mut [7], u64::cmp), Some(7));
    assert_eq!(p99(&mut [], u64::cmp), None);
}
