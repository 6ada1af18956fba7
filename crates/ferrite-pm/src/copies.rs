//! Private views of device DAX, which the kernel maps only shared.
//!
//! Contents: [`Copies`], which records the chunks of such a view that have been copied. The view is a read-only
//! shared mapping of a device that was opened for reading only; so the kernel guarantees that nothing reaches the
//! medium. The first store into a chunk faults; the chunk is replaced by a copy in memory, and the store is repeated.
//! Chunks that are only read are never copied.
//!
//! Invariant: a chunk is copied at most once, and while no thread can store to it; a second copy would lose stores to
//! the first. Only the fault handler calls [`Copies::make`], so it uses atomics and system calls only.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

const SHARED: u8 = 0;
const UNDER_WAY: u8 = 1;
const COPIED: u8 = 2;

const PAGE_BYTES: usize = 4096;
const PAGE_WORDS: usize = PAGE_BYTES / 8;
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// See the module's head.
pub(crate) struct Copies {
    chunk_bytes: usize,
    states: Box<[AtomicU8]>,
}

impl Copies {
    /// For a view of `len_bytes`. Memory can be replaced only in chunks of this many bytes, the device's alignment.
    pub(crate) fn new(len_bytes: u64, chunk_bytes: u64) -> Copies {
        let chunks = len_bytes.div_ceil(chunk_bytes);
        Copies {
            chunk_bytes: chunk_bytes as usize,
            states: (0..chunks).map(|_| AtomicU8::new(SHARED)).collect(),
        }
    }

    /// How many chunks have been copied.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        let copied = self
            .states
            .iter()
            .filter(|state| state.load(Ordering::Acquire) == COPIED);
        copied.count()
    }

    /// Makes `address`, in the view that begins at `start` and ends at `end`, writable. False if there is no memory, or
    /// if the address is in a copy already, so that the fault has another cause.
    ///
    /// # Safety
    /// The view must be mapped, readable, and as long as `self` was made for.
    pub(crate) unsafe fn make(&self, start: usize, end: usize, address: usize) -> bool {
        let index = (address - start) / self.chunk_bytes;
        let Some(state) = self.states.get(index) else {
            return false;
        };
        match state.compare_exchange(SHARED, UNDER_WAY, Ordering::Acquire, Ordering::Acquire) {
            Ok(_) => {}
            // Another thread was faster, and the store will find its copy.
            Err(_) => {
                while state.load(Ordering::Acquire) == UNDER_WAY {
                    // SAFETY: a system call without arguments.
                    unsafe { libc::sched_yield() };
                }
                return state.load(Ordering::Acquire) == COPIED;
            }
        }
        let chunk = start + index * self.chunk_bytes;
        let len = self.chunk_bytes.min(end - chunk);
        // SAFETY: the chunk lies in the view, which is mapped, as the caller guarantees.
        let done = unsafe { exchange(chunk, len) };
        state.store(if done { COPIED } else { SHARED }, Ordering::Release);
        done
    }
}

/// Replaces the `len` bytes at `chunk` by a copy in memory.
///
/// # Safety
/// The bytes must be mapped and readable, and no thread may be able to store to them.
unsafe fn exchange(chunk: usize, len: usize) -> bool {
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
    let memory = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if memory == libc::MAP_FAILED {
        return false;
    }
    if len > HUGE_PAGE_BYTES {
        // Otherwise one nonzero page would take the space of a huge page, and all of them that of the whole chunk.
        // SAFETY: advice on the mapping just made; it changes no content, and a refusal only costs memory.
        unsafe { libc::madvise(memory, len, libc::MADV_NOHUGEPAGE) };
    }
    for page in (0..len).step_by(PAGE_BYTES) {
        let (from, to) = ((chunk + page) as *const AtomicU64, (memory as usize + page) as *mut u64);
        // SAFETY: readable for a page, as the caller guarantees, and aligned to pages; as atomic words, as all of a
        // pool.
        let words = unsafe { std::slice::from_raw_parts(from, PAGE_WORDS) };
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
        // New memory is zero already, and takes no space until it is stored to.
        if words.iter().any(|word| load(word) != 0) {
            for (index, word) in words.iter().enumerate() {
                // SAFETY: a word of the mapping just made, which no other code knows.
                unsafe { to.add(index).write(load(word)) };
            }
        }
    }
    // Atomic for other threads that read there meanwhile: they see the old or the new page, and both are equal.
    // SAFETY: the memory is ours and no other code knows it; its target belongs to the view, whose content it has.
    let moved = unsafe {
        libc::mremap(
            memory,
            len,
            len,
            libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED,
            chunk as *mut libc::c_void,
        )
    };
    if moved == libc::MAP_FAILED {
        // SAFETY: the mapping just made, which no other code knows.
        unsafe { libc::munmap(memory, len) };
        return false;
    }
    true
}
