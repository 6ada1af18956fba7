//! Pools that servers hand to each other: this server's part.
//!
//! Contents: [`Standby`], one for each such pool, whose thread stands by while another server owns the pool, takes it
//! when it is free, serves it, and hands it over when it is asked to or the server ends.
//!
//! A pool is free when its owner has given it up, or when the owner's lease has ended by the database's clock. Servers
//! that own pools already wait longer, so that the pools of a dead server spread over those that are left.
//!
//! Invariant: the service of a pool ends before the pool is closed, and the pool is closed before its lease is given
//! up.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ferrite::volume::{Candidacy, Tenancy, Volume, VolumeError, VolumeErrorKind};
use ferrite_server::Movable;

use super::check;
use super::plan::Pool;
use crate::served::Volumes;
use crate::{FAILED, Failure, about, complain, say};

/// Between looks at a pool that another server owns.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Between looks at a pool that this server owns: whether it still does, and whether it is asked for.
const CHECK_EVERY: Duration = Duration::from_millis(50);
const ASKED_EVERY: Duration = Duration::from_millis(500);
/// How many looks in a row must find the lease ended before its server gives the pool up: a process that was stopped
/// may just continue, and renew it. Locks on devices keep a successor out that long.
const ENDED_LOOKS: u32 = 3;
/// How much longer a server waits for each pool that it owns, and at most.
const SPREAD: Duration = Duration::from_millis(200);
const SPREAD_MAX: Duration = Duration::from_secs(2);
/// How long a free pool is left to the server for which it was asked, and to others after this one handed it over.
const LEFT_TO_OTHERS: Duration = Duration::from_secs(3);
/// How long to rest after an attempt that failed.
const REST: Duration = Duration::from_secs(1);

/// The state that all pools of this server share.
pub(super) struct Shared {
    ends: AtomicBool,
    /// Pools that this server owns.
    owned: AtomicUsize,
    since: Instant,
    /// All volumes of this server, for its metrics.
    volumes: Volumes,
}

impl Shared {
    pub(super) fn new(volumes: &Volumes) -> Arc<Shared> {
        Arc::new(Shared {
            ends: AtomicBool::new(false),
            owned: AtomicUsize::new(0),
            since: Instant::now(),
            volumes: volumes.clone(),
        })
    }
}

/// A pool that this server owns, counted as long as it does.
struct Opened {
    volume: Arc<dyn Volume>,
    shared: Arc<Shared>,
}

impl Opened {
    fn new(path: &Path, volume: Arc<dyn Volume>, shared: &Arc<Shared>) -> Opened {
        shared.owned.fetch_add(1, Ordering::Relaxed);
        shared.volumes.add(&path.display().to_string(), &volume);
        Opened {
            volume,
            shared: Arc::clone(shared),
        }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.shared.volumes.remove(&self.volume);
        self.shared.owned.fetch_sub(1, Ordering::Relaxed);
    }
}

/// See the head of this module.
pub(super) struct Standby {
    path: PathBuf,
    candidacy: Arc<dyn Candidacy>,
    /// The directories that are exported.
    directories: Vec<Vec<u8>>,
    /// The lines for the user when the pool is served.
    said: Vec<String>,
    /// Where clients reach this server.
    reached_at: String,
    shared: Arc<Shared>,
}

/// A running [`Standby`].
pub(super) struct Handle {
    shared: Arc<Shared>,
    has_begun: mpsc::Receiver<Result<(), Failure>>,
    thread: JoinHandle<Result<(), VolumeError>>,
}

impl Handle {
    /// Waits until the pool is served or stood by for.
    ///
    /// # Errors
    /// It cannot be opened.
    pub(super) fn wait_until_begun(&self) -> Result<(), Failure> {
        // A panic of the thread was reported when it happened.
        self.has_begun.recv().unwrap_or(Ok(()))
    }

    /// Asks for the end of all of this server.
    pub(super) fn ask_to_end(&self) {
        self.shared.ends.store(true, Ordering::Release);
        self.thread.thread().unpark();
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// The pool could not be closed.
    pub(super) fn wait(self) -> Result<(), VolumeError> {
        // A panic of the thread was reported when it happened.
        self.thread.join().unwrap_or(Ok(()))
    }
}

impl Standby {
    /// This server's part in a pool; `None` if the pool belongs to this machine.
    pub(super) fn of(
        pool: &Pool,
        reached_at: &str,
        said: Vec<String>,
        shared: &Arc<Shared>,
    ) -> Result<Option<Standby>, Failure> {
        let path = pool.address.path();
        let options = pool.options.keep_orphans(true);
        let found = pool.address.candidacy(reached_at, options);
        let found = found.map_err(|error| match error.names_volume() {
            true => error.into(),
            false => about(path)(error),
        })?;
        Ok(found.map(|candidacy| Standby {
            path: path.to_path_buf(),
            candidacy,
            directories: pool.exports.iter().map(|export| export.options.path.clone()).collect(),
            said,
            reached_at: reached_at.to_owned(),
            shared: Arc::clone(shared),
        }))
    }

