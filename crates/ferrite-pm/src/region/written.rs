//! Parts of a pool in which nothing was ever stored: a large pool is mostly such parts, and reading them costs time
//! and, on tmpfs, memory.
//!
//! Contents: [`Region::is_blank`] and [`Region::written_entries`]. Blank are holes of a sparse file, and memory that
//! was never touched. Pages are examined a [`CHUNK_BYTES`] at a time, and only those that may hold something are read.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use rustix::fs::SeekFrom;

use super::Region;
use crate::map::{Access, MappedMemory};

/// Anonymous memory of this size and more has large parts that are never touched.
const LARGE_BYTES: u64 = 1 << 40;
/// Bytes that are examined together.
const CHUNK_BYTES: u64 = 1 << 20;
/// Bytes of an entry of the kernel's page map.
const PAGEMAP_ENTRY_BYTES: u64 = 8;
/// Page map: the page is in memory.
const PRESENT: u64 = 1 << 63;
/// Page map: the page was swapped out.
const SWAPPED: u64 = 1 << 62;
/// Page map: the page is the file's, or shared memory's.
const OF_FILE: u64 = 1 << 61;
const PAGE_BYTES: u64 = 4096;

/// Whether a mapping may have large blank parts.
pub(super) fn is_sparse(mapping: &MappedMemory) -> bool {
    use std::os::unix::fs::MetadataExt;
    match &mapping.file {
        Some(file) => file
            .metadata()
            .is_ok_and(|found| found.is_file() && found.blocks().saturating_mul(512) < mapping.len()),
        None => mapping.len() >= LARGE_BYTES,
    }
}

/// Which pages of a chunk may hold something.
struct Pages {
    /// Offset of the first.
    start: u64,
    written: Vec<bool>,
}

impl Pages {
    /// None of those that a range touches.
    fn of(range: &Range<u64>) -> Pages {
        let start = range.start / PAGE_BYTES * PAGE_BYTES;
        let count = (range.end - start).div_ceil(PAGE_BYTES);
        Pages {
            start,
            written: vec![false; count as usize],
        }
    }

    fn end(&self) -> u64 {
        self.start + self.written.len() as u64 * PAGE_BYTES
    }

    fn mark(&mut self, from: u64, to: u64) {
        let first = (from - self.start) / PAGE_BYTES;
        let end = (to - self.start).div_ceil(PAGE_BYTES);
        self.written[first as usize..end as usize].fill(true);
    }

    fn mark_all(&mut self) {
        self.written.fill(true);
    }

    /// The first run of written pages from `from` on, as far as it lies in `range`.
    fn run_in(&self, range: Range<u64>) -> Option<Range<u64>> {
        let index = |offset: u64| ((offset - self.start) / PAGE_BYTES) as usize;
        let offset = |index: usize| self.start + index as u64 * PAGE_BYTES;
        let skipped = self.written[index(range.start)..].iter().position(|&page| page)?;
        let first = index(range.start) + skipped;
        let pages = self.written[first..].iter().take_while(|&&page| page).count();
        let run = offset(first).max(range.start)..offset(first + pages).min(range.end);
        (!run.is_empty()).then_some(run)
    }
}

/// Marks the data of a file; all of it where the file system does not tell.
fn mark_data(file: &File, pages: &mut Pages) {
    let (mut at, end) = (pages.start, pages.end());
    while at < end {
        let data = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(data) => data,
            Err(rustix::io::Errno::NXIO) => return,
            Err(_) => return pages.mark_all(),
        };
        if data >= end {
            return;
        }
        let Ok(hole) = rustix::fs::seek(file, SeekFrom::Hole(data)) else {
            return pages.mark_all();
        };
        pages.mark(data, hole.min(end));
        at = hole;
    }
}

impl Region {
    /// Which pages of `range`, at most a few chunks, may hold something.
    fn pages_of(&self, range: &Range<u64>) -> Pages {
        let mut pages = Pages::of(range);
        if let Some(file) = &self.mapping.file {
            mark_data(file, &mut pages);
        }
        // Only then can pages differ from the file's.
        let is_private = self.access == Access::ReadOnlyPrivate || self.deferred.is_some();
        if self.mapping.file.is_none() || is_private {
            self.mark_own(&mut pages);
        }
        pages
    }

