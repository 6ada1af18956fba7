//! The error type of every [`crate::FileSystem`] operation, and its errno (used at the edge only).

mod code;

pub use code::ErrorCode;

use thiserror::Error;

use crate::Ino;

/// Result of a file-system operation.
pub type Result<T> = std::result::Result<T, FsError>;

/// The resource that has run out, see [`FsError::NoSpace`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SpaceOf {
    /// Blocks of data.
    Blocks,
    /// Entries of the mapping.
    MapEntries,
    /// Inodes.
    Inodes,
    /// Names.
    Names,
    /// Space for the extended attributes of one inode.
    Attributes,
    /// Record locks.
    RecordLocks,
}

impl std::fmt::Display for SpaceOf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            SpaceOf::Blocks => "blocks",
            SpaceOf::MapEntries => "mapping slots",
            SpaceOf::Inodes => "inodes",
            SpaceOf::Names => "names",
            SpaceOf::Attributes => "extended attribute space",
            SpaceOf::RecordLocks => "record locks",
        })
    }
}

/// The clients that have too many sessions, see [`FsError::TooManySessions`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SessionsOf {
    /// All clients of the export.
    Export,
    /// Clients with this key.
    Key,
    /// Clients at this address.
    Address,
}

impl std::fmt::Display for SessionsOf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            SessionsOf::Export => "this export (`sessions` of the export)",
            SessionsOf::Key => "this key (`sessions_per_key`)",
            SessionsOf::Address => "this address (`sessions_per_address`)",
        })
    }
}

/// Why an argument is invalid, see [`FsError::Invalid`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Error)]
#[non_exhaustive]
pub enum BadArgument {
    /// A name that no entry can have.
    #[error("`.`, `..` and the empty name are reserved")]
    ReservedName,
    /// A name with a slash or a zero byte in it.
    #[error("a name must not contain a slash or a zero byte")]
    NameBytes,
    /// A path with a zero byte in it.
    #[error("a path must not contain a zero byte")]
    PathBytes,
    /// `.` or `..` as the name to remove or rename.
    #[error("`.` and `..` cannot be removed or renamed")]
    DotOrDotDot,
    /// A rename that would make a cycle.
    #[error("a directory cannot be moved below itself")]
    BelowItself,
    /// A size for something that is not a regular file.
    #[error("only regular files have a size to set")]
    NoSize,
    /// `fallocate` of length 0.
    #[error("fallocate needs a length")]
    NoLength,
    /// `readlink` of something that is not a symbolic link.
    #[error("not a symbolic link")]
    NotLink,
    /// `mknod` of a directory or a link.
    #[error("mknod creates only regular and special files")]
    NodeKind,
    /// A symbolic link to nothing.
    #[error("empty link target")]
    EmptyTarget,
    /// An extended attribute without a name.
    #[error("empty attribute name")]
    EmptyAttributeName,
    /// An extended attribute whose name is a namespace alone.
    #[error("the attribute name consists only of its namespace")]
    BareNamespace,
    /// A length set through a handle that is open for reading only.
    #[error("the file is not open for writing")]
    NotWritable,
    /// A seek to before the start.
    #[error("the position is before the start of the file")]
    BeforeStart,
    /// A seek that only the kernel performs.
    #[error("the kernel handles other seeks itself")]
    SeekKind,
    /// A lock of no bytes.
    #[error("a lock must cover at least one byte")]
    EmptyLock,
    /// A lock beyond the largest file offset.
    #[error("a lock must be within file offsets 0 to 2^63 - 1")]
    LockRange,
    /// A copy of a file to itself.
    #[error("source and target are the same file")]
    SameFile,
    /// A token with the number 0.
    #[error("a token needs a number above 0")]
    NoToken,
    /// A memory region of something that is not a regular file.
    #[error("only regular files can be memory regions")]
    RegionKind,
    /// A write that would grow a memory region; appends do that.
    #[error("a write to a memory region must not grow the file")]
    RegionGrows,
    /// A page number outside the pool's data.
    #[error("a page of a memory region that holds no data")]
    RegionPage,
    /// The number that means "no change" and "nobody" where users and groups are numbers.
    #[error("4294967295 (-1) is no user or group; leave out what is not to change")]
    NoId,
    /// Bytes that are no access control list.
    #[error("not a valid access control list; see acl(5)")]
    AccessControlList,
    /// A range that would be cloned into itself.
    #[error("the two ranges overlap")]
    CloneOverlap,
    /// A text that gives no limits of a quota.
    #[error("a quota is `limit_bytes=N limit_inodes=N`")]
    QuotaText,
    /// A quota of something that is not a directory, or within too many others.
    #[error("directories have quotas, at most 64 within each other")]
    QuotaPlace,
    /// Flags of an inode that cannot be read as such.
    #[error("flags are letters out of aAdi, and files and directories have them")]
    FlagLetters,
}

