//! The handle of a mounted pool.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ferrite_pm::{Counters, Region};
use ferrite_vfs::Ino;
use parking_lot::Mutex;

use crate::cache::logged::Cause;
use crate::engine::mount;
use crate::error::EngineError;
use crate::format::layout::{CONTROL_STATE, STATE_CLEAN, Superblock};
use crate::options::{MountOptions, PageDump, PoolInfo, ScrubReport};
use crate::page::cleaner::Cleaner;
use crate::page::dump::dump;
use crate::page::fold::fold_some;
use crate::pool::core::Core;

/// Pages that [`Engine::clean`] sorts by the length of their logs at a time.
const CLEAN_PAGES: usize = 1 << 16;

/// A mounted pool: an engine that implements [`ferrite_vfs::FileSystem`]. Cheap to clone; all clones are one.
///
/// Dropping the last clone without [`Engine::unmount`] is like a crash: nothing that returned is lost, the next mount
/// replays.
#[derive(Clone)]
pub struct Engine {
    inner: Arc<Inner>,
}

struct Inner {
    core: Arc<Core>,
    /// Runs as long as the pool is mounted and may be changed.
    cleaner: Mutex<Option<Cleaner>>,
}

impl Engine {
    /// Mounts the pool in `region`: replays the journal, rebuilds the free maps, finishes what a crash interrupted. A
    /// damaged pool is mounted as far as it goes, see [`Self::damage`]. Blocking; takes time in proportion to the
    /// tables.
    pub fn mount(region: Region, options: &MountOptions) -> Result<Engine, EngineError> {
        let mut core = mount::mount(region, options)?;
        mount::finish_interrupted(&mut core)?;
        let core = Arc::new(core);
        let cleaner = if options.cleaner && !core.is_read_only() {
            let started = Cleaner::start(Arc::clone(&core));
            Some(started.map_err(|error| EngineError::Failed(format!("the cleaner's thread did not start: {error}")))?)
        } else {
            None
        };
        Ok(Engine {
            inner: Arc::new(Inner {
                core,
                cleaner: Mutex::new(cleaner),
            }),
        })
    }

    /// Retires the journal and marks the pool clean; every later call on any clone fails. Durable when it returns.
    /// Operations under way in other threads commit before, or fail as later ones do. Whoever unmounts at the same time
    /// waits for it.
    ///
    /// Crash points: the clean mark is set after the fence that made all else durable, and nothing is committed behind
    /// it; it is informative only, recovery always looks at the journal.
    pub fn unmount(&self) -> Result<(), EngineError> {
        let core = &self.inner.core;
        let mut cleaner = self.inner.cleaner.lock();
        if let Some(mut running) = cleaner.take() {
            running.stop();
        }
        if core.closed.swap(true, Ordering::SeqCst) || core.options.read_only {
            return Ok(());
        }
        // `closed` is asked when an operation begins; this one, when it commits.
        core.journal.close();
        settle(core)
    }

    /// Brings all that returned to where it belongs on the medium, marks the pool clean, and holds changes back until
    /// [`Self::thaw`] or [`Self::unmount`]: what lies in the file meanwhile is a pool that was unmounted in order, and
    /// may be copied. Blocks for the operations that commit just now and for a sync; whoever changes something later
    /// waits, with the locks that it has. Reads go on, and move no access times. Fails if the pool is frozen already.
    ///
    /// Crash points: as those of [`Self::unmount`]. A crash while frozen leaves a clean pool.
    pub fn freeze(&self) -> Result<(), EngineError> {
        let core = &self.inner.core;
        // Neither unmounted nor thawed meanwhile.
        let _alone = self.inner.cleaner.lock();
        if core.closed.load(Ordering::SeqCst) {
            return Err(EngineError::Options("the pool is unmounted".into()));
        }
        if let Some(error) = core.failure() {
            return Err(EngineError::Failed(error));
        }
        if !core.journal.freeze() {
            return Err(EngineError::Options("the pool is frozen already".into()));
        }
        if core.options.read_only {
            return Ok(());
        }
        settle(core).inspect_err(|error| {
            // How far it came is not known, and nothing may change a pool that says that it is clean.
            core.stop_changes(error.to_string());
            core.journal.thaw();
        })
    }

    /// Lets changes go on; nothing happens to a pool that is not frozen.
    ///
    /// Crash points: the pool is marked as in use, durably, before anything can be committed.
    pub fn thaw(&self) -> Result<(), EngineError> {
        let core = &self.inner.core;
        let _alone = self.inner.cleaner.lock();
        if !core.journal.is_frozen() {
            return Ok(());
        }
        let marked = match core.options.read_only {
            true => Ok(()),
            false => mount::mark_in_use(&core.region, core.history.mounts, core.history.boot),
        };
        // Nothing may change a pool that says that it is clean.
        let outcome = marked.map_err(|error| EngineError::Failed(core.fail(&error).to_string()));
        core.journal.thaw();
        outcome
    }

