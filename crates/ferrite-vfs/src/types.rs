//! Types that cross the [`crate::FileSystem`] boundary: attributes, credentials, requests.

use std::sync::Arc;
use std::time::Duration;

use crate::OpenFile;

/// An inode number. The root is [`ROOT_INO`]; 0 is never an inode.
pub type Ino = u64;

/// The inode number of the root directory.
pub const ROOT_INO: Ino = 1;

/// The name of the directory that has the snapshots of the directory it is in, see [`crate::FileSystem::mkdir`].
pub const SNAPSHOTS_NAME: &[u8] = b".snapshots";
/// Longest name of one directory entry, in bytes.
pub const NAME_MAX: usize = 255;
/// In place of a name: the file to create has none (`O_TMPFILE`).
pub const NO_NAME: &[u8] = b"";
/// Longest path or symbolic-link target, in bytes, with the terminating zero C counts.
pub const PATH_MAX: usize = 4096;
/// Most hard links an inode may have.
pub const LINK_MAX: u32 = 65_000;
/// Most symbolic links followed while walking one path.
pub const SYMLOOP_MAX: usize = 40;
/// Longest name of an extended attribute, in bytes.
pub const XATTR_NAME_MAX: usize = 255;
/// Longest value of an extended attribute, in bytes.
pub const XATTR_SIZE_MAX: usize = 65_536;
/// Most that the extended attributes of one inode may have together, in bytes: the sum of 4 + name + value over all.
pub const XATTR_SPACE_BYTES: usize = 1 << 20;
/// Most that their names may have together, each with a byte more, as `listxattr(2)` returns them.
pub const XATTR_LIST_MAX: usize = 65_536;

/// The type of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// Regular file.
    File,
    /// Directory.
    Directory,
    /// Symbolic link.
    Symlink,
    /// Named pipe.
    Fifo,
    /// Unix-domain socket.
    Socket,
    /// Character device.
    CharDevice,
    /// Block device.
    BlockDevice,
}

impl FileKind {
    /// The `S_IFMT` bits of this kind.
    pub fn mode_bits(self) -> u32 {
        match self {
            FileKind::File => libc::S_IFREG,
            FileKind::Directory => libc::S_IFDIR,
            FileKind::Symlink => libc::S_IFLNK,
            FileKind::Fifo => libc::S_IFIFO,
            FileKind::Socket => libc::S_IFSOCK,
            FileKind::CharDevice => libc::S_IFCHR,
            FileKind::BlockDevice => libc::S_IFBLK,
        }
    }

    /// The kind named by the `S_IFMT` bits of `mode`, if they name one.
    pub fn from_mode(mode: u32) -> Option<FileKind> {
        Some(match mode & libc::S_IFMT {
            libc::S_IFREG => FileKind::File,
            libc::S_IFDIR => FileKind::Directory,
            libc::S_IFLNK => FileKind::Symlink,
            libc::S_IFIFO => FileKind::Fifo,
            libc::S_IFSOCK => FileKind::Socket,
            libc::S_IFCHR => FileKind::CharDevice,
            libc::S_IFBLK => FileKind::BlockDevice,
            _ => return None,
        })
    }
}

/// A point in time: nanoseconds since the Unix epoch (negative before it; 1677 to 2262).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// From seconds and nanoseconds, clamped to what the format can hold.
    pub fn new(seconds: i64, nanoseconds: u32) -> Self {
        Timestamp(
            seconds
                .saturating_mul(1_000_000_000)
                .saturating_add(i64::from(nanoseconds)),
        )
    }

    /// Whole seconds since the epoch, rounded down.
    pub fn seconds(self) -> i64 {
        self.0.div_euclid(1_000_000_000)
    }

    /// Nanoseconds after [`Self::seconds`].
    pub fn nanoseconds(self) -> u32 {
        self.0.rem_euclid(1_000_000_000) as u32
    }
}

