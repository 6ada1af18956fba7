//! Eight keys at a time: comparing a bucket's keys, and hashing consecutive blocks.
//!
//! Three levels give equal results, chosen once by CPU feature; the tests compare them. The comparison reads keys that other
//! threads may be storing: a vector load is not atomic as a whole, but each aligned word of it is on every CPU that has
//! these instructions, and a word is all a key needs.

use std::sync::atomic::{AtomicU64, Ordering};

/// Instruction set in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// Word by word.
    Scalar,
    /// 32-byte vectors.
    Avx2,
    /// 64-byte vectors.
    Avx512,
}

impl Level {
    /// The best this CPU has.
    pub fn detect() -> Level {
        Level::available().pop().unwrap_or(Level::Scalar)
    }

    /// All levels this CPU has, the best last.
    pub fn available() -> Vec<Level> {
        let mut levels = vec![Level::Scalar];
        #[cfg(target_arch = "x86_64")]
        {
            if std::is_x86_feature_detected!("avx2") {
                levels.push(Level::Avx2);
            }
            if std::is_x86_feature_detected!("avx512f") && std::is_x86_feature_detected!("avx512dq") {
                levels.push(Level::Avx512);
            }
        }
        levels
    }
}

const MIX_1: u64 = 0x9e37_79b9_7f4a_7c15;
const MIX_2: u64 = 0xd6e8_feb8_6659_fd93;

/// Home line of one key in a table of `lines` (fewer than 2^32) lines: two multiplications and a shift, no division.
#[inline]
pub(crate) fn home(key: u64, seed: u64, lines: u64) -> u64 {
    let mixed = (key ^ seed).wrapping_mul(MIX_1);
    let mixed = (mixed ^ mixed >> 32).wrapping_mul(MIX_2);
    ((mixed >> 32) * lines) >> 32
}

/// Home lines of eight consecutive keys from `key` on.
#[inline]
pub(crate) fn homes(level: Level, key: u64, seed: u64, lines: u64) -> [u64; 8] {
    match level {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the level was detected.
        Level::Avx512 => unsafe { homes_avx512(key, seed, lines) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the level was detected.
        Level::Avx2 => unsafe { homes_avx2(key, seed, lines) },
        _ => std::array::from_fn(|index| home(key.wrapping_add(index as u64), seed, lines)),
    }
}

/// Bit *n* of the result says whether word *n* of `line` (eight words) is `key`.
#[inline]
pub(crate) fn matches(level: Level, line: &[AtomicU64], key: u64) -> u8 {
    debug_assert_eq!(line.len(), 8);
    match level {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the level was detected, and the slice has eight words.
        Level::Avx512 => unsafe { matches_avx512(line.as_ptr().cast(), key) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the level was detected, and the slice has eight words.
        Level::Avx2 => unsafe { matches_avx2(line.as_ptr().cast(), key) },
        _ => line.iter().enumerate().fold(0, |mask, (index, word)| {
            mask | u8::from(word.load(Ordering::Acquire) == key) << index
        }),
    }
}

/// # Safety
/// `line` points to eight readable words; the CPU has AVX-512F.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn matches_avx512(line: *const u64, key: u64) -> u8 {
    use std::arch::x86_64::{_mm512_cmpeq_epi64_mask, _mm512_loadu_si512, _mm512_set1_epi64};
    // SAFETY: eight words are readable at `line`.
    let words = unsafe { _mm512_loadu_si512(line.cast()) };
    let mask = _mm512_cmpeq_epi64_mask(words, _mm512_set1_epi64(key as i64));
    std::sync::atomic::fence(Ordering::Acquire);
    mask
}

/// # Safety
/// `line` points to eight readable words; the CPU has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn matches_avx2(line: *const u64, key: u64) -> u8 {
    use std::arch::x86_64::{
        _mm256_castsi256_pd, _mm256_cmpeq_epi64, _mm256_loadu_si256, _mm256_movemask_pd, _mm256_set1_epi64x,
    };
    let wanted = _mm256_set1_epi64x(key as i64);
    let mut mask = 0;
    for half in 0..2 {
        // SAFETY: four words are readable at each half.
        let words = unsafe { _mm256_loadu_si256(line.add(half * 4).cast()) };
        mask |= _mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpeq_epi64(words, wanted))) << (half * 4);
    }
    std::sync::atomic::fence(Ordering::Acquire);
    mask as u8
}

