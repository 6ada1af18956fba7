//! Metadata in an image of a device, to be read and damaged (docs/format-blob.md).

use ferrite_blob::PAGE_BYTES;

/// The newer page of a slot.
pub(crate) fn head(image: &[u8], slot: usize) -> usize {
    let generation = |page: &usize| u64::from_le_bytes(image[page * PAGE_BYTES + 24..][..8].try_into().unwrap());
    let pages = [1 + 2 * slot, 2 + 2 * slot];
    pages.into_iter().max_by_key(generation).unwrap() * PAGE_BYTES
}

/// The first piece of a slot's blob: first unit in the blob, on the device, how many.
pub(crate) fn piece(image: &[u8], slot: usize) -> [u32; 3] {
    let at = head(image, slot) + 816;
    [0, 4, 8].map(|into| u32::from_le_bytes(image[at + into..][..4].try_into().unwrap()))
}

/// Gives the blob in a slot other pieces.
pub(crate) fn set_pieces(image: &mut [u8], slot: usize, pieces: &[[u32; 3]]) {
    let at = head(image, slot);
    let page = &mut image[at..at + PAGE_BYTES];
    page[40..44].copy_from_slice(&(pieces.len() as u32).to_le_bytes());
    for (into, piece) in page[816..].chunks_mut(12).zip(pieces) {
        into.copy_from_slice(&piece.map(u32::to_le_bytes).concat());
    }
    page[8..12].fill(0);
    let crc = crc32c::crc32c(page);
    page[8..12].copy_from_slice(&crc.to_le_bytes());
}
