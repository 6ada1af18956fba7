//! Eight keys at a time: comparing a bucket's keys, hashing consecutive blocks, and finding the neighbours of a page
//! among unsorted keys.
//!
//! All levels give equal results; the level is chosen once by CPU feature, and the tests compare them.
//!
//! Invariant: keys that other threads may be storing are read as atomic words, or by a block of assembly that stands
//! for the loads of several of them. A vector load is not atomic as a whole, but each aligned word of it is on every
//! CPU that has these instructions, and a word is all a key needs. An intrinsic would be a plain load to the compiler,
//! which must not race (docs/memory-model.md).

#[cfg(target_arch = "x86_64")]
use std::arch::asm;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{__m256i, __m512i};
use std::sync::LazyLock;
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
    /// The best level of this CPU.
    pub fn detect() -> Level {
        static BEST: LazyLock<Level> = LazyLock::new(|| Level::available().pop().unwrap_or(Level::Scalar));
        *BEST
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

/// Bit *n* of the result is set if word *n* of `line` (eight words) is `key`.
#[inline]
pub(crate) fn matches(level: Level, line: &[AtomicU64], key: u64) -> u8 {
    match level {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the level was detected, and the slice has eight words.
        Level::Avx512 if line.len() == 8 => unsafe { matches_avx512(line.as_ptr(), key) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the level was detected, and the slice has eight words.
        Level::Avx2 if line.len() == 8 => unsafe { matches_avx2(line.as_ptr(), key) },
        _ => line.iter().enumerate().fold(0, |mask, (index, word)| {
            mask | u8::from(word.load(Ordering::Acquire) == key) << index
        }),
    }
}

/// The same for two lines at once: the low half of the result is for the first.
#[inline]
pub(crate) fn matches_pair(level: Level, lines: [&[AtomicU64]; 2], key: u64) -> u16 {
    u16::from_le_bytes(match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 if lines.iter().all(|line| line.len() == 8) => {
            // SAFETY: the level was detected, and the slices have eight words.
            unsafe { matches_pair_avx512(lines.map(<[AtomicU64]>::as_ptr), key) }
        }
        _ => lines.map(|line| matches(level, line, key)),
    })
}

/// The words that [`nearest`] compares, and the bits in them. Constants, so that no lookup has to load them.
pub(crate) trait Shape {
    /// A word without any of these bits does not count.
    const PRESENT: u64;
    /// A word above this is invalid and does not count.
    const GREATEST: u64;
    /// The word is compared after a right shift by this many bits, and then has at most 40 bits.
    const SHIFT: u32;
}

/// The result of [`nearest`]: values with their lanes in the lower bits, so that one reduction finds both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Nearest {
    below: u64,
    above: u64,
}

/// Bits of a lane's number.
const LANE_BITS: u32 = 5;
/// Set in every value found, so that none is 0.
const FOUND: u64 = 1 << 63;

/// A word that was compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lane {
    /// Its place among the words.
    pub(crate) index: u32,
    /// Its value, as [`Shape`] defines it.
    pub(crate) value: u64,
}

impl Nearest {
    fn lane_of(packed: u64) -> Lane {
        Lane {
            index: (packed & 31) as u32,
            value: (packed & !FOUND) >> LANE_BITS,
        }
    }

    /// The lane with the greatest value up to the bound; the last of them.
    #[inline]
    pub(crate) fn below(self) -> Option<Lane> {
        (self.below != 0).then(|| Self::lane_of(self.below))
    }

    /// The lane with the least value above the bound; the first of them.
    #[inline]
    pub(crate) fn above(self) -> Option<Lane> {
        (self.above != u64::MAX).then(|| Self::lane_of(self.above))
    }

    /// The same word by word. Bit *n* of `lanes`: word *n* counts.
    #[inline]
    pub(crate) fn among<S: Shape>(words: impl Iterator<Item = u64>, lanes: u32, bound: u64) -> Nearest {
        let mut found = Nearest {
            below: 0,
            above: u64::MAX,
        };
        let behind_last = u32::BITS - lanes.leading_zeros();
        for (lane, word) in (0..behind_last).zip(words) {
            let value = word >> S::SHIFT;
            let packed = FOUND | value << LANE_BITS | u64::from(lane);
            if lanes >> lane & 1 == 0 || word & S::PRESENT == 0 || word > S::GREATEST {
                continue;
            }
            if value <= bound {
                found.below = found.below.max(packed);
            } else {
                found.above = found.above.min(packed);
            }
        }
        found
    }
}

