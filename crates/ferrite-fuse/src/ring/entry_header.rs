//! The header in an entry of a ring, in front of the payload.

use fuser::Errno;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::message::abi::{InHeader, OP_BYTES, OutHeader};

/// `struct fuse_uring_req_header`.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct EntryHeader {
    /// [`InHeader`], or [`OutHeader`] in a reply.
    in_out: [u8; 128],
    op: [u8; OP_BYTES],
    flags: u64,
    /// Identifies the request in its reply.
    pub(crate) commit_id: u64,
    /// Bytes of the payload that are used.
    pub(crate) payload_bytes: u32,
    padding: u32,
    reserved: u64,
}

impl EntryHeader {
    /// The request's header.
    pub(crate) fn request(&self) -> InHeader {
        // The buffer is large enough: the error cannot occur.
        InHeader::read_from_prefix(&self.in_out).map_or_else(|_| InHeader::new_zeroed(), |(header, _)| header)
    }

    /// The opcode's header.
    pub(crate) fn op(&self) -> &[u8] {
        &self.op
    }

    /// Makes it the header of a reply with `outcome` bytes of payload.
    pub(crate) fn respond(&mut self, unique: u64, outcome: Result<usize, Errno>) {
        let header = OutHeader::new(unique, outcome);
        self.in_out[..size_of::<OutHeader>()].copy_from_slice(header.as_bytes());
        self.payload_bytes = outcome.unwrap_or(0) as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_is_the_kernels() {
        assert_eq!(size_of::<EntryHeader>(), 128 + 128 + 32);
        assert_eq!(std::mem::offset_of!(EntryHeader, commit_id), 128 + 128 + 8);
        assert_eq!(std::mem::offset_of!(EntryHeader, payload_bytes), 128 + 128 + 16);
    }

    #[test]
    fn a_reply_replaces_the_request() {
        let mut header = EntryHeader::new_zeroed();
        header.commit_id = 77;
        header.respond(78, Ok(128));
        assert_eq!(header.payload_bytes, 128);
        let words: Vec<u8> = [144u32, 0, 78, 0].iter().flat_map(|half| half.to_ne_bytes()).collect();
        assert_eq!(&header.in_out[..16], words);
        header.respond(78, Err(Errno::ENOENT));
        assert_eq!((header.payload_bytes, header.commit_id), (0, 77));
        let error = i32::from_ne_bytes(header.in_out[4..8].try_into().unwrap());
        assert_eq!(error, -libc::ENOENT);
    }
}
