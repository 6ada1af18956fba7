//! Mistakes about slices in a bucket: each of the seeded ones is found by a story of a file that is written,
//! overwritten and damaged while the bucket fails.

#[allow(dead_code, reason = "each test program uses a part of it")]
#[path = "slices/bucket.rs"]
mod bucket;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bucket::{Fate, Memory};
use ferrite_blob::device::{Device, Memory as LogDevice, Op};
use ferrite_meta::{MemoryStore, MetaStore};
use ferrite_nvme::content_store::{
    Blob, ChangeLog, ContentStore, Guard, Place, SlicesContent, SlicesOptions, SlicesParts, UniqueIds,
};
use ferrite_testkit::rng::pattern;
use ferrite_wal::{Opened, SIZE_MIN, Wal};

/// A bucket, and what it is for.
struct Story {
    meta: Arc<dyn MetaStore>,
    bucket: Arc<Memory>,
    epoch: u64,
    keep: Duration,
    buffer_bytes: u64,
}

impl Story {
    fn new(keep: Duration) -> Story {
        Story {
            meta: Arc::new(MemoryStore::new()),
            bucket: Memory::new(),
            epoch: 10,
            keep,
            buffer_bytes: SlicesOptions::default().buffer_bytes,
        }
    }

    /// The next owner.
    fn owner(&mut self) -> (SlicesContent, UniqueIds) {
        self.owner_with(None)
    }

    /// The same with the log of a device.
    fn owner_with(&mut self, log: Option<&Arc<LogDevice>>) -> (SlicesContent, UniqueIds) {
        self.epoch += 1;
        let options = SlicesOptions {
            keep: self.keep,
            buffer_bytes: self.buffer_bytes,
            grace: Duration::ZERO,
            publish_after: Duration::from_secs(3600),
            publish_timeout: Duration::from_millis(500),
            ..SlicesOptions::default()
        };
        let client = self.bucket.client();
        let log = log.map(|device| match Wal::open(Arc::clone(device) as _).unwrap() {
            Opened::Log(wal) => ChangeLog::new(wal, "a log".into(), true),
            Opened::Blank => panic!("it is blank"),
        });
        let parts = SlicesParts {
            log,
            ..SlicesParts::default()
        };
        let content = SlicesContent::with(client, Arc::clone(&self.meta), [7; 16], options, parts).unwrap();
        let guard = Guard {
            shard: 0,
            epoch: self.epoch,
        };
        content.take_over(guard).unwrap();
        (content, UniqueIds::new(guard))
    }
}

fn file(content: &SlicesContent, ids: &UniqueIds) -> (Place, Arc<dyn Blob>) {
    let place = content.reserve(0, 1, ids).unwrap()[0];
    (place, content.create(place).unwrap())
}

fn first_byte(content: &SlicesContent, place: Place) -> ferrite_nvme::content_store::Result<u8> {
    let mut bytes = [0; 9000];
    content.open(place)?.read_at(&mut bytes, 0)?;
    Ok(bytes[0])
}

/// Published content is in the bucket.
fn nothing_is_published_too_early() {
    let mut story = Story::new(Duration::from_secs(3600));
    let (content, ids) = story.owner();
    let (place, blob) = file(&content, &ids);
    blob.write_at(&[1; 9000], 0, None).unwrap();
    blob.sync().unwrap();
    story.bucket.plan(|_| Fate::Lost);
    blob.write_at(&[2; 9000], 0, None).unwrap();
    assert!(blob.sync().is_err(), "nothing was stored");
    drop((content, blob));
    story.bucket.mend();
    let (content, _) = story.owner();
    assert_eq!(first_byte(&content, place), Ok(1));
}

