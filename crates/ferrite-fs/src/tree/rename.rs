//! Rename, always in one record: two entries, their slots, up to four inodes and the replaced target.

use std::sync::Arc;

use ferrite_map::Inum;
use ferrite_vfs::posix::{self, RenameSide};
use ferrite_vfs::{BadArgument, Ctx, FileKind, FsError, Ino, LINK_MAX, Outcome, RenameMode, Result, SpaceOf};

use super::dir;
use super::lookup::{Edits, check_dir, find, gone};
use super::remove::{self, Fate};
use crate::cache::inodes::InodeMem;
use crate::format::inode::ROOT;
use crate::pool::core::Core;
use crate::pool::locks::LockSet;
use crate::pool::tx::{Purpose, Tx};
use crate::retry::{self, Need};
use crate::space::names::Found;

/// Most directories above one that a directory is moved to. Reading each takes a fraction of a microsecond.
const DEPTH_MAX: usize = 1 << 15;

/// One side of a rename.
struct Side<'a> {
    dir: Arc<InodeMem>,
    name: &'a [u8],
}

/// See [`ferrite_vfs::FileSystem::rename`].
pub(crate) fn rename(core: &Core, ctx: &Ctx, from: (Ino, &[u8]), to: (Ino, &[u8]), mode: RenameMode) -> Result<()> {
    posix::check_name(from.1)?;
    posix::check_name(to.1)?;
    core.check_writable()?;
    retry::with_space(core, Need::FEW, || {
        match rename_attempt(core, ctx, from, to, mode, false) {
            // As in `remove::unlink`: the source's block is removed only if the tree needs no node for that.
            Err(FsError::NoSpace(SpaceOf::Blocks)) => rename_attempt(core, ctx, from, to, mode, true),
            other => other,
        }
    })
}

fn rename_attempt(
    core: &Core,
    ctx: &Ctx,
    from: (Ino, &[u8]),
    to: (Ino, &[u8]),
    mode: RenameMode,
    keep_block: bool,
) -> Result<()> {
    loop {
        let source = find(core, ctx, from.0, from.1)?.ok_or(FsError::NotFound)?;
        let target = find(core, ctx, to.0, to.1)?;
        let from = Side {
            dir: core.inode(from.0).map_err(gone)?,
            name: from.1,
        };
        let to = Side {
            dir: core.inode(to.0).map_err(gone)?,
            name: to.1,
        };
        if let Some(result) = attempt(core, ctx, &from, &to, &source, target.as_ref(), (mode, keep_block)) {
            return result;
        }
    }
}

/// `None` if the names have changed since the lookup before the locks.
fn attempt(
    core: &Core,
    ctx: &Ctx,
    from: &Side<'_>,
    to: &Side<'_>,
    source: &(Found, Arc<InodeMem>),
    target: Option<&(Found, Arc<InodeMem>)>,
    (mode, keep_block): (RenameMode, bool),
) -> Option<Result<()>> {
    let (source_entry, source) = source;
    let is_dir = |found: &Found| found.kind == FileKind::Directory;
    let crosses = from.dir.ino != to.dir.ino;
    let moves_dir = crosses && (is_dir(source_entry) || target.is_some_and(|(found, _)| is_dir(found)));
    let _ancestry = moves_dir.then(|| core.rename.lock());
    let mut involved = vec![&from.dir, &to.dir, source];
    involved.extend(target.map(|(_, inode)| inode));
    let mut locks = LockSet::lock(&involved);

    let look = |side: &Side<'_>| core.names.find(&core.names.key(side.dir.ino, side.name));
    let unchanged = (|| -> Result<bool> {
        let same_source = look(from)? == Some(*source_entry) && !source.is_dead();
        let same_target = look(to)? == target.map(|&(found, _)| found) && target.is_none_or(|(_, t)| !t.is_dead());
        Ok(same_source && same_target)
    })();
    match unchanged {
        Ok(true) => {}
        Ok(false) => return None,
        Err(error) => return Some(Err(error)),
    }
    let fates = (|| {
        let mut edits = Edits::load(core, &involved)?;
        check_dir(edits.get(from.dir.ino))?;
        check_dir(edits.get(to.dir.ino))?;
        if !check(core, ctx, &mut edits, (from, to), (source_entry, source), target, mode)? {
            return Ok(None);
        }
        let mut tx = Tx::new(core, Purpose::Change);
        let fate = match (mode, target) {
            (RenameMode::Exchange, Some(target)) => {
                exchange(core, &mut tx, &mut edits, from, to, source_entry, &target.0)?;
                Fate::Lives
            }
            _ => {
                let entries = (source_entry, target);
                let planned = relink(core, &mut tx, &mut edits, &mut locks, (from, to), entries, keep_block)?;
                edits.put(&mut tx);
                tx.note_outcome(ctx, || Ok(Outcome::Done))?;
                tx.commit(&involved)?;
                if let Some(planned) = planned.1 {
                    dir::inserted(&planned, locks.hints(to.dir.ino));
                }
                let fate = target.map_or(planned.0, |(_, inode)| remove::settle(core, inode, planned.0));
                return Ok(Some(fate));
            }
        };
        edits.put(&mut tx);
        tx.note_outcome(ctx, || Ok(Outcome::Done))?;
        tx.commit(&involved)?;
        Ok(Some(fate))
    })();
    drop(locks);
    Some(match (fates, target) {
        (Ok(Some(fate)), Some((_, inode))) => {
            remove::finish_committed(core, inode, fate);
            Ok(())
        }
        (Ok(_), _) => Ok(()),
        (Err(error), _) => Err(error),
    })
}

