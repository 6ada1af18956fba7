//! The owner of a volume, as everybody sees it who may read the database.
//!
//! Contents: [`Tenancy`], which a server that stands by looks at, and the request to hand a volume over. Neither is
//! part of [`Remote`](super::super::Remote): safety needs only that a tenure is taken and ends.
//!
//! A request names the epoch that it is to end, so it has no meaning for later owners.

use std::time::Duration;

use tokio_postgres::types::ToSql;

use super::PostgresRemote;
use super::waits::Use;
use crate::error::Result;

/// The owner of a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tenancy {
    /// The epoch of the last tenure; 0 if there was none.
    pub epoch: u64,
    /// The name of the last owner's process.
    pub owner: String,
    /// Where clients reach that owner; may be empty.
    pub address: String,
    /// Until its time ends; zero if it has ended.
    pub left: Duration,
    /// Since its time has ended; zero if it has not.
    pub free: Duration,
    /// Somebody asked for the volume to be handed over: to the server at this address, or to any if it is empty.
    pub asked_to: Option<String>,
}

impl PostgresRemote {
    /// The owner of a shard, by the database's clock.
    ///
    /// # Errors
    /// [`Error::Missing`](crate::Error::Missing) if there is no such shard;
    /// [`Error::Unreachable`](crate::Error::Unreachable); others of the database.
    pub fn tenancy(&self, shard: u64) -> Result<Tenancy> {
        let row = self.row(Use::Answer, shard)?;
        Ok(Tenancy {
            epoch: row.epoch,
            owner: row.owner,
            address: row.address,
            left: row.left,
            free: row.free,
            asked_to: row.asked_to,
        })
    }

    /// Asks the owner of this epoch to hand its shard over: to the server at this address, or to any if it is empty.
    /// False if that tenure has ended.
    ///
    /// # Errors
    /// [`Error::Unreachable`](crate::Error::Unreachable); others of the database.
    pub fn ask_for_hand_over(&self, shard: u64, epoch: u64, to: &str) -> Result<bool> {
        let (number, wanted) = (shard as i64, epoch as i64);
        self.read(Use::Answer, |ready| {
            let with: [&(dyn ToSql + Sync); 3] = [&number, &wanted, &to];
            ready.session.query(&ready.prepared.ask, &with)
        })?;
        Ok(self.row(Use::Answer, shard)?.epoch == epoch)
    }
}
