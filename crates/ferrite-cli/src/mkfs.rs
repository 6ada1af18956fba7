//! `ferrite mkfs`: make a pool, and never destroy anything by accident.

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use clap::builder::{PossibleValuesParser, TypedValueParser};
use ferrite::volume::Address;
use ferrite_fs::{EngineError, Mapping, MkfsOptions};
use ferrite_pm::{Medium, Region};

use super::progress::Bar;
use super::target::local_address;
use super::{FAILED, Failure, Outcome, USAGE, about, contents, say, size, users};

/// Make a pool: an empty file system in a file or on a DAX device
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The space is allocated at once, so a full disk shows up here and not later. A pool on tmpfs survives a killed process; a \
pool on a disk file or DAX survives a power loss as well. `ferrite info` shows which. A block device (such as \
/dev/pmem0) is refused: make a file system on it, and the pool in a file there.

Examples:
  ferrite mkfs /dev/shm/pool --size 1G
  ferrite mkfs /var/lib/data.pool --size 64G --inodes 1000000
  ferrite mkfs /mnt/dax/archive --size 200G --data-checksum
  ferrite mkfs /dev/dax0.0
  ferrite mkfs nvme:fast.toml --meta fast.meta --data /dev/nvme0n1")]
pub(crate) struct Mkfs {
    /// File to create, or DAX device; nvme:POOL.toml is a file that names devices
    #[arg(value_parser = local_address(), value_hint = clap::ValueHint::AnyPath)]
    pool: Address,
    /// Size of the pool, for example 512M or 1G; not needed for an existing file or a device, which are used entirely
    #[arg(short, long, value_parser = size::parse)]
    size: Option<u64>,
    /// Structure that finds pages; docs/mappings.md compares them
    #[arg(long, default_value_t = Mapping::default(), value_parser = mapping_parser())]
    mapping: Mapping,
    /// Number of inodes [default: one for every 16 KiB, from 1 TiB on for every 64 KiB]
    #[arg(short = 'N', long)]
    inodes: Option<u64>,
    /// Number of names [default: two per inode]
    #[arg(long)]
    names: Option<u64>,
    /// Block size in bytes
    #[arg(short, long, default_value_t = 4096)]
    block_size: u32,
    /// Journal rings, one for each thread that should never wait for another [default: 16, fewer on small pools]
    #[arg(long)]
    rings: Option<u32>,
    /// Add checksums to file data, which every read verifies: damage is then an error, never wrong data
    #[arg(long)]
    data_checksum: bool,
    /// Write zeros to all space: durable writes to a disk file are faster from the beginning, mkfs takes longer
    #[arg(long)]
    write_zeros: bool,
    /// Allocate no space: the file gets it where it is written to, and the pool fails when its file system is full
    #[arg(long, conflicts_with = "write_zeros")]
    sparse: bool,
    /// Unit of the logs of small writes, in bytes [default: 64 up to 2 TiB, then 256 up to 4 TiB, 1024 up to 8 TiB;
    /// above that there are no logs]
    #[arg(long, value_name = "BYTES")]
    log_unit: Option<u32>,
    /// Pages for each block that the mapping has entries for, up to 64: clones need entries, but no blocks. No effect
    /// on radix and extent, whose entries take blocks [default: 1]
    #[arg(long, value_name = "COUNT")]
    pages_per_block: Option<u32>,
    /// Of a pool nvme:POOL.toml: directory for its metadata; the file is written, with this and the data devices
    #[arg(long, value_name = "DIRECTORY", value_hint = clap::ValueHint::DirPath, requires = "data")]
    meta: Option<PathBuf>,
    /// Of a pool nvme:POOL.toml: a data device, or a file, which --size makes if it does not exist; repeat for more
    #[arg(long, value_name = "DEVICE", value_hint = clap::ValueHint::AnyPath, requires = "meta")]
    data: Vec<PathBuf>,
    /// Add a data device to the pool nvme:POOL.toml, which must not be mounted
    #[arg(long, value_name = "DEVICE", value_hint = clap::ValueHint::AnyPath, conflicts_with_all = ["meta", "data"])]
    add: Option<PathBuf>,
    /// Overwrite existing content, unless it is in use
    #[arg(short, long)]
    force: bool,
    /// Show no progress bar
    #[arg(short, long)]
    quiet: bool,
}

/// Accepts the names of all structures.
pub(crate) fn mapping_parser() -> impl TypedValueParser<Value = Mapping> {
    PossibleValuesParser::new(Mapping::ALL.iter().map(|mapping| mapping.name()))
        .map(|name| Mapping::from_name(&name).unwrap_or_default())
}

