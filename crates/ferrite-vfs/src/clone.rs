//! Clones of ranges of files: the rules that all engines share.
//!
//! Contents: [`CloneRange`], with [`CloneRange::len_in`]. An engine that shares blocks makes a range of one file the
//! content of a range of another by one atomic step, without moving data ([`crate::OpenFile::clone_range`]).

use crate::{BadArgument, FsError, Ino, Result, Unsupported};

/// Files share whole blocks of this size.
pub const CLONE_UNIT_BYTES: u64 = 4096;

/// An open file, as its engine knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OpenFileId {
    /// Its inode.
    pub ino: Ino,
    /// The number under which it was opened, where open files have numbers; else 0.
    pub number: u64,
}

/// A range of one file that becomes the content of a range of another, or of another range of the same file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CloneRange {
    /// The file to read, which is open for reading.
    pub source: OpenFileId,
    /// Where its range begins.
    pub source_offset: u64,
    /// Where the other range begins.
    pub offset: u64,
    /// The length of both.
    pub len_bytes: u64,
}

impl CloneRange {
    /// How much one call clones at most, given the sizes of both files: all of the range that lies before the end of
    /// the source, if it consists of whole units; else its whole units. Only the last unit of the source may be cut
    /// off, and only where the range reaches the end of the file that is written.
    ///
    /// # Errors
    /// `Invalid` for ranges of one file that overlap, `FileTooBig` beyond `size_max`, `NotSupported` if the range has
    /// no whole unit, or does not begin with one.
    pub fn len_in(&self, ino: Ino, source_size: u64, size: u64, size_max: u64) -> Result<u64> {
        let wanted_end = self
            .source_offset
            .checked_add(self.len_bytes)
            .ok_or(FsError::FileTooBig)?;
        let len = wanted_end.min(source_size).saturating_sub(self.source_offset);
        if len == 0 {
            return Ok(0);
        }
        let end = self.offset.checked_add(len).filter(|&end| end <= size_max);
        let end = end.ok_or(FsError::FileTooBig)?;
        if ino == self.source.ino && self.offset < self.source_offset + len && self.source_offset < end {
            return Err(FsError::Invalid(BadArgument::CloneOverlap));
        }
        let is_at_ends = self.source_offset + len == source_size && end >= size;
        let whole = match is_at_ends {
            true => len,
            false => len - len % CLONE_UNIT_BYTES,
        };
        let begins_unit =
            self.source_offset.is_multiple_of(CLONE_UNIT_BYTES) && self.offset.is_multiple_of(CLONE_UNIT_BYTES);
        match begins_unit && whole > 0 {
            true => Ok(whole),
            false => Err(FsError::NotSupported(Unsupported::CloneUnit)),
        }
    }
}
