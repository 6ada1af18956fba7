//! FUSE requests as the kernel lays them out.
//!
//! Contents: the layouts of the kernel's `linux/fuse.h` (protocol 7.42) that requests have, [`Request`] and [`decode`].
//! This module carries out no request, and [`super::reply`] writes replies.
//!
//! Invariant: no content of a message makes this panic; an invalid message is `EIO`, an unknown opcode `ENOSYS`, after
//! which the kernel does without it.
//!
//! A request has three parts: a header that all have; a header of its opcode ([`super::kind::op_bytes`]); and the
//! payload, which has everything else. On `/dev/fuse` they follow each other. In the memory of a ring each has its
//! place, and the second takes 128 bytes, of which it uses as many as it needs.

use ferrite_vfs::{Ctx, SetAttr, SetTime, Timestamp};
use fuser::{Errno, WriteFlags};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::opcode;
use crate::locks::Wire;

/// Bytes of the largest header of an opcode, in the memory of a ring.
pub(crate) const OP_BYTES: usize = 128;

/// `struct fuse_in_header`.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct InHeader {
    pub(crate) len_bytes: u32,
    pub(crate) opcode: u32,
    pub(crate) unique: u64,
    pub(crate) ino: u64,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) pid: u32,
    pub(crate) padding: u32,
}

/// `struct fuse_out_header`.
#[repr(C)]
#[derive(Debug, Clone, Copy, IntoBytes, Immutable)]
pub(crate) struct OutHeader {
    len_bytes: u32,
    error: i32,
    unique: u64,
}

impl OutHeader {
    /// The header of a reply with `outcome` bytes of payload.
    pub(crate) fn new(unique: u64, outcome: Result<usize, Errno>) -> OutHeader {
        OutHeader {
            len_bytes: (size_of::<OutHeader>() + outcome.unwrap_or(0)) as u32,
            error: outcome.err().map_or(0, |errno| -errno.code()),
            unique,
        }
    }
}

/// The mode that a caller asks for, and the bits that its umask takes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NewBits {
    pub(crate) mode: u32,
    pub(crate) umask: u32,
}

impl NewBits {
    /// The context of the call that makes the inode.
    pub(crate) fn masked(&self, ctx: &Ctx) -> Ctx {
        Ctx {
            umask: self.umask,
            ..ctx.clone()
        }
    }
}