/// Attributes of an inode, as `stat` shows them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attr {
    /// Inode number.
    pub ino: Ino,
    /// Changes each time the number is given to a new file.
    pub generation: u32,
    /// Its type.
    pub kind: FileKind,
    /// Permission bits with setuid, setgid and sticky (`07777`), without the kind.
    pub mode: u32,
    /// Number of names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number, for device files.
    pub rdev: u32,
    /// Size in bytes.
    pub size: u64,
    /// Space used, in units of 512 bytes.
    pub blocks: u64,
    /// Last read.
    pub atime: Timestamp,
    /// Last change of the content.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Creation.
    pub btime: Timestamp,
    /// Moves with every change of content or attributes (not of `atime`), for caches and validators of network file
    /// systems: two equal values of one inode and generation mean that nothing has changed between them.
    pub change: u64,
}

/// A new value for a time stamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// The engine's clock at the time of the operation.
    Now,
    /// This time.
    To(Timestamp),
}

/// Which attributes to change; all in one atomic step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SetAttr {
    /// New permission bits (`07777`).
    pub mode: Option<u32>,
    /// New owner.
    pub uid: Option<u32>,
    /// New group.
    pub gid: Option<u32>,
    /// New size: truncates, or extends by a hole.
    pub size: Option<u64>,
    /// New access time.
    pub atime: Option<SetTime>,
    /// New modification time.
    pub mtime: Option<SetTime>,
    /// Clear setuid and (where the group may execute, or the caller is not in it) setgid too, as an unprivileged write,
    /// truncate or chown does. With [`crate::Ctx::check`] the engine decides itself when that is due.
    pub kill_priv: bool,
}

impl SetAttr {
    /// Whether it sets times to the present, and nothing else.
    pub fn only_touches(&self) -> bool {
        let to_present = |time: Option<SetTime>| matches!(time, None | Some(SetTime::Now));
        let times = to_present(self.atime) && to_present(self.mtime);
        let others = self.mode.is_some() || self.uid.is_some() || self.gid.is_some() || self.size.is_some();
        times && !others
    }
}

/// The node to create, see [`crate::FileSystem::mknod`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewNode {
    /// Anything but a directory or symbolic link.
    pub kind: FileKind,
    /// Permission bits (`07777`), the umask already applied.
    pub mode: u32,
    /// Device number, for device files.
    pub rdev: u32,
}

/// One entry of a directory listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// The entry's inode.
    pub ino: Ino,
    /// Its kind.
    pub kind: FileKind,
    /// Its name.
    pub name: &'a [u8],
    /// Where the listing continues *after* this entry: stays valid whatever is created or removed.
    pub next_cookie: u64,
}

/// How `rename` treats an existing target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RenameMode {
    /// Replace it, as `rename(2)`.
    #[default]
    Replace,
    /// Refuse with `Exists` (`RENAME_NOREPLACE`).
    NoReplace,
    /// Swap the two (`RENAME_EXCHANGE`).
    Exchange,
    /// Replace it, and leave a whiteout at the old name (`RENAME_WHITEOUT`): a character device 0:0, which hides the
    /// name in the layers below an overlay.
    Whiteout,
    /// Refuse with `Exists`, or leave a whiteout at the old name.
    NoReplaceWhiteout,
}

impl RenameMode {
    /// The mode that the flags of `renameat2` name; `None` if they exclude each other, or are unknown.
    pub fn from_flags(flags: u32) -> Option<Self> {
        const NO_REPLACE_WHITEOUT: u32 = libc::RENAME_NOREPLACE | libc::RENAME_WHITEOUT;
        match flags {
            0 => Some(RenameMode::Replace),
            libc::RENAME_NOREPLACE => Some(RenameMode::NoReplace),
            libc::RENAME_EXCHANGE => Some(RenameMode::Exchange),
            libc::RENAME_WHITEOUT => Some(RenameMode::Whiteout),
            NO_REPLACE_WHITEOUT => Some(RenameMode::NoReplaceWhiteout),
            _ => None,
        }
    }

    /// Whether an existing target is refused.
    pub fn refuses_target(self) -> bool {
        matches!(self, RenameMode::NoReplace | RenameMode::NoReplaceWhiteout)
    }

    /// Whether the old name then leads to a whiteout.
    pub fn leaves_whiteout(self) -> bool {
        matches!(self, RenameMode::Whiteout | RenameMode::NoReplaceWhiteout)
    }
}

