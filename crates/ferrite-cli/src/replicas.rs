//! Files of servers that are several replicas of one file: for `ferrite mr` and `ferrite log`.
//!
//! Invariant: a command waits for an absent server no longer than [`TIMEOUT`] plus the retries of its verbs; unlike
//! for a single file, which has no other replica.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ferrite_client::rdma::{
    Acknowledge, Held, Outcome, RemoteError, RemoteFile, RemoteOptions, ReplicatedError, ReplicatedFile,
    ReplicatedOptions, Source, Standing,
};
use ferrite_client::volume::RemoteVolume;
use ferrite_client::{Client, ClientOptions};
use ferrite_vfs::{Ctx, FileKind, FileSystem, FsError, Ino, OpenFlags, Start};
use serde::Serialize;

use crate::files::{Operand, caller, umask};
use crate::{FAILED, Failure, USAGE, complain};

/// The command succeeded, but a replica lacks something.
pub(crate) const COPY_BEHIND: u8 = 3;

/// A server that has not replied for so long counts as absent.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The file at a path in an export; `makes` creates it if absent.
pub(crate) fn find(client: &Client, path: &Path, makes: bool) -> Result<Ino, FsError> {
    use std::os::unix::ffi::OsStrExt;
    let (ctx, bytes) = (&context(), path.as_os_str().as_bytes());
    if makes {
        let flags = OpenFlags {
            read: true,
            write: true,
            create: true,
            mode: 0o666 & !umask(),
            ..OpenFlags::default()
        };
        return Ok(client.open_path(ctx, &Start::default(), bytes, &flags)?.attr.ino);
    }
    let attr = client.resolve(ctx, &Start::default(), bytes, true)?;
    match attr.kind {
        FileKind::File => Ok(attr.ino),
        _ => Err(FsError::Io("is no regular file".into())),
    }
}

pub(crate) fn context() -> Ctx {
    Ctx::checked(caller())
}

fn opened(address: &str, path: &Path, options: &RemoteOptions, makes: bool) -> Result<RemoteFile, RemoteError> {
    let with_timeout = ClientOptions::default().timeout(Some(TIMEOUT));
    let volume = RemoteVolume::open(address, &with_timeout).map_err(|error| FsError::Io(error.to_string()))?;
    let client: Arc<Client> = volume.client();
    let ino = find(&client, path, makes)?;
    RemoteFile::open(&client, &context(), ino, options.clone())
}

/// Opens the replicas of one file at these addresses.
pub(crate) fn open(
    files: &[Operand],
    options: &RemoteOptions,
    acknowledge: Acknowledge,
) -> Result<ReplicatedFile, Failure> {
    // A caller that only reads creates nothing.
    let makes = options.writable;
    let mut sources = Vec::new();
    for file in files {
        let Operand::There { address, path, prefix } = file else {
            return Err(Failure::new(
                USAGE,
                "give files of servers: tcp://HOST:PORT/EXPORT:/PATH",
            ));
        };
        if !address.is_remote() {
            return Err(Failure::new(
                USAGE,
                "replicas are files of servers: tcp://HOST:PORT/EXPORT:/PATH",
            ));
        }
        let name = format!("{}{}", prefix.to_string_lossy(), path.display());
        let (address, path) = (address.path().to_string_lossy().into_owned(), path.clone());
        let options = options.clone().timeout(TIMEOUT);
        sources.push(Source::new(name, move || opened(&address, &path, &options, makes)));
    }
    let wanted = ReplicatedOptions::default()
        .writable(options.writable)
        .acknowledge(acknowledge);
    let file = ReplicatedFile::open(sources, wanted)?;
    let states = file.status();
    let apart = states.iter().filter(|replica| replica.why.is_some());
    apart.for_each(|replica| {
        complain(format_args!(
            "ferrite: {}: {}",
            replica.name,
            replica.why.as_deref().unwrap_or("")
        ))
    });
    Ok(file)
}

/// Ends; returns the exit code for the writes: not 0 if a replica lacks something.
pub(crate) fn close(file: Arc<ReplicatedFile>) -> Result<u8, Failure> {
    let is_behind = file.status().iter().any(|replica| replica.standing == Standing::Behind);
    if let Some(file) = Arc::into_inner(file) {
        file.close()?;
    }
    Ok(if is_behind { COPY_BEHIND } else { 0 })
}

/// The state of a replica.
#[derive(Serialize)]
pub(crate) struct ReplicaReport {
    name: String,
    held: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

/// The outcome of all writes of a command.
#[derive(Default)]
pub(crate) struct Tally {
    worst: Vec<Held>,
}

impl Tally {
    /// Records a write; returns its offset, or an error if too few replicas hold it.
    pub(crate) fn note(&mut self, result: Result<Outcome, ReplicatedError>) -> Result<u64, Failure> {
        let (outcome, failure) = match result {
            Ok(outcome) => (outcome, None),
            Err(ReplicatedError::TooFew { outcome, needed }) => {
                let text = ReplicatedError::TooFew {
                    outcome: outcome.clone(),
                    needed,
                };
                (outcome, Some(Failure::new(FAILED, text.to_string())))
            }
            Err(error) => return Err(error.into()),
        };
        let offset = outcome.offset;
        match self.worst.is_empty() {
            true => self.worst = outcome.replicas,
            false => {
                let all = self.worst.iter_mut().zip(outcome.replicas);
                all.filter(|(worst, _)| **worst == Held::Yes)
                    .for_each(|(worst, held)| *worst = held);
            }
        }
        failure.map_or(Ok(offset), Err)
    }

    /// For the user: which replicas hold all of it.
    pub(crate) fn report(&self, file: &ReplicatedFile) -> Vec<ReplicaReport> {
        let names = file.status().into_iter().map(|replica| replica.name);
        let told = names.zip(&self.worst).map(|(name, held)| {
            let (held, why) = match held {
                Held::Yes => ("yes", None),
                Held::CatchingUp => ("catching up", None),
                Held::Unknown { why } => ("unknown", Some(why.clone())),
                Held::No { why } => ("no", Some(why.clone())),
            };
            ReplicaReport { name, held, why }
        });
        told.collect()
    }

    /// The exit code, if enough replicas hold the data.
    pub(crate) fn code(&self) -> u8 {
        match self.worst.iter().all(|held| *held == Held::Yes) {
            true => 0,
            false => COPY_BEHIND,
        }
    }

    /// Reports replicas that lack data on standard error.
    pub(crate) fn complain(&self, file: &ReplicatedFile) {
        for replica in self.report(file) {
            if let Some(why) = &replica.why {
                complain(format_args!(
                    "ferrite: {} does not hold it, or not all: {why}; `ferrite mr resync` brings it up to date",
                    replica.name
                ));
            }
        }
    }
}
