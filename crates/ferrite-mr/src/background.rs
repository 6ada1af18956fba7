//! The work that packets leave to other threads.
//!
//! Contents: [`Background`], the threads that request pages from engines, and the budget for messages that are
//! assembled. A thread that serves packets never waits for an engine here.

use std::sync::Arc;

use ferrite_roce::memory::Fault;
use ferrite_vfs::workers::Workers;

use crate::faults::{Answer, Wanted};
use crate::file::FileMr;
use crate::sync::{AtomicU64, Ordering};

/// Threads that may wait for engines, and the budget of all messages.
pub(crate) struct Background {
    workers: Workers,
    assembled_bytes: AtomicU64,
    assembled_bytes_max: u64,
}

impl Background {
    /// # Errors
    /// If no threads are available.
    pub(crate) fn new(fault_threads: usize, assembled_bytes_max: u64) -> std::io::Result<Background> {
        Ok(Background {
            workers: Workers::start(fault_threads)?,
            assembled_bytes: AtomicU64::new(0),
            assembled_bytes_max,
        })
    }

    /// The budget of all messages.
    pub(crate) fn assembled_bytes_max(&self) -> u64 {
        self.assembled_bytes_max
    }

    /// The budget that messages hold now.
    pub(crate) fn assembled_bytes(&self) -> u64 {
        self.assembled_bytes.load(Ordering::SeqCst)
    }

    /// Takes budget for a message; false if too little is left.
    pub(crate) fn reserve(&self, len_bytes: u64) -> bool {
        let before = self.assembled_bytes.fetch_add(len_bytes, Ordering::SeqCst);
        let fits = before + len_bytes <= self.assembled_bytes_max;
        if !fits {
            self.release(len_bytes);
        }
        fits
    }

    /// Returns it.
    pub(crate) fn release(&self, len_bytes: u64) {
        self.assembled_bytes.fetch_sub(len_bytes, Ordering::SeqCst);
    }

    /// Requests from the engine all unknown pages of a file from page `from` on, in steps between which other files
    /// have their turns. Gives up when the engine does not answer: packets then request the pages they need.
    pub(crate) fn explore(self: &Arc<Self>, file: &Arc<FileMr>, from: u32) {
        let Some(part) = file.unknown(from) else {
            return;
        };
        let (background, file) = (Arc::downgrade(self), Arc::downgrade(file));
        self.workers.add(move || {
            let Some(file) = file.upgrade() else {
                return;
            };
            // The last owner of this waits for its threads, and so for the engine, unless one of them is that owner.
            if file.explore(part)
                && let Some(background) = background.upgrade()
            {
                background.explore(&file, part.1);
            }
        });
    }

    /// Requests pages from the engine, unless another thread has already. Returns the fault for the packet.
    pub(crate) fn fault(&self, file: &Arc<FileMr>, wanted: Wanted) -> Fault {
        let wait_ns = match file.faults().want(&wanted) {
            Answer::Ask { wait_ns } => {
                let file = Arc::clone(file);
                self.workers.add(move || file.serve(&wanted));
                wait_ns
            }
            Answer::Wait { wait_ns } => wait_ns,
            Answer::Failed(fault) => return fault,
        };
        Fault::NotReady { wait_ns }
    }
}