/// The neighbours of `bound` among `8 * LINES` unsorted words, of at most four lines. Bit *n* of `lanes`: word *n*
/// counts.
#[inline]
pub(crate) fn nearest<S: Shape, const LINES: usize>(
    level: Level,
    words: &[AtomicU64],
    lanes: u32,
    bound: u64,
) -> Nearest {
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 if words.len() == 8 * LINES => {
            // SAFETY: the level was detected, and the slice has that many words.
            unsafe { nearest_avx512::<S, LINES>(words.as_ptr(), lanes, bound) }
        }
        _ => Nearest::among::<S>(words.iter().map(|word| word.load(Ordering::Acquire)), lanes, bound),
    }
}

/// Relaxed loads of eight words, in any order.
///
/// # Safety
/// `words` points to eight of them; the CPU has AVX-512F.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn load_avx512(words: *const AtomicU64) -> __m512i {
    let loaded;
    // SAFETY: the caller's promise; it stores nothing.
    unsafe {
        asm!(
            "vmovdqu64 {to}, [{from}]",
            to = out(zmm_reg) loaded,
            from = in(reg) words,
            options(readonly, nostack, preserves_flags),
        );
    }
    loaded
}

/// Relaxed loads of four words, in any order.
///
/// # Safety
/// `words` points to four of them; the CPU has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn load_avx2(words: *const AtomicU64) -> __m256i {
    let loaded;
    // SAFETY: the caller's promise; it stores nothing.
    unsafe {
        asm!(
            "vmovdqu {to}, [{from}]",
            to = out(ymm_reg) loaded,
            from = in(reg) words,
            options(readonly, nostack, preserves_flags),
        );
    }
    loaded
}

/// # Safety
/// `words` points to `8 * LINES` readable words; the CPU has AVX-512F.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn nearest_avx512<S: Shape, const LINES: usize>(words: *const AtomicU64, lanes: u32, bound: u64) -> Nearest {
    use std::arch::x86_64::{
        _mm_cvtsi32_si128, _mm512_mask_cmple_epu64_mask, _mm512_mask_mov_epi64, _mm512_mask_test_epi64_mask,
        _mm512_maskz_mov_epi64, _mm512_max_epu64, _mm512_min_epu64, _mm512_or_si512, _mm512_reduce_max_epu64,
        _mm512_reduce_min_epu64, _mm512_set_epi64, _mm512_set1_epi64, _mm512_setzero_si512, _mm512_slli_epi64,
        _mm512_srl_epi64,
    };
    let present = _mm512_set1_epi64(S::PRESENT as i64);
    let greatest = _mm512_set1_epi64(S::GREATEST as i64);
    let shift = _mm_cvtsi32_si128(S::SHIFT as i32);
    let bound = _mm512_set1_epi64(bound as i64);
    let none = _mm512_set1_epi64(-1);
    let numbers = _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0);
    let (mut most, mut least) = (_mm512_setzero_si512(), none);
    for line in 0..LINES {
        // SAFETY: eight words are readable in each line.
        let here = unsafe { load_avx512(words.add(line * 8)) };
        let counted = _mm512_mask_test_epi64_mask((lanes >> (line * 8)) as u8, here, present);
        let counted = _mm512_mask_cmple_epu64_mask(counted, here, greatest);
        let value = _mm512_srl_epi64(here, shift);
        let below = _mm512_mask_cmple_epu64_mask(counted, value, bound);
        let above = counted & !below;
        let numbers = _mm512_or_si512(numbers, _mm512_set1_epi64((FOUND | (line as u64 * 8)) as i64));
        let packed = _mm512_or_si512(_mm512_slli_epi64::<LANE_BITS>(value), numbers);
        most = _mm512_max_epu64(most, _mm512_maskz_mov_epi64(below, packed));
        least = _mm512_min_epu64(least, _mm512_mask_mov_epi64(none, above, packed));
    }
    std::sync::atomic::fence(Ordering::Acquire);
    Nearest {
        below: _mm512_reduce_max_epu64(most),
        above: _mm512_reduce_min_epu64(least),
    }
}

