//! Ids of slices: each is staged before anybody gets it.

use ferrite_checks::ranked::Mutex;
use ferrite_slices::SliceId;

use super::lock_order;
use super::rows::{MANY, Rows};
use crate::content_store::Result;

/// How many are staged at once, at least.
const STAGED_AT_ONCE: u64 = 64;

/// The ids of one owner.
#[derive(Debug, Default)]
pub(super) struct SliceIds(Mutex<lock_order::Ids, Ids>);

#[derive(Debug, Default)]
struct Ids {
    epoch: u64,
    next: u64,
    /// Those before it are staged.
    staged: u64,
}

impl SliceIds {
    /// Begins the ids of an owner.
    pub(super) fn begin(&self, epoch: u64) {
        *self.0.lock() = Ids {
            epoch,
            next: 0,
            staged: 0,
        };
    }

    /// Some ids, which are staged.
    ///
    /// # Errors
    /// Errors of the rows; none is taken.
    pub(super) fn take(&self, rows: &Rows, count: usize) -> Result<Vec<SliceId>> {
        let mut ids = self.0.lock();
        let epoch = ids.epoch;
        let end = ids.next + count as u64;
        while ids.staged < end {
            let until = (ids.staged + MANY as u64).min(end.max(ids.staged + STAGED_AT_ONCE));
            rows.stage((ids.staged..until).map(|number| SliceId { epoch, number }))?;
            ids.staged = until;
        }
        let taken = (ids.next..end).map(|number| SliceId { epoch, number }).collect();
        ids.next = end;
        Ok(taken)
    }

    /// Removes the rows of those that nobody got, at an orderly end.
    pub(super) fn end(&self, rows: &Rows) -> Result<()> {
        let mut ids = self.0.lock();
        let epoch = ids.epoch;
        if ids.next < ids.staged {
            rows.unstage((ids.next..ids.staged).map(|number| SliceId { epoch, number }))?;
            ids.staged = ids.next;
        }
        Ok(())
    }
}
