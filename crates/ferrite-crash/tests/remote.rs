//! Crashes while packets and programs change a bound file.
//!
//! Protects: acknowledged data is there; unacknowledged data is there or not by aligned words, and nowhere else; local
//! calls, appends and reservations are there whole or not at all; the file can be finalized.
//!
//! Queue pairs over a bad network, the adapter and the engine are the real ones; there are no sockets. The test stops
//! packets between their steps, and local calls, too; `remote/scene.rs` says how. Each fence yields images.
//! `FERRITE_SEED` replays one seed, on all mappings.

#[path = "remote/effects.rs"]
mod effects;
#[path = "remote/scene.rs"]
mod scene;
#[path = "remote/script.rs"]
mod script;
#[path = "remote/seam.rs"]
mod seam;
#[path = "../../ferrite-roce/tests/support/mod.rs"]
mod support;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use ferrite_crash::choices::{self, choices};
#[cfg(feature = "seeded-bugs")]
use ferrite_crash::omission::Omission;
use ferrite_crash::{MAPPINGS, Mapping};
use ferrite_fs::{Engine, MkfsOptions, MountOptions, fsck};
use ferrite_pm::{Image, Region as Pool};
use ferrite_testkit::{seed_from_env, two_at_a_time};
use ferrite_vfs::regions::Regions;
use ferrite_vfs::{FileSystem, ROOT_INO, SYSTEM, SetAttr};

use effects::Allowed;
use script::{Recorded, read_state, record};
#[cfg(feature = "seeded-bugs")]
use seam::Fences;

fn options(mapping: Mapping, data_checksum: bool) -> MkfsOptions {
    MkfsOptions::default()
        .mapping(mapping)
        .seed(42)
        .inodes(63)
        .rings(4)
        .data_checksum(data_checksum)
}

/// Returns the violation of an image, if any.
fn verify(image: &Image, allowed: &Allowed, finalizes: bool) -> Result<(), String> {
    let region = Pool::of_image(image).map_err(|error| error.to_string())?;
    let engine =
        Engine::mount(region, &MountOptions::default().cleaner(false)).map_err(|error| format!("mount: {error}"))?;
    if !engine.damage().is_empty() {
        return Err(format!("mount: {:?}", engine.damage()));
    }
    let found = read_state(&engine)?;
    if let Some(wrong) = allowed.wrong(&found) {
        return Err(wrong);
    }
    let Some(name) = &found.name else {
        return Ok(());
    };
    // Bytes behind the end must not show when the file grows.
    let ino = engine
        .lookup(SYSTEM, ROOT_INO, name.as_bytes())
        .map_err(|error| error.to_string())?
        .ino;
    let set = SetAttr {
        size: Some(found.content.len() as u64 + 5_000),
        ..SetAttr::default()
    };
    engine
        .setattr(SYSTEM, ino, &set)
        .map_err(|error| format!("growing: {error}"))?;
    let grown = read_state(&engine)?;
    let (before, behind) = grown.content.split_at(found.content.len());
    if before != found.content || behind.iter().any(|&byte| byte != 0) {
        return Err("what was behind the end shows".into());
    }
    if finalizes {
        engine
            .finalize(SYSTEM, ino)
            .map_err(|error| format!("finalize: {error}"))?;
        let scrubbed = engine.scrub(None).map_err(|error| format!("scrub: {error}"))?;
        if !scrubbed.findings.is_empty() || read_state(&engine)? != grown {
            return Err(format!("after finalizing: {:?}", scrubbed.findings));
        }
    }
    engine.unmount().map_err(|error| format!("unmount: {error}"))?;
    // fsck gives the same verdict on an image that no mount has touched.
    if finalizes {
        let region = Pool::of_image(image).map_err(|error| error.to_string())?;
        let report = fsck(region, &mut |_, _, _| {}).map_err(|error| format!("fsck: {error}"))?;
        if !report.findings.is_empty() {
            return Err(format!("fsck: {:?}", report.findings));
        }
    }
    Ok(())
}

