//! The check of a store: every structure against every other.

use crate::store::BlobStore;
use crate::{CLUSTER_BYTES, Error, Result};

/// The result of a check.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// The errors found, one line each.
    pub findings: Vec<String>,
    /// Blobs.
    pub blobs: u64,
    /// Bytes of the clusters, and parts of them, that blobs name.
    pub allocated_bytes: u64,
}

impl BlobStore {
    /// Checks all metadata: unreadable pages, clusters that two blobs have, and clusters that no blob has and that are
    /// not free. The store should be idle.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn check(&self) -> Result<Report> {
        let mut report = Report {
            findings: self.damage(),
            ..Report::default()
        };
        for id in self.ids()? {
            let blob = match self.blob(id) {
                Ok(blob) => blob,
                Err(error @ (Error::Damaged(_) | Error::NotFound)) => {
                    report.findings.push(format!("blob {:x}: {error}", id.raw()));
                    continue;
                }
                Err(error) => return Err(error),
            };
            report.blobs += 1;
            report.allocated_bytes += blob.allocated_bytes();
        }
        let space = self.space();
        let used = space.clusters * CLUSTER_BYTES - space.free_bytes - self.core.slot_bytes();
        if used != report.allocated_bytes {
            let named = report.allocated_bytes;
            report
                .findings
                .push(format!("clusters of {used} bytes are in use, blobs name {named}"));
        }
        Ok(report)
    }
}