/// The first of eight words `start << 32 | length` whose range has `point`, which has 32 bits.
#[inline]
pub(crate) fn covering(level: Level, line: &[AtomicU64], point: u64) -> Option<u32> {
    match level {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the level was detected, and the slice has eight words.
        Level::Avx512 if line.len() == 8 => unsafe { covering_avx512(line.as_ptr(), point) },
        _ => first_covering(line.iter().map(|word| word.load(Ordering::Acquire)), point),
    }
}

/// The first of some words `start << 32 | length` whose range has `point`.
#[inline]
pub(crate) fn first_covering(words: impl Iterator<Item = u64>, point: u64) -> Option<u32> {
    // If the start is above, the distance wraps to more than any length.
    (0..)
        .zip(words)
        .find(|&(_, word)| point.wrapping_sub(word >> 32) < word & 0xffff_ffff)
        .map(|(lane, _)| lane)
}

/// # Safety
/// `line` points to eight readable words; the CPU has AVX-512F.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn covering_avx512(line: *const AtomicU64, point: u64) -> Option<u32> {
    use std::arch::x86_64::{
        _mm512_and_si512, _mm512_cmplt_epu64_mask, _mm512_set1_epi64, _mm512_srli_epi64, _mm512_sub_epi64,
    };
    // SAFETY: eight words are readable at `line`.
    let words = unsafe { load_avx512(line) };
    let distance = _mm512_sub_epi64(_mm512_set1_epi64(point as i64), _mm512_srli_epi64::<32>(words));
    let mask = _mm512_cmplt_epu64_mask(distance, _mm512_and_si512(words, _mm512_set1_epi64(0xffff_ffff)));
    std::sync::atomic::fence(Ordering::Acquire);
    (mask != 0).then(|| mask.trailing_zeros())
}

/// # Safety
/// `line` points to eight readable words; the CPU has AVX-512F.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn matches_avx512(line: *const AtomicU64, key: u64) -> u8 {
    use std::arch::x86_64::_mm512_set1_epi64;
    let mask: i8;
    // SAFETY: eight words are readable at `line`.
    unsafe {
        asm!(
            "vpcmpeqq {mask}, {wanted}, [{line}]",
            mask = out(kreg) mask,
            wanted = in(zmm_reg) _mm512_set1_epi64(key as i64),
            line = in(reg) line,
            options(readonly, nostack, preserves_flags),
        );
    }
    std::sync::atomic::fence(Ordering::Acquire);
    mask as u8
}

/// # Safety
/// Both point to eight readable words; the CPU has AVX-512F.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn matches_pair_avx512(lines: [*const AtomicU64; 2], key: u64) -> [u8; 2] {
    // SAFETY: the caller's promise, for each.
    lines.map(|line| unsafe { matches_avx512(line, key) })
}

/// # Safety
/// `line` points to eight readable words; the CPU has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn matches_avx2(line: *const AtomicU64, key: u64) -> u8 {
    use std::arch::x86_64::{_mm256_castsi256_pd, _mm256_cmpeq_epi64, _mm256_movemask_pd, _mm256_set1_epi64x};
    let wanted = _mm256_set1_epi64x(key as i64);
    let mut mask = 0;
    for half in 0..2 {
        // SAFETY: four words are readable at each half.
        let words = unsafe { load_avx2(line.add(half * 4)) };
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
    // SAFETY: `out` has space for the vector.
    unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), homes) };
    out
}