/// The unsupported request, see [`FsError::NotSupported`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Error)]
#[non_exhaustive]
pub enum Unsupported {
    /// Extended attributes of another namespace.
    #[error("this attribute namespace")]
    AttributeNamespace,
    /// Permission bits of a symbolic link.
    #[error("permission bits of a symbolic link")]
    LinkMode,
    /// An access control list in a format of the future.
    #[error("this version of access control lists")]
    AclVersion,
    /// A token whose slot the engine does not have.
    #[error("a token of this slot: the pool has fewer, or none")]
    DedupSlot,
    /// A step that is larger than the engine can make atomic.
    #[error("this many changes in one step")]
    StepSize,
    /// A file as a memory region, on an engine or a medium that cannot be one.
    #[error("memory regions on this kind of pool")]
    Region,
    /// A memory region that others may write, on a medium where a torn sector could hit acknowledged data.
    #[error("writable memory regions on a pool in a disk file: bind it for reading, or use a pool in memory")]
    WritableRegion,
    /// Files that share blocks, in a pool or with a file that cannot.
    #[error("sharing blocks between these files; copy the data")]
    Clone,
    /// Space that is reserved behind the end of a file, where a quota counts sizes.
    #[error("reserving space behind the end of a file in a tree with a quota")]
    ReservedSpace,
    /// A range that does not consist of whole blocks.
    #[error("sharing parts of blocks; clone whole ones of 4096 bytes, or copy the data")]
    CloneUnit,
}

/// Some bytes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileBytes {
    /// Offset of the first.
    pub offset: u64,
    /// How many they are.
    pub len_bytes: u64,
}

/// Damage that an operation met. The inode and the bytes are for programs, the text for people: no program may depend
/// on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Corruption {
    /// The inode it belongs to, if that is known.
    pub ino: Option<Ino>,
    /// The bytes of the file that cannot be read, if it is content.
    pub bytes: Option<FileBytes>,
    /// A description of the damage, and where on the medium it is.
    pub what: String,
}

impl std::fmt::Display for Corruption {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(ino) = self.ino {
            write!(f, "inode {ino}")?;
            if let Some(FileBytes { offset, len_bytes }) = self.bytes {
                write!(f, ", bytes {offset} to {}", offset + len_bytes.saturating_sub(1))?;
            }
            f.write_str(": ")?;
        }
        f.write_str(&self.what)
    }
}

/// Why an operation was refused. An operation that returns an error has changed nothing.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FsError {
    /// No entry of that name, or a component of the path is missing.
    #[error("no such file or directory")]
    NotFound,
    /// The permission bits refuse it (`EACCES`).
    #[error("permission denied")]
    AccessDenied,
    /// Only the owner or root may do it (`EPERM`).
    #[error("operation not permitted")]
    NotPermitted,
    /// The name is taken.
    #[error("file exists")]
    Exists,
    /// A directory was needed.
    #[error("not a directory")]
    NotDirectory,
    /// A directory cannot be used here.
    #[error("is a directory")]
    IsDirectory,
    /// The directory still has entries.
    #[error("directory not empty")]
    NotEmpty,
    /// No block, inode or name is left, or whatever else the value names.
    #[error("no space left on device: out of {0}")]
    NoSpace(SpaceOf),
    /// The quota of a directory above has no space left for it.
    #[error("disk quota exceeded")]
    OverQuota,
    /// A name longer than 255 bytes, or a path or link target of 4096 bytes or more.
    #[error("file name too long")]
    NameTooLong,
    /// An argument makes no sense.
    #[error("invalid argument: {0}")]
    Invalid(BadArgument),
    /// The link count would pass its limit.
    #[error("too many links")]
    TooManyLinks,
    /// The two names are in different file systems.
    #[error("cross-device link")]
    CrossDevice,
    /// The file system is mounted read-only, or turned read-only after an error.
    #[error("read-only file system")]
    ReadOnly,
    /// No such extended attribute.
    #[error("no such attribute")]
    NoAttribute,
    /// A buffer is too small for the result, or an attribute's name too long.
    #[error("result too large for the buffer")]
    Range,
    /// The value of an extended attribute is longer than any may be, whatever other attributes there are.
    #[error("attribute value too long: it would not fit if it were the only one")]
    ValueTooLong,
    /// The file would grow past the largest size the format can hold.
    #[error("file too large")]
    FileTooBig,
    /// No data or hole at or after the offset (`ENXIO`), or no such device.
    #[error("no such device or address")]
    NoSuchAddress,
    /// This engine or medium cannot do it.
    #[error("operation not supported: {0}")]
    NotSupported(Unsupported),
    /// More symbolic links than a path may hold, or a link where none may be followed.
    #[error("too many levels of symbolic links")]
    Loop,
    /// In use.
    #[error("resource busy")]
    Busy,
    /// The handle is not open for this.
    #[error("bad file descriptor")]
    BadHandle,
    /// Another owner holds the lock.
    #[error("resource temporarily unavailable")]
    WouldBlock,
    /// Waiting for the lock would never end.
    #[error("resource deadlock avoided")]
    Deadlock,
    /// The inode is gone, and its number may belong to another file now.
    #[error("stale file handle")]
    Stale,
    /// Something on the medium is damaged (`EIO`). Nothing wrong was returned.
    #[error("input/output error: {0}")]
    Damaged(Box<Corruption>),
    /// The medium failed, or the engine has stopped because it did (`EIO`). The text describes the failure, for people.
    #[error("input/output error: {0}")]
    Io(String),
    /// No reply within the timeout. The request may still take effect.
    #[error("connection timed out")]
    TimedOut,
    /// The connection to the engine is lost. The request may or may not have taken effect.
    #[error("not connected")]
    Disconnected,
    /// The caller gave up waiting.
    #[error("interrupted system call")]
    Interrupted,
    /// The engine keeps no more files open for this caller.
    #[error("too many open files")]
    TooManyOpen,
    /// A later change with the same slot has replaced this one ([`crate::DedupToken`]).
    #[error("a later request has taken the place of this one")]
    Superseded,
    /// The server has reached its limit of clients. The next may retry when one of them has left.
    #[error(
        "the server has as many sessions as its configuration allows for {0}; try again later, or raise that number in \
         its configuration"
    )]
    TooManySessions(SessionsOf),
    /// Another server owns the volume, or may own it by now (`EIO`). The request may have taken effect; the answer is
    /// withheld because it may be out of date.
    #[error("another server serves this volume{}; ask there", at(.address))]
    NotOwner {
        /// Where clients reach the owner, as `HOST:PORT`; empty if that is not known.
        address: String,
    },
}

