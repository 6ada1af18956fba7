//! `ferrite info`: the layout, state and activity of a pool, or where a file of a mount has its bytes.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ferrite::volume::{Address, DumpedPiece, VolumeInfo};

use super::control::Request;
use super::pages::show;
use super::target::{Target, address};
use super::{Failure, Outcome, mounts, say};

/// Show the layout, state and activity of a pool
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Queries the daemon of a mounted pool. Any other pool is read through a private copy: one that crashed is recovered in \
memory, and nothing is written. A pool in a database that a server owns is looked at from outside: the server is named, \
and space is not known.

Of a file of a mount it shows where its bytes are: on the medium, or in the bucket, in memory, in the log, on a disk of \
this machine.")]
pub(crate) struct Info {
    /// Pool, a directory where one is mounted, or a file of a mount
    #[arg(value_parser = address(), value_hint = clap::ValueHint::AnyPath)]
    pool: Address,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

/// Information about a pool, from its daemon or from the pool itself.
pub(crate) fn gather(address: &Address) -> Result<VolumeInfo, Failure> {
    let target = Target::new(address);
    if let Some(info) = target.ask(&Request::Info)? {
        return Ok(info);
    }
    #[cfg(feature = "nvme")]
    if address.scheme() == "nvme"
        && let Some(info) = super::nvme::look(target.pool())?
    {
        return Ok(info);
    }
    Ok(target.inspect()?.info()?)
}

/// The mount that a file is in, and the file's path in it.
fn in_mount(file: &Path) -> Option<(PathBuf, PathBuf)> {
    let file = fs::canonicalize(file).ok()?;
    let device = fs::metadata(&file).ok()?.dev();
    let is_of_it = |dir: &&Path| fs::metadata(dir).is_ok_and(|found| found.dev() == device);
    let root = file.ancestors().skip(1).take_while(is_of_it).last()?;
    mounts::on(root)?;
    let path = file.strip_prefix(root).ok()?;
    Some((root.to_owned(), path.to_owned()))
}

impl Info {
    pub(crate) fn run(self) -> Outcome {
        let info = match (gather(&self.pool), in_mount(self.pool.path())) {
            (Ok(info), _) => info,
            (Err(_), Some((root, path))) if self.pool.scheme() != "nvme" => return self.of_file(&root, &path),
            (Err(failure), _) => return Err(failure),
        };
        if self.json {
            say(info.json);
        } else {
            for line in info.lines {
                say(format!("{:<18}{}", line.name, line.value));
            }
        }
        Ok(0)
    }

    fn of_file(&self, root: &Path, path: &Path) -> Outcome {
        let target = Target::new(&self.pool.at(root));
        let pieces: Option<Vec<DumpedPiece>> = target.ask(&Request::Dump(path.as_os_str().as_bytes().to_vec()))?;
        let pieces = pieces.ok_or_else(|| super::target::not_mounted(root))?;
        show(&pieces, self.json);
        Ok(0)
    }
}
