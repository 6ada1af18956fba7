//! The row of a shard, and the rules by which the calls of [`Remote`](super::Remote) change it.
//!
//! Contents: [`ShardRow`], plain data without a lock or a clock. [`MemoryRemote`](super::MemoryRemote) keeps its shards
//! by it, and the model in `tests/tenure_model.rs` checks it; databases state the same rules in their own language.

use std::time::Duration;

use super::Applied;
use crate::error::{Error, Result};

/// See the head of this module.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct ShardRow {
    /// Of the last tenure.
    pub epoch: u64,
    /// Of the last batch.
    pub seq: u64,
    /// When the last tenure ends, by the database's clock.
    pub expires: Duration,
}

impl ShardRow {
    /// Begins a tenure of `ttl`. `now` is the database's.
    ///
    /// # Errors
    /// How much time the owner has left. Nothing was changed.
    pub fn take(&mut self, now: Duration, ttl: Duration) -> std::result::Result<(), Duration> {
        if self.expires > now {
            return Err(self.expires - now);
        }
        self.epoch += 1;
        self.expires = now + ttl;
        Ok(())
    }

    /// Whether the tenure of an epoch is the last one. Every call of an owner begins with it.
    ///
    /// # Errors
    /// [`Error::Lost`] if it is not.
    pub fn check(&self, epoch: u64) -> Result<()> {
        match self.epoch == epoch {
            true => Ok(()),
            false => Err(Error::Lost { epoch: self.epoch }),
        }
    }

    /// Prolongs a tenure to `ttl` from now; with zero it ends. `now` is the database's.
    ///
    /// # Errors
    /// Those of [`Self::check`].
    pub fn renew(&mut self, epoch: u64, now: Duration, ttl: Duration) -> Result<()> {
        self.check(epoch)?;
        self.expires = now + ttl;
        Ok(())
    }

    /// Counts a batch. With [`Applied::Now`], the caller stores its changes in the same step.
    ///
    /// # Errors
    /// Those of [`Self::check`]; [`Error::WentBack`] if batches before it are missing.
    pub fn apply(&mut self, epoch: u64, seq: u64) -> Result<Applied> {
        self.check(epoch)?;
        match self.seq {
            has if has == seq => Ok(Applied::Before),
            has if has + 1 != seq => Err(Error::WentBack {
                has,
                wanted: seq.saturating_sub(1),
            }),
            _ => {
                self.seq = seq;
                Ok(Applied::Now)
            }
        }
    }
}