/// A request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Request<'a> {
    Lookup(&'a [u8]),
    GetAttr,
    SetAttr {
        fh: Option<u64>,
        set: SetAttr,
    },
    ReadLink,
    Symlink {
        name: &'a [u8],
        target: &'a [u8],
    },
    MkNod {
        name: &'a [u8],
        bits: NewBits,
        rdev: u32,
    },
    MkDir {
        name: &'a [u8],
        bits: NewBits,
    },
    Unlink(&'a [u8]),
    RmDir(&'a [u8]),
    Rename {
        name: &'a [u8],
        to: u64,
        new: &'a [u8],
        flags: u32,
    },
    Link {
        ino: u64,
        name: &'a [u8],
    },
    Open {
        flags: i32,
    },
    Create {
        name: &'a [u8],
        bits: NewBits,
        flags: i32,
    },
    Read {
        fh: u64,
        offset: u64,
        len_bytes: usize,
    },
    Write {
        /// The open file, and the offset in it.
        at: (u64, u64),
        how: WriteFlags,
        flags: i32,
        data: &'a [u8],
    },
    StatFs,
    Release {
        fh: u64,
    },
    FSync {
        fh: u64,
    },
    SetXattr {
        name: &'a [u8],
        value: &'a [u8],
        flags: i32,
    },
    GetXattr {
        name: &'a [u8],
        len_bytes: u32,
    },
    ListXattr {
        len_bytes: u32,
    },
    RemoveXattr(&'a [u8]),
    Flush {
        fh: u64,
        owner: u64,
    },
    OpenDir,
    ReadDir {
        offset: u64,
        len_bytes: usize,
    },
    ReadDirPlus {
        offset: u64,
        len_bytes: usize,
    },
    ReleaseDir,
    FSyncDir,
    GetLk {
        owner: u64,
        wanted: Wire,
    },
    SetLk {
        fh: u64,
        owner: u64,
        wanted: Wire,
        may_wait: bool,
        is_flock: bool,
    },
    Fallocate {
        /// The open file, and the offset in it.
        at: (u64, u64),
        length: u64,
        mode: i32,
    },
    CopyFileRange {
        /// The open file that is read, and the offset in it.
        from: (u64, u64),
        /// The one that is written.
        to: (u64, u64),
        length: u64,
    },
    LSeek {
        fh: u64,
        offset: i64,
        whence: i32,
    },
    Ioctl(IoctlCall<'a>),
    /// A file without a name.
    TmpFile {
        bits: NewBits,
        flags: i32,
    },
    /// Attributes, with the time of birth.
    StatX,
    /// The kernel gives up so many references to an inode.
    Forget {
        nlookup: u64,
    },
    /// And to several: [`forgotten`] takes them apart.
    BatchForget(&'a [u8]),
    /// A caller has a signal while it waits for the reply to another request.
    Interrupt {
        /// The other request.
        unique: u64,
    },
}

/// The references that a [`Request::BatchForget`] gives up: `struct fuse_forget_one`, an inode and a number.
pub(crate) fn forgotten(list: &[u8]) -> impl Iterator<Item = (u64, u64)> {
    let pairs = list.chunks_exact(size_of::<[u64; 2]>());
    pairs.filter_map(|pair| {
        <[u64; 2]>::read_from_bytes(pair)
            .ok()
            .map(|[ino, nlookup]| (ino, nlookup))
    })
}

/// Bits of `fuse_setattr_in.valid`.
mod valid {
    pub(super) const MODE: u32 = 1 << 0;
    pub(super) const UID: u32 = 1 << 1;
    pub(super) const GID: u32 = 1 << 2;
    pub(super) const SIZE: u32 = 1 << 3;
    pub(super) const ATIME: u32 = 1 << 4;
    pub(super) const MTIME: u32 = 1 << 5;
    pub(super) const FH: u32 = 1 << 6;
    pub(super) const ATIME_NOW: u32 = 1 << 7;
    pub(super) const MTIME_NOW: u32 = 1 << 8;
}

/// A command of ioctl(2).
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct IoctlCall<'a> {
    pub(crate) command: u32,
    pub(crate) data: &'a [u8],
    /// Bytes that the caller reads.
    pub(crate) wanted_bytes: u32,
}

/// `FUSE_LK_FLOCK`.
const LK_FLOCK: u32 = 1;
/// `FUSE_IOCTL_UNRESTRICTED`.
const IOCTL_UNRESTRICTED: u32 = 1;

/// `struct fuse_setattr_in`.
#[repr(C)]
#[derive(FromBytes)]
struct SetAttrIn {
    valid: u32,
    _padding: u32,
    fh: u64,
    size: u64,
    _lock_owner: u64,
    /// Seconds of the three times.
    times: [i64; 3],
    /// And nanoseconds.
    nanos: [u32; 3],
    mode: u32,
    _unused4: u32,
    uid: u32,
    gid: u32,
    _unused5: u32,
}

/// `struct fuse_read_in`, `struct fuse_write_in`.
#[repr(C)]
#[derive(FromBytes)]
pub(super) struct ReadWriteIn {
    fh: u64,
    offset: u64,
    pub(super) len_bytes: u32,
    how: u32,
    _lock_owner: u64,
    flags: i32,
    _padding: u32,
}

/// `struct fuse_lk_in`.
#[repr(C)]
#[derive(FromBytes)]
struct LkIn {
    fh: u64,
    owner: u64,
    start: u64,
    last: u64,
    kind: i32,
    pid: u32,
    flags: u32,
    _padding: u32,
}

/// `struct fuse_fallocate_in`; `struct fuse_lseek_in` begins with the same two fields.
#[repr(C)]
#[derive(FromBytes)]
struct FallocateIn {
    fh: u64,
    offset: u64,
    length: u64,
    mode: i32,
    _padding: u32,
}

/// `struct fuse_lseek_in`.
#[repr(C)]
#[derive(FromBytes)]
struct LSeekIn {
    fh: u64,
    offset: i64,
    whence: i32,
    _padding: u32,
}

/// The beginning of the opcode's header.
pub(super) fn read<T: FromBytes>(op: &[u8]) -> Result<T, Errno> {
    const { assert!(size_of::<T>() <= OP_BYTES) };
    T::read_from_prefix(op).map(|(value, _)| value).map_err(|_| Errno::EIO)
}

/// A name up to its zero byte, and the rest.
fn name(payload: &[u8]) -> Result<(&[u8], &[u8]), Errno> {
    let end = payload.iter().position(|&byte| byte == 0).ok_or(Errno::EIO)?;
    let (name, rest) = payload.split_at_checked(end).ok_or(Errno::EIO)?;
    Ok((name, rest.get(1..).unwrap_or_default()))
}

/// `struct fuse_copy_file_range_in`, whose flags the kernel refuses.
fn copy_file_range(op: &[u8]) -> Result<Request<'static>, Errno> {
    let [source, source_offset, _, file, file_offset, length, _] = read::<[u64; 7]>(op)?;
    Ok(Request::CopyFileRange {
        from: (source, offset(source_offset)?),
        to: (file, offset(file_offset)?),
        length,
    })
}

/// `struct fuse_ioctl_in`, as far as needed.
fn ioctl<'r>(op: &[u8], payload: &'r [u8]) -> Result<Request<'r>, Errno> {
    let [_, _, flags, command, _, _, given_bytes, wanted_bytes] = read::<[u32; 8]>(op)?;
    match flags & IOCTL_UNRESTRICTED {
        0 => Ok(Request::Ioctl(IoctlCall {
            command,
            data: payload.get(..given_bytes as usize).ok_or(Errno::EIO)?,
            wanted_bytes,
        })),
        _ => Err(Errno::ENOSYS),
    }
}

/// An offset in a file, which is signed for callers.
fn offset(offset: u64) -> Result<u64, Errno> {
    i64::try_from(offset).map(|_| offset).map_err(|_| Errno::EINVAL)
}

fn set_attr(it: &SetAttrIn) -> SetAttr {
    let given = |bit| it.valid & bit != 0;
    let time = |bit, now, which: usize| match () {
        () if given(bit) && given(now) => Some(SetTime::Now),
        () if given(bit) => Some(SetTime::To(Timestamp::new(it.times[which], it.nanos[which]))),
        () => None,
    };
    SetAttr {
        mode: given(valid::MODE).then_some(it.mode),
        uid: given(valid::UID).then_some(it.uid),
        gid: given(valid::GID).then_some(it.gid),
        size: given(valid::SIZE).then_some(it.size),
        atime: time(valid::ATIME, valid::ATIME_NOW, 0),
        mtime: time(valid::MTIME, valid::MTIME_NOW, 1),
        kill_priv: false,
    }
}

/// Decodes a request with this header of its opcode, whose payload is all of `payload`.
pub(crate) fn decode<'a>(opcode: u32, op: &[u8], payload: &'a [u8]) -> Result<Request<'a>, Errno> {
    use opcode::*;
    match opcode {
        LOOKUP | SYMLINK | MKNOD | MKDIR | UNLINK | RMDIR | RENAME | RENAME2 | LINK | CREATE => {
            decode_of_name(opcode, op, payload)
        }
        GETATTR | SETATTR | READLINK | SETXATTR | GETXATTR | LISTXATTR | REMOVEXATTR | STATX => {
            decode_of_attributes(opcode, op, payload)
        }
        GETLK | SETLK | SETLKW => decode_lock(opcode, op),
        OPENDIR | READDIR | READDIRPLUS | RELEASEDIR | FSYNCDIR => decode_of_directory(opcode, op),
        FORGET | BATCH_FORGET | INTERRUPT => decode_note(opcode, op, payload),
        _ => decode_of_file(opcode, op, payload),
    }
}

