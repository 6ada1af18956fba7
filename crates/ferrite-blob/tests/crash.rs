//! Power loss: images of what a device could hold, built from a record of all writes and flushes.
//!
//! Everything that has returned is there. The operation under way is there, is not, or, where it changes bytes in
//! place, is there page by page. No blob's clusters are another's, none are lost, and no byte of an earlier owner is
//! ever visible.

mod common;

use std::sync::Arc;

use common::{Known, Maker, Model, Step, compare, content, contents, difference, is_full, same, same_bytes};
use ferrite_blob::device::{Logged, Memory, Recorder, lose_power};
use ferrite_blob::{Area, BlobStore, FormatOptions, PAGE_BYTES};
use ferrite_testkit::rng::{Rng, pattern};
use ferrite_testkit::seed_from_env;

const OPTIONS: FormatOptions = FormatOptions {
    store: [1; 16],
    pool: [2; 16],
    index: 0,
    checksums: false,
    shares_clusters: false,
};
/// The unit that a power loss may tear.
const SECTOR_BYTES: usize = 512;
const DEVICE_BYTES: usize = 12 << 20;
const STEPS: usize = 60;

/// A run that was recorded.
struct Run {
    base: Vec<u8>,
    log: Vec<Logged>,
    /// States before each step, and after the last.
    states: Vec<Model>,
    steps: Vec<Step>,
    tears: bool,
}

/// A mistake that a store makes in a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(
    not(feature = "seeded-bugs"),
    allow(dead_code, reason = "other builds search for no mistakes")
)]
enum Forgets {
    Nothing,
    /// Data is not durable before the metadata that makes it reachable.
    Data,
    /// Clusters are reused before the metadata that released them is durable.
    Metadata,
    /// An entry of the ring is not durable before the page is written in place.
    Ring,
    /// Checksums of a page are not durable before the page.
    Sums,
}

/// A recording of a store that does not make these writes durable.
fn forgotten(mut log: Vec<Logged>, options: &FormatOptions, forgets: Forgets) -> Vec<Logged> {
    let areas: &[Area] = match forgets {
        Forgets::Nothing => &[],
        Forgets::Data => &[Area::Clusters],
        Forgets::Metadata => &[Area::Slots, Area::Overflow],
        Forgets::Ring => &[Area::Ring],
        Forgets::Sums => &[Area::Sums],
    };
    for entry in &mut log {
        if let Logged::Write { offset, durable, .. } = entry {
            let area = options.area(DEVICE_BYTES as u64, *offset).unwrap();
            *durable &= !areas.contains(&area);
        }
    }
    // Only data is written in batches that a flush follows.
    log.retain(|entry| forgets != Forgets::Data || !matches!(entry, Logged::Flush(_)));
    log
}

fn record(seed: u64, tears: bool, checksums: bool, shares_clusters: bool, forgets: Forgets) -> Run {
    let memory = Memory::of(vec![0xee; DEVICE_BYTES]);
    let memory = if tears { memory.tearing() } else { memory };
    let options = FormatOptions {
        checksums,
        shares_clusters,
        ..OPTIONS
    };
    BlobStore::format(&memory, &options).unwrap();
    let base = memory.image();
    let recorder = Arc::new(Recorder::new(memory));
    let store = BlobStore::open(Box::new(Arc::clone(&recorder)), false).unwrap();
    let (mut maker, mut states, mut steps) = (Maker::new(seed), vec![Model::new()], Vec::new());
    while steps.len() < STEPS {
        let mut model = states.last().unwrap().clone();
        let step = maker.next(&model, &store);
        recorder.log().mark(steps.len() as u64 * 2);
        let result = step.run(&store);
        if is_full(&result) {
            // It has changed nothing; an empty step stands for it.
            recorder.log().mark(steps.len() as u64 * 2 + 1);
            states.push(model);
            steps.push(step);
            continue;
        }
        result.unwrap();
        recorder.log().mark(steps.len() as u64 * 2 + 1);
        step.apply(&mut model);
        states.push(model);
        steps.push(step);
    }
    Run {
        base,
        log: forgotten(recorder.log().take(), &options, forgets),
        states,
        steps,
        tears,
    }
}

