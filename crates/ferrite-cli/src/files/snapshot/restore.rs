//! Giving a directory the content of one of its snapshots.
//!
//! The snapshot is cloned to the work directory [`WORK`] within the directory, and each of its entries changes places
//! with the entry of that name; entries that the snapshot does not have move to the work directory, which is then
//! removed. Invariant: at any instant each name is that of the old entry or of the restored one, whole; a restore that
//! was interrupted can be made again.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};

use super::super::clone::clone_to;
use super::super::folder::{Folder, Kept};
use super::super::place::{Place, Result, Why};
use super::super::send::progress::forget_all;
use super::super::walk::dirs_below;
use super::{SNAPSHOTS, names_in};

const WORK: &str = ".ferrite-restore";

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
    dirs_below(dir, &mut |path, below| match below.look_for(OsStr::new(SNAPSHOTS))? {
        None => Ok(true),
        Some(_) => Err(Why::new(format!(
            "has a directory {} with snapshots of its own, which a restore would remove; delete those, or restore \
             parts with `ferrite clone`",
            path.display()
        ))),
    })
}
