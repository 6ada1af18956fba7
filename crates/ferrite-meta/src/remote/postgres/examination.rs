//! The state of a server and a volume, for an administrator who asks whether they will do.
//!
//! Contents: [`PostgresRemote::examine`], with its answer [`ServerState`]. It changes nothing and takes nothing, so a
//! volume in use may be examined; it judges nothing either.

use std::time::Duration;

use tokio_postgres::Row;

use super::PostgresRemote;
use super::session::Failure;
use super::waits::Use;
use crate::error::{Error, Result};

/// A server, as it answers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerState {
    /// The servers that the connection string names, for messages.
    pub place: String,
    /// Its version, such as `15.6`.
    pub version: String,
    /// The first number of that.
    pub version_major: u32,
    /// `fsync`.
    pub fsync: String,
    /// `full_page_writes`.
    pub full_page_writes: String,
    /// `synchronous_commit` in sessions of Ferrite, which ask for `on`.
    pub synchronous_commit: String,
    /// `synchronous_standby_names`; empty if commits wait for no standby.
    pub standby_names: String,
    /// Standbys that are attached, synchronous or not.
    pub standbys: u64,
    /// Those of them for which commits may wait; `None` if this role may not see that.
    pub standbys_synchronous: Option<u64>,
    /// Whether this connection is encrypted.
    pub is_encrypted: bool,
    /// The volume; `None` if the database has none of this name.
    pub volume: Option<VolumeState>,
}

/// A volume, and its owner.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct VolumeState {
    /// The server that owns it, or owned it last; empty if none ever did.
    pub owner: String,
    /// How long that one still has it.
    pub left: Duration,
    /// How often it was taken.
    pub epoch: u64,
    /// The format of the tables.
    pub version: i32,
}

const SERVER: &str = "SELECT current_setting('server_version_num')::int, \
    split_part(current_setting('server_version'), ' ', 1), \
    current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_commit'), \
    current_setting('synchronous_standby_names'), \
    (SELECT count(*) FROM pg_stat_replication), \
    (SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')), \
    pg_has_role(current_user, 'pg_read_all_stats', 'USAGE'), \
    coalesce((SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()), false)";

impl PostgresRemote {
    /// Looks at the server and at a shard of the volume. Blocks at most three times as long as a call.
    ///
    /// # Errors
    /// [`Error::Unreachable`]; others of the database.
    pub fn examine(&self, shard: u64) -> Result<ServerState> {
        let mut session = self.connect(Use::Answer).map_err(|failure| self.error(failure))?;
        let server = session.ask(SERVER).map_err(|failure| self.error(failure))?;
        let server = server
            .first()
            .ok_or_else(|| self.error(Failure::NoAnswer("the server said nothing of itself".into())))?;
        let volume = match self.row(Use::Answer, shard) {
            Ok(row) => Some(VolumeState {
                owner: row.owner,
                left: row.left,
                epoch: row.epoch,
                version: row.version,
            }),
            Err(Error::Missing(_)) => None,
            Err(error) => return Err(error),
        };
        let state = self.server_of(server).map_err(|error| self.unreadable(&error))?;
        Ok(ServerState { volume, ..state })
    }

    fn server_of(&self, row: &Row) -> std::result::Result<ServerState, tokio_postgres::Error> {
        let count = |at| row.try_get::<_, i64>(at).map(|count| u64::try_from(count).unwrap_or(0));
        let number: i32 = row.try_get(0)?;
        let may_see: bool = row.try_get(8)?;
        Ok(ServerState {
            place: self.place.clone(),
            version: row.try_get(1)?,
            version_major: u32::try_from(number / 10_000).unwrap_or(0),
            fsync: row.try_get(2)?,
            full_page_writes: row.try_get(3)?,
            synchronous_commit: row.try_get(4)?,
            standby_names: row.try_get(5)?,
            standbys: count(6)?,
            standbys_synchronous: if may_see { Some(count(7)?) } else { None },
            is_encrypted: row.try_get(9)?,
            volume: None,
        })
    }
}
