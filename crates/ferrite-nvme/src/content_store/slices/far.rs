//! The second device of a log, which may be away: on another machine, or on a disk that failed.
//!
//! Without it the log gets no changes, and `fsync` waits for the bucket. It is tried again from time to time, on a
//! thread of its own; `rejoin` has the log begin anew on both then.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::time::{Duration, Instant};

use ferrite_blob::device::Device;
use ferrite_checks::ranked::Mutex;
use ferrite_wal::{Joining, Mirror};

use super::lock_order;

/// How long after one trial the next one begins.
const PERIOD: Duration = Duration::from_secs(10);

/// Opens the device.
pub type Reopen = dyn Fn() -> std::result::Result<Arc<dyn Device>, String> + Send + Sync;

pub(super) type Prepared = std::result::Result<Joining, String>;

enum Trial {
    /// The last one ended then, if there was one.
    Ended(Option<Instant>),
    UnderWay(Receiver<Prepared>),
}

/// The second device of a log.
pub(super) struct Far {
    pub(super) mirror: Arc<Mirror>,
    is_there: AtomicBool,
    reopen: Arc<Reopen>,
    trial: Mutex<lock_order::Trial, Trial>,
    /// The last error that the program's log has, which is not repeated for days.
    said: Mutex<lock_order::Said, String>,
}

impl Far {
    pub(super) fn new(mirror: Arc<Mirror>, is_there: bool, reopen: Arc<Reopen>) -> Far {
        Far {
            mirror,
            is_there: AtomicBool::new(is_there),
            reopen,
            trial: Mutex::new(Trial::Ended(None)),
            said: Mutex::new("it was there".into()),
        }
    }

    /// Whether the log may get changes, unless it has failed since.
    pub(super) fn is_there(&self) -> bool {
        self.is_there.load(Ordering::Acquire)
    }

    /// Both devices have the log.
    pub(super) fn note_there(&self) {
        self.is_there.store(true, Ordering::Release);
    }

    /// Whether the program's log should have how a trial has ended: it has not, or had another error last.
    pub(super) fn is_news(&self, error: &str) -> bool {
        std::mem::replace(&mut *self.said.lock(), error.into()) != error
    }

    /// The log gets no changes until both devices are there again.
    pub(super) fn lose(&self) {
        self.is_there.store(false, Ordering::Release);
    }

    /// The device, if a trial has ended. Begins one if it is time for it. Does not wait.
    pub(super) fn poll(&self, owner: [u8; 16]) -> Option<Prepared> {
        let mut trial = self.trial.lock();
        match &*trial {
            Trial::Ended(last) if last.is_some_and(|last| last.elapsed() < PERIOD) => None,
            Trial::Ended(_) => {
                let (done, opened) = sync_channel(1);
                let (mirror, reopen) = (Arc::clone(&self.mirror), Arc::clone(&self.reopen));
                let prepared = move || {
                    let device = reopen()?;
                    mirror.prepare(device, owner).map_err(|error| error.to_string())
                };
                let begun = std::thread::Builder::new()
                    .name("ferrite-nvme-far".into())
                    // Nobody wants it any more if the pool was closed.
                    .spawn(move || drop(done.send(prepared())));
                *trial = match begun {
                    Ok(_) => Trial::UnderWay(opened),
                    Err(_) => Trial::Ended(Some(Instant::now())),
                };
                None
            }
            Trial::UnderWay(opened) => {
                let opened = match opened.try_recv() {
                    Err(TryRecvError::Empty) => return None,
                    Err(TryRecvError::Disconnected) => None,
                    Ok(opened) => Some(opened),
                };
                *trial = Trial::Ended(Some(Instant::now()));
                opened
            }
        }
    }
}
