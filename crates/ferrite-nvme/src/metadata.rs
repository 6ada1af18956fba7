//! Where a pool's metadata is: RocksDB in a directory or on a device, or a database that other servers reach.
//!
//! Contents: [`open`], which opens the place that a pool's file names; [`clear`], which makes it empty for a new pool.
//!
//! Invariant: a place that holds something else than the metadata of a pool is never cleared. A pool in a database is
//! in use while its owner's time runs, wherever the owner is. Used by `pool` and `salvage`.

use std::path::Path;
use std::sync::Arc;

use ferrite_blob::BlobStore;
use ferrite_blob::device::uring::Reactor;
use ferrite_meta::{Backend, MetaStore, Owner, RocksStore};
use ferrite_vfs::volume::{VolumeError, VolumeErrorKind};

use crate::backend::MetaBlobs;
use crate::config::Config;
use crate::device::{as_data, device, of_store};
use crate::refusal::{Result, invalid, medium, refuse};

/// Which store of its pool one for metadata is.
pub(crate) const METADATA_INDEX: u16 = u16::MAX;

pub(crate) fn of_meta(place: &str, error: &ferrite_meta::Error) -> VolumeError {
    let kind = match error {
        ferrite_meta::Error::Corruption(_) => VolumeErrorKind::Damaged,
        ferrite_meta::Error::Missing(_) => VolumeErrorKind::Foreign,
        ferrite_meta::Error::InUse(by) => VolumeErrorKind::InUse {
            by: by.clone(),
            process: None,
        },
        ferrite_meta::Error::Owned { owner, .. } => VolumeErrorKind::InUse {
            by: owner.clone(),
            process: None,
        },
        ferrite_meta::Error::Invalid(_) => VolumeErrorKind::Invalid,
        _ => VolumeErrorKind::Medium,
    };
    refuse(kind, format!("{place}: {error}")).with_name_in_text()
}

/// Whether a file's name is one that RocksDB gives.
fn is_rocksdbs(name: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let (stem, ending) = name.split_once('.').unwrap_or((name, ""));
    match stem.split_once('-') {
        Some(("MANIFEST" | "OPTIONS", number)) => is_number(number) && matches!(ending, "" | "dbtmp"),
        _ if is_number(stem) => matches!(ending, "sst" | "log" | "dbtmp"),
        _ => matches!(name, "CURRENT" | "IDENTITY" | "LOCK" | "LOG" | "CLOSED"),
    }
}

/// Whether a directory has RocksDB's files only, all of them or those of a creation that was cut off.
fn is_rocksdb(dir: &Path) -> bool {
    let Ok(mut entries) = std::fs::read_dir(dir) else {
        return false;
    };
    let is_file = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.is_ok_and(|entry| {
            let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
            is_file && entry.file_name().to_str().is_some_and(is_rocksdbs)
        })
    };
    entries.all(is_file)
}

/// Makes the place empty, if it may be.
pub(crate) fn clear(config: &Config, force: bool) -> Result<()> {
    if config.metadata.postgres.is_some() {
        return database::create(config, force);
    }
    let Some(place) = &config.metadata.directory else {
        return Ok(());
    };
    let holds_something = std::fs::read_dir(place).is_ok_and(|mut entries| entries.next().is_some());
    if holds_something && !force {
        let text = format!("{}: not empty; give --force to overwrite it", place.display());
        return Err(refuse(VolumeErrorKind::Foreign, text).with_name_in_text());
    }
    if holds_something {
        // Only RocksDB's own files are removed, whatever the caller insists on.
        if !is_rocksdb(place) {
            let text = format!(
                "{}: it holds something else than metadata of a pool; name another directory, or empty it",
                place.display()
            );
            return Err(refuse(VolumeErrorKind::Foreign, text).with_name_in_text());
        }
        std::fs::remove_dir_all(place).map_err(|error| medium(place, error))?;
    }
    Ok(())
}

/// How the metadata is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Opening {
    New,
    Use,
    Inspect,
    /// As `Inspect`, but a database is read without owning the pool, which another server may have.
    Look,
    /// Damage of the device's blobs is mended first.
    Mend,
}

fn rocksdb(config: &Config, reactor: &Arc<Reactor>, opening: Opening) -> Result<RocksStore> {
    let options = ferrite_meta::Options {
        create: opening == Opening::New,
        read_only: matches!(opening, Opening::Inspect | Opening::Look),
        block_cache_bytes: config.metadata.cache as usize,
        ..ferrite_meta::Options::default()
    };
    let backend = backend(config, reactor, opening)?;
    RocksStore::open(backend, &options).map_err(|error| of_meta(&config.metadata_place(), &error))
}

