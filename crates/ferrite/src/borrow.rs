//! [`File::read_borrowed`]: reads of bytes where they lie.
//!
//! Invariant: the bytes of a pool are never seen as a slice, because adapters and other threads may store to the memory
//! of a pool. They leave it word by word, or by a system call that reads them itself.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;

use ferrite_vfs::FsError;
use ferrite_vfs::buffers::borrowed::{Borrowed as InPlace, Sent, send};

use crate::error::{Cause, Result};
use crate::file::{File, Open, READ};

/// Bytes of a file, borrowed for the length of a call.
pub struct Borrowed<'b>(Bytes<'b>);

enum Bytes<'b> {
    InPlace(&'b InPlace),
    Copied(&'b [u8]),
}

impl Borrowed<'_> {
    /// How many bytes.
    pub fn len(&self) -> usize {
        match self.0 {
            Bytes::InPlace(in_place) => in_place.len(),
            Bytes::Copied(bytes) => bytes.len(),
        }
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the file system cannot lend them, and they were copied to memory of this process.
    pub fn is_copy(&self) -> bool {
        matches!(self.0, Bytes::Copied(_))
    }

    /// Calls `f` with all bytes, in order, for sums, searches and encoders. A chunk has no more than a page, which
    /// stays in the processor's cache; there is no buffer as long as the bytes.
    pub fn for_each_chunk(&self, mut f: impl FnMut(&[u8])) {
        match self.0 {
            Bytes::InPlace(in_place) => in_place.for_each_chunk(&mut f),
            Bytes::Copied(bytes) => bytes.chunks(ferrite_vfs::buffers::PAGE_BYTES).for_each(f),
        }
    }

    /// Copies the bytes behind the first `skipped`, as many as `space` holds; returns how many.
    pub fn copy_to(&self, skipped: usize, space: &mut [u8]) -> usize {
        match self.0 {
            Bytes::InPlace(in_place) => in_place.copy(skipped, space),
            Bytes::Copied(bytes) => {
                let bytes = bytes.get(skipped..).unwrap_or_default();
                let len = bytes.len().min(space.len());
                space[..len].copy_from_slice(&bytes[..len]);
                len
            }
        }
    }

    /// Sends the bytes behind the first `skipped` to a socket, in one system call that reads them where they lie;
    /// returns how many it took. A socket that blocks makes the writers of the file wait: use one that does not, and
    /// copy the rest when it takes no more.
    ///
    /// # Errors
    /// Those of `sendmsg(2)`: `WouldBlock` if the socket takes nothing now.
    pub fn send(&self, socket: BorrowedFd<'_>, skipped: usize) -> io::Result<usize> {
        if skipped >= self.len() {
            return Ok(0);
        }
        match self.0 {
            Bytes::InPlace(in_place) => send(socket, &[Sent::Borrowed(in_place, skipped)]),
            Bytes::Copied(bytes) => send(socket, &[Sent::Bytes(&bytes[skipped..])]),
        }
    }
}

impl fmt::Debug for Borrowed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Borrowed")
            .field("len", &self.len())
            .field("is_copy", &self.is_copy())
            .finish()
    }
}

impl File {
    /// Lends `f` up to `len_bytes` bytes from `offset` on, fewer only at the end of the file, where they lie: a pool's
    /// pages, without a copy. Until `f` returns, they do not change, and writers of the file wait. So `f` must be
    /// short, must not block, and must not use this file system, which can wait for itself.
    ///
    /// The bytes are copied first ([`Borrowed::is_copy`]) where the file system cannot lend them:
    ///
    /// * on exports of servers, on pools on devices, in ordinary memory ([`Fs::memory`](crate::Fs::memory)), and in
    ///   pools with checksums of data, which each read must verify;
    /// * from an `offset` that is no multiple of 8, and in files so small that they are part of their inode;
    /// * in pages with unaligned writes that are not merged yet, and in files that are memory regions of adapters;
    /// * while a writer has the file, and if the read has to set the access time, which it does once a day by default.
    ///
    /// ```
    /// # fn main() -> ferrite::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let fs = ferrite::Fs::create(dir.path().join("data.pool"), 64 << 20)?;
    /// fs.write("/f", vec![1; 1 << 20])?;
    /// let sum = fs.open_file("/f")?.read_borrowed(0, usize::MAX, |bytes| {
    ///     let mut sum = 0;
    ///     bytes.for_each_chunk(|chunk| sum += chunk.iter().map(|&byte| u64::from(byte)).sum::<u64>());
    ///     sum
    /// })?;
    /// assert_eq!(sum, 1 << 20);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `EBADF` unless the file is open for reading. `EIO` for damaged data, and for a medium that failed while `f` ran,
    /// which may then have seen zeros.
    pub fn read_borrowed<R>(&self, offset: u64, len_bytes: usize, f: impl FnOnce(&Borrowed<'_>) -> R) -> Result<R> {
        let (mut f, mut result) = (Some(f), None);
        self.run(READ, |open| {
            if !open.readable {
                return Err(FsError::BadHandle);
            }
            let mut take = |in_place: &InPlace, _version| {
                if let Some(f) = f.take() {
                    result = Some(f(&Borrowed(Bytes::InPlace(in_place))));
                }
            };
            open.file
                .read_borrowed(open.ctx(), offset, len_bytes, &mut take)
                .map(drop)
        })?;
        match (result, f) {
            (Some(result), _) => Ok(result),
            (None, Some(f)) => Ok(f(&Borrowed(Bytes::Copied(&self.copy_of(offset, len_bytes)?)))),
            (None, None) => unreachable!("what took `f` has set the result"),
        }
    }

    /// The bytes in memory of this process.
    fn copy_of(&self, offset: u64, len_bytes: usize) -> Result<Vec<u8>> {
        let size = self.run(READ, |open: &Open| open.file.getattr(open.ctx()))?.size;
        let there = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX);
        let len = len_bytes.min(there);
        let mut copy = Vec::new();
        if copy.try_reserve_exact(len).is_err() {
            let len_bytes = len as u64;
            return Err(self.error(READ, Cause::NoMemory { len_bytes }));
        }
        copy.resize(len, 0);
        let count = self.read_from(offset, &mut copy)?;
        copy.truncate(count);
        Ok(copy)
    }
}
