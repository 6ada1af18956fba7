//! Changes of attributes, and extended attributes, as far as the caller may.
//!
//! What lives here: the part of [`Vfs`] that is about one inode and not about names. The inode is given by a path or,
//! as in `fchmod(2)` and similar calls, as one that the caller has open ([`Target`]); the rules are the same.

use super::{Held, STICKY, Vfs};
use crate::posix::{self, Access};
use crate::{Attr, FileKind, FsError, Ino, Result, SetAttr, Unsupported, XattrMode};

/// The target of a change of attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target<'p> {
    /// What the path names; links are followed.
    Path(&'p [u8]),
    /// What the path names, even if it is a symbolic link.
    Link(&'p [u8]),
    /// An inode that the caller has open or pinned.
    Open(Ino),
}

impl Vfs {
    fn held(&self, target: Target<'_>) -> Result<Held<'_>> {
        match target {
            Target::Path(path) => self.target(path, true),
            Target::Link(path) => self.target(path, false),
            Target::Open(ino) => self.hold(self.fs.getattr(ino)?),
        }
    }

    /// Changes attributes, as far as the caller may. A symbolic link itself has no mode to change: `NotSupported`.
    pub fn setattr(&self, path: &[u8], set: &SetAttr, follow: bool) -> Result<Attr> {
        self.setattr_of(if follow { Target::Path(path) } else { Target::Link(path) }, set)
    }

    /// Like [`Self::setattr`], of any target. What counts is who the caller is, not how a file was opened.
    pub fn setattr_of(&self, target: Target<'_>, set: &SetAttr) -> Result<Attr> {
        let target = self.held(target)?;
        if set.mode.is_some() && target.kind == FileKind::Symlink {
            return Err(FsError::NotSupported(Unsupported::LinkMode));
        }
        let set = posix::may_setattr(&target, &self.cred, set)?;
        self.fs.setattr(target.ino, &set)
    }

    /// Value of an extended attribute.
    pub fn getxattr(&self, path: &[u8], name: &[u8]) -> Result<Vec<u8>> {
        self.getxattr_of(Target::Path(path), name)
    }

    /// Like [`Self::getxattr`], of any target.
    pub fn getxattr_of(&self, target: Target<'_>, name: &[u8]) -> Result<Vec<u8>> {
        let attr = self.xattr_target(target, name, Access::READ)?;
        self.fs.getxattr(attr.ino, name)
    }

    /// Sets an extended attribute.
    pub fn setxattr(&self, path: &[u8], name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        self.setxattr_of(Target::Path(path), name, value, mode)
    }

    /// Like [`Self::setxattr`], of any target.
    pub fn setxattr_of(&self, target: Target<'_>, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        let attr = self.xattr_target(target, name, Access::WRITE)?;
        self.fs.setxattr(attr.ino, name, value, mode)
    }

    /// Names of all extended attributes that the caller may see.
    pub fn listxattr(&self, path: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.listxattr_of(Target::Path(path))
    }

    /// Like [`Self::listxattr`], of any target.
    pub fn listxattr_of(&self, target: Target<'_>) -> Result<Vec<Vec<u8>>> {
        let mut names = self.fs.listxattr(self.held(target)?.ino)?;
        names.retain(|name| self.cred.is_root() || !name.starts_with(b"trusted."));
        Ok(names)
    }

    /// Removes an extended attribute.
    pub fn removexattr(&self, path: &[u8], name: &[u8]) -> Result<()> {
        self.removexattr_of(Target::Path(path), name)
    }

    /// Like [`Self::removexattr`], of any target.
    pub fn removexattr_of(&self, target: Target<'_>, name: &[u8]) -> Result<()> {
        let attr = self.xattr_target(target, name, Access::WRITE)?;
        self.fs.removexattr(attr.ino, name)
    }

    /// The rules of xattr(7): `user.` needs access to the content of a file or directory (in a sticky one, ownership),
    /// `trusted.` needs root. `system.` (access control lists) is not supported.
    fn xattr_target(&self, target: Target<'_>, name: &[u8], want: Access) -> Result<Held<'_>> {
        posix::check_xattr_name(name)?;
        let target = self.held(target)?;
        let refused = if want.write {
            FsError::NotPermitted
        } else {
            FsError::NoAttribute
        };
        let dot = name.iter().position(|&byte| byte == b'.');
        match &name[..dot.unwrap_or(0)] {
            b"user" => {
                let owner = self.cred.is_root() || self.cred.uid == target.uid;
                match target.kind {
                    FileKind::Directory if want.write && target.mode & STICKY != 0 && !owner => return Err(refused),
                    FileKind::File | FileKind::Directory => {}
                    _ => return Err(refused),
                }
                posix::may_access(&target, &self.cred, want)?;
            }
            b"trusted" if !self.cred.is_root() => return Err(refused),
            b"security" if want.write && !self.cred.is_root() => return Err(refused),
            _ => {}
        }
        Ok(target)
    }
}
