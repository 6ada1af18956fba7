//! The types of the trait as they cross the wire.

use ferrite_vfs::locks::{ByteRange, LockKind, LockOwner, LockRequest, RecordLock, Unlock};
use ferrite_vfs::{
    Attr, Corruption, Durability, ErrorCode, FallocateMode, FileBytes, FileKind, FsError, NewFile, NewNode, OpenFlags,
    OpenMode, Position, RenameMode, SetAttr, SetTime, StatFs, SyncMode, Timestamp, WriteMode, XattrMode,
};

use super::codec::{Encode, Malformed, Reader, Wire, values};
use crate::fields;

values!(FileKind {
    1 = FileKind::File,
    2 = FileKind::Directory,
    3 = FileKind::Symlink,
    4 = FileKind::Fifo,
    5 = FileKind::Socket,
    6 = FileKind::CharDevice,
    7 = FileKind::BlockDevice,
});
values!(RenameMode {
    0 = RenameMode::Replace,
    1 = RenameMode::NoReplace,
    2 = RenameMode::Exchange,
    3 = RenameMode::Whiteout,
    4 = RenameMode::NoReplaceWhiteout,
});
values!(XattrMode {
    0 = XattrMode::Any,
    1 = XattrMode::Create,
    2 = XattrMode::Replace,
});
values!(Durability {
    0 = Durability::None,
    1 = Durability::Process,
    2 = Durability::Power,
});
values!(SyncMode {
    0 = SyncMode::Through,
    1 = SyncMode::Mirror,
    2 = SyncMode::Back,
});
values!(LockKind {
    1 = LockKind::Shared,
    2 = LockKind::Exclusive,
});

impl Encode for Timestamp {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }
}

impl Wire<'_> for Timestamp {
    fn get(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Timestamp(from.get()?))
    }
}

fields!(Attr {
    ino,
    generation,
    kind,
    mode,
    nlink,
    uid,
    gid,
    rdev,
    size,
    blocks,
    atime,
    mtime,
    ctime,
    btime,
    change,
});
fields!(StatFs {
    block_bytes,
    blocks,
    blocks_free,
    blocks_available,
    inodes,
    inodes_free,
    fsid,
});
fields!(NewNode { kind, mode, rdev });
fields!(OpenMode {
    read,
    write,
    truncate,
    no_atime
});
fields!(NewFile { mode, open, exclusive });
fields!(OpenFlags {
    read,
    write,
    create,
    exclusive,
    truncate,
    no_follow,
    no_atime,
    mode
});
fields!(SetAttr {
    mode,
    uid,
    gid,
    size,
    atime,
    mtime,
    kill_priv
});
fields!(WriteMode { position, kill_priv });
fields!(RecordLock {
    owner,
    pid,
    kind,
    range
});

impl Encode for SetTime {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            SetTime::Now => None,
            SetTime::To(time) => Some(*time),
        }
        .put(out);
    }
}

impl Wire<'_> for SetTime {
    fn get(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(from.get::<Option<Timestamp>>()?.map_or(SetTime::Now, SetTime::To))
    }
}

impl Encode for Position {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Position::At(offset) => Some(*offset),
            Position::End => None,
        }
        .put(out);
    }
}

impl Wire<'_> for Position {
    fn get(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(from.get::<Option<u64>>()?.map_or(Position::End, Position::At))
    }
}

impl Encode for FallocateMode {
    fn put(&self, out: &mut Vec<u8>) {
        let number: u8 = match self {
            FallocateMode::Allocate { keep_size: false } => 0,
            FallocateMode::Allocate { keep_size: true } => 1,
            FallocateMode::PunchHole => 2,
            FallocateMode::ZeroRange { keep_size: false } => 3,
            FallocateMode::ZeroRange { keep_size: true } => 4,
        };
        number.put(out);
    }
}

impl Wire<'_> for FallocateMode {
    fn get(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(match from.get::<u8>()? {
            number @ 0..=1 => FallocateMode::Allocate { keep_size: number == 1 },
            2 => FallocateMode::PunchHole,
            number @ 3..=4 => FallocateMode::ZeroRange { keep_size: number == 4 },
            _ => return Err(Malformed("no mode of fallocate has this number")),
        })
    }
}

