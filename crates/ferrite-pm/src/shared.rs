//! Copies between a pool's bytes, which other threads may be reading and storing to, and our own memory.
//!
//! Contents: [`load`] and [`store`] of bytes at any place, on top of whole words; [`crate::cpu`] has the lines.
//! Called by [`crate::Region`] only.
//!
//! Invariant: a pool's bytes are accessed by aligned words of 8 bytes, each of them atomically, and in no other way.
//! This makes races defined, and words whole (docs/memory-model.md). Bytes at the ends of a range, which share a word
//! with bytes outside, are taken out of the loaded word, or put into it by a compare-and-exchange, so that a store to
//! its other bytes is not lost.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::cpu::{Isa, LINE_BYTES, load_each};

const WORD_BYTES: usize = 8;
const LINE: usize = LINE_BYTES as usize;
/// Up to this length bytes are put together from words in registers.
const SHORT_BYTES: usize = 64;

/// How many of `len` bytes, `skip` bytes into a word, lie in a word that begins before them.
#[inline]
fn head_bytes(skip: usize, len: usize) -> usize {
    if skip == 0 { 0 } else { (WORD_BYTES - skip).min(len) }
}

/// Copies words out. Each is whole; if several change meanwhile the copy may mix old and new words. Later loads of this
/// thread happen after the copy.
#[inline]
pub(crate) fn load_whole(isa: Isa, words: &[AtomicU64], buf: &mut [u8]) {
    if buf.len() >= LINE {
        isa.load_words(words, buf);
    } else {
        load_each(words, buf);
    }
    fence(Ordering::Acquire);
}

/// The same for the bytes from `skip` (below 8) on of `words`, the last of which may have more.
// Out of line: the usual range begins and ends with a word.
#[inline(never)]
pub(crate) fn load(isa: Isa, words: &[AtomicU64], skip: usize, buf: &mut [u8]) {
    if (WORD_BYTES..=SHORT_BYTES).contains(&buf.len()) {
        load_short(words, skip, buf);
        return fence(Ordering::Acquire);
    }
    let part = |word: &AtomicU64, from: usize, to: &mut [u8]| {
        to.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes()[from..][..to.len()]);
    };
    let (head, buf) = buf.split_at_mut(head_bytes(skip, buf.len()));
    let (first, words) = words.split_at(usize::from(!head.is_empty()));
    first.iter().for_each(|word| part(word, skip, head));
    let (whole, tail) = buf.split_at_mut(buf.len() / WORD_BYTES * WORD_BYTES);
    let (words, last) = words.split_at(whole.len() / WORD_BYTES);
    load_whole(isa, words, whole);
    if !tail.is_empty() {
        part(&last[0], 0, tail);
    }
    fence(Ordering::Acquire);
}

/// The same for at least a word's length, without a branch on where it begins or ends. Each word is loaded once: a
/// second load could find another value, and the copy would have a part of each.
#[inline]
fn load_short(words: &[AtomicU64], skip: usize, buf: &mut [u8]) {
    let words = &words[..(skip + buf.len()).div_ceil(WORD_BYTES)];
    let bits = skip * 8;
    // Byte 0 in the lowest bits, on any machine.
    let load = |word: &AtomicU64| word.load(Ordering::Relaxed).to_le();
    let (mut before, mut last) = (0, load(&words[0]));
    for (index, word) in words.iter().enumerate().skip(1) {
        (before, last) = (last, load(word));
        if let Some(part) = buf.get_mut((index - 1) * WORD_BYTES..index * WORD_BYTES) {
            // Two shifts, since a shift by 64 bits would overflow.
            let bytes = before >> bits | last << 1 << (63 - bits);
            part.copy_from_slice(&bytes.to_le_bytes());
        }
    }
    // The last bytes, again in part: they end in the last word.
    let end_bits = (skip + buf.len() - (words.len() - 1) * WORD_BYTES) * 8;
    let bytes = before >> (end_bits - 8) >> 8 | last << (64 - end_bits);
    let from = buf.len() - WORD_BYTES;
    buf[from..].copy_from_slice(&bytes.to_le_bytes());
}

