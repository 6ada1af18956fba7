//! Properties of a request by its opcode.
//!
//! Contents: how long its parts are, and which rules hold for it. The tables follow the kernel's `linux/fuse.h`.

use super::abi::{InHeader, ReadWriteIn, read};
use super::opcode;

/// Bytes of a reply whose length the request does not set, at most: of a `STATX`.
pub(crate) const REPLY_BYTES_MAX: usize = 288;

/// The length of an opcode's header; 0 if it has none, or is unknown.
pub(crate) fn op_bytes(opcode: u32) -> usize {
    use opcode::*;
    match opcode {
        FORGET | BATCH_FORGET | MKDIR | RENAME | LINK | OPEN | OPENDIR | SETXATTR | GETXATTR | LISTXATTR
        | INTERRUPT => 8,
        GETATTR | MKNOD | RENAME2 | FSYNC | FSYNCDIR | CREATE | TMPFILE => 16,
        RELEASE | RELEASEDIR | FLUSH | LSEEK | STATX => 24,
        FALLOCATE | IOCTL => 32,
        READ | READDIR | READDIRPLUS | WRITE => 40,
        GETLK | SETLK | SETLKW => 48,
        COPY_FILE_RANGE => 56,
        SETATTR => 88,
        _ => 0,
    }
}

/// Whether a request may change something, so that a freeze holds it back.
pub(crate) fn changes(opcode: u32) -> bool {
    use opcode::*;
    matches!(
        opcode,
        SETATTR
            | SYMLINK
            | MKNOD
            | MKDIR
            | UNLINK
            | RMDIR
            | RENAME
            | LINK
            | WRITE
            | RELEASE
            | SETXATTR
            | REMOVEXATTR
            | CREATE
            | FALLOCATE
            | COPY_FILE_RANGE
            | RENAME2
            | TMPFILE
            | FORGET
            | BATCH_FORGET
    )
}

/// Whether only the owner of a private mount may request it. The kernel also sends the others on its own.
pub(crate) fn is_users(opcode: u32) -> bool {
    use opcode::*;
    !matches!(
        opcode,
        READ | READDIR
            | READDIRPLUS
            | WRITE
            | FSYNC
            | FSYNCDIR
            | RELEASE
            | RELEASEDIR
            | FORGET
            | BATCH_FORGET
            | INTERRUPT
    )
}

/// Whether it calls the engine, which may take time.
pub(crate) fn asks_engine(opcode: u32) -> bool {
    !matches!(opcode, opcode::OPENDIR | opcode::RELEASEDIR | opcode::INTERRUPT)
}

/// Whether it gets a reply even while the engine gives none.
pub(crate) fn is_answered_in_any_case(requested: &InHeader) -> bool {
    match requested.opcode {
        opcode::STATFS => true,
        opcode::GETATTR | opcode::STATX => requested.ino == ferrite_vfs::ROOT_INO,
        _ => false,
    }
}

/// Whether it may take long however short it is: it waits for others, or changes many blocks.
pub(crate) fn may_take_long(opcode: u32) -> bool {
    use opcode::*;
    matches!(
        opcode,
        FALLOCATE | COPY_FILE_RANGE | SETXATTR | REMOVEXATTR | FSYNC | FSYNCDIR | BATCH_FORGET
    )
}

/// Whether it gets a reply at all.
pub(crate) fn has_reply(opcode: u32) -> bool {
    !matches!(opcode, opcode::FORGET | opcode::BATCH_FORGET | opcode::INTERRUPT)
}

/// An upper bound of the bytes of a reply without an error.
pub(crate) fn reply_bytes_max(opcode: u32, op: &[u8]) -> usize {
    use opcode::*;
    let wanted = match opcode {
        READ | READDIR | READDIRPLUS => read::<ReadWriteIn>(op).map_or(0, |it| it.len_bytes),
        GETXATTR | LISTXATTR => read::<[u32; 1]>(op).map_or(0, |[len_bytes]| len_bytes),
        READLINK => libc::PATH_MAX as u32,
        _ => 0,
    };
    (wanted as usize).max(REPLY_BYTES_MAX)
}
