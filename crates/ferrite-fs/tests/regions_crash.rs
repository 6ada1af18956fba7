//! Crashes while a file is bound (docs/crash-consistency.md, "Bound files").
//!
//! Guarantees: acknowledged writes are there; others are there or not, by aligned words; local writes and appends are
//! there whole or not at all; nothing is damaged, and the file can be finalized.
//!
//! Several recordings of random operations, local and remote, are crashed at each fence, as in `crash.rs`. The test
//! keeps the possible values of each aligned word: that after the last step that returned, and those that the step in
//! progress may have stored.

mod common;

use std::collections::HashSet;
use std::sync::Arc;

use common::remote::{Remote, WRITABLE};
use common::{capture, check_image, empty_pool, fixed, make, pattern, write};
use ferrite_fs::{Engine, Mapping, MkfsOptions, MountOptions, Superblock, layout};
use ferrite_pm::{Choice, Event, Image, LINE_BYTES, Log, Recorder, Region as Pool, Step};
use ferrite_vfs::regions::{Binding, Regions};
use ferrite_vfs::{FallocateMode, FileSystem, Ino, OpenMode, ROOT_INO, SYSTEM, SetAttr};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const POOL_BYTES: u64 = 4 << 20;
const LONGEST: usize = 30_000;

fn quiet() -> MountOptions {
    MountOptions::default().cleaner(false)
}

/// The effect of a step on the content.
#[derive(Clone, PartialEq, Eq)]
struct State {
    content: Vec<u8>,
    /// The step that leads here may be there in part, by aligned words.
    is_torn: bool,
    what: String,
}

struct Recorded {
    log: Log,
    ino: Ino,
    /// Before the first step and after each.
    states: Vec<State>,
}

fn put(content: &mut Vec<u8>, offset: usize, data: &[u8]) {
    let end = offset + data.len();
    if content.len() < end {
        content.resize(end, 0);
    }
    content[offset..end].copy_from_slice(data);
}

/// A step. It changes `content` as reported to the local program or the remote client.
fn step(engine: &Engine, ino: Ino, remote: &mut Option<Remote>, content: &mut Vec<u8>, random: &mut StdRng) -> State {
    let offset = random.random_range(0..LONGEST);
    let len = [5, 64, 700, 4096, 9000][random.random_range(0..5)];
    let data = pattern(len, random.random());
    let (mut is_torn, what) = match (random.random_range(0..14), &*remote) {
        (0..4, Some(remote)) if !content.is_empty() => {
            let offset = offset % content.len();
            let data = &data[..len.min(content.len() - offset)];
            remote.write(offset as u64, data).unwrap();
            put(content, offset, data);
            (true, format!("remote write of {} at {offset}", data.len()))
        }
        (4..7, Some(remote)) => {
            let (one, two) = data.split_at(len / 3);
            remote.region.append(&[one, two]).unwrap();
            content.extend(&data);
            (false, format!("append of {len}"))
        }
        (7, Some(remote)) => {
            remote.region.reserve(len as u64).unwrap();
            content.resize(content.len() + len, 0);
            (false, format!("reservation of {len}"))
        }
        (8, Some(remote)) if content.len() >= 8 => {
            let offset = offset % (content.len() - 7) / 8 * 8;
            let before = u64::from_le_bytes(content[offset..][..8].try_into().unwrap());
            remote.fetch_add(offset as u64, 12345).unwrap();
            put(content, offset, &before.wrapping_add(12345).to_le_bytes());
            (true, format!("addition at {offset}"))
        }
        (9, _) => {
            let set = SetAttr {
                size: Some(offset as u64),
                ..SetAttr::default()
            };
            engine.setattr(SYSTEM, ino, &set).unwrap();
            content.resize(offset, 0);
            (false, format!("truncation to {offset}"))
        }
        (10, _) => {
            let file = engine.open(SYSTEM, ino, OpenMode::read_write()).unwrap();
            let mode = match random.random() {
                true => FallocateMode::PunchHole,
                false => FallocateMode::ZeroRange { keep_size: true },
            };
            file.fallocate(SYSTEM, mode, offset as u64, len as u64).unwrap();
            let end = (offset + len).min(content.len());
            if offset < end {
                content[offset..end].fill(0);
            }
            (false, format!("{mode:?} of {len} at {offset}"))
        }
        (11, Some(bound)) => {
            bound.region.unbind().unwrap();
            *remote = None;
            (false, "unbind".into())
        }
        (7.., None) => {
            let how = Binding {
                defragment: random.random(),
                ..WRITABLE
            };
            *remote = Some(Remote::bind_as(engine, ino, how).unwrap());
            (false, format!("{how:?}"))
        }
        _ => {
            write(engine, ino, offset as u64, &data);
            put(content, offset, &data);
            (false, format!("local write of {len} at {offset}"))
        }
    };
    if content.len() > 2 * LONGEST {
        engine
            .setattr(
                SYSTEM,
                ino,
                &SetAttr {
                    size: Some(5000),
                    ..SetAttr::default()
                },
            )
            .unwrap();
        content.truncate(5000);
        // Two steps in one.
        is_torn = true;
    }
    State {
        content: content.clone(),
        is_torn,
        what,
    }
}

