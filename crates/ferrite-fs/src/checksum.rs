//! The checksum of everything on the medium: crc32c (Castagnoli), by the widest instructions the CPU has.

use crc_fast::{CrcAlgorithm, Digest};

/// Of `data`.
#[inline]
pub(crate) fn crc32c(data: &[u8]) -> u32 {
    crc32c_append(0, data)
}

/// Goes on from the checksum of what comes before `data`, or from any start value.
#[inline]
pub(crate) fn crc32c_append(start: u32, data: &[u8]) -> u32 {
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!start));
    digest.update(data);
    digest.finalize() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_implementation_agrees() {
        let data: Vec<u8> = (0..5000_u32).map(|n| (n * n >> 3) as u8).collect();
        for len in [0, 1, 7, 8, 64, 120, 255, 1000, 4096, 5000] {
            assert_eq!(crc32c(&data[..len]), ::crc32c::crc32c(&data[..len]));
            assert_eq!(
                crc32c_append(77, &data[..len]),
                ::crc32c::crc32c_append(77, &data[..len])
            );
        }
    }
}
