//! The bytes of a pool, of which tests make many regions.
//!
//! Contents: [`Image`]. A region that ends leaves its memory to the next of the same image, for which only the pages
//! that differ are copied: those that either region or the image's owner has changed. [`Lease`] notes them.
//!
//! Invariant: bytes that a region was made of stay as long as the region does; a change meanwhile goes to a copy.
//! For tests, and for tools that explore crashes; a pool in use is never an image.

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::fs::SeekFrom;
use rustix::io::Errno;

use crate::error::PmError;
use crate::map::{MappedMemory, Recycler};

const PAGE: usize = 4096;
/// Memory kept of regions that ended, per image: as many as threads try one.
const SPARES_MAX: usize = 2;
/// One reuse in this many compares all bytes, so that a store that was not noted does not stay unnoticed.
const COMPARED_EVERY: u64 = 32;

/// Bytes, zero-padded to a whole word. Clones share them until one of them changes.
#[derive(Clone)]
pub struct Image(Arc<Shared>);

struct Shared {
    bytes: Vec<u8>,
    /// All but these parts are zeros.
    parts: Vec<Range<usize>>,
    spares: Mutex<Vec<Spare>>,
}

/// The memory of a region that has ended.
struct Spare {
    mapping: MappedMemory,
    differs: Pages,
}

impl Image {
    /// A copy of a file, whose holes are not read. A file that changes meanwhile gives some of each. Blocking.
    pub fn read(path: &Path) -> Result<Image, PmError> {
        let failed = |error: io::Error| PmError::io("read", path, error);
        let file = File::open(path).map_err(failed)?;
        let len = file.metadata().map_err(failed)?.len();
        let (mut bytes, mut parts) = (vec![0; len as usize], Vec::new());
        let mut end = 0;
        while end < len {
            let start = match rustix::fs::seek(&file, SeekFrom::Data(end)) {
                Err(Errno::NXIO) => break,
                start => start.map_err(|error| failed(error.into()))?.min(len),
            };
            let hole = rustix::fs::seek(&file, SeekFrom::Hole(start));
            end = hole.map_err(|error| failed(error.into()))?.min(len);
            let part = start as usize..end as usize;
            file.read_exact_at(&mut bytes[part.clone()], start).map_err(failed)?;
            parts.push(part);
        }
        Ok(Image::of(bytes, parts))
    }

    fn of(mut bytes: Vec<u8>, parts: Vec<Range<usize>>) -> Image {
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        Image(Arc::new(Shared {
            bytes,
            parts,
            spares: Mutex::default(),
        }))
    }

    /// Stores a word. Copies all bytes first if a clone or a region uses them.
    pub(crate) fn put(&mut self, at: u64, value: u64) {
        let shared = self.alone();
        shared.hold_anything();
        shared.bytes[at as usize..at as usize + 8].copy_from_slice(&value.to_le_bytes());
        for spare in shared.spares.get_mut() {
            spare.differs.note(at, 8);
        }
    }

    fn alone(&mut self) -> &mut Shared {
        if Arc::get_mut(&mut self.0).is_none() {
            *self = Image::from(&self[..]);
        }
        Arc::get_mut(&mut self.0).expect("a new image has one owner")
    }

    /// Memory that holds the bytes, and notes what is stored there.
    pub(crate) fn map(&self) -> Result<MappedMemory, PmError> {
        let spare = self.0.spares.lock().pop();
        let (mut mapping, differs) = match spare {
            Some(Spare { mut mapping, differs }) => {
                differs.take(|page| {
                    let start = page * PAGE;
                    mapping.fill(start, &self[start..self.len().min(start + PAGE)]);
                });
                self.compare_some(&mut mapping);
                (mapping, differs)
            }
            None => {
                let mut mapping = MappedMemory::anonymous(self.len() as u64)?;
                for part in &self.0.parts {
                    mapping.fill_new(part.start, &self[part.clone()]);
                }
                (mapping, Pages::new(self.len()))
            }
        };
        mapping.recycler = Some(Box::new(Lease {
            image: self.clone(),
            differs,
        }));
        Ok(mapping)
    }

    fn compare_some(&self, mapping: &mut MappedMemory) {
        static REUSED: AtomicU64 = AtomicU64::new(0);
        if REUSED.fetch_add(1, Ordering::Relaxed).is_multiple_of(COMPARED_EVERY) {
            assert!(mapping.bytes() == &self[..], "a store to a region was not noted");
        }
    }
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Image({} bytes)", self.len())
    }
}

impl Deref for Image {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0.bytes
    }
}

/// For a change. Copies the bytes first if a clone or a region uses them.
impl DerefMut for Image {
    fn deref_mut(&mut self) -> &mut [u8] {
        let shared = self.alone();
        shared.hold_anything();
        // Nothing tells which pages change.
        shared.spares.get_mut().clear();
        &mut shared.bytes
    }
}

impl From<&[u8]> for Image {
    fn from(bytes: &[u8]) -> Self {
        Image::from(bytes.to_vec())
    }
}

impl From<Vec<u8>> for Image {
    fn from(bytes: Vec<u8>) -> Self {
        let all = 0..bytes.len();
        Image::of(bytes, Vec::from([all]))
    }
}

impl Shared {
    /// From now on any part may be other than zeros.
    fn hold_anything(&mut self) {
        let all = 0..self.bytes.len();
        if self.parts.first() != Some(&all) {
            self.parts = Vec::from([all]);
        }
    }
}