fn record(options: &MkfsOptions, seed: u64, steps: usize) -> Recorded {
    let mut random = StdRng::seed_from_u64(seed);
    let empty = empty_pool(POOL_BYTES, options);
    let recorder = Recorder::new(empty.clone());
    let mut region = Pool::from_image(&empty).unwrap();
    region.attach_recorder(Arc::clone(&recorder));
    let engine = Engine::mount(region, &quiet()).unwrap();
    let ino = make(&engine, ROOT_INO, "file");
    let mut content = pattern(12_000, 1);
    write(&engine, ino, 0, &content);
    write(&engine, ino, 5000, b"a log");
    put(&mut content, 5000, b"a log");
    recorder.mark(0);
    let mut remote = None;
    let mut states = vec![State {
        content: content.clone(),
        is_torn: false,
        what: "before".into(),
    }];
    for number in 0..steps {
        states.push(step(&engine, ino, &mut remote, &mut content, &mut random));
        recorder.mark(number as u64 + 1);
    }
    if let Some(remote) = &remote {
        remote.adapter.check("while it was recorded");
    }
    let log = recorder.log();
    drop(engine);
    Recorded { log, ino, states }
}

/// Why no crash between two states can leave `found`, if none can.
fn wrong(found: &[u8], before: &State, after: &State) -> Option<String> {
    if found == before.content || found == after.content {
        return None;
    }
    if !after.is_torn || before.content.len() != after.content.len() || found.len() != before.content.len() {
        return Some(format!(
            "{} bytes, which were {} and become {}; the first difference is at {:?} and {:?}",
            found.len(),
            before.content.len(),
            after.content.len(),
            found.iter().zip(&before.content).position(|(a, b)| a != b),
            found.iter().zip(&after.content).position(|(a, b)| a != b)
        ));
    }
    let words = found
        .chunks(8)
        .zip(before.content.chunks(8).zip(after.content.chunks(8)));
    let torn = words.enumerate().find(|(_, (word, (a, b)))| word != a && word != b);
    torn.map(|(index, (word, (a, b)))| format!("the word at {} is {word:?}, was {a:?}, becomes {b:?}", index * 8))
}

