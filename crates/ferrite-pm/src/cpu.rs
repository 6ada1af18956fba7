//! The instructions that make stores durable, chosen once by the CPU's features.
//!
//! Contents: copies of whole lines out of a pool and, past the cache, into it; cache-line write-back, the store
//! fence, and detection. Called by [`crate::Region`] and `shared` only, which have checked every range.
//!
//! Invariant: every access to a pool's bytes here is an atomic access to a word, or a block of assembly that stands for
//! several of them, in any order. So it may race with any other such access (docs/memory-model.md). To the compiler,
//! the intrinsics of `core::arch` would be plain accesses, which must not race.
//!
//! On architectures other than x86-64, ordinary stores and a full fence are used instead. That is correct for media
//! where a store itself is durable and for ordinary files; `Region::open` refuses DAX there.

#[cfg(target_arch = "x86_64")]
use std::arch::asm;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Size of a cache line in bytes.
pub const LINE_BYTES: u64 = 64;
const LINE: usize = LINE_BYTES as usize;
/// Shortest copy for which a string instruction is used, which takes some time to start.
#[cfg(target_arch = "x86_64")]
const STRING_BYTES_MIN: usize = 1024;

/// The features of this CPU.
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

/// The widest vectors that copies use. Loads use none wider than AVX2, which is as fast.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub(crate) enum Vectors {
    Avx512,
    Avx2,
    /// Supported by every x86-64.
    Sse2,
    /// None: words, through the cache.
    None,
}

/// The instructions in use.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Isa {
    pub(crate) write_back: WriteBack,
    pub(crate) vectors: Vectors,
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
        let vectors = match has {
            CpuFeatures {
                avx512: true,
                avx2: true,
                ..
            } => Vectors::Avx512,
            CpuFeatures { avx2: true, .. } => Vectors::Avx2,
            CpuFeatures { non_temporal: true, .. } => Vectors::Sse2,
            _ => Vectors::None,
        };
        Isa { write_back, vectors }
    }

    /// All kinds of copies that this CPU supports, including the portable one.
    #[cfg(test)]
    pub(crate) fn available() -> Vec<Isa> {
        let has = cpu_features();
        let kinds = [
            (Vectors::Avx512, has.avx512 && has.avx2),
            (Vectors::Avx2, has.avx2),
            (Vectors::Sse2, has.non_temporal),
            (Vectors::None, true),
        ];
        let best = Isa::detect();
        kinds
            .into_iter()
            .filter(|&(_, is_there)| is_there)
            .map(|(vectors, _)| Isa { vectors, ..best })
            .collect()
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
                // SAFETY: the caller guarantees the address; the instruction changes no visible state.
                WriteBack::Clwb => unsafe {
                    asm!("clwb [{}]", in(reg) at, options(nostack, preserves_flags));
                },
                // SAFETY: as above.
                WriteBack::ClflushOpt => unsafe {
                    asm!("clflushopt [{}]", in(reg) at, options(nostack, preserves_flags));
                },
                // SAFETY: as above.
                WriteBack::Clflush => unsafe {
                    asm!("clflush [{}]", in(reg) at, options(nostack, preserves_flags));
                },
                WriteBack::None => {}
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (line, count);
    }

    /// Copies words to `buf`, which is as long, a line at least, in any order.
    #[inline]
    pub(crate) fn load_words(self, words: &[AtomicU64], buf: &mut [u8]) {
        assert!(size_of_val(words) == buf.len() && buf.len() >= LINE);
        match self.vectors {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: both have the same length; every x86-64 has the instruction.
            Vectors::Avx512 | Vectors::Avx2 | Vectors::Sse2 if suits_string(words, buf) => unsafe {
                load_string(words.as_ptr(), buf);
            },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the feature was detected, and both have the same length, of a line at least.
            Vectors::Avx512 | Vectors::Avx2 => unsafe { load_avx2(words.as_ptr(), buf) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above; every x86-64 has the instructions.
            Vectors::Sse2 => unsafe { load_sse2(words.as_ptr(), buf) },
            _ => load_each(words, buf),
        }
    }

    /// Copies whole lines from `data` to `lines` (64-aligned), which is as long, each word atomically, past the cache.
    /// Until a [`store_fence`] other threads may see these stores after this thread's later stores.
    #[inline]
    pub(crate) fn stream_lines(self, lines: &[AtomicU64], data: &[u8]) {
        assert!(size_of_val(lines) == data.len() && data.len().is_multiple_of(LINE));
        assert!(lines.as_ptr().addr().is_multiple_of(LINE));
        match self.vectors {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the feature was detected; both are whole lines of the same length, and `lines` is aligned.
            Vectors::Avx512 => unsafe { stream_avx512(lines.as_ptr(), data) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Vectors::Avx2 => unsafe { stream_avx2(lines.as_ptr(), data) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above; every x86-64 has the instructions.
            Vectors::Sse2 => unsafe { stream_sse2(lines.as_ptr(), data) },
            _ => {
                for (part, word) in data.as_chunks().0.iter().zip(lines) {
                    word.store(u64::from_ne_bytes(*part), Ordering::Relaxed);
                }
            }
        }
    }
}

/// Copies words one by one to `buf`, which is as long.
#[inline]
pub(crate) fn load_each(words: &[AtomicU64], buf: &mut [u8]) {
    for (part, word) in buf.as_chunks_mut().0.iter_mut().zip(words) {
        *part = word.load(Ordering::Relaxed).to_ne_bytes();
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
                // SAFETY: the caller guarantees the address; the instruction changes no visible state, and was
                // detected.
                unsafe { asm!("clflushopt [{}]", in(reg) at, options(nostack, preserves_flags)) };
            } else {
                // SAFETY: as above; every x86-64 has it.
                unsafe { asm!("clflush [{}]", in(reg) at, options(nostack, preserves_flags)) };
            }
        }
        // SAFETY: every x86-64 has the instruction; it touches no memory. A store fence alone would let later loads
        // pass.
        unsafe { asm!("mfence", options(nostack, preserves_flags)) };
        true
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = (line, count);
        false
    }
}

