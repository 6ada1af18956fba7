//! Finding damage in data that has checksums, and living with it.

use std::ops::Range;

use crate::blob::{Blob, PAGE, pages_of};
use crate::page::Pages;
use crate::store::BlobStore;
use crate::{CLUSTER_BYTES, Error, PAGE_BYTES, Result};

impl BlobStore {
    /// Whether its data has checksums.
    pub fn has_checksums(&self) -> bool {
        self.core.sums.is_some()
    }
}

/// The damage in a part of a blob. Whole pages.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DataDamage {
    /// The content is not what was written.
    pub wrong: Vec<Range<u64>>,
    /// The device cannot read it.
    pub unreadable: Vec<Range<u64>>,
}

/// Adds a page behind those that are there.
fn add(ranges: &mut Vec<Range<u64>>, at: u64) {
    match ranges.last_mut() {
        Some(last) if last.end == at => last.end = at + PAGE,
        _ => ranges.push(at..at + PAGE),
    }
}

impl Blob {
    /// Reads a part of the blob, at most a cluster, and returns its damage. Without checksums damage is undetectable,
    /// and nothing is read.
    ///
    /// # Errors
    /// [`Error::NotFound`] if it was deleted.
    pub fn damaged(&self, offset: u64, len: u64) -> Result<DataDamage> {
        let mut damage = DataDamage::default();
        let from = offset / PAGE * PAGE;
        let to = offset.saturating_add(len.min(CLUSTER_BYTES)).min(self.valid_len());
        if self.core.sums.is_none() || from >= to {
            return Ok(damage);
        }
        let mut pages = Pages::zeroed(((to - from) as usize).div_ceil(PAGE_BYTES));
        match self.read_at(pages.bytes_mut(), from) {
            Err(Error::Damaged(_) | Error::Device { .. }) => {}
            read => return read.map(|()| damage),
        }
        for (at, page) in (from..to)
            .step_by(PAGE_BYTES)
            .zip(pages.bytes_mut().chunks_mut(PAGE_BYTES))
        {
            match self.read_at(page, at) {
                Err(Error::Damaged(_)) => add(&mut damage.wrong, at),
                Err(Error::Device { .. }) => add(&mut damage.unreadable, at),
                read => read?,
            }
        }
        Ok(damage)
    }

    /// Accepts these bytes, whatever the device holds there. Durable when it returns.
    ///
    /// # Errors
    /// [`Error::NotFound`] if it was deleted; errors of the device.
    pub fn accept(&self, bytes: Range<u64>) -> Result<()> {
        let state = self.inner.state.write();
        self.alive(&state)?;
        self.core.check_running()?;
        let Some(sums) = &self.core.sums else { return Ok(()) };
        for page in pages_of(bytes.start, (bytes.end - bytes.start) as usize) {
            if let Some((target, _)) = self.core.page_at(&state, page) {
                sums.accept(target)?;
            }
        }
        Ok(())
    }
}
