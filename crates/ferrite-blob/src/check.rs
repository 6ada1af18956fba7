//! The check of a store: every structure against every other.

use crate::store::BlobStore;
use crate::{CLUSTER_BYTES, Error, Result};

/// What a check has found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// What is wrong, one line each.
    pub findings: Vec<String>,
    /// Blobs.
    pub blobs: u64,
    /// Clusters that blobs name.
    pub clusters: u64,
}

impl BlobStore {
    /// Checks all metadata: what cannot be read, clusters that two blobs have, and those that nobody has and that are
    /// not free. Nobody should be changing the store.
    ///
    /// # Errors
    /// Of the device.
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
            report.clusters += blob.allocated_bytes() / CLUSTER_BYTES;
        }
        let space = self.space();
        if space.clusters - space.free_clusters != report.clusters {
            let used = space.clusters - space.free_clusters;
            report
                .findings
                .push(format!("{used} clusters are in use, blobs name {}", report.clusters));
        }
        Ok(report)
    }
}
