//! Mistakes about slices in a bucket: each of the seeded ones is found by a story of a file that is written,
//! overwritten and damaged while the bucket fails.

#[allow(dead_code, reason = "each test program uses a part of it")]
#[path = "slices/bucket.rs"]
mod bucket;

use std::sync::Arc;
use std::time::Duration;

use bucket::{Fate, Memory};
use ferrite_blob::device::Memory as LogDevice;
use ferrite_meta::{MemoryStore, MetaStore};
use ferrite_nvme::content_store::{
    Blob, ChangeLog, ContentStore, Guard, Place, SlicesContent, SlicesOptions, UniqueIds,
};
use ferrite_wal::{Opened, SIZE_MIN, Wal};

/// A bucket, and what it is for.
struct Story {
    meta: Arc<dyn MetaStore>,
    bucket: Arc<Memory>,
    epoch: u64,
    keep: Duration,
}

impl Story {
    fn new(keep: Duration) -> Story {
        Story {
            meta: Arc::new(MemoryStore::new()),
            bucket: Memory::new(),
            epoch: 10,
            keep,
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
            grace: Duration::ZERO,
            publish_after: Duration::from_secs(3600),
            publish_timeout: Duration::from_millis(500),
            ..SlicesOptions::default()
        };
        let client = self.bucket.client();
        let log = log.map(|device| match Wal::open(Arc::clone(device) as _).unwrap() {
            Opened::Log(wal) => ChangeLog {
                wal,
                name: "a log".into(),
                is_used: true,
            },
            Opened::Blank => panic!("it is blank"),
        });
        let content = SlicesContent::with_log(client, Arc::clone(&self.meta), [7; 16], options, log).unwrap();
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

fn story() {
    staged_content_is_kept_or_missed();
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
