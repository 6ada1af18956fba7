//! Opening a file, and creating one that is opened.

use std::sync::Arc;

use ferrite_vfs::{Attr, Ctx, FileKind, FsError, Ino, NO_NAME, NewFile, OpenMode, ROOT_INO, Result, posix};

use super::create::{self, New};
use super::lookup;
use crate::cache::inodes::InodeMem;
use crate::file::rights;
use crate::pool::core::Core;

/// A file that is pinned for its handle, and a second time if the context asks for that.
pub(crate) struct Taken {
    pub(crate) inode: Arc<InodeMem>,
    pub(crate) attr: Attr,
    pub(crate) created: bool,
}

/// Pins a regular file for a handle that is opened like this; returns its attributes. Another kind of inode, or one
/// that the caller may not open like this, is refused; so is, in a snapshot or on a pool that is read-only, an open
/// that allows changes.
pub(crate) fn pin(core: &Core, ctx: &Ctx, inode: &Arc<InodeMem>, mode: OpenMode) -> Result<Attr> {
    let _lock = inode.read();
    let loaded = core.load_live(inode)?;
    let attr = core.locked_attr(inode, &loaded)?;
    if attr.kind == FileKind::Directory {
        return Err(FsError::IsDirectory);
    }
    // Before the permissions, as in Linux.
    if attr.kind == FileKind::File && mode.changes() {
        core.check_writable()?;
        if loaded.is_read_only() {
            return Err(FsError::ReadOnly);
        }
        loaded.callers_flags().check_open(mode.write, mode.truncate)?;
    }
    if ctx.check {
        let guarded = rights::guarded_attr(core, ctx, attr, (inode.ino, &loaded))?;
        posix::may_open(&guarded, &ctx.cred, mode)?;
    }
    if attr.kind != FileKind::File {
        return Err(FsError::NoSuchAddress);
    }
    inode.pin(1);
    Ok(attr)
}

/// See [`ferrite_vfs::FileSystem::create`]: one record if the name is new, none if it is not. Truncation is the
/// caller's.
pub(crate) fn create(core: &Core, ctx: &Ctx, parent: Ino, name: &[u8], new: &NewFile) -> Result<Taken> {
    if name == NO_NAME {
        let (inode, attr) = create::create_nameless(core, ctx, parent, new.mode, new.exclusive)?;
        return Ok(Taken {
            inode,
            attr,
            created: true,
        });
    }
    posix::check_name(name)?;
    let node = New {
        kind: FileKind::File,
        mode: new.mode,
        rdev: 0,
        target: &[],
    };
    loop {
        match create::create(core, ctx, parent, name, &node, true) {
            Ok((inode, attr)) => {
                return Ok(Taken {
                    inode,
                    attr,
                    created: true,
                });
            }
            Err(FsError::Exists) if !new.exclusive => {}
            // Nothing was looked up: an existing entry may be opened, or is in the way.
            Err(FsError::ReadOnly) => match lookup::look(core, ctx, parent, name) {
                Ok(_) if new.exclusive => return Err(FsError::Exists),
                Ok(_) => {}
                Err(FsError::NotFound) => return Err(FsError::ReadOnly),
                Err(error) => return Err(error),
            },
            Err(error) => return Err(error),
        }
        match existing(core, ctx, parent, name, new) {
            // It was removed meanwhile, so it is created after all.
            Err(FsError::NotFound | FsError::Stale) => {}
            other => return other,
        }
    }
}

fn existing(core: &Core, ctx: &Ctx, parent: Ino, name: &[u8], new: &NewFile) -> Result<Taken> {
    let (inode, attr) = lookup::look(core, ctx, parent, name)?;
    if attr.kind == FileKind::Symlink {
        return Err(FsError::Loop);
    }
    let attr = pin(core, ctx, &inode, new.open)?;
    inode.pin(u64::from(ctx.pins && attr.ino != ROOT_INO));
    Ok(Taken {
        inode,
        attr,
        created: false,
    })
}
