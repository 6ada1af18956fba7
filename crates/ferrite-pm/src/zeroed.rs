//! Large tables of zeros in DRAM, which take memory only where something is stored: those of a pool of terabytes have
//! hundreds of megabytes, and of a new pool hardly any of them are ever touched.

use zerocopy::FromZeros;

/// `len` zeros. Aborts if there is no memory, as all of Rust's allocations do.
pub fn zeroed<T: FromZeros>(len: usize) -> Box<[T]> {
    let Ok(zeros) = <[T]>::new_box_zeroed_with_elems(len) else {
        std::alloc::handle_alloc_error(std::alloc::Layout::array::<T>(len).unwrap_or(std::alloc::Layout::new::<T>()))
    };
    zeros
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    fn resident_bytes() -> u64 {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages: u64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
        pages * 4096
    }

    #[test]
    fn untouched_zeros_take_no_memory() {
        const WORDS: usize = 128 << 20;
        let before = resident_bytes();
        let words: Box<[AtomicU64]> = zeroed(WORDS);
        words[WORDS / 2].store(7, Ordering::Relaxed);
        assert_eq!(words[WORDS / 2 + 1].load(Ordering::Relaxed), 0);
        let grown = resident_bytes().saturating_sub(before);
        assert!(grown < 256 << 20, "{grown} bytes of {}", WORDS * 8);
    }
}
