//! Permission checks: the rules of [`ferrite_vfs::posix`], for callers whose [`Ctx`] asks the engine to check, and
//! those of flags ([`ferrite_vfs::InodeFlags`]) for all.
//!
//! Each function is called under the locks of the inodes it is given, so no inode can change between the check and the
//! operation that it allows.

use ferrite_map::Inum;
use ferrite_vfs::posix::Guarded;
use ferrite_vfs::{Ctx, FileKind, NameChange, Result, posix};

use crate::file::rights;
use crate::format::inode::Inode;
use crate::pool::core::Core;

fn check(core: &Core, ctx: &Ctx, inode: (Inum, &Inode), rule: impl FnOnce(&Guarded) -> Result<()>) -> Result<()> {
    match ctx.check {
        true => rule(&rights::guarded(core, ctx, inode)?),
        false => Ok(()),
    }
}

/// To look names up in a directory.
pub(crate) fn search(core: &Core, ctx: &Ctx, dir: (Inum, &Inode)) -> Result<()> {
    check(core, ctx, dir, |dir| posix::may_search(dir, &ctx.cred))
}

/// To add a name to a directory, where it is `taken` already or not.
pub(crate) fn create(core: &Core, ctx: &Ctx, dir: (Inum, &Inode), kind: FileKind, taken: bool) -> Result<()> {
    check(core, ctx, dir, |dir| {
        posix::may_create(dir, &ctx.cred, taken)?;
        posix::may_mknod(kind, &ctx.cred)
    })?;
    match taken {
        true => Ok(()),
        false => dir.1.callers_flags().check_names(NameChange::Adds),
    }
}

/// To remove the name that leads from `dir` to `victim`.
pub(crate) fn delete(core: &Core, ctx: &Ctx, dir: (Inum, &Inode), (ino, victim): (Inum, &Inode)) -> Result<()> {
    check(core, ctx, dir, |dir| {
        posix::may_delete(dir, &core.attr(ino, victim)?, &ctx.cred)
    })?;
    dir.1.callers_flags().check_names(NameChange::Removes)?;
    victim.callers_flags().check_change()
}
