//! Replies, as the kernel reads them from a message's payload.
//!
//! Contents: the layouts of `linux/fuse.h` for replies, [`Encode`] for the service's results, and [`Reply`] for
//! listings, which end when the space does.
//!
//! Invariant: nothing is written past the payload; a reply that does not fit is an error, or absent from the list.

use std::time::Duration;

use ferrite_vfs::{Attr, FileKind, NAME_MAX, StatFs, Timestamp};
use fuser::Errno;
use zerocopy::{Immutable, IntoBytes};

use crate::attr_validity::AttrValidity;
use crate::convert::BLOCK_BYTES;
use crate::locks::Wire;
use crate::service::{Entry, Known, Listed, Opened};

/// The size that a listing returns for a name whose inode cannot be read. No file is this long: the kernel returns the
/// name, makes no inode of the rest (Linux 5.5; before, it does, but asks again at the next use), and at once forgets
/// the number, which was never pinned. That does no harm: an unreadable inode is not freed either.
const UNKNOWN_SIZE: u64 = u64::MAX;

/// `struct fuse_attr`.
#[repr(C)]
#[derive(IntoBytes, Immutable)]
struct AttrOut {
    ino: u64,
    size: u64,
    blocks: u64,
    /// Seconds of the three times.
    times: [i64; 3],
    /// And nanoseconds.
    nanos: [u32; 3],
    mode: u32,
    nlink: u32,
    uid: u32,
    gid: u32,
    rdev: u32,
    block_bytes: u32,
    flags: u32,
}

impl AttrOut {
    fn of(attr: &Attr) -> AttrOut {
        let times = [attr.atime, attr.mtime, attr.ctime];
        AttrOut {
            ino: attr.ino,
            size: attr.size,
            blocks: attr.blocks,
            times: times.map(Timestamp::seconds),
            nanos: times.map(Timestamp::nanoseconds),
            mode: attr.kind.mode_bits() | (attr.mode & 0o7777),
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            rdev: attr.rdev,
            block_bytes: BLOCK_BYTES,
            flags: 0,
        }
    }

    /// Of what has no attributes: a name that does not exist, with number 0, which the kernel then caches; and a name
    /// in a listing whose inode cannot be read ([`UNKNOWN_SIZE`]).
    fn without(ino: u64, kind: FileKind, size: u64) -> AttrOut {
        AttrOut {
            ino,
            size,
            blocks: 0,
            times: [0; 3],
            nanos: [0; 3],
            mode: kind.mode_bits(),
            nlink: 0,
            uid: 0,
            gid: 0,
            rdev: 0,
            block_bytes: BLOCK_BYTES,
            flags: 0,
        }
    }
}

/// `struct fuse_entry_out`.
#[repr(C)]
#[derive(IntoBytes, Immutable)]
struct EntryOut {
    ino: u64,
    generation: u64,
    name_ttl: u64,
    attr_ttl: u64,
    name_ttl_nanos: u32,
    attr_ttl_nanos: u32,
    attr: AttrOut,
}

impl EntryOut {
    fn new(attr: AttrOut, generation: u32, name_ttl: Duration, attr_validity: AttrValidity) -> EntryOut {
        let attr_ttl = attr_validity.duration();
        EntryOut {
            ino: attr.ino,
            generation: u64::from(generation),
            name_ttl: name_ttl.as_secs(),
            attr_ttl: attr_ttl.as_secs(),
            name_ttl_nanos: name_ttl.subsec_nanos(),
            attr_ttl_nanos: attr_ttl.subsec_nanos(),
            attr,
        }
    }
}

/// `struct fuse_attr_out`.
#[repr(C)]
#[derive(IntoBytes, Immutable)]
struct KnownOut {
    ttl: u64,
    ttl_nanos: u32,
    dummy: u32,
    attr: AttrOut,
}

