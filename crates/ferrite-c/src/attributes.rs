//! Attributes and extended attributes.

use std::ffi::{OsString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ferrite::{FileTimes, Metadata, XattrMode};

use crate::border::{self, Grows, bytes, bytes_mut, load, text};
use crate::failure::{Failure, call, given};
use crate::file::OpenFile;
use crate::names::beginning;
use crate::volume::Volume;

/// `nanoseconds` of a time that is to be the current one.
pub const FERRITE_TIME_NOW: i64 = (1 << 30) - 1;
/// `nanoseconds` of a time that is to stay.
pub const FERRITE_TIME_OMIT: i64 = (1 << 30) - 2;
/// Functions on a path change or show a symbolic link itself.
pub const FERRITE_NOFOLLOW: c_int = 1;

/// A time since 1970.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Time {
    /// Whole seconds; before 1970 negative.
    pub seconds: i64,
    /// The rest, 0 to 999,999,999; or `FERRITE_TIME_NOW` or `FERRITE_TIME_OMIT`.
    pub nanoseconds: i64,
}

/// Attributes of a file.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Stat {
    /// The size of this struct, which the caller sets.
    pub struct_size: usize,
    /// The inode's number.
    pub ino: u64,
    /// Bytes of content.
    pub size: u64,
    /// Space in use, in units of 512 bytes.
    pub blocks: u64,
    /// The number of a device, else 0.
    pub rdev: u64,
    /// Kind and permissions, as in stat(2).
    pub mode: u32,
    /// Names of the inode.
    pub nlink: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// Last access.
    pub accessed: Time,
    /// Last change of the content.
    pub modified: Time,
    /// Last change of content or attributes.
    pub changed: Time,
}

// SAFETY: numbers only, ordered so that none needs padding in front, and a multiple of eight bytes in all.
unsafe impl Grows for Stat {}
const _: () = assert!(size_of::<Stat>() == size_of::<usize>() + 4 * 8 + 4 * 4 + 3 * 16);

