//! Names and directories.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirEntryExt;

use ferrite::{Access, Dir, ReadDir, RenameMode};

use crate::border::{bytes_mut, text};
use crate::failure::{Failure, call, given};
use crate::volume::Volume;

/// A directory that is being listed.
pub struct Directory {
    dir: Dir,
    entries: ReadDir,
    name: CString,
    entry: Entry,
}

/// An entry of a directory.
#[repr(C)]
pub struct Entry {
    /// The inode's number.
    pub ino: u64,
    /// The kind of the file, as the part `S_IFMT` of a mode.
    pub kind: u32,
    /// The name. It is valid until the directory is read again, or closed.
    pub name: *const c_char,
}

/// Makes a directory. There is no umask.
#[unsafe(no_mangle)]
pub extern "C" fn ferrite_mkdir(volume: Option<&Volume>, path: *const c_char, mode: u32) -> c_int {
    call(-1, || {
        given(volume)?.0.create_dir_with(text(path, "the path")?, mode)?;
        Ok(0)
    })
}

/// Removes an empty directory.
#[unsafe(no_mangle)]
pub extern "C" fn ferrite_rmdir(volume: Option<&Volume>, path: *const c_char) -> c_int {
    call(-1, || {
        given(volume)?.0.remove_dir(text(path, "the path")?)?;
        Ok(0)
    })
}

/// Removes a name of a file. The file is freed when it has no name and nobody has it open.
#[unsafe(no_mangle)]
pub extern "C" fn ferrite_unlink(volume: Option<&Volume>, path: *const c_char) -> c_int {
    call(-1, || {
        given(volume)?.0.remove_file(text(path, "the path")?)?;
        Ok(0)
    })
}

/// Gives a file or directory another name, in one step. `flags` are those of renameat2(2): 0, `RENAME_NOREPLACE` or
/// `RENAME_EXCHANGE`, or leave a whiteout with `RENAME_WHITEOUT`.
#[unsafe(no_mangle)]
pub extern "C" fn ferrite_rename(
    volume: Option<&Volume>,
    from: *const c_char,
    to: *const c_char,
    flags: c_uint,
) -> c_int {
    call(-1, || {
        let unknown = || Failure::new(libc::EINVAL, format!("no flags {flags:#x} of renameat2"));
        let mode = RenameMode::from_flags(flags).ok_or_else(unknown)?;
        let (from, to) = (text(from, "the old path")?, text(to, "the new path")?);
        given(volume)?.0.rename_with(from, to, mode)?;
        Ok(0)
    })
}

/// Gives a file a further name.
#[unsafe(no_mangle)]
pub extern "C" fn ferrite_link(volume: Option<&Volume>, from: *const c_char, to: *const c_char) -> c_int {
    call(-1, || {
        let (from, to) = (text(from, "the path")?, text(to, "the new path")?);
        given(volume)?.0.hard_link(from, to)?;
        Ok(0)
    })
}

/// Clones a file, or a directory with all below it, to a new name: one state of it, in one step, which shares its
/// content instead of copying it.
#[unsafe(no_mangle)]
pub extern "C" fn ferrite_clone(volume: Option<&Volume>, from: *const c_char, to: *const c_char) -> c_int {
    call(-1, || {
        let (from, to) = (text(from, "the original")?, text(to, "the name of the clone")?);
        given(volume)?.0.clone_tree(from, to)?;
        Ok(0)
    })
}

/// Makes a symbolic link.
#[unsafe(no_mangle)]
pub extern "C" fn ferrite_symlink(volume: Option<&Volume>, target: *const c_char, path: *const c_char) -> c_int {
    call(-1, || {
        let (target, path) = (text(target, "the target")?, text(path, "the path")?);
        given(volume)?.0.symlink(target, path)?;
        Ok(0)
    })
}

/// Reads the target of a symbolic link, without a zero behind it. Returns its length, which may be more than `size`:
/// then the buffer has the beginning.
#[unsafe(no_mangle)]
pub extern "C" fn ferrite_readlink(
    volume: Option<&Volume>,
    path: *const c_char,
    buffer: *mut c_void,
    size: usize,
) -> libc::ssize_t {
    call(-1, || {
        let buffer = bytes_mut(buffer, size, "the buffer")?;
        let target = given(volume)?.0.read_link(text(path, "the path")?)?;
        Ok(beginning(target.as_os_str().as_bytes(), buffer))
    })
}

/// Copies as much as fits; returns the whole length.
pub(crate) fn beginning(value: &[u8], buffer: &mut [u8]) -> libc::ssize_t {
    let len = value.len().min(buffer.len());
    buffer[..len].copy_from_slice(&value[..len]);
    libc::ssize_t::try_from(value.len()).unwrap_or(libc::ssize_t::MAX)
}

/// Whether this process, as root, could access a file: `F_OK`, or `R_OK`, `W_OK` and `X_OK`.
#[unsafe(no_mangle)]
pub extern "C" fn ferrite_access(volume: Option<&Volume>, path: *const c_char, mode: c_int) -> c_int {
    call(-1, || {
        let want = Access {
            read: mode & libc::R_OK != 0,
            write: mode & libc::W_OK != 0,
            exec: mode & libc::X_OK != 0,
        };
        given(volume)?.0.access(text(path, "the path")?, want)?;
        Ok(0)
    })
}

/// Begins to list a directory. Returns a handle to be closed by `ferrite_closedir`, or NULL.
#[unsafe(no_mangle)]
pub extern "C" fn ferrite_opendir(volume: Option<&Volume>, path: *const c_char) -> Option<Box<Directory>> {
    call(None, || {
        let dir = given(volume)?.0.open_dir(text(path, "the path")?)?;
        Ok(Some(Box::new(Directory {
            entries: dir.entries()?,
            dir,
            name: CString::default(),
            entry: Entry {
                ino: 0,
                kind: 0,
                name: std::ptr::null(),
            },
        })))
    })
}

/// The next entry, without `.` and `..`. NULL at the end, with `errno` unchanged, and after an error. An entry that
/// exists throughout comes exactly once. One thread at a time may use the handle.
#[unsafe(no_mangle)]
pub extern "C" fn ferrite_readdir(directory: Option<&mut Directory>) -> *const Entry {
    call(std::ptr::null(), || {
        let directory = given(directory)?;
        let Some(entry) = directory.entries.next().transpose()? else {
            return Ok(std::ptr::null());
        };
        let name = CString::new(entry.file_name().as_bytes());
        directory.name = name.map_err(|_| Failure::new(libc::EIO, "a name with a zero"))?;
        directory.entry = Entry {
            ino: entry.ino(),
            kind: entry.file_type()?.kind().mode_bits(),
            name: directory.name.as_ptr(),
        };
        Ok(&raw const directory.entry)
    })
}

/// Begins a listing anew, with the names of now.
#[unsafe(no_mangle)]
pub extern "C" fn ferrite_rewinddir(directory: Option<&mut Directory>) -> c_int {
    call(-1, || {
        let directory = given(directory)?;
        directory.entries = directory.dir.entries()?;
        Ok(0)
    })
}

/// Ends a listing. NULL is accepted.
#[unsafe(no_mangle)]
pub extern "C" fn ferrite_closedir(directory: Option<Box<Directory>>) -> c_int {
    call(-1, || {
        drop(directory);
        Ok(0)
    })
}
