//! Rename, always in one record: two entries, their slots, up to four inodes and the replaced target; or, with a
//! whiteout, the new inode that the old entry then names.

use std::cell::OnceCell;
use std::sync::Arc;

use ferrite_map::Inum;
use ferrite_vfs::posix::{self, RenameSide};
use ferrite_vfs::{
    BadArgument, Ctx, FileKind, FsError, Ino, LINK_MAX, NameChange, Outcome, RenameMode, Result, SpaceOf,
};

use super::lookup::{Edits, check_dir, find, gone};
use super::remove::{self, Fate};
use super::{create, dir};
use crate::cache::inodes::InodeMem;
use crate::file::rights;
use crate::format::inode::ROOT;
use crate::pool::core::Core;
use crate::pool::locks::LockSet;
use crate::pool::tx::{Purpose, Tx};
use crate::retry::{self, Need};
use crate::space::names::Found;

/// Most directories above one that a directory is moved to, or that is cloned. Reading each takes a fraction of a
/// microsecond.
pub(super) const DEPTH_MAX: usize = 1 << 15;

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
    let sides = (from, to);
    let fate = Edits::load(core, &involved).and_then(|edits| {
        let change = Change {
            core,
            ctx,
            mode,
            keep_block,
            involved: &involved,
        };
        change.carry_out(edits, &mut locks, sides, (source_entry, source), target)
    });
    drop(locks);
    Some(match (fate, target) {
        (Ok(Some(fate)), Some((_, inode))) => {
            remove::finish_committed(core, inode, fate);
            Ok(())
        }
        (Ok(_), _) => Ok(()),
        (Err(error), _) => Err(error),
    })
}

/// A rename whose inodes are locked, and whose names lead where they led before.
struct Change<'c> {
    core: &'c Core,
    ctx: &'c Ctx,
    mode: RenameMode,
    keep_block: bool,
    involved: &'c [&'c Arc<InodeMem>],
}

impl Change<'_> {
    /// Checks and commits it. Returns the fate of the target's inode; `None` if there was nothing to do.
    fn carry_out(
        &self,
        mut edits: Edits,
        locks: &mut LockSet<'_>,
        (from, to): (&Side<'_>, &Side<'_>),
        (source_entry, source): (&Found, &Arc<InodeMem>),
        target: Option<&(Found, Arc<InodeMem>)>,
    ) -> Result<Option<Fate>> {
        let &Change { core, ctx, mode, .. } = self;
        check_dir(edits.get(from.dir.ino))?;
        check_dir(edits.get(to.dir.ino))?;
        if !check(core, ctx, &mut edits, (from, to), (source_entry, source), target, mode)? {
            return Ok(None);
        }
        let mut tx = Tx::new(core, Purpose::Change);
        if let (RenameMode::Exchange, Some(target)) = (mode, target) {
            exchange(core, &mut tx, &mut edits, from, to, source_entry, &target.0)?;
            self.commit(tx, edits, None)?;
            return Ok(Some(Fate::Lives));
        }
        let place = OnceCell::new();
        let whiteout = match mode.leaves_whiteout() {
            true => {
                let dir = (from.dir.ino, &*edits.get(from.dir.ino));
                Some(create::whiteout(core, ctx, &mut tx, dir, &place)?)
            }
            false => None,
        };
        let leaves = match &whiteout {
            Some(whiteout) => Leaves::Whiteout(whiteout.inode.ino),
            None => Leaves::Nothing {
                keep_block: self.keep_block,
            },
        };
        let entries = (source_entry, target);
        let (fate, planned) = relink(core, &mut tx, &mut edits, locks, (from, to), entries, leaves)?;
        self.commit(tx, edits, whiteout.as_ref().map(|whiteout| whiteout.inode))?;
        if let Some(planned) = planned {
            dir::inserted(&planned, locks.hints(to.dir.ino));
        }
        Ok(Some(
            target.map_or(fate, |(_, inode)| remove::settle(core, inode, fate)),
        ))
    }

    /// Commits the changes of the inodes involved, and those of a whiteout, which exists from then on.
    fn commit(&self, mut tx: Tx<'_>, mut edits: Edits, whiteout: Option<&Arc<InodeMem>>) -> Result<()> {
        edits.put(&mut tx);
        tx.note_outcome(self.ctx, || Ok(Outcome::Done))?;
        let Some(whiteout) = whiteout else {
            return tx.commit(self.involved);
        };
        whiteout.set_alive();
        let committed = tx.commit(&[self.involved, &[whiteout]].concat());
        if committed.is_err() {
            whiteout.set_dead();
        }
        committed
    }
}

/// The old name afterwards.
enum Leaves {
    /// It is gone. Its block stays a block of the directory if `keep_block`.
    Nothing { keep_block: bool },
    /// It leads to this new inode.
    Whiteout(Inum),
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
        (mode, Some(_)) if mode.refuses_target() => return Err(FsError::Exists),
        (RenameMode::Exchange, None) => return Err(FsError::NotFound),
        _ => {}
    }
    if target.is_some_and(|(found, _)| found.ino == source.ino) {
        return Ok(false);
    }
    if ctx.check {
        let mut guarded = |ino| rights::guarded(core, ctx, (ino, edits.get(ino)));
        let (from, to, moved) = (guarded(from.dir.ino)?, guarded(to.dir.ino)?, guarded(source.ino)?);
        let victim = target.map(|(found, _)| guarded(found.ino)).transpose()?;
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
    check_flags_and_quotas(edits, (from, to), source.ino, target.map(|(found, _)| found.ino))?;
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

/// The reasons to refuse that lie in flags and quotas.
fn check_flags_and_quotas(
    edits: &mut Edits,
    (from, to): (&Side<'_>, &Side<'_>),
    source: Inum,
    target: Option<Inum>,
) -> Result<()> {
    for ino in [Some(source), target].into_iter().flatten() {
        edits.get(ino).callers_flags().check_change()?;
    }
    let replaces = target.is_some() || from.dir.ino == to.dir.ino;
    let of_from = *edits.get(from.dir.ino);
    let of_to = *edits.get(to.dir.ino);
    of_from.callers_flags().check_names(NameChange::Removes)?;
    of_to.callers_flags().check_names(NameChange::when(replaces))?;
    // A quota counts all that is below its directory; so only copies cross its border.
    match of_from.quota() == of_to.quota() {
        true => Ok(()),
        false => Err(FsError::CrossDevice),
    }
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

/// Removes the source's entry, or gives it to a whiteout, and makes the target's entry name the source's inode, or adds
/// a new entry.
fn relink(
    core: &Core,
    tx: &mut Tx<'_>,
    edits: &mut Edits,
    locks: &mut LockSet<'_>,
    (from, to): (&Side<'_>, &Side<'_>),
    (source, target): (&Found, Option<&(Found, Arc<InodeMem>)>),
    leaves: Leaves,
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
    match leaves {
        Leaves::Whiteout(ino) => dir::replace(core, tx, from.dir.ino, from.name, source, (ino, FileKind::CharDevice))?,
        Leaves::Nothing { keep_block } => {
            // The new name may be placed in the block that the old one leaves.
            let keep_block = keep_block || (same_dir && target.is_none());
            let place = (from.dir.ino, edits.get(from.dir.ino), locks.hints(from.dir.ino));
            dir::remove(core, tx, place, source, keep_block)?;
        }
    }
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
