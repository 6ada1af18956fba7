//! A pool's bytes: every load and store of the engine goes through here.
//!
//! What lives here: [`Region`]. Offsets out of range or misaligned are bugs of the engine, and stop it by a panic before
//! it touches anything (the engine validates what it reads from the medium).
//!
//! Invariant: all stores, write-backs and fences pass the recorder when one is attached, in the order they take effect.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::counters::{Count, CounterSlots, Counters};
use crate::cpu::{self, Isa, LINE_BYTES};
use crate::crash::Event;
use crate::error::PmError;
use crate::map::{Access, Mapping};
use crate::medium::Medium;
use crate::recorder::Recorder;
use crate::sigbus;
use crate::sync::GroupSync;

/// What a fence on an ordinary file does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// It syncs the file: safe from a power loss.
    #[default]
    Strict,
    /// It orders stores only: safe from a killed process, since the kernel keeps the pages.
    Process,
}

/// A mapped pool.
pub struct Region {
    // Declared before the mapping, so that the handler forgets the addresses before they are unmapped.
    faults: sigbus::Guard,
    mapping: Mapping,
    path: Option<PathBuf>,
    access: Access,
    /// Fences sync: an ordinary file in strict mode, and shared.
    syncs: bool,
    isa: Isa,
    sync: GroupSync,
    failure: OnceLock<String>,
    counters: CounterSlots,
    recorder: Option<Arc<Recorder>>,
}

impl Region {
    fn new(mapping: Mapping, path: Option<&Path>, access: Access) -> Region {
        Region {
            faults: sigbus::Guard::new(mapping.base(), mapping.len(), mapping.page_bytes_for_faults()),
            syncs: mapping.medium == Medium::File && access == Access::ReadWrite,
            mapping,
            path: path.map(Path::to_path_buf),
            access,
            isa: Isa::detect(),
            sync: GroupSync::default(),
            failure: OnceLock::new(),
            counters: CounterSlots::new(),
            recorder: None,
        }
    }

    /// Zeroed memory without a name, on huge pages where the system gives them.
    pub fn anonymous(len_bytes: u64) -> Result<Region, PmError> {
        Ok(Region::new(Mapping::anonymous(len_bytes)?, None, Access::ReadWrite))
    }

    /// Memory that holds `image`, zero-padded to a whole word. For tests.
    pub fn from_image(image: &[u8]) -> Result<Region, PmError> {
        let region = Region::anonymous((image.len() as u64).next_multiple_of(8))?;
        // SAFETY: the mapping is new, as long as the image, and nobody else has it.
        unsafe { std::ptr::copy_nonoverlapping(image.as_ptr(), region.mapping.base(), image.len()) };
        Ok(region)
    }

    /// Makes a pool file of `len_bytes` with all its space allocated, or takes a device. Blocking.
    pub fn create(path: &Path, len_bytes: u64) -> Result<Region, PmError> {
        Region::create_with(path, len_bytes, |_| Ok(()))
    }

    /// The same, for a region that is kept only if `fill` makes something of it: on an error, and if the process is
    /// killed before, a new file is not left behind, and one that was there keeps its length.
    pub fn create_with<E: From<PmError>>(
        path: &Path,
        len_bytes: u64,
        fill: impl FnOnce(&Region) -> Result<(), E>,
    ) -> Result<Region, E> {
        let (mapping, newborn) = Mapping::create(path, len_bytes)?;
        let region = Region::new(mapping, Some(path), Access::ReadWrite);
        fill(&region)?;
        newborn.keep()?;
        Ok(region)
    }

    /// Opens a pool file or device and locks it against other openers until dropped.
    pub fn open(path: &Path, access: Access) -> Result<Region, PmError> {
        let region = Region::new(Mapping::open(path, access)?, Some(path), access);
        if region.medium() == Medium::Dax && cfg!(not(target_arch = "x86_64")) && access == Access::ReadWrite {
            let why =
                "no cache write-back is known for this CPU, so DAX would not be durable; use an ordinary file".into();
            return Err(PmError::Unsuitable {
                path: path.to_path_buf(),
                why,
            });
        }
        Ok(region)
    }

    /// Chooses what a fence does on an ordinary file; no effect elsewhere.
    pub fn set_durability(&mut self, durability: Durability) {
        let shared_file = self.mapping.medium == Medium::File && self.access == Access::ReadWrite;
        self.syncs = shared_file && durability == Durability::Strict;
    }

    /// Sends all that follows to `recorder` as well.
    pub fn attach_recorder(&mut self, recorder: Arc<Recorder>) {
        self.recorder = Some(recorder);
    }