/// An image of the device if power is lost after `cut` entries of the log, and how many steps had returned.
fn image(run: &Run, cut: usize, rng: &mut Rng) -> (Vec<u8>, usize) {
    let marks = run.log[..cut].iter().rev();
    let last = marks.filter_map(|entry| match entry {
        Logged::Mark(mark) => Some(*mark as usize),
        _ => None,
    });
    let returned = last.max().map_or(0, |mark| mark.div_ceil(2));
    let grain = if run.tears { SECTOR_BYTES } else { PAGE_BYTES };
    let style = rng.below(4);
    let mut images = [run.base.clone()];
    lose_power(&mut images, &run.log, cut, grain, &mut || match style {
        0 => false,
        1 => true,
        _ => rng.below(2) == 0,
    });
    let [image] = images;
    (image, returned)
}

/// Whether the state found may be what a step under way leaves.
fn may_be(found: Option<&Known>, step: &Step, before: &Model, after: &Model) -> bool {
    let id = step.id();
    let (old, new) = (before.get(&id), after.get(&id));
    let Some(found) = found else {
        return old.is_none() || new.is_none();
    };
    let equals = |known: Option<&Known>| known.is_some_and(|known| same(found, known));
    if equals(old) || equals(new) {
        return true;
    }
    // Page by page, and metadata as before.
    let (Some(old), Some(new)) = (old, new) else {
        return false;
    };
    let in_place = matches!(step, Step::Write { .. } | Step::Punch(..));
    let is_small = matches!(step, Step::Write { data, .. } if data.len() <= PAGE_BYTES);
    if !in_place || is_small || found.metadata != old.metadata {
        return false;
    }
    let len = old.data.len();
    // Nothing behind the old end is visible.
    let mut new = new.data.clone();
    new.resize(new.len().max(len), 0);
    new.truncate(len);
    if !same_bytes(&found.data, &found.data[..found.data.len().min(len)]) {
        return false;
    }
    let page = |data: &[u8], at: usize| data.get(at..data.len().min(at + PAGE_BYTES)).unwrap_or(&[]).to_vec();
    (0..len).step_by(PAGE_BYTES).all(|at| {
        let is = page(&found.data, at);
        same_bytes(&is, &page(&old.data, at)) || same_bytes(&is, &page(&new, at))
    })
}

fn check_image(run: &Run, image: Vec<u8>, returned: usize, what: &str) {
    let memory = Memory::of(image.clone());
    let memory = Arc::new(if run.tears { memory.tearing() } else { memory });
    let open = |read_only| {
        let opened = BlobStore::open(Box::new(Arc::clone(&memory)), read_only);
        opened.unwrap_or_else(|error| panic!("{what}: {error}"))
    };
    // A read-only opening sees what the next opening makes of it, and writes nothing.
    let look = open(true);
    let seen: Vec<_> = look
        .ids()
        .unwrap()
        .into_iter()
        .map(|id| (id, content(&look.blob(id).unwrap())))
        .collect();
    drop(look);
    assert!(memory.image() == image, "{what}: a look wrote to the device");
    let store = open(false);
    assert_eq!(store.ids().unwrap().len(), seen.len(), "{what}");
    for (id, seen) in seen {
        let found = content(&store.blob(id).unwrap());
        assert!(
            same(&found, &seen),
            "{what}: {id:?}: a look saw {}",
            difference(&seen, &found)
        );
    }
    let report = store.check().unwrap();
    assert!(report.findings.is_empty(), "{what}: {:#?}", report.findings);
    let (before, step) = (&run.states[returned], run.steps.get(returned));
    let mut ids = store.ids().unwrap();
    for (id, known) in before {
        if step.is_some_and(|step| step.id() == *id) {
            continue;
        }
        let blob = store
            .blob(*id)
            .unwrap_or_else(|error| panic!("{what}: {id:?}: {error}"));
        let found = content(&blob);
        assert!(same(&found, known), "{what}: {id:?}: {}", difference(&found, known));
        ids.retain(|other| other != id);
    }
    if let Some(step) = step {
        let found = store.blob(step.id()).ok().map(|blob| content(&blob));
        let after = &run.states[returned + 1];
        let is_right = may_be(found.as_ref(), step, before, after);
        let of = |model: &Model| {
            let known = model.get(&step.id()).cloned().unwrap_or_default();
            difference(&found.clone().unwrap_or_default(), &known)
        };
        let step_text = format!("{step:?}");
        let step_text = &step_text[..step_text.len().min(120)];
        assert!(is_right, "{what}: {step_text}: old: {}; new: {}", of(before), of(after));
        ids.retain(|other| *other != step.id());
    }
    assert!(ids.is_empty(), "{what}: blobs that nobody made: {ids:?}");
    works(store, &memory, what);
}