/// Orders this thread's write-backs and non-temporal stores before everything that follows. The compiler moves no
/// access to a pool across it either, since it must assume that the block touches memory.
#[inline]
pub(crate) fn store_fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 has the instruction; it touches no memory.
    unsafe {
        asm!("sfence", options(nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}

/// The time-stamp counter once earlier loads have their values; nanoseconds on CPUs without one. Stores may still be in
/// flight.
#[cfg(feature = "spans")]
#[inline]
pub(crate) fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 has the instructions; they read a register and touch no memory.
    unsafe {
        std::arch::x86_64::_mm_lfence();
        std::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        static START: OnceLock<std::time::Instant> = OnceLock::new();
        START.get_or_init(std::time::Instant::now).elapsed().as_nanos() as u64
    }
}

/// Waits until all earlier stores have left this core, streams among them.
#[cfg(feature = "spans")]
#[inline]
pub(crate) fn drain() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 has the instruction; it touches no memory.
    unsafe {
        std::arch::x86_64::_mm_mfence();
    }
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

/// Starts loading the line of `at` to store there: another core's copy is invalidated. Harmless for any address.
#[inline]
pub fn prefetch_to_store<T>(at: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as above; a CPU without the instruction executes it as a no-op.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_ET0 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

// Each block below stands for one relaxed atomic access to each word, in any order, and plain accesses to our own
// memory. The registers of AVX-512 above 15 leave the CPU no upper halves to keep for SSE.

/// Whether a string instruction copies faster than a loop of vectors: it does for pages, except at unfavourable
/// addresses, and at those just after the words modulo 4096, where each load would seem to wait for a store.
#[cfg(target_arch = "x86_64")]
#[inline]
fn suits_string(words: &[AtomicU64], buf: &[u8]) -> bool {
    let (from, to) = (words.as_ptr().addr(), buf.as_ptr().addr());
    let behind = to.wrapping_sub(from) % 4096;
    buf.len() >= STRING_BYTES_MIN && to.is_multiple_of(16) && (behind == 0 || behind >= 4 * LINE)
}

/// # Safety
/// `words` points to as many bytes of atomic words as `buf` has.
#[cfg(target_arch = "x86_64")]
unsafe fn load_string(words: *const AtomicU64, buf: &mut [u8]) {
    // SAFETY: as many words are within both; the direction flag is clear, as always.
    unsafe {
        asm!(
            "rep movsq",
            inout("rsi") words => _,
            inout("rdi") buf.as_mut_ptr() => _,
            inout("rcx") buf.len() / 8 => _,
            options(nostack, preserves_flags),
        );
    }
}

/// # Safety
/// `words` points to as many bytes of atomic words as `buf` has, a line at least; the CPU has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn load_avx2(words: *const AtomicU64, buf: &mut [u8]) {
    let (len, to) = (buf.len(), buf.as_mut_ptr());
    let line = |at: usize| {
        // SAFETY: `at` is a multiple of 8, and a line from there is within both.
        unsafe {
            asm!(
                "vmovdqu {low}, [{from}]",
                "vmovdqu {high}, [{from} + 32]",
                "vmovdqu [{to}], {low}",
                "vmovdqu [{to} + 32], {high}",
                from = in(reg) words.byte_add(at),
                to = in(reg) to.add(at),
                low = out(ymm_reg) _,
                high = out(ymm_reg) _,
                options(nostack, preserves_flags),
            );
        }
    };
    (0..len / LINE).for_each(|index| line(index * LINE));
    if !len.is_multiple_of(LINE) {
        // It overlaps the one before.
        line(len - LINE);
    }
}

/// # Safety
/// As [`load_avx2`], but any CPU does.
#[cfg(target_arch = "x86_64")]
unsafe fn load_sse2(words: *const AtomicU64, buf: &mut [u8]) {
    let (len, to) = (buf.len(), buf.as_mut_ptr());
    let line = |at: usize| {
        // SAFETY: `at` is a multiple of 8, and a line from there is within both.
        unsafe {
            asm!(
                "movdqu {a}, [{from}]",
                "movdqu {b}, [{from} + 16]",
                "movdqu {c}, [{from} + 32]",
                "movdqu {d}, [{from} + 48]",
                "movdqu [{to}], {a}",
                "movdqu [{to} + 16], {b}",
                "movdqu [{to} + 32], {c}",
                "movdqu [{to} + 48], {d}",
                from = in(reg) words.byte_add(at),
                to = in(reg) to.add(at),
                a = out(xmm_reg) _,
                b = out(xmm_reg) _,
                c = out(xmm_reg) _,
                d = out(xmm_reg) _,
                options(nostack, preserves_flags),
            );
        }
    };
    (0..len / LINE).for_each(|index| line(index * LINE));
    if !len.is_multiple_of(LINE) {
        // It overlaps the one before.
        line(len - LINE);
    }
}

/// # Safety
/// `lines` points to as many bytes of atomic words as `data` has, whole aligned lines; the CPU has AVX-512F.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn stream_avx512(lines: *const AtomicU64, data: &[u8]) {
    for (index, part) in data.chunks_exact(LINE).enumerate() {
        // SAFETY: line `index` is within both.
        unsafe {
            asm!(
                "vmovdqu64 zmm16, [{from}]",
                "vmovntdq [{to}], zmm16",
                from = in(reg) part.as_ptr(),
                to = in(reg) lines.byte_add(index * LINE),
                out("zmm16") _,
                options(nostack, preserves_flags),
            );
        }
    }
}