impl Stat {
    fn of(metadata: &Metadata) -> Stat {
        let time = |seconds, nanoseconds| Time { seconds, nanoseconds };
        let word = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        Stat {
            struct_size: 0,
            ino: metadata.ino(),
            size: metadata.size(),
            blocks: metadata.blocks(),
            rdev: metadata.rdev(),
            mode: metadata.mode(),
            nlink: word(metadata.nlink()),
            uid: metadata.uid(),
            gid: metadata.gid(),
            accessed: time(metadata.atime(), metadata.atime_nsec()),
            modified: time(metadata.mtime(), metadata.mtime_nsec()),
            changed: time(metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// The time to set, if any.
fn wanted(time: Time) -> Result<Option<Option<SystemTime>>, Failure> {
    match time.nanoseconds {
        FERRITE_TIME_OMIT => Ok(None),
        FERRITE_TIME_NOW => Ok(Some(None)),
        nanoseconds @ 0..1_000_000_000 => {
            let part = Duration::from_nanos(nanoseconds.unsigned_abs());
            let whole = Duration::from_secs(time.seconds.unsigned_abs());
            let base = match time.seconds {
                0.. => UNIX_EPOCH.checked_add(whole),
                _ => UNIX_EPOCH.checked_sub(whole),
            };
            let time = base.and_then(|base| base.checked_add(part));
            time.map(|time| Some(Some(time)))
                .ok_or_else(|| Failure::new(libc::EINVAL, "the time is too far away"))
        }
        _ => Err(Failure::new(
            libc::EINVAL,
            "a time has less than 1,000,000,000 nanoseconds",
        )),
    }
}

fn times(accessed: *const Time, modified: *const Time) -> Result<FileTimes, Failure> {
    let mut times = FileTimes::new();
    match wanted(load(accessed, "the time of access")?)? {
        None => {}
        Some(None) => times = times.set_accessed_now(),
        Some(Some(time)) => times = times.set_accessed(time),
    }
    match wanted(load(modified, "the time of change")?)? {
        None => {}
        Some(None) => times = times.set_modified_now(),
        Some(Some(time)) => times = times.set_modified(time),
    }
    Ok(times)
}

fn follows(flags: c_int) -> Result<bool, Failure> {
    match flags {
        0 => Ok(true),
        FERRITE_NOFOLLOW => Ok(false),
        _ => Err(Failure::new(libc::EINVAL, format!("no flags {flags:#x}"))),
    }
}

/// Attributes of a file. `flags` is 0 or `FERRITE_NOFOLLOW`.
#[unsafe(no_mangle)]
pub extern "C" fn ferrite_stat_of(
    volume: Option<&Volume>,
    path: *const c_char,
    stat: *mut Stat,
    flags: c_int,
) -> c_int {
    call(-1, || {
        let (fs, path) = (&given(volume)?.0, text(path, "the path")?);
        let metadata = match follows(flags)? {
            true => fs.metadata(path)?,
            false => fs.symlink_metadata(path)?,
        };
        border::fill(stat, &Stat::of(&metadata), "ferrite_stat")?;
        Ok(0)
    })
}

/// Attributes of an open file.
#[unsafe(no_mangle)]
pub extern "C" fn ferrite_fstat(file: Option<&OpenFile>, stat: *mut Stat) -> c_int {
    call(-1, || {
        let metadata = given(file)?.file.metadata()?;
        border::fill(stat, &Stat::of(&metadata), "ferrite_stat")?;
        Ok(0)
    })
}

/// Sets permissions. `flags` is 0 or `FERRITE_NOFOLLOW`.
#[unsafe(no_mangle)]
pub extern "C" fn ferrite_chmod(volume: Option<&Volume>, path: *const c_char, mode: u32, flags: c_int) -> c_int {
    call(-1, || {
        let (fs, path) = (&given(volume)?.0, text(path, "the path")?);
        match follows(flags)? {
            true => fs.set_mode(path, mode)?,
            false => fs.set_mode_nofollow(path, mode)?,
        }
        Ok(0)
    })
}

/// Sets the owner and the group; one that is the highest number, -1, stays. `flags` is 0 or `FERRITE_NOFOLLOW`.
#[unsafe(no_mangle)]
pub extern "C" fn ferrite_chown(
    volume: Option<&Volume>,
    path: *const c_char,
    uid: u32,
    gid: u32,
    flags: c_int,
) -> c_int {
    call(-1, || {
        let (fs, path) = (&given(volume)?.0, text(path, "the path")?);
        let [uid, gid] = [uid, gid].map(|id| (id != u32::MAX).then_some(id));
        match follows(flags)? {
            true => fs.chown(path, uid, gid)?,
            false => fs.lchown(path, uid, gid)?,
        }
        Ok(0)
    })
}

/// Sets the times of access and of change. `flags` is 0 or `FERRITE_NOFOLLOW`.
#[unsafe(no_mangle)]
pub extern "C" fn ferrite_set_times(
    volume: Option<&Volume>,
    path: *const c_char,
    accessed: *const Time,
    modified: *const Time,
    flags: c_int,
) -> c_int {
    call(-1, || {
        let (fs, path) = (&given(volume)?.0, text(path, "the path")?);
        let times = times(accessed, modified)?;
        match follows(flags)? {
            true => fs.set_times(path, times)?,
            false => fs.set_times_nofollow(path, times)?,
        }
        Ok(0)
    })
}

/// Sets the size of a file.
#[unsafe(no_mangle)]
pub extern "C" fn ferrite_truncate(volume: Option<&Volume>, path: *const c_char, size: i64) -> c_int {
    call(-1, || {
        let size = u64::try_from(size).map_err(|_| Failure::new(libc::EINVAL, "the size is negative"))?;
        given(volume)?.0.truncate(text(path, "the path")?, size)?;
        Ok(0)
    })
}

/// Reads an extended attribute. Returns the length of its value, which may be more than `size`: then the buffer has
/// the beginning. `flags` is 0 or `FERRITE_NOFOLLOW`.
#[unsafe(no_mangle)]
pub extern "C" fn ferrite_getxattr(
    volume: Option<&Volume>,
    path: *const c_char,
    name: *const c_char,
    buffer: *mut c_void,
    size: usize,
    flags: c_int,
) -> libc::ssize_t {
    call(-1, || {
        let (fs, path, name) = (&given(volume)?.0, text(path, "the path")?, text(name, "the name")?);
        let buffer = bytes_mut(buffer, size, "the buffer")?;
        let value = match follows(flags)? {
            true => fs.get_xattr(path, name)?,
            false => fs.get_xattr_nofollow(path, name)?,
        };
        Ok(beginning(&value, buffer))
    })
}

/// Sets an extended attribute. `flags` is 0, `XATTR_CREATE` or `XATTR_REPLACE`.
#[unsafe(no_mangle)]
pub extern "C" fn ferrite_setxattr(
    volume: Option<&Volume>,
    path: *const c_char,
    name: *const c_char,
    value: *const c_void,
    len: usize,
    flags: c_int,
) -> c_int {
    call(-1, || {
        let (fs, path, name) = (&given(volume)?.0, text(path, "the path")?, text(name, "the name")?);
        let mode = match flags {
            0 => XattrMode::Any,
            libc::XATTR_CREATE => XattrMode::Create,
            libc::XATTR_REPLACE => XattrMode::Replace,
            _ => return Err(Failure::new(libc::EINVAL, format!("no flags {flags:#x} of setxattr"))),
        };
        fs.set_xattr(path, name, bytes(value, len, "the value")?, mode)?;
        Ok(0)
    })
}

/// Lists the names of extended attributes, each with a zero behind it. Returns their length, which may be more than
/// `size`: then the buffer has the beginning.
#[unsafe(no_mangle)]
pub extern "C" fn ferrite_listxattr(
    volume: Option<&Volume>,
    path: *const c_char,
    buffer: *mut c_void,
    size: usize,
) -> libc::ssize_t {
    call(-1, || {
        let buffer = bytes_mut(buffer, size, "the buffer")?;
        let names: Vec<OsString> = given(volume)?.0.list_xattrs(text(path, "the path")?)?;
        let all: Vec<u8> = names
            .iter()
            .flat_map(|name| [name.as_bytes(), b"\0"].concat())
            .collect();
        Ok(beginning(&all, buffer))
    })
}

/// Removes an extended attribute.
#[unsafe(no_mangle)]
pub extern "C" fn ferrite_removexattr(volume: Option<&Volume>, path: *const c_char, name: *const c_char) -> c_int {
    call(-1, || {
        given(volume)?
            .0
            .remove_xattr(text(path, "the path")?, text(name, "the name")?)?;
        Ok(0)
    })
}
