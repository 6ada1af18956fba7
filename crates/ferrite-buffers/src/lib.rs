//! Buffers that travel between network and engines without a copy.
//!
//! Contents: [`Pool`], one area of memory that a network adapter or io_uring registers once, and [`Buffer`], a part of
//! it with one owner at a time. Sizes are powers of two from 4 KiB to 4 MiB; callers split larger requests. `free`
//! (single pages, and waiting callers) and `buddy` (all other parts) track which parts are free. And [`borrowed`]:
//! bytes that are sent from an engine's memory.
//!
//! Invariants: a part belongs to one buffer, or is free. The area stays where it is as long as the pool or any buffer
//! lives. This crate knows no engine, no network and no file.
#![deny(unsafe_code)]

mod area;
pub mod borrowed;
mod buddy;
mod free;

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrite_checks::condvar::Condvar;
use parking_lot::Mutex;

use area::Area;
use free::Free;

/// Smallest buffer, and the alignment of all.
pub const PAGE_BYTES: usize = 4096;
/// Largest buffer.
pub const BUFFER_BYTES_MAX: usize = 4 << 20;

struct Shared {
    area: Area,
    free: Mutex<Free>,
    /// A part was given back, or a caller has left the queue.
    changed: Condvar,
}

/// An area of memory that is handed out as buffers. Cheap to clone; clones share it.
#[derive(Clone)]
pub struct Pool {
    shared: Arc<Shared>,
}

impl Pool {
    /// A pool of `len_bytes`, rounded up to whole buffers of the largest size. The memory is zero, and the kernel
    /// allocates it on first use. `None` if the kernel cannot map it.
    pub fn new(len_bytes: usize) -> Option<Pool> {
        let len_bytes = len_bytes.max(1).checked_next_multiple_of(BUFFER_BYTES_MAX)?;
        let pages = u32::try_from(len_bytes / PAGE_BYTES).ok()?;
        Some(Pool {
            shared: Arc::new(Shared {
                area: Area::new(len_bytes)?,
                free: Mutex::new(Free::new(pages)),
                changed: Condvar::new(),
            }),
        })
    }

    /// A buffer of `len_bytes`, with its previous content. `None` if no buffer is so large, or none of that size is
    /// free now. Does not block.
    pub fn take(&self, len_bytes: usize) -> Option<Buffer> {
        let order = order_of(len_bytes)?;
        let page = self.shared.free.lock().take(order)?;
        Some(self.buffer(page, order, len_bytes))
    }

    fn buffer(&self, page: u32, order: u32, len_bytes: usize) -> Buffer {
        Buffer {
            shared: Arc::clone(&self.shared),
            page,
            order,
            len: len_bytes,
        }
    }

    /// The same, waiting for it up to `limit`. Waiting callers are served in order of arrival; a caller that takes
    /// without waiting may come in between. A caller that holds buffers and waits for more makes others wait, for
    /// `limit` at most.
    pub fn get(&self, len_bytes: usize, limit: Duration) -> Option<Buffer> {
        let order = order_of(len_bytes)?;
        let mut free = self.shared.free.lock();
        if free.waiting() == 0
            && let Some(page) = free.take(order)
        {
            return Some(self.buffer(page, order, len_bytes));
        }
        let ends = Instant::now() + limit;
        let ticket = free.queue();
        let page = loop {
            if free.is_first(ticket)
                && let Some(page) = free.take(order)
            {
                break Some(page);
            }
            if self.shared.changed.wait_until(&mut free, ends).timed_out() {
                // A buffer that was freed at the last moment.
                break if free.is_first(ticket) { free.take(order) } else { None };
            }
        };
        free.leave(ticket);
        // The next in the queue may find enough.
        self.shared.changed.notify_all();
        drop(free);
        page.map(|page| self.buffer(page, order, len_bytes))
    }

    /// Whether a buffer is a part of this pool.
    pub fn has(&self, buffer: &Buffer) -> bool {
        Arc::ptr_eq(&self.shared, &buffer.shared)
    }

    /// Whether both are the same pool.
    pub fn is(&self, other: &Pool) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// The address of the area, for its registration. Only the device may access it through this address, in parts
    /// whose buffers it was given.
    pub fn base(&self) -> *const u8 {
        self.shared.area.base()
    }

    /// Size of the area.
    pub fn len_bytes(&self) -> usize {
        self.shared.area.len_bytes()
    }

    /// How much of it is free, in pieces of any size.
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

/// A part of the area, owned. Dropping it returns it to the pool.
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

    /// Its largest length.
    pub fn capacity(&self) -> usize {
        PAGE_BYTES << self.order
    }

    /// Changes its length. The bytes between the old and the new end keep their previous content.
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

