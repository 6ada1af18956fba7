//! File-system mixes after filebench's: the operations of HashFS figure 12, HDPM figures 7 and 8 and `ferrite bench
//! mixes` on a pool, on a mapping alone, or on any other [`Store`].
//!
//! *fileserver*, a turn: make a file and write it whole, add 16 KiB, read one whole, remove one, stat one. *webproxy*:
//! remove, make and fill one, read five, add to a log. *varmail*: remove one; make one, fill it; read one, add to it;
//! read one. Files have 128, 64 and 32 KiB on average; they are fewer than in the papers, so that memory suffices.

use std::time::Duration;

use ferrite_fs::{Engine, MkfsOptions, MountOptions};
use ferrite_measure::{Rng, turns_per_second};
use ferrite_vfs::{FileSystem, Ino, OpenMode, ROOT_INO, SYSTEM};
use parking_lot::Mutex;

use crate::alloc::BLOCK_BYTES;
use crate::engine::{engine_in_memory, new_file};
use crate::error::LabError;
use crate::pool::Pool;

/// Mean size of an addition.
const WRITE_BYTES: u64 = 16 << 10;
/// Additions end at this size; then the file is made again.
const FILE_BYTES_MAX: u64 = 256 << 10;
/// The same for the log of webproxy.
const LOG_BYTES_MAX: u64 = 1 << 20;

/// A mix; the module's head describes each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mix {
    /// Files are written whole.
    Fileserver,
    /// Mostly reads.
    Webproxy,
    /// Unaligned additions.
    Varmail,
}

impl Mix {
    fn mean_bytes(self) -> u64 {
        match self {
            Mix::Fileserver => 128 << 10,
            Mix::Webproxy => 64 << 10,
            Mix::Varmail => 32 << 10,
        }
    }

    /// Mean size of a file when it is made by a turn.
    fn new_bytes(self) -> u64 {
        match self {
            Mix::Fileserver => self.mean_bytes(),
            Mix::Webproxy | Mix::Varmail => WRITE_BYTES,
        }
    }

    /// The longest file or single addition, in bytes.
    pub fn largest_bytes(self) -> usize {
        (2 * self.mean_bytes().max(WRITE_BYTES) + FILE_BYTES_MAX).max(LOG_BYTES_MAX + 2 * WRITE_BYTES) as usize
    }
}

/// A target of a mix. Each thread has files of its own, which are numbered; number 0 is the log. A call that fails
/// returns the store's reason.
pub trait Store: Sync {
    /// Removes a file.
    fn remove(&self, thread: usize, file: u32) -> Result<(), LabError>;
    /// Makes a file of this many bytes.
    fn create(&self, thread: usize, file: u32, bytes: u64) -> Result<(), LabError>;
    /// Adds this many bytes to a file, durably if the store can. Returns its new size in bytes.
    fn append(&self, thread: usize, file: u32, bytes: u64) -> Result<u64, LabError>;
    /// Reads all of a file.
    fn read(&self, thread: usize, file: u32) -> Result<(), LabError>;
    /// Looks a file up.
    fn stat(&self, thread: usize, file: u32) -> Result<(), LabError>;
}

/// Makes `files` files for each thread, and their logs.
///
/// # Errors
/// The store's.
pub fn fill(store: &dyn Store, mix: Mix, threads: usize, files: u32) -> Result<(), LabError> {
    let mut rng = Rng::new(1);
    for thread in 0..threads {
        store.create(thread, 0, 1)?;
        for file in 1..=files {
            store.create(thread, file, 1 + rng.below(2 * mix.mean_bytes()))?;
        }
    }
    Ok(())
}

