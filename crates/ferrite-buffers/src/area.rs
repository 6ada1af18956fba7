//! The memory of a pool. The only module of this crate with `unsafe`.
#![allow(unsafe_code, reason = "parts of one allocation are handed out to different owners")]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

use crate::{Buffer, PAGE_BYTES};

/// An allocation, aligned to pages, that never moves.
pub(crate) struct Area {
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the allocation is plain memory. Access to a part of it goes through the one `Buffer` that has the part.
unsafe impl Send for Area {}
// SAFETY: as above; a shared `Area` alone gives no access to the memory.
unsafe impl Sync for Area {}

impl Area {
    pub(crate) fn new(len_bytes: usize) -> Option<Area> {
        let layout = Layout::from_size_align(len_bytes, PAGE_BYTES).ok()?;
        // SAFETY: the size is not zero: a pool has at least one buffer.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Area { base, layout })
    }

    pub(crate) fn base(&self) -> *const u8 {
        self.base.as_ptr()
    }

    pub(crate) fn len_bytes(&self) -> usize {
        self.layout.size()
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and no buffer is left: each holds on to the area.
        unsafe { dealloc(self.base.as_ptr(), self.layout) }
    }
}

/// The bytes of a buffer.
pub(crate) fn part(buffer: &Buffer) -> &[u8] {
    let area = &buffer.shared.area;
    debug_assert!(buffer.offset() + buffer.len <= area.len_bytes());
    // SAFETY: the buffer's pages lie in this area, which lives as long as the buffer, which holds on to it. They are
    // initialised (zeroed at first), and belong to this buffer alone, which is borrowed for as long as the result.
    unsafe { std::slice::from_raw_parts(area.base.as_ptr().add(buffer.offset()), buffer.len) }
}

/// The same, to change them.
pub(crate) fn part_mut(buffer: &mut Buffer) -> &mut [u8] {
    let area = &buffer.shared.area;
    debug_assert!(buffer.offset() + buffer.len <= area.len_bytes());
    // SAFETY: as for `part`; the buffer is borrowed exclusively, so nobody else sees its bytes.
    unsafe { std::slice::from_raw_parts_mut(area.base.as_ptr().add(buffer.offset()), buffer.len) }
}