/// A recovered store works as any store does, and keeps its changes.
fn works(store: BlobStore, memory: &Arc<Memory>, what: &str) {
    let before = contents(&store);
    let id = store.reserve(1).expect(what)[0];
    let blob = store.create(id, b"after").expect(what);
    let data = pattern(77, 3 * PAGE_BYTES);
    let mut known = Known {
        data: Vec::new(),
        metadata: b"after".to_vec(),
    };
    match blob.write_at(&data, 100, Some(b"written")) {
        Ok(()) => {
            blob.write_at(&data[..50], 200, Some(b"twice")).expect(what);
            blob.write_at(&data[..50], 4090, None).expect(what);
            known.data = [&[0; 100][..], &data].concat();
            known.data[200..250].copy_from_slice(&data[..50]);
            known.data[4090..4140].copy_from_slice(&data[..50]);
            known.metadata = b"twice".to_vec();
        }
        Err(_) if store.space().free_clusters == 0 => {}
        Err(error) => panic!("{what}: {error}"),
    }
    let mut model = before;
    model.insert(id, known);
    compare(&store, &model, what);
    drop((blob, store));
    let store = BlobStore::open(Box::new(Arc::clone(memory)), false).expect(what);
    compare(&store, &model, what);
    store.delete(id).expect(what);
    model.remove(&id);
    compare(&store, &model, what);
    store.close().expect(what);
}

fn explore(seed: u64, images: usize, forgets: Forgets) {
    let run = record(seed, seed.is_multiple_of(2), seed % 4 < 2, seed % 8 < 4, forgets);
    let mut rng = Rng::new(seed ^ 0xc4a5);
    for number in 0..images {
        let cut = rng.below(run.log.len() as u64 + 1) as usize;
        let (image, returned) = image(&run, cut, &mut rng);
        check_image(
            &run,
            image,
            returned,
            &format!("FERRITE_SEED={seed}, image {number}, cut {cut}"),
        );
    }
}