/// One turn.
pub(crate) fn turn(store: &dyn Store, mix: Mix, thread: usize, files: u32, rng: &mut Rng) -> Result<(), LabError> {
    let mut file = || 1 + rng.below(u64::from(files)) as u32;
    let chosen = [file(), file(), file(), file(), file(), file()];
    let (new_bytes, more) = (1 + rng.below(2 * mix.new_bytes()), 1 + rng.below(2 * WRITE_BYTES));
    let add = |file: u32, limit: u64| -> Result<(), LabError> {
        if store.append(thread, file, more)? > limit {
            store.remove(thread, file)?;
            store.create(thread, file, more)?;
        }
        Ok(())
    };
    store.remove(thread, chosen[0])?;
    store.create(thread, chosen[0], new_bytes)?;
    match mix {
        Mix::Fileserver => {
            add(chosen[1], FILE_BYTES_MAX)?;
            store.read(thread, chosen[2])?;
            store.stat(thread, chosen[3])
        }
        Mix::Webproxy => {
            for &file in &chosen[1..] {
                store.read(thread, file)?;
            }
            add(0, LOG_BYTES_MAX)
        }
        Mix::Varmail => {
            store.read(thread, chosen[1])?;
            add(chosen[1], FILE_BYTES_MAX)?;
            store.read(thread, chosen[2])
        }
    }
}

/// Turns per second of `threads` threads in one round, each on its own files.
///
/// # Errors
/// The first error of a turn.
pub fn rate(
    store: &dyn Store,
    mix: Mix,
    threads: usize,
    files: u32,
    round: Duration,
    seed: u64,
) -> Result<f64, LabError> {
    turns_per_second(threads, round, |thread| {
        let mut rng = Rng::new(seed ^ (thread as u64) << 32);
        move || turn(store, mix, thread, files, &mut rng)
    })
}

/// The whole engine, on a pool in memory.
pub struct Whole {
    engine: Engine,
    dirs: Vec<Ino>,
    /// For each thread: the data to write, and the buffer for reads.
    buffers: Vec<Mutex<(Vec<u8>, Vec<u8>)>>,
}

impl Whole {
    /// A pool with space for three times the files of so many threads.
    ///
    /// # Errors
    /// See [`engine_in_memory`].
    pub fn new(
        mkfs: &MkfsOptions,
        mount: &MountOptions,
        mix: Mix,
        threads: usize,
        files: u32,
    ) -> Result<Self, LabError> {
        let bytes = mix.mean_bytes() * u64::from(files) * threads as u64 * 3 + (64 << 20);
        let engine = engine_in_memory(bytes, mkfs, mount)?;
        let dirs = (0..threads).map(|thread| {
            let made = engine.mkdir(SYSTEM, ROOT_INO, format!("d{thread}").as_bytes(), 0o755)?;
            Ok(made.ino)
        });
        let dirs = dirs.collect::<Result<_, LabError>>()?;
        let largest = mix.largest_bytes();
        Ok(Whole {
            engine,
            dirs,
            buffers: (0..threads)
                .map(|_| Mutex::new((vec![7; largest], vec![0; largest])))
                .collect(),
        })
    }

    /// The share of the pool's blocks in use, in percent.
    ///
    /// # Errors
    /// The engine's.
    pub fn fill_percent(&self) -> Result<u32, LabError> {
        let space = self.engine.statfs(SYSTEM)?;
        Ok(((space.blocks - space.blocks_free) * 100 / space.blocks.max(1)) as u32)
    }

    /// The engine below.
    #[cfg(feature = "rdma")]
    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The inodes of a thread's files, the log included.
    #[cfg(feature = "rdma")]
    pub(crate) fn files(&self, thread: usize, files: u32) -> Result<Vec<Ino>, LabError> {
        (0..=files).map(|file| self.ino(thread, file)).collect()
    }

    fn name(file: u32) -> String {
        format!("f{file}")
    }

    fn ino(&self, thread: usize, file: u32) -> Result<Ino, LabError> {
        Ok(self
            .engine
            .lookup(SYSTEM, self.dirs[thread], Self::name(file).as_bytes())?
            .ino)
    }
}

impl Store for Whole {
    fn remove(&self, thread: usize, file: u32) -> Result<(), LabError> {
        Ok(self
            .engine
            .unlink(SYSTEM, self.dirs[thread], Self::name(file).as_bytes())?)
    }

