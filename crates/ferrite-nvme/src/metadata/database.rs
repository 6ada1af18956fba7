//! Metadata in PostgreSQL: which volume a pool's file names, and who owns it.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use ferrite_meta::{MetaStore, Owned, OwnedOptions, Owner, PostgresOptions, PostgresRemote, Remote, Viewed};
use ferrite_vfs::volume::VolumeErrorKind;

use super::of_meta;
use crate::config::Config;
use crate::device::random;
use crate::refusal::{Result, invalid, medium, refuse};

/// A volume has one shard.
pub(crate) const SHARD: u64 = 1;
/// How long an owner that has ended its work may take to give the volume up.
const GIVEN_UP_WITHIN: Duration = Duration::from_secs(2);
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Longest password, with its end of line.
const PASSWORD_BYTES_MAX: usize = 4096;

/// The password in a file, which nobody but its owner may read.
fn password(path: &Path) -> Result<String> {
    let file = std::fs::File::open(path).map_err(|error| medium(path, error))?;
    let mode = file.metadata().map_err(|error| medium(path, error))?.mode();
    if mode & 0o077 != 0 {
        let text = format!(
            "{}: others may read the password in it; `chmod 600 {}` keeps them out",
            path.display(),
            path.display()
        );
        return Err(refuse(VolumeErrorKind::Invalid, text).with_name_in_text());
    }
    let mut line = String::new();
    let mut start = BufReader::new(std::io::Read::take(file, PASSWORD_BYTES_MAX as u64));
    start.read_line(&mut line).map_err(|error| medium(path, error))?;
    let password = line.trim_end_matches(['\r', '\n']);
    match password.is_empty() || line.len() >= PASSWORD_BYTES_MAX {
        true => {
            let text = format!("{}: its first line is not a password", path.display());
            Err(invalid(text).with_name_in_text())
        }
        false => Ok(password.to_owned()),
    }
}

/// The database of a pool.
pub(crate) fn remote(config: &Config) -> Result<PostgresRemote> {
    let metadata = &config.metadata;
    let connection = metadata.postgres.as_deref().unwrap_or_default();
    let mut options = PostgresOptions::new(connection, metadata.volume());
    options.ca.clone_from(&metadata.ca);
    options.password = match &metadata.password_file {
        Some(path) => Some(password(path)?),
        None => None,
    };
    PostgresRemote::new(&options).map_err(|error| of_meta(&config.metadata_place(), &error))
}

/// This opening of a pool, as others see it, with the address where clients reach it. No two have the same name.
pub(crate) fn owner(address: Option<&str>) -> Owner {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let unique = u64::from_le_bytes(random());
    Owner {
        name: format!("{host} process {} {unique:016x}", std::process::id()),
        address: address.unwrap_or_default().to_owned(),
    }
}

/// Makes an empty volume. With `force`, it replaces one that nobody owns.
pub(super) fn create(config: &Config, force: bool) -> Result<()> {
    let failed = |error| of_meta(&config.metadata_place(), &error);
    let remote = remote(config)?;
    match remote.create(SHARD) {
        Err(ferrite_meta::Error::Exists(_)) if force => {
            // An owner would go on as if nothing had happened.
            let tenure = remote.take(SHARD, &owner(None), Duration::from_secs(10));
            match tenure {
                Ok(_) | Err(ferrite_meta::Error::Missing(_)) => {}
                Err(error) => return Err(failed(error)),
            }
            remote.remove().map_err(failed)?;
            remote.create(SHARD).map_err(failed)
        }
        made => made.map_err(failed),
    }
}

/// Reads the volume, whoever owns it, and changes nothing.
pub(super) fn view(config: &Config) -> Result<Box<dyn MetaStore>> {
    let viewed = Viewed::open(remote(config)?, SHARD);
    Ok(Box::new(
        viewed.map_err(|error| of_meta(&config.metadata_place(), &error))?,
    ))
}

/// Takes the volume. Without an owner's name, it waits a little for an owner that is about to give it up.
pub(super) fn open(config: &Config, named: Option<&Owner>) -> Result<Box<dyn MetaStore>> {
    let owner = named.cloned().unwrap_or_else(|| owner(None));
    let wait = match named {
        Some(_) => Duration::ZERO,
        None => GIVEN_UP_WITHIN,
    };
    let until = Instant::now() + wait;
    loop {
        let mut options = OwnedOptions::default();
        options.cache_bytes = usize::try_from(config.metadata.cache).unwrap_or(usize::MAX);
        if let Some(lease_s) = config.metadata.lease_s {
            options.ttl = Duration::from_secs(lease_s);
        }
        match Owned::open(remote(config)?, SHARD, &owner, options) {
            Ok(owned) => return Ok(Box::new(owned)),
            Err(ferrite_meta::Error::Owned { .. }) if Instant::now() < until => std::thread::sleep(LOOK_EVERY),
            Err(error) => return Err(of_meta(&config.metadata_place(), &error)),
        }
    }
}

/// Looks at the server and the volume.
pub(super) fn examine(config: &Config) -> Result<ferrite_meta::Result<ferrite_meta::ServerState>> {
    Ok(remote(config)?.examine(SHARD))
}