/// Returns the defect of an image, if any.
fn verify(image: &Image, recorded: &Recorded, returned: usize, finalizes: bool) -> Option<String> {
    let again = Recorder::new(image.clone());
    let mut region = Pool::of_image(image).unwrap();
    region.attach_recorder(Arc::clone(&again));
    let engine = match Engine::mount(region, &quiet()) {
        Ok(engine) => engine,
        Err(error) => return Some(format!("mount: {error}")),
    };
    if !engine.damage().is_empty() {
        return Some(format!("mount: {:?}", engine.damage()));
    }
    let read = |engine: &Engine| {
        let size = engine.getattr(SYSTEM, recorded.ino).ok()?.size;
        let mut content = vec![0; size as usize];
        let file = engine.open(SYSTEM, recorded.ino, OpenMode::read_only()).ok()?;
        let mode = file.read_at(SYSTEM, 0, &mut content);
        (mode.ok()? == content.len()).then_some(content)
    };
    let Some(found) = read(&engine) else {
        return Some("the file cannot be read".into());
    };
    let before = &recorded.states[returned];
    let after = recorded.states.get(returned + 1).unwrap_or(before);
    if let Some(wrong) = wrong(&found, before, after) {
        return Some(wrong);
    }
    // Bytes beyond the end must not show when the file grows.
    let set = SetAttr {
        size: Some(found.len() as u64 + 5000),
        ..SetAttr::default()
    };
    engine.setattr(SYSTEM, recorded.ino, &set).unwrap();
    let grown = read(&engine)?;
    if grown[..found.len()] != found || grown[found.len()..].iter().any(|&byte| byte != 0) {
        return Some("what was behind the end shows".into());
    }
    if finalizes {
        if let Err(error) = engine.finalize(SYSTEM, recorded.ino) {
            return Some(format!("finalize: {error}"));
        }
        let scrubbed = engine.scrub(None).unwrap();
        if !scrubbed.findings.is_empty() || read(&engine)? != grown {
            return Some(format!("after finalizing: {:?}", scrubbed.findings));
        }
    }
    engine.unmount().unwrap();
    None
}

/// Crashes everywhere until `most` images were tried; returns how many, or the defect.
fn explore(recorded: &Recorded, seed: u64, subsets: u64, most: usize) -> Result<usize, String> {
    let mut seen = HashSet::new();
    let mut cursor = recorded.log.cursor();
    loop {
        if let Some(&returned) = cursor.marks().last() {
            let point = cursor.point() as u64;
            let lines = cursor.lines_in_flight();
            let random = (0..subsets).map(|n| Choice::Random(seed ^ point << 16 ^ n));
            let alone = (0..lines.min(subsets as usize / 2))
                .map(|n| Choice::AllButLine(n * lines / lines.min(subsets as usize / 2)));
            for choice in [Choice::None, Choice::All].into_iter().chain(random).chain(alone) {
                if seen.len() >= most || !seen.insert(cursor.fingerprint(choice)) {
                    continue;
                }
                let returned = returned as usize;
                let finalizes = seen.len() % 3 == 0;
                if let Some(wrong) = cursor.with_image(choice, |image| verify(image, recorded, returned, finalizes)) {
                    let next = recorded.states.get(returned + 1).map_or("the end", |state| &state.what);
                    let last = &recorded.states[returned].what;
                    return Err(format!(
                        "seed {seed}, point {point}, {choice:?}, after step {returned} ({last}), in {next}: {wrong}"
                    ));
                }
                // fsck reports the same of the image before the mount.
                if seen.len() % 8 == 0 {
                    cursor.with_image(choice, check_image);
                }
            }
        }
        if !cursor.advance() {
            return Ok(seen.len());
        }
    }
}

fn options(mapping: Mapping, data_checksum: bool) -> MkfsOptions {
    fixed()
        .mapping(mapping)
        .inodes(63)
        .rings(2)
        .data_checksum(data_checksum)
}

#[test]
#[cfg_attr(feature = "seeded-bugs", ignore = "seeded bugs are the whole process's")]
fn crashes_with_bound_files() {
    let soak = std::env::var_os("FERRITE_SOAK").is_some();
    let first = std::env::var("FERRITE_SEED").map_or(1, |seed| seed.parse().unwrap());
    let (rounds, subsets) = if soak { (8, 16) } else { (1, 3) };
    let mut images = 0;
    for seed in first..first + rounds {
        for &mapping in Mapping::ALL {
            for data_checksum in [false, true] {
                let recorded = record(&options(mapping, data_checksum), seed, 40);
                match explore(&recorded, seed, subsets, usize::MAX) {
                    Ok(tried) => images += tried,
                    Err(wrong) => panic!("{mapping:?}, checksums {data_checksum}: {wrong}"),
                }
            }
        }
    }
    println!("{images} images");
    let least = if soak { 50_000 } else { 2_000 };
    assert!(images >= least, "only {images} images");
}

