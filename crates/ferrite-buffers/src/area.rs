//! The memory of a pool. The only module of this crate with `unsafe`.
#![allow(unsafe_code, reason = "parts of one mapping are handed out to different owners")]

use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::Buffer;

/// A mapping, aligned to pages, that never moves.
pub(crate) struct Area {
    base: NonNull<u8>,
    len_bytes: usize,
}

// SAFETY: the mapping is plain memory. Access to a part of it goes through the one `Buffer` that owns the part.
unsafe impl Send for Area {}
// SAFETY: as above; a shared `Area` alone gives no access to the memory.
unsafe impl Sync for Area {}

impl Area {
    pub(crate) fn new(len_bytes: usize) -> Option<Area> {
        let (access, kind) = (
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        );
        // SAFETY: the kernel chooses the address, so the mapping overlaps nothing.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), len_bytes, access, kind) };
        let base: NonNull<u8> = NonNull::new(base.ok()?.cast())?;
        // Touching 4 MiB in small pages costs twice as much. It also works without huge pages.
        // SAFETY: advice on a mapping of this crate, which does not change its content.
        let _ = unsafe { madvise(base.as_ptr().cast(), len_bytes, Advice::LinuxHugepage) };
        Some(Area { base, len_bytes })
    }

    pub(crate) fn base(&self) -> *const u8 {
        self.base.as_ptr()
    }

    pub(crate) fn len_bytes(&self) -> usize {
        self.len_bytes
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: mapped with this length, and no buffer is left: each holds a reference to the area.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.len_bytes) };
        debug_assert!(unmapped.is_ok(), "a mapping of ours could not be undone");
    }
}

/// The bytes of a buffer.
pub(crate) fn part(buffer: &Buffer) -> &[u8] {
    let area = &buffer.shared.area;
    debug_assert!(buffer.offset() + buffer.len <= area.len_bytes());
    // SAFETY: the buffer's pages lie in this area, which lives as long as the buffer, which holds a reference to it.
    // They are initialised (zeroed at first), and belong to this buffer alone, which is borrowed for as long as the
    // result.
    unsafe { std::slice::from_raw_parts(area.base.as_ptr().add(buffer.offset()), buffer.len) }
}

/// The same, to change them.
pub(crate) fn part_mut(buffer: &mut Buffer) -> &mut [u8] {
    let area = &buffer.shared.area;
    debug_assert!(buffer.offset() + buffer.len <= area.len_bytes());
    // SAFETY: as for `part`; the buffer is borrowed exclusively, so no other code sees its bytes.
    unsafe { std::slice::from_raw_parts_mut(area.base.as_ptr().add(buffer.offset()), buffer.len) }
}
