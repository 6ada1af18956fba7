//! Pages in memory, aligned so that a device takes them without a copy.

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::PAGE_BYTES;

/// A page.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(4096))]
pub(crate) struct Page([u8; PAGE_BYTES]);

/// Some pages in a row.
#[derive(Clone)]
pub(crate) struct Pages(Vec<Page>);

impl Pages {
    /// Pages of zeros.
    pub(crate) fn zeroed(count: usize) -> Pages {
        // Zeroed memory comes from the system as such; filling a vector would write it.
        Pages(Page::new_vec_zeroed(count).unwrap_or_else(|_| vec![Page([0; PAGE_BYTES]); count]))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.0.as_mut_bytes()
    }
}

/// Whether a device can take these bytes as they are.
pub(crate) fn is_aligned(bytes: &[u8]) -> bool {
    bytes.as_ptr().addr().is_multiple_of(PAGE_BYTES) && bytes.len().is_multiple_of(PAGE_BYTES)
}

/// Bytes that go to one place on the device: consecutive pages.
pub(crate) struct Piece<'w> {
    /// First page on the device.
    pub(crate) target: u64,
    pub(crate) data: Source<'w>,
}

pub(crate) enum Source<'w> {
    /// The caller's bytes, as they are.
    Borrowed(&'w [u8]),
    Own(Pages),
}

impl Source<'_> {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Source::Borrowed(bytes) => bytes,
            Source::Own(pages) => pages.bytes(),
        }
    }
}

/// Data for pages that hold nothing yet; the rest of them becomes zero.
pub(crate) fn fresh_piece(target: u64, into: u64, part: &[u8], pages: usize) -> Piece<'_> {
    if into == 0 && is_aligned(part) {
        return Piece {
            target,
            data: Source::Borrowed(part),
        };
    }
    let mut own = Pages::zeroed(pages);
    let into = into as usize;
    own.bytes_mut()[into..into + part.len()].copy_from_slice(part);
    Piece {
        target,
        data: Source::Own(own),
    }
}