/// More blobs than there are slots in front of the clusters, in small stores that fill up while power may be lost; new
/// slots are in clusters, or, where none is free, in parts of them.
fn explore_slots(seed: u64, images: usize, in_parts: bool, forgets: Forgets) {
    let options = FormatOptions {
        checksums: seed % 4 < 2,
        shares_clusters: true,
        ..OPTIONS
    };
    let tears = seed.is_multiple_of(2);
    let memory = Memory::of(vec![0xee; DEVICE_BYTES]);
    let memory = Arc::new(if tears { memory.tearing() } else { memory });
    BlobStore::format(&*memory, &options).unwrap();
    let store = BlobStore::open(Box::new(Arc::clone(&memory)), false).unwrap();
    let mut slots = store.space().blobs_max as usize;
    while in_parts && store.space().free_clusters > 0 {
        let blob = store.create(store.reserve(1).unwrap()[0], b"").unwrap();
        blob.reserve(0, 40 << 14, None).unwrap();
        slots -= 1;
    }
    let make = |store: &BlobStore, number: usize| {
        let blob = store.create(store.reserve(1).unwrap()[0], b"").unwrap();
        let data = pattern(number as u32, 20_000);
        let bytes = if in_parts { 5 } else { data.len() };
        blob.write_at(&data[..bytes], 0, Some(&number.to_le_bytes())).unwrap();
    };
    (0..slots - 3).for_each(|number| make(&store, number));
    store.close().unwrap();
    let base = memory.image();
    let memory = Memory::of(base.clone());
    let recorder = Arc::new(Recorder::new(if tears { memory.tearing() } else { memory }));
    let store = BlobStore::open(Box::new(Arc::clone(&recorder)), false).unwrap();
    for number in slots - 3..slots + 9 {
        make(&store, number);
        recorder.log().mark(number as u64 * 2);
    }
    assert!(store.space().blobs_max as usize >= slots + 9);
    let run = Run {
        base,
        log: forgotten(recorder.log().take(), &options, forgets),
        states: Vec::new(),
        steps: Vec::new(),
        tears,
    };
    let mut rng = Rng::new(seed ^ 0x5107);
    for image_number in 0..images {
        let cut = rng.below(run.log.len() as u64 + 1) as usize;
        let (image, last) = image(&run, cut, &mut rng);
        let what = format!("FERRITE_SEED={seed}, slots, parts {in_parts}, image {image_number}, cut {cut}");
        let memory = Memory::of(image);
        let memory = Arc::new(if tears { memory.tearing() } else { memory });
        let store = BlobStore::open(Box::new(Arc::clone(&memory)), false);
        let store = store.unwrap_or_else(|error| panic!("{what}: {error}"));
        let report = store.check().unwrap();
        assert!(report.findings.is_empty(), "{what}: {:#?}", report.findings);
        let mut found = vec![false; slots + 9];
        for known in contents(&store).values().filter(|known| !known.metadata.is_empty()) {
            let number = usize::from_le_bytes(known.metadata[..].try_into().unwrap());
            let want = pattern(number as u32, 20_000);
            assert!(
                known.data == want || in_parts && known.data == want[..5],
                "{what}: {number}"
            );
            found[number] = true;
        }
        let returned = last.max(slots - 4);
        assert!(found[..=returned].iter().all(|&found| found), "{what}: one is missing");
        works(store, &memory, &what);
    }
}

#[test]
#[cfg_attr(feature = "seeded-bugs", ignore = "seeded bugs are the whole process's")]
fn images_of_lost_power_while_slots_are_added() {
    let (seeds, images) = match std::env::var_os("FERRITE_SOAK") {
        Some(_) => (0..40, 200),
        None => (0..4, 40),
    };
    for seed in seeds {
        explore_slots(seed, images, false, Forgets::Nothing);
        explore_slots(seed, images, true, Forgets::Nothing);
    }
}

/// `FERRITE_SOAK` makes it 100,000.
#[test]
#[cfg_attr(feature = "seeded-bugs", ignore = "seeded bugs are the whole process's")]
fn images_of_lost_power() {
    let (seeds, images) = match (seed_from_env(), std::env::var_os("FERRITE_SOAK")) {
        (Some(seed), _) => (seed..seed + 1, 200),
        (None, Some(_)) => (0..500, 200),
        (None, None) => (0..32, 50),
    };
    for seed in seeds {
        explore(seed, images, Forgets::Nothing);
    }
}

#[cfg(feature = "seeded-bugs")]
#[test]
fn every_seeded_bug_is_found() {
    use ferrite_checks::fault_injection::{Bug, seed};
    std::panic::set_hook(Box::new(|_| {}));
    let mut missed = Vec::new();
    let is_found = |forgets: Forgets| {
        let finds = |seed| {
            let explored = std::panic::catch_unwind(|| explore(seed, 40, forgets));
            explored.is_err() || std::panic::catch_unwind(|| explore_slots(seed, 10, seed % 2 == 1, forgets)).is_err()
        };
        (0..40).any(finds)
    };
    for bug in Bug::of("ferrite-blob") {
        seed(Some(bug));
        if !is_found(Forgets::Nothing) {
            missed.push(format!("{bug:?}"));
        }
        seed(None);
    }
    for forgets in [Forgets::Data, Forgets::Metadata, Forgets::Ring, Forgets::Sums] {
        if !is_found(forgets) {
            missed.push(format!("{forgets:?}"));
        }
    }
    seed(None);
    drop(std::panic::take_hook());
    assert!(missed.is_empty(), "not found: {missed:?}");
}
