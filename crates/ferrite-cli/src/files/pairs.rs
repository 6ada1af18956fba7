//! Two trees side by side: an older and a newer state of one directory.
//!
//! Invariants: entries of a directory are visited in the order of their names, before the directories among them are
//! entered; directories on the way to the current one are open, and no others.

use std::cmp::Ordering;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use ferrite::FileKind;

use super::folder::{Folder, NAMES_MAX};
use super::place::{Found, Result, Why};

/// Directories within each other that are compared; more are refused.
const DEPTH_MAX: usize = 4096;

/// How something differs from what had its name before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Change {
    Added,
    Removed,
    Modified,
    Attributes,
}

impl Change {
    /// The change between two things of one name, if any. Files of the same size and time of modification count as
    /// unchanged.
    pub(super) fn between(older: Option<&Found>, newer: Option<&Found>) -> Option<Change> {
        let content = |found: &Found| match found.kind {
            FileKind::Directory => (0, None, 0),
            _ => (found.len_bytes, Some(found.modified), found.rdev),
        };
        let attributes = |found: &Found| (found.mode, found.uid, found.gid);
        match (older, newer) {
            (None, None) => None,
            (Some(_), None) => Some(Change::Removed),
            (None, Some(_)) => Some(Change::Added),
            (Some(older), Some(newer)) if older.kind != newer.kind || content(older) != content(newer) => {
                Some(Change::Modified)
            }
            (Some(older), Some(newer)) if attributes(older) != attributes(newer) => Some(Change::Attributes),
            _ => None,
        }
    }
}

/// An entry that is in one of two directories, or in both.
pub(super) struct Entry<'e> {
    /// Below the two trees.
    pub(super) path: &'e Path,
    pub(super) name: &'e OsStr,
    pub(super) older: Option<(&'e Folder, Found)>,
    pub(super) newer: Option<(&'e Folder, Found)>,
}

impl Entry<'_> {
    pub(super) fn found_before(&self) -> Option<&Found> {
        self.older.as_ref().map(|(_, found)| found)
    }

    pub(super) fn found_after(&self) -> Option<&Found> {
        self.newer.as_ref().map(|(_, found)| found)
    }
}

/// The use of the entries of two trees.
pub(super) trait Visit {
    /// Returns whether a directory of this name is entered.
    fn entry(&mut self, entry: &Entry<'_>) -> Result<bool>;

    /// All below two directories has been visited; `path` is empty for the tops.
    fn leave(&mut self, path: &Path, older: Option<&Folder>, newer: Option<&Folder>) -> Result<()>;

    /// Whether nothing changes in the two trees meanwhile: a name that is gone is an error then.
    fn is_fixed(&self) -> bool {
        false
    }

    /// Whether the rest need not be visited.
    fn is_done(&self) -> bool {
        false
    }
}

/// Two directories of the same path, one of which may be missing.
struct Pair {
    path: PathBuf,
    older: Option<Folder>,
    newer: Option<Folder>,
    /// Directories in them that are still to be entered, the next one last.
    names: Vec<OsString>,
}

impl Pair {
    /// The two directories of a name in these.
    fn enter(&self, name: &OsStr) -> Result<Pair> {
        let open = |folder: &Option<Folder>| match folder {
            Some(folder) if folder.look_for(name)?.is_some_and(|found| found.is_dir()) => folder.enter(name).map(Some),
            _ => Ok(None),
        };
        Ok(Pair {
            path: self.path.join(name),
            older: open(&self.older)?,
            newer: open(&self.newer)?,
            names: Vec::new(),
        })
    }

    /// Visits the entries, and takes note of the directories among them that are to be entered.
    fn visit(&mut self, visit: &mut dyn Visit) -> Result<()> {
        let list = |folder: &Option<Folder>| match folder {
            Some(folder) => folder.names(NAMES_MAX, &|| Ok(())),
            None => Ok(Vec::new()),
        };
        let (older, newer) = (list(&self.older)?, list(&self.newer)?);
        let (mut older, mut newer) = (older.into_iter().peekable(), newer.into_iter().peekable());
        loop {
            let order = match (older.peek(), newer.peek()) {
                (Some(older), Some(newer)) => older.cmp(newer),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (None, None) => break,
            };
            let name = match order {
                Ordering::Less => older.next(),
                Ordering::Equal => newer.next().and(older.next()),
                Ordering::Greater => newer.next(),
            };
            let Some(name) = name else { break };
            let is_fixed = visit.is_fixed();
            let find = |folder: Option<&Folder>, is_there: bool| match folder {
                Some(folder) if is_there && is_fixed => folder.look(&name).map(Some),
                // It may have gone by now.
                Some(folder) if is_there => folder.look_for(&name),
                _ => Ok(None),
            };
            let before = find(self.older.as_ref(), order != Ordering::Greater)?;
            let after = find(self.newer.as_ref(), order != Ordering::Less)?;
            let path = self.path.join(&name);
            let entry = Entry {
                path: &path,
                name: &name,
                older: self.older.as_ref().zip(before),
                newer: self.newer.as_ref().zip(after),
            };
            let is_entered = visit.entry(&entry)?;
            let found = [entry.found_before(), entry.found_after()];
            if is_entered && found.into_iter().flatten().any(Found::is_dir) {
                self.names.push(name);
            }
        }
        self.names.reverse();
        Ok(())
    }
}

/// Visits the entries of two trees.
///
/// # Errors
/// Those of the visit, which end it, and of the directories, after whose path they are called; if there are too many
/// directories.
pub(super) fn walk(older: Option<Folder>, newer: Folder, visit: &mut dyn Visit) -> Result<()> {
    let mut first = Pair {
        path: PathBuf::new(),
        older,
        newer: Some(newer),
        names: Vec::new(),
    };
    first.visit(visit)?;
    let (mut way, mut names) = (vec![first], 0);
    while let Some(pair) = way.last_mut() {
        if visit.is_done() {
            break;
        }
        let Some(name) = pair.names.pop() else {
            visit.leave(&pair.path, pair.older.as_ref(), pair.newer.as_ref())?;
            way.pop();
            continue;
        };
        let mut next = pair.enter(&name)?;
        next.visit(visit)?;
        names += next.names.len();
        if way.len() > DEPTH_MAX || names > NAMES_MAX {
            return Err(Why::new("has too many directories to compare; compare parts of it"));
        }
        way.push(next);
    }
    Ok(())
}