    /// Starts the thread.
    pub(super) fn start(self, movable: Movable) -> Result<Handle, Failure> {
        let shared = Arc::clone(&self.shared);
        let (begun, has_begun) = mpsc::sync_channel(1);
        let thread = std::thread::Builder::new()
            .name("ferrite-standby".into())
            .spawn(move || match self.begin(&movable) {
                Ok(opened) => {
                    let _ = begun.send(Ok(()));
                    self.run(&movable, opened)
                }
                Err(failure) => {
                    let _ = begun.send(Err(failure));
                    Ok(())
                }
            })?;
        Ok(Handle {
            shared,
            has_begun,
            thread,
        })
    }

    fn ends(&self) -> bool {
        self.shared.ends.load(Ordering::Acquire)
    }

    /// The first part: until this server has the pool, or another has. A pool that cannot be opened for another reason
    /// than its owner is an error now, and a message later.
    fn begin(&self, movable: &Movable) -> Result<Option<Opened>, Failure> {
        while !self.ends() {
            let (tenancy, path) = (self.candidacy.look()?, self.path.display());
            if !tenancy.left.is_zero() {
                movable.is_at(&tenancy.address);
                let owner = owner_of(&tenancy);
                say(format_args!("standing by for {path}, which {owner} owns"));
                return Ok(None);
            }
            if !self.may_take(&tenancy) {
                std::thread::park_timeout(CHECK_EVERY);
                continue;
            }
            let opened = self.open(movable)?;
            if opened.is_none() {
                // It may take long, and signals are waited for only afterwards.
                say(format_args!("standing by for {path}, which another process has open"));
            }
            return Ok(opened);
        }
        Ok(None)
    }

    fn run(&self, movable: &Movable, mut opened: Option<Opened>) -> Result<(), VolumeError> {
        // The epoch that this server handed over, and until when that is for others.
        let mut left_to_others: Option<(u64, Instant)> = None;
        let mut complaint = String::new();
        loop {
            let Some(own) = opened.take() else {
                if self.ends() {
                    return Ok(());
                }
                opened = self.take_turn(movable, left_to_others).unwrap_or_else(|failure| {
                    // Once, as long as it stays the same.
                    if complaint != failure.text() {
                        failure.text().clone_into(&mut complaint);
                        complain(format_args!("ferrite: {complaint}"));
                    }
                    std::thread::park_timeout(REST);
                    None
                });
                continue;
            };
            complaint.clear();
            let handed_over = self.own(movable, &own.volume);
            let end = match handed_over {
                Some(_) => self.hand_over(movable, &own.volume),
                None => {
                    self.abandon(movable, &own.volume);
                    Ok(())
                }
            };
            // Before others are waited for: it has locks on devices.
            drop(own);
            if self.ends() {
                return end;
            }
            if let Err(error) = end {
                complain(format_args!("ferrite: {}: {error}", self.path.display()));
            }
            left_to_others = handed_over.map(|epoch| (epoch, Instant::now() + LEFT_TO_OTHERS));
            if handed_over.is_none() {
                std::thread::park_timeout(REST);
            }
        }
    }

    /// Looks once, and takes the pool if it is this server's turn.
    fn take_turn(&self, movable: &Movable, left_to_others: Option<(u64, Instant)>) -> Result<Option<Opened>, Failure> {
        let tenancy = self.candidacy.look()?;
        movable.is_at(if tenancy.is_own { "" } else { &tenancy.address });
        let is_left = left_to_others.is_some_and(|(epoch, until)| tenancy.epoch == epoch && Instant::now() < until);
        let opened = match is_left || !self.may_take(&tenancy) {
            true => None,
            false => self.open(movable)?,
        };
        if opened.is_none() {
            std::thread::park_timeout(LOOK_EVERY);
        }
        Ok(opened)
    }

    /// Whether it is this server's turn to take a pool.
    fn may_take(&self, tenancy: &Tenancy) -> bool {
        if !tenancy.left.is_zero() {
            return false;
        }
        let owned = u32::try_from(self.shared.owned.load(Ordering::Relaxed)).unwrap_or(u32::MAX);
        let spread = SPREAD.saturating_mul(owned).min(SPREAD_MAX);
        // Servers that start together have pools that were free for long.
        let free = tenancy.free.min(self.shared.since.elapsed());
        match tenancy.asked_to.as_deref() {
            Some(to) if to == self.reached_at => true,
            Some(to) if !to.is_empty() => tenancy.free >= LEFT_TO_OTHERS && free >= spread,
            _ => free >= spread,
        }
    }