/// `struct fuse_open_out`.
#[repr(C)]
#[derive(IntoBytes, Immutable)]
struct OpenOut {
    fh: u64,
    flags: u32,
    backing: u32,
}

/// `struct fuse_kstatfs`.
#[repr(C)]
#[derive(IntoBytes, Immutable)]
struct StatFsOut {
    blocks: [u64; 3],
    inodes: [u64; 2],
    block_bytes: u32,
    name_max: u32,
    fragment_bytes: u32,
    padding: u32,
    spare: [u32; 6],
}

/// `struct fuse_file_lock`.
#[repr(C)]
#[derive(IntoBytes, Immutable)]
struct LkOut {
    start: u64,
    last: u64,
    kind: i32,
    pid: u32,
}

/// `struct fuse_dirent`, without the name.
#[repr(C)]
#[derive(IntoBytes, Immutable)]
struct DirentOut {
    ino: u64,
    next: u64,
    name_bytes: u32,
    kind: u32,
}

/// Writes a reply's payload, which is bounded by the given buffer.
pub(crate) struct Reply<'a> {
    payload: &'a mut [u8],
    len_bytes: usize,
}

impl Reply<'_> {
    /// A reply of at most `max_bytes`.
    pub(crate) fn within(payload: &mut [u8], max_bytes: usize) -> Reply<'_> {
        let end = max_bytes.min(payload.len());
        Reply {
            payload: &mut payload[..end],
            len_bytes: 0,
        }
    }

    /// Adds all of it, or nothing; returns whether it fit.
    fn push(&mut self, bytes: &[u8]) -> bool {
        let end = self.len_bytes + bytes.len();
        match self.payload.get_mut(self.len_bytes..end) {
            Some(buf) => buf.copy_from_slice(bytes),
            None => return false,
        }
        self.len_bytes = end;
        true
    }

    /// One name of a listing: all of it, or nothing.
    fn push_name(&mut self, head: &[u8], name: &[u8]) -> bool {
        let len_bytes = (head.len() + name.len()).next_multiple_of(8);
        if self.payload.len() - self.len_bytes < len_bytes {
            return false;
        }
        let end = self.len_bytes + len_bytes;
        let pushed = self.push(head) && self.push(name);
        let padding = end - self.len_bytes;
        pushed && self.push(&[0; 8][..padding])
    }

    pub(crate) fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    pub(crate) fn dirent(&mut self, ino: u64, next: u64, kind: FileKind, name: &[u8]) -> bool {
        let head = DirentOut {
            ino,
            next,
            name_bytes: name.len() as u32,
            kind: kind.mode_bits() >> 12,
        };
        self.push_name(head.as_bytes(), name)
    }

    pub(crate) fn dirent_plus(&mut self, it: &Listed<'_>) -> bool {
        let attr = match &it.attr {
            Some(attr) => AttrOut::of(attr),
            None => AttrOut::without(it.ino, it.kind, UNKNOWN_SIZE),
        };
        let generation = it.attr.map_or(0, |attr| attr.generation);
        let dirent = DirentOut {
            ino: it.ino,
            next: it.next,
            name_bytes: it.name.len() as u32,
            kind: it.kind.mode_bits() >> 12,
        };
        let entry = EntryOut::new(attr, generation, it.attr_validity.duration(), it.attr_validity);
        let mut head = [0; size_of::<EntryOut>() + size_of::<DirentOut>()];
        let (first, second) = head.split_at_mut(size_of::<EntryOut>());
        first.copy_from_slice(entry.as_bytes());
        second.copy_from_slice(dirent.as_bytes());
        self.push_name(&head, it.name)
    }
}

/// A value that a reply consists of.
pub(crate) trait Encode {
    /// Writes it; returns its length. `EIO`: it does not fit, which cannot happen if the buffers are large enough.
    fn encode(self, payload: &mut [u8]) -> Result<usize, Errno>;
}