/// The image that a region's memory was made of, and the pages that differ from it.
struct Lease {
    image: Image,
    differs: Pages,
}

impl Recycler for Lease {
    fn note(&self, offset: u64, len: u64) {
        self.differs.note(offset, len);
    }

    fn give_back(self: Box<Self>, mapping: MappedMemory) {
        let Lease { image, differs } = *self;
        let mut spares = image.0.spares.lock();
        if spares.len() < SPARES_MAX {
            spares.push(Spare { mapping, differs });
        }
    }
}

/// Pages of memory that may differ from the image's.
struct Pages(Box<[AtomicU64]>);

impl Pages {
    fn new(len_bytes: usize) -> Pages {
        let words = len_bytes.div_ceil(PAGE).div_ceil(64);
        Pages((0..words).map(|_| AtomicU64::new(0)).collect())
    }

    fn note(&self, offset: u64, len: u64) {
        for page in offset / PAGE as u64..(offset + len).div_ceil(PAGE as u64) {
            let (word, bit) = (&self.0[page as usize / 64], 1 << (page % 64));
            // Mostly noted already; a load does not take the line from another thread.
            if word.load(Ordering::Relaxed) & bit == 0 {
                word.fetch_or(bit, Ordering::Relaxed);
            }
        }
    }

    /// Calls `each` with the number of each page, and forgets them.
    fn take(&self, mut each: impl FnMut(usize)) {
        for (index, word) in self.0.iter().enumerate() {
            let mut left = word.swap(0, Ordering::Relaxed);
            while left != 0 {
                each(index * 64 + left.trailing_zeros() as usize);
                left &= left - 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Region;

    #[test]
    fn a_region_and_its_image_do_not_see_each_others_stores() {
        let mut image = Image::from(vec![7; 3 * PAGE + 5]);
        assert_eq!(image.len(), 3 * PAGE + 8, "padded to a whole word");
        let region = Region::of_image(&image).unwrap();
        assert_eq!(region.len(), image.len() as u64);
        region.store(8, 1);
        assert_eq!(image[8..16], [7; 8]);
        image.put(PAGE as u64, 9);
        assert_eq!((image[PAGE], region.load(PAGE as u64) as u8), (9, 7));
        assert_eq!(image[8..16], [7; 8]);
        let second = Region::of_image(&image).unwrap();
        assert_eq!(second.load(8), u64::from_le_bytes([7; 8]));
        assert_eq!(second.load(PAGE as u64), 9);
    }

    #[test]
    fn memory_that_is_used_again_holds_the_image_whatever_was_stored() {
        let mut random = 1_u64;
        let mut next = move |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % below
        };
        let bytes: Vec<u8> = (0..20 * PAGE).map(|at| (at / PAGE % 3 * at) as u8).collect();
        let mut image = Image::from(bytes);
        for round in 0..200 {
            let mut regions: Vec<Region> = (0..1 + next(3)).map(|_| Region::of_image(&image).unwrap()).collect();
            for region in &mut regions {
                let mut found = vec![0; image.len()];
                region.read(0, &mut found);
                assert!(found == image[..], "round {round}");
                if next(4) == 0 {
                    region.set_durability(crate::Durability::OnSync).unwrap();
                }
                for _ in 0..next(5) {
                    let at = next(19 * PAGE as u64) / 8 * 8;
                    match next(3) {
                        0 => region.store(at, next(99)),
                        1 => region.stream(at + next(7), &vec![1; next(PAGE as u64) as usize]),
                        _ if region.defers_write_back() => {}
                        _ => {
                            region.update(at, |value| Some(value.wrapping_add(1)));
                        }
                    }
                }
            }
            drop(regions);
            for _ in 0..next(3) {
                image.put(next(20 * PAGE as u64) / 8 * 8, next(1000));
            }
            if next(20) == 0 {
                image[PAGE..PAGE + 9].fill(round);
            }
        }
    }

    #[test]
    fn a_file_with_holes_is_read_whole() {
        let path = std::env::temp_dir().join(format!("ferrite-image-{}", std::process::id()));
        let file = File::create(&path).unwrap();
        file.set_len(1 << 20).unwrap();
        file.write_all_at(&[3; 5000], 300_000).unwrap();
        file.write_all_at(&[4; 8], (1 << 20) - 8).unwrap();
        let image = Image::read(&path);
        std::fs::remove_file(&path).unwrap();
        let mut image = image.unwrap();
        let mut expected = vec![0; 1 << 20];
        expected[300_000..305_000].fill(3);
        expected[(1 << 20) - 8..].fill(4);
        let contents = |image: &Image| {
            let mut found = vec![0; image.len()];
            Region::of_image(image).unwrap().read(0, &mut found);
            found
        };
        assert!(image[..] == expected && contents(&image) == expected);
        image[100] = 5;
        expected[100] = 5;
        assert!(contents(&image) == expected, "a hole that was filled");
    }

    #[test]
    fn clones_are_equal_until_one_changes() {
        let mut one = Image::from(vec![1; 64]);
        let other = one.clone();
        assert_eq!(one.as_ptr(), other.as_ptr(), "nothing is copied before");
        one[0] = 2;
        assert_eq!((one[0], other[0]), (2, 1));
        let at = one.as_ptr();
        one.put(8, 3);
        assert_eq!(one.as_ptr(), at, "the copy is its own");
    }
}
