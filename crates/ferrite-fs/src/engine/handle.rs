//! The handle of a mounted pool.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ferrite_checks::ranked::Mutex;
use ferrite_pm::{Counters, Medium, Region};
use ferrite_vfs::Ino;
use ferrite_vfs::locks::LockTable;

use crate::background::Background;
use crate::cache::bindings::Attached;
use crate::cache::logged::Cause;
use crate::engine::{deregister, finalizer, flusher, mount};
use crate::error::EngineError;
use crate::format::layout::{CONTROL_STATE, STATE_CLEAN, Superblock};
use crate::lock_order;
use crate::options::{MountOptions, PageDump, PoolInfo, ScrubReport};
use crate::page::cleaner;
use crate::page::dump::dump;
use crate::page::merge::merge_some;
use crate::pool::core::Core;

/// Pages that [`Engine::clean`] sorts by the length of their logs at a time.
const CLEAN_PAGES: usize = 1 << 16;

/// A mounted pool: an engine that implements [`ferrite_vfs::FileSystem`]. Cheap to clone; all clones refer to the same
/// pool.
///
/// Dropping the last clone without [`Engine::unmount`] is like a crash: no completed operation is lost, and the next
/// mount replays the journal.
#[derive(Clone)]
pub struct Engine {
    inner: Arc<Inner>,
}

struct Inner {
    core: Arc<Core>,
    /// Run as long as the pool is mounted and may be changed.
    background: Mutex<lock_order::Threads, Vec<Background>>,
    /// Advisory locks: of this handle and its clones, nothing of the pool.
    locks: LockTable,
}

impl Engine {
    /// Mounts the pool in `region`: replays the journal, rebuilds the free maps, completes operations that a crash
    /// interrupted. A damaged pool is mounted as far as possible, see [`Self::damage`]. Blocking; takes time in
    /// proportion to the size of the tables.
    pub fn mount(region: Region, options: &MountOptions) -> Result<Engine, EngineError> {
        let mut core = mount::mount(region, options)?;
        mount::finish_interrupted(&mut core)?;
        let core = Arc::new(core);
        let is_writable = !core.is_read_only();
        let started = [
            (options.cleaner && is_writable).then(|| cleaner::start(Arc::clone(&core))),
            (options.cleaner && is_writable && !core.bindings.left().is_empty())
                .then(|| finalizer::start(Arc::clone(&core))),
            (core.region.defers_write_back() && core.region.medium() == Medium::File)
                .then(|| flusher::start(Arc::clone(&core))),
        ];
        let background = started.into_iter().flatten().collect::<Result<_, _>>();
        let background =
            background.map_err(|error| EngineError::Failed(format!("a background thread did not start: {error}")))?;
        Ok(Engine {
            inner: Arc::new(Inner {
                core,
                background: Mutex::new(background),
                locks: LockTable::new(),
            }),
        })
    }

    /// Retires the journal and marks the pool clean; every later call on any clone fails. Durable when it returns.
    /// Operations in progress in other threads either commit before, or fail like later ones. A second unmount at the
    /// same time waits for the first.
    ///
    /// Crash points: the clean mark is set after the fence that made everything else durable, and nothing is committed
    /// after it. It is informative only; recovery always examines the journal.
    pub fn unmount(&self) -> Result<(), EngineError> {
        let core = &self.inner.core;
        let mut background = self.inner.background.lock();
        background.clear();
        // Nothing can be committed while the pool is frozen.
        let finalizes = !core.journal.is_frozen() && core.check_writable().is_ok();
        deregister::all(core, finalizes);
        if core.closed.swap(true, Ordering::SeqCst) || core.options.read_only {
            return Ok(());
        }
        // `closed` is checked when an operation begins; this state, when it commits.
        core.journal.close();
        settle(core)
    }

