//! The files of a training job: data sets that some workers read, and checkpoints that some processes write.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::fs::{Advice, fadvise};

use crate::{FAILED, Failure};

/// A data set of shards, and one of small files, both of twice what either side keeps in memory; and the first shards
/// of them, of half of that.
const SHARDS: usize = 16;
const SHARD_BYTES: usize = 8 << 20;
const SMALL_FILES: usize = 1280;
const SMALL_BYTES: usize = 100 << 10;
const KEPT_SHARDS: usize = 4;
/// A checkpoint is written by some, each a file.
const WRITERS: usize = 4;
const CHECKPOINT_BYTES: usize = 16 << 20;
const TRANSFER_BYTES: usize = 1 << 20;

/// The directories of a job on a mount.
pub(super) struct Training {
    dir: PathBuf,
}

impl Training {
    pub(super) fn on(mount: &Path) -> Result<Training, Failure> {
        let dir = mount.join("training");
        std::fs::create_dir(&dir)?;
        Ok(Training { dir })
    }

    /// Writes the data sets, once.
    pub(super) fn prepare(&self) -> Result<(), Failure> {
        for (name, files, bytes) in [("shards", SHARDS, SHARD_BYTES), ("small", SMALL_FILES, SMALL_BYTES)] {
            let dir = self.dir.join(name);
            if dir.exists() {
                continue;
            }
            std::fs::create_dir(&dir)?;
            for number in 0..files {
                std::fs::write(dir.join(number.to_string()), vec![number as u8; bytes])?;
            }
            let files = (0..files).map(|number| File::open(dir.join(number.to_string())));
            files
                .collect::<Result<Vec<_>, _>>()?
                .iter()
                .try_for_each(File::sync_all)?;
        }
        Ok(())
    }

    /// All shards, by so many workers.
    pub(super) fn read_shards(&self, workers: usize) -> Result<(), Failure> {
        self.read("shards", SHARDS, workers)
    }

    /// Those that either side keeps.
    pub(super) fn read_kept(&self, workers: usize) -> Result<(), Failure> {
        self.read("shards", KEPT_SHARDS, workers)
    }

    pub(super) fn read_small(&self, workers: usize) -> Result<(), Failure> {
        self.read("small", SMALL_FILES, workers)
    }

    /// Each worker takes the next file, and reads it in order, not from the kernel's cache.
    fn read(&self, name: &str, files: usize, workers: usize) -> Result<(), Failure> {
        let (dir, next) = (self.dir.join(name), AtomicUsize::new(0));
        at_once(workers, |_| {
            let mut buffer = vec![0; TRANSFER_BYTES];
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= files {
                    return Ok(());
                }
                let mut file = File::open(dir.join(number.to_string()))?;
                fadvise(&file, 0, None, Advice::DontNeed)?;
                while file.read(&mut buffer)? > 0 {}
            }
        })
    }

    /// A file by each writer, and then the rename that shows all of them.
    pub(super) fn write_checkpoint(&self, n: u64) -> Result<(), Failure> {
        let (new, done) = (self.dir.join(format!("{n}.new")), self.dir.join(format!("step-{n}")));
        std::fs::create_dir(&new)?;
        at_once(WRITERS, |writer| {
            let mut options = OpenOptions::new();
            let mut file = options
                .write(true)
                .create_new(true)
                .open(new.join(writer.to_string()))?;
            for _ in 0..CHECKPOINT_BYTES / TRANSFER_BYTES {
                file.write_all(&vec![n as u8; TRANSFER_BYTES])?;
            }
            Ok(file.sync_all()?)
        })?;
        std::fs::rename(&new, &done)?;
        Ok(File::open(&self.dir)?.sync_all()?)
    }
}

/// The same work by some threads, each with its number.
fn at_once(threads: usize, work: impl Fn(usize) -> Result<(), Failure> + Sync) -> Result<(), Failure> {
    std::thread::scope(|scope| {
        let work = &work;
        let running: Vec<_> = (0..threads).map(|thread| scope.spawn(move || work(thread))).collect();
        running.into_iter().try_for_each(|thread| {
            thread
                .join()
                .map_err(|_| Failure::new(FAILED, "a thread panicked"))
                .flatten()
        })
    })
}
