//! A server that may own a pool whose metadata is in a database.
//!
//! Contents: [`candidacy`], which says whether a pool is such a one; its [`Candidacy`]: a look at the owner's row by a
//! connection of its own, which costs the owner nothing, and the opening as the owner.
//!
//! Each candidate has one name as long as it exists, so one that has lost its opening need not wait for its own lease.
//! Two of its openings never answer at a time: the caller drops one before it makes the next.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ferrite_meta::{Owner, PostgresRemote};
use ferrite_vfs::volume::{Candidacy, Tenancy, Volume, VolumeError};

use crate::config::Config;
use crate::description::{Description, Share};
use crate::metadata::database::{SHARD, owner, remote};
use crate::metadata::of_meta;
use crate::open::Options;
use crate::volume::NvmeVolume;

/// The options of each opening.
type MakeOptions = Box<dyn Fn() -> Options + Send + Sync>;

struct Candidate {
    path: PathBuf,
    config: Config,
    remote: PostgresRemote,
    owner: Owner,
    options: MakeOptions,
}

/// The candidacy of a server, which clients reach at `address`, for the pool that a file describes. `None`: the pool
/// belongs to this machine. Connects only when it is used.
///
/// # Errors
/// The description is missing, or no description; a file that it names cannot be read.
pub fn candidacy(
    path: &Path,
    address: &str,
    options: impl Fn() -> Options + Send + Sync + 'static,
) -> Result<Option<Arc<dyn Candidacy>>, VolumeError> {
    let config = Description::open(path, Share::Inspect)?.config()?;
    if config.metadata.postgres.is_none() {
        return Ok(None);
    }
    Ok(Some(Arc::new(Candidate {
        path: path.to_path_buf(),
        remote: remote(&config)?,
        config,
        owner: owner(Some(address)),
        options: Box::new(options),
    })))
}

impl Candidate {
    fn failed(&self, error: &ferrite_meta::Error) -> VolumeError {
        of_meta(&self.config.metadata_place(), error)
    }
}

impl Candidacy for Candidate {
    fn look(&self) -> Result<Tenancy, VolumeError> {
        let found = self.remote.tenancy(SHARD).map_err(|error| self.failed(&error))?;
        Ok(Tenancy {
            epoch: found.epoch,
            is_own: found.owner == self.owner.name,
            owner: found.owner,
            address: found.address,
            left: found.left,
            free: found.free,
            asked_to: found.asked_to,
        })
    }

    fn open(&self) -> Result<Arc<dyn Volume>, VolumeError> {
        let options = Options {
            owner: Some(self.owner.clone()),
            ..(self.options)()
        };
        Ok(Arc::new(NvmeVolume::open(&self.path, options)?))
    }

    fn ask_for_hand_over(&self, epoch: u64, to: &str) -> Result<bool, VolumeError> {
        let asked = self.remote.ask_for_hand_over(SHARD, epoch, to);
        asked.map_err(|error| self.failed(&error))
    }
}
