//! Calls that change which blocks a file has: fallocate(2), copies and clones that share blocks; and quotas.

use std::borrow::Cow;
use std::hash::BuildHasher;

use ferrite_vfs::{
    CLONE_UNIT_BYTES, CloneRange, Ctx, FLAGS_XATTR, FallocateMode, FsError, Ino, QuotaAttribute, Unsupported,
};
use fuser::Errno;

use super::{Response, Service, to_response};
use crate::caller;

/// Most bytes of one copy: the reply counts them in 32 bits. The kernel's callers repeat what is left.
const COPY_BYTES_MAX: u64 = u32::MAX as u64 & !(CLONE_UNIT_BYTES - 1);

/// A name of no attribute, by which mounts clone trees. Reading it from an inode returns a token, which proves that the
/// caller can reach the inode and may read it. Setting it on a directory, to the token, `:` and a name, makes a clone.
/// Ceph's mounts take requests in such a way, too: it needs no ioctl, and no right to one.
///
/// The kernel does not know that the directory has changed. The caller has it look again.
pub const CLONE_XATTR: &str = "ferrite.clone";

/// The value that makes a clone.
pub fn clone_request(token: &[u8], name: &[u8]) -> Vec<u8> {
    [token, b":", name].concat()
}

impl Service {
    /// The token of an inode, for as long as the mount lasts.
    pub(super) fn clone_token(&self, ctx: &Ctx, ino: Ino) -> Response<Vec<u8>> {
        let generation = to_response(self.fs.getattr(ctx, ino))?.generation;
        let proof = self.clone_tokens.hash_one((ino, generation));
        Ok(format!("{ino}:{proof:016x}").into_bytes())
    }

    /// Carries out a request of [`CLONE_XATTR`]. The kernel has checked nothing.
    pub(super) fn clone_tree(&self, ctx: &Ctx, parent: Ino, request: &[u8]) -> Response<()> {
        let mut parts = request.splitn(3, |&byte| byte == b':');
        let (Some(number), Some(proof), Some(name)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(Errno::EINVAL.into());
        };
        let ino = std::str::from_utf8(number).ok().and_then(|number| number.parse().ok());
        let ino: Ino = ino.ok_or(Errno::EINVAL)?;
        if self.clone_token(ctx, ino)? != [number, b":", proof].concat() {
            return Err(Errno::EACCES.into());
        }
        let ctx = Ctx {
            check: true,
            pins: false,
            ..ctx.clone()
        };
        to_response(self.fs.clone_tree(&ctx, ino, parent, name).map(drop))
    }

    pub(crate) fn fallocate(&self, ctx: &Ctx, (fh, offset): (u64, u64), length: u64, mode: i32) -> Response<()> {
        const KEEP: i32 = libc::FALLOC_FL_KEEP_SIZE;
        const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | KEEP;
        const ZERO: i32 = libc::FALLOC_FL_ZERO_RANGE;
        const ZERO_KEEP: i32 = ZERO | KEEP;
        let mode = match mode {
            0 => FallocateMode::Allocate { keep_size: false },
            KEEP => FallocateMode::Allocate { keep_size: true },
            PUNCH => FallocateMode::PunchHole,
            ZERO => FallocateMode::ZeroRange { keep_size: false },
            ZERO_KEEP => FallocateMode::ZeroRange { keep_size: true },
            _ => return Err(Errno::EOPNOTSUPP.into()),
        };
        to_response(
            self.handle(fh)
                .and_then(|file| file.fallocate(ctx, mode, offset, length)),
        )
    }

    /// Shares blocks, as far as one step of the engine goes. Where that is not possible, the kernel copies.
    pub(crate) fn copy_file_range(
        &self,
        ctx: &Ctx,
        (from, source_offset): (u64, u64),
        (to, offset): (u64, u64),
        length: u64,
    ) -> Response<u32> {
        let source = to_response(self.handle(from))?;
        let range = CloneRange {
            source: source.id(),
            source_offset,
            offset,
            len_bytes: length.min(COPY_BYTES_MAX),
        };
        let cloned = self.handle(to).and_then(|file| file.clone_range(ctx, &range));
        to_response(cloned).map(|written| written.len_bytes as u32)
    }
}

/// The context of a change of an attribute. The kernel does not know who sets quotas, and lets everybody try who may
/// write. Flags are set by ioctl(2), where it checks more than the engine can.
pub(super) fn changing_xattr<'c>(ctx: &'c Ctx, name: &[u8]) -> ferrite_vfs::Result<Cow<'c, Ctx>> {
    match name {
        FLAGS_XATTR => Err(FsError::NotSupported(Unsupported::AttributeNamespace)),
        _ if QuotaAttribute::of(name).is_none() => Ok(Cow::Borrowed(ctx)),
        _ if !caller::may_administer(ctx) => Err(FsError::NotPermitted),
        _ => Ok(Cow::Owned(checked(ctx))),
    }
}

/// The context of a caller whom the engine checks.
pub(super) fn checked(ctx: &Ctx) -> Ctx {
    Ctx {
        check: true,
        ..ctx.clone()
    }
}
