//! `ferrite resize`: make a pool larger, and take devices out of one.

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use ferrite::volume::Address;
use ferrite_fs::EngineError;
use ferrite_pm::{Access, Region};

use super::progress::Bar;
use super::target::local_address;
use super::{Failure, Outcome, USAGE, about, say, size};

/// Make a pool larger, or take a device out of it, while it is not mounted
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Files stay where they are; the pool gets space for more data, inodes and names. The space must be there: a file is \
extended first. If the command is interrupted at any moment, the pool is as it was, or larger; repeat the command then. \
A pool cannot become smaller: copy its files to a new one.

The larger tables are built in the new space, so a pool must grow by a twentieth or so at least. A pool of at most 256 \
GiB can grow to that size, or to 2 TiB if it was made with `mkfs --log-unit 64`.

A pool on devices gets another with `ferrite mkfs nvme:POOL.toml --add DEVICE`. --remove moves all content of a device \
to the others, which must have space for it, and then the pool's file names it no more. With --with, another device is \
added first. If that is interrupted, the pool is whole, and the command can be repeated.

Examples:
  ferrite resize /dev/shm/pool --size 8G
  ferrite resize /dev/dax0.0                # after the device was made larger
  ferrite resize nvme:pool.toml --remove /dev/nvme1n1
  ferrite resize nvme:pool.toml --remove /dev/nvme1n1 --with /dev/nvme4n1")]
pub(crate) struct Resize {
    /// Pool, not mounted
    #[arg(value_parser = local_address(), value_hint = clap::ValueHint::AnyPath)]
    pool: Address,
    /// New size, for example 8G; by default all of the file or device that holds the pool
    #[arg(short, long, value_parser = size::parse)]
    size: Option<u64>,
    /// Of a pool on devices: the device to take out of it
    #[arg(long, value_name = "DEVICE", value_hint = clap::ValueHint::AnyPath)]
    remove: Option<PathBuf>,
    /// With --remove: a device to add first, or a file, which --size makes if it does not exist
    #[arg(long, value_name = "DEVICE", value_hint = clap::ValueHint::AnyPath, requires = "remove")]
    with: Option<PathBuf>,
    /// Show no progress bar
    #[arg(short, long)]
    quiet: bool,
}

impl Resize {
    pub(crate) fn run(self) -> Outcome {
        #[cfg(feature = "nvme")]
        if let ("nvme", Some(device)) = (self.pool.scheme(), &self.remove) {
            let removing = super::nvme::Removing {
                path: self.pool.path(),
                device,
                with: self.with.as_deref(),
                size_bytes: self.size,
                quiet: self.quiet,
            };
            return removing.run();
        }
        if self.remove.is_some() {
            let text = format!("{}: --remove is for pools on devices (nvme:POOL.toml)", self.pool);
            return Err(Failure::new(USAGE, text));
        }
        if self.pool.scheme() != "pm" {
            return Err(Failure::new(
                USAGE,
                format!(
                    "{}: resize is for pools in a file or on a DAX device; a pool on devices gets more space with \
                     `ferrite mkfs {} --add DEVICE`",
                    self.pool, self.pool
                ),
            ));
        }
        let pool = self.pool.path();
        let has_bytes = {
            let region = Region::open(pool, Access::ReadOnlyPrivate)?;
            ferrite_fs::identify(&region).map_err(about(pool))?.size_bytes
        };
        let size_bytes = match self.size {
            Some(size_bytes) => size_bytes,
            None => length(pool)?,
        };
        let bar = Bar::new(self.quiet);
        let grown = ferrite_fs::grow(pool, size_bytes, &mut |phase, done, total| {
            bar.show(phase, done, total);
        });
        drop(bar);
        let grown = grown.map_err(|error| match &error {
            EngineError::Options(_) => Failure::new(USAGE, error.to_string()).of(pool),
            EngineError::Medium(_) => error.into(),
            _ => about(pool)(error),
        })?;
        say(format!(
            "{}: {}, was {}; {} inodes, {} names",
            pool.display(),
            size::human(grown.size_bytes),
            size::human(has_bytes),
            grown.inodes - 1,
            grown.name_slots
        ));
        Ok(0)
    }
}

/// Length of the file or device that holds a pool.
fn length(pool: &Path) -> Result<u64, Failure> {
    let metadata = std::fs::metadata(pool).map_err(about(pool))?;
    match metadata.file_type().is_char_device() {
        true => Ok(Region::open(pool, Access::ReadOnlyPrivate)?.len()),
        false => Ok(metadata.len()),
    }
}
