//! Clones of ranges, one step each on every engine.

use ferrite_vfs::{CloneRange, Ctx, FsError, OpenFile, Result, SYSTEM, Unsupported};

use super::{Outcome, Runner, Step};
use crate::ops::Op;

impl Runner<'_> {
    /// Carries out an [`Op::Clone`].
    pub(super) fn clone_range(&mut self, op: &Op) -> Step<Outcome> {
        let Op::Clone {
            source,
            source_offset,
            on,
            offset,
            len,
        } = op
        else {
            unreachable!("{op:?} is no clone")
        };
        let (source, _) = self.file(source)?;
        source.read_at(SYSTEM, 0, &mut [])?;
        let (file, ctx) = self.file(on)?;
        let before = file.getattr(SYSTEM)?;
        let range = CloneRange {
            source: source.id(),
            source_offset: *source_offset,
            offset: *offset,
            len_bytes: *len,
        };
        let result = clone_or_copy(ctx, &*source, &*file, &range, self.fs.limits().file_bytes_max);
        self.judge(before, result.is_ok())?;
        Ok(Outcome::Count(result?))
    }
}

/// Clones a range; an engine that shares nothing writes what it would have shared, by one write.
fn clone_or_copy(
    ctx: &Ctx,
    source: &dyn OpenFile,
    file: &dyn OpenFile,
    range: &CloneRange,
    size_max: u64,
) -> Result<usize> {
    match file.clone_range(ctx, range) {
        Err(FsError::NotSupported(Unsupported::Clone)) => {}
        cloned => return cloned.map(|written| written.len_bytes),
    }
    let sizes = (source.getattr(SYSTEM)?.size, file.getattr(SYSTEM)?.size);
    let len = range.len_in(file.ino(), sizes.0, sizes.1, size_max)?;
    let mut data = vec![0; len as usize];
    source.read_at(SYSTEM, range.source_offset, &mut data)?;
    file.write_at(ctx, range.offset, &data)
}
