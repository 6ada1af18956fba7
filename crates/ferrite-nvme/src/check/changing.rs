//! The check of a pool that another server may change meanwhile.
//!
//! A check reads nodes, names and records one after the other, each part as of another moment. In a pool that changes,
//! it finds a name whose node it read too early, which is no damage. So the number of the owner's last batch is read
//! before and after: if it is the same, all is of one moment, and each finding is right. Else the pool is checked
//! again, and only those findings remain that every check had: damage stays, and what is merely newer looks different
//! the next time.
//!
//! Invariant: a finding that remains was seen by every check, in the same words. An inode that is changed all the time
//! could still be among them, which the report says (`is_changing`).
//!
//! Memory: as of every check, some hundred bytes an inode and a name.

use ferrite_vfs::{FsError, Result};

use super::Report;
use crate::core::Core;
use crate::open::read_record;

/// Checks of a pool that changes during each of them.
const CHECKS_MAX: usize = 4;

impl Core {
    /// Checks a pool that another server may own.
    pub(crate) fn check_while_it_changes(&self) -> Result<Report> {
        let mut so_far: Option<Report> = None;
        for _ in 0..CHECKS_MAX {
            let before = self.last_batch()?;
            // The owner gives numbers to inodes.
            *self.pool.lock() = read_record(&*self.meta)?;
            let mut report = self.check()?;
            if self.last_batch()? == before {
                return Ok(report);
            }
            if let Some(earlier) = &so_far {
                report.findings.retain(|finding| earlier.findings.contains(finding));
                report.more = false;
            }
            report.is_changing = true;
            if report.findings.is_empty() {
                return Ok(report);
            }
            so_far = Some(report);
        }
        Ok(so_far.unwrap_or_default())
    }

    /// The owner's epoch, and its last batch.
    fn last_batch(&self) -> Result<(u64, u64)> {
        let shard = self.meta.statistics().shard;
        let text = "the database of the metadata does not say what its owner has changed; try again";
        shard
            .map(|shard| (shard.epoch, shard.seq))
            .ok_or_else(|| FsError::Io(text.into()))
    }
}