    /// Length in bytes.
    #[allow(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> u64 {
        self.mapping.len()
    }

    /// What it lies on.
    pub fn medium(&self) -> Medium {
        self.mapping.medium
    }

    /// How it was opened.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Page size of the mapping, as far as known: 4096, or 2 MiB.
    pub fn page_bytes(&self) -> u64 {
        self.mapping.page_bytes
    }

    /// Where it was opened from.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Totals since it was opened.
    pub fn counters(&self) -> Counters {
        self.counters.total()
    }

    /// What made the region untrustworthy: a fault on the mapping, or a sync that failed.
    pub fn poisoned(&self) -> Option<String> {
        self.check().err().map(|error| error.to_string())
    }

    /// Refuses when the region is poisoned. Cheap when it is not.
    #[inline]
    pub fn check(&self) -> Result<(), PmError> {
        if self.faults.is_poisoned() {
            let what = "part of the mapping is gone (a truncated file or a failed medium); restore it and mount again";
            return Err(PmError::Poisoned(what.into()));
        }
        match self.failure.get() {
            None => Ok(()),
            Some(failure) => Err(PmError::Poisoned(failure.clone())),
        }
    }

    /// Address of `len` bytes at `offset`, which must lie inside.
    #[inline]
    fn at(&self, offset: u64, len: u64) -> *mut u8 {
        if offset > self.mapping.len() || len > self.mapping.len() - offset {
            out_of_range(offset, len, self.mapping.len());
        }
        // SAFETY: just checked to be inside the mapping, or one past its end.
        unsafe { self.mapping.base().add(offset as usize) }
    }

    /// The `count` words from `offset` on, which is divisible by 8.
    #[inline]
    pub fn words(&self, offset: u64, count: usize) -> &[AtomicU64] {
        assert!(offset.is_multiple_of(8), "misaligned words at offset {offset}");
        let at = self.at(offset, count as u64 * 8);
        // SAFETY: inside the mapping, aligned (the base is page-aligned), alive as long as `self`, and shared words
        // are accessed by atomics only, but for copies whose results their callers validate.
        unsafe { std::slice::from_raw_parts(at.cast::<AtomicU64>(), count) }
    }

    /// The word at `offset`.
    #[inline]
    pub fn load(&self, offset: u64) -> u64 {
        self.words(offset, 1)[0].load(Ordering::Acquire)
    }

    /// Copies bytes out. Racing stores give a mixture of old and new: the caller validates.
    #[inline]
    pub fn read(&self, offset: u64, buf: &mut [u8]) {
        let from = self.at(offset, buf.len() as u64);
        // SAFETY: inside the mapping; `buf` is the caller's and cannot overlap it. A racing store (always by another
        // thread through raw pointers or atomics) can tear the copy, never its length; callers discard torn copies.
        unsafe { std::ptr::copy_nonoverlapping(from, buf.as_mut_ptr(), buf.len()) };
    }

    /// Starts loading the line at `offset`.
    #[inline]
    pub fn prefetch(&self, offset: u64) {
        cpu::prefetch(self.at(offset, 1));
    }

    /// Starts loading the line at `offset` for a store, away from whichever core has it.
    #[inline]
    pub fn prefetch_to_store(&self, offset: u64) {
        cpu::prefetch_to_store(self.at(offset, 1));
    }

    /// Stores a word through the cache. Durable once its line is written back and this thread has fenced.
    #[inline]
    pub fn store(&self, offset: u64, value: u64) {
        self.store_words(offset, &[value]);
    }

    /// Stores words through the cache, each atomically, as [`Self::store`].
    #[inline]
    pub fn store_words(&self, offset: u64, values: &[u64]) {
        let words = self.words(offset, values.len());
        let set = || {
            for (word, &value) in words.iter().zip(values) {
                word.store(value, Ordering::Release);
            }
        };
        match &self.recorder {
            None => set(),
            Some(recorder) => record_store(recorder, offset, values, &set),
        }
    }

    /// Copies bytes past the cache. Durable once this thread has fenced. Partial lines at the ends go through the
    /// cache, and are written back here.
    #[inline]
    pub fn stream(&self, offset: u64, data: &[u8]) {
        let len = data.len() as u64;
        let to = self.at(offset, len);
        let lead = (offset.next_multiple_of(LINE_BYTES) - offset).min(len) as usize;
        let lines = (data.len() - lead) / LINE_BYTES as usize;
        let tail = lead + lines * LINE_BYTES as usize;
        let copy = || {
            // SAFETY: inside the mapping, and `data` is the caller's; between `lead` and `tail` lie whole aligned lines.
            // That nobody else reads or writes these bytes meanwhile without validating is the caller's protocol.
            unsafe {
                std::ptr::copy_nonoverlapping(data.as_ptr(), to, lead);
                self.isa.stream_lines(to.add(lead), data.as_ptr().add(lead), lines);
                std::ptr::copy_nonoverlapping(data.as_ptr().add(tail), to.add(tail), data.len() - tail);
            }
        };
        self.counters.add(Count::Bytes, len);
        match &self.recorder {
            None => copy(),
            Some(recorder) => self.record_stream(recorder, offset, len, &copy),
        }
        if lead > 0 {
            self.write_back(offset, lead as u64);
        }
        if tail < data.len() {
            self.write_back(offset + tail as u64, (data.len() - tail) as u64);
        }
    }

    /// Zeroes bytes as [`Self::stream`] would.
    pub fn stream_zero(&self, offset: u64, len: u64) {
        const ZEROS: [u8; 4096] = [0; 4096];
        let mut at = offset;
        let end = offset + len;
        while at < end {
            let part = (end - at).min(4096 - at % 4096);
            self.stream(at, &ZEROS[..part as usize]);
            at += part;
        }
    }

    /// Writes the lines of a range back to the medium, without waiting; the next fence of this thread waits.
    #[inline]
    pub fn write_back(&self, offset: u64, len: u64) {
        if len == 0 {
            return;
        }
        let first = offset / LINE_BYTES * LINE_BYTES;
        let lines = (offset + len).div_ceil(LINE_BYTES) - first / LINE_BYTES;
        let _ = self.at(offset, len);
        // SAFETY: the lines of a checked range, in a mapping whose ends are page-aligned.
        unsafe { self.isa.write_back(self.mapping.base().add(first as usize), lines) };
        self.counters.add(Count::Lines, lines);
        if let Some(recorder) = &self.recorder {
            for line in 0..lines {
                recorder.record(|| Event::WriteBack {
                    line: first + line * LINE_BYTES,
                });
            }
        }
    }

    /// Writes the lines of a range back and drops them from all caches, and waits: the next load of each misses. False where
    /// this CPU has no such instruction, and nothing happened. For measurements with cold caches only.
    pub fn evict(&self, offset: u64, len: u64) -> bool {
        let _ = self.at(offset, len);
        let first = offset / LINE_BYTES * LINE_BYTES;
        let lines = if len == 0 {
            0
        } else {
            (offset + len).div_ceil(LINE_BYTES) - first / LINE_BYTES
        };
        // SAFETY: the lines of a checked range, in a mapping whose ends are page-aligned.
        let evicted = unsafe { cpu::evict(self.mapping.base().add(first as usize), lines) };
        if let Some(recorder) = self.recorder.as_ref().filter(|_| evicted) {
            for line in 0..lines {
                recorder.record(|| Event::WriteBack {
                    line: first + line * LINE_BYTES,
                });
            }
        }
        evicted
    }

    /// Makes this thread's streams and write-backs durable, in as far as the medium can. On an ordinary file in strict
    /// mode it blocks for a sync, which it shares with other threads; a failed sync poisons the region for good.
    #[inline]
    pub fn fence(&self) -> Result<(), PmError> {
        cpu::store_fence();
        self.counters.add(Count::Fences, 1);
        if self.syncs {
            self.sync_file()?;
        }
        if let Some(recorder) = &self.recorder {
            recorder.fence()?;
        }
        // After a fault on the mapping nobody knows what the fence covered.
        self.check()
    }

    /// As [`Self::fence`], and on a shared ordinary file it syncs in every mode: what was stored before is safe from a power loss.
    pub fn sync(&self) -> Result<(), PmError> {
        if !self.syncs && self.mapping.medium == Medium::File && self.access == Access::ReadWrite {
            self.sync_file()?;
        }
        self.fence()
    }

    #[cold]
    fn record_stream(&self, recorder: &Recorder, offset: u64, len: u64, copy: &dyn Fn()) {
        recorder.record(|| {
            copy();
            let first = offset / 8 * 8;
            let count = ((offset + len).next_multiple_of(8) - first) / 8;
            let words = self
                .words(first, count as usize)
                .iter()
                .map(|word| word.load(Ordering::Acquire))
                .collect();
            Event::Stream { offset: first, words }
        });
    }

    #[cold]
    fn sync_file(&self) -> Result<(), PmError> {
        let Some(file) = &self.mapping.file else { return Ok(()) };
        self.counters.add(Count::Syncs, 1);
        self.sync.sync(file).map_err(|failure| {
            let failure = format!("{failure}; check the disk, then mount again");
            PmError::Poisoned(self.failure.get_or_init(|| failure).clone())
        })
    }
}

// What follows is out of line so that the paths above stay short: right behind a fence the store buffer drains for hundreds
// of nanoseconds, and every register that a longer prologue saves waits in it.

#[cold]
fn out_of_range(offset: u64, len: u64, region_len: u64) -> ! {
    panic!("access to {len} bytes at offset {offset} of a region of {region_len} bytes")
}

#[cold]
fn record_store(recorder: &Recorder, offset: u64, values: &[u64], set: &dyn Fn()) {
    recorder.record(|| {
        set();
        Event::Store {
            offset,
            words: values.to_vec(),
        }
    });
}

impl Mapping {
    /// Granularity at which a faulting page can be replaced: that of the file's pages, not of transparent huge pages.
    fn page_bytes_for_faults(&self) -> u64 {
        if self.medium == Medium::NamedDram || self.medium == Medium::Dax {
            self.page_bytes
        } else {
            4096
        }
    }
}