impl Mkfs {
    pub(crate) fn run(self) -> Outcome {
        #[cfg(feature = "nvme")]
        if self.pool.scheme() == "nvme" {
            self.refuse_what_devices_have_not()?;
            let making = super::nvme::Making {
                path: self.pool.path(),
                metadata: self.meta.as_deref(),
                data: &self.data,
                adds: self.add.as_deref(),
                size_bytes: self.size,
                data_checksum: self.data_checksum,
                force: self.force,
            };
            return making.run();
        }
        if self.meta.is_some() || self.add.is_some() {
            return Err(Failure::new(
                USAGE,
                format!(
                    "--meta, --data and --add are for pools on devices; name this one nvme:{}",
                    self.pool.path().display()
                ),
            ));
        }
        let pool = self.pool.path().to_path_buf();
        refuse_the_unsuitable(&pool)?;
        let size_bytes = self.size()?;
        if !self.force {
            contents::refuse_to_overwrite(&pool)?;
        }
        let options = MkfsOptions::default()
            .mapping(self.mapping)
            .inodes(self.inodes)
            .names(self.names)
            .rings(self.rings)
            .block_bytes(self.block_size)
            .data_checksum(self.data_checksum)
            .write_zeros(self.write_zeros)
            .sparse(self.sparse)
            .log_unit_bytes(self.log_unit)
            .pages_per_block(self.pages_per_block)
            .root_owner(rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let bar = Bar::new(self.quiet);
        let made = ferrite_fs::create_telling(&pool, size_bytes, &options, &mut |phase, done, total| {
            bar.show(phase, done, total);
        });
        drop(bar);
        let region = made.map_err(|error| match &error {
            EngineError::Options(_) => Failure::new(USAGE, error.to_string()).of(&pool),
            EngineError::Medium(_) => error.into(),
            _ => about(&pool)(error),
        })?;
        let medium = region.medium();
        // The bytes beyond the last whole block are not part of the pool.
        let superblock = ferrite_fs::identify(&region).map_err(about(&pool))?;
        say(format!(
            "{}: {} pool{} on {}",
            pool.display(),
            size::human(superblock.size_bytes),
            if self.data_checksum { " with data checksums" } else { "" },
            medium.describe()
        ));
        if medium == Medium::File {
            say("each operation will wait for the disk; mounted with -o durability=fsync, only fsync does");
        }
        Ok(0)
    }

    /// Refuses options that would have no effect.
    #[cfg(feature = "nvme")]
    fn refuse_what_devices_have_not(&self) -> Result<(), Failure> {
        let given = [
            ("--mapping", self.mapping != Mapping::default()),
            ("--inodes", self.inodes.is_some()),
            ("--names", self.names.is_some()),
            ("--rings", self.rings.is_some()),
            ("--block-size", self.block_size != 4096),
            ("--write-zeros", self.write_zeros),
            ("--sparse", self.sparse),
            ("--log-unit", self.log_unit.is_some()),
            ("--pages-per-block", self.pages_per_block.is_some()),
        ];
        match given.iter().find(|(_, is_given)| *is_given) {
            None => Ok(()),
            Some((option, _)) => Err(Failure::new(
                USAGE,
                format!("{option} is for pools in a file or on a DAX device; omit it for nvme:POOL.toml"),
            )),
        }
    }

    fn size(&self) -> Result<u64, Failure> {
        let metadata = std::fs::metadata(self.pool.path()).ok();
        let is_device = metadata.as_ref().is_some_and(|m| m.file_type().is_char_device());
        if is_device {
            let has = Region::open(self.pool.path(), ferrite_pm::Access::ReadOnlyPrivate)?.len();
            return match self.size {
                Some(size) if size != has => Err(Failure::new(
                    USAGE,
                    format!(
                        "{}: a device of {} ({has} bytes), all of which a pool uses; omit --size",
                        self.pool.path().display(),
                        size::human(has)
                    ),
                )),
                _ => Ok(has),
            };
        }
        match (self.size, metadata) {
            (Some(size), _) => Ok(size),
            (None, Some(metadata)) if metadata.is_file() && metadata.len() > 0 => Ok(metadata.len()),
            _ => Err(Failure::new(USAGE, "no size given; use --size, for example --size 1G")),
        }
    }
}

/// Refuses a path that cannot hold a pool, or is in use; `--force` overrides neither. Writes nothing.
fn refuse_the_unsuitable(pool: &Path) -> Result<(), Failure> {
    let Ok(metadata) = std::fs::metadata(pool) else {
        return Ok(());
    };
    let refuse = |why: String| Err(Failure::new(FAILED, format!("{}: {why}", pool.display())));
    let kind = metadata.file_type();
    if kind.is_dir() {
        return refuse("is a directory; name a file in it".into());
    }
    if kind.is_fifo() {
        // Opening it would wait for a writer.
        return refuse("is a named pipe; name a file or a DAX device".into());
    }
    let used = users::find(pool);
    if kind.is_block_device() {
        let error = Region::open(pool, ferrite_pm::Access::ReadOnlyPrivate).err();
        let why = error.map_or("a block device".into(), |error| error.to_string());
        let held = contents::find(pool).ok().flatten();
        let state = match (held, used) {
            (Some(held), Some(used)) => format!("; it holds {held} and is {used}"),
            (Some(held), None) => format!("; it holds {held}"),
            (None, Some(used)) => format!("; it is {used}"),
            (None, None) => String::new(),
        };
        return Err(Failure::new(FAILED, format!("{why}{state}. Nothing was changed")));
    }
    match used {
        Some(used) => refuse(format!("is {used}; stop using it first")),
        None => Ok(()),
    }
}