/// The place of an owner, in a sentence.
fn at(address: &str) -> String {
    match address {
        "" => String::new(),
        address => format!(", at {address}"),
    }
}

impl FsError {
    /// Damage of something that belongs to `ino`, or to no particular inode.
    #[cold]
    pub fn damaged(ino: impl Into<Option<Ino>>, what: impl Into<String>) -> Self {
        FsError::Damaged(Box::new(Corruption {
            ino: ino.into(),
            bytes: None,
            what: what.into(),
        }))
    }

    /// Damage of `len_bytes` bytes of a file, from `offset` on.
    #[cold]
    pub fn damaged_bytes(ino: Ino, offset: u64, len_bytes: u64, what: impl Into<String>) -> Self {
        FsError::Damaged(Box::new(Corruption {
            ino: Some(ino),
            bytes: Some(FileBytes { offset, len_bytes }),
            what: what.into(),
        }))
    }

    /// The errno a front end reports.
    pub fn errno(&self) -> i32 {
        match self {
            FsError::NotFound => libc::ENOENT,
            FsError::AccessDenied => libc::EACCES,
            FsError::NotPermitted => libc::EPERM,
            FsError::Exists => libc::EEXIST,
            FsError::NotDirectory => libc::ENOTDIR,
            FsError::IsDirectory => libc::EISDIR,
            FsError::NotEmpty => libc::ENOTEMPTY,
            FsError::NoSpace(_) => libc::ENOSPC,
            FsError::OverQuota => libc::EDQUOT,
            FsError::NameTooLong => libc::ENAMETOOLONG,
            FsError::Invalid(_) => libc::EINVAL,
            FsError::TooManyLinks => libc::EMLINK,
            FsError::CrossDevice => libc::EXDEV,
            FsError::ReadOnly => libc::EROFS,
            FsError::NoAttribute => libc::ENODATA,
            FsError::Range => libc::ERANGE,
            FsError::ValueTooLong => libc::E2BIG,
            FsError::FileTooBig => libc::EFBIG,
            FsError::NoSuchAddress => libc::ENXIO,
            FsError::NotSupported(_) => libc::EOPNOTSUPP,
            FsError::Loop => libc::ELOOP,
            FsError::Busy => libc::EBUSY,
            FsError::BadHandle => libc::EBADF,
            FsError::WouldBlock => libc::EAGAIN,
            FsError::Deadlock => libc::EDEADLK,
            FsError::Stale => libc::ESTALE,
            FsError::Damaged(_) | FsError::Io(_) | FsError::NotOwner { .. } => libc::EIO,
            FsError::TimedOut => libc::ETIMEDOUT,
            FsError::Disconnected => libc::ENOTCONN,
            FsError::Interrupted => libc::EINTR,
            FsError::TooManyOpen => libc::ENFILE,
            FsError::Superseded => libc::ECANCELED,
            FsError::TooManySessions(_) => libc::EUSERS,
        }
    }
}

impl From<FsError> for std::io::Error {
    fn from(error: FsError) -> Self {
        std::io::Error::from_raw_os_error(error.errno())
    }
}