/// Objects of what was overwritten go, after their time and not before.
fn objects_go_in_time() {
    for (keep, left) in [(Duration::from_secs(3600), 2), (Duration::ZERO, 1)] {
        let mut story = Story::new(keep);
        let (content, ids) = story.owner();
        let (place, blob) = file(&content, &ids);
        for byte in [1, 2] {
            blob.write_at(&[byte; 9000], 0, None).unwrap();
            blob.sync().unwrap();
        }
        assert_eq!(first_byte(&content, place), Ok(2));
        content.close().unwrap();
        assert_eq!(story.bucket.objects().len(), left, "{keep:?}");
    }
}

/// No changed bit is read.
fn damage_is_found() {
    let mut story = Story::new(Duration::from_secs(3600));
    let (content, ids) = story.owner();
    let (place, blob) = file(&content, &ids);
    blob.write_at(&[1; 9000], 0, None).unwrap();
    blob.sync().unwrap();
    drop((content, blob));
    let (name, mut bytes) = story.bucket.objects().pop().unwrap();
    let at = bytes.len() - 8000;
    bytes[at] ^= 1;
    story.bucket.replace(&name, Some(bytes));
    let (content, _) = story.owner();
    assert!(first_byte(&content, place).is_err(), "damage was read");
}

/// Changes that a log alone has stay there, and are errors for whoever lacks the log.
fn staged_content_is_kept_or_missed() {
    let mut story = Story::new(Duration::from_secs(3600));
    let device = Arc::new(LogDevice::new(SIZE_MIN));
    Wal::format(&*device, [1; 16], [7; 16]).unwrap();
    let (content, ids) = story.owner_with(Some(&device));
    let (place, blob) = file(&content, &ids);
    blob.write_at(&[1; 9000], 0, None).unwrap();
    content.sync().unwrap();
    story.bucket.plan(|_| Fate::Lost);
    blob.write_at(&[2; 9000], 0, None).unwrap();
    blob.sync().unwrap();
    // The keeper looks once a second for space to free.
    std::thread::sleep(Duration::from_millis(1500));
    drop((content, blob));
    story.bucket.mend();
    let (content, _) = story.owner();
    assert!(first_byte(&content, place).is_err(), "older bytes were read");
    drop(content);
    let (content, _) = story.owner_with(Some(&device));
    assert_eq!(first_byte(&content, place), Ok(2));
}

/// An object stays as long as any blob names it.
fn shared_slices_stay() {
    let mut story = Story::new(Duration::ZERO);
    let (content, ids) = story.owner();
    let (place, blob) = file(&content, &ids);
    blob.write_at(&[1; 9000], 0, None).unwrap();
    blob.sync().unwrap();
    let (copy_place, copy) = file(&content, &ids);
    assert!(copy.share_from(&*blob, 9000).unwrap());
    drop((blob, copy));
    content.delete(place).unwrap();
    content.close().unwrap();
    drop(content);
    let (content, _) = story.owner();
    assert_eq!(first_byte(&content, copy_place), Ok(1));
}

/// A copy of a log that lacks what an owner appended to another one is refused.
fn stale_copies_are_refused() {
    let mut story = Story::new(Duration::from_secs(3600));
    let (near, far) = (LogDevice::new(SIZE_MIN), LogDevice::new(SIZE_MIN));
    for device in [&near, &far] {
        Wal::format(device, [1; 16], [7; 16]).unwrap();
    }
    story.bucket.plan(|_| Fate::Lost);
    let (near, far) = (Arc::new(near), Arc::new(far));
    let mut place = None;
    for (byte, device) in [(1, &near), (2, &far)] {
        // The same changes on both, and the second owner's on one of them.
        let (content, ids) = story.owner_with(Some(device));
        let (at, blob) = match place {
            None => file(&content, &ids),
            Some(place) => (place, content.open(place).unwrap()),
        };
        blob.write_at(&[byte; 9000], 0, None).unwrap();
        blob.sync().unwrap();
        drop((blob, content));
        place = Some(at);
        if byte == 1 {
            copy(&near, &far);
        }
    }
    let stale = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| story.owner_with(Some(&near))));
    assert!(stale.is_err(), "a stale copy was used");
    let (content, _) = story.owner_with(Some(&far));
    assert_eq!(first_byte(&content, place.unwrap()), Ok(2));
}

