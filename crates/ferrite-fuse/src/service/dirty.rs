//! Dirty pages of a shared mapping, which the engine does not know before the kernel writes them.
//!
//! Contents: the replies that would deny such pages: where data and holes are, and that a file has no blocks at all.
//! Programs that copy (`cp`, `tar -S`) believe both, and would leave out the stored data.
//!
//! Invariant: while a handle of an inode is open for reading and writing, which a shared mapping needs to be stored
//! into, no part of its file is called a hole, and its block count is not 0. The kernel releases such a handle after
//! the last mapping made through it, so by then every stored page is written. Only this mount's handles count: no other
//! kernel's pages can be read here either.

use std::time::Duration;

use ferrite_vfs::{Attr, BadArgument, Ctx, FileKind, FsError};

use super::{Response, Service, to_response};
use crate::attr_validity::AttrValidity;
use crate::convert::Refused;

/// The unit of block counts. Programs do not look for holes in shorter files.
const BLOCK_BYTES: u64 = 512;

impl Service {
    /// Where the next data or the next hole begins. POSIX allows a reply that calls the whole file data.
    pub(crate) fn lseek(&self, ctx: &Ctx, fh: u64, offset: i64, whence: i32) -> Response<u64> {
        let offset = u64::try_from(offset).map_err(|_| Refused::from(&FsError::NoSuchAddress))?;
        let file = to_response(self.handle(fh))?;
        let is_data = self.handles.may_be_mapped(file.ino());
        to_response(match (whence, is_data) {
            (libc::SEEK_DATA, false) => file.seek_data(ctx, offset),
            (libc::SEEK_HOLE, false) => file.seek_hole(ctx, offset),
            (libc::SEEK_DATA | libc::SEEK_HOLE, true) => file.getattr(ctx).and_then(|attr| match whence {
                _ if offset >= attr.size => Err(FsError::NoSuchAddress),
                libc::SEEK_DATA => Ok(offset),
                _ => Ok(attr.size),
            }),
            _ => Err(FsError::Invalid(BadArgument::SeekKind)),
        })
    }

    /// Attributes as the kernel gets them, and how long it may keep them. A mapping may write to a file that is all
    /// holes at any time, and vice versa, so its attributes are not kept.
    pub(super) fn shown(&self, mut attr: Attr, validity: Duration) -> (Attr, AttrValidity) {
        if attr.blocks != 0 || attr.size < BLOCK_BYTES || attr.kind != FileKind::File {
            return (attr, AttrValidity::of(&attr, validity));
        }
        attr.blocks = u64::from(self.handles.may_be_mapped(attr.ino));
        (attr, AttrValidity::NOT)
    }
}