/// A mistake that an engine makes in a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(
    not(feature = "seeded-bugs"),
    allow(dead_code, reason = "other builds search for no mistakes")
)]
enum Forgets {
    Nothing,
    /// Appended bytes beyond the end are not fenced before the record that moves the end.
    AppendFence,
    /// Checksums are finalized without making the data they cover durable.
    ContentWriteBack,
}

/// A recording without the steps that the engine forgets.
fn forgotten(log: Log, forgets: Forgets) -> Log {
    let superblock = Superblock::find(&Pool::from_image(&log.final_image()).unwrap()).unwrap();
    let rings = superblock.journal_offset..superblock.inode_offset;
    let is_stream = |step: &Step<'_>| matches!(step.event(), Event::Stream { .. });
    let is_page = |step: &Step<'_>| match step.event() {
        Event::Stream { offset, words } => {
            offset.is_multiple_of(layout::BLOCK_BYTES) && words.len() as u64 * 8 == layout::BLOCK_BYTES
        }
        _ => false,
    };
    // A fence of streams that are neither a record nor a page, with a record after it.
    let is_of_append = |fence: &Step<'_>| {
        let has_others = fence
            .since_fence()
            .any(|step| step.streams_to(&rings) || is_page(&step));
        !has_others
            && fence.since_fence().any(|step| is_stream(&step))
            && fence.after().next().is_some_and(|step| is_stream(&step))
    };
    // Content is written back in whole blocks, words in single lines.
    let is_of_block = |write_back: &Step<'_>| {
        let block = |step: &Step<'_>| Some(step.written_back()?.start / layout::BLOCK_BYTES);
        let is_same = |step: &Step<'_>| block(step) == block(write_back);
        let others = write_back.before().take_while(is_same).count() + write_back.after().take_while(is_same).count();
        write_back.written_back().is_some() && (others as u64 + 1) * LINE_BYTES >= layout::BLOCK_BYTES
    };
    match forgets {
        Forgets::Nothing => log,
        Forgets::AppendFence => log.without(|step| step.is_fence() && is_of_append(step)),
        Forgets::ContentWriteBack => log.without(is_of_block),
    }
}

/// Finalizing is crashed as well: bound or finalized, and never with checksums that are wrong.
#[test]
#[cfg_attr(feature = "seeded-bugs", ignore = "seeded bugs are the whole process's")]
fn crashes_while_a_file_is_finalized() {
    explore_finalize(Forgets::Nothing);
}

fn explore_finalize(forgets: Forgets) {
    let empty = empty_pool(POOL_BYTES, &options(Mapping::default(), true));
    let recorder = Recorder::new(empty.clone());
    let mut region = Pool::from_image(&empty).unwrap();
    region.attach_recorder(Arc::clone(&recorder));
    let engine = Engine::mount(region, &quiet()).unwrap();
    let ino = make(&engine, ROOT_INO, "file");
    write(&engine, ino, 0, &pattern(30_000, 1));
    let remote = Remote::bind(&engine, ino);
    remote.write(3000, &pattern(20_000, 2)).unwrap();
    // Not fenced: finalizing covers it nevertheless.
    remote.store_unfenced(25_000, &pattern(1000, 3));
    recorder.mark(0);
    remote.region.unbind().unwrap();
    let tree = capture(&engine);
    let log = forgotten(recorder.log(), forgets);
    let mut cursor = log.cursor();
    let mut finalized = 0;
    loop {
        if !cursor.marks().is_empty() {
            for choice in [Choice::None, Choice::All]
                .into_iter()
                .chain((0..30).map(Choice::Random))
            {
                cursor.with_image(choice, |image| {
                    let engine = common::mount_image(image);
                    let scrubbed = engine.scrub(None).unwrap();
                    assert!(scrubbed.findings.is_empty(), "{:?}", scrubbed.findings);
                    if engine.bound().is_empty() {
                        finalized += 1;
                        assert!(capture(&engine) == tree, "what was finalized is what was there");
                    }
                    check_image(image);
                });
            }
        }
        if !cursor.advance() {
            break;
        }
    }
    assert!(finalized > 0);
}

