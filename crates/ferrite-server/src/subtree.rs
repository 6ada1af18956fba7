//! The border of an export whose root is not the engine's.
//!
//! A client's node stays valid as long as its inode exists, and a directory can be moved out of the export meanwhile.
//! So a session checks each directory before it uses it the first time: it walks up to the root of the export. The
//! result holds until a rename has moved something across the border ([`Subtree::version`]), which each rename between
//! two directories checks when it is done ([`Borders::renamed`]).
//!
//! Files have no single path up, and are not checked: docs/serving.md describes the consequences.
//!
//! Invariants: a session relies on a result only at the version that it read before the check. An export of a whole
//! engine has no border, and costs nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ferrite_checks::ranked::RwLock;
use ferrite_vfs::{FileSystem, FsError, Ino, ROOT_INO, Result, SYSTEM};

use crate::lock_order;

/// Most levels between a directory and the root of its export. A walk this long takes a few milliseconds.
const LEVELS_MAX: usize = 1 << 14;
/// How often a check is repeated because something moved meanwhile.
const LOOKS_MAX: usize = 4;

/// The border of an export.
#[derive(Debug)]
pub(super) struct Subtree {
    root: Ino,
    version: AtomicU64,
}

impl Subtree {
    fn new(root: Ino) -> Subtree {
        Subtree {
            root,
            version: AtomicU64::new(1),
        }
    }

    /// Whether it is the whole engine.
    pub(super) fn is_whole(&self) -> bool {
        self.root == ROOT_INO
    }

    /// Moves whenever something may have crossed the border. Never 0.
    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Whether a directory is the root, or lies below it, or below one of which `is_known` says that it does.
    ///
    /// # Errors
    /// `Stale` if it lies too deep to tell; those of the engine.
    pub(super) fn contains(&self, fs: &dyn FileSystem, dir: Ino, is_known: impl Fn(Ino) -> bool) -> Result<bool> {
        let mut at = dir;
        for _ in 0..LEVELS_MAX {
            if at == self.root || (at != dir && is_known(at)) {
                return Ok(true);
            }
            if at == ROOT_INO {
                return Ok(false);
            }
            at = fs.parent(SYSTEM, at)?;
        }
        Err(FsError::Stale)
    }

    /// Whether a session may use a directory, and the version at which that held. The caller keeps it pinned.
    ///
    /// # Errors
    /// `Stale` if it lies outside; those of the engine.
    pub(super) fn look(&self, fs: &dyn FileSystem, dir: Ino, is_known: impl Fn(Ino, u64) -> bool) -> Result<u64> {
        for _ in 0..LOOKS_MAX {
            let version = self.version();
            if self.contains(fs, dir, |dir| is_known(dir, version))? {
                return Ok(version);
            }
            // A walk that raced with a rename may have seen a path that never existed.
            if self.version() == version {
                break;
            }
        }
        Err(FsError::Stale)
    }
}

/// The borders of an engine's exports.
#[derive(Default)]
pub(super) struct Borders(RwLock<lock_order::Borders, Vec<Arc<Subtree>>>);

impl Borders {
    /// Adds the border of an export with this root.
    pub(super) fn add(&self, root: Ino) -> Arc<Subtree> {
        let subtree = Arc::new(Subtree::new(root));
        if !subtree.is_whole() {
            self.0.write().push(Arc::clone(&subtree));
        }
        subtree
    }

    /// Checks a rename between two directories, whose request is not answered yet. It runs after the rename: a
    /// concurrent one that moves the directories themselves does its own check, or is seen here.
    pub(super) fn renamed(&self, fs: &dyn FileSystem, from: Ino, to: Ino) {
        if from == to {
            return;
        }
        for subtree in self.0.read().iter() {
            let contains = |dir| subtree.contains(fs, dir, |_| false).ok();
            let (from, to) = (contains(from), contains(to));
            if from.is_none() || from != to {
                subtree.version.fetch_add(1, Ordering::AcqRel);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrite_vfs::RenameMode;
    use ferrite_vfs::memfs::MemFs;

    #[test]
    fn what_crosses_a_border_is_looked_at_again() {
        let fs = MemFs::new();
        let dir = |parent: Ino, name: &[u8]| fs.mkdir(SYSTEM, parent, name, 0o755).unwrap().ino;
        let (inside, outside) = (dir(ROOT_INO, b"inside"), dir(ROOT_INO, b"outside"));
        let (a, b) = (dir(inside, b"a"), dir(inside, b"b"));
        let deep = dir(a, b"deep");
        let borders = Borders::default();
        assert!(borders.add(ROOT_INO).is_whole());
        let subtree = borders.add(inside);
        let first = subtree.version();
        for dir in [inside, a, b, deep] {
            assert_eq!(subtree.look(&fs, dir, |_, _| false), Ok(first));
        }
        assert_eq!(subtree.look(&fs, outside, |_, _| false), Err(FsError::Stale));
        assert_eq!(subtree.look(&fs, ROOT_INO, |_, _| false), Err(FsError::Stale));
        let rename = |from: (Ino, &[u8]), to: (Ino, &[u8])| {
            fs.rename(SYSTEM, from.0, from.1, to.0, to.1, RenameMode::Replace)
                .unwrap();
            borders.renamed(&fs, from.0, to.0);
        };
        rename((a, b"deep"), (b, b"deep"));
        rename((b, b"deep"), (b, b"deeper"));
        assert_eq!(subtree.version(), first, "it stays within");
        rename((inside, b"b"), (outside, b"b"));
        let second = subtree.version();
        assert_ne!(second, first);
        for dir in [b, deep] {
            assert_eq!(subtree.look(&fs, dir, |_, _| false), Err(FsError::Stale));
        }
        rename((outside, b"b"), (a, b"b"));
        assert_ne!(subtree.version(), second, "also when it comes back");
        assert_eq!(subtree.look(&fs, deep, |_, _| false), Ok(subtree.version()));
    }

    #[test]
    fn a_walk_ends_where_something_is_known_or_after_so_many_levels() {
        let fs = MemFs::new();
        let root = fs.mkdir(SYSTEM, ROOT_INO, b"root", 0o755).unwrap().ino;
        let mut at = root;
        let mut levels = vec![];
        for _ in 0..=LEVELS_MAX {
            at = fs.mkdir(SYSTEM, at, b"a", 0o755).unwrap().ino;
            levels.push(at);
        }
        let subtree = Subtree::new(root);
        let ok = levels[LEVELS_MAX - 2];
        assert!(subtree.look(&fs, ok, |_, _| false).is_ok());
        assert_eq!(subtree.look(&fs, at, |_, _| false), Err(FsError::Stale));
        assert!(subtree.look(&fs, at, |dir, _| dir == ok).is_ok());
    }
}