    /// Marks pages that are this process's own: memory without a file, or copies of a file's pages.
    fn mark_own(&self, pages: &mut Pages) {
        let mut entries = vec![0; pages.written.len() * PAGEMAP_ENTRY_BYTES as usize];
        let at = (self.mapping.base() as u64 + pages.start) / PAGE_BYTES * PAGEMAP_ENTRY_BYTES;
        // Opened each time: a file that was opened before a fork shows the parent's pages.
        let read = File::open("/proc/self/pagemap").and_then(|pagemap| pagemap.read_exact_at(&mut entries, at));
        if read.is_err() {
            return pages.mark_all();
        }
        for (entry, written) in entries.chunks_exact(8).zip(&mut pages.written) {
            let entry = u64::from_ne_bytes(entry.try_into().expect("eight bytes"));
            *written |= entry & (PRESENT | SWAPPED) != 0 && entry & OF_FILE == 0;
        }
    }

    /// Whether large parts of it may be blank: a file with holes, or much memory.
    pub fn is_sparse(&self) -> bool {
        self.is_sparse
    }

    /// Whether nothing was ever stored in a range of a sparse pool, which therefore reads as zeros. False if that is
    /// not certain. Stores to the range during the call may be missed. A few system calls for each MiB.
    pub fn is_blank(&self, offset: u64, len: u64) -> bool {
        let _ = self.at(offset, len);
        self.is_sparse
            && (offset..offset + len).step_by(CHUNK_BYTES as usize).all(|at| {
                let chunk = at..(at + CHUNK_BYTES).min(offset + len);
                self.pages_of(&chunk).run_in(chunk).is_none()
            })
    }

    /// The numbers in `entries` of the entries of a table at `offset`, except those in blank parts of a sparse pool,
    /// which are zeros. Stores to such parts meanwhile may be missed. No page of an entry that is left out is touched.
    /// The last entry may reach beyond the pool.
    pub fn written_entries(&self, offset: u64, entries: Range<u64>, entry_bytes: u64) -> WrittenEntries<'_> {
        WrittenEntries {
            region: self,
            offset,
            entry_bytes,
            next: entries.start,
            known: entries.start,
            end: entries.end,
            blank_to: 0,
            chunk: None,
        }
    }
}

/// See [`Region::written_entries`].
pub struct WrittenEntries<'r> {
    region: &'r Region,
    offset: u64,
    entry_bytes: u64,
    next: u64,
    /// The entries up to here are known to be possibly written.
    known: u64,
    end: u64,
    /// From the next entry up to this offset, everything is blank.
    blank_to: u64,
    /// The pages that were examined last, and how far they go.
    chunk: Option<(Pages, u64)>,
}

impl Iterator for WrittenEntries<'_> {
    type Item = u64;

    #[inline]
    fn next(&mut self) -> Option<u64> {
        if self.next == self.known {
            self.find_run()?;
        }
        let entry = self.next;
        self.next += 1;
        Some(entry)
    }
}

