//! `ferrite warm`: files are read, so that their content is near when somebody wants it.

use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};

use super::{FAILED, Outcome, complain, progress, say, size};

/// Bytes of one read: a slice of a bucket.
const READ_BYTES: usize = 4 << 20;
/// Files that were found and wait to be read.
const WAITING_MAX: usize = 1000;

/// Read files, so that their content is near when somebody wants it
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Content in S3 is then in memory, and, unless it was there before, on the disk of `disk_cache` if the pool has one, as \
far as there is space and the disk is fast enough. Content elsewhere is in the kernel's memory. Directories are read \
with all that is below them on the same mount. Symbolic links are not followed.

Example:
  ferrite warm -j 16 /mnt/training")]
pub(crate) struct Warm {
    /// Files and directories
    #[arg(required = true, value_hint = clap::ValueHint::AnyPath)]
    paths: Vec<PathBuf>,
    /// Files that are read at once
    #[arg(short, long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    jobs: u16,
    /// No progress bar, and no summary
    #[arg(short, long)]
    quiet: bool,
}

/// Files that were read.
#[derive(Default)]
struct Done {
    files: AtomicU64,
    bytes: AtomicU64,
    failed: AtomicU64,
}

impl Done {
    fn fail(&self, path: &Path, error: &std::io::Error) {
        self.failed.fetch_add(1, Ordering::Relaxed);
        complain(format!("{}: {error}", path.display()));
    }
}

impl Warm {
    pub(crate) fn run(self) -> Outcome {
        let (done, bar) = (Done::default(), progress::Bytes::new(self.quiet));
        let (found, files) = sync_channel(WAITING_MAX);
        let files = Mutex::new(files);
        std::thread::scope(|scope| {
            for _ in 0..self.jobs {
                scope.spawn(|| read_all(&files, &done, &bar));
            }
            for path in &self.paths {
                match path.symlink_metadata() {
                    Ok(of) => walk(path, &of, of.dev(), &done, &mut |path, bytes| {
                        bar.expect(bytes);
                        // Its readers end after it.
                        let _ = found.send(path);
                    }),
                    Err(error) => done.fail(path, &error),
                }
            }
            drop(found);
        });
        drop(bar);
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        if !self.quiet {
            let (bytes, files) = (size::human(get(&done.bytes)), get(&done.files));
            let s = if files == 1 { "" } else { "s" };
            say(format!("{bytes} of {files} file{s} read"));
        }
        Ok(if get(&done.failed) > 0 { FAILED } else { 0 })
    }
}

/// All files at a path, on one file system.
fn walk(path: &Path, of: &Metadata, device: u64, done: &Done, visit: &mut dyn FnMut(PathBuf, u64)) {
    if of.dev() != device {
        return;
    }
    if of.is_file() {
        visit(path.to_owned(), of.len());
    }
    if !of.is_dir() {
        return;
    }
    let entries = match std::fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) => return done.fail(path, &error),
    };
    for entry in entries {
        let found = entry.and_then(|entry| Ok((entry.path(), entry.metadata()?)));
        match found {
            Ok((path, of)) => walk(&path, &of, device, done, visit),
            Err(error) => done.fail(path, &error),
        }
    }
}

fn read_all(files: &Mutex<Receiver<PathBuf>>, done: &Done, bar: &progress::Bytes) {
    let mut buffer = vec![0; READ_BYTES];
    let next = || files.lock().ok()?.recv().ok();
    while let Some(path) = next() {
        match read(&path, &mut buffer, bar) {
            Ok(bytes) => {
                done.files.fetch_add(1, Ordering::Relaxed);
                done.bytes.fetch_add(bytes, Ordering::Relaxed);
            }
            Err(error) => bar.suspend(|| done.fail(&path, &error)),
        }
    }
}

fn read(path: &Path, buffer: &mut [u8], bar: &progress::Bytes) -> std::io::Result<u64> {
    let mut file = File::open(path)?;
    let mut all = 0;
    loop {
        let count = file.read(buffer)? as u64;
        if count == 0 {
            return Ok(all);
        }
        all += count;
        bar.advance(count);
    }
}