/// How `setxattr` treats an existing attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum XattrMode {
    /// Create or replace.
    #[default]
    Any,
    /// Must be new (`XATTR_CREATE`).
    Create,
    /// Must exist (`XATTR_REPLACE`).
    Replace,
}

/// The effect of `fallocate` on a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FallocateMode {
    /// Reserve space; grow the file when `keep_size` is false.
    Allocate {
        /// Leave the size as it is.
        keep_size: bool,
    },
    /// Free the range; it reads as zeros; the size stays.
    PunchHole,
    /// The range reads as zeros and stays allocated.
    ZeroRange {
        /// Leave the size as it is.
        keep_size: bool,
    },
}

/// How a file is opened, as far as it concerns an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OpenMode {
    /// Reads are allowed.
    pub read: bool,
    /// Writes are allowed.
    pub write: bool,
    /// The file is truncated to length 0, which needs the permission to write.
    pub truncate: bool,
    /// Reads leave the access time alone (`O_NOATIME`), which only the owner and root may ask for.
    pub no_atime: bool,
}

impl OpenMode {
    /// For reading.
    pub const fn read_only() -> Self {
        OpenMode {
            read: true,
            write: false,
            truncate: false,
            no_atime: false,
        }
    }

    /// For reading and writing.
    pub const fn read_write() -> Self {
        OpenMode {
            write: true,
            ..OpenMode::read_only()
        }
    }

    /// Whether it lets the file be changed, or changes it: then a read-only file system refuses the open.
    pub const fn changes(&self) -> bool {
        self.write || self.truncate
    }
}

/// How a path is opened; the names are those of `open(2)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OpenFlags {
    /// Allow reads.
    pub read: bool,
    /// Allow writes.
    pub write: bool,
    /// Create the file if it is missing.
    pub create: bool,
    /// With `create`: refuse an existing file, or a link.
    pub exclusive: bool,
    /// Truncate the file to length 0.
    pub truncate: bool,
    /// Refuse a symbolic link as the last component.
    pub no_follow: bool,
    /// Leave access times alone.
    pub no_atime: bool,
    /// Permission bits of a new file, the umask applied.
    pub mode: u32,
}

impl OpenFlags {
    /// The mode in which the engine opens the file.
    pub fn open_mode(&self) -> OpenMode {
        OpenMode {
            read: self.read,
            write: self.write,
            truncate: self.truncate,
            no_atime: self.no_atime,
        }
    }
}

/// The file that [`crate::FileSystem::create`] creates or opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewFile {
    /// Permission bits of a new file (`07777`), the umask already applied.
    pub mode: u32,
    /// How it is opened. A new file may be written to whatever its permission bits say.
    pub open: OpenMode,
    /// Refuse a name that is taken.
    pub exclusive: bool,
}

/// An open file, and its attributes.
#[derive(Clone)]
pub struct Opened {
    /// Its attributes when it was opened. With [`crate::Ctx::pins`] the inode is pinned besides.
    pub attr: Attr,
    /// The handle.
    pub file: Arc<dyn OpenFile>,
    /// This call created it.
    pub created: bool,
}

/// Where a write goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Position {
    /// At this offset.
    At(u64),
    /// At the end of the file, wherever that is when the write happens.
    End,
}

/// The extent that a write has written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Written {
    /// Where in the file it begins.
    pub offset: u64,
    /// How much was written.
    pub len_bytes: usize,
}

impl Written {
    /// `len_bytes` bytes from `offset` on.
    pub const fn new(offset: u64, len_bytes: usize) -> Self {
        Written { offset, len_bytes }
    }

    /// The offset after the last byte.
    pub const fn end(self) -> u64 {
        self.offset + self.len_bytes as u64
    }
}

/// How to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteMode {
    /// Where the data goes.
    pub position: Position,
    /// Clear setuid and setgid in the same step, as [`SetAttr::kill_priv`] does.
    pub kill_priv: bool,
}

impl From<Position> for WriteMode {
    fn from(position: Position) -> Self {
        WriteMode {
            position,
            kill_priv: false,
        }
    }
}