    /// Makes all completed operations durable in place, marks the pool clean, and blocks changes until [`Self::thaw`]
    /// or [`Self::unmount`]. Meanwhile the file holds a cleanly unmounted pool and may be copied.
    ///
    /// Waits for operations that are committing, for calls of adapters that change files, and for a sync. Later changes
    /// wait, and keep the locks that they hold; those of adapters fail with `Busy`. Reads continue, and do not update
    /// access times. Fails if the pool is already frozen.
    ///
    /// Crash points: as for [`Self::unmount`]. A crash while frozen leaves a clean pool.
    pub fn freeze(&self) -> Result<(), EngineError> {
        let core = &self.inner.core;
        // Prevents an unmount or thaw meanwhile.
        let _alone = self.inner.background.lock();
        if core.closed.load(Ordering::SeqCst) {
            return Err(EngineError::Options("the pool is unmounted".into()));
        }
        if let Some(error) = core.failure() {
            return Err(EngineError::Failed(error));
        }
        let has_frozen = {
            let _no_calls = core.bindings.keep_out();
            core.journal.freeze()
        };
        if !has_frozen {
            return Err(EngineError::Options("the pool is frozen already".into()));
        }
        if core.options.read_only {
            return Ok(());
        }
        // No page is published any more.
        core.bindings.attached().iter().for_each(|file| revoke_all(file));
        settle(core).inspect_err(|error| {
            // It is unknown how far this got, and nothing may change a pool that is marked clean.
            core.stop_changes(error.to_string());
            core.journal.thaw();
        })
    }

    /// Lets changes continue; has no effect on a pool that is not frozen.
    ///
    /// Crash points: the pool is marked as in use, durably, before anything can be committed.
    pub fn thaw(&self) -> Result<(), EngineError> {
        let core = &self.inner.core;
        let _alone = self.inner.background.lock();
        if !core.journal.is_frozen() {
            return Ok(());
        }
        let marked = match core.options.read_only {
            true => Ok(()),
            false => mount::mark_in_use(&core.region, core.history.mounts, core.history.boot),
        };
        // Nothing may change a pool that is marked clean.
        let outcome = marked.map_err(|error| EngineError::Failed(core.fail(&error).to_string()));
        core.journal.thaw();
        outcome
    }

    /// Whether [`Self::freeze`] blocks changes.
    pub fn is_frozen(&self) -> bool {
        self.inner.core.journal.is_frozen()
    }

    /// Whether the mount found the pool marked as in use in another file, so that it may be a copy of a mounted one.
    pub fn may_be_live_copy(&self) -> bool {
        self.inner.core.history.maybe_copied
    }

    /// Damage that the mount found, one line each; empty on a sound pool. Access to what is damaged fails with
    /// [`ferrite_vfs::FsError::Damaged`], everything else works; `ferrite fsck --repair` repairs it.
    pub fn damage(&self) -> &[String] {
        self.inner.core.quarantine.findings()
    }

    /// Whether changes are refused: because the mount requested it, because damage leaves it unknown which blocks are
    /// free, or because the medium failed.
    pub fn is_read_only(&self) -> bool {
        self.inner.core.is_read_only() || self.failed().is_some()
    }

    /// Why the pool turned read-only, if it did.
    pub fn failed(&self) -> Option<String> {
        self.inner.core.failure()
    }

    /// Everything `ferrite info` shows. Not instant: it counts the mapped pages.
    pub fn info(&self) -> PoolInfo {
        crate::engine::info::collect(&self.inner.core)
    }

    /// How many times the mapping has moved entries of its table since the mount, each time with one record. 0 for
    /// mappings that never do.
    pub fn map_moves(&self) -> u64 {
        self.core().map_moves.load(Ordering::Relaxed)
    }

    /// Inodes dropped from the cache since the mount: a measure of how much memory was freed. Cheap.
    pub fn inodes_dropped(&self) -> u64 {
        self.core().inodes.usage().dropped
    }

    /// The costs of persistence since the pool was opened.
    pub fn counters(&self) -> Counters {
        self.inner.core.region.counters()
    }

    /// Merges the logs of up to `pages` pages, the longest first, and frees the space. Returns how many were merged.
    /// The cleaner does this in the background when space is short or the pool is idle.
    pub fn clean(&self, pages: usize) -> Result<usize, EngineError> {
        let failed = |error: ferrite_vfs::FsError| EngineError::Failed(error.to_string());
        let mut merged = 0;
        while merged < pages {
            let more = merge_some(self.core(), (pages - merged).min(CLEAN_PAGES), Cause::Idle, &mut || {
                false
            });
            match more.map_err(failed)? {
                0 => break,
                more => merged += more,
            }
        }
        self.core().log_space.empty_purses(&self.core().alloc);
        self.core().reclaim().map_err(failed)?;
        Ok(merged)
    }

    /// Verifies everything that carries a checksum, reading at most `bytes_per_second` (`None`: no limit), while the
    /// pool is in use. Changes nothing. Blocks until it is done.
    pub fn scrub(&self, bytes_per_second: Option<u64>) -> Result<ScrubReport, EngineError> {
        self.scrub_telling(bytes_per_second, &mut |_, _, _| {})
    }

