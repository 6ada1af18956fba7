//! Entries that the kernel keeps under the engine's leases, and their recall.
//!
//! Contents: [`LeasedEntries`]: how long the kernel may keep attributes and names, and the names that must be dropped
//! if the engine recalls them. For engines that other mounts use, too, and that know when
//! ([`ferrite_vfs::CacheLeases`]).
//!
//! Invariants:
//! * A name is noted before the engine is asked for a lease on it. So a recall of that lease finds the name here.
//! * A reply that is on its way while its inode is recalled does no harm. Only replies to `GETATTR` carry leases on
//!   attributes: the kernel knows the inode then, and drops attributes that are older than the notification. For a name
//!   it drops the entry itself, so a time that arrives late belongs to nothing.
//! * A name that this mount moves takes along the kernel's entry, so its new place is noted before it moves.
//! * The kernel drops a name under the lock of its directory, which a change of that directory holds. That change may
//!   wait for the server, which may wait for this recall. So leases on names are short, and no thread waits longer
//!   for the kernel than that; and for a while there are none in a directory that others change.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use ferrite_checks::ranked::Mutex;
use ferrite_vfs::{Attr, FileSystem, Ino};

use crate::lock_order;
use crate::notify::Notifications;

/// Longest time that the kernel keeps a name.
const NAME_TTL: Duration = Duration::from_secs(1);
/// After it the kernel keeps a name no longer, even if the reply was slow.
const NAME_GONE: Duration = Duration::from_secs(2);
/// How long there are no leases on names in a directory that another client has changed.
const QUIET: Duration = Duration::from_secs(5);
/// Names at a time.
const NAMES_MAX: usize = 200_000;
/// With more, expired directories are forgotten.
const QUIET_MAX: usize = 10_000;

#[derive(Default)]
struct Names {
    /// By directory; until when the kernel may keep each name.
    reported: HashMap<Ino, HashMap<Box<[u8]>, Instant>>,
    count: usize,
    /// Directories that others change, and until when the kernel may keep none of their names.
    quiet: HashMap<Ino, Instant>,
}

/// See the head of this module.
#[derive(Default)]
pub(crate) struct LeasedEntries {
    names: Mutex<lock_order::Names, Names>,
}

impl LeasedEntries {
    /// How long the kernel may keep attributes that the engine has just reported.
    pub(crate) fn attr(fs: &dyn FileSystem, attr: &Attr) -> Duration {
        fs.cache_leases()
            .map_or(Duration::ZERO, |cache_leases| cache_leases.attr(attr))
    }

    /// How long the kernel may keep a name that the engine has just reported.
    pub(crate) fn name(&self, fs: &dyn FileSystem, dir: Ino, name: &OsStr, found: Option<Ino>) -> Duration {
        match fs.cache_leases() {
            Some(cache_leases) if self.names.lock().note(dir, name.as_bytes(), Instant::now()) => {
                cache_leases.name(dir, name.as_bytes(), found).min(NAME_TTL)
            }
            _ => Duration::ZERO,
        }
    }

    /// Notes a name to which this mount is about to move another. The kernel moves its entry of the old one with it.
    pub(crate) fn moves(&self, dir: Ino, name: &OsStr) {
        self.names.lock().insert(dir, name.as_bytes(), Instant::now());
    }

    /// Makes the kernel drop its entries of an inode; false if it may still keep them. Blocks for at most the time that
    /// a name is kept.
    pub(crate) fn recall(&self, notifications: &Notifications, ino: Ino) -> bool {
        if let Err(error) = notifications.attributes_changed(ino) {
            tracing::debug!("the kernel cannot be told of a change: {error}");
            return false;
        }
        let Some((names, gone)) = self.names.lock().take(ino, Instant::now()) else {
            return true;
        };
        let notifications = notifications.clone();
        let (done, is_done) = channel();
        // It may have to wait for a change of the directory that waits for this.
        let dropping = std::thread::Builder::new().name("ferrite-names".into()).spawn(move || {
            let dropped = names.iter().all(|name| notifications.name_changed(ino, name).is_ok());
            // The receiver is gone if it took too long.
            let _ = done.send(dropped);
        });
        let left = gone.saturating_duration_since(Instant::now());
        match dropping {
            Ok(_) if is_done.recv_timeout(left) == Ok(true) => true,
            _ => {
                std::thread::sleep(gone.saturating_duration_since(Instant::now()));
                true
            }
        }
    }
}