/// All the reasons to refuse; `Ok(false)` if there is nothing to do.
fn check(
    core: &Core,
    ctx: &Ctx,
    edits: &mut Edits,
    (from, to): (&Side<'_>, &Side<'_>),
    (source_entry, source): (&Found, &Arc<InodeMem>),
    target: Option<&(Found, Arc<InodeMem>)>,
    mode: RenameMode,
) -> Result<bool> {
    match (mode, target) {
        (RenameMode::NoReplace, Some(_)) => return Err(FsError::Exists),
        (RenameMode::Exchange, None) => return Err(FsError::NotFound),
        _ => {}
    }
    if target.is_some_and(|(found, _)| found.ino == source.ino) {
        return Ok(false);
    }
    if ctx.check {
        let mut attr = |ino| core.attr(ino, edits.get(ino));
        let (from, to, moved) = (attr(from.dir.ino)?, attr(to.dir.ino)?, attr(source.ino)?);
        let victim = target.map(|(found, _)| attr(found.ino)).transpose()?;
        let from = RenameSide {
            dir: &from,
            entry: Some(&moved),
        };
        let to = RenameSide {
            dir: &to,
            entry: victim.as_ref(),
        };
        posix::may_rename(from, to, &ctx.cred, mode)?;
    }
    let source_is_dir = source_entry.kind == FileKind::Directory;
    if source_is_dir && is_below(core, to.dir.ino, source.ino)? {
        return Err(FsError::Invalid(BadArgument::BelowItself));
    }
    let target_is_dir = target.is_some_and(|(found, _)| found.kind == FileKind::Directory);
    match (mode, target) {
        (RenameMode::Exchange, Some((found, _))) => {
            if target_is_dir && is_below(core, from.dir.ino, found.ino)? {
                return Err(FsError::Invalid(BadArgument::BelowItself));
            }
        }
        (_, Some((found, _))) => {
            if source_is_dir && !target_is_dir {
                return Err(FsError::NotDirectory);
            }
            if !source_is_dir && target_is_dir {
                return Err(FsError::IsDirectory);
            }
            // The source's directory is not empty, even if a damaged inode claims so.
            if target_is_dir && (found.ino == from.dir.ino || edits.get(found.ino).entries() != 0) {
                return Err(FsError::NotEmpty);
            }
        }
        (_, None) => {}
    }
    let gains_dir = |gained: bool, lost: bool| gained && !lost && from.dir.ino != to.dir.ino;
    if gains_dir(source_is_dir, target_is_dir) && edits.get(to.dir.ino).nlink() >= LINK_MAX {
        return Err(FsError::TooManyLinks);
    }
    let exchange = mode == RenameMode::Exchange;
    if exchange && gains_dir(target_is_dir, source_is_dir) && edits.get(from.dir.ino).nlink() >= LINK_MAX {
        return Err(FsError::TooManyLinks);
    }
    Ok(true)
}

