//! Changes of attributes, and extended attributes, as far as the caller is permitted.
//!
//! Contents: the part of [`Vfs`] that is about one inode and not about names. The inode is given by a path or,
//! as in `fchmod(2)` and similar calls, as one that the caller has open ([`Target`]); the rules are the same.

use super::Vfs;
use crate::{Attr, Ino, Result, SetAttr, XattrMode, check_attribute_name};

/// The target of a change of attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target<'p> {
    /// The inode at the path; links are followed.
    Path(&'p [u8]),
    /// The inode at the path, even if it is a symbolic link.
    Link(&'p [u8]),
    /// An inode that the caller has open or pinned.
    Open(Ino),
}

impl Vfs {
    /// Calls `f` with the inode of a target, which is pinned or open meanwhile.
    fn with_target<T>(&self, target: Target<'_>, f: impl FnOnce(Ino) -> Result<T>) -> Result<T> {
        let held = match target {
            Target::Path(path) => self.target(path, true)?,
            Target::Link(path) => self.target(path, false)?,
            Target::Open(ino) => return f(ino),
        };
        f(held.ino)
    }

    /// Changes attributes, as far as the caller is permitted. A symbolic link itself has no mode to change:
    /// `NotSupported`.
    pub fn setattr(&self, path: &[u8], set: &SetAttr, follow: bool) -> Result<Attr> {
        self.setattr_of(if follow { Target::Path(path) } else { Target::Link(path) }, set)
    }

    /// Like [`Self::setattr`], of any target. The caller's identity counts, not how it opened the file.
    pub fn setattr_of(&self, target: Target<'_>, set: &SetAttr) -> Result<Attr> {
        self.with_target(target, |ino| self.fs.setattr(&self.ctx, ino, set))
    }

    /// Value of an extended attribute.
    pub fn getxattr(&self, path: &[u8], name: &[u8]) -> Result<Vec<u8>> {
        self.getxattr_of(Target::Path(path), name)
    }

    /// Like [`Self::getxattr`], of any target.
    pub fn getxattr_of(&self, target: Target<'_>, name: &[u8]) -> Result<Vec<u8>> {
        check_attribute_name(name)?;
        self.with_target(target, |ino| self.fs.getxattr(&self.ctx, ino, name))
    }

    /// Sets an extended attribute.
    pub fn setxattr(&self, path: &[u8], name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        self.setxattr_of(Target::Path(path), name, value, mode)
    }

    /// Like [`Self::setxattr`], of any target.
    pub fn setxattr_of(&self, target: Target<'_>, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        check_attribute_name(name)?;
        self.with_target(target, |ino| self.fs.setxattr(&self.ctx, ino, name, value, mode))
    }

    /// Names of all extended attributes that the caller may see.
    pub fn listxattr(&self, path: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.listxattr_of(Target::Path(path))
    }

    /// Like [`Self::listxattr`], of any target.
    pub fn listxattr_of(&self, target: Target<'_>) -> Result<Vec<Vec<u8>>> {
        self.with_target(target, |ino| self.fs.listxattr(&self.ctx, ino))
    }

    /// Removes an extended attribute.
    pub fn removexattr(&self, path: &[u8], name: &[u8]) -> Result<()> {
        self.removexattr_of(Target::Path(path), name)
    }

    /// Like [`Self::removexattr`], of any target.
    pub fn removexattr_of(&self, target: Target<'_>, name: &[u8]) -> Result<()> {
        check_attribute_name(name)?;
        self.with_target(target, |ino| self.fs.removexattr(&self.ctx, ino, name))
    }
}