fn write<T: IntoBytes + Immutable + ?Sized>(value: &T, payload: &mut [u8]) -> Result<usize, Errno> {
    let bytes = value.as_bytes();
    let buf = payload.get_mut(..bytes.len()).ok_or(Errno::EIO)?;
    buf.copy_from_slice(bytes);
    Ok(bytes.len())
}

impl Encode for () {
    fn encode(self, _payload: &mut [u8]) -> Result<usize, Errno> {
        Ok(0)
    }
}

impl Encode for Entry {
    fn encode(self, payload: &mut [u8]) -> Result<usize, Errno> {
        let (attr, generation) = match &self.attr {
            Some(attr) => (AttrOut::of(attr), attr.generation),
            None => (AttrOut::without(0, FileKind::File, 0), 0),
        };
        let out = EntryOut::new(attr, generation, self.name_ttl, self.attr_validity);
        write(&out, payload)
    }
}

impl Encode for Known {
    fn encode(self, payload: &mut [u8]) -> Result<usize, Errno> {
        let ttl = self.attr_validity.duration();
        let out = KnownOut {
            ttl: ttl.as_secs(),
            ttl_nanos: ttl.subsec_nanos(),
            dummy: 0,
            attr: AttrOut::of(&self.attr),
        };
        write(&out, payload)
    }
}

/// `struct fuse_sx_time`.
#[repr(C)]
#[derive(IntoBytes, Immutable)]
struct TimeOut {
    seconds: i64,
    nanos: u32,
    reserved: i32,
}

impl TimeOut {
    fn of(time: Timestamp) -> TimeOut {
        TimeOut {
            seconds: time.seconds(),
            nanos: time.nanoseconds(),
            reserved: 0,
        }
    }
}

/// `struct fuse_statx_out`. The kernel (Linux 6.6 to 6.18) takes the attributes and the time of birth from it; it
/// ignores its attribute flags.
#[repr(C)]
#[derive(IntoBytes, Immutable)]
struct StatXOut {
    ttl: u64,
    ttl_nanos: u32,
    flags: u32,
    spare: [u64; 2],
    mask: u32,
    block_bytes: u32,
    attributes: u64,
    nlink: u32,
    uid: u32,
    gid: u32,
    mode: u16,
    spare0: u16,
    ino: u64,
    size: u64,
    blocks: u64,
    attributes_mask: u64,
    /// Of access, birth, change of the inode, and change of the content.
    times: [TimeOut; 4],
    rdev_major: u32,
    rdev_minor: u32,
    dev: [u32; 2],
    spare2: [u64; 14],
}

/// Attributes with the time of birth.
pub(crate) struct StatX(pub(crate) Known);

impl Encode for StatX {
    fn encode(self, payload: &mut [u8]) -> Result<usize, Errno> {
        let Known { attr, attr_validity } = self.0;
        let (ttl, mode) = (attr_validity.duration(), attr.kind.mode_bits() | (attr.mode & 0o7777));
        let out = StatXOut {
            ttl: ttl.as_secs(),
            ttl_nanos: ttl.subsec_nanos(),
            flags: 0,
            spare: [0; 2],
            mask: libc::STATX_BASIC_STATS | libc::STATX_BTIME,
            block_bytes: BLOCK_BYTES,
            attributes: 0,
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            mode: mode as u16,
            spare0: 0,
            ino: attr.ino,
            size: attr.size,
            blocks: attr.blocks,
            attributes_mask: 0,
            times: [attr.atime, attr.btime, attr.ctime, attr.mtime].map(TimeOut::of),
            rdev_major: attr.rdev >> 8 & 0xfff,
            rdev_minor: attr.rdev & 0xff | attr.rdev >> 12 & 0xfff00,
            dev: [0; 2],
            spare2: [0; 14],
        };
        write(&out, payload)
    }
}

impl Encode for Opened {
    fn encode(self, payload: &mut [u8]) -> Result<usize, Errno> {
        let out = OpenOut {
            fh: self.fh,
            flags: self.flags.bits(),
            backing: 0,
        };
        write(&out, payload)
    }
}