/// # Safety
/// The CPU has AVX-512F and AVX-512DQ.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512dq")]
unsafe fn homes_avx512(key: u64, seed: u64, lines: u64) -> [u64; 8] {
    use std::arch::x86_64::{
        _mm512_add_epi64, _mm512_mul_epu32, _mm512_mullo_epi64, _mm512_set_epi64, _mm512_set1_epi64, _mm512_srli_epi64,
        _mm512_storeu_si512, _mm512_xor_si512,
    };
    let keys = _mm512_add_epi64(_mm512_set1_epi64(key as i64), _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0));
    let mixed = _mm512_mullo_epi64(
        _mm512_xor_si512(keys, _mm512_set1_epi64(seed as i64)),
        _mm512_set1_epi64(MIX_1 as i64),
    );
    let mixed = _mm512_xor_si512(mixed, _mm512_srli_epi64::<32>(mixed));
    let mixed = _mm512_srli_epi64::<32>(_mm512_mullo_epi64(mixed, _mm512_set1_epi64(MIX_2 as i64)));
    let homes = _mm512_srli_epi64::<32>(_mm512_mul_epu32(mixed, _mm512_set1_epi64(lines as i64)));
    let mut out = [0; 8];
    // SAFETY: `out` has room for the vector.
    unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), homes) };
    out
}

/// # Safety
/// The CPU has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn homes_avx2(key: u64, seed: u64, lines: u64) -> [u64; 8] {
    use std::arch::x86_64::{
        __m256i, _mm256_add_epi64, _mm256_mul_epu32, _mm256_set_epi64x, _mm256_set1_epi64x, _mm256_slli_epi64,
        _mm256_srli_epi64, _mm256_storeu_si256, _mm256_xor_si256,
    };
    /// Low 64 bits of products, from 32-bit multiplications.
    #[target_feature(enable = "avx2")]
    fn mul(a: __m256i, b: __m256i) -> __m256i {
        let cross = _mm256_add_epi64(
            _mm256_mul_epu32(_mm256_srli_epi64::<32>(a), b),
            _mm256_mul_epu32(a, _mm256_srli_epi64::<32>(b)),
        );
        _mm256_add_epi64(_mm256_mul_epu32(a, b), _mm256_slli_epi64::<32>(cross))
    }
    let mut out = [0u64; 8];
    for half in 0..2 {
        let first = key.wrapping_add(half as u64 * 4);
        let keys = _mm256_add_epi64(_mm256_set1_epi64x(first as i64), _mm256_set_epi64x(3, 2, 1, 0));
        let mixed = mul(
            _mm256_xor_si256(keys, _mm256_set1_epi64x(seed as i64)),
            _mm256_set1_epi64x(MIX_1 as i64),
        );
        let mixed = _mm256_xor_si256(mixed, _mm256_srli_epi64::<32>(mixed));
        let mixed = _mm256_srli_epi64::<32>(mul(mixed, _mm256_set1_epi64x(MIX_2 as i64)));
        let homes = _mm256_srli_epi64::<32>(_mm256_mul_epu32(mixed, _mm256_set1_epi64x(lines as i64)));
        // SAFETY: each half of `out` has room for the vector.
        unsafe { _mm256_storeu_si256(out.as_mut_ptr().add(half * 4).cast(), homes) };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_levels_hash_and_compare_alike() {
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state ^ state >> 29
        };
        for _ in 0..2000 {
            let (key, seed, lines) = (next(), next(), (next() >> 33) + 1);
            let expected: [u64; 8] = std::array::from_fn(|n| home(key.wrapping_add(n as u64), seed, lines));
            assert!(expected.iter().all(|&home| home < lines));
            let wanted = next() % 4;
            let line: Vec<AtomicU64> = (0..8).map(|_| AtomicU64::new(next() % 4)).collect();
            let mask = matches(Level::Scalar, &line, wanted);
            for level in Level::available() {
                assert_eq!(homes(level, key, seed, lines), expected, "{level:?}");
                assert_eq!(matches(level, &line, wanted), mask, "{level:?}");
            }
        }
    }
}