    /// Splits it into buffers of `len_bytes`, as many as fit; each returns to the pool on its own. For callers that
    /// keep many small buffers for long: taken one by one they are scattered, and keep the pool from having large ones.
    ///
    /// # Panics
    /// If it is too small for one.
    pub fn split(mut self, len_bytes: usize) -> Vec<Buffer> {
        let order = order_of(len_bytes).filter(|&order| order <= self.order);
        let order = order.expect("a part is not larger than the whole");
        let others = (1..1 << (self.order - order)).map(|index: u32| Buffer {
            shared: Arc::clone(&self.shared),
            page: self.page + (index << order),
            order,
            len: len_bytes,
        });
        let others: Vec<Buffer> = others.collect();
        (self.order, self.len) = (order, len_bytes);
        std::iter::once(self).chain(others).collect()
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
        let mut free = self.shared.free.lock();
        free.give_back(self.page, self.order);
        if free.waiting() > 0 {
            self.shared.changed.notify_all();
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes at {})", self.len, self.offset())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

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
    fn single_pages_do_not_keep_large_buffers_from_anybody() {
        let pool = Pool::new(BUFFER_BYTES_MAX).unwrap();
        let pages: Vec<Buffer> = std::iter::from_fn(|| pool.take(1)).collect();
        assert_eq!(pages.len(), BUFFER_BYTES_MAX / PAGE_BYTES);
        assert_eq!(pool.free_bytes(), 0);
        let last = pages[0].offset();
        drop(pages);
        assert_eq!(pool.free_bytes(), BUFFER_BYTES_MAX);
        assert!(pool.take(BUFFER_BYTES_MAX).is_some(), "from page {last} on");
        // The page that was used last is in a cache, so it is the next.
        let page = pool.take(1).unwrap();
        let offset = page.offset();
        drop(page);
        assert_eq!(pool.take(1).unwrap().offset(), offset);
    }

    #[test]
    fn parts_of_a_buffer_are_buffers_and_become_whole_again() {
        let pool = Pool::new(BUFFER_BYTES_MAX).unwrap();
        for len_bytes in [1, PAGE_BYTES, 2 * PAGE_BYTES - 1, 100_000, 1 << 20] {
            let block = pool.take(1 << 20).unwrap();
            let (from, mut parts) = (block.offset(), block.split(len_bytes));
            let buf = parts[0].capacity();
            assert_eq!(parts.len(), (1 << 20) / buf);
            for (index, part) in parts.iter_mut().enumerate() {
                assert_eq!((part.len(), part.offset()), (len_bytes, from + index * buf));
                part.fill(index as u8);
            }
            let is_own = |(index, part): (usize, &Buffer)| part.iter().all(|&byte| byte == index as u8);
            assert!(parts.iter().enumerate().all(is_own), "two parts overlap");
            assert_eq!(pool.free_bytes(), BUFFER_BYTES_MAX - (1 << 20));
            parts.swap_remove(0);
            drop(parts);
            assert_eq!(pool.free_bytes(), BUFFER_BYTES_MAX);
            assert!(pool.take(BUFFER_BYTES_MAX).is_some());
        }
    }

    #[test]
    fn who_waits_is_served_in_turn_or_gives_up_in_time() {
        const LONG: Duration = Duration::from_secs(5);
        let pool = Pool::new(BUFFER_BYTES_MAX).unwrap();
        let all: Vec<Buffer> = std::iter::from_fn(|| pool.take(1)).collect();
        let began = Instant::now();
        assert!(pool.get(1, Duration::from_millis(20)).is_none());
        assert!(began.elapsed() >= Duration::from_millis(20));
        assert!(pool.get(BUFFER_BYTES_MAX + 1, LONG).is_none(), "it waits for nothing");
        let is_served = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let large = scope.spawn(|| {
                let buffer = pool.get(BUFFER_BYTES_MAX, LONG);
                is_served.store(true, Ordering::Release);
                buffer.is_some()
            });
            let queued = |count| {
                while pool.shared.free.lock().waiting() < count {
                    std::thread::yield_now();
                }
            };
            queued(1);
            // Many later callers want little, and keep it until the large one is served.
            for _ in 0..8 {
                scope.spawn(|| {
                    let page = pool.get(1, LONG);
                    while !is_served.load(Ordering::Acquire) {
                        std::thread::yield_now();
                    }
                    assert!(page.is_some());
                });
            }
            queued(9);
            // One by one, each enough for one of them.
            drop(all);
            assert!(large.join().unwrap(), "others were served first");
        });
        assert!(began.elapsed() < LONG);
    }

    /// Clients that have a buffer and want more, of a pool that is too small for all of them.
    #[test]
    fn exhaustion_ends_in_time_whoever_waits_for_whom() {
        const WAIT: Duration = Duration::from_millis(5);
        let pool = Pool::new(2 * BUFFER_BYTES_MAX).unwrap();
        let (began, turns) = (Instant::now(), 40);
        let served: usize = std::thread::scope(|scope| {
            let clients: Vec<_> = (0..12usize)
                .map(|client| {
                    let pool = &pool;
                    scope.spawn(move || {
                        let sizes = [1, 1 << 20, BUFFER_BYTES_MAX, 64 << 10];
                        let mut served = 0;
                        for turn in 0..turns {
                            let first = pool.get(sizes[(client + turn) % 4], WAIT);
                            let second = pool.get(sizes[(client + turn + 1) % 4], WAIT);
                            served += usize::from(first.is_some()) + usize::from(second.is_some());
                        }
                        served
                    })
                })
                .collect();
            clients.into_iter().map(|client| client.join().unwrap()).sum()
        });
        // Each waits for no longer than it said; scheduling takes time, too.
        assert!(began.elapsed() < 20 * 2 * turns as u32 * WAIT, "{:?}", began.elapsed());
        assert!(served > 0);
        assert_eq!(pool.free_bytes(), pool.len_bytes());
        assert_eq!(pool.shared.free.lock().waiting(), 0);
    }

    #[test]
    fn a_buffer_outlives_the_pool() {
        let mut buffer = Pool::new(1).unwrap().take(10).unwrap();
        buffer.copy_from_slice(b"0123456789");
        let other = std::thread::spawn(move || buffer.to_vec());
        assert_eq!(other.join().unwrap(), b"0123456789");
    }
}
