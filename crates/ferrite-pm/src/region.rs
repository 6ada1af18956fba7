//! A pool's bytes: every load and store of the engine goes through here.
//!
//! Contents: [`Region`]. Offsets that are out of range or misaligned are bugs of the engine, and cause a panic
//! before anything is accessed (the engine validates what it reads from the medium).
//!
//! Invariant: all stores, write-backs and fences pass the recorder when one is attached, in the order they take effect.

use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::UNIX_EPOCH;

use crate::copies::Copies;
use crate::counters::{Count, Counters, ShardedCounters};
use crate::cpu::{self, Isa, LINE_BYTES};
use crate::crash::Event;
use crate::creation::Space;
use crate::deferred::Deferred;
use crate::error::PmError;
use crate::faults;
use crate::image::Image;
use crate::line_trace;
use crate::map::{Access, MappedMemory};
use crate::medium::Medium;
use crate::profile::{self, ProfileSpan};
use crate::recorder::Recorder;
use crate::shared;
use crate::sync::GroupSync;

/// The effect of a fence on an ordinary file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// It syncs the file: stores survive a power loss.
    #[default]
    Strict,
    /// It only orders stores: they survive a killed process, since the kernel keeps the pages.
    Process,
    /// Nothing: only [`Region::sync`] makes anything durable. Streams go to the file, in any order until then. Stores
    /// stay in memory, until they are written back or let out ([`Region::let_out`]).
    OnSync,
}

/// A mapped pool.
pub struct Region {
    // Declared before the mapping, so that the handler forgets the addresses before they are unmapped.
    faults: faults::Guard,
    mapping: MappedMemory,
    path: Option<PathBuf>,
    access: Access,
    /// Fences sync: an ordinary file in strict mode, mapped shared.
    syncs: bool,
    /// In the mode [`Durability::OnSync`].
    deferred: Option<Deferred>,
    isa: Isa,
    sync: GroupSync,
    failure: OnceLock<String>,
    counters: ShardedCounters,
    recorder: Option<Arc<Recorder>>,
    /// There is a recorder, or memory of an image, which notes stores.
    is_watched: bool,
    /// Large parts of it may be blank, see `written.rs`.
    is_sparse: bool,
}

impl Region {
    fn new(mapping: MappedMemory, path: Option<&Path>, access: Access) -> Region {
        let copies = mapping
            .is_to_be_copied
            .then(|| Copies::new(mapping.len(), mapping.page_bytes));
        Region {
            faults: faults::Guard::new(mapping.base(), mapping.len(), mapping.page_bytes_for_faults(), copies),
            syncs: mapping.medium == Medium::File && access == Access::ReadWrite,
            deferred: None,
            is_sparse: written::is_sparse(&mapping),
            mapping,
            path: path.map(Path::to_path_buf),
            access,
            isa: Isa::detect(),
            sync: GroupSync::default(),
            failure: OnceLock::new(),
            counters: ShardedCounters::new(),
            recorder: None,
            is_watched: false,
        }
    }

    /// Zeroed anonymous memory, on huge pages where the system provides them.
    pub fn anonymous(len_bytes: u64) -> Result<Region, PmError> {
        Ok(Region::new(
            MappedMemory::anonymous(len_bytes)?,
            None,
            Access::ReadWrite,
        ))
    }

    /// Memory that holds `image`, zero-padded to a whole word. For tests.
    pub fn from_image(image: &[u8]) -> Result<Region, PmError> {
        let mut mapping = MappedMemory::anonymous((image.len() as u64).next_multiple_of(8))?;
        mapping.fill_new(0, image);
        Ok(Region::new(mapping, None, Access::ReadWrite))
    }

    /// Memory that holds `image`, like [`Self::from_image`]. After an earlier region of the image has ended, it costs
    /// only what has changed since that began. For tests.
    pub fn of_image(image: &Image) -> Result<Region, PmError> {
        let mut region = Region::new(image.map()?, None, Access::ReadWrite);
        region.is_watched = true;
        Ok(region)
    }

    /// Makes a pool file of `len_bytes` with all its space allocated, or takes a device. Blocking.
    pub fn create(path: &Path, len_bytes: u64) -> Result<Region, PmError> {
        Region::create_with(path, len_bytes, |_| Ok(()))
    }

