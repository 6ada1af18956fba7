//! The handle of a mounted pool.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ferrite_pm::{Counters, Region};

use crate::core::Core;
use crate::error::EngineError;
use crate::layout::{CONTROL_BOOT, CONTROL_STATE, STATE_CLEAN, Superblock};
use crate::mount;
use crate::options::{MountOptions, PoolInfo};

/// A mounted pool: an engine that implements [`ferrite_vfs::FileSystem`]. Cheap to clone; all clones are one.
///
/// Dropping the last clone without [`Engine::unmount`] is like a crash: nothing that returned is lost, the next mount replays.
#[derive(Clone)]
pub struct Engine {
    core: Arc<Core>,
}

impl Engine {
    /// Mounts the pool in `region`: replays the journal, rebuilds the free maps, finishes what a crash interrupted.
    /// Blocking; takes time in proportion to the tables.
    pub fn mount(region: Region, options: &MountOptions) -> Result<Engine, EngineError> {
        let core = Arc::new(mount::mount(region, options)?);
        mount::finish_interrupted(&core)?;
        Ok(Engine { core })
    }

    /// Retires the journal and marks the pool clean; every later call on any clone fails. Durable when it returns.
    ///
    /// Crash points: the clean mark is set after the fence that made all else durable; it is informative only,
    /// recovery always looks at the journal.
    pub fn unmount(&self) -> Result<(), EngineError> {
        let core = &self.core;
        if core.closed.swap(true, Ordering::SeqCst) || core.options.read_only {
            return Ok(());
        }
        if let Some(error) = core.failed.get() {
            return Err(EngineError::Failed(error.clone()));
        }
        core.reclaim().map_err(|error| EngineError::Failed(error.to_string()))?;
        core.region.fence()?;
        for (offset, value) in [(CONTROL_STATE, STATE_CLEAN), (CONTROL_BOOT, 0)] {
            core.region.store(offset, value);
            core.region.write_back(offset, 8);
        }
        core.region.fence()?;
        Ok(())
    }

    /// Why the pool turned read-only, if it did.
    pub fn failed(&self) -> Option<String> {
        self.core.failed.get().cloned()
    }

    /// Everything `ferrite info` shows. Takes moments: it counts the mapped pages.
    pub fn info(&self) -> PoolInfo {
        crate::info::collect(&self.core)
    }

    /// What persistence cost since the pool was opened.
    pub fn counters(&self) -> Counters {
        self.core.region.counters()
    }

    /// Longest write that is one atomic step, in bytes.
    pub fn atomic_write_bytes(&self) -> usize {
        crate::file::ATOMIC_BYTES
    }

    pub(crate) fn core(&self) -> &Core {
        &self.core
    }
}

/// Reads a pool's superblock without mounting it.
pub fn identify(region: &Region) -> Result<Superblock, EngineError> {
    Superblock::find(region)
}
