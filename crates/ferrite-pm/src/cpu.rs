//! The instructions that make stores durable, chosen once by what the CPU offers.
//!
//! What lives here: non-temporal copies, cache-line write-back, the store fence, and detection. Called by
//! [`crate::Region`] only, which has checked every range.
//!
//! On other architectures than x86-64 ordinary stores and a full fence stand in. That is right for media whose stores
//! are durable by themselves and for ordinary files; `Region::open` refuses DAX there.

use std::sync::OnceLock;

/// Size of a cache line in bytes.
pub const LINE_BYTES: u64 = 64;

/// What this CPU offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuFeatures {
    /// Write-back that keeps the line cached.
    pub clwb: bool,
    /// Write-back that evicts, unordered.
    pub clflushopt: bool,
    /// Write-back that evicts, ordered; every x86-64 has it.
    pub clflush: bool,
    /// 64-byte vectors.
    pub avx512: bool,
    /// 32-byte vectors.
    pub avx2: bool,
    /// Stores that bypass the cache.
    pub non_temporal: bool,
}

/// Detects the features; the first call does the work.
pub fn cpu_features() -> CpuFeatures {
    static FEATURES: OnceLock<CpuFeatures> = OnceLock::new();
    *FEATURES.get_or_init(detect)
}

#[cfg(target_arch = "x86_64")]
fn detect() -> CpuFeatures {
    let max_leaf = std::arch::x86_64::__cpuid(0).eax;
    let ebx = if max_leaf >= 7 {
        std::arch::x86_64::__cpuid_count(7, 0).ebx
    } else {
        0
    };
    CpuFeatures {
        clwb: ebx & 1 << 24 != 0,
        clflushopt: ebx & 1 << 23 != 0,
        clflush: true,
        avx512: std::is_x86_feature_detected!("avx512f"),
        avx2: std::is_x86_feature_detected!("avx2"),
        non_temporal: true,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn detect() -> CpuFeatures {
    CpuFeatures {
        clwb: false,
        clflushopt: false,
        clflush: false,
        avx512: false,
        avx2: false,
        non_temporal: false,
    }
}

/// The instruction that writes a line back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub(crate) enum WriteBack {
    Clwb,
    ClflushOpt,
    Clflush,
    None,
}

/// The widest non-temporal store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub(crate) enum Stream {
    Avx512,
    Avx2,
    Words,
    Cached,
}

/// The instructions in use.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Isa {
    pub(crate) write_back: WriteBack,
    pub(crate) stream: Stream,
}

impl Isa {
    /// The best this CPU has.
    pub(crate) fn detect() -> Isa {
        let has = cpu_features();
        let write_back = match has {
            CpuFeatures { clwb: true, .. } => WriteBack::Clwb,
            CpuFeatures { clflushopt: true, .. } => WriteBack::ClflushOpt,
            CpuFeatures { clflush: true, .. } => WriteBack::Clflush,
            _ => WriteBack::None,
        };
        let stream = match has {
            CpuFeatures { avx512: true, .. } => Stream::Avx512,
            CpuFeatures { avx2: true, .. } => Stream::Avx2,
            CpuFeatures { non_temporal: true, .. } => Stream::Words,
            _ => Stream::Cached,
        };
        Isa { write_back, stream }
    }