/// Where the metadata lies.
pub(crate) fn backend(config: &Config, reactor: &Arc<Reactor>, opening: Opening) -> Result<Backend> {
    Ok(match (&config.metadata.device, &config.metadata.directory) {
        (None, None) => return Err(by_its_own_tools(config)),
        (None, Some(directory)) => Backend::Directory(directory.clone()),
        (Some(path), _) => {
            let device = device(
                &as_data(path),
                reactor,
                matches!(opening, Opening::Inspect | Opening::Look),
            )?;
            let found = BlobStore::identify(&device).map_err(of_store)?;
            if found.is_none_or(|found| found.index != METADATA_INDEX) {
                let text = format!(
                    "{}: it holds no metadata of Ferrite; is it the right device?",
                    path.display()
                );
                return Err(refuse(VolumeErrorKind::Foreign, text).with_name_in_text());
            }
            if opening == Opening::Use
                && let Err(error) = device.allocate()
            {
                tracing::warn!(%error, "the file of the metadata is sparse, and its file system has no space for it");
            }
            let blobs = match opening {
                Opening::Inspect | Opening::Look => MetaBlobs::inspect(Box::new(device)),
                Opening::New | Opening::Use => MetaBlobs::open(Box::new(device)),
                Opening::Mend => MetaBlobs::mend(Box::new(device)),
            };
            Backend::Blobs(Arc::new(blobs.map_err(of_store)?))
        }
    })
}

/// The refusal to mend or restore a database.
pub(crate) fn by_its_own_tools(config: &Config) -> VolumeError {
    let text = format!(
        "{}: a database is mended and restored by its own tools; docs/postgres.md describes how",
        config.metadata_place()
    );
    invalid(text).with_name_in_text()
}

/// Takes metadata in a database, for this owner or a new one.
///
/// # Errors
/// Another server owns it; there is no such volume; errors of the database.
pub(crate) fn open_database(config: &Config, owner: Option<&Owner>) -> Result<Box<dyn MetaStore>> {
    database::open(config, owner)
}

/// Takes a volume of the database that is to be replaced, so that no other server owns it meanwhile. `None`: the
/// database has no such volume.
///
/// # Errors
/// Another server owns it; errors of the database.
#[cfg(any(feature = "rados", feature = "s3"))]
pub(crate) fn existing_database(config: &Config) -> Result<Option<Box<dyn MetaStore>>> {
    match open_database(config, None) {
        Ok(store) => Ok(Some(store)),
        Err(error) if *error.kind() == VolumeErrorKind::Foreign => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads metadata in a database, whoever owns it, and changes nothing.
///
/// # Errors
/// There is no such volume; errors of the database.
pub(crate) fn view_database(config: &Config) -> Result<Box<dyn MetaStore>> {
    database::view(config)
}

/// Looks at the server and the volume, and takes nothing.
///
/// # Errors
/// The description of the database cannot be used. Errors of the database are in the result.
#[cfg(feature = "postgres")]
pub(crate) fn examine(config: &Config) -> Result<ferrite_meta::Result<ferrite_meta::ServerState>> {
    database::examine(config)
}

/// Opens the metadata.
///
/// # Errors
/// It is missing, damaged or in use; errors of the medium or the database.
pub(crate) fn open(config: &Config, reactor: &Arc<Reactor>, opening: Opening) -> Result<Box<dyn MetaStore>> {
    open_as(config, reactor, opening, None)
}

/// The same; a volume in a database gets this owner.
///
/// # Errors
/// As for [`open`].
pub(crate) fn open_as(
    config: &Config,
    reactor: &Arc<Reactor>,
    opening: Opening,
    owner: Option<&Owner>,
) -> Result<Box<dyn MetaStore>> {
    match config.metadata.postgres {
        Some(_) if opening == Opening::Look => database::view(config),
        Some(_) => database::open(config, owner),
        None => Ok(Box::new(rocksdb(config, reactor, opening)?)),
    }
}

#[cfg(feature = "postgres")]
pub(crate) mod database;

/// Builds without PostgreSQL.
#[cfg(not(feature = "postgres"))]
mod database {
    use super::{Config, MetaStore, Owner, Result, invalid};

    fn absent<T>(config: &Config) -> Result<T> {
        let text = format!(
            "{}: this program was built without PostgreSQL; build it with the feature `postgres`",
            config.metadata_place()
        );
        Err(invalid(text).with_name_in_text())
    }

    pub(super) fn create(config: &Config, _force: bool) -> Result<()> {
        absent(config)
    }

    pub(super) fn open(config: &Config, _owner: Option<&Owner>) -> Result<Box<dyn MetaStore>> {
        absent(config)
    }

    pub(super) fn view(config: &Config) -> Result<Box<dyn MetaStore>> {
        absent(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Protects what users have in a directory that they name by mistake.
    #[test]
    fn only_rocksdbs_files_are_taken_for_them() {
        for name in [
            "CURRENT",
            "LOCK",
            "000012.sst",
            "000004.log",
            "MANIFEST-000005",
            "OPTIONS-000007.dbtmp",
        ] {
            assert!(is_rocksdbs(name), "{name}");
        }
        for name in [
            "notes",
            "1.txt",
            ".log",
            "MANIFEST-",
            "MANIFEST-x",
            "OPTIONS-1.sst",
            "CURRENT.bak",
            "12",
        ] {
            assert!(!is_rocksdbs(name), "{name}");
        }
    }
}