    /// Whether changes are held back by [`Self::freeze`].
    pub fn is_frozen(&self) -> bool {
        self.inner.core.journal.is_frozen()
    }

    /// Whether the mount found the pool marked as in use in another file, so that it may be a copy of a mounted one.
    pub fn may_be_live_copy(&self) -> bool {
        self.inner.core.history.maybe_copied
    }

    /// What the mount found damaged, a line each; empty on a sound pool. What is damaged answers
    /// [`ferrite_vfs::FsError::Damaged`], all else works; `ferrite fsck --repair` repairs it.
    pub fn damage(&self) -> &[String] {
        self.inner.core.damage.findings()
    }

    /// Whether changes are refused: because the mount was asked for that, because of damage that leaves it unknown
    /// which blocks are free, or because the medium failed.
    pub fn is_read_only(&self) -> bool {
        self.inner.core.is_read_only() || self.failed().is_some()
    }

    /// Why the pool turned read-only, if it did.
    pub fn failed(&self) -> Option<String> {
        self.inner.core.failure()
    }

    /// Everything `ferrite info` shows. Takes moments: it counts the mapped pages.
    pub fn info(&self) -> PoolInfo {
        crate::engine::info::collect(&self.inner.core)
    }

    /// How many times the mapping has moved entries of its table since the mount, each time by one record. 0 for
    /// mappings that never do.
    pub fn map_moves(&self) -> u64 {
        self.core().map_moves.load(Ordering::Relaxed)
    }

    /// Inodes that were known and are not any more, since the mount: how much memory came free. Cheap.
    pub fn inodes_dropped(&self) -> u64 {
        self.core().inodes.usage().dropped
    }

    /// What persistence cost since the pool was opened.
    pub fn counters(&self) -> Counters {
        self.inner.core.region.counters()
    }

    /// Folds the logs of up to `pages` pages, those with the longest first, and gives the space back. Returns how many
    /// were folded. The cleaner does this by itself when space is short or the pool idle.
    pub fn clean(&self, pages: usize) -> Result<usize, EngineError> {
        let failed = |error: ferrite_vfs::FsError| EngineError::Failed(error.to_string());
        let mut folded = 0;
        while folded < pages {
            let more = fold_some(self.core(), (pages - folded).min(CLEAN_PAGES), Cause::Idle, &mut || {
                false
            });
            match more.map_err(failed)? {
                0 => break,
                more => folded += more,
            }
        }
        self.core().log_space.empty_purses(&self.core().alloc);
        self.core().reclaim().map_err(failed)?;
        Ok(folded)
    }

    /// Looks at everything that carries a checksum, at most so many bytes a second (0 is no limit), while the pool is
    /// in use. Changes nothing. Blocking, for as long as that takes.
    pub fn scrub(&self, bytes_per_second: Option<u64>) -> Result<ScrubReport, EngineError> {
        self.scrub_telling(bytes_per_second, &mut |_, _, _| {})
    }

    /// As [`Self::scrub`]; `progress` gets phase, done, total.
    pub fn scrub_telling(
        &self,
        bytes_per_second: Option<u64>,
        progress: &mut dyn FnMut(&'static str, u64, u64),
    ) -> Result<ScrubReport, EngineError> {
        crate::audit::scrub::scrub(self.core(), bytes_per_second, progress)
            .map_err(|error| EngineError::Failed(error.to_string()))
    }

    /// What a file's pages hold: words and log entries.
    pub fn dump(&self, ino: Ino) -> Result<Vec<PageDump>, EngineError> {
        dump(self.core(), ino).map_err(|error| EngineError::Damaged(error.to_string()))
    }

    /// Longest write that is one atomic step, in bytes.
    pub fn atomic_write_bytes(&self) -> usize {
        crate::file::write::ATOMIC_BYTES
    }

    /// A mounted pool without a cleaner, for tests that change what it is made of.
    #[cfg(test)]
    pub(crate) fn over(core: Core) -> Engine {
        Engine {
            inner: Arc::new(Inner {
                core: Arc::new(core),
                cleaner: Mutex::new(None),
            }),
        }
    }

    pub(crate) fn core(&self) -> &Core {
        &self.inner.core
    }
}

/// Makes durable in place what was committed, and then marks the pool clean. The caller sees to it that nothing is
/// committed meanwhile.
fn settle(core: &Core) -> Result<(), EngineError> {
    if let Some(error) = core.failure() {
        return Err(EngineError::Failed(error));
    }
    core.reclaim().map_err(|error| EngineError::Failed(error.to_string()))?;
    // A pool that says it is clean is so after a power loss, too, however it was used.
    core.region.sync()?;
    Ok(mount::mark_clean(&core.region)?)
}

/// Whether a pool was unmounted in order, or never mounted: nothing is to be replayed.
pub fn is_clean(region: &Region) -> bool {
    region.load(CONTROL_STATE) == STATE_CLEAN
}

/// Reads a pool's superblock without mounting it.
pub fn identify(region: &Region) -> Result<Superblock, EngineError> {
    Superblock::find(region)
}