impl WrittenEntries<'_> {
    fn place(&self, entry: u64) -> u64 {
        self.offset + entry * self.entry_bytes
    }

    /// Moves on to the next entries that may be written.
    fn find_run(&mut self) -> Option<()> {
        if !self.region.is_sparse {
            self.known = self.end;
            return (self.next < self.end).then_some(());
        }
        let table_end = self.place(self.end).min(self.region.len());
        loop {
            let at = self.place(self.next).max(self.blank_to);
            if at >= table_end {
                self.next = self.end;
                self.known = self.end;
                return None;
            }
            let (pages, end) = match self.chunk.take().filter(|(_, end)| at < *end) {
                Some(known) => known,
                None => {
                    let behind = (at / CHUNK_BYTES + 1) * CHUNK_BYTES;
                    let end = behind.min(table_end);
                    (self.region.pages_of(&(at..end)), end)
                }
            };
            let run = pages.run_in(at..end);
            self.chunk = Some((pages, end));
            // An entry that begins before a run, or ends after it, is written in part.
            let first = run.as_ref().map_or(end, |run| run.start);
            self.next = self.next.max((first - self.offset) / self.entry_bytes);
            self.blank_to = run.as_ref().map_or(end, |run| run.end);
            if let Some(run) = run {
                self.known = (run.end - self.offset).div_ceil(self.entry_bytes).min(self.end);
                return Some(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Access, Durability};

    const TIB: u64 = 1 << 40;
    const MIB: u64 = 1 << 20;

    fn written(region: &Region) -> Vec<u64> {
        region.written_entries(0, 0..region.len() / MIB, MIB).collect()
    }

    #[test]
    fn untouched_memory_is_blank() {
        let region = Region::anonymous(TIB).unwrap();
        assert!(region.is_blank(0, 64 * MIB));
        let at = TIB / 2 + 8;
        region.store(at, 1);
        assert!(!region.is_blank(TIB / 2, MIB) && region.is_blank(0, MIB));
        let around: Vec<u64> = region
            .written_entries(TIB / 2 - 4 * MIB, 0..8, MIB)
            .map(|entry| TIB / 2 - 4 * MIB + entry * MIB)
            .collect();
        assert!(around.contains(&(TIB / 2)), "{around:?}");
        assert!(!around.contains(&(TIB / 2 - 4 * MIB)), "{around:?}");
    }

    /// Entries of any size, which pages and chunks cut anywhere, against the definition.
    #[test]
    fn no_written_entry_is_left_out() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = dir.path().join("pool");
        let region = Region::create_sparse_with(&path, 16 * MIB, |_| Ok::<_, crate::PmError>(())).unwrap();
        let stored = [0, 5000, MIB - 8, MIB, 3 * MIB + 4096, 9 * MIB - 4096, 16 * MIB - 8];
        stored.iter().for_each(|&at| region.store(at / 8 * 8, 1));
        for (offset, entry_bytes) in [
            (0, 8),
            (4096, 64),
            (256, 256),
            (8192, 256 << 10),
            (72, 5 << 20),
            (0, 16 << 20),
        ] {
            let count = (16 * MIB - offset) / entry_bytes;
            let found: Vec<u64> = region.written_entries(offset, 0..count, entry_bytes).collect();
            assert!(found.is_sorted_by(|a, b| a < b), "{entry_bytes}");
            let has_page = |entry: u64| {
                let first = (offset + entry * entry_bytes) / PAGE_BYTES;
                let last = (offset + (entry + 1) * entry_bytes - 1) / PAGE_BYTES;
                stored.iter().any(|at| (first..=last).contains(&(at / PAGE_BYTES)))
            };
            let expected: Vec<u64> = (0..count).filter(|&entry| has_page(entry)).collect();
            assert_eq!(found, expected, "entries of {entry_bytes} bytes from {offset} on");
            let part: Vec<u64> = region.written_entries(offset, count / 3..count, entry_bytes).collect();
            let behind: Vec<u64> = expected.into_iter().filter(|&entry| entry >= count / 3).collect();
            assert_eq!(part, behind);
        }
    }

    /// On a disk and in DRAM. A private mapping has pages of its own where it was stored to, as a mount that only reads
    /// does when it replays.
    #[test]
    fn holes_of_a_file_are_blank_until_something_is_stored() {
        for place in [std::env::temp_dir(), "/dev/shm".into()] {
            let dir = tempfile::tempdir_in(place).unwrap();
            let path = dir.path().join("pool");
            let region = Region::create_sparse_with(&path, 64 * MIB, |_| Ok::<_, crate::PmError>(())).unwrap();
            assert_eq!(written(&region), [0; 0], "{}", path.display());
            region.stream(5 * MIB, &[7; 64]);
            region.store(9 * MIB, 1);
            region.fence().unwrap();
            let stored = written(&region);
            assert!(
                stored.contains(&5) && stored.contains(&9) && !stored.contains(&0),
                "{stored:?}"
            );
            drop(region);
            let mut region = Region::open(&path, Access::ReadOnlyPrivate).unwrap();
            assert_eq!(written(&region), stored);
            region.store(30 * MIB, 1);
            assert!(written(&region).contains(&30) && !written(&region).contains(&0));
            drop(region);
            region = Region::open(&path, Access::ReadWrite).unwrap();
            // A part that was read may have got a page of zeros on tmpfs.
            assert_eq!(region.load(30 * MIB), 0);
            if region.set_durability(Durability::OnSync).is_ok() && region.defers_write_back() {
                region.store(40 * MIB, 1);
                assert!(written(&region).contains(&40), "a store that waits");
                assert!(!written(&region).contains(&0));
            }
        }
    }

    #[test]
    fn a_file_whose_space_is_allocated_has_nothing_to_skip() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let region = Region::create(&dir.path().join("pool"), 8 * MIB).unwrap();
        assert_eq!(written(&region).len(), 8);
    }
}
