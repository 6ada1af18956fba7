//! Changes that find no space, and are retried.
//!
//! A file without a name has its space until the kernel forgets it. The kernel reports that on `/dev/fuse`, and with
//! rings removals may be faster than the reader of those reports. So a change that finds no space while there are such
//! files, after a removal, is retried for a while.
//!
//! Contents: [`Attempt`], a change that can be tried more than once; [`go_on`] and [`when_open`], which retry it;
//! [`RetryTimeout`], for how long.
//!
//! Invariants:
//! * Nothing waits for space on a thread that takes requests, nor with a passage of the freeze barrier: whatever frees
//!   the space may need both.
//! * Each change ends, and gets one reply.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::service::{Response, Service};

/// The longest time that a change is retried while the kernel is about to forget files.
const LONGEST: Duration = Duration::from_secs(10);
/// The same if there may be none: all files without a name may be open, or the engine does not report them.
const LONGEST_BLIND: Duration = Duration::from_millis(500);

/// A change that can be tried more than once.
pub(crate) trait Attempt: Send + 'static {
    /// Tries once. The caller has a passage.
    fn attempt(&mut self, service: &Service);
    /// Whether the last try found no space.
    fn found_no_space(&self) -> bool;
    /// Replies with the result of the last try.
    fn respond(self);
}

/// Whether there was no space, and files without a name may give some back.
pub(crate) fn is_no_space<T>(made: &Response<T>) -> bool {
    matches!(made, Err(refused) if refused.lacks_space)
}

/// How long a change may be retried.
#[derive(Default)]
pub(crate) struct RetryTimeout {
    /// When it first found no space, which may be long after it came: a freeze may have deferred it.
    began: Option<Instant>,
    is_last: bool,
}

impl RetryTimeout {
    /// Whether to retry a change that has just found no space.
    pub(crate) fn lasts(&mut self, service: &Service) -> bool {
        let unnamed = service.unnamed_files();
        let longest = match unnamed {
            Some(unnamed) if service.are_forgotten_soon(unnamed) => LONGEST,
            _ => LONGEST_BLIND,
        };
        if self.is_last || !service.was_removal(longest) || !service.retries().are_served() {
            return false;
        }
        let began = *self.began.get_or_insert_with(Instant::now);
        // The space may have come back since the try.
        self.is_last = unnamed == Some(0) || began.elapsed() > longest;
        true
    }
}

/// Replies to a change that was tried, or queues a retry.
pub(crate) fn go_on(service: Arc<Service>, change: impl Attempt, mut timeout: RetryTimeout) {
    if !change.found_no_space() || !timeout.lasts(&service) {
        return change.respond();
    }
    let retries = Arc::clone(service.retries());
    retries.add(Box::new(move || when_open(service, change, timeout)));
}

