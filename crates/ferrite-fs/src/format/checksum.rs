//! Checksums: crc32c (Castagnoli) of everything on the medium, and [`Check`], by which a journal record validates
//! itself and data, both of which a crash may tear.
//!
//! Torn bytes are old in part and new in part, at the same place. A crc32c cannot distinguish them from whole ones if
//! the versions differ by some bytes and by *their* crc32c, as two versions of an inode or of a database's page do that
//! carry their own: sums of sums cancel out. So records use sums that nothing else on the medium uses.
//!
//! There are two libraries, each much faster than the other at its job. `crc-fast` folds whole pages with the widest
//! instructions (43 ns per page instead of 155); `crc32c` has no setup cost, which matters for the few dozen bytes of
//! an entry or inode.

use std::sync::LazyLock;

use crc_fast::CrcParams;
use rapidhash::v3::{DEFAULT_RAPID_SECRETS, rapidhash_v3_seeded};

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

/// From this length on, [`Check::data`] folds with the wide instructions.
const LONG_DATA_BYTES: usize = 1024;

/// A primitive polynomial of degree 64, drawn at random, so that no content carries a sum of this kind.
const POLYNOMIAL: u64 = 0xffb5_ed17_0b03_87e1;
static PARAMS: LazyLock<CrcParams> =
    LazyLock::new(|| CrcParams::new("ferrite", 64, POLYNOMIAL, u64::MAX, true, u64::MAX, 0));
/// Odd, so that multiplying by it loses nothing.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// How records validate bytes that a crash may tear.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Check {
    /// crc32c, in older pools. A tear may pass if the torn bytes carry a crc32c of their own.
    Crc32c,
    /// rapidhash V3, and for long data the lower half of a CRC of 64 bits with a polynomial of its own.
    Apart,
}

impl Check {
    /// The check of a record, whose own check is 0 in `bytes`. `seed` is the pool's and the place's.
    #[inline]
    pub(crate) fn record(self, seed: u64, bytes: &[u8]) -> u32 {
        match self {
            Check::Crc32c => crc32c_append(seed as u32 ^ (seed >> 32) as u32, bytes),
            Check::Apart => {
                let hash = rapidhash_v3_seeded(bytes, &DEFAULT_RAPID_SECRETS);
                ((hash ^ seed.wrapping_mul(SPREAD)).wrapping_mul(SPREAD) >> 32) as u32
            }
        }
    }

    /// The check of data that a record makes reachable.
    #[inline]
    pub(crate) fn data(self, data: &[u8]) -> u32 {
        match self {
            Check::Crc32c => crc32c(data),
            Check::Apart if data.len() >= LONG_DATA_BYTES => crc_fast::checksum_with_params(*PARAMS, data) as u32,
            Check::Apart => rapidhash_v3_seeded(data, &DEFAULT_RAPID_SECRETS) as u32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes on the medium must not depend on a library's version or on the processor.
    #[test]
    fn the_sums_of_records_are_what_the_format_says() {
        let bytes: Vec<u8> = (0..4096_u32).map(|n| ((n * 7) >> 2) as u8).collect();
        let reference = |data: &[u8]| {
            let reflected = POLYNOMIAL.reverse_bits();
            !data.iter().fold(u64::MAX, |crc, &byte| {
                (0..8).fold(crc ^ u64::from(byte), |crc, _| {
                    crc >> 1 ^ (reflected & (crc & 1).wrapping_neg())
                })
            })
        };
        for len in [1024, 1025, 2000, 4095, 4096] {
            let data = &bytes[..len];
            assert_eq!(Check::Apart.data(data), reference(data) as u32, "{len} bytes");
        }
        let found =
            [16, 64, 320, 1016].map(|len| (Check::Apart.data(&bytes[..len]), Check::Apart.record(7, &bytes[..len])));
        assert_eq!(
            found,
            [
                (2475782308, 1587198957),
                (2116512134, 1595002044),
                (1441262769, 2498629060),
                (3374942609, 2300848771)
            ]
        );
    }

    /// Versions of something with its own crc32c, of which a crash leaves one half the other: a record with the old
    /// sum took that for whole.
    #[test]
    fn torn_content_with_sums_of_its_own_is_noticed() {
        let version = |value: u64| {
            let value = value.wrapping_mul(SPREAD).to_le_bytes();
            let mut line = [0; 64];
            line[..8].copy_from_slice(&value);
            line[8..12].copy_from_slice(&crc32c(&value).to_le_bytes());
            line
        };
        for len in [64, 320, 512, 1024, 4096] {
            for value in 0..100 {
                let mut whole = vec![0x5a; len];
                let at = len / 128 * 64;
                whole[at..at + 64].copy_from_slice(&version(value));
                let mut torn = whole.clone();
                torn[at..at + 64].copy_from_slice(&version(value + 1));
                assert_eq!(
                    Check::Crc32c.data(&whole),
                    Check::Crc32c.data(&torn),
                    "the reason for all this"
                );
                assert_ne!(Check::Apart.data(&whole), Check::Apart.data(&torn));
                assert_ne!(Check::Apart.record(1, &whole), Check::Apart.record(1, &torn));
            }
        }
    }

    #[test]
    fn both_libraries_agree() {
        let data: Vec<u8> = (0..5000_u32).map(|n| ((n * n) >> 3) as u8).collect();
        for len in [0, 1, 7, 8, 64, 120, 511, 512, 1000, 4096, 5000] {
            assert_eq!(crc32c(&data[..len]), crc32c_append(0, &data[..len]));
        }
    }
}
