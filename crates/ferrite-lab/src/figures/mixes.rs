//! File-system mixes after filebench's: what HashFS figure 12 and HDPM figures 7 and 8 do to a pool, or to a mapping
//! alone.
//!
//! *fileserver*, a turn: make a file and write it whole, add 16 KiB, read one whole, remove one, stat one. *webproxy*:
//! remove, make and fill one, read five, add to a log. *varmail*: remove one; make one, fill it; read one, add to it;
//! read one. Files have 128, 64 and 32 KiB on average; there are fewer of them than in the papers, so that memory
//! suffices.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ferrite_fs::{Engine, MkfsOptions, MountOptions};
use ferrite_pm::Region;
use ferrite_vfs::{Cred, FileKind, FileSystem, Ino, NewNode, OpenMode, ROOT_INO};
use parking_lot::Mutex;

use crate::alloc::BLOCK_BYTES;
use crate::error::LabError;
use crate::pool::{Pool, touch};
use crate::random::Rng;

/// Mean size of an addition.
const WRITE_BYTES: u64 = 16 << 10;
/// A file is not added to beyond this; it is made anew.
const FILE_BYTES_MAX: u64 = 256 << 10;
/// The same for the log of webproxy.
const LOG_BYTES_MAX: u64 = 1 << 20;

/// A mix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mix {
    Fileserver,
    Webproxy,
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
}

/// What a mix is done to. Files are numbered; number 0 is the log.
pub(crate) trait Store: Sync {
    fn remove(&self, thread: usize, file: u32) -> Result<(), LabError>;
    fn create(&self, thread: usize, file: u32, bytes: u64) -> Result<(), LabError>;
    /// Returns the size then.
    fn append(&self, thread: usize, file: u32, bytes: u64) -> Result<u64, LabError>;
    fn read(&self, thread: usize, file: u32) -> Result<(), LabError>;
    fn stat(&self, thread: usize, file: u32) -> Result<(), LabError>;
}

/// Makes `files` files for each thread.
pub(crate) fn fill(store: &dyn Store, mix: Mix, threads: usize, files: u32) -> Result<(), LabError> {
    let mut rng = Rng(1);
    for thread in 0..threads {
        store.create(thread, 0, 1)?;
        for file in 1..=files {
            store.create(thread, file, 1 + rng.below(2 * mix.mean_bytes()))?;
        }
    }
    Ok(())
}

/// One turn.
fn turn(store: &dyn Store, mix: Mix, thread: usize, files: u32, rng: &mut Rng) -> Result<(), LabError> {
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

/// Turns a second of `threads` threads in one round.
pub(crate) fn rate(
    store: &dyn Store,
    mix: Mix,
    threads: usize,
    files: u32,
    round: Duration,
    seed: u64,
) -> Result<f64, LabError> {
    let (stop, total) = (&AtomicBool::new(false), &AtomicU64::new(0));
    let start = Instant::now();
    let results: Vec<_> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn(move || {
                    let mut rng = Rng(seed ^ (thread as u64) << 32);
                    // At least one turn: a round may be over before the thread has run at all.
                    loop {
                        turn(store, mix, thread, files, &mut rng)?;
                        total.fetch_add(1, Ordering::Relaxed);
                        if stop.load(Ordering::Relaxed) {
                            break;
                        }
                    }
                    Ok::<_, LabError>(())
                })
            })
            .collect();
        std::thread::sleep(round);
        stop.store(true, Ordering::Relaxed);
        workers.into_iter().map(|worker| worker.join()).collect()
    });
    for result in results {
        result.map_err(|_| LabError::Wrong("a thread of the mix panicked".into()))??;
    }
    Ok(total.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64())
}

/// The whole engine.
pub(crate) struct Whole {
    engine: Engine,
    dirs: Vec<Ino>,
    /// For each thread: what is written, and where reads go.
    buffers: Vec<Mutex<(Vec<u8>, Vec<u8>)>>,
}

impl Whole {
    /// A pool in memory that holds the files, half full.
    pub(crate) fn new(
        mkfs: &MkfsOptions,
        mount: &MountOptions,
        mix: Mix,
        threads: usize,
        files: u32,
    ) -> Result<Self, LabError> {
        let bytes = mix.mean_bytes() * u64::from(files) * threads as u64 * 3 + (64 << 20);
        let region = Region::anonymous(bytes.next_multiple_of(2 << 20))?;
        touch(&region);
        ferrite_fs::mkfs(&region, mkfs)?;
        let engine = Engine::mount(region, mount)?;
        let dirs = (0..threads).map(|thread| {
            let made = engine.mkdir(&Cred::root(), ROOT_INO, format!("d{thread}").as_bytes(), 0o755)?;
            Ok(made.ino)
        });
        let dirs = dirs.collect::<Result<_, LabError>>()?;
        let largest = (2 * mix.mean_bytes().max(WRITE_BYTES) + FILE_BYTES_MAX).max(LOG_BYTES_MAX) as usize;
        Ok(Whole {
            engine,
            dirs,
            buffers: (0..threads)
                .map(|_| Mutex::new((vec![7; largest], vec![0; largest])))
                .collect(),
        })
    }

    fn name(file: u32) -> String {
        format!("f{file}")
    }

    fn ino(&self, thread: usize, file: u32) -> Result<Ino, LabError> {
        Ok(self.engine.lookup(self.dirs[thread], Self::name(file).as_bytes())?.ino)
    }
}

impl Store for Whole {
    fn remove(&self, thread: usize, file: u32) -> Result<(), LabError> {
        Ok(self.engine.unlink(self.dirs[thread], Self::name(file).as_bytes())?)
    }

    fn create(&self, thread: usize, file: u32, bytes: u64) -> Result<(), LabError> {
        let node = NewNode {
            kind: FileKind::File,
            mode: 0o644,
            rdev: 0,
        };
        let made = self
            .engine
            .mknod(&Cred::root(), self.dirs[thread], Self::name(file).as_bytes(), &node)?;
        let buffers = self.buffers[thread].lock();
        self.engine
            .open(made.ino, OpenMode::read_write())?
            .append(&buffers.0[..bytes as usize])?;
        Ok(())
    }

    fn append(&self, thread: usize, file: u32, bytes: u64) -> Result<u64, LabError> {
        let open = self.engine.open(self.ino(thread, file)?, OpenMode::read_write())?;
        let (offset, len) = open.append(&self.buffers[thread].lock().0[..bytes as usize])?;
        Ok(offset + len as u64)
    }

    fn read(&self, thread: usize, file: u32) -> Result<(), LabError> {
        let open = self.engine.open(self.ino(thread, file)?, OpenMode::read_write())?;
        open.read_at(0, &mut self.buffers[thread].lock().1)?;
        Ok(())
    }

    fn stat(&self, thread: usize, file: u32) -> Result<(), LabError> {
        self.ino(thread, file).map(drop)
    }
}

/// A mapping alone: what the mix does to it, without names and data.
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

    /// Blocks that the files of a mix may come to need.
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
        self.pool
            .map
            .get_many(ferrite_map::PageId::new(self.ino(thread, file), 0), &mut words, &cache);
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
