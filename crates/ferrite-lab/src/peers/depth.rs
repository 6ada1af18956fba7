//! Many reads or writes under way at once.

use std::sync::Arc;

use ferrite_buffers::{Buffer, Pool};
use ferrite_checks::condvar::Condvar;
use ferrite_vfs::{FsError, OpenFile, Position, SYSTEM};
use parking_lot::Mutex;

use super::page;
use crate::error::LabError;

const BLOCK_BYTES: usize = 4096;

#[derive(Default)]
struct Progress {
    /// Total number of requests to make.
    wanted: u64,
    made: u64,
    done: u64,
    failed: Option<FsError>,
}

struct Shared {
    file: Arc<dyn OpenFile>,
    file_bytes: u64,
    is_write: bool,
    depth: u64,
    pool: Pool,
    progress: Mutex<Progress>,
    changed: Condvar,
}

/// A stream of requests in which each completion makes the next.
pub struct Many(Arc<Shared>);

impl Many {
    /// Requests of 4 KiB at random places of a file, up to `depth` of them under way.
    ///
    /// # Errors
    /// No memory.
    pub fn new(file: &Arc<dyn OpenFile>, file_bytes: u64, is_write: bool, depth: u64) -> Result<Many, LabError> {
        let pool = Pool::new(2 * depth as usize * BLOCK_BYTES);
        Ok(Many(Arc::new(Shared {
            file: Arc::clone(file),
            file_bytes,
            is_write,
            depth,
            pool: pool.ok_or_else(|| LabError::Peer("no memory for the requests' buffers".into()))?,
            progress: Mutex::default(),
            changed: Condvar::new(),
        })))
    }

    /// The pool of its buffers, for callers that prepare for them.
    pub fn pool(&self) -> &Pool {
        &self.0.pool
    }

    /// Makes this many requests, and waits until all are done.
    ///
    /// # Errors
    /// The first error of a request.
    pub fn run(&self, count: u64) -> Result<(), LabError> {
        self.0.progress.lock().wanted += count;
        for _ in 0..self.0.depth {
            let Some(buffer) = self.0.pool.take(BLOCK_BYTES) else {
                break;
            };
            next(&self.0, buffer);
        }
        let mut progress = self.0.progress.lock();
        while progress.done < progress.wanted && progress.failed.is_none() {
            self.0.changed.wait(&mut progress);
        }
        progress.failed.take().map_or(Ok(()), |error| Err(error.into()))
    }
}

/// Makes a request, unless the maximum is under way. The next one reuses its buffer.
fn next(shared: &Arc<Shared>, buffer: Buffer) {
    let number = {
        let mut progress = shared.progress.lock();
        if progress.made >= progress.wanted || progress.made - progress.done >= shared.depth {
            return;
        }
        progress.made += 1;
        progress.made
    };
    let again = Arc::clone(shared);
    let done = move |buffer: Buffer, result: Result<(), FsError>| {
        let mut progress = again.progress.lock();
        progress.done += 1;
        if let Err(error) = result {
            progress.failed = Some(error);
        }
        let is_to_be_told = progress.done == progress.wanted || progress.failed.is_some();
        drop(progress);
        if is_to_be_told {
            again.changed.notify_all();
        }
        next(&again, buffer);
    };
    let at = page(number, shared.file_bytes);
    match shared.is_write {
        true => {
            let done = move |buffer, written: Result<_, _>| done(buffer, written.map(drop));
            shared
                .file
                .submit_write(SYSTEM, Position::At(at).into(), buffer, Box::new(done));
        }
        false => {
            let done = move |buffer, read: Result<_, _>| done(buffer, read.map(drop));
            shared.file.submit_read(SYSTEM, at, buffer, Box::new(done));
        }
    }
}