/// Requests without a reply.
fn decode_note<'a>(opcode: u32, op: &[u8], payload: &'a [u8]) -> Result<Request<'a>, Errno> {
    Ok(match opcode {
        opcode::FORGET => {
            let [nlookup] = read::<[u64; 1]>(op)?;
            Request::Forget { nlookup }
        }
        opcode::BATCH_FORGET => {
            let [count, _] = read::<[u32; 2]>(op)?;
            let len_bytes = (count as usize).saturating_mul(size_of::<[u64; 2]>());
            Request::BatchForget(payload.get(..len_bytes).ok_or(Errno::EIO)?)
        }
        _ => {
            let [unique] = read::<[u64; 1]>(op)?;
            Request::Interrupt { unique }
        }
    })
}

/// Requests that name an entry of a directory.
fn decode_of_name<'a>(opcode: u32, op: &[u8], payload: &'a [u8]) -> Result<Request<'a>, Errno> {
    use opcode::*;
    let (first, rest) = name(payload)?;
    Ok(match opcode {
        LOOKUP => Request::Lookup(first),
        SYMLINK => {
            let (target, _) = name(rest)?;
            Request::Symlink { name: first, target }
        }
        MKNOD => {
            let [mode, rdev, umask, _] = read::<[u32; 4]>(op)?;
            Request::MkNod {
                name: first,
                bits: NewBits { mode, umask },
                rdev,
            }
        }
        MKDIR => {
            let [mode, umask] = read::<[u32; 2]>(op)?;
            Request::MkDir {
                name: first,
                bits: NewBits { mode, umask },
            }
        }
        UNLINK => Request::Unlink(first),
        RMDIR => Request::RmDir(first),
        RENAME | RENAME2 => {
            let [to] = read::<[u64; 1]>(op)?;
            // A `RENAME` has none: in a ring, other bytes are in that place.
            let flags = match opcode {
                RENAME2 => read::<[u64; 2]>(op)?[1] as u32,
                _ => 0,
            };
            let (new, _) = name(rest)?;
            Request::Rename {
                name: first,
                to,
                new,
                flags,
            }
        }
        LINK => {
            let [ino] = read::<[u64; 1]>(op)?;
            Request::Link { ino, name: first }
        }
        CREATE => {
            let [flags, mode, umask, _] = read::<[u32; 4]>(op)?;
            let flags = flags as i32;
            Request::Create {
                name: first,
                bits: NewBits { mode, umask },
                flags,
            }
        }
        _ => return Err(Errno::ENOSYS),
    })
}

