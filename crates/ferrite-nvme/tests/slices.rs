//! Content in S3: the suites, blobs against a model, and a bucket that loses requests and answers, refuses them, and
//! gets another owner. The bucket is in memory.
//!
//! Protected properties: rows never name a slice whose object is not there; what was published is there after a crash,
//! as of one moment; nothing of an earlier owner counts; every object is named by a file or has a row, so none leaks;
//! what is damaged or missing is an error, never zeros and never older bytes.

mod blobs;
mod bucket;
mod failures;
mod logged;
mod mirrored;
mod near;
mod parts;
mod shared;
mod spilled;

use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrite_blob::device::{Device, Memory as LogDevice};
use ferrite_meta::{MemoryStore, MetaStore};
use ferrite_nvme::content_store::{ChangeLog, Guard, SlicesContent, SlicesOptions, SlicesParts, SlicesView};
use ferrite_nvme::{NvmeFs, Options};
use ferrite_slices::{Codec, ContentKey, DiskCache};
use ferrite_testkit::generate::Profile;
use ferrite_testkit::model::check_against_reference;
use ferrite_testkit::{TestEngine, linear, posix};
use ferrite_vfs::FileSystem;
use tempfile::TempDir;

use bucket::Memory;

/// A pool whose metadata and bucket outlive the engine.
pub(crate) struct InS3 {
    pub(crate) meta: Arc<dyn MetaStore>,
    pub(crate) bucket: Arc<Memory>,
    options: SlicesOptions,
    codec: Codec,
    /// Where clean slices are kept.
    disk: Option<TempDir>,
    /// The device with the log of changes.
    log: Option<Arc<dyn Device>>,
    small_bytes_max: u64,
    engine: Option<(NvmeFs, SlicesView)>,
}

/// Objects of dead slices go at once, and nothing waits for long.
pub(crate) fn quick() -> SlicesOptions {
    SlicesOptions {
        cache_bytes: 0,
        buffer_bytes: 8 << 20,
        keep: Duration::ZERO,
        grace: Duration::ZERO,
        publish_after: Duration::from_millis(200),
        publish_timeout: Duration::from_secs(2),
    }
}

impl InS3 {
    pub(crate) fn new(options: SlicesOptions) -> InS3 {
        InS3::made(options, None)
    }

    /// The same with a log.
    pub(crate) fn logged(options: SlicesOptions) -> InS3 {
        let log = logged::formatted(LogDevice::new(ferrite_wal::SIZE_MIN), 1);
        InS3::made(options, Some(log))
    }

    /// The same without a log, whose objects are encrypted.
    pub(crate) fn encrypted(options: SlicesOptions) -> InS3 {
        let mut pool = InS3::new(options);
        pool.codec.key = Some(ContentKey::generate().unwrap());
        pool.remount();
        pool
    }

    /// The same without a log, whose objects are on a disk as well.
    pub(crate) fn near(options: SlicesOptions) -> InS3 {
        let mut pool = InS3::new(options);
        pool.disk = Some(tempfile::tempdir().unwrap());
        pool.remount();
        pool
    }

    pub(crate) fn set_compression(&mut self, compresses: bool) {
        self.codec.compresses = compresses;
    }

    fn made(options: SlicesOptions, log: Option<Arc<dyn Device>>) -> InS3 {
        let meta: Arc<dyn MetaStore> = Arc::new(MemoryStore::new());
        let bucket = Memory::new();
        // Pools with a log have the other form of objects.
        let codec = Codec {
            compresses: log.is_some(),
            key: log.is_some().then(|| ContentKey::generate().unwrap()),
        };
        let content = SlicesContent::new(bucket.client(), Arc::clone(&meta), [7; 16], options).unwrap();
        ferrite_nvme::format_with(&*meta, [7; 16], [9; 16], &content).unwrap();
        let mut pool = InS3 {
            meta,
            bucket,
            options,
            codec,
            disk: log.is_some().then(|| tempfile::tempdir().unwrap()),
            log,
            small_bytes_max: 2048,
            engine: None,
        };
        pool.open();
        pool
    }

    fn mounted(small_bytes_max: u64) -> Box<dyn TestEngine> {
        let mut pool = InS3::new(quick());
        pool.small_bytes_max = small_bytes_max;
        pool.remount();
        Box::new(pool)
    }

    fn mounted_with_log(small_bytes_max: u64) -> Box<dyn TestEngine> {
        let mut pool = InS3::logged(quick());
        pool.small_bytes_max = small_bytes_max;
        pool.remount();
        Box::new(pool)
    }

