//! `ferrite dump-meta` and `ferrite restore-meta`: a copy of the metadata of a pool on devices, and its restoration.

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use ferrite::volume::Address;
use ferrite_nvme::Finding;

use super::control::Request;
use super::target::{Target, absolute, local_address};
use super::{FAILED, Failure, Outcome, nvme, say};

/// Copy the metadata of a pool on devices to a directory, also while it is mounted
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The copy is a snapshot of one moment, and does not stop the pool. It has names, attributes, and the content of small \
files; longer content stays on the data devices. `ferrite restore-meta` restores it.")]
pub(crate) struct DumpMeta {
    /// Pool, or a directory where one is mounted
    #[arg(value_parser = local_address(), value_hint = clap::ValueHint::AnyPath)]
    pool: Address,
    /// Directory for the copy; it must not exist, or be empty
    #[arg(value_hint = clap::ValueHint::DirPath)]
    directory: PathBuf,
}

/// Replace the metadata of a pool on devices by a copy
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The pool must not be mounted. Files return to their state at the time of the copy, except for content that was \
overwritten since. Content of files created since goes to lost+found; files removed since reappear without their \
content. If the metadata is in a directory, the old metadata is kept beside it.

Exit codes: 1 restored, and the pool is sound; 4 errors left; 8 could not restore.")]
pub(crate) struct RestoreMeta {
    /// Pool
    #[arg(value_parser = local_address(), value_hint = clap::ValueHint::AnyPath)]
    pool: Address,
    /// Directory with the copy
    #[arg(value_hint = clap::ValueHint::DirPath)]
    directory: PathBuf,
}

impl DumpMeta {
    pub(crate) fn run(self) -> Outcome {
        let target = Target::new(&self.pool);
        // The daemon has another working directory.
        let to = std::path::absolute(&self.directory).map_err(super::about(&self.directory))?;
        let pairs = match target.ask_without_timeout(&Request::DumpMeta(to.as_os_str().as_bytes().to_vec()))? {
            Some(pairs) => pairs,
            None => nvme::dump_metadata(&*target.inspect()?, &to)?,
        };
        say(format!("{}: {pairs} keys", self.directory.display()));
        Ok(0)
    }
}

impl RestoreMeta {
    pub(crate) fn run(self) -> Outcome {
        if self.pool.scheme() != "nvme" {
            return Err(nvme::only_nvme());
        }
        let checking = nvme::Checking {
            path: self.pool.path(),
            repair: true,
            preen: false,
            data: false,
            forget_staged: false,
            json: false,
        };
        let from = absolute(&self.directory)?;
        let restored = ferrite_nvme::restore_metadata(self.pool.path(), &from)
            .map_err(|error| Failure::new(super::fsck::CANNOT_CHECK, error.to_string()))?;
        let pairs = restored.pairs;
        if pairs == 0 {
            return Err(Failure::new(FAILED, "the copy is empty"));
        }
        checking.after(Finding::of_restored(pairs), &restored)
    }
}
