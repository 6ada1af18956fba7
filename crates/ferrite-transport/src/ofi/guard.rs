//! Locks over shm that a killed client has left locked, as a server finds them.
//!
//! Contents: [`Guard`], the locks of one of a server's endpoints and of its clients, and the thread that checks all
//! guards while there are clients. A thread of the server that meets such a lock waits in libfabric, with all its
//! connections, so another thread has to notice.
//!
//! A client's own lock is freed when its process is dead: only this process uses it then. The server's is taken by all
//! its clients, and does not name its holder. It is held for microseconds. So it is freed if it was locked at every
//! check for [`HELD_BY_THE_DEAD`], a client is dead, and no living one is kept from running (stopped, or waiting for a
//! disk), which might hold it.
//!
//! The dead client may have left the queue behind the lock with one entry more than it says. So the endpoint is
//! *spoilt*: its connections end, and it is closed; clients connect again, to another.
//!
//! Invariant: no lock is freed as long as all clients live.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use ferrite_checks::ranked::Mutex;
use rustix::process::{Pid, getpid};

use super::PeerId;
use super::stale_locks::{Page, is_dead};
use crate::lock_order;
use crate::stale_segments;

/// How often the locks are checked.
const TICK: Duration = Duration::from_millis(100);
/// No running thread holds a lock of the server that was never seen free for so long.
const HELD_BY_THE_DEAD: Duration = Duration::from_secs(2);
/// The same for a lock of a dead client, which only a thread of this process may still take.
const HELD_AT_DEATH: Duration = Duration::from_millis(300);
/// How long a client that has left counts: it may have died with the lock, and its connection ended first.
const REMEMBERED: Duration = Duration::from_secs(30);

struct Peer {
    id: PeerId,
    process: Pid,
    page: Page,
    /// Since when its lock was never seen free, after its death.
    locked: Option<Instant>,
    left: Option<Instant>,
}

struct Watched {
    own: Page,
    is_spoilt: AtomicBool,
    peers: Mutex<lock_order::Peers, Vec<Peer>>,
    /// Since when the endpoint's own lock was never seen free.
    locked: Mutex<lock_order::Locked, Option<Instant>>,
}

/// See the head of this module.
pub(crate) struct Guard(Arc<Watched>);

#[derive(Default)]
struct Watch {
    guards: Vec<Weak<Watched>>,
    is_running: bool,
}

static WATCH: Mutex<lock_order::Watch, Watch> = Mutex::new(Watch {
    guards: Vec::new(),
    is_running: false,
});

impl Guard {
    /// The guard of the endpoint of this process with this name; `None` if its memory does not have the known layout.
    pub(crate) fn of(own: &[u8]) -> Option<Guard> {
        let watched = Arc::new(Watched {
            own: Page::of(own, getpid())?,
            is_spoilt: AtomicBool::new(false),
            peers: Mutex::default(),
            locked: Mutex::default(),
        });
        WATCH.lock().guards.push(Arc::downgrade(&watched));
        Some(Guard(watched))
    }

    /// Adds a client of the endpoint. A client whose process cannot be seen dead from here is not watched.
    pub(crate) fn add(&self, id: PeerId, name: &[u8]) {
        let process = stale_segments::process_of(name).filter(|&process| process != getpid());
        let Some((process, page)) = process.and_then(|process| Some((process, Page::of(name, process)?))) else {
            return;
        };
        self.0.peers.lock().push(Peer {
            id,
            process,
            page,
            locked: None,
            left: None,
        });
        let mut watch = WATCH.lock();
        if !watch.is_running {
            let started = std::thread::Builder::new().name("ferrite-shm".into()).spawn(run);
            watch.is_running = started.is_ok();
            if let Err(error) = started {
                tracing::warn!("clients that are killed are not noticed by who waits for them over shm: {error}");
            }
        }
    }

    /// Marks a client that the endpoint no longer knows as left.
    pub(crate) fn remove(&self, id: PeerId) {
        let mut peers = self.0.peers.lock();
        if let Some(peer) = peers.iter_mut().find(|peer| peer.id == id && peer.left.is_none()) {
            peer.left = Some(Instant::now());
        }
    }

    /// Whether the endpoint must not be used any more.
    pub(crate) fn is_spoilt(&self) -> bool {
        self.0.is_spoilt.load(Ordering::Acquire)
    }
}

/// Checks all guards as long as one has clients.
fn run() {
    loop {
        std::thread::sleep(TICK);
        let guards: Vec<Arc<Watched>> = {
            let mut watch = WATCH.lock();
            watch.guards.retain(|guard| guard.strong_count() > 0);
            let guards: Vec<_> = watch.guards.iter().filter_map(Weak::upgrade).collect();
            if guards.iter().all(|guard| guard.peers.lock().is_empty()) {
                watch.is_running = false;
                return;
            }
            guards
        };
        guards.iter().for_each(|guard| guard.check());
    }
}

impl Watched {
    fn check(&self) {
        let mut peers = self.peers.lock();
        peers.retain(|peer| peer.left.is_none_or(|left| left.elapsed() < REMEMBERED));
        for peer in &mut *peers {
            let is_held = peer.left.is_none() && is_dead(peer.process) && peer.page.is_locked();
            if has_lasted(&mut peer.locked, is_held, HELD_AT_DEATH) {
                tracing::warn!(
                    "process {} died with its own lock over shm, which is freed",
                    peer.process.as_raw_nonzero()
                );
                peer.page.unlock();
            }
        }
        let mut locked = self.locked.lock();
        let is_held = self.own.is_locked();
        if !has_lasted(&mut locked, is_held, HELD_BY_THE_DEAD) {
            return;
        }
        let (dead, alive): (Vec<&Peer>, Vec<&Peer>) = peers.iter().partition(|peer| is_dead(peer.process));
        let Some(dead) = dead.first() else { return };
        if let Some(kept) = alive.iter().find(|peer| is_kept_from_running(peer.process)) {
            tracing::warn!(
                "a lock over shm is held; process {} is stopped, and may have it",
                kept.process.as_raw_nonzero()
            );
            return;
        }
        tracing::warn!(
            "a process, probably {}, died with a lock over shm, which is freed; clients over shm connect again",
            dead.process.as_raw_nonzero()
        );
        *locked = None;
        self.is_spoilt.store(true, Ordering::Release);
        self.own.unlock();
    }
}

/// Whether the condition that `is_so` reports has held at every check for so long.
fn has_lasted(since: &mut Option<Instant>, is_so: bool, long: Duration) -> bool {
    match is_so {
        true => since.get_or_insert_with(Instant::now).elapsed() >= long,
        false => {
            *since = None;
            false
        }
    }
}

/// Whether a thread of a process is stopped, traced or in an uninterruptible wait.
fn is_kept_from_running(process: Pid) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", process.as_raw_nonzero()));
    tasks.into_iter().flatten().flatten().any(|task| {
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
        matches!(state, Some('T' | 't' | 'D'))
    })
}
