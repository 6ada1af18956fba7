//! A walk over the directories of a tree.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::folder::{Folder, NAMES_MAX};
use super::place::{Result, Why};

/// Directories within each other that are visited; more are refused.
const DEPTH_MAX: usize = 4096;

/// Calls `visit` with each directory below `top`, and its path from there, before those in it. Ends when it returns
/// false. Has those open that are on the way to the one it visits.
pub(super) fn dirs_below(top: &Folder, visit: &mut dyn FnMut(&Path, &Folder) -> Result<bool>) -> Result<()> {
    let mut way = vec![(dirs_in(top)?, None::<Folder>)];
    let (mut path, mut count) = (PathBuf::new(), 0);
    while let Some((names, folder)) = way.last_mut() {
        let Some(name) = names.pop() else {
            way.pop();
            path.pop();
            continue;
        };
        let below = folder.as_ref().unwrap_or(top).enter(&name)?;
        path.push(&name);
        if !visit(&path, &below)? {
            break;
        }
        let names = dirs_in(&below)?;
        count += names.len();
        if way.len() > DEPTH_MAX || count > NAMES_MAX {
            return Err(Why::new("has too many directories; name a part of it"));
        }
        way.push((names, Some(below)));
    }
    Ok(())
}

/// The names of the directories in a directory, the last one first.
fn dirs_in(folder: &Folder) -> Result<Vec<OsString>> {
    let mut dirs = Vec::new();
    for name in folder.names(NAMES_MAX, &|| Ok(()))? {
        // It may have gone by now.
        if folder.look_for(&name)?.is_some_and(|found| found.is_dir()) {
            dirs.push(name);
        }
    }
    dirs.reverse();
    Ok(dirs)
}