/// Requests for attributes, extended ones included, and for the target of a link.
fn decode_of_attributes<'a>(opcode: u32, op: &[u8], payload: &'a [u8]) -> Result<Request<'a>, Errno> {
    use opcode::*;
    Ok(match opcode {
        GETATTR => Request::GetAttr,
        STATX => Request::StatX,
        SETATTR => {
            let it = read::<SetAttrIn>(op)?;
            let fh = (it.valid & valid::FH != 0).then_some(it.fh);
            Request::SetAttr { fh, set: set_attr(&it) }
        }
        READLINK => Request::ReadLink,
        SETXATTR => {
            let [len_bytes, flags] = read::<[u32; 2]>(op)?;
            let (name, rest) = name(payload)?;
            let value = rest.get(..len_bytes as usize).ok_or(Errno::EIO)?;
            let flags = flags as i32;
            Request::SetXattr { name, value, flags }
        }
        GETXATTR => {
            let [len_bytes] = read::<[u32; 1]>(op)?;
            let (name, _) = name(payload)?;
            Request::GetXattr { name, len_bytes }
        }
        LISTXATTR => {
            let [len_bytes] = read::<[u32; 1]>(op)?;
            Request::ListXattr { len_bytes }
        }
        REMOVEXATTR => Request::RemoveXattr(name(payload)?.0),
        _ => return Err(Errno::ENOSYS),
    })
}

