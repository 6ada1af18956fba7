//! Quotas in the report about a pool.

use serde::{Deserialize, Serialize};

/// A quota of a directory tree, and how much of it is used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaUse {
    /// The directory.
    pub inode: u64,
    /// The limits; 0 for none.
    pub limit_bytes: u64,
    /// See `limit_bytes`.
    pub limit_inodes: u64,
    /// How much is used.
    pub used_bytes: u64,
    /// See `used_bytes`.
    pub used_inodes: u64,
}
