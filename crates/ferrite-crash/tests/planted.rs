//! The explorer finds mistakes: each of those planted in the engine, one at a time. Needs the feature `planted`;
//! `FERRITE_FLAW=Name` tries one.
#![cfg(feature = "planted")]

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ferrite_crash::explore::{Effort, Search};
use ferrite_crash::source::{Name, Source};
use ferrite_crash::{MAPPINGS, Mapping, Variant, plan, shrink};
use ferrite_fs::planted::{Flaw, plant};
use ferrite_fs::{Engine, MkfsOptions, MountOptions, mkfs};
use ferrite_pm::{Choice, Recorder, Region};
use ferrite_vfs::{Cred, Ctx, FileKind, FileSystem, NewNode, Once, OpenMode, ROOT_INO, SYSTEM};

/// Different images after which a mistake counts as not found.
const PATIENCE: u64 = 100_000;

/// Held while a mistake is planted: it is planted in the whole process.
static PLANTING: Mutex<()> = Mutex::new(());

/// In how many images of an append with a token, and of what follows, the append happens again when it is sent again.
fn images_with_two_appends(flaw: Option<Flaw>) -> usize {
    let pool = Region::anonymous(8 << 20).unwrap();
    mkfs(&pool, &MkfsOptions::default().seed(1)).unwrap();
    let mut image = vec![0; pool.len() as usize];
    pool.read(0, &mut image);
    let recorder = Recorder::new(image.clone());
    let mut region = Region::from_image(&image).unwrap();
    region.attach_recorder(Arc::clone(&recorder));
    let quiet = MountOptions::default().cleaner(false);
    let engine = Engine::mount(region, &quiet).unwrap();
    let node = NewNode {
        kind: FileKind::File,
        mode: 0o644,
        rdev: 0,
    };
    let ino = engine.mknod(SYSTEM, ROOT_INO, b"f", &node).unwrap().ino;
    let token = Ctx::trusted(Cred::root()).once(Once { slot: 1, seq: 1 });
    let append = |engine: &Engine| {
        let file = engine.open(SYSTEM, ino, OpenMode::read_write()).unwrap();
        file.append(&token, b"12345678").unwrap();
        file.getattr(SYSTEM).unwrap().size
    };
    let first = recorder.log().crash_points();
    plant(flaw);
    append(&engine);
    plant(None);
    let log = recorder.log();
    let mut cursor = log.cursor();
    let mut twice = 0;
    loop {
        if cursor.point() + 1 >= first {
            for choice in [Choice::None, Choice::All, Choice::Random(1), Choice::Random(2)] {
                let image = cursor.with_image(choice, |image| Region::from_image(image).unwrap());
                let engine = Engine::mount(image, &quiet).unwrap();
                twice += usize::from(append(&engine) != 8);
            }
        }
        if !cursor.advance() {
            return twice;
        }
    }
}

#[test]
fn a_change_whose_outcome_is_not_in_its_record_happens_twice() {
    let _alone = PLANTING.lock().unwrap_or_else(PoisonError::into_inner);
    assert_eq!(images_with_two_appends(None), 0);
    assert!(
        images_with_two_appends(Some(Flaw::OutcomeOutsideRecord)) > 0,
        "not found"
    );
}

#[test]
fn every_planted_mistake_is_found() {
    let _alone = PLANTING.lock().unwrap_or_else(PoisonError::into_inner);
    let effort = Effort {
        per_point: 16,
        ..Effort::default()
    };
    // What the engine says when it stops itself is no news here.
    std::panic::set_hook(Box::new(|_| {}));
    let mut missed = Vec::new();
    // Each is looked for on one mapping that it concerns; on all of them when there is time.
    let soak = std::env::var_os("FERRITE_SOAK").is_some();
    let only = std::env::var("FERRITE_FLAW").ok();
    let wanted = |flaw: &Flaw| only.as_ref().is_none_or(|name| *name == format!("{flaw:?}"));
    for flaw in Flaw::ALL.into_iter().filter(wanted) {
        // Asked for by name it is looked for all the same.
        if only.is_none()
            && let Some(test) = flaw.own_test()
        {
            println!("{flaw:?}: left to {test}");
            continue;
        }
        let concerned = MAPPINGS.iter().copied().filter(|&mapping| flaw.concerns(mapping));
        // What is particular to some mappings was written for each of them.
        let is_general = flaw.concerns(Mapping::default());
        for mapping in concerned.filter(|&mapping| soak || !is_general || mapping == Mapping::default()) {
            plant(Some(flaw));
            let variant = Variant {
                mapping,
                // One mistake can be made only there.
                data_checksum: flaw == Flaw::FoldSumLate,
            };
            let search = Search::new(variant, effort);
            let enough = |search: &Search| search.distinct() > PATIENCE;
            let report = match is_general {
                // First one that unlinks a file which is held: few do, and one mistake shows there alone.
                true => search.run(std::iter::once(held()).chain(plan::chances(1)), 2, &enough),
                false => search.run(plan::crowds(1), 2, &enough),
            };
            match report.failure {
                None => missed.push((mapping, flaw)),
                Some(failure) => {
                    let failure = shrink::shrink(failure, effort, Duration::from_secs(2));
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

fn held() -> Name {
    Name {
        source: Source::Random(0, 2_000_006),
        kept: None,
    }
}