    /// The same, for a region that is kept only if `fill` succeeds: on an error, and if the process is killed before,
    /// no new file is left behind, and an existing file keeps its length.
    pub fn create_with<E: From<PmError>>(
        path: &Path,
        len_bytes: u64,
        fill: impl FnOnce(&Region) -> Result<(), E>,
    ) -> Result<Region, E> {
        Region::create_in(path, len_bytes, Space::Allocated, fill)
    }

    /// The same without space: a file gets it where it is written to. When its file system has no more, the region
    /// fails, as a medium does.
    pub fn create_sparse_with<E: From<PmError>>(
        path: &Path,
        len_bytes: u64,
        fill: impl FnOnce(&Region) -> Result<(), E>,
    ) -> Result<Region, E> {
        Region::create_in(path, len_bytes, Space::Sparse, fill)
    }

    fn create_in<E: From<PmError>>(
        path: &Path,
        len_bytes: u64,
        space: Space,
        fill: impl FnOnce(&Region) -> Result<(), E>,
    ) -> Result<Region, E> {
        let (mapping, creation) = MappedMemory::create(path, len_bytes, space)?;
        let region = Region::new(mapping, Some(path), Access::ReadWrite);
        fill(&region)?;
        creation.keep()?;
        Ok(region)
    }

    /// Opens a pool file or device and locks it against other openers until dropped.
    pub fn open(path: &Path, access: Access) -> Result<Region, PmError> {
        let region = Region::new(MappedMemory::open(path, access)?, Some(path), access);
        match region.why_not_durable().filter(|_| access == Access::ReadWrite) {
            Some(why) => Err(PmError::Unsuitable {
                path: path.to_path_buf(),
                why: format!("{why}; use an ordinary file"),
            }),
            None => Ok(region),
        }
    }

