//! [`FileSystem`] for the engine: checks arguments, then delegates.

use std::sync::Arc;

use ferrite_vfs::{
    Attr, BadArgument, Cred, DirEntry, FileKind, FileSystem, FsError, Ino, NewNode, OpenFile, OpenMode, RenameMode,
    Result, SetAttr, StatFs, XattrMode, posix,
};

use super::file::PmFile;
use super::handle::Engine;
use crate::file::atime::touch_atime;
use crate::format::layout::BLOCK_BYTES;
use crate::tree::lookup::lookup;
use crate::tree::{attr, create, dir, remove, rename, xattr};

impl FileSystem for Engine {
    fn statfs(&self) -> Result<StatFs> {
        let core = self.core();
        core.check_readable()?;
        let superblock = &core.superblock;
        // What operations freed but a crash could still replay counts as free, and so do blocks that log segments will
        // give back: they can be had on demand. Asking changes nothing.
        let free = core.alloc.free() + core.journal.pending().blocks + core.log_space.returning();
        let reserve = superblock.reserve_blocks;
        let (names, names_used) = core.names.counts();
        let names_free = names - names_used;
        let inodes_free = core.inode_map.len() - core.inode_map.count_used();
        Ok(StatFs {
            block_bytes: BLOCK_BYTES as u32,
            blocks: superblock.blocks,
            blocks_free: free,
            blocks_available: free.saturating_sub(reserve),
            inodes: superblock.inodes - 1,
            inodes_free: inodes_free.min(names_free),
            fsid: superblock.uuid as u64,
        })
    }

    fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Attr> {
        posix::check_name(name)?;
        self.core().reading(|core| lookup(core, parent, name))
    }

    fn parent(&self, dir: Ino) -> Result<Ino> {
        self.core()
            .reading(|core| core.with_dir(dir, |_, inode| Ok(u64::from(inode.parent()))))
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.core().reading(|core| {
            let inode = core.inode(ino)?;
            core.attr(inode.ino, &core.snapshot(&inode)?)
        })
    }

    fn setattr(&self, ino: Ino, set: &SetAttr) -> Result<Attr> {
        self.core().told(attr::setattr(self.core(), ino, set))
    }

    fn pin(&self, ino: Ino, generation: u32) -> Result<()> {
        let inode = self.core().inode(ino)?;
        let _lock = inode.read();
        if self.core().load_live(&inode)?.generation() != generation {
            return Err(FsError::Stale);
        }
        inode.pin(1);
        Ok(())
    }

    fn unpin(&self, ino: Ino, count: u64) {
        if let Ok(inode) = self.core().inode(ino) {
            remove::unpin(self.core(), &inode, count);
        }
    }

    fn forget(&self, ino: Ino, count: u64) {
        if let Ok(inode) = self.core().inode(ino) {
            remove::forget(self.core(), inode, count);
        }
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.core().reading(|core| {
            let inode = core.inode(ino)?;
            let _lock = inode.read();
            let loaded = core.load_live(&inode)?;
            if loaded.kind() != Some(FileKind::Symlink) {
                return Err(FsError::Invalid(BadArgument::NotLink));
            }
            create::link_target(core, inode.ino, &loaded)
        })
    }

    fn mknod(&self, cred: &Cred, parent: Ino, name: &[u8], node: &NewNode) -> Result<Attr> {
        if matches!(node.kind, FileKind::Directory | FileKind::Symlink) {
            return Err(FsError::Invalid(BadArgument::NodeKind));
        }
        let new = create::New {
            kind: node.kind,
            mode: node.mode,
            rdev: node.rdev,
            target: &[],
        };
        self.core().told(create::create(self.core(), cred, parent, name, &new))
    }

    fn mkdir(&self, cred: &Cred, parent: Ino, name: &[u8], mode: u32) -> Result<Attr> {
        let new = create::New {
            kind: FileKind::Directory,
            mode,
            rdev: 0,
            target: &[],
        };
        self.core().told(create::create(self.core(), cred, parent, name, &new))
    }

    fn symlink(&self, cred: &Cred, parent: Ino, name: &[u8], target: &[u8]) -> Result<Attr> {
        if target.is_empty() {
            return Err(FsError::Invalid(BadArgument::EmptyTarget));
        }
        if target.len() >= ferrite_vfs::PATH_MAX {
            return Err(FsError::NameTooLong);
        }
        let new = create::New {
            kind: FileKind::Symlink,
            mode: 0o777,
            rdev: 0,
            target,
        };
        self.core().told(create::create(self.core(), cred, parent, name, &new))
    }

    fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr> {
        self.core().told(create::link(self.core(), ino, parent, name))
    }

    fn unlink(&self, parent: Ino, name: &[u8]) -> Result<()> {
        self.core().told(remove::unlink(self.core(), parent, name, false))
    }

    fn rmdir(&self, parent: Ino, name: &[u8]) -> Result<()> {
        self.core().told(remove::unlink(self.core(), parent, name, true))
    }

    fn rename(&self, parent: Ino, name: &[u8], new_parent: Ino, new_name: &[u8], mode: RenameMode) -> Result<()> {
        let core = self.core();
        core.told(rename::rename(core, (parent, name), (new_parent, new_name), mode))
    }

    fn readdir(&self, dir: Ino, cookie: u64, sink: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<()> {
        let core = self.core();
        core.reading(|core| core.with_dir(dir, |ino, inode| dir::list(core, ino, inode, cookie, sink)))?;
        if core.options.dir_atime {
            touch_atime(core, &core.inode(dir)?);
        }
        Ok(())
    }

    fn open(&self, ino: Ino, mode: OpenMode) -> Result<Arc<dyn OpenFile>> {
        self.core().reading(|core| {
            let inode = core.inode(ino)?;
            let lock = inode.read();
            match core.load_live(&inode)?.kind() {
                Some(FileKind::File) => {}
                Some(FileKind::Directory) => return Err(FsError::IsDirectory),
                _ => return Err(FsError::NoSuchAddress),
            }
            inode.pin(1);
            drop(lock);
            let file: Arc<dyn OpenFile> = Arc::new(PmFile::new(self.clone(), inode, mode));
            Ok(file)
        })
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.core().reading(|core| xattr::get(core, ino, name))
    }

    fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        self.core().told(xattr::set(self.core(), ino, name, value, mode))
    }

    fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.core().reading(|core| xattr::list(core, ino))
    }

    fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        self.core().told(xattr::remove(self.core(), ino, name))
    }

    fn sync(&self) -> Result<()> {
        let core = self.core();
        core.check_readable()?;
        match core.failed.get() {
            Some(error) => Err(FsError::Io(error.clone())),
            None => Ok(()),
        }
    }
}
