//! One replica: a file of a server, and its thread.
//!
//! Invariant: a replica executes jobs in the order in which they were submitted.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;

use ferrite_vfs::locks::{LockKind, LockOwner, LockRequest, Unlock, Wait, wait_for};
use ferrite_vfs::{FileSystem, FsError, XattrMode};

use super::view::{self, View};
use crate::rdma::{RemoteError, RemoteFile};

type Opener = Box<dyn Fn() -> Result<RemoteFile, RemoteError> + Send>;

/// How to open a replica, also again after its server was away.
pub struct Source {
    name: String,
    open: Opener,
}

impl Source {
    /// A replica of this name, for messages, that `open` opens: its own thread calls that, at first, and when the
    /// replica was lost. A writer waits for a replica that goes away as long as its calls keep trying.
    pub fn new(name: impl Into<String>, open: impl Fn() -> Result<RemoteFile, RemoteError> + Send + 'static) -> Source {
        Source {
            name: name.into(),
            open: Box::new(open),
        }
    }
}

/// The state of a replica's thread.
pub(super) struct Side {
    open: Opener,
    file: Option<RemoteFile>,
    /// The owner of the lock that keeps other writers out.
    owner: Option<LockOwner>,
}

/// The state of a replica when it was opened.
pub(super) struct Found {
    pub(super) view: Option<View>,
    pub(super) size: u64,
}

impl Side {
    pub(super) fn file(&self) -> Result<&RemoteFile, RemoteError> {
        self.file.as_ref().ok_or_else(|| FsError::Disconnected.into())
    }

    /// Opens it, unless it is open and works. A writer keeps others out: `WouldBlock` if another one is there.
    pub(super) fn open(&mut self, writable: bool) -> Result<Found, RemoteError> {
        if self.file.as_ref().is_some_and(|file| file.size().is_err()) {
            self.close();
        }
        if self.file.is_none() {
            let file = (self.open)()?;
            if writable {
                let owner = LockOwner::fresh();
                let request = LockRequest::Flock(owner, LockKind::Exclusive);
                let lock = |may_wait, done| file.client().lock(file.ctx(), file.ino(), &request, may_wait, done);
                wait_for(Wait::No, lock, |_| {})?;
                self.owner = Some(owner);
            }
            self.file = Some(file);
        }
        Ok(Found {
            view: self.view()?,
            size: self.file()?.size()?,
        })
    }

    /// The replica's knowledge of its set, also if the lock is lost.
    pub(super) fn view(&self) -> Result<Option<View>, RemoteError> {
        let file = self.file()?;
        match file.client().getxattr(file.ctx(), file.ino(), view::NAME) {
            Ok(bytes) => Ok(View::read(&bytes)),
            Err(FsError::NoAttribute) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Punches a hole in the file; durable.
    pub(super) fn free(&self, offset: u64, len_bytes: u64) -> Result<(), RemoteError> {
        let file = self.file()?;
        file.free(offset, len_bytes)?;
        if !file.limits().is_durable_at_once() {
            file.sync()?;
        }
        Ok(())
    }

    /// Records the replica's knowledge of its set, durably.
    pub(super) fn note(&self, view: &View) -> Result<(), RemoteError> {
        let file = self.file()?;
        // Stale if the lock is lost: then another writer may have recorded something.
        file.size()?;
        let client = file.client();
        client.setxattr(file.ctx(), file.ino(), view::NAME, &view.bytes(), XattrMode::Any)?;
        if !file.limits().is_durable_at_once() {
            file.sync()?;
        }
        Ok(())
    }

    fn close(&mut self) {
        let (Some(file), owner) = (self.file.take(), self.owner.take()) else {
            return;
        };
        if let Some(owner) = owner {
            // If that does not arrive, the lock ends with the session.
            let _ = file.client().unlock(file.ctx(), file.ino(), owner, Unlock::Flock);
        }
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        self.close();
    }
}

type Job = Box<dyn FnOnce(&mut Side) + Send>;

/// The pending result of a job.
pub(super) struct Reply<T>(Receiver<Result<T, RemoteError>>);

impl<T> Reply<T> {
    pub(super) fn wait(self) -> Result<T, RemoteError> {
        let gone = |_| Err(FsError::Io("the thread of this replica has ended".into()).into());
        self.0.recv().unwrap_or_else(gone)
    }

    /// The result, if it is there; `None` if it is still to come.
    pub(super) fn poll(&self) -> Option<Result<T, RemoteError>> {
        match self.0.try_recv() {
            Ok(reply) => Some(reply),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err(FsError::Disconnected.into())),
        }
    }
}

/// See the head of this module.
pub(super) struct Replica {
    pub(super) name: Arc<str>,
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Replica {
    pub(super) fn start(source: Source) -> std::io::Result<Replica> {
        let (jobs, received) = channel::<Job>();
        let mut side = Side {
            open: source.open,
            file: None,
            owner: None,
        };
        let thread = std::thread::Builder::new()
            .name("ferrite-replica".into())
            .spawn(move || {
                received.into_iter().for_each(|job| job(&mut side));
            })?;
        Ok(Replica {
            name: source.name.into(),
            jobs: Some(jobs),
            thread: Some(thread),
        })
    }

    pub(super) fn ask<T: Send + 'static>(
        &self,
        what: impl FnOnce(&mut Side) -> Result<T, RemoteError> + Send + 'static,
    ) -> Reply<T> {
        let (reply, replied) = channel();
        let job: Job = Box::new(move |side| drop(reply.send(what(side))));
        // A thread that is gone has dropped the job, and its result with it.
        self.jobs.as_ref().map(|jobs| jobs.send(job));
        Reply(replied)
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.jobs = None;
        self.thread.take().map(JoinHandle::join);
    }
}