/// Where a walk along a path begins, and the root it cannot leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Start {
    /// Where absolute paths and absolute links begin. Nothing outside of this directory can be reached: `..` of it is
    /// itself.
    pub root: Ino,
    /// Where relative paths begin. The caller keeps both pinned.
    pub base: Ino,
}

impl Default for Start {
    fn default() -> Self {
        Start {
            root: ROOT_INO,
            base: ROOT_INO,
        }
    }
}

/// The failures that a completed change survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// None: changes end with this process.
    None,
    /// The death of the process that serves the file system, not the loss of power.
    Process,
    /// The loss of power.
    Power,
}

/// The changes of calls which returned that still need a `sync` or an `fsync` to be durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unsynced {
    /// None: all are durable.
    Nothing,
    /// Those of content, which end with this process. Names and attributes are durable, and do not speak of content
    /// that is not.
    Content,
    /// All, which outlive this process. An `fsync` of one file makes those of every file durable.
    Everything,
}

/// The places that a change has reached when `sync` or `fsync` returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SyncMode {
    /// Those where it stays.
    Through,
    /// A log on this machine and its copy on another one, or those where it stays.
    Mirror,
    /// A log on a device of this machine, which may be lost with it.
    Back,
}

/// Changes that have not reached the place where content stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Backlog {
    /// Their bytes.
    pub bytes: u64,
    /// The age of the oldest one.
    pub oldest: Duration,
    /// That place refuses them, or does not answer.
    pub is_failing: bool,
    /// There is a log, and it gets no changes: `fsync` waits for that place.
    pub is_log_passed: bool,
}

/// The guarantees of an engine, as [`crate::FileSystem::limits`] returns them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Longest write that is one atomic step.
    pub atomic_write_bytes: u64,
    /// Longest write that others see whole or not at all, and that a token covers. A crash may leave a part of one that
    /// is longer than [`Self::atomic_write_bytes`], if it had not returned.
    pub whole_write_bytes: u64,
    /// Longest file.
    pub file_bytes_max: u64,
    /// The failures that a call that returned survives.
    pub durability: Durability,
    /// The changes of which that holds only after `sync` or `fsync`.
    pub unsynced: Unsynced,
    /// The places that `sync` and `fsync` wait for.
    pub sync_mode: SyncMode,
    /// Calls may wait for a device or a network, so they should not run on a thread that serves others.
    pub may_block: bool,
    /// Submitted requests ([`crate::OpenFile::submit_read`]) continue after the call has returned; no thread waits for
    /// them.
    pub submits: bool,
    /// Slots for which it keeps outcomes ([`crate::DedupToken`]); 0: it takes no tokens.
    pub dedup_slots: u32,
    /// How long a cache may use a reply without asking again. [`Duration::MAX`]: no other client changes anything.
    pub validity: Duration,
}

impl Limits {
    /// An engine in this process whose files no other client can change, with operations that are durable in this sense
    /// when they return.
    pub const fn local(atomic_write_bytes: u64, file_bytes_max: u64, durability: Durability) -> Limits {
        Limits {
            atomic_write_bytes,
            whole_write_bytes: atomic_write_bytes,
            file_bytes_max,
            durability,
            unsynced: Unsynced::Nothing,
            sync_mode: SyncMode::Through,
            may_block: false,
            submits: false,
            dedup_slots: 0,
            validity: Duration::MAX,
        }
    }

    /// Whether every change is durable, in the sense of [`Self::durability`], when its call returns.
    pub fn is_durable_at_once(&self) -> bool {
        self.unsynced == Unsynced::Nothing
    }
}

/// Space and inodes, as `df` shows them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StatFs {
    /// Block size in bytes; the unit of the block counts below.
    pub block_bytes: u32,
    /// Blocks that can hold data or directories.
    pub blocks: u64,
    /// Free ones, the reserve included.
    pub blocks_free: u64,
    /// Free ones that a new file can get.
    pub blocks_available: u64,
    /// Inodes.
    pub inodes: u64,
    /// Free inodes (or, if fewer, free names).
    pub inodes_free: u64,
    /// Identifies the file system.
    pub fsid: u64,
}
