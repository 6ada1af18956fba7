//! Bytes of an engine that the network borrows: it sends them from where they lie.
//!
//! Contents: [`Borrowed`], and [`send`], which sends such bytes and others in one system call. Memory that other
//! threads store to must not be seen as `&[u8]`; only its address goes to the kernel here.
//!
//! Invariant: bytes are borrowed for the length of a call. Bytes that are not sent by then are copied
//! ([`Borrowed::copy`]), because the memory may later belong to another file, whose content must not leak.
#![allow(
    unsafe_code,
    reason = "addresses of memory that others store to are given to the system"
)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Most parts per call.
pub const PARTS_MAX: usize = 160;
/// The source of bytes that lie nowhere.
static ZEROS: [u8; crate::PAGE_BYTES] = [0; crate::PAGE_BYTES];

/// Memory of an engine, in words that other threads may store to.
pub trait Words: Send + Sync {
    /// `count` words starting at byte `offset`, which is a multiple of 8.
    fn words(&self, offset: u64, count: usize) -> &[AtomicU64];
}

#[derive(Debug, Clone, Copy)]
struct Part {
    /// `None`: zeros.
    offset: Option<u64>,
    len: usize,
}

/// Bytes of an engine's memory, in the order in which they are to be sent.
pub struct Borrowed {
    memory: Arc<dyn Words>,
    parts: Vec<Part>,
    len: usize,
}

impl Borrowed {
    /// No bytes yet, of `memory`.
    pub fn new(memory: Arc<dyn Words>) -> Borrowed {
        Borrowed {
            memory,
            parts: Vec::new(),
            len: 0,
        }
    }

    /// Appends `len` bytes starting at `offset`, a multiple of 8.
    ///
    /// # Panics
    /// If they do not lie in the memory.
    pub fn push(&mut self, offset: u64, len: usize) {
        // Panics here rather than when the bytes are sent.
        let _ = self.memory.words(offset, len.div_ceil(8));
        self.len += len;
        if let Some(last) = self.parts.last_mut()
            && last.offset.is_some_and(|start| start + last.len as u64 == offset)
        {
            last.len += len;
            return;
        }
        self.parts.push(Part {
            offset: Some(offset),
            len,
        });
    }

    /// Appends up to a page of zeros.
    pub fn push_zeros(&mut self, len: usize) {
        let len = len.min(ZEROS.len());
        self.len += len;
        self.parts.push(Part { offset: None, len });
    }

    /// How many bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies the bytes behind the first `skipped`, as many as `buf` holds; returns how many.
    pub fn copy(&self, mut skipped: usize, buf: &mut [u8]) -> usize {
        let mut copied = 0;
        for part in &self.parts {
            let from = skipped.min(part.len);
            skipped -= from;
            let len = (part.len - from).min(buf.len() - copied);
            let buf = &mut buf[copied..copied + len];
            copied += len;
            let Some(offset) = part.offset else {
                buf.fill(0);
                continue;
            };
            // Words lie where their offset is a multiple of 8, as `push` requires of parts.
            let first = from / 8;
            let words = self
                .memory
                .words(offset + 8 * first as u64, (from + len).div_ceil(8) - first);
            let bytes = words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes());
            let bytes = bytes.skip(from % 8);
            buf.iter_mut().zip(bytes).for_each(|(buf, byte)| *buf = byte);
        }
        copied
    }

    /// Calls `f` with all bytes, in order, a page or less at a time. They pass through one page of this thread, because
    /// other threads may store to the memory.
    pub fn for_each_chunk(&self, f: &mut dyn FnMut(&[u8])) {
        let mut page = [0; crate::PAGE_BYTES];
        for part in &self.parts {
            let Some(offset) = part.offset else {
                f(&ZEROS[..part.len]);
                continue;
            };
            for at in (0..part.len).step_by(page.len()) {
                let len = page.len().min(part.len - at);
                let words = self.memory.words(offset + at as u64, len.div_ceil(8));
                for (word, bytes) in words.iter().zip(page.chunks_exact_mut(8)) {
                    bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
                }
                f(&page[..len]);
            }
        }
    }

    /// Addresses and lengths of the bytes behind the first `skipped`.
    fn places(&self, mut skipped: usize) -> impl Iterator<Item = libc::iovec> {
        self.parts.iter().filter_map(move |part| {
            let from = skipped.min(part.len);
            skipped -= from;
            let base = match part.offset {
                None => ZEROS.as_ptr(),
                Some(offset) => self.memory.words(offset, part.len.div_ceil(8)).as_ptr().cast::<u8>(),
            };
            (from < part.len).then(|| libc::iovec {
                iov_base: base.wrapping_add(from).cast_mut().cast(),
                iov_len: part.len - from,
            })
        })
    }
}