    /// Like [`Self::scrub`]; `progress` gets phase, done, total.
    pub fn scrub_telling(
        &self,
        bytes_per_second: Option<u64>,
        progress: &mut dyn FnMut(&'static str, u64, u64),
    ) -> Result<ScrubReport, EngineError> {
        crate::audit::scrub::scrub(self.core(), bytes_per_second, progress)
            .map_err(|error| EngineError::Failed(error.to_string()))
    }

    /// The pages of a file: words and log entries.
    pub fn dump(&self, ino: Ino) -> Result<Vec<PageDump>, EngineError> {
        dump(self.core(), ino).map_err(|error| EngineError::Damaged(error.to_string()))
    }

    /// Longest write that is one atomic step, in bytes.
    pub fn atomic_write_bytes(&self) -> usize {
        crate::file::write::ATOMIC_BYTES
    }

    /// A mounted pool without a cleaner, for tests that replace its parts.
    #[cfg(test)]
    pub(crate) fn over(core: Core) -> Engine {
        Engine {
            inner: Arc::new(Inner {
                core: Arc::new(core),
                background: Mutex::default(),
                locks: LockTable::new(),
            }),
        }
    }

    /// Has files finalized that stay bound without an adapter, from now on.
    pub(super) fn watch_bindings(&self) {
        let core = &self.inner.core;
        if core.bindings.is_watched() || !core.options.cleaner || core.is_read_only() {
            return;
        }
        let mut background = self.inner.background.lock();
        if core.bindings.is_watched() || core.closed.load(Ordering::SeqCst) {
            return;
        }
        match finalizer::start(Arc::clone(core)) {
            Ok(started) => background.push(started),
            Err(error) => tracing::warn!(%error, "files that cannot be finalized stay bound until the next mount"),
        }
    }

    pub(crate) fn core(&self) -> &Core {
        &self.inner.core
    }

    pub(super) fn shared_core(&self) -> &Arc<Core> {
        &self.inner.core
    }

    pub(crate) fn locks(&self) -> &LockTable {
        &self.inner.locks
    }
}

impl Drop for Inner {
    /// Regions do not keep the pool: they must not write to it once another process has opened it.
    fn drop(&mut self) {
        deregister::all(&self.core, false);
    }
}

/// Revokes all pages from the adapter of a bound file.
fn revoke_all(file: &Attached) {
    if let Some(adapter) = file.tell().adapter() {
        adapter.revoke(0, u32::MAX);
    }
}

/// Makes all committed changes durable in place, and then marks the pool clean. The caller ensures that nothing is
/// committed meanwhile.
fn settle(core: &Core) -> Result<(), EngineError> {
    if let Some(error) = core.failure() {
        return Err(EngineError::Failed(error));
    }
    core.reclaim().map_err(|error| EngineError::Failed(error.to_string()))?;
    // A pool that is marked clean must also be clean after a power loss, however it was used.
    core.region.sync()?;
    Ok(mount::mark_clean(&core.region)?)
}

/// Whether a pool was unmounted cleanly, or never mounted: nothing has to be replayed.
pub fn is_clean(region: &Region) -> bool {
    region.load(CONTROL_STATE) == STATE_CLEAN
}

/// Reads a pool's superblock without mounting it.
pub fn identify(region: &Region) -> Result<Superblock, EngineError> {
    Superblock::find(region)
}

#[cfg(test)]
mod tests {
    use ferrite_pm::{Access, Durability};
    use ferrite_vfs::{FileSystem, ROOT_INO, SYSTEM};

    use super::*;
    use crate::MkfsOptions;

    /// No thread is left that would sync two seconds later.
    #[test]
    fn a_pool_that_is_dropped_is_synced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pool");
        let made = crate::create(&path, 16 << 20, &MkfsOptions::default().inodes(255)).unwrap();
        if made.medium() != Medium::File {
            println!("SKIPPED: {} is not on a disk", path.display());
            return;
        }
        drop(made);
        let region = Region::open(&path, Access::ReadWrite).unwrap();
        let options = MountOptions::default().durability(Durability::OnSync);
        let engine = Engine::mount(region, &options).unwrap();
        let core = Arc::clone(&engine.inner.core);
        engine.mkdir(SYSTEM, ROOT_INO, b"dir", 0o755).unwrap();
        let syncs = || core.region.counters().file_syncs;
        let before = syncs();
        drop(engine);
        assert!(syncs() > before);
    }
}
