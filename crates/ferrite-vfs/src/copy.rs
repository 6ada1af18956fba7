//! Copies of ranges between open files, the copy_file_range(2) of all callers.
//!
//! Contents: [`copy_range`], which shares blocks where the engine can do that, and [`copy_data`], which never does.

use crate::{CLONE_UNIT_BYTES, CloneRange, Ctx, FsError, OpenFile, Result, SYSTEM};

/// Bytes copied at a time where nothing can be shared.
const COPY_BYTES: u64 = 1 << 20;

/// Makes `len` bytes of `source` from `source_offset` on the content of `file`, which is of the same engine, from
/// `offset` on, as far as the source goes; returns how much that was. Blocks are shared where the engine can do that,
/// else data is copied. Several atomic steps, from the first byte on: an error after the first one ends the copy there.
///
/// # Errors
/// Of the first step; `Invalid` for ranges of one file that overlap.
pub fn copy_range(ctx: &Ctx, source: (&dyn OpenFile, u64), file: (&dyn OpenFile, u64), len_bytes: u64) -> Result<u64> {
    by_steps(source, file, len_bytes, &|range| match file.0.clone_range(ctx, range) {
        Err(FsError::NotSupported(_)) => copy_some(ctx, source.0, file.0, range),
        cloned => cloned.map(|written| written.len_bytes as u64),
    })
}

/// The same without sharing, so that the files may be of different engines.
///
/// # Errors
/// Of the first step.
pub fn copy_data(ctx: &Ctx, source: (&dyn OpenFile, u64), file: (&dyn OpenFile, u64), len_bytes: u64) -> Result<u64> {
    by_steps(source, file, len_bytes, &|range| {
        copy_some(ctx, source.0, file.0, range)
    })
}

fn by_steps(
    (source, source_offset): (&dyn OpenFile, u64),
    (_, offset): (&dyn OpenFile, u64),
    len_bytes: u64,
    step: &dyn Fn(&CloneRange) -> Result<u64>,
) -> Result<u64> {
    // A copy within a file may make it longer, and would never reach its end.
    let size = source.getattr(SYSTEM)?.size;
    let len_bytes = len_bytes.min(size.saturating_sub(source_offset));
    let mut done = 0;
    while done < len_bytes {
        let beyond = |offset: u64| offset.checked_add(done).ok_or(FsError::FileTooBig);
        let range = CloneRange {
            source: source.id(),
            source_offset: beyond(source_offset)?,
            offset: beyond(offset)?,
            len_bytes: len_bytes - done,
        };
        match step(&range) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(done)
}

/// Copies a part of a range by reading and writing.
fn copy_some(ctx: &Ctx, source: &dyn OpenFile, file: &dyn OpenFile, range: &CloneRange) -> Result<u64> {
    let unit = CLONE_UNIT_BYTES;
    // Only up to the next unit, if whole ones follow.
    let to_unit = unit - range.source_offset % unit;
    let is_aligned_then = range.source_offset % unit == range.offset % unit;
    let most = match is_aligned_then && to_unit < unit {
        true => to_unit,
        false => COPY_BYTES,
    };
    let mut data = vec![0; range.len_bytes.min(most) as usize];
    let count = source.read_at(ctx, range.source_offset, &mut data)?;
    match count {
        0 => Ok(0),
        _ => Ok(file.write_at(ctx, range.offset, &data[..count])? as u64),
    }
}