/// Crashes at each fence; returns the number of different images, or the violation of one. Checks an image once for
/// each moment that it may be of.
fn explore(recorded: &Recorded, seed: u64, per_point: usize) -> Result<usize, String> {
    let (mut seen, mut images) = (HashSet::new(), HashSet::new());
    let mut allowed: HashMap<u64, Allowed> = HashMap::new();
    let mut cursor = recorded.log.cursor();
    loop {
        if let Some(&mark) = cursor.marks().last() {
            let point = cursor.point();
            let moment = &recorded.moments[mark as usize];
            for choice in choices(cursor.lines_in_flight(), per_point, seed ^ (point as u64) << 16) {
                let image = cursor.fingerprint(choice);
                if !seen.insert((mark, image)) {
                    continue;
                }
                images.insert(image);
                let allowed = allowed.entry(mark).or_insert_with(|| Allowed::at(moment));
                let finalizes = seen.len() % 4 == 0;
                if let Err(wrong) = cursor.with_image(choice, |image| verify(image, allowed, finalizes)) {
                    let choice = choices::name(choice);
                    let pending = format!("{:.300?}", moment.pending);
                    return Err(format!("point {point}, {choice}, during {pending}: {wrong}"));
                }
            }
        }
        if !cursor.advance() {
            return Ok(images.len());
        }
    }
}

/// The scenes of a run: mapping, checksums, seed.
fn scenes(seeds: u64) -> Vec<(Mapping, bool, u64)> {
    let seeds = match seed_from_env() {
        Some(seed) => seed..seed + 1,
        None => 1..1 + seeds,
    };
    let of_seed = |seed| {
        MAPPINGS
            .iter()
            .flat_map(move |&mapping| [false, true].map(move |sums| (mapping, sums, seed)))
    };
    seeds.flat_map(of_seed).collect()
}

#[test]
#[cfg_attr(feature = "seeded-bugs", ignore = "seeded bugs are the whole process's")]
fn crashes_between_packets_and_calls() {
    let soak = std::env::var_os("FERRITE_SOAK").is_some();
    let (seeds, steps, per_point) = if soak { (5, 40, 10) } else { (1, 20, 4) };
    let (images, waited, between) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    two_at_a_time(&scenes(seeds), |&(mapping, sums, seed)| {
        let what = format!("FERRITE_SEED={seed}, {mapping:?}, checksums {sums}");
        println!("{what}");
        let recorded = record(&options(mapping, sums), seed, steps, true);
        waited.fetch_add(recorded.waited as usize, SeqCst);
        between.fetch_add(recorded.between as usize, SeqCst);
        match explore(&recorded, seed, per_point) {
            Ok(tried) => drop(images.fetch_add(tried, SeqCst)),
            Err(wrong) => panic!("{what}: {wrong}"),
        }
    });
    let [images, waited, between] = [images, waited, between].map(AtomicUsize::into_inner);
    println!("{images} images; {waited} calls waited for packets, {between} packets came in the middle of others");
    if seed_from_env().is_none() {
        let least = if soak { 50_000 } else { 2_000 };
        assert!(images >= least, "only {images} images");
        assert!(waited >= 20 && between >= 5, "too little happens at once");
    }
}

/// Each possible mistake between packets and calls shows in the test above.
#[cfg(feature = "seeded-bugs")]
#[test]
fn mistakes_behind_packets_are_found() {
    use ferrite_checks::fault_injection::{Bug, seed as seed_bug};

    std::panic::set_hook(Box::new(|_| {}));
    let look = |name: String, omission: Option<Omission>| {
        let found = (1..100).find_map(|seed| {
            let scene = || {
                let mut recorded = record(&options(Mapping::default(), true), seed, 30, false);
                if let Some(omission) = omission {
                    recorded.log = omission.leave_out(&recorded.log, &recorded.superblock);
                }
                explore(&recorded, seed, 6).err()
            };
            // Only the state after a crash counts.
            let wrong = std::panic::catch_unwind(scene).ok().flatten();
            wrong.map(|wrong| (seed, wrong))
        });
        match &found {
            Some((seed, wrong)) => println!("{name}: seed {seed}: {wrong:.300}"),
            None => println!("{name}: not found"),
        }
        found.is_none().then_some(name)
    };
    let of_engine = [Bug::BoundCovered, Bug::FreedBeforeDrain, Bug::TailKept];
    let mut missed = Vec::new();
    for bug in of_engine.into_iter().chain(Bug::of("ferrite-mr")) {
        seed_bug(Some(bug));
        missed.extend(look(format!("{bug:?}"), None));
        seed_bug(None);
    }
    missed.extend(look("AppendFence".into(), Some(Omission::AppendFence)));
    for fences in [Fences::BeforeAccess, Fences::AfterGuard] {
        seam::fence_of_adapters(fences);
        missed.extend(look(format!("{fences:?}"), None));
        seam::fence_of_adapters(Fences::InTime);
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}