/// # Safety
/// As [`stream_avx512`], but the CPU has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn stream_avx2(lines: *const AtomicU64, data: &[u8]) {
    for (index, part) in data.chunks_exact(LINE).enumerate() {
        // SAFETY: line `index` is within both.
        unsafe {
            asm!(
                "vmovdqu {low}, [{from}]",
                "vmovdqu {high}, [{from} + 32]",
                "vmovntdq [{to}], {low}",
                "vmovntdq [{to} + 32], {high}",
                from = in(reg) part.as_ptr(),
                to = in(reg) lines.byte_add(index * LINE),
                low = out(ymm_reg) _,
                high = out(ymm_reg) _,
                options(nostack, preserves_flags),
            );
        }
    }
}

/// # Safety
/// As [`stream_avx512`], but any CPU does.
#[cfg(target_arch = "x86_64")]
unsafe fn stream_sse2(lines: *const AtomicU64, data: &[u8]) {
    for (index, part) in data.chunks_exact(LINE).enumerate() {
        // SAFETY: line `index` is within both.
        unsafe {
            asm!(
                "movdqu {a}, [{from}]",
                "movdqu {b}, [{from} + 16]",
                "movdqu {c}, [{from} + 32]",
                "movdqu {d}, [{from} + 48]",
                "movntdq [{to}], {a}",
                "movntdq [{to} + 16], {b}",
                "movntdq [{to} + 32], {c}",
                "movntdq [{to} + 48], {d}",
                from = in(reg) part.as_ptr(),
                to = in(reg) lines.byte_add(index * LINE),
                a = out(xmm_reg) _,
                b = out(xmm_reg) _,
                c = out(xmm_reg) _,
                d = out(xmm_reg) _,
                options(nostack, preserves_flags),
            );
        }
    }
}