impl Names {
    /// Notes a name about to be reported; false if the kernel must not keep it.
    fn note(&mut self, dir: Ino, name: &[u8], now: Instant) -> bool {
        if let Some(&until) = self.quiet.get(&dir) {
            if until > now {
                return false;
            }
            self.quiet.remove(&dir);
        }
        if self.count >= NAMES_MAX {
            self.reported.retain(|_, names| {
                names.retain(|_, gone| *gone > now);
                !names.is_empty()
            });
            self.quiet.retain(|_, until| *until > now);
            self.count = self.reported.values().map(HashMap::len).sum();
            if self.count >= NAMES_MAX {
                return false;
            }
        }
        self.insert(dir, name, now);
        true
    }

    fn insert(&mut self, dir: Ino, name: &[u8], now: Instant) {
        let names = self.reported.entry(dir).or_default();
        self.count += usize::from(names.insert(name.into(), now + NAME_GONE).is_none());
    }

    /// Takes the names of a directory that the kernel may keep, and until when; `None` if it has none. If any were
    /// noted, the kernel may keep no new ones for a while.
    fn take(&mut self, dir: Ino, now: Instant) -> Option<(Vec<Box<[u8]>>, Instant)> {
        let names = self.reported.remove(&dir)?;
        self.count -= names.len();
        if self.quiet.len() >= QUIET_MAX {
            self.quiet.retain(|_, until| *until > now);
        }
        self.quiet.insert(dir, now + QUIET);
        let names: Vec<_> = names.into_iter().filter(|(_, gone)| *gone > now).collect();
        let last = names.iter().map(|(_, gone)| *gone).max()?;
        Some((names.into_iter().map(|(name, _)| name).collect(), last))
    }
}

/// Lets the engine recall its leases from the kernel.
pub(crate) fn watch(fs: &dyn FileSystem, leased: &Arc<LeasedEntries>, notifications: Notifications) {
    if let Some(cache_leases) = fs.cache_leases() {
        let leased = Arc::clone(leased);
        cache_leases.watch(Box::new(move |ino| leased.recall(&notifications, ino)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_once_and_none_is_told_of_a_directory_that_others_change() {
        let (mut names, start) = (Names::default(), Instant::now());
        assert!(names.note(7, b"a", start) && names.note(7, b"b", start) && names.note(7, b"a", start));
        assert_eq!(names.count, 2);
        let (mut taken, gone) = names.take(7, start).unwrap();
        taken.sort();
        assert_eq!(taken, [Box::from(*b"a"), Box::from(*b"b")] as [Box<[u8]>; 2]);
        assert_eq!((gone, names.count), (start + NAME_GONE, 0));
        assert!(!names.note(7, b"a", start) && names.note(8, b"a", start));
        assert!(
            names.take(7, start).is_none(),
            "there is nothing that it could have kept"
        );
        assert!(names.note(7, b"a", start + QUIET));
        assert!(names.take(7, start + QUIET + NAME_GONE).is_none(), "it is over");
        // A moved name is kept, whoever else changes the directory.
        names.insert(7, b"moved", start + QUIET + NAME_GONE);
        assert!(names.take(7, start + QUIET + NAME_GONE).is_some());
    }

    #[test]
    fn names_are_bounded() {
        let (mut names, start) = (Names::default(), Instant::now());
        for n in 0..NAMES_MAX {
            assert!(names.note(n as u64 % 100, format!("{n}").as_bytes(), start));
        }
        assert!(!names.note(1, b"one more", start));
        assert!(names.note(1, b"one more", start + NAME_GONE) && names.count == 1);
    }
}
