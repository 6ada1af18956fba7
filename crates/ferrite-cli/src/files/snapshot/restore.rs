//! Giving a directory the content of one of its snapshots.
//!
//! The snapshot is cloned to the work directory [`WORK`] within the directory, and each of its entries changes places
//! with the entry of that name; entries that the snapshot does not have move to the work directory, which is then
//! removed. Invariant: at any instant each name is that of the old entry or of the restored one, whole; a restore that
//! was interrupted can be made again.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use rustix::io::Errno;

use super::super::clone::clone_to;
use super::super::folder::{Folder, Kept, NAMES_MAX};
use super::super::place::{Place, Result, Why};
use super::super::send::progress::forget_all;
use super::{SNAPSHOTS, names_in};

const WORK: &str = ".ferrite-restore";
/// Directories within each other that are looked at; more are refused.
const DEPTH_MAX: usize = 4096;

/// See the head of this module. `dir` is the directory at `place`.
pub(super) fn restore(dir: &Folder, place: &Place, name: &OsStr) -> Result<()> {
    let work_name = OsStr::new(WORK);
    let at_work = place.join(work_name);
    // Of a restore that was interrupted.
    if dir.look_for(work_name)?.is_some() {
        dir.remove_tree(work_name)?;
    }
    clone_to(&place.join(OsStr::new(SNAPSHOTS)).join(name), &at_work)?;
    let work = dir.enter(work_name)?;
    let restored = work.itself()?;
    let now: BTreeSet<OsString> = names_in(dir)?.into_iter().filter(|name| name != work_name).collect();
    let then: BTreeSet<OsString> = names_in(&work)?.into_iter().filter(|name| name != work_name).collect();
    for name in now.union(&then) {
        match (now.contains(name), then.contains(name)) {
            (true, true) => work.exchange(name, dir, name)?,
            (true, false) => dir.rename_to(name, &work, name)?,
            _ => work.rename_to(name, dir, name)?,
        }
    }
    let xattrs = work.thing().xattrs()?;
    dir.thing()
        .set_all(&restored, &xattrs, |_| false, Kept { privileges: true })?;
    forget_all(dir)?;
    drop(work);
    dir.remove_tree(work_name)?;
    // The removal has changed them.
    dir.thing().set_times(&restored)
}

/// Refuses a tree in which other directories have snapshots: they would be lost with what the restore replaces.
pub(super) fn check_has_no_snapshots_below(dir: &Folder) -> Result<()> {
    let mut way = vec![(dirs_in(dir)?, None::<Folder>)];
    let mut path = PathBuf::new();
    let mut count = 0;
    while let Some((names, folder)) = way.last_mut() {
        let Some(name) = names.pop() else {
            way.pop();
            path.pop();
            continue;
        };
        let below = folder.as_ref().unwrap_or(dir).enter(&name)?;
        path.push(&name);
        if below.look_for(OsStr::new(SNAPSHOTS))?.is_some() {
            return Err(Why::new(format!(
                "has a directory {} with snapshots of its own, which a restore would remove; delete those, or restore \
                 parts with `ferrite clone`",
                path.display()
            )));
        }
        let names = dirs_in(&below)?;
        count += names.len();
        if way.len() > DEPTH_MAX || count > NAMES_MAX {
            return Err(Why::new(
                "has too many directories below; restore parts with `ferrite clone`",
            ));
        }
        way.push((names, Some(below)));
    }
    Ok(())
}

/// The names of the directories in a directory.
fn dirs_in(folder: &Folder) -> Result<Vec<OsString>> {
    let mut dirs = Vec::new();
    for name in names_in(folder)? {
        match folder.look_for(&name) {
            Ok(Some(found)) if found.is_dir() => dirs.push(name),
            Ok(_) => {}
            Err(why) if why.is(Errno::NOTCONN) => return Err(why),
            Err(why) => return Err(Why::new(format!("{}: {}", name.display(), why.text))),
        }
    }
    Ok(dirs)
}