    /// Writes back the lines from `line` (64-aligned) for `count` lines.
    ///
    /// # Safety
    /// The lines lie in one live mapping.
    #[inline]
    pub(crate) unsafe fn write_back(self, line: *const u8, count: u64) {
        #[cfg(target_arch = "x86_64")]
        for index in 0..count {
            let at = line.wrapping_add((index * LINE_BYTES) as usize);
            match self.write_back {
                // SAFETY: the caller vouches for the address; the instruction changes no visible state.
                WriteBack::Clwb => unsafe {
                    std::arch::asm!("clwb [{}]", in(reg) at, options(nostack, preserves_flags));
                },
                // SAFETY: as above.
                WriteBack::ClflushOpt => unsafe {
                    std::arch::asm!("clflushopt [{}]", in(reg) at, options(nostack, preserves_flags));
                },
                // SAFETY: as above.
                WriteBack::Clflush => unsafe { std::arch::x86_64::_mm_clflush(at) },
                WriteBack::None => {}
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (line, count);
    }

    /// Copies whole lines from `from` to `to` (64-aligned), past the cache.
    ///
    /// # Safety
    /// `to` points to `lines * 64` bytes of a live writable mapping that no Rust reference covers, `from` to as many
    /// readable bytes that do not overlap them.
    #[inline]
    pub(crate) unsafe fn stream_lines(self, to: *mut u8, from: *const u8, lines: usize) {
        #[cfg(target_arch = "x86_64")]
        match self.stream {
            // SAFETY: the feature was detected; the caller vouches for the ranges.
            Stream::Avx512 => unsafe { stream_avx512(to, from, lines) },
            // SAFETY: as above.
            Stream::Avx2 => unsafe { stream_avx2(to, from, lines) },
            // SAFETY: as above; every x86-64 has the instruction.
            _ => unsafe { stream_words(to, from, lines) },
        }
        #[cfg(not(target_arch = "x86_64"))]
        // SAFETY: the caller vouches for the ranges.
        unsafe {
            std::ptr::copy_nonoverlapping(from, to, lines * LINE_BYTES as usize);
        }
    }
}

/// Writes back and drops the lines from `line` (64-aligned) for `count` lines, and waits until no cache has them. False
/// if this CPU cannot.
///
/// # Safety
/// The lines lie in one live mapping.
pub(crate) unsafe fn evict(line: *const u8, count: u64) -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        let unordered = cpu_features().clflushopt;
        for index in 0..count {
            let at = line.wrapping_add((index * LINE_BYTES) as usize);
            if unordered {
                // SAFETY: the caller vouches for the address; the instruction changes no visible state, and was
                // detected.
                unsafe { std::arch::asm!("clflushopt [{}]", in(reg) at, options(nostack, preserves_flags)) };
            } else {
                // SAFETY: as above; every x86-64 has it.
                unsafe { std::arch::x86_64::_mm_clflush(at) };
            }
        }
        // SAFETY: every x86-64 has the instruction; it touches no memory. A store fence alone would let later loads
        // pass.
        unsafe { std::arch::x86_64::_mm_mfence() };
        true
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = (line, count);
        false
    }
}

/// Orders this thread's write-backs and non-temporal stores before all that follows.
#[inline]
pub(crate) fn store_fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 has the instruction; it touches no memory.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}

/// Starts loading the line of `at`; harmless for any address.
#[inline]
pub fn prefetch<T>(at: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch of any address is allowed and faults on none.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Starts loading the line of `at` to store there: another core that has it gives it up. Harmless for any address.
#[inline]
pub fn prefetch_to_store<T>(at: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as above; a CPU without the instruction takes it for none.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_ET0 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// # Safety
/// As [`Isa::stream_lines`], and the CPU has AVX-512F.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn stream_avx512(to: *mut u8, from: *const u8, lines: usize) {
    use std::arch::x86_64::{_mm512_loadu_si512, _mm512_stream_si512};
    for index in 0..lines {
        // SAFETY: line `index` is within both ranges, and `to` is 64-aligned.
        unsafe {
            let value = _mm512_loadu_si512(from.add(index * 64).cast());
            _mm512_stream_si512(to.add(index * 64).cast(), value);
        }
    }
}

/// # Safety
/// As [`Isa::stream_lines`], and the CPU has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn stream_avx2(to: *mut u8, from: *const u8, lines: usize) {
    use std::arch::x86_64::{_mm256_loadu_si256, _mm256_stream_si256};
    for index in 0..lines * 2 {
        // SAFETY: half a line `index` is within both ranges, and `to` is 32-aligned.
        unsafe {
            let value = _mm256_loadu_si256(from.add(index * 32).cast());
            _mm256_stream_si256(to.add(index * 32).cast(), value);
        }
    }
}

/// # Safety
/// As [`Isa::stream_lines`].
#[cfg(target_arch = "x86_64")]
unsafe fn stream_words(to: *mut u8, from: *const u8, lines: usize) {
    for index in 0..lines * 8 {
        // SAFETY: word `index` is within both ranges, and `to` is 8-aligned.
        unsafe {
            let value = from.add(index * 8).cast::<i64>().read_unaligned();
            std::arch::x86_64::_mm_stream_si64(to.add(index * 8).cast(), value);
        }
    }
}