    /// Why this machine cannot make stores to the medium durable; opening for writes is refused then.
    pub fn why_not_durable(&self) -> Option<&'static str> {
        let is_lacking = self.medium() == Medium::Dax && cfg!(not(target_arch = "x86_64"));
        is_lacking.then_some("no cache write-back is known for this CPU, so DAX would not be durable")
    }

    /// Chooses the effect of a fence on an ordinary file; no effect elsewhere. Only [`Durability::OnSync`] can fail,
    /// and can be chosen for anonymous memory as well, for tests: a recorder then sees the writes to the file. It
    /// cannot be undone.
    pub fn set_durability(&mut self, durability: Durability) -> Result<(), PmError> {
        let shared_file = self.mapping.medium == Medium::File && self.access == Access::ReadWrite;
        self.syncs = shared_file && durability == Durability::Strict && self.deferred.is_none();
        let can_defer = shared_file || self.mapping.medium == Medium::Anonymous;
        if durability == Durability::OnSync && can_defer && self.deferred.is_none() {
            self.mapping.make_private()?;
            let (base, len) = (self.mapping.base(), self.mapping.len());
            self.faults = faults::Guard::new(base, len, self.mapping.page_bytes_for_faults(), None);
            self.deferred = Some(Deferred::new(len));
        }
        Ok(())
    }

    /// Whether write-back is deferred, see [`Durability::OnSync`].
    #[inline]
    pub fn defers_write_back(&self) -> bool {
        self.deferred.is_some()
    }

    /// Memory that deferred stores take, in bytes.
    pub fn deferred_bytes(&self) -> u64 {
        self.deferred.as_ref().map_or(0, Deferred::dram_bytes)
    }

    /// Makes copies use other instructions than the best.
    #[cfg(test)]
    pub(crate) fn set_isa(&mut self, isa: Isa) {
        self.isa = isa;
    }

    /// Also sends all later events to `recorder`.
    pub fn attach_recorder(&mut self, recorder: Arc<Recorder>) {
        self.recorder = Some(recorder);
        self.is_watched = true;
    }

    /// Length in bytes.
    #[allow(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> u64 {
        self.mapping.len()
    }

    /// The medium it lies on.
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

    /// A number that identifies the file as long as it exists, under any name and across restarts; a copy has a
    /// different one. It is the file's creation time or, where the file system does not keep that, its inode number.
    /// All devices have the same number, since no identity of a device outlasts a restart. `None` for anonymous memory.
    pub fn file_identity(&self) -> Option<u64> {
        let metadata = self.mapping.file.as_ref()?.metadata().ok()?;
        if !metadata.is_file() {
            return Some(u64::MAX);
        }
        let made = metadata
            .created()
            .ok()
            .and_then(|made| made.duration_since(UNIX_EPOCH).ok());
        Some(made.map_or(metadata.ino(), |made| made.as_nanos() as u64))
    }

    /// Totals since the region was opened.
    pub fn counters(&self) -> Counters {
        self.counters.total()
    }

    /// The error that made the region untrustworthy: a fault on the mapping, or a sync that failed.
    pub fn poisoned(&self) -> Option<String> {
        self.check().err().map(|error| error.to_string())
    }

    /// Fails if the region is poisoned. Cheap if it is not.
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
        if !offset.is_multiple_of(8) {
            misaligned(offset);
        }
        let at = self.at(offset, (count as u64).saturating_mul(8));
        // SAFETY: inside the mapping, aligned (the base is page-aligned), alive as long as `self`. While this value
        // lives no code makes a reference to its bytes except as atomic words, nor accesses them in another way: only
        // this file, `shared` and `cpu` access them.
        unsafe { std::slice::from_raw_parts(at.cast::<AtomicU64>(), count) }
    }

    /// The words that the `len` bytes at `offset` touch, and how many bytes of the first lie before them.
    #[inline]
    fn words_of(&self, offset: u64, len: u64) -> (&[AtomicU64], usize) {
        let _ = self.at(offset, len);
        let skip = offset % 8;
        let count = (skip + len).div_ceil(8) as usize;
        // SAFETY: as for `words`. The last word may end beyond a length that is not a multiple of 8, but not beyond the
        // last page, which is mapped as a whole.
        let words = unsafe {
            let first = self.mapping.base().add((offset - skip) as usize);
            std::slice::from_raw_parts(first.cast::<AtomicU64>(), count)
        };
        (words, skip as usize)
    }

    /// The word at `offset`.
    #[inline]
    pub fn load(&self, offset: u64) -> u64 {
        self.words(offset, 1)[0].load(Ordering::Acquire)
    }

    /// Copies bytes out. Each word of 8 bytes (at a multiple of 8) is whole. If others store there meanwhile, each word
    /// is the old or the new one. A caller that needs a consistent copy checks a version or a checksum afterwards; it
    /// reads the check's value as of after the copy.
    #[inline]
    pub fn read(&self, offset: u64, buf: &mut [u8]) {
        let _span = profile::enter(ProfileSpan::Copy);
        let len = buf.len() as u64;
        if (offset | len).is_multiple_of(8) {
            shared::load_whole(self.isa, self.words(offset, buf.len() / 8), buf);
        } else {
            let (words, skip) = self.words_of(offset, len);
            shared::load(self.isa, words, skip, buf);
        }
    }

    /// Starts loading the line at `offset`.
    #[inline]
    pub fn prefetch(&self, offset: u64) {
        cpu::prefetch(self.at(offset, 1));
    }

    /// Starts loading the line at `offset` for a store, taking it from any core that has it.
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
        let _span = profile::enter(ProfileSpan::Words);
        line_trace::number("pool words", offset / LINE_BYTES);
        let words = self.words(offset, values.len());
        let set = || {
            for (word, &value) in words.iter().zip(values) {
                word.store(value, Ordering::Release);
            }
        };
        if let Some(deferred) = &self.deferred {
            // Not recorded: it does not reach the medium.
            if self.is_watched {
                self.note(offset, values.len() as u64 * 8);
            }
            return deferred.store(offset, values.len() as u64 * 8, set);
        }
        match self.is_watched {
            false => set(),
            true => self.watched_store(offset, values, &set),
        }
    }

    /// Changes a word through the cache, in one step, to the result of `change`, unless that is `None`; returns the old
    /// value. `change` may be called several times. Durable as [`Self::store`]. Not where write-back is deferred.
    pub fn update(&self, offset: u64, mut change: impl FnMut(u64) -> Option<u64>) -> u64 {
        let word = &self.words(offset, 1)[0];
        let mut set = || word.fetch_update(Ordering::AcqRel, Ordering::Acquire, &mut change);
        if self.is_watched {
            self.note(offset, 8);
        }
        match &self.recorder {
            None => set().unwrap_or_else(|found| found),
            Some(recorder) => {
                let mut found = 0;
                recorder.record(|| {
                    found = set().unwrap_or_else(|found| found);
                    let words = vec![word.load(Ordering::Acquire)];
                    Event::Store { offset, words }
                });
                found
            }
        }
    }

    /// Copies bytes past the cache. Durable once this thread has fenced; until then other threads may see its later
    /// stores before they see these bytes. Each word changes at once. Partial lines at the ends go through the cache,
    /// and are written back here.
    #[inline]
    pub fn stream(&self, offset: u64, data: &[u8]) {
        let _span = profile::enter_unless_in(ProfileSpan::Record, ProfileSpan::Stream);
        let len = data.len() as u64;
        let (words, skip) = self.words_of(offset, len);
        let lead = (offset.next_multiple_of(LINE_BYTES) - offset).min(len) as usize;
        let lines = (data.len() - lead) / LINE_BYTES as usize;
        let tail = lead + lines * LINE_BYTES as usize;
        let copy = || {
            if lead > 0 {
                shared::store(words, skip, &data[..lead]);
            }
            if lines > 0 {
                let (first, end) = ((skip + lead) / 8, (skip + tail) / 8);
                self.isa.stream_lines(&words[first..end], &data[lead..tail]);
            }
            if tail < data.len() {
                shared::store(&words[(skip + tail) / 8..], (skip + tail) % 8, &data[tail..]);
            }
        };
        self.counters.add(Count::Bytes, len);
        if let Some(deferred) = &self.deferred {
            return self.stream_deferred(deferred, offset, data);
        }
        match self.is_watched {
            false => copy(),
            true => self.watched_stream(offset, len, &copy),
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

    /// The same for a long range: on an ordinary file by writing to the file, which takes a quarter of the time if its
    /// blocks have never been written. Durable after a sync there, as elsewhere after a fence.
    pub fn fill_zero(&self, offset: u64, len: u64) {
        static ZEROS: [u8; 1 << 16] = [0; 1 << 16];
        let _ = self.at(offset, len);
        let is_plain = self.deferred.is_none() && self.recorder.is_none();
        if !is_plain || self.mapping.medium != Medium::File || self.access != Access::ReadWrite {
            return self.stream_zero(offset, len);
        }
        for at in (offset..offset + len).step_by(ZEROS.len()) {
            let part = (offset + len - at).min(ZEROS.len() as u64);
            self.write_file(at, &ZEROS[..part as usize]);
        }
    }

    /// Writes the lines of a range back to the medium, without waiting; the next fence of this thread waits.
    #[inline]
    pub fn write_back(&self, offset: u64, len: u64) {
        let _span = profile::enter(ProfileSpan::Words);
        if len == 0 {
            return;
        }
        if self.deferred.is_some() {
            return self.write_back_deferred(offset, len);
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

    /// Writes the lines of a range back and drops them from all caches, and waits: the next load of each misses. False
    /// where this CPU has no such instruction, and nothing happened. For measurements with cold caches only.
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

    /// Makes this thread's streams and write-backs durable, as far as the medium can. On an ordinary file in strict
    /// mode it blocks for a sync, which it shares with other threads; a failed sync poisons the region permanently.
    #[inline]
    pub fn fence(&self) -> Result<(), PmError> {
        let _span = profile::enter(ProfileSpan::Fence);
        cpu::store_fence();
        profile::drained();
        self.counters.add(Count::Fences, 1);
        if self.syncs {
            self.sync_file()?;
        }
        if let Some(recorder) = self.recorder.as_ref().filter(|_| self.deferred.is_none()) {
            recorder.fence()?;
        }
        // After a fault on the mapping it is unknown what the fence covered.
        self.check()
    }

    /// As [`Self::fence`], and on a shared ordinary file it syncs in every mode: earlier stores survive a power loss.
    pub fn sync(&self) -> Result<(), PmError> {
        if !self.syncs && self.mapping.medium == Medium::File && self.access == Access::ReadWrite {
            self.sync_file()?;
        }
        if let Some(recorder) = self.recorder.as_ref().filter(|_| self.deferred.is_some()) {
            recorder.sync()?;
        }
        self.fence()
    }

    /// Writes deferred words to the file: `words`, which were stored at `offset`, are durable after a sync. Later
    /// stores there stay in memory.
    pub fn let_out(&self, offset: u64, words: &[u64]) {
        let _ = self.words(offset, words.len());
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.counters
            .add(Count::Lines, (bytes.len() as u64).div_ceil(LINE_BYTES));
        self.write_file(offset, &bytes);
        if let Some(recorder) = &self.recorder {
            let words = words.to_vec();
            recorder.record(|| Event::Stream { offset, words });
        }
    }

    /// Releases the memory of pages of the view that equal the file. The caller knows that all do except those that
    /// `keep` names, by page of 4096 bytes, and that no thread stores words to the others meanwhile.
    pub fn drop_copies(&self, keep: &dyn Fn(u64) -> bool) {
        if let (Some(deferred), Some(_)) = (&self.deferred, &self.mapping.file) {
            deferred.drop_copies(keep, |offset, len| self.mapping.drop_copies(offset, len));
        }
    }

    /// Bytes that are streamed: to the file, and to the pages of the view that no longer show the file.
    #[cold]
    fn stream_deferred(&self, deferred: &Deferred, offset: u64, data: &[u8]) {
        let len = data.len() as u64;
        let copy = |start: u64, end: u64| {
            let (words, skip) = self.words_of(start, end - start);
            shared::store(words, skip, &data[(start - offset) as usize..(end - offset) as usize]);
        };
        let write = || match &self.mapping.file {
            Some(_) => {
                self.write_file(offset, data);
                deferred.store_to_copies(offset, len, copy);
            }
            None => deferred.store(offset, len, || copy(offset, offset + len)),
        };
        self.watched_stream(offset, len, &write);
    }

    /// Words that were stored reach the file at once: those of the range, and not the rest of their lines.
    #[cold]
    fn write_back_deferred(&self, offset: u64, len: u64) {
        let first = offset / 8 * 8;
        let count = ((offset + len).next_multiple_of(8) - first) / 8;
        let words = self.words(first, count as usize).iter();
        let words: Vec<u64> = words.map(|word| word.load(Ordering::Acquire)).collect();
        self.let_out(first, &words);
    }

    /// A failure poisons the region, and is reported by the next fence, sync or check.
    fn write_file(&self, offset: u64, data: &[u8]) {
        if let Some(file) = &self.mapping.file
            && let Err(error) = file.write_all_at(data, offset)
        {
            let failure = format!("write at offset {offset} failed: {error}; check the disk, then mount again");
            let _ = self.failure.set(failure);
        }
    }

    /// Notes a store of `len` bytes for the image that the memory was made of.
    #[cold]
    fn note(&self, offset: u64, len: u64) {
        if let Some(recycler) = &self.mapping.recycler {
            recycler.note(offset, len);
        }
    }

    #[cold]
    fn watched_store(&self, offset: u64, values: &[u64], set: &dyn Fn()) {
        self.note(offset, values.len() as u64 * 8);
        match &self.recorder {
            None => set(),
            Some(recorder) => record_store(recorder, offset, values, set),
        }
    }

    #[cold]
    fn watched_stream(&self, offset: u64, len: u64, copy: &dyn Fn()) {
        self.note(offset, len);
        match &self.recorder {
            None => copy(),
            Some(recorder) => self.record_stream(recorder, offset, len, copy),
        }
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

// The functions below are out of line to keep the paths above short: right after a fence the store buffer drains for
// hundreds of nanoseconds, and every register that a longer prologue saves waits in it.

#[cold]
fn out_of_range(offset: u64, len: u64, region_len: u64) -> ! {
    panic!("access to {len} bytes at offset {offset} of a region of {region_len} bytes")
}

#[cold]
fn misaligned(offset: u64) -> ! {
    panic!("misaligned words at offset {offset}")
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

impl MappedMemory {
    /// The unit in which a faulting page can be replaced: the file's page size, not that of transparent huge pages.
    fn page_bytes_for_faults(&self) -> u64 {
        if self.medium == Medium::NamedDram || self.medium == Medium::Dax {
            self.page_bytes
        } else {
            4096
        }
    }
}

#[cfg(test)]
mod tests;
mod written;

pub use written::WrittenEntries;
