//! Buffers that travel between network and engines without a copy.
//!
//! What lives here: [`Pool`], one area of memory that a network adapter or io_uring registers once, and [`Buffer`], a
//! part of it that one owner has at a time. Sizes are powers of two from 4 KiB to 4 MiB; larger requests are split by
//! who makes them. Which parts are free is in `buddy`.
//!
//! Invariants: a part belongs to one buffer, or is free. The area stays where it is as long as the pool or any buffer
//! lives. This crate knows no engine, no network and no file.
#![deny(unsafe_code)]

mod area;
mod buddy;

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use area::Area;
use buddy::Buddy;

/// Smallest buffer, and the alignment of all.
pub const PAGE_BYTES: usize = 4096;
/// Largest buffer.
pub const BUFFER_BYTES_MAX: usize = 4 << 20;

struct Shared {
    area: Area,
    free: Mutex<Buddy>,
}

/// An area of memory that is handed out as buffers. Cheap to clone; clones share it.
#[derive(Clone)]
pub struct Pool {
    shared: Arc<Shared>,
}

impl Pool {
    /// A pool of `len_bytes`, rounded up to whole buffers of the largest size. The memory is zero, and taken from the
    /// system when it is first used. `None` if the system has no such area.
    pub fn new(len_bytes: usize) -> Option<Pool> {
        let len_bytes = len_bytes.max(1).checked_next_multiple_of(BUFFER_BYTES_MAX)?;
        let pages = u32::try_from(len_bytes / PAGE_BYTES).ok()?;
        Some(Pool {
            shared: Arc::new(Shared {
                area: Area::new(len_bytes)?,
                free: Mutex::new(Buddy::new(pages)),
            }),
        })
    }

    /// A buffer of `len_bytes`, with the content it was left with. `None` if it is larger than any, or nothing of that
    /// size is free now. Does not block.
    pub fn take(&self, len_bytes: usize) -> Option<Buffer> {
        let order = order_of(len_bytes)?;
        let page = self.shared.free.lock().take(order)?;
        Some(Buffer {
            shared: Arc::clone(&self.shared),
            page,
            order,
            len: len_bytes,
        })
    }

    /// The same, waiting for it up to `limit`. `None` also if others took what came back.
    pub fn get(&self, len_bytes: usize, limit: Duration) -> Option<Buffer> {
        let ends = Instant::now() + limit;
        loop {
            if let Some(buffer) = self.take(len_bytes) {
                return Some(buffer);
            }
            if len_bytes > BUFFER_BYTES_MAX || Instant::now() >= ends {
                return None;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// Whether a buffer is a part of this pool.
    pub fn has(&self, buffer: &Buffer) -> bool {
        Arc::ptr_eq(&self.shared, &buffer.shared)
    }

    /// Where the area begins, for whoever registers it. It must not be accessed through this address except by the
    /// device, in parts whose buffers it was given.
    pub fn base(&self) -> *const u8 {
        self.shared.area.base()
    }

    /// Size of the area.
    pub fn len_bytes(&self) -> usize {
        self.shared.area.len_bytes()
    }

    /// How much of it is free, in whatever pieces.
    pub fn free_bytes(&self) -> usize {
        self.shared.free.lock().free_pages() as usize * PAGE_BYTES
    }
}

/// The order of the smallest buffer for `len_bytes`: it has 2^order pages.
fn order_of(len_bytes: usize) -> Option<u32> {
    if len_bytes > BUFFER_BYTES_MAX {
        return None;
    }
    Some(len_bytes.div_ceil(PAGE_BYTES).max(1).next_power_of_two().ilog2())
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("len_bytes", &self.len_bytes())
            .field("free_bytes", &self.free_bytes())
            .finish()
    }
}

/// A part of the area, owned. Dropping it gives it back.
pub struct Buffer {
    shared: Arc<Shared>,
    /// Its first page in the area.
    page: u32,
    order: u32,
    len: usize,
}

impl Buffer {
    /// Its offset in the area.
    pub fn offset(&self) -> usize {
        self.page as usize * PAGE_BYTES
    }

    /// How long it can be.
    pub fn capacity(&self) -> usize {
        PAGE_BYTES << self.order
    }

    /// Changes its length. What lies between the old and the new end is what was there before.
    ///
    /// # Panics
    /// If it is more than [`Self::capacity`].
    pub fn set_len(&mut self, len_bytes: usize) {
        assert!(
            len_bytes <= self.capacity(),
            "{len_bytes} bytes do not fit {}",
            self.capacity()
        );
        self.len = len_bytes;
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        area::part(self)
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        area::part_mut(self)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.shared.free.lock().give_back(self.page, self.order);
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes at {})", self.len, self.offset())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_do_not_overlap_and_all_comes_back() {
        let pool = Pool::new(8 << 20).unwrap();
        let all = pool.free_bytes();
        assert_eq!((all, pool.len_bytes()), (8 << 20, 8 << 20));
        let mut kept: Vec<(Buffer, u8)> = Vec::new();
        let mut random = 1u64;
        for turn in 0..20_000u32 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            if random >> 63 == 0 || kept.len() > 200 {
                if !kept.is_empty() {
                    let (buffer, fill) = kept.swap_remove((random >> 33) as usize % kept.len());
                    assert!(buffer.iter().all(|&byte| byte == fill), "somebody wrote into it");
                }
                continue;
            }
            let len = (random >> 40) as usize % (256 << 10);
            if let Some(mut buffer) = pool.take(len) {
                assert_eq!(buffer.len(), len);
                assert_eq!(buffer.offset() % PAGE_BYTES, 0);
                assert_eq!(buffer.as_ptr().addr(), pool.base().addr() + buffer.offset());
                let fill = turn as u8;
                buffer.fill(fill);
                kept.push((buffer, fill));
            }
        }
        kept.clear();
        assert_eq!(pool.free_bytes(), all);
        // And in large pieces again.
        let whole: Vec<Buffer> = std::iter::from_fn(|| pool.take(BUFFER_BYTES_MAX)).collect();
        assert_eq!(whole.len(), 2);
        assert!(pool.take(1).is_none());
    }

    #[test]
    fn lengths_have_limits() {
        let pool = Pool::new(1).unwrap();
        assert!(pool.take(BUFFER_BYTES_MAX + 1).is_none());
        let mut buffer = pool.take(0).unwrap();
        assert_eq!((buffer.len(), buffer.capacity()), (0, PAGE_BYTES));
        buffer.set_len(PAGE_BYTES);
        assert!(buffer.iter().all(|&byte| byte == 0));
        let too_long = std::thread::spawn(move || buffer.set_len(PAGE_BYTES + 1));
        assert!(too_long.join().is_err());
        assert_eq!(
            pool.free_bytes(),
            BUFFER_BYTES_MAX,
            "what panicked gave its buffer back"
        );
        assert!(Pool::new(usize::MAX).is_none());
    }

    #[test]
    fn a_buffer_outlives_the_pool() {
        let mut buffer = Pool::new(1).unwrap().take(10).unwrap();
        buffer.copy_from_slice(b"0123456789");
        let other = std::thread::spawn(move || buffer.to_vec());
        assert_eq!(other.join().unwrap(), b"0123456789");
    }
}
