//! The placement of files' pages, as an engine reports it to an adapter when it binds them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrite_fs::{Engine, Mapping, MkfsOptions, MountOptions};
use ferrite_mr::Run;
use ferrite_pm::Region;
use ferrite_vfs::regions::{Adapter, Binding, PageRun};
use ferrite_vfs::{Attr, FallocateMode, FileSystem, FsError, Ino, OpenMode, ROOT_INO, SYSTEM, Unsupported};
use parking_lot::Mutex;

use crate::engine::new_file;
use crate::error::LabError;

/// Bytes of each write that fills a file.
const CHUNK_BYTES: u64 = 1 << 20;

/// An adapter without packets: it records the placement of pages.
#[derive(Default)]
struct Notes(Mutex<Vec<PageRun>>);

impl Adapter for Notes {
    fn revoke(&self, first: u32, end: u32) {
        self.0.lock().retain(|run| run.at >= end || run.at + run.pages <= first);
    }

    fn publish(&self, runs: &[PageRun]) {
        self.0.lock().extend(runs);
    }

    fn resize(&self, _size: u64) {}

    fn attributes_changed(&self, _attr: &Attr) {}

    fn unbound(&self) {}
}

/// A bound file.
#[derive(Debug, Clone)]
pub struct Bound {
    /// The runs that the engine reported, in the order of the file.
    pub runs: Vec<PageRun>,
    /// Duration of the call.
    pub took: Duration,
}

impl Bound {
    /// The pages that exist.
    pub fn pages(&self) -> Vec<Run> {
        let there = |run: &PageRun| run.page.map(|page| Run { page, pages: run.pages });
        self.runs.iter().filter_map(there).collect()
    }
}

/// For writing; the engine reports all runs that it knows at once.
pub const WHOLE: Binding = Binding {
    writable: true,
    defragment: false,
    whole: true,
};

/// Binds a file, and makes it an ordinary one again.
///
/// # Errors
/// The engine's.
pub fn bind(engine: &Engine, ino: Ino, binding: Binding) -> Result<Bound, LabError> {
    let regions = engine.regions().ok_or(FsError::NotSupported(Unsupported::Region))?;
    let notes = Arc::new(Notes::default());
    let adapter = Arc::clone(&notes);
    let began = Instant::now();
    let region = regions.bind(SYSTEM, ino, binding, adapter)?;
    let took = began.elapsed();
    let runs = std::mem::take(&mut *notes.0.lock());
    region.unbind()?;
    Ok(Bound { runs, took })
}

/// A mounted engine on a new pool; the kernel allocates its memory at the first touch.
///
/// # Errors
/// Options that do not fit the size.
pub fn sparse_engine(bytes: u64, mapping: Mapping) -> Result<Engine, LabError> {
    let region = Region::anonymous(bytes)?;
    ferrite_fs::mkfs(&region, &MkfsOptions::default().mapping(mapping).seed(1))?;
    Ok(Engine::mount(region, &MountOptions::default())?)
}

/// A new file of `bytes`, fully written.
///
/// # Errors
/// The engine's.
pub fn written(engine: &Engine, name: &str, bytes: u64) -> Result<Ino, LabError> {
    let ino = new_file(engine, ROOT_INO, name)?;
    let file = engine.open(SYSTEM, ino, OpenMode::read_write())?;
    let chunk = vec![1; CHUNK_BYTES as usize];
    for offset in (0..bytes).step_by(CHUNK_BYTES as usize) {
        let len = CHUNK_BYTES.min(bytes - offset) as usize;
        if file.write_at(SYSTEM, offset, &chunk[..len])? < len {
            return Err(LabError::Wrong(format!("{name} was written in part")));
        }
    }
    Ok(ino)
}

/// A new file of `bytes`, reserved and not written.
///
/// # Errors
/// The engine's.
pub fn reserved(engine: &Engine, name: &str, bytes: u64) -> Result<Ino, LabError> {
    let ino = new_file(engine, ROOT_INO, name)?;
    let file = engine.open(SYSTEM, ino, OpenMode::read_write())?;
    file.fallocate(SYSTEM, FallocateMode::Allocate { keep_size: false }, 0, bytes)?;
    Ok(ino)
}