impl Encode for (Known, Opened) {
    fn encode(self, payload: &mut [u8]) -> Result<usize, Errno> {
        let (known, opened) = self;
        let entry = Entry {
            attr: Some(known.attr),
            name_ttl: known.attr_validity.duration(),
            attr_validity: known.attr_validity,
        };
        let first = entry.encode(payload)?;
        let second = opened.encode(payload.get_mut(first..).ok_or(Errno::EIO)?)?;
        Ok(first + second)
    }
}

impl Encode for StatFs {
    fn encode(self, payload: &mut [u8]) -> Result<usize, Errno> {
        let out = StatFsOut {
            blocks: [self.blocks, self.blocks_free, self.blocks_available],
            inodes: [self.inodes, self.inodes_free],
            block_bytes: self.block_bytes,
            name_max: NAME_MAX as u32,
            fragment_bytes: self.block_bytes,
            padding: 0,
            spare: [0; 6],
        };
        write(&out, payload)
    }
}

impl Encode for Wire {
    fn encode(self, payload: &mut [u8]) -> Result<usize, Errno> {
        let out = LkOut {
            start: self.start,
            last: self.last,
            kind: self.kind,
            pid: self.pid,
        };
        write(&out, payload)
    }
}

/// Content of a symbolic link.
impl Encode for Vec<u8> {
    fn encode(self, payload: &mut [u8]) -> Result<usize, Errno> {
        write(self.as_slice(), payload)
    }
}

/// An extended attribute for a caller with a buffer of so many bytes; 0: the caller asks for the length.
pub(crate) struct Xattr(pub(crate) Vec<u8>, pub(crate) u32);

impl Encode for Xattr {
    fn encode(self, payload: &mut [u8]) -> Result<usize, Errno> {
        let Xattr(value, space) = self;
        match space {
            0 => write(&[value.len() as u32, 0], payload),
            _ if value.len() > space as usize => Err(Errno::ERANGE),
            _ => write(value.as_slice(), payload),
        }
    }
}

/// `struct fuse_write_out`.
pub(crate) struct Written(pub(crate) u32);

impl Encode for Written {
    fn encode(self, payload: &mut [u8]) -> Result<usize, Errno> {
        write(&[self.0, 0], payload)
    }
}

/// `struct fuse_ioctl_out`, and what the caller reads.
pub(crate) struct Ioctl(pub(crate) Vec<u8>);

impl Encode for Ioctl {
    fn encode(self, payload: &mut [u8]) -> Result<usize, Errno> {
        let head = [0; 16];
        write([&head[..], &self.0].concat().as_slice(), payload)
    }
}

