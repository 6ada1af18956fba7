//! The differences between two trees.

use std::cmp::Ordering;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use ferrite::FileKind;
use serde::Serialize;

use super::super::folder::{Folder, NAMES_MAX};
use super::super::place::{Found, Result, Why};
use super::super::show;
use super::names_in;
use crate::{output, say_json};

/// Directories within each other that are compared; more are refused.
const DEPTH_MAX: usize = 4096;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Change {
    Added,
    Removed,
    Modified,
    Attributes,
}

impl Change {
    fn sign(self) -> &'static str {
        match self {
            Change::Added => "+ ",
            Change::Removed => "- ",
            Change::Modified => "M ",
            Change::Attributes => "m ",
        }
    }

    /// The change between two things of one name, if any.
    fn between(older: &Found, newer: &Found) -> Option<Change> {
        let content = |found: &Found| match found.kind {
            FileKind::Directory => (0, None, 0),
            _ => (found.len_bytes, Some(found.modified), found.rdev),
        };
        let attributes = |found: &Found| (found.mode, found.uid, found.gid);
        match () {
            () if older.kind != newer.kind || content(older) != content(newer) => Some(Change::Modified),
            () if attributes(older) != attributes(newer) => Some(Change::Attributes),
            () => None,
        }
    }
}

#[derive(Serialize)]
struct Row<'r> {
    change: Change,
    path: std::borrow::Cow<'r, str>,
}

/// Two directories of the same path, one of which may be missing.
struct Pair {
    path: PathBuf,
    older: Option<Folder>,
    newer: Option<Folder>,
    /// Directories in them that are still to be compared, the next one last.
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
}

/// Prints the differences, directory by directory, each in the order of names. Has those open that are on the way to
/// the one that is compared.
pub(super) fn compare(older: Folder, newer: Folder, json: bool) -> Result<()> {
    let mut first = Pair {
        path: PathBuf::new(),
        older: Some(older),
        newer: Some(newer),
        names: Vec::new(),
    };
    compare_one(&mut first, json)?;
    let (mut way, mut names) = (vec![first], 0);
    while let Some(pair) = way.last_mut() {
        let Some(name) = pair.names.pop() else {
            way.pop();
            continue;
        };
        let mut next = pair.enter(&name)?;
        compare_one(&mut next, json)?;
        names += next.names.len();
        if way.len() > DEPTH_MAX || names > NAMES_MAX {
            return Err(Why::new("has too many directories to compare; compare parts of it"));
        }
        way.push(next);
        if !output::goes_on() {
            break;
        }
    }
    Ok(())
}

/// Compares the entries of two directories, and takes note of the directories among them.
fn compare_one(pair: &mut Pair, json: bool) -> Result<()> {
    let list = |folder: &Option<Folder>| folder.as_ref().map_or(Ok(Vec::new()), names_in);
    let (older, newer) = (list(&pair.older)?, list(&pair.newer)?);
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
        let find = |folder: &Option<Folder>, is_there: bool| match folder {
            // It may be gone by now.
            Some(folder) if is_there => folder.look_for(&name),
            _ => Ok(None),
        };
        let before = find(&pair.older, order != Ordering::Greater)?;
        let after = find(&pair.newer, order != Ordering::Less)?;
        let change = match (&before, &after) {
            (Some(before), Some(after)) => Change::between(before, after),
            (Some(_), None) => Some(Change::Removed),
            (None, Some(_)) => Some(Change::Added),
            (None, None) => None,
        };
        if let Some(change) = change {
            tell(change, &pair.path.join(&name), json)?;
        }
        if [before, after].iter().flatten().any(Found::is_dir) {
            pair.names.push(name);
        }
    }
    pair.names.reverse();
    Ok(())
}

fn tell(change: Change, path: &Path, json: bool) -> Result<()> {
    if json {
        let path = path.to_string_lossy();
        return say_json(&Row { change, path }).map_err(|failure| Why::new(failure.message));
    }
    let mut line = change.sign().as_bytes().to_vec();
    line.extend(show::name(path.as_os_str()));
    line.push(b'\n');
    output::write(&line);
    Ok(())
}
