//! The peers of a remote client: common parts of the figures of RUFS and `ferrite-lab bench net`.
//!
//! Contents: [`Nfs`], an NFS server that makes the same promise, and its client; [`Many`], our requests with many under
//! way; the places that both sides read and write ([`FILE_BYTES`], [`page`], `nfs_peer.c` has the same).

mod depth;
mod nfs;

use ferrite_measure::mix;

pub use depth::Many;
#[cfg(feature = "nvme")]
pub(crate) use nfs::Ext4;
pub use nfs::Nfs;

/// Length of the file that is read and written.
pub const FILE_BYTES: u64 = 64 << 20;

/// Offset of a random page of a file.
pub fn page(number: u64, file_bytes: u64) -> u64 {
    mix(number) % (file_bytes / 4096) * 4096
}