/// `struct fuse_lseek_out`.
impl Encode for u64 {
    fn encode(self, payload: &mut [u8]) -> Result<usize, Errno> {
        write(&self, payload)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attr() -> Attr {
        Attr {
            ino: 0x11,
            generation: 0xaa,
            kind: FileKind::Directory,
            mode: 0o1755,
            nlink: 2,
            uid: 3,
            gid: 4,
            rdev: 5,
            size: 6,
            blocks: 7,
            atime: Timestamp(-1),
            mtime: Timestamp(1_000_000_002),
            ctime: Timestamp(3),
            btime: Timestamp(4),
            change: 0,
        }
    }

    fn word(payload: &[u8], at: usize) -> u64 {
        u64::from_ne_bytes(payload[at..at + 8].try_into().unwrap())
    }

    fn half(payload: &[u8], at: usize) -> u32 {
        u32::from_ne_bytes(payload[at..at + 4].try_into().unwrap())
    }

    #[test]
    fn layouts_are_the_kernels() {
        assert_eq!((size_of::<AttrOut>(), size_of::<EntryOut>()), (88, 128));
        assert_eq!((size_of::<KnownOut>(), size_of::<OpenOut>()), (104, 16));
        assert_eq!(
            (size_of::<StatFsOut>(), size_of::<LkOut>(), size_of::<DirentOut>()),
            (80, 24, 24)
        );
        let mut payload = [0xff; 200];
        let (name_ttl, attr_ttl) = (Duration::new(8, 9), Duration::new(10, 11));
        let entry = Entry {
            attr: Some(attr()),
            name_ttl,
            attr_validity: AttrValidity::of(&attr(), attr_ttl),
        };
        assert_eq!(entry.encode(&mut payload), Ok(128));
        let words: Vec<u64> = (0..5).map(|n| word(&payload, 8 * n)).collect();
        assert_eq!(words, [0x11, 0xaa, 8, 10, 9 | 11 << 32]);
        let attr: Vec<u64> = (5..11).map(|n| word(&payload, 8 * n)).collect();
        // A time before the epoch: a second below, and almost one above that.
        assert_eq!(attr, [0x11, 6, 7, u64::MAX, 1, 0]);
        let rest: Vec<u32> = (22..32).map(|n| half(&payload, 4 * n)).collect();
        assert_eq!(rest, [999_999_999, 2, 3, 0o41755, 2, 3, 4, 5, 4096, 0]);
        assert_eq!(payload[128..], [0xff; 72], "nothing behind it is touched");
    }

    #[test]
    fn a_name_that_is_not_there_has_number_0() {
        let mut payload = [0xff; 128];
        let entry = Entry {
            attr: None,
            name_ttl: Duration::from_secs(5),
            attr_validity: AttrValidity::NOT,
        };
        assert_eq!(entry.encode(&mut payload), Ok(128));
        assert_eq!((word(&payload, 0), word(&payload, 16)), (0, 5));
    }

    #[test]
    fn lists_end_where_there_is_no_space() {
        let mut payload = vec![0; 4096];
        let mut list = Reply::within(&mut payload, 100);
        // 24 bytes and a name, in multiples of eight.
        assert!(list.dirent(1, 2, FileKind::File, b"a") && list.dirent(2, 3, FileKind::File, b"12345678"));
        assert_eq!(list.len_bytes(), 64);
        assert!(
            !list.dirent(3, 4, FileKind::File, b"1234567890123"),
            "it takes 40 of 36 bytes"
        );
        assert!(list.dirent(3, 4, FileKind::Directory, b"12345678"));
        assert_eq!(list.len_bytes(), 96);
        assert_eq!((word(&payload, 64), word(&payload, 72)), (3, 4));
        assert_eq!((half(&payload, 80), half(&payload, 84)), (8, libc::DT_DIR.into()));
        let mut list = Reply::within(&mut payload, 159);
        let it = Listed {
            ino: 0x11,
            next: 9,
            kind: FileKind::Directory,
            name: b"abc",
            attr: Some(attr()),
            attr_validity: AttrValidity::NOT,
        };
        assert!(!list.dirent_plus(&it), "it takes 160");
        let mut list = Reply::within(&mut payload, 160);
        assert!(list.dirent_plus(&it) && !list.dirent_plus(&it));
        assert_eq!((word(&payload, 128), word(&payload, 136)), (0x11, 9));
        assert_eq!(&payload[152..156], b"abc\0");
    }

    #[test]
    fn attributes_tell_their_length_or_fit() {
        let mut payload = [0; 16];
        let value = || b"12345".to_vec();
        assert_eq!(Xattr(value(), 0).encode(&mut payload), Ok(8));
        assert_eq!(half(&payload, 0), 5);
        assert_eq!(Xattr(value(), 4).encode(&mut payload), Err(Errno::ERANGE));
        assert_eq!(Xattr(value(), 5).encode(&mut payload), Ok(5));
        assert_eq!(
            vec![0u8; 17].encode(&mut payload),
            Err(Errno::EIO),
            "no more than there is space"
        );
    }
}
