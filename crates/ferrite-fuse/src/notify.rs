//! Unsolicited notifications to the kernel: a cached item has changed.
//!
//! For engines with users beyond this mount. An engine whose [`ferrite_vfs::Limits::validity`] is zero needs none of
//! it, because the kernel then remembers nothing.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;

use ferrite_vfs::Ino;
use fuser::{INodeNo, Notifier};

/// Notifies the kernel of changes. Cheap to clone.
///
/// A call waits for the kernel's requests under way on the same inode or name. So it must not run on a thread that
/// serves one, nor under a lock that serving one needs; [`Self::attributes_changed`] alone waits for nothing.
#[derive(Clone, Debug)]
pub struct Notifications(Notifier);

impl Notifications {
    pub(crate) fn new(notifier: Notifier) -> Self {
        Notifications(notifier)
    }

    /// The attributes of an inode have changed.
    pub fn attributes_changed(&self, ino: Ino) -> io::Result<()> {
        unless_unknown(self.0.inval_inode(INodeNo(ino), -1, 0))
    }

    /// The content of a file has changed from `offset` on, for `len_bytes` or, if that is 0, to its end, and its
    /// attributes with it.
    pub fn content_changed(&self, ino: Ino, offset: u64, len_bytes: u64) -> io::Result<()> {
        let clamp = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        unless_unknown(self.0.inval_inode(INodeNo(ino), clamp(offset), clamp(len_bytes)))
    }

    /// A name has a new target, or none, or is new.
    pub fn name_changed(&self, parent: Ino, name: &[u8]) -> io::Result<()> {
        unless_unknown(self.0.inval_entry(INodeNo(parent), OsStr::from_bytes(name)))
    }
}

/// An item that the kernel does not know needs no invalidation.
fn unless_unknown(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        result => result,
    }
}