/// A bound file that a client keeps without a name over a restart: bytes that an append left beyond the end do not
/// show.
#[test]
#[cfg_attr(feature = "seeded-bugs", ignore = "seeded bugs are the whole process's")]
fn crashes_with_a_bound_file_that_has_no_name() {
    let empty = empty_pool(POOL_BYTES, &options(Mapping::default(), true));
    let recorder = Recorder::new(empty.clone());
    let mut region = Pool::from_image(&empty).unwrap();
    region.attach_recorder(Arc::clone(&recorder));
    let keeping = quiet().keep_orphans(true);
    let engine = Engine::mount(region, &keeping).unwrap();
    let ino = make(&engine, ROOT_INO, "file");
    let content = pattern(5_000, 1);
    write(&engine, ino, 0, &content);
    let generation = engine.getattr(SYSTEM, ino).unwrap().generation;
    let remote = Remote::bind(&engine, ino);
    engine.unlink(SYSTEM, ROOT_INO, b"file").unwrap();
    recorder.mark(0);
    let more = pattern(700, 2);
    remote.region.append(&[&more]).unwrap();
    let log = recorder.log();
    let mut cursor = log.cursor();
    let mut sizes = HashSet::new();
    loop {
        if !cursor.marks().is_empty() {
            for choice in [Choice::None, Choice::All]
                .into_iter()
                .chain((0..4).map(Choice::Random))
            {
                cursor.with_image(choice, |image| {
                    let engine = Engine::mount(Pool::of_image(image).unwrap(), &keeping).unwrap();
                    engine.pin(SYSTEM, ino, generation).unwrap();
                    let size = engine.getattr(SYSTEM, ino).unwrap().size as usize;
                    sizes.insert(size);
                    let set = SetAttr {
                        size: Some(8_000),
                        ..SetAttr::default()
                    };
                    engine.setattr(SYSTEM, ino, &set).unwrap();
                    let mut found = vec![1; 8_000];
                    let file = engine.open(SYSTEM, ino, OpenMode::read_only()).unwrap();
                    assert_eq!(file.read_at(SYSTEM, 0, &mut found), Ok(8_000));
                    assert!(found[..size] == [&content[..], &more].concat()[..size]);
                    assert!(
                        found[size..].iter().all(|&byte| byte == 0),
                        "at {} of {size}",
                        first_nonzero(&found, size)
                    );
                    assert_eq!(engine.bound().len(), 1, "it is finalized later");
                    engine.finalize(SYSTEM, ino).unwrap();
                });
            }
        }
        if !cursor.advance() {
            break;
        }
    }
    assert_eq!(sizes, HashSet::from([5_000, 5_700]));
}

/// The first byte from `from` on that is not zero.
fn first_nonzero(found: &[u8], from: usize) -> usize {
    from + found[from..].iter().position(|&byte| byte != 0).unwrap_or(0)
}

/// Each mistake that can be made with bound files shows in the tests above.
#[cfg(feature = "seeded-bugs")]
#[test]
fn mistakes_with_bound_files_are_found() {
    use ferrite_checks::fault_injection::{Bug, seed};
    std::panic::set_hook(Box::new(|_| {}));
    let is_found = |forgets: Forgets| {
        let by_order = (1..40).any(|seed| {
            let mut recorded = record(&options(Mapping::default(), true), seed, 40);
            recorded.log = forgotten(recorded.log, forgets);
            explore(&recorded, seed, 6, usize::MAX).is_err()
        });
        by_order || std::panic::catch_unwind(|| explore_finalize(forgets)).is_err()
    };
    let mut missed = Vec::new();
    for bug in [Bug::TailKept, Bug::BoundCovered, Bug::BoundBeforeCheckpoint] {
        seed(Some(bug));
        if !is_found(Forgets::Nothing) {
            missed.push(format!("{bug:?}"));
        }
        seed(None);
    }
    for forgets in [Forgets::AppendFence, Forgets::ContentWriteBack] {
        if !is_found(forgets) {
            missed.push(format!("{forgets:?}"));
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}