impl Encode for LockOwner {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }
}

impl Wire<'_> for LockOwner {
    fn get(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(LockOwner(from.get()?))
    }
}

impl Encode for ByteRange {
    fn put(&self, out: &mut Vec<u8>) {
        (self.start(), self.len_bytes()).put(out);
    }
}

impl Wire<'_> for ByteRange {
    fn get(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (start, len_bytes) = from.get()?;
        ByteRange::new(start, len_bytes).map_err(|_| Malformed("a range that no file has"))
    }
}

impl Encode for LockRequest {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            LockRequest::Flock(owner, kind) => {
                0u8.put(out);
                owner.put(out);
                kind.put(out);
            }
            LockRequest::Record(lock) => {
                1u8.put(out);
                lock.put(out);
            }
        }
    }
}

impl Wire<'_> for LockRequest {
    fn get(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(match from.get::<u8>()? {
            0 => LockRequest::Flock(from.get()?, from.get()?),
            1 => LockRequest::Record(from.get()?),
            _ => return Err(Malformed("no lock has this number")),
        })
    }
}

impl Encode for Unlock {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Unlock::Flock => 0u8.put(out),
            Unlock::Range(range) => {
                1u8.put(out);
                range.put(out);
            }
            Unlock::All => 2u8.put(out),
        }
    }
}

impl Wire<'_> for Unlock {
    fn get(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(match from.get::<u8>()? {
            0 => Unlock::Flock,
            1 => Unlock::Range(from.get()?),
            2 => Unlock::All,
            _ => return Err(Malformed("no way of unlocking has this number")),
        })
    }
}

/// Numbers of the causes that have a text.
const DAMAGED: u16 = 0x201;
const IO: u16 = 0x202;
const NOT_OWNER: u16 = 0x203;

/// Texts are truncated to this length.
const TEXT_BYTES_MAX: usize = 1024;

fn truncated(text: &str) -> &[u8] {
    &text.as_bytes()[..text.len().min(TEXT_BYTES_MAX)]
}

/// A text from another host, for messages of this one: of a bounded length, and without characters that control a
/// terminal, begin a line of a log, or end the text.
fn harmless(bytes: &[u8]) -> String {
    let mut text = String::new();
    for c in String::from_utf8_lossy(bytes).chars() {
        let before = text.len();
        match c.is_control() {
            true => text.extend(c.escape_default()),
            false => text.push(c),
        }
        if text.len() > TEXT_BYTES_MAX {
            text.truncate(before);
            break;
        }
    }
    text
}

/// Cause and particulars as [`FsError::code`] numbers them; damage, failures and a server that is not the owner have
/// more.
impl Encode for FsError {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            FsError::Damaged(corruption) => {
                (DAMAGED, 0u16).put(out);
                corruption.ino.put(out);
                corruption.bytes.map(|bytes| (bytes.offset, bytes.len_bytes)).put(out);
                truncated(&corruption.what).put(out);
            }
            FsError::Io(text) => {
                (IO, 0u16).put(out);
                truncated(text).put(out);
            }
            FsError::NotOwner { address } => {
                (NOT_OWNER, 0u16).put(out);
                truncated(address).put(out);
            }
            plain => match plain.code() {
                Some(code) => (code.cause, code.particulars).put(out),
                None => FsError::Io(plain.to_string()).put(out),
            },
        }
    }
}

impl Wire<'_> for FsError {
    fn get(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let text = |from: &mut Reader<'_>| Ok(harmless(from.get::<&[u8]>()?));
        Ok(match from.get()? {
            (DAMAGED, 0) => FsError::Damaged(Box::new(Corruption {
                ino: from.get()?,
                bytes: from
                    .get::<Option<(u64, u64)>>()?
                    .map(|(offset, len_bytes)| FileBytes { offset, len_bytes }),
                what: text(from)?,
            })),
            (IO, 0) => FsError::Io(text(from)?),
            (NOT_OWNER, 0) => FsError::NotOwner { address: text(from)? },
            // A newer server may know causes that this client does not.
            (cause, particulars) => FsError::from_code(ErrorCode::new(cause, particulars))
                .unwrap_or_else(|| FsError::Io(format!("the server reports an unknown error, {cause}.{particulars}"))),
        })
    }
}