    /// A client of the content, without an engine.
    pub(crate) fn content(&self) -> SlicesContent {
        self.content_on(None)
    }

    /// The same with the log of a device, if one is given.
    pub(crate) fn content_with(&self, log: Option<&Arc<dyn Device>>) -> SlicesContent {
        self.content_on(log.map(logged::log_on))
    }

    pub(crate) fn content_on(&self, log: Option<ChangeLog>) -> SlicesContent {
        let meta = Arc::clone(&self.meta);
        let parts = SlicesParts {
            codec: self.codec.clone(),
            log,
            disk: self
                .disk
                .as_ref()
                .map(|dir| DiskCache::open(dir.path(), 0, u64::MAX).unwrap()),
        };
        SlicesContent::with(self.bucket.client(), meta, [7; 16], self.options, parts).unwrap()
    }

    pub(crate) fn set_publish_timeout(&mut self, time: Duration) {
        self.options.publish_timeout = time;
    }

    pub(crate) fn set_buffer(&mut self, bytes: u64) {
        self.options.buffer_bytes = bytes;
    }

    /// The next owner of the pool. The one before it may still be there.
    pub(crate) fn another(&self) -> (NvmeFs, SlicesView) {
        let mut options = Options::default();
        options.small_bytes_max = self.small_bytes_max;
        let content = self.content_with(self.log.as_ref());
        let view = content.view();
        let fs = ferrite_nvme::assemble_with(Box::new(Arc::clone(&self.meta)), Box::new(content), options).unwrap();
        (fs, view)
    }

    pub(crate) fn open(&mut self) {
        self.engine = Some(self.another());
    }

    pub(crate) fn engine(&self) -> &NvmeFs {
        &self.engine.as_ref().expect("open").0
    }

    pub(crate) fn view(&self) -> &SlicesView {
        &self.engine.as_ref().expect("open").1
    }

    pub(crate) fn close(&mut self) {
        self.engine.take().expect("open").0.close().unwrap();
    }

    /// Ends the engine without closing it, and opens the pool again.
    pub(crate) fn crash(&mut self) {
        drop(self.engine.take());
        let until = Instant::now() + Duration::from_secs(20);
        while Arc::strong_count(&self.meta) > 1 {
            assert!(Instant::now() < until, "somebody keeps the engine");
            std::thread::sleep(Duration::from_millis(1));
        }
        self.open();
    }

    /// No object is there that no file names, in the end.
    pub(crate) fn check_bucket(&self) {
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            let found = self.view().compare(false).unwrap();
            assert_eq!((found.leaked, &found.damaged), ((0, 0), &Vec::new()));
            if found.dead.0 == 0 && found.pending.0 == 0 {
                return;
            }
            assert!(Instant::now() < until, "{found:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl TestEngine for InS3 {
    fn fs(&self) -> &dyn FileSystem {
        self.engine()
    }

    fn remount(&mut self) {
        self.close();
        self.open();
    }

    fn check(&self) {
        let report = self.engine().check().unwrap();
        assert!(report.findings.is_empty(), "{:#?}", report.findings);
    }
}

#[test]
fn posix_rules() {
    posix::run_all(|| InS3::mounted(2048));
}

#[test]
fn concurrent_histories() {
    linear::run_all(|| InS3::mounted(2048), 1);
}

#[test]
fn random_operations() {
    compare_random_operations(InS3::mounted, &[2048, 6000]);
}

#[test]
fn random_operations_with_a_log() {
    compare_random_operations(InS3::mounted_with_log, &[2048]);
}

fn compare_random_operations(mounted: impl Fn(u64) -> Box<dyn TestEngine>, small_bytes_max: &[u64]) {
    let seeds = match std::env::var_os("FERRITE_SOAK") {
        Some(_) => 200,
        None => 6,
    };
    for &small_bytes_max in small_bytes_max {
        for profile in Profile::ALL {
            for seed in 0..seeds {
                check_against_reference(|| mounted(small_bytes_max), profile, 400 + seed, 200);
            }
        }
    }
}

#[test]
fn the_guard_of_an_owner_is_taken_once() {
    use ferrite_nvme::content_store::ContentStore;
    let pool = InS3::new(quick());
    let content = pool.content();
    let guard = Guard { shard: 0, epoch: 99 };
    content.take_over(guard).unwrap();
    assert!(content.take_over(guard).is_err());
}