/// Tries a change, and replies or retries: at once, or when the mount is thawed.
pub(crate) fn when_open(service: Arc<Service>, mut change: impl Attempt, timeout: RetryTimeout) {
    let freeze_barrier = service.freeze_barrier().clone();
    if let Some(passage) = freeze_barrier.pass() {
        change.attempt(&service);
        drop(passage);
        return go_on(service, change, timeout);
    }
    freeze_barrier.hold_back(move || {
        change.attempt(&service);
        go_on(service, change, timeout);
    });
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::mpsc::{RecvTimeoutError, channel};

    use ferrite_vfs::memfs::MemFs;
    use ferrite_vfs::{Attr, Ctx, FileSystem, FsError, Ino, Layer, ROOT_INO, Result, SYSTEM, SpaceOf, XattrMode};

    use fuser::Errno;

    use super::*;
    use crate::freeze_barrier::FreezeBarrier;
    use crate::options::FuseOptions;

    /// A change as two closures: one tries, the other replies.
    struct Change<T, M, R> {
        made: Response<T>,
        make: M,
        reply: R,
    }

    impl<T, M, R> Change<T, M, R> {
        /// A change with the result of its first try, if any.
        fn new(tried: Option<Response<T>>, make: M, reply: R) -> Change<T, M, R> {
            let made = tried.unwrap_or(Err(Errno::EIO.into()));
            Change { made, make, reply }
        }
    }

    impl<T, M, R> Attempt for Change<T, M, R>
    where
        T: Send + 'static,
        M: Fn(&Service) -> Response<T> + Send + 'static,
        R: FnOnce(Response<T>) + Send + 'static,
    {
        fn attempt(&mut self, service: &Service) {
            self.made = (self.make)(service);
        }

        fn found_no_space(&self) -> bool {
            is_no_space(&self.made)
        }

        fn respond(self) {
            (self.reply)(self.made);
        }
    }

    /// Has no space as long as a file without a name is held, and none for attributes; counts the calls.
    struct Full {
        below: MemFs,
        unnamed: AtomicU64,
        tries: AtomicU64,
    }

    impl Layer for Full {
        fn below(&self) -> &dyn FileSystem {
            &self.below
        }

        fn mkdir(&self, ctx: &Ctx, parent: Ino, name: &[u8], mode: u32) -> Result<Attr> {
            self.tries.fetch_add(1, Ordering::SeqCst);
            match self.unnamed.load(Ordering::SeqCst) {
                0 => self.below.mkdir(ctx, parent, name, mode),
                _ => Err(FsError::NoSpace(SpaceOf::Blocks)),
            }
        }

        fn setxattr(&self, _: &Ctx, _: Ino, _: &[u8], _: &[u8], _: XattrMode) -> Result<()> {
            self.tries.fetch_add(1, Ordering::SeqCst);
            Err(FsError::NoSpace(SpaceOf::Attributes))
        }

        fn unlink(&self, _: &Ctx, _: Ino, _: &[u8]) -> Result<()> {
            self.unnamed.fetch_add(1, Ordering::SeqCst);
            Ok(())
        }

        fn forget(&self, _: &Ctx, _: Ino, count: u64) {
            self.unnamed.fetch_sub(count, Ordering::SeqCst);
        }

        fn unnamed_files(&self) -> Option<u64> {
            Some(self.unnamed.load(Ordering::SeqCst))
        }
    }

    fn full() -> (Arc<Full>, Arc<Service>) {
        let fs = Arc::new(Full {
            below: MemFs::new(),
            unnamed: AtomicU64::new(0),
            tries: AtomicU64::new(0),
        });
        let service = Service::new(
            Arc::clone(&fs) as Arc<dyn FileSystem>,
            FreezeBarrier::default(),
            &FuseOptions::default(),
        );
        (fs, Arc::new(service))
    }

    /// Starts to make a directory; returns a closure that waits for the result.
    fn mkdir(service: &Arc<Service>) -> impl FnOnce() -> bool + use<> {
        let (sender, made) = channel();
        let make = |service: &Service| service.mkdir(SYSTEM, ROOT_INO, b"dir", 0o755);
        let change = Change::new(None, make, move |made: Response<_>| sender.send(made.is_ok()).unwrap());
        when_open(Arc::clone(service), change, RetryTimeout::default());
        move || made.recv_timeout(2 * LONGEST).expect("a response")
    }

    #[test]
    fn space_of_files_that_are_about_to_be_forgotten_is_waited_for() {
        let (_, service) = full();
        assert!(service.unlink(SYSTEM, ROOT_INO, b"file").is_ok());
        let made = mkdir(&service);
        std::thread::sleep(Duration::from_millis(50));
        // A freeze need not wait for it, and defers it.
        service.freeze_barrier().close();
        service.forget(ROOT_INO + 1, 1);
        std::thread::sleep(Duration::from_millis(50));
        service.freeze_barrier().open();
        assert!(made());
    }

    #[test]
    fn space_of_files_that_stay_is_waited_for_a_while_and_only_after_removals() {
        let (fs, service) = full();
        fs.unnamed.store(1, Ordering::SeqCst);
        assert!(!mkdir(&service)());
        assert_eq!(fs.tries.swap(0, Ordering::SeqCst), 1);
        let began = Instant::now();
        assert!(service.unlink(SYSTEM, ROOT_INO, b"file").is_ok());
        // The remaining one is open, as far as known.
        let file = service
            .create(SYSTEM, (ROOT_INO, b"open"), 0o644, libc::O_RDWR)
            .unwrap();
        fs.unnamed.store(1, Ordering::SeqCst);
        assert!(!mkdir(&service)());
        assert!(fs.tries.load(Ordering::SeqCst) > 1);
        // Removals are recorded to the millisecond.
        let least = LONGEST_BLIND - Duration::from_millis(1);
        assert!((least..LONGEST).contains(&began.elapsed()));
        service.release(file.1.fh);
    }

    /// The space for the attributes of a file is its own.
    #[test]
    fn what_no_freed_file_gives_back_is_not_waited_for() {
        let (fs, service) = full();
        assert!(service.unlink(SYSTEM, ROOT_INO, b"file").is_ok());
        let (sender, made) = channel();
        let make = |service: &Service| service.setxattr(SYSTEM, ROOT_INO, b"user.long", b"value", 0);
        let change = Change::new(None, make, move |made: Response<()>| sender.send(made).unwrap());
        when_open(Arc::clone(&service), change, RetryTimeout::default());
        let refused = made.try_recv().expect("a response at once").unwrap_err();
        assert_eq!((refused.errno, fs.tries.load(Ordering::SeqCst)), (Errno::ENOSPC, 1));
    }

    #[test]
    fn a_change_that_waits_when_the_mount_goes_is_let_go() {
        let (_, service) = full();
        assert!(service.unlink(SYSTEM, ROOT_INO, b"file").is_ok());
        let (sender, made) = channel();
        let make = |service: &Service| service.mkdir(SYSTEM, ROOT_INO, b"dir", 0o755);
        let change = Change::new(None, make, move |made: Response<_>| sender.send(made.is_ok()).unwrap());
        when_open(Arc::clone(&service), change, RetryTimeout::default());
        service.end();
        assert_eq!(made.recv_timeout(LONGEST / 2), Err(RecvTimeoutError::Disconnected));
        let waits_on = Arc::downgrade(&service);
        drop(service);
        while waits_on.strong_count() > 0 {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}
