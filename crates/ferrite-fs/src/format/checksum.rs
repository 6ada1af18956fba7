//! The checksum of everything on the medium: crc32c (Castagnoli).
//!
//! There are two libraries, each much faster than the other at its job. `crc-fast` folds whole pages with the widest
//! instructions (43 ns per page instead of 155); `crc32c` has no setup cost, which matters for the few dozen bytes of
//! an entry or inode.

/// From this length on, the wide instructions pay off.
const LONG_BYTES: usize = 512;

/// Checksum of `data`.
#[inline]
pub(crate) fn crc32c(data: &[u8]) -> u32 {
    if data.len() >= LONG_BYTES {
        crc_fast::crc32_iscsi(data)
    } else {
        ::crc32c::crc32c(data)
    }
}

/// Continues from the checksum of what comes before `data`, or from any start value.
#[inline]
pub(crate) fn crc32c_append(start: u32, data: &[u8]) -> u32 {
    ::crc32c::crc32c_append(start, data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_libraries_agree() {
        let data: Vec<u8> = (0..5000_u32).map(|n| ((n * n) >> 3) as u8).collect();
        for len in [0, 1, 7, 8, 64, 120, 511, 512, 1000, 4096, 5000] {
            assert_eq!(crc32c(&data[..len]), crc32c_append(0, &data[..len]));
        }
    }
}
