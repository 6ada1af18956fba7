//! Operations of [`Fs`] on attributes, extended ones included. Those of an open file are in [`crate::file`].

use std::ffi::{OsStr, OsString};
use std::fs::Permissions;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use ferrite_vfs::posix::Access;
use ferrite_vfs::{SetAttr, Target, XattrMode};

use crate::error::Result;
use crate::fs::Fs;
use crate::metadata::{FileTimes, Metadata, mode_request, owner_request};

/// The actions that errors of [`Fs`] and [`File`](crate::File) name.
pub(crate) mod action {
    pub(crate) const STAT: &str = "get the attributes of";
    pub(crate) const SET_MODE: &str = "set the permissions of";
    pub(crate) const SET_OWNER: &str = "set the owner of";
    pub(crate) const SET_TIMES: &str = "set the times of";
    pub(crate) const SET_LEN: &str = "set the length of";
    pub(crate) const GET_XATTR: &str = "get an extended attribute of";
    pub(crate) const SET_XATTR: &str = "set an extended attribute of";
    pub(crate) const LIST_XATTRS: &str = "list the extended attributes of";
    pub(crate) const REMOVE_XATTR: &str = "remove an extended attribute of";
}

use action::*;

impl Fs {
    /// Attributes of a file; follows symbolic links.
    pub fn metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        self.run(STAT, path.as_ref(), |vfs, path| vfs.stat(path, true))
            .map(Metadata)
    }

    /// Attributes of a file; does not follow a symbolic link.
    pub fn symlink_metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        self.run(STAT, path.as_ref(), |vfs, path| vfs.stat(path, false))
            .map(Metadata)
    }

    /// Whether `path` exists. Also `false` if that cannot be determined: see [`Self::try_exists`].
    pub fn exists(&self, path: impl AsRef<Path>) -> bool {
        self.metadata(path).is_ok()
    }

    /// Whether `path` exists, or why that cannot be determined.
    pub fn try_exists(&self, path: impl AsRef<Path>) -> Result<bool> {
        match self.metadata(path) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Checks whether the user has this access, as `access(2)`; with an empty mode, whether the path exists.
    ///
    /// # Errors
    /// `EACCES` if not.
    pub fn access(&self, path: impl AsRef<Path>, want: Access) -> Result<()> {
        self.run("use", path.as_ref(), |vfs, path| vfs.access(path, want))
    }

    fn change(&self, action: &'static str, path: &Path, set: &SetAttr, follow: bool) -> Result<()> {
        self.run(action, path, |vfs, path| vfs.setattr(path, set, follow))
            .map(drop)
    }

    /// Sets the permission bits (`07777`).
    ///
    /// # Errors
    /// `EPERM` unless the user owns the file.
    pub fn set_mode(&self, path: impl AsRef<Path>, mode: u32) -> Result<()> {
        self.change(SET_MODE, path.as_ref(), &mode_request(mode), true)
    }

    /// As [`Self::set_mode`]; does not follow a symbolic link.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for a symbolic link, which has no permission bits.
    pub fn set_mode_nofollow(&self, path: impl AsRef<Path>, mode: u32) -> Result<()> {
        self.change(SET_MODE, path.as_ref(), &mode_request(mode), false)
    }

    /// As [`Self::set_mode`], with the standard library's type.
    pub fn set_permissions(&self, path: impl AsRef<Path>, permissions: Permissions) -> Result<()> {
        self.set_mode(path, permissions.mode())
    }

    /// Sets owner and group; `None` leaves the value as it is. Clears setuid and setgid.
    ///
    /// # Errors
    /// `EPERM` unless the user is root, or owns the file and changes only its group, to a group that the user is in.
    pub fn chown(&self, path: impl AsRef<Path>, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        self.change(SET_OWNER, path.as_ref(), &owner_request(uid, gid), true)
    }

    /// As [`Self::chown`], of a symbolic link itself.
    pub fn lchown(&self, path: impl AsRef<Path>, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        self.change(SET_OWNER, path.as_ref(), &owner_request(uid, gid), false)
    }

    /// Sets access and modification time atomically.
    ///
    /// # Errors
    /// `EPERM` unless the user owns the file; to set both to now, write permission is enough.
    pub fn set_times(&self, path: impl AsRef<Path>, times: FileTimes) -> Result<()> {
        self.change(SET_TIMES, path.as_ref(), &times.request(), true)
    }

    /// As [`Self::set_times`], of a symbolic link itself.
    pub fn set_times_nofollow(&self, path: impl AsRef<Path>, times: FileTimes) -> Result<()> {
        self.change(SET_TIMES, path.as_ref(), &times.request(), false)
    }

    /// Sets the length of a file, as `truncate(2)`; extends it by a hole.
    ///
    /// # Errors
    /// `EISDIR` for a directory, `EACCES` unless the user may write it, `EFBIG` beyond the maximum file size.
    pub fn truncate(&self, path: impl AsRef<Path>, len_bytes: u64) -> Result<()> {
        let set = SetAttr {
            size: Some(len_bytes),
            ..SetAttr::default()
        };
        self.change(SET_LEN, path.as_ref(), &set, true)
    }

    /// Value of the extended attribute `name`, which includes its namespace (such as `user.`).
    ///
    /// # Errors
    /// `ENODATA` if there is no such attribute, or the user may not see it; `EOPNOTSUPP` for a namespace that is not
    /// supported.
    pub fn get_xattr(&self, path: impl AsRef<Path>, name: impl AsRef<OsStr>) -> Result<Vec<u8>> {
        self.run(GET_XATTR, path.as_ref(), |vfs, path| {
            vfs.getxattr_of(Target::Path(path), name.as_ref().as_bytes())
        })
    }

    /// As [`Self::get_xattr`], of a symbolic link itself.
    pub fn get_xattr_nofollow(&self, path: impl AsRef<Path>, name: impl AsRef<OsStr>) -> Result<Vec<u8>> {
        self.run(GET_XATTR, path.as_ref(), |vfs, path| {
            vfs.getxattr_of(Target::Link(path), name.as_ref().as_bytes())
        })
    }

    /// Sets the extended attribute `name`. `mode` says whether it must be new or must exist.
    ///
    /// # Errors
    /// `EEXIST` and `ENODATA` depending on `mode`; `E2BIG` for a value that can never fit, `ENOSPC` for one that does
    /// not fit next to the others; `EPERM` for `user.` on anything but files and directories, such as a symbolic link.
    pub fn set_xattr(
        &self,
        path: impl AsRef<Path>,
        name: impl AsRef<OsStr>,
        value: impl AsRef<[u8]>,
        mode: XattrMode,
    ) -> Result<()> {
        self.run(SET_XATTR, path.as_ref(), |vfs, path| {
            vfs.setxattr_of(Target::Path(path), name.as_ref().as_bytes(), value.as_ref(), mode)
        })
    }

    /// As [`Self::set_xattr`], of a symbolic link itself.
    pub fn set_xattr_nofollow(
        &self,
        path: impl AsRef<Path>,
        name: impl AsRef<OsStr>,
        value: impl AsRef<[u8]>,
        mode: XattrMode,
    ) -> Result<()> {
        self.run(SET_XATTR, path.as_ref(), |vfs, path| {
            vfs.setxattr_of(Target::Link(path), name.as_ref().as_bytes(), value.as_ref(), mode)
        })
    }

    /// Names of the extended attributes that the user may see.
    pub fn list_xattrs(&self, path: impl AsRef<Path>) -> Result<Vec<OsString>> {
        self.run(LIST_XATTRS, path.as_ref(), |vfs, path| {
            vfs.listxattr_of(Target::Path(path))
        })
        .map(os_strings)
    }

    /// As [`Self::list_xattrs`], of a symbolic link itself.
    pub fn list_xattrs_nofollow(&self, path: impl AsRef<Path>) -> Result<Vec<OsString>> {
        self.run(LIST_XATTRS, path.as_ref(), |vfs, path| {
            vfs.listxattr_of(Target::Link(path))
        })
        .map(os_strings)
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// `ENODATA` if there is no such attribute.
    pub fn remove_xattr(&self, path: impl AsRef<Path>, name: impl AsRef<OsStr>) -> Result<()> {
        self.run(REMOVE_XATTR, path.as_ref(), |vfs, path| {
            vfs.removexattr_of(Target::Path(path), name.as_ref().as_bytes())
        })
    }

    /// As [`Self::remove_xattr`], of a symbolic link itself.
    pub fn remove_xattr_nofollow(&self, path: impl AsRef<Path>, name: impl AsRef<OsStr>) -> Result<()> {
        self.run(REMOVE_XATTR, path.as_ref(), |vfs, path| {
            vfs.removexattr_of(Target::Link(path), name.as_ref().as_bytes())
        })
    }
}

pub(crate) fn os_strings(names: Vec<Vec<u8>>) -> Vec<OsString> {
    names.into_iter().map(OsString::from_vec).collect()
}
