//! The cost of copying from and to a pool by atomic words: each copy against the plain copy of the same bytes in the
//! same memory, in alternation, with the medians of all rounds. `cargo bench -p ferrite-pm`.
//!
//! No code may make a plain copy where other threads store (docs/memory-model.md); here is only one thread.

use std::hint::black_box;
use std::time::Instant;

use ferrite_pm::Region;

const POOL_BYTES: u64 = 256 << 20;
const HOT_BYTES: u64 = 16 << 10;
const ROUNDS: u64 = 41;

type Access<'a> = &'a mut dyn FnMut(u64, &mut [u8]);

fn place(n: u64, span_bytes: u64, step_bytes: u64) -> u64 {
    let mixed = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93) >> 20;
    mixed % (span_bytes / step_bytes) * step_bytes
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Prints nanoseconds for each, and their ratio.
fn compare(what: &str, len: usize, span_bytes: u64, ours: Access<'_>, plain: Access<'_>) {
    let operations = if len > 512 { 5_000 } else { 50_000 };
    let step_bytes = (len as u64).next_power_of_two();
    let mut buffer = vec![7; len];
    let mut time = |access: Access<'_>, round: u64| {
        let start = Instant::now();
        for n in 0..operations {
            access(place(round * operations + n, span_bytes, step_bytes), &mut buffer);
            black_box(&mut buffer);
        }
        start.elapsed().as_nanos() as f64 / operations as f64
    };
    let (mut our_times, mut plain_times, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        // The second of the two finds other caches and another clock rate.
        let (our_time, plain_time) = if round % 2 == 0 {
            let our_time = time(ours, 2 * round);
            (our_time, time(plain, 2 * round + 1))
        } else {
            let plain_time = time(plain, 2 * round);
            (time(ours, 2 * round + 1), plain_time)
        };
        our_times.push(our_time);
        plain_times.push(plain_time);
        ratios.push(our_time / plain_time);
    }
    println!(
        "{what:24} {:8.1} ns, plain {:8.1} ns, ratio {:.3}",
        median(our_times),
        median(plain_times),
        median(ratios),
    );
}

#[inline(never)]
fn plain_read(region: &Region, offset: u64, buf: &mut [u8]) {
    let words = region.words(offset, buf.len().div_ceil(8));
    // SAFETY: as many bytes as the slice of words has, and this program has one thread: no other stores there.
    unsafe { std::ptr::copy_nonoverlapping(words.as_ptr().cast(), buf.as_mut_ptr(), buf.len()) };
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn plain_stream(region: &Region, offset: u64, data: &[u8]) {
    use std::arch::x86_64::{_mm512_loadu_si512, _mm512_stream_si512};
    let words = region.words(offset, data.len() / 8);
    for (line, part) in words.chunks_exact(8).zip(data.chunks_exact(64)) {
        // SAFETY: 64 bytes each, aligned to 64 in the region; one thread, as above, which fences.
        unsafe {
            let value = _mm512_loadu_si512(part.as_ptr().cast());
            _mm512_stream_si512(line.as_ptr().cast_mut().cast(), value);
        }
    }
}

fn main() {
    let region = Region::anonymous(POOL_BYTES).expect("memory");
    for offset in (0..POOL_BYTES).step_by(4096) {
        region.stream(offset, &[offset as u8; 4096]);
    }
    region.fence().expect("anonymous memory does not fail");
    for (what, len, span_bytes) in [
        ("read 4 KiB, cold", 4096, POOL_BYTES),
        ("read 4 KiB, hot", 4096, HOT_BYTES),
        ("read 1000 bytes, hot", 1000, HOT_BYTES),
        ("read 64 bytes, cold", 64, POOL_BYTES),
        ("read 64 bytes, hot", 64, HOT_BYTES),
        ("read 24 bytes, hot", 24, HOT_BYTES),
    ] {
        let ours = &mut |offset, buf: &mut [u8]| region.read(offset, buf);
        compare(what, len, span_bytes, ours, &mut |offset, buf| {
            plain_read(&region, offset, buf);
        });
    }
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("avx512f") {
        for (what, len) in [("stream 4 KiB, fence", 4096), ("stream 64 bytes, fence", 64)] {
            let ours = &mut |offset, data: &mut [u8]| {
                region.stream(offset, data);
                region.fence().expect("anonymous memory does not fail");
            };
            compare(what, len, POOL_BYTES, ours, &mut |offset, data| {
                // SAFETY: the feature was detected.
                unsafe { plain_stream(&region, offset, data) };
                region.fence().expect("anonymous memory does not fail");
            });
        }
    }
}