    fn create(&self, thread: usize, file: u32, bytes: u64) -> Result<(), LabError> {
        let made = new_file(&self.engine, self.dirs[thread], &Self::name(file))?;
        let buffers = self.buffers[thread].lock();
        self.engine
            .open(SYSTEM, made, OpenMode::read_write())?
            .append(SYSTEM, &buffers.0[..bytes as usize])?;
        Ok(())
    }

    fn append(&self, thread: usize, file: u32, bytes: u64) -> Result<u64, LabError> {
        let open = self
            .engine
            .open(SYSTEM, self.ino(thread, file)?, OpenMode::read_write())?;
        let written = open.append(SYSTEM, &self.buffers[thread].lock().0[..bytes as usize])?;
        Ok(written.end())
    }

    fn read(&self, thread: usize, file: u32) -> Result<(), LabError> {
        let open = self
            .engine
            .open(SYSTEM, self.ino(thread, file)?, OpenMode::read_write())?;
        open.read_at(SYSTEM, 0, &mut self.buffers[thread].lock().1)?;
        Ok(())
    }

    fn stat(&self, thread: usize, file: u32) -> Result<(), LabError> {
        self.ino(thread, file).map(drop)
    }
}

/// A mapping alone: the mix's operations on it, without names and data.
pub(crate) struct MapOnly {
    pool: Pool,
    files: u32,
    /// Sizes of each thread's files in bytes.
    sizes: Vec<Mutex<Vec<u64>>>,
}

impl MapOnly {
    pub(crate) fn new(pool: Pool, threads: usize, files: u32) -> Self {
        MapOnly {
            pool,
            files,
            sizes: (0..threads).map(|_| Mutex::new(vec![0; files as usize + 1])).collect(),
        }
    }

    /// Blocks that the files of a mix may need.
    pub(crate) fn blocks_for(mix: Mix, threads: usize, files: u32) -> u32 {
        let bytes = mix.mean_bytes() * u64::from(files + 8) + LOG_BYTES_MAX;
        (bytes * threads as u64 * 2 / BLOCK_BYTES) as u32 + 1024
    }

    fn ino(&self, thread: usize, file: u32) -> u32 {
        1 + thread as u32 * (self.files + 1) + file
    }

    fn pages(bytes: u64) -> u32 {
        bytes.div_ceil(BLOCK_BYTES) as u32
    }
}

impl Store for MapOnly {
    fn remove(&self, thread: usize, file: u32) -> Result<(), LabError> {
        let bytes = std::mem::take(&mut self.sizes[thread].lock()[file as usize]);
        self.pool
            .remove(thread, self.ino(thread, file), 0, Self::pages(bytes))
            .map(drop)
    }

    fn create(&self, thread: usize, file: u32, bytes: u64) -> Result<(), LabError> {
        self.sizes[thread].lock()[file as usize] = bytes;
        self.pool.insert(thread, self.ino(thread, file), 0, Self::pages(bytes))
    }

    fn append(&self, thread: usize, file: u32, bytes: u64) -> Result<u64, LabError> {
        let before = self.sizes[thread].lock()[file as usize];
        let (first, end) = (Self::pages(before), Self::pages(before + bytes));
        self.pool.insert(thread, self.ino(thread, file), first, end - first)?;
        self.sizes[thread].lock()[file as usize] = before + bytes;
        Ok(before + bytes)
    }

    fn read(&self, thread: usize, file: u32) -> Result<(), LabError> {
        let pages = Self::pages(self.sizes[thread].lock()[file as usize]);
        let mut words = vec![ferrite_map::PageWord::HOLE; pages as usize];
        let cache = ferrite_map::TransCache::default();
        self.pool.map.get_many(
            ferrite_map::PageId::from_raw(self.ino(thread, file), 0),
            &mut words,
            &cache,
        );
        match words.iter().find(|word| word.is_hole()) {
            None => Ok(()),
            Some(_) => Err(LabError::Wrong(format!(
                "{} lost a page of file {file}",
                self.pool.structure.name()
            ))),
        }
    }

    fn stat(&self, _thread: usize, _file: u32) -> Result<(), LabError> {
        Ok(())
    }
}
