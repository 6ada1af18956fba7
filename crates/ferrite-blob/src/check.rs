//! The check of a store: every structure against every other.

use rangemap::RangeSet;

use crate::blob::Blob;
use crate::shared_units::{SharedUnits, within};
use crate::store::BlobStore;
use crate::{CLUSTER_BYTES, Error, Result};

/// The result of a check.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// The errors found, one line each.
    pub findings: Vec<String>,
    /// Blobs.
    pub blobs: u64,
    /// Bytes of the clusters, and parts of them, that blobs name; once, whatever the number of blobs.
    pub allocated_bytes: u64,
}

impl BlobStore {
    /// Checks all metadata: unreadable pages, clusters that two blobs have and do not share, clusters that no blob has
    /// and that are not free, and how many blobs share which. The store should be idle.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn check(&self) -> Result<Report> {
        let mut report = Report {
            findings: self.damage(),
            ..Report::default()
        };
        let mut names = Names::default();
        let may_share = self.core.superblock.lock().has_shared;
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
            if may_share {
                names.add(&blob);
            }
        }
        report.allocated_bytes -= names.shared.surplus() * self.core.layout.unit_bytes();
        let free = self.core.free.lock();
        // Of what another blob owns as well, names are not counted.
        let is_right = free.tangled.is_empty() && report.findings.is_empty();
        if is_right && names.shared != free.shared {
            let (counted, found) = (free.shared.surplus(), names.shared.surplus());
            let what = format!("blobs share {found} parts of clusters, and {counted} are counted");
            report.findings.push(what);
        }
        drop(free);
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

/// How many blobs name which units, counted anew.
#[derive(Default)]
struct Names {
    named: RangeSet<u32>,
    shared: SharedUnits,
}

impl Names {
    fn add(&mut self, blob: &Blob) {
        for &(physical, count) in blob.inner.state.read().pieces.values() {
            let range = physical..physical + count;
            let before: Vec<_> = self.named.overlapping(&range).cloned().collect();
            for part in before {
                self.shared.add_name(within(&part, &range));
            }
            self.named.insert(range);
        }
    }
}