fn copy(from: &LogDevice, to: &LogDevice) {
    let mut part = vec![0; 1 << 20];
    for offset in (0..from.len_bytes()).step_by(1 << 20) {
        let bytes = (from.len_bytes() - offset).min(1 << 20) as usize;
        let into = &mut part[..bytes];
        from.run(&mut [Op::Read { offset, into }]).unwrap();
        let (from, durable) = (&part[..bytes], true);
        to.run(&mut [Op::Write { offset, from, durable }]).unwrap();
    }
}

/// Content that the log has instead of memory is all of it there, and verified.
fn content_in_the_log_is_whole_and_verified() {
    let mut story = Story::new(Duration::from_secs(3600));
    story.buffer_bytes = 8 << 20;
    let device = Arc::new(LogDevice::new(64 << 20));
    Wal::format(&*device, [1; 16], [7; 16]).unwrap();
    let (content, ids) = story.owner_with(Some(&device));
    let (_, blob) = file(&content, &ids);
    story.bucket.plan(|_| Fate::Lost);
    let model = pattern(1, 48 << 20);
    let large = |parts: Range<usize>| {
        for part in parts {
            let data = &model[part << 20..(part + 1) << 20];
            blob.write_at(data, (part as u64) << 20, None).unwrap();
        }
    };
    large(4..20);
    for (index, part) in model[..4 << 20].chunks(2000).enumerate() {
        blob.write_at(part, index as u64 * 2000, None).unwrap();
    }
    // The youngest slice leaves memory first; parts of blocks are none yet.
    (20..48).step_by(4).for_each(|part| large(part..part + 1));
    let mut found = vec![0; model.len()];
    blob.read_at(&mut found[..4 << 20], 0).unwrap();
    assert!(found[..4 << 20] == model[..4 << 20], "bytes are missing");
    blob.sync().unwrap();
    // One byte of some large records.
    let mut all = vec![0; 64 << 20];
    for (at, into) in (0..).step_by(1 << 20).zip(all.chunks_mut(1 << 20)) {
        device.run(&mut [Op::Read { offset: at, into }]).unwrap();
    }
    for part in model.chunks(1 << 20).skip(8).take(8) {
        let at = all.windows(64).position(|window| window == &part[..64]).unwrap();
        let page = at / 4096 * 4096;
        all[at] ^= 1;
        let (offset, from, durable) = (page as u64, &all[page..page + 4096], true);
        device.run(&mut [Op::Write { offset, from, durable }]).unwrap();
    }
    let mut errors = 0;
    for (index, part) in model.chunks(1 << 20).enumerate().take(20) {
        match blob.read_at(&mut found[..1 << 20], (index as u64) << 20) {
            Ok(()) => assert!(found[..1 << 20] == *part, "damage was read"),
            Err(_) => errors += 1,
        }
    }
    assert!(errors > 0, "nothing was in the log alone");
}

fn story() {
    content_in_the_log_is_whole_and_verified();
    staged_content_is_kept_or_missed();
    stale_copies_are_refused();
    shared_slices_stay();
    nothing_is_published_too_early();
    damage_is_found();
    objects_go_in_time();
}

#[test]
#[cfg_attr(feature = "seeded-bugs", ignore = "seeded bugs are the whole process's")]
fn a_file_in_a_bucket_that_fails() {
    story();
}

#[cfg(feature = "seeded-bugs")]
#[test]
fn mistakes_about_slices_are_found() {
    use ferrite_checks::fault_injection::{Bug, seed};
    story();
    std::panic::set_hook(Box::new(|_| {}));
    let mut missed = Vec::new();
    for bug in Bug::of("ferrite-nvme, slices") {
        seed(Some(bug));
        if std::panic::catch_unwind(story).is_ok() {
            missed.push(bug);
        }
    }
    seed(None);
    drop(std::panic::take_hook());
    assert!(missed.is_empty(), "not found: {missed:?}");
}