/// Whether directory `dir` is `ancestor` or is below it. Parents change only under the rename lock, which the caller
/// holds if the answer can matter (within one directory nothing can move below itself except by name). `Loop` if the
/// root is farther away than [`DEPTH_MAX`], as in a damaged pool with a cycle of directories: the lock must not be held
/// for long.
fn is_below(core: &Core, dir: Inum, ancestor: Inum) -> Result<bool> {
    let mut at = dir;
    for _ in 0..DEPTH_MAX {
        if at == ancestor {
            return Ok(true);
        }
        if at == ROOT || at == Inum::NONE || u64::from(at) >= core.superblock.inodes {
            return Ok(false);
        }
        at = core.load(at).parent();
    }
    Err(FsError::Loop)
}

/// Removes the source's entry, and makes the target's entry name the source's inode, or adds a new entry.
fn relink(
    core: &Core,
    tx: &mut Tx<'_>,
    edits: &mut Edits,
    locks: &mut LockSet<'_>,
    (from, to): (&Side<'_>, &Side<'_>),
    (source, target): (&Found, Option<&(Found, Arc<InodeMem>)>),
    keep_block: bool,
) -> Result<(Fate, Option<dir::Planned>)> {
    let now = Core::now();
    let child = (source.ino, source.kind);
    let is_dir = source.kind == FileKind::Directory;
    let same_dir = from.dir.ino == to.dir.ino;
    let mut fate = Fate::Lives;
    let mut planned = None;
    if let Some((found, inode)) = target {
        dir::replace(core, tx, to.dir.ino, to.name, found, child)?;
        if found.kind == FileKind::Directory {
            let directory = edits.get(to.dir.ino);
            directory.set_nlink(directory.nlink().saturating_sub(1));
        }
        fate = remove::drop_link(core, tx, inode, edits.get(found.ino), now)?;
    } else {
        let key = core.names.key(to.dir.ino, to.name);
        let place = (edits.get(to.dir.ino), locks.hints(to.dir.ino));
        planned = Some(dir::insert(core, tx, &key, place, child)?);
    }
    // The new name may be placed in the block that the old one leaves.
    let keep_block = keep_block || (same_dir && target.is_none());
    let place = (from.dir.ino, edits.get(from.dir.ino), locks.hints(from.dir.ino));
    dir::remove(core, tx, place, source, keep_block)?;
    if is_dir && !same_dir {
        let directory = edits.get(from.dir.ino);
        directory.set_nlink(directory.nlink().saturating_sub(1));
        let directory = edits.get(to.dir.ino);
        directory.set_nlink(directory.nlink() + 1);
        edits.get(source.ino).set_parent(to.dir.ino);
    }
    stamp(edits, &[from.dir.ino, to.dir.ino], source.ino, now);
    Ok((fate, planned))
}

/// Swaps two entries in place.
fn exchange(
    core: &Core,
    tx: &mut Tx<'_>,
    edits: &mut Edits,
    from: &Side<'_>,
    to: &Side<'_>,
    source: &Found,
    target: &Found,
) -> Result<()> {
    let now = Core::now();
    dir::replace(core, tx, to.dir.ino, to.name, target, (source.ino, source.kind))?;
    dir::replace(core, tx, from.dir.ino, from.name, source, (target.ino, target.kind))?;
    if from.dir.ino != to.dir.ino {
        for (entry, leaves, enters) in [(source, &from.dir, &to.dir), (target, &to.dir, &from.dir)] {
            if entry.kind == FileKind::Directory {
                let directory = edits.get(leaves.ino);
                directory.set_nlink(directory.nlink().saturating_sub(1));
                let directory = edits.get(enters.ino);
                directory.set_nlink(directory.nlink() + 1);
                edits.get(entry.ino).set_parent(enters.ino);
            }
        }
    }
    stamp(edits, &[from.dir.ino, to.dir.ino], source.ino, now);
    edits.get(target.ino).set_ctime(now);
    Ok(())
}

fn stamp(edits: &mut Edits, dirs: &[Inum], moved: Inum, now: ferrite_vfs::Timestamp) {
    for &dir in dirs {
        let directory = edits.get(dir);
        directory.set_mtime(now);
        directory.set_ctime(now);
    }
    edits.get(moved).set_ctime(now);
}
