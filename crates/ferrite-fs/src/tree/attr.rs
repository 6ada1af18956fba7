//! Attributes: mode, owner, times, and size.

use ferrite_map::PageRange;
use ferrite_vfs::{
    Attr, BadArgument, Ctx, FsError, Ino, InodeFlags, Outcome, Result, SetAttr, SetTime, Timestamp, posix,
};

use crate::file::{bound, rights, truncate};
use crate::format::inode::Inode;
use crate::format::layout::MAX_FILE_BYTES;
use crate::pool::core::Core;
use crate::pool::tx::{Purpose, Tx};
use crate::retry::{self, Need};

/// The access path of a change of attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Through {
    /// The inode's number.
    Inode,
    /// A handle that is open for writing, so the size may be set.
    Handle,
    /// The same, in the call that opens the file and truncates it.
    Opening,
}

/// Changes attributes with one record, even if the size changes, unless more pages are removed than a record holds;
/// then the first record carries the new size and the intent to free the rest (see [`truncate`]).
pub(crate) fn setattr(core: &Core, ctx: &Ctx, ino: Ino, set: &SetAttr, through: Through) -> Result<Attr> {
    core.check_writable()?;
    posix::check_owner(set)?;
    retry::with_space(core, Need::FEW, || {
        let inode = core.inode(ino)?;
        let _lock = inode.write();
        let old = core.load_live(&inode)?;
        let mut new = old;
        let now = Core::now();
        let set = &match ctx.check {
            true => {
                let guarded = rights::guarded(core, ctx, (inode.ino, &old))?;
                posix::may_setattr(&guarded, &ctx.cred, set, through != Through::Inode)?
            }
            false => *set,
        };
        old.callers_flags().check_set(set)?;
        let size = set.size.filter(|&size| old.is_file() && size <= MAX_FILE_BYTES);
        let none = PageRange::new(0, 0);
        let _change = bound::change(core, &inode, &old, none, size.unwrap_or(old.size()));
        if set
            .mode
            .is_some_and(|mode| old.is_file() && mode & (posix::S_ISUID | posix::S_ISGID) != 0)
        {
            rights::refuse_if_written(core, inode.ino)?;
        }
        // The directory of snapshots follows its parent to another owner.
        let purpose = match old.is_snapshots() {
            true => Purpose::Clone,
            false => Purpose::Change,
        };
        let mut tx = Tx::on(core, purpose, &old);
        rights::follow(core, &mut tx, &inode, &mut new, set)?;
        apply(ctx, &mut new, set, now);
        let mut later = None;
        if let Some(size) = set.size {
            if !old.is_file() {
                return Err(if old.is_dir() {
                    FsError::IsDirectory
                } else {
                    FsError::Invalid(BadArgument::NoSize)
                });
            }
            if size > MAX_FILE_BYTES {
                return Err(FsError::FileTooBig);
            }
            if set.mtime.is_none() {
                new.set_mtime(now);
            }
            later = truncate::resize(core, &mut tx, &inode, &mut new, size)?;
        }
        tx.put_inode(inode.ino, &mut new);
        tx.note_outcome(ctx, || {
            let attr = core.attr(inode.ino, &new)?;
            Ok(match through {
                Through::Opening => Outcome::Opened { attr, created: false },
                Through::Inode | Through::Handle => Outcome::Attr(attr),
            })
        })?;
        tx.commit(&[&inode])?;
        if later.is_some() {
            truncate::finish(core, &inode, &mut new)?;
        }
        core.locked_attr(&inode, &new)
    })
}

/// Sets the flags of an inode, for a caller who may, by one record.
pub(crate) fn set_flags(core: &Core, ctx: &Ctx, ino: Ino, flags: InodeFlags) -> Result<()> {
    core.check_writable()?;
    retry::with_space(core, Need::FEW, || {
        let inode = core.inode(ino)?;
        let _lock = inode.write();
        let old = core.load_live(&inode)?;
        let attr = core.attr(inode.ino, &old)?;
        flags.check_kind(attr.kind)?;
        if ctx.check {
            old.callers_flags().may_become(flags, &ctx.cred, attr.uid)?;
        }
        if flags.check_change().is_err() {
            // Others change it in place.
            rights::refuse_if_written(core, inode.ino)?;
        }
        let mut new = old;
        new.set_callers_flags(flags);
        new.set_ctime(Core::now());
        let mut tx = Tx::new(core, Purpose::Change);
        tx.put_inode(inode.ino, &mut new);
        tx.note_outcome(ctx, || Ok(Outcome::Done))?;
        tx.commit(&[&inode])
    })
}

/// The flags of an inode, as [`ferrite_vfs::FLAGS_XATTR`] gives them.
pub(crate) fn flags(core: &Core, ino: Ino) -> Result<Vec<u8>> {
    let inode = core.inode(ino)?;
    let flags = core.snapshot(&inode)?.callers_flags();
    Ok(flags.to_string().into_bytes())
}

fn apply(ctx: &Ctx, inode: &mut Inode, set: &SetAttr, now: Timestamp) {
    let time = |time: SetTime| match time {
        SetTime::Now => now,
        SetTime::To(time) => time,
    };
    if *set == SetAttr::default() {
        return;
    }
    inode.set_ctime(now);
    let old_gid = inode.gid();
    if let Some(mode) = set.mode {
        inode.set_permissions(mode);
    }
    if let Some(uid) = set.uid {
        inode.set_uid(uid);
    }
    if let Some(gid) = set.gid {
        inode.set_gid(gid);
    }
    if set.kill_priv
        && let Some(kind) = inode.kind()
    {
        inode.set_permissions(posix::kill_priv_by(&ctx.cred, kind, inode.permissions(), old_gid));
    }
    if let Some(atime) = set.atime {
        inode.set_atime(time(atime));
    }
    if let Some(mtime) = set.mtime {
        inode.set_mtime(time(mtime));
    }
}