    /// Opens the pool, and serves it. `None`: another server was faster, or still has a lock on a device.
    fn open(&self, movable: &Movable) -> Result<Option<Opened>, Failure> {
        let path = self.path.display();
        let volume = match self.candidacy.open() {
            Ok(volume) => volume,
            Err(error) if matches!(error.kind(), VolumeErrorKind::InUse { .. }) => {
                tracing::debug!("{path}: {error}");
                return Ok(None);
            }
            Err(error) if error.names_volume() => return Err(error.into()),
            Err(error) => return Err(about(&self.path)(error)),
        };
        let served = self.serve(movable, &volume);
        match served {
            Ok(()) => {
                let warnings = volume.warnings();
                warnings
                    .iter()
                    .for_each(|line| complain(format_args!("ferrite: {path}: {line}")));
                self.said.iter().for_each(|line| say(format_args!("{line}")));
                Ok(Some(Opened::new(&self.path, volume, &self.shared)))
            }
            Err(why) => {
                let _ = volume.close();
                Err(Failure::new(FAILED, format!("{path}: {why}")))
            }
        }
    }

    fn serve(&self, movable: &Movable, volume: &Arc<dyn Volume>) -> Result<(), String> {
        for directory in &self.directories {
            check::directory(&*volume.fs(), directory)?;
        }
        let ownership = volume.ownership().ok_or("it has no owner")?;
        movable.serve(volume.fs(), ownership).map_err(|error| error.to_string())
    }

    /// Watches over a pool that this server owns. Returns the epoch of the tenure when the pool is to be handed over,
    /// and `None` when it is lost.
    fn own(&self, movable: &Movable, volume: &Arc<dyn Volume>) -> Option<u64> {
        let ownership = volume.ownership()?;
        let asked = self.listen();
        let mut ended_looks = 0;
        loop {
            ended_looks = match ownership.left().is_zero() {
                true => ended_looks + 1,
                false => 0,
            };
            let is_over = ended_looks >= ENDED_LOOKS;
            let ended = || is_over.then(|| "its lease has ended, and the database did not renew it in time".to_owned());
            if let Some(why) = ownership.lost().or_else(ended) {
                movable.is_at("");
                complain(format_args!(
                    "ferrite: {}: no longer served here: {why}",
                    self.path.display()
                ));
                ownership.abandon();
                return None;
            }
            if self.ends() {
                return Some(0);
            }
            match asked.load(Ordering::Acquire) {
                0 => {}
                epoch => return Some(epoch),
            }
            std::thread::park_timeout(CHECK_EVERY);
        }
    }

    /// Starts to ask whether this server is to hand the pool over: the epoch appears in the result, which is 0 before.
    /// A thread of its own asks, because a database that does not answer must not keep the owner from seeing that its
    /// lease has ended. It ends when the result is dropped.
    fn listen(&self) -> Arc<AtomicU64> {
        let asked = Arc::new(AtomicU64::new(0));
        let (heard, candidacy, own) = (
            Arc::downgrade(&asked),
            Arc::clone(&self.candidacy),
            self.reached_at.clone(),
        );
        let listen = move || {
            while heard.strong_count() > 0 {
                std::thread::sleep(ASKED_EVERY);
                // A database that cannot be reached asks nothing.
                if let Ok(tenancy) = candidacy.look()
                    && tenancy.is_own
                    && tenancy.asked_to.as_ref().is_some_and(|to| *to != own)
                    && let Some(asked) = heard.upgrade()
                {
                    asked.store(tenancy.epoch, Ordering::Release);
                }
            }
        };
        let thread = std::thread::Builder::new().name("ferrite-asked".into()).spawn(listen);
        if let Err(error) = thread {
            let path = self.path.display();
            complain(format_args!(
                "ferrite: {path}: `ferrite failover` is not heard: no thread can be started: {error}"
            ));
        }
        asked
    }

    /// Ends the service in order. Sessions are kept for the next owner.
    fn hand_over(&self, movable: &Movable, volume: &Arc<dyn Volume>) -> Result<(), VolumeError> {
        let since = Instant::now();
        let stopped = movable.stop();
        // First the pool: sessions keep their open files.
        let closed = volume.close();
        drop(stopped);
        tracing::info!(
            "{}: handed over after {} ms",
            self.path.display(),
            since.elapsed().as_millis()
        );
        closed
    }

    /// Ends the service of a pool that may be another server's by now.
    fn abandon(&self, movable: &Movable, volume: &Arc<dyn Volume>) {
        let stopped = movable.abandon();
        if let Err(error) = volume.close() {
            tracing::debug!("{}: {error}", self.path.display());
        }
        drop(stopped);
    }
}

/// The owner of a pool, for messages.
fn owner_of(tenancy: &Tenancy) -> String {
    match (&*tenancy.owner, &*tenancy.address) {
        ("", _) => "nobody".to_owned(),
        (owner, "") => owner.to_owned(),
        (_, address) => format!("the server at {address}"),
    }
}