/// Copies bytes into `words` from `skip` (below 8) on, through the cache. Each word changes at once.
pub(crate) fn store(words: &[AtomicU64], skip: usize, data: &[u8]) {
    let (head, data) = data.split_at(head_bytes(skip, data.len()));
    let words = match words.split_first() {
        Some((word, rest)) if !head.is_empty() => {
            merge(word, skip, head);
            rest
        }
        _ => words,
    };
    for (part, word) in data.chunks(WORD_BYTES).zip(words) {
        match part.try_into() {
            Ok(whole) => word.store(u64::from_ne_bytes(whole), Ordering::Relaxed),
            Err(_) => merge(word, 0, part),
        }
    }
}

/// Changes the given bytes of a word and no others.
fn merge(word: &AtomicU64, skip: usize, part: &[u8]) {
    let mut old = word.load(Ordering::Relaxed);
    loop {
        let mut bytes = old.to_ne_bytes();
        bytes[skip..][..part.len()].copy_from_slice(part);
        match word.compare_exchange_weak(old, u64::from_ne_bytes(bytes), Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return,
            Err(found) => old = found,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Region;

    fn words(count: usize) -> Vec<AtomicU64> {
        (0..count as u64)
            .map(|n| AtomicU64::new(n.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
            .collect()
    }

    fn bytes(words: &[AtomicU64]) -> Vec<u8> {
        words
            .iter()
            .flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes())
            .collect()
    }

    #[test]
    fn every_way_of_loading_finds_the_same_bytes() {
        let words = words(64);
        let all = bytes(&words);
        for isa in Isa::available() {
            for from in 0..80 {
                for len in 0..300 {
                    let mut buf = vec![0xee; len + 1];
                    load(isa, &words[from / 8..], from % 8, &mut buf[..len]);
                    assert_eq!(buf[..len], all[from..from + len], "{isa:?} {from} {len}");
                    assert_eq!(buf[len], 0xee, "{isa:?} {from} {len}");
                }
            }
        }
    }

    /// Pages, which are copied by other instructions, at any place of the buffer.
    #[test]
    fn pages_are_loaded_whole_wherever_they_go() {
        let words = words(513);
        let all = bytes(&words);
        for isa in Isa::available() {
            let mut buf = vec![0xee; 2 * 4096];
            for (to, from) in (0..300).zip((0..16).cycle()) {
                for len in [1016, 1024, 1032, 4088, 4091, 4096].map(|len: usize| len.min(all.len() - from)) {
                    load(isa, &words[from / 8..], from % 8, &mut buf[to..to + len]);
                    assert!(buf[to..to + len] == all[from..from + len], "{isa:?} {from} {to} {len}");
                    assert!(buf[..to].iter().all(|&byte| byte == 0xee), "{isa:?} {from} {to} {len}");
                    assert_eq!(buf[to + len], 0xee, "{isa:?} {from} {to} {len}");
                    buf.fill(0xee);
                }
            }
        }
    }

    #[test]
    fn every_way_of_streaming_leaves_the_same_bytes() {
        let data: Vec<u8> = (0..300).map(|n| (n * 7 + 1) as u8).collect();
        for isa in Isa::available() {
            let mut region = Region::anonymous(4096).unwrap();
            region.set_isa(isa);
            let before = vec![0xee; 512];
            for from in 0..80 {
                for len in 0..data.len() {
                    region.stream(0, &before);
                    region.stream(from as u64, &data[..len]);
                    region.fence().unwrap();
                    let mut expected = before.clone();
                    expected[from..from + len].copy_from_slice(&data[..len]);
                    let mut found = vec![0; before.len()];
                    region.read(0, &mut found);
                    assert!(found == expected, "{isa:?} {from} {len}");
                }
            }
        }
    }
}
