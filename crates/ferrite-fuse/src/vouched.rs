//! What the kernel keeps as long as the engine vouches for it, and how that is taken back.
//!
//! Contents: [`Vouched`]: for how long the kernel is told to keep attributes and names, and the names that must
//! be dropped if the engine takes them back. For engines that others use, too, and that know when
//! ([`ferrite_vfs::Vouching`]).
//!
//! Invariants:
//! * A name is noted before the engine is asked whether it vouches for it. So what is taken back after it has vouched
//!   is found here.
//! * A reply that is on its way while its inode is taken back does no harm. Attributes are vouched for in answers to
//!   `GETATTR` only: the kernel knows the inode then, and gives attributes up that are older than the notification. For
//!   a name it drops the entry itself, so that a time which comes late belongs to nothing.
//! * A name that this mount moves takes along what the kernel keeps of it, so its new place is noted before it moves.
//! * The kernel drops a name under the lock of its directory, which a change of that directory has. That change may
//!   wait for the server, and there for what is being taken back. So names are vouched for briefly, and nobody waits
//!   longer for the kernel than that; and in a directory that others change none is, for a while.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use ferrite_vfs::{Attr, FileSystem, Ino};
use parking_lot::Mutex;

use crate::notify::Notifications;

/// Longest time that a name is kept.
const NAME_TTL: Duration = Duration::from_secs(1);
/// After it the kernel does not keep a name any more, also if the reply took its time.
const NAME_GONE: Duration = Duration::from_secs(2);
/// How long no names of a directory are vouched for that somebody else has changed.
const QUIET: Duration = Duration::from_secs(5);
/// Names at a time.
const NAMES_MAX: usize = 200_000;
/// With more, those directories are forgotten whose time is over.
const QUIET_MAX: usize = 10_000;

#[derive(Default)]
struct Names {
    /// By directory; until when the kernel may keep each.
    told: HashMap<Ino, HashMap<Box<[u8]>, Instant>>,
    count: usize,
    /// Directories that others change, and until when nothing is told of them.
    quiet: HashMap<Ino, Instant>,
}

/// See the head of this module.
#[derive(Default)]
pub(crate) struct Vouched {
    names: Mutex<Names>,
}

impl Vouched {
    /// For how long attributes may be kept that the engine has just told.
    pub(crate) fn attr(fs: &dyn FileSystem, attr: &Attr) -> Duration {
        fs.vouching().map_or(Duration::ZERO, |vouching| vouching.attr(attr))
    }

    /// For how long may be kept what the engine has just told of a name.
    pub(crate) fn name(&self, fs: &dyn FileSystem, dir: Ino, name: &OsStr, found: Option<Ino>) -> Duration {
        match fs.vouching() {
            Some(vouching) if self.names.lock().note(dir, name.as_bytes(), Instant::now()) => {
                vouching.name(dir, name.as_bytes(), found).min(NAME_TTL)
            }
            _ => Duration::ZERO,
        }
    }

    /// A name is about to be moved there by this mount. The kernel moves with it what it keeps of the old one.
    pub(crate) fn moves(&self, dir: Ino, name: &OsStr) {
        self.names.lock().insert(dir, name.as_bytes(), Instant::now());
    }

    /// Has the kernel drop what it keeps of an inode; false if it may keep it still. Blocks as long as a name is kept
    /// at most.
    pub(crate) fn take_back(&self, notifications: &Notifications, ino: Ino) -> bool {
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
            // Nobody listens any more if it took too long.
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
    /// Notes a name that is about to be told; false if it must not be kept.
    fn note(&mut self, dir: Ino, name: &[u8], now: Instant) -> bool {
        if let Some(&until) = self.quiet.get(&dir) {
            if until > now {
                return false;
            }
            self.quiet.remove(&dir);
        }
        if self.count >= NAMES_MAX {
            self.told.retain(|_, names| {
                names.retain(|_, gone| *gone > now);
                !names.is_empty()
            });
            self.quiet.retain(|_, until| *until > now);
            self.count = self.told.values().map(HashMap::len).sum();
            if self.count >= NAMES_MAX {
                return false;
            }
        }
        self.insert(dir, name, now);
        true
    }

    fn insert(&mut self, dir: Ino, name: &[u8], now: Instant) {
        let names = self.told.entry(dir).or_default();
        self.count += usize::from(names.insert(name.into(), now + NAME_GONE).is_none());
    }

    /// Takes the names of a directory that the kernel may keep, and until when; `None` if there are none. From now on
    /// nothing is told of it for a while.
    fn take(&mut self, dir: Ino, now: Instant) -> Option<(Vec<Box<[u8]>>, Instant)> {
        let names = self.told.remove(&dir)?;
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

/// Has the engine take back from the kernel what it has vouched for.
pub(crate) fn watch(fs: &dyn FileSystem, vouched: &Arc<Vouched>, notifications: Notifications) {
    if let Some(vouching) = fs.vouching() {
        let vouched = Arc::clone(vouched);
        vouching.watch(Box::new(move |ino| vouched.take_back(&notifications, ino)));
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
        // What is moved there is kept, whoever else changes the directory.
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
