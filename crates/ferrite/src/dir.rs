//! [`Dir`]: an open directory, and operations relative to it, like the `*at` system calls.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::Permissions;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ferrite_vfs::posix::Access;
use ferrite_vfs::{Cred, FsError, NewNode, RenameMode, XattrMode};

use crate::attributes::action::STAT;
use crate::error::{Cause, Error, Result};
use crate::file::File;
use crate::fork_guard::ForkGuard;
use crate::fs::{Fs, bytes};
use crate::listing::ReadDir;
use crate::metadata::{FileTimes, Metadata};
use crate::open::OpenOptions;

/// An open directory. It stays the same directory if it is renamed. A removed one is empty, and nothing can be created
/// in it (`ENOENT`). Clones share one handle; dropping the last one closes it.
///
/// Paths are relative to it. As with `openat(2)`, absolute ones start at the root, and `..` and links may lead out of
/// it: it is not a sandbox. Its user is that of the [`Fs`] that opened it.
#[derive(Clone)]
pub struct Dir {
    /// With relative paths that start here.
    fs: Fs,
    handle: ForkGuard<Arc<ferrite_vfs::Dir>>,
}

macro_rules! as_fs {
    ($($(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {$(
        #[doc = concat!("As [`Fs::", stringify!($name), "`], from here.")]
        $(#[$doc])*
        pub fn $name(&self, $($argument: $type),*) -> $result {
            self.fs.$name($($argument),*)
        }
    )*};
}

impl Dir {
    pub(crate) fn open(fs: &Fs, path: &Path, follow: bool) -> Result<Dir> {
        let handle = fs.hand_out("open the directory", path, |vfs, path| {
            let dir = match follow {
                true => vfs.open_dir(path)?,
                false => vfs.open_dir_itself(path)?,
            };
            Ok(Arc::new(dir))
        })?;
        Ok(Dir {
            fs: fs.at_dir(handle.peek(), path),
            handle,
        })
    }

    /// The same directory, used with the permissions of another user, who does not need permission to open it.
    pub fn as_user(&self, cred: Cred) -> Dir {
        Dir {
            fs: self.fs.as_user(cred),
            handle: self.handle.clone(),
        }
    }

    /// Calls `f` with this directory's handle. `action` describes the operation in errors.
    fn run<T>(&self, action: &'static str, f: impl FnOnce(&ferrite_vfs::Dir) -> ferrite_vfs::Result<T>) -> Result<T> {
        let run = || -> Result<T, Cause> { Ok(f(self.handle.get()?)?) };
        run().map_err(|cause| Error::new(action, self.path(), cause))
    }

    /// The path with which it was opened.
    pub fn path(&self) -> &Path {
        self.fs.prefix()
    }

    /// Attributes of the directory.
    pub fn dir_metadata(&self) -> Result<Metadata> {
        self.run(STAT, ferrite_vfs::Dir::getattr).map(Metadata)
    }

    /// Lists the directory. Permission was checked when it was opened. Entries that exist throughout are returned
    /// exactly once.
    pub fn entries(&self) -> Result<ReadDir> {
        ReadDir::new(self.handle.clone(), self.fs.clone(), Path::new(""), false)
    }

    /// As [`OpenOptions::open`], from here.
    pub fn open_with(&self, path: impl AsRef<Path>, options: &OpenOptions) -> Result<File> {
        options.open(&self.fs, path)
    }

    /// Where relative paths of `target` start, for an operation that begins here.
    fn base_of(&self, target: &Dir) -> ferrite_vfs::Result<u64> {
        let [here, there] = [self, target].map(|dir| &dir.fs.parts().peek().vfs);
        if !Arc::ptr_eq(here.fs(), there.fs()) {
            return Err(FsError::CrossDevice);
        }
        Ok(target.handle.peek().ino())
    }

    /// Renames `from` in this directory to `to` in `target`, replacing an existing `to`; atomic, also in a crash.
    ///
    /// # Errors
    /// Those of `renameat(2)`; `EXDEV` for directories of two file systems.
    pub fn rename(&self, from: impl AsRef<Path>, target: &Dir, to: impl AsRef<Path>) -> Result<()> {
        self.rename_with(from, target, to, RenameMode::Replace)
    }

    /// As [`Self::rename`], but without replacing, or as an exchange of the two names.
    pub fn rename_with(
        &self,
        from: impl AsRef<Path>,
        target: &Dir,
        to: impl AsRef<Path>,
        mode: RenameMode,
    ) -> Result<()> {
        let to = to.as_ref();
        self.fs
            .run("rename", from.as_ref(), |vfs, from| {
                vfs.rename_at(from, self.base_of(target)?, bytes(to), mode)
            })
            .map_err(|error| error.with_new_path(target.path().join(to)))
    }

    /// Creates a hard link `link` in `target` to the file `original` in this directory.
    ///
    /// # Errors
    /// Those of `linkat(2)`; `EXDEV` for directories of two file systems.
    pub fn hard_link(&self, original: impl AsRef<Path>, target: &Dir, link: impl AsRef<Path>) -> Result<()> {
        let link = link.as_ref();
        self.fs
            .run("link", original.as_ref(), |vfs, original| {
                vfs.link_at(original, self.base_of(target)?, bytes(link))
            })
            .map(drop)
            .map_err(|error| error.with_new_path(target.path().join(link)))
    }

    as_fs! {
        open_file(path: impl AsRef<Path>) -> Result<File>;
        create_file(path: impl AsRef<Path>) -> Result<File>;
        open_dir(path: impl AsRef<Path>) -> Result<Dir>;
        open_dir_nofollow(path: impl AsRef<Path>) -> Result<Dir>;
        read(path: impl AsRef<Path>) -> Result<Vec<u8>>;
        read_to_string(path: impl AsRef<Path>) -> Result<String>;
        write(path: impl AsRef<Path>, content: impl AsRef<[u8]>) -> Result<()>;
        copy(from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<u64>;
        read_dir(path: impl AsRef<Path>) -> Result<ReadDir>;
        read_dir_with_metadata(path: impl AsRef<Path>) -> Result<ReadDir>;
        create_dir(path: impl AsRef<Path>) -> Result<()>;
        create_dir_with(path: impl AsRef<Path>, mode: u32) -> Result<()>;
        create_dir_all(path: impl AsRef<Path>) -> Result<()>;
        remove_dir(path: impl AsRef<Path>) -> Result<()>;
        remove_dir_all(path: impl AsRef<Path>) -> Result<()>;
        remove_file(path: impl AsRef<Path>) -> Result<()>;
        symlink(target: impl AsRef<Path>, link: impl AsRef<Path>) -> Result<()>;
        read_link(path: impl AsRef<Path>) -> Result<PathBuf>;
        mknod(path: impl AsRef<Path>, node: &NewNode) -> Result<()>;
        metadata(path: impl AsRef<Path>) -> Result<Metadata>;
        symlink_metadata(path: impl AsRef<Path>) -> Result<Metadata>;
        exists(path: impl AsRef<Path>) -> bool;
        try_exists(path: impl AsRef<Path>) -> Result<bool>;
        access(path: impl AsRef<Path>, want: Access) -> Result<()>;
        set_mode(path: impl AsRef<Path>, mode: u32) -> Result<()>;
        set_mode_nofollow(path: impl AsRef<Path>, mode: u32) -> Result<()>;
        set_permissions(path: impl AsRef<Path>, permissions: Permissions) -> Result<()>;
        chown(path: impl AsRef<Path>, uid: Option<u32>, gid: Option<u32>) -> Result<()>;
        lchown(path: impl AsRef<Path>, uid: Option<u32>, gid: Option<u32>) -> Result<()>;
        set_times(path: impl AsRef<Path>, times: FileTimes) -> Result<()>;
        set_times_nofollow(path: impl AsRef<Path>, times: FileTimes) -> Result<()>;
        truncate(path: impl AsRef<Path>, len_bytes: u64) -> Result<()>;
        get_xattr(path: impl AsRef<Path>, name: impl AsRef<OsStr>) -> Result<Vec<u8>>;
        get_xattr_nofollow(path: impl AsRef<Path>, name: impl AsRef<OsStr>) -> Result<Vec<u8>>;
        set_xattr(
            path: impl AsRef<Path>,
            name: impl AsRef<OsStr>,
            value: impl AsRef<[u8]>,
            mode: XattrMode
        ) -> Result<()>;
        set_xattr_nofollow(
            path: impl AsRef<Path>,
            name: impl AsRef<OsStr>,
            value: impl AsRef<[u8]>,
            mode: XattrMode
        ) -> Result<()>;
        list_xattrs(path: impl AsRef<Path>) -> Result<Vec<OsString>>;
        list_xattrs_nofollow(path: impl AsRef<Path>) -> Result<Vec<OsString>>;
        remove_xattr(path: impl AsRef<Path>, name: impl AsRef<OsStr>) -> Result<()>;
        remove_xattr_nofollow(path: impl AsRef<Path>, name: impl AsRef<OsStr>) -> Result<()>;
    }
}

impl fmt::Debug for Dir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dir")
            .field("path", &self.path())
            .finish_non_exhaustive()
    }
}
