//! The pool that a command's user names, by its file or by a directory where it is mounted.
//!
//! Contents: [`Target`], through which read-only commands reach a pool: its daemon, if it is mounted, or else a
//! private copy.
//!
//! Invariant: a directory leads to the mount on it, a file to the daemon that has that very file mounted, whatever both
//! are called now.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::builder::{OsStringValueParser, TypedValueParser};
use ferrite::MountOptions;
use ferrite::volume::{Address, Volume};

use super::control::{self, Request};
use super::mounts::{self, MountPoint};
use super::{FAILED, Failure, about, opening};

/// How long a daemon may take to answer a short request.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A pool's or a directory's path, valid after a change of the working directory.
pub(crate) fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    // The canonical path of the pool, not of a link to it: a name that other commands find again.
    std::fs::canonicalize(path)
        .or_else(|_| std::path::absolute(path))
        .map_err(about(path))
}

/// The path of an address's pool as [`absolute`] makes it; the address itself if it is on a server.
pub(crate) fn place(address: &Address) -> Result<PathBuf, Failure> {
    match address.is_remote() {
        true => Ok(address.path().to_path_buf()),
        false => absolute(address.path()),
    }
}

/// Accepts addresses, and so every path except that of a file that describes a pool on devices: it lacks its scheme.
pub(crate) fn address() -> impl TypedValueParser<Value = Address> {
    OsStringValueParser::new().try_map(|text| {
        let address = Address::parse(&text).map_err(|error| error.to_string())?;
        if let Some(meant) = address.meant_server() {
            return Err(format!("there is no such file; the address of a server is {meant}"));
        }
        match address.lacks_scheme() {
            true => Err(format!(
                "the file describes a pool on devices; name it nvme:{}",
                text.to_string_lossy()
            )),
            false => Ok(address),
        }
    })
}

/// Accepts addresses of what is on this machine.
pub(crate) fn local_address() -> impl TypedValueParser<Value = Address> {
    address().try_map(|address| match address.is_remote() {
        true => Err("this is a server's; the command needs a pool of this machine: run it on the server's host"),
        false => Ok(address),
    })
}

/// See the module's head.
pub(crate) struct Target {
    given: Address,
    /// The mount there, if it is a directory.
    mount: Option<MountPoint>,
}

impl Target {
    pub(crate) fn new(address: &Address) -> Target {
        Target {
            given: address.clone(),
            mount: mounts::on(address.path()),
        }
    }

    /// Where the pool is, or was when it was mounted.
    pub(crate) fn pool(&self) -> &Path {
        self.mount.as_ref().map_or(self.given.path(), |mount| &mount.pool)
    }

    /// Sends a request to the daemon that has the pool mounted; `None` if no daemon answers us.
    pub(crate) fn ask<T: serde::de::DeserializeOwned>(&self, request: &Request) -> Result<Option<T>, Failure> {
        self.ask_within(request, Some(TIMEOUT))
    }

    /// The same for requests that may take any time.
    pub(crate) fn ask_without_timeout<T: serde::de::DeserializeOwned>(
        &self,
        request: &Request,
    ) -> Result<Option<T>, Failure> {
        self.ask_within(request, None)
    }

    /// The same for requests that report progress.
    pub(crate) fn ask_telling<T: serde::de::DeserializeOwned>(
        &self,
        request: &Request,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Option<T>, Failure> {
        let Some(daemon) = self.connect() else { return Ok(None) };
        control::ask_telling(daemon, request, None, progress)
            .map(Some)
            .map_err(|failure| failure.of(self.given.path()))
    }

    /// Connects to the daemon that has the pool mounted; `None` if no daemon answers us.
    pub(crate) fn connect(&self) -> Option<UnixStream> {
        match &self.mount {
            Some(mount) => control::connect_to_mount(mount),
            // Without a pool, opening it will report the error.
            None => std::fs::metadata(self.given.path())
                .ok()
                .and_then(|pool| control::connect_to_pool(&pool)),
        }
    }

    fn ask_within<T: serde::de::DeserializeOwned>(
        &self,
        request: &Request,
        timeout: Option<Duration>,
    ) -> Result<Option<T>, Failure> {
        let Some(daemon) = self.connect() else { return Ok(None) };
        control::ask(daemon, request, timeout)
            .map(Some)
            .map_err(|failure| failure.of(self.given.path()))
    }

    /// Opens the pool through a private copy: a crashed pool is recovered in memory, and nothing is written.
    pub(crate) fn inspect(&self) -> Result<Arc<dyn Volume>, Failure> {
        if self.mount.is_none() && self.given.path().is_dir() {
            return Err(not_mounted(self.given.path()));
        }
        opening::volume(&self.given.at(self.pool()), &MountOptions::inspect())
    }
}

/// The error for a directory that should be a Ferrite mount.
pub(crate) fn not_mounted(dir: &Path) -> Failure {
    Failure::new(FAILED, format!("{}: no pool is mounted there", dir.display()))
}