/// A piece of content to send.
pub enum Sent<'s> {
    /// Bytes of the caller.
    Bytes(&'s [u8]),
    /// Borrowed bytes, behind so many of them.
    Borrowed(&'s Borrowed, usize),
}

/// Sends as much as the socket takes, in one system call; returns how much. Sends at most [`PARTS_MAX`] parts.
pub fn send(socket: BorrowedFd<'_>, content: &[Sent<'_>]) -> io::Result<usize> {
    if let [Sent::Bytes(bytes)] = content {
        return Ok(rustix::net::send(socket, bytes, rustix::net::SendFlags::NOSIGNAL)?);
    }
    let mut places = Vec::with_capacity(PARTS_MAX);
    for sent in content {
        let left = PARTS_MAX - places.len();
        match sent {
            Sent::Bytes(bytes) => places.extend((left > 0).then(|| libc::iovec {
                iov_base: bytes.as_ptr().cast_mut().cast(),
                iov_len: bytes.len(),
            })),
            Sent::Borrowed(borrowed, skipped) => places.extend(borrowed.places(*skipped).take(left)),
        }
    }
    // SAFETY: all zeros is a message without name, content and control data.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = places.as_mut_ptr();
    message.msg_iovlen = places.len() as _;
    // SAFETY: the message's array has as many places as it says. Each is memory that stays mapped during the call: a
    // slice that is borrowed, or words borrowed from `memory` for as long as it is borrowed itself. The kernel only
    // reads there. Stores by others to the words meanwhile do not invalidate any reference: the words are atomic, and
    // the kernel's copy takes part in no data race of this program.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    struct Memory(Vec<AtomicU64>);

    impl Words for Memory {
        fn words(&self, offset: u64, count: usize) -> &[AtomicU64] {
            assert!(offset.is_multiple_of(8));
            &self.0[offset as usize / 8..][..count]
        }
    }

    #[test]
    fn bytes_leave_in_order_however_often_it_stops() {
        let memory = Arc::new(Memory((0..64).map(AtomicU64::new).collect()));
        let mut borrowed = Borrowed::new(memory.clone());
        borrowed.push(8, 16);
        borrowed.push(24, 8);
        borrowed.push_zeros(5);
        borrowed.push(80, 11);
        assert_eq!((borrowed.len(), borrowed.parts.len()), (40, 3));
        let word = |index: usize| memory.0[index].load(Ordering::Relaxed).to_ne_bytes();
        let mut whole = b"head".to_vec();
        (1..4).for_each(|index| whole.extend(word(index)));
        whole.extend([0; 5]);
        whole.extend(word(10));
        whole.extend(&word(11)[..3]);
        for skipped in 0..borrowed.len() {
            let (here, mut there) = UnixStream::pair().unwrap();
            let count = send(
                here.as_fd(),
                &[Sent::Bytes(b"head"), Sent::Borrowed(&borrowed, skipped)],
            )
            .unwrap();
            drop(here);
            let mut found = Vec::new();
            there.read_to_end(&mut found).unwrap();
            assert_eq!(count, found.len());
            assert_eq!(found[..4], whole[..4]);
            assert_eq!(found[4..], whole[4 + skipped..], "behind {skipped} bytes");
            for len in 0..=borrowed.len() - skipped {
                let mut copy = vec![0xee; len];
                assert_eq!(borrowed.copy(skipped, &mut copy), len);
                assert_eq!(copy, whole[4 + skipped..][..len], "{len} bytes behind {skipped}");
            }
            assert_eq!(borrowed.copy(skipped, &mut [0; 100]), borrowed.len() - skipped);
        }
        let mut chunks = Vec::new();
        borrowed.for_each_chunk(&mut |bytes| chunks.extend_from_slice(bytes));
        assert_eq!(chunks, whole[4..]);
    }

    #[test]
    fn chunks_are_pages_or_less() {
        let memory = Arc::new(Memory((0..2000).map(AtomicU64::new).collect()));
        let mut borrowed = Borrowed::new(memory.clone());
        borrowed.push(16, crate::PAGE_BYTES + 13);
        let (mut lens, mut bytes) = (Vec::new(), Vec::new());
        borrowed.for_each_chunk(&mut |chunk| {
            lens.push(chunk.len());
            bytes.extend_from_slice(chunk);
        });
        assert_eq!(lens, [crate::PAGE_BYTES, 13]);
        let mut copy = vec![0; borrowed.len()];
        borrowed.copy(0, &mut copy);
        assert_eq!(bytes, copy);
    }

    #[test]
    #[should_panic(expected = "range end index")]
    fn bytes_outside_of_the_memory_are_not_borrowed() {
        Borrowed::new(Arc::new(Memory(Vec::new()))).push(0, 1);
    }
}