fn decode_lock(opcode: u32, op: &[u8]) -> Result<Request<'static>, Errno> {
    use opcode::*;
    let it = read::<LkIn>(op)?;
    let wanted = Wire {
        start: it.start,
        last: it.last,
        kind: it.kind,
        pid: it.pid,
    };
    let (fh, owner) = (it.fh, it.owner);
    Ok(match opcode {
        GETLK => Request::GetLk { owner, wanted },
        opcode => Request::SetLk {
            fh,
            owner,
            wanted,
            may_wait: opcode == SETLKW,
            is_flock: it.flags & LK_FLOCK != 0,
        },
    })
}

fn decode_of_directory(opcode: u32, op: &[u8]) -> Result<Request<'static>, Errno> {
    use opcode::*;
    Ok(match opcode {
        OPENDIR => Request::OpenDir,
        opcode @ (READDIR | READDIRPLUS) => {
            let it = read::<ReadWriteIn>(op)?;
            let (offset, len_bytes) = (it.offset, it.len_bytes as usize);
            match opcode {
                READDIR => Request::ReadDir { offset, len_bytes },
                _ => Request::ReadDirPlus { offset, len_bytes },
            }
        }
        RELEASEDIR => Request::ReleaseDir,
        FSYNCDIR => Request::FSyncDir,
        _ => return Err(Errno::ENOSYS),
    })
}

/// Requests of open files, and of the file system as a whole.
fn decode_of_file<'a>(opcode: u32, op: &[u8], payload: &'a [u8]) -> Result<Request<'a>, Errno> {
    use opcode::*;
    Ok(match opcode {
        OPEN => {
            let [flags] = read::<[i32; 1]>(op)?;
            Request::Open { flags }
        }
        READ => {
            let it = read::<ReadWriteIn>(op)?;
            Request::Read {
                fh: it.fh,
                offset: offset(it.offset)?,
                len_bytes: it.len_bytes as usize,
            }
        }
        WRITE => {
            let it = read::<ReadWriteIn>(op)?;
            Request::Write {
                at: (it.fh, offset(it.offset)?),
                how: WriteFlags::from_bits_retain(it.how),
                flags: it.flags,
                data: payload.get(..it.len_bytes as usize).ok_or(Errno::EIO)?,
            }
        }
        STATFS => Request::StatFs,
        RELEASE => {
            let [fh] = read::<[u64; 1]>(op)?;
            Request::Release { fh }
        }
        FSYNC => {
            let [fh] = read::<[u64; 1]>(op)?;
            Request::FSync { fh }
        }
        FLUSH => {
            let [fh, _, owner] = read::<[u64; 3]>(op)?;
            Request::Flush { fh, owner }
        }
        FALLOCATE => {
            let it = read::<FallocateIn>(op)?;
            Request::Fallocate {
                at: (it.fh, offset(it.offset)?),
                length: offset(it.length)?,
                mode: it.mode,
            }
        }
        COPY_FILE_RANGE => copy_file_range(op)?,
        LSEEK => {
            let it = read::<LSeekIn>(op)?;
            Request::LSeek {
                fh: it.fh,
                offset: it.offset,
                whence: it.whence,
            }
        }
        TMPFILE => {
            let [flags, mode, umask, _] = read::<[u32; 4]>(op)?;
            let flags = flags as i32;
            Request::TmpFile {
                bits: NewBits { mode, umask },
                flags,
            }
        }
        IOCTL => ioctl(op, payload)?,
        _ => return Err(Errno::ENOSYS),
    })
}

#[cfg(test)]
mod tests;