/// # Safety
/// The CPU has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn homes_avx2(key: u64, seed: u64, lines: u64) -> [u64; 8] {
    use std::arch::x86_64::{
        _mm256_add_epi64, _mm256_mul_epu32, _mm256_set_epi64x, _mm256_set1_epi64x, _mm256_slli_epi64,
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
        // SAFETY: each half of `out` has space for the vector.
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
            let other: Vec<AtomicU64> = (0..8).map(|_| AtomicU64::new(next() % 4)).collect();
            let mask = matches(Level::Scalar, &line, wanted);
            let both = u16::from_le_bytes([mask, matches(Level::Scalar, &other, wanted)]);
            for level in Level::available() {
                assert_eq!(homes(level, key, seed, lines), expected, "{level:?}");
                assert_eq!(matches(level, &line, wanted), mask, "{level:?}");
                assert_eq!(matches_pair(level, [&line, &other], wanted), both, "{level:?}");
            }
        }
    }

    struct Plain;

    impl Shape for Plain {
        const PRESENT: u64 = u64::MAX;
        const GREATEST: u64 = 1 << 32;
        const SHIFT: u32 = 0;
    }

    struct UpperHalf;

    impl Shape for UpperHalf {
        const PRESENT: u64 = 0xffff_ffff;
        const GREATEST: u64 = u64::MAX;
        const SHIFT: u32 = 32;
    }

    /// The expected result, straight from the definition.
    fn neighbours<S: Shape>(words: &[AtomicU64], lanes: u32, bound: u64) -> [Option<Lane>; 2] {
        let words = words.iter().map(|word| word.load(Ordering::Relaxed));
        let values = (0u32..)
            .zip(words)
            .filter(|&(lane, word)| lanes >> lane & 1 == 1 && word & S::PRESENT != 0 && word <= S::GREATEST)
            .map(|(index, word)| Lane {
                index,
                value: word >> S::SHIFT,
            });
        let order = |lane: &Lane| (lane.value, lane.index);
        let below = values.clone().filter(|lane| lane.value <= bound).max_by_key(order);
        [below, values.filter(|lane| lane.value > bound).min_by_key(order)]
    }

    fn compare<S: Shape>(words: &[AtomicU64], lanes: u32, bound: u64) {
        let seen = |found: Nearest| [found.below(), found.above()];
        for level in Level::available() {
            let one = nearest::<S, 1>(level, &words[..8], lanes, bound);
            let two = nearest::<S, 2>(level, &words[..16], lanes, bound);
            let four = nearest::<S, 4>(level, words, lanes, bound);
            assert_eq!(seen(one), neighbours::<S>(&words[..8], lanes, bound), "{level:?}");
            assert_eq!(seen(two), neighbours::<S>(&words[..16], lanes, bound), "{level:?}");
            assert_eq!(seen(four), neighbours::<S>(words, lanes, bound), "{level:?}");
        }
    }

    #[test]
    fn all_levels_find_the_same_neighbours() {
        let mut state = 7u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state ^ state >> 29
        };
        for turn in 0..4000 {
            let lanes = if turn % 5 == 0 { u32::MAX } else { next() as u32 };
            // First a few different words, so that some are equal, some clear, some at the bound, some senseless; then
            // any.
            let mut word = || {
                if turn % 2 == 0 {
                    (next() % 9) << 30
                } else {
                    next() >> 32
                }
            };
            let words: Vec<AtomicU64> = (0..32).map(|_| AtomicU64::new(word())).collect();
            compare::<Plain>(&words, lanes, word());
            let mut word = || if turn % 2 == 0 { (next() % 9) << 31 } else { next() };
            let words: Vec<AtomicU64> = (0..32).map(|_| AtomicU64::new(word())).collect();
            compare::<UpperHalf>(&words, lanes, word() >> 32);
        }
    }

    #[test]
    fn all_levels_find_the_same_range() {
        let mut state = 11u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state >> 32
        };
        for _ in 0..4000 {
            let point = next();
            let line: Vec<AtomicU64> = (0..8)
                .map(|_| AtomicU64::new((point.wrapping_sub(next() % 5) << 32) | (next() % 4)))
                .collect();
            let has = |word: &AtomicU64| {
                let (start, len) = (
                    word.load(Ordering::Relaxed) >> 32,
                    word.load(Ordering::Relaxed) & 0xffff_ffff,
                );
                (start..start + len).contains(&point)
            };
            let covered = line.iter().position(has).map(|lane| lane as u32);
            for level in Level::available() {
                assert_eq!(covering(level, &line, point), covered, "{level:?} {point}");
            }
        }
    }
}
