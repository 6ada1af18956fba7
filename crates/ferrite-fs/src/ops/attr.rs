//! Attributes: mode, owner, times, and size.

use std::sync::Arc;

use ferrite_vfs::{Attr, FsError, Ino, Result, SetAttr, SetTime, Timestamp, posix};

use crate::core::{Core, Need};
use crate::file::cut;
use crate::icache::InodeMem;
use crate::inode::Inode;
use crate::layout::MAX_FILE_BYTES;
use crate::options::AtimePolicy;
use crate::tx::Tx;

/// Changes attributes: one record, also when the size changes, unless more pages go than a record holds; then the
/// first record carries the new size and the intent to free the rest (see [`cut`]).
pub(crate) fn setattr(core: &Core, ino: Ino, set: &SetAttr) -> Result<Attr> {
    core.check_writable()?;
    core.with_space(Need::FEW, || {
        let inode = core.inode(ino)?;
        let _lock = inode.write();
        let old = core.load_live(&inode)?;
        let mut new = old;
        let now = Core::now();
        let mut tx = Tx::new(core);
        apply(&mut new, set, now);
        let mut later = None;
        if let Some(size) = set.size {
            if !old.is_file() {
                return Err(if old.is_dir() {
                    FsError::IsDirectory
                } else {
                    FsError::Invalid("only files have a size to set")
                });
            }
            if size > MAX_FILE_BYTES {
                return Err(FsError::FileTooBig);
            }
            if set.mtime.is_none() {
                new.set_mtime(now);
            }
            later = cut::resize(core, &mut tx, &inode, &mut new, size)?;
        }
        tx.put_inode(inode.ino, &mut new);
        tx.commit(&[&inode])?;
        if later.is_some() {
            cut::finish(core, &inode, &mut new)?;
        }
        core.attr(inode.ino, &new)
    })
}

fn apply(inode: &mut Inode, set: &SetAttr, now: Timestamp) {
    let time = |time: SetTime| match time {
        SetTime::Now => now,
        SetTime::To(time) => time,
    };
    if *set == SetAttr::default() {
        return;
    }
    inode.set_ctime(now);
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
        inode.set_permissions(posix::kill_priv(kind, inode.permissions()));
    }
    if let Some(atime) = set.atime {
        inode.set_atime(time(atime));
    }
    if let Some(mtime) = set.mtime {
        inode.set_mtime(time(mtime));
    }
}

/// Moves the access time after a read, if the mount's policy and the times say so. On a pool that cannot be
/// changed, nothing happens. What was read is right whether or not the time can be recorded, so a failure is not the reader's: the
/// commit has stopped the engine and said so.
pub(crate) fn touch_atime(core: &Core, inode: &Arc<InodeMem>) {
    if core.options.atime == AtimePolicy::Never || core.check_writable().is_err() {
        return;
    }
    let now = Core::now();
    let due = |loaded: &Inode| match core.options.atime {
        AtimePolicy::Relative => posix::relatime_due(loaded.atime(), loaded.mtime(), loaded.ctime(), now),
        AtimePolicy::Strict => loaded.atime() != now,
        AtimePolicy::Never => false,
    };
    if !core.snapshot(inode).is_ok_and(|loaded| due(&loaded)) {
        return;
    }
    let _lock = inode.write();
    let Ok(old) = core.load_live(inode) else {
        return;
    };
    if !due(&old) {
        return;
    }
    let mut new = old;
    new.set_atime(now);
    let mut tx = Tx::new(core);
    tx.put_inode(inode.ino, &mut new);
    if let Err(error) = tx.commit(&[inode]) {
        tracing::debug!(ino = inode.ino, %error, "an access time was not recorded");
    }
}
