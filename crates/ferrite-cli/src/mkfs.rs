//! `ferrite mkfs`: make a pool, and never destroy something by accident.

use std::fs::File;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};

use clap::builder::{PossibleValuesParser, TypedValueParser};
use ferrite_fs::{EngineError, Mapping, MkfsOptions};
use ferrite_pm::Region;

use super::{FAILED, Failure, Outcome, USAGE, about, say, size};

/// Make a pool: an empty file system in a file or on a DAX device
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The space is allocated at once, so a full disk shows here and not later. On tmpfs a pool survives a killed process, on a
disk file or DAX a power loss as well; `ferrite info` says which.

Examples:
  ferrite mkfs /dev/shm/pool --size 1G
  ferrite mkfs /var/lib/data.pool --size 64G --inodes 1000000
  ferrite mkfs /mnt/dax/archive --size 200G --data-checksum
  ferrite mkfs /dev/dax0.0")]
pub(crate) struct Mkfs {
    /// File to make, or DAX device
    pool: PathBuf,
    /// Size of the pool, for example 512M or 1G; a device or an existing file has its own
    #[arg(short, long, value_parser = size::parse)]
    size: Option<u64>,
    /// How pages are found; docs/mappings.md says which is good at what
    #[arg(long, default_value_t = Mapping::default(), value_parser = mapping_parser())]
    mapping: Mapping,
    /// Number of inodes [default: one for every 16 KiB]
    #[arg(short = 'N', long)]
    inodes: Option<u64>,
    /// Number of names [default: two an inode]
    #[arg(long)]
    names: Option<u64>,
    /// Block size in bytes
    #[arg(short, long, default_value_t = 4096)]
    block_size: u32,
    /// Journal rings, one for each thread that should never wait for another [default: 16, fewer on small pools]
    #[arg(long)]
    rings: Option<u32>,
    /// Give file data checksums, which every read verifies: damage is an error then, never wrong data
    #[arg(long)]
    data_checksum: bool,
    /// Overwrite whatever is there
    #[arg(short, long)]
    force: bool,
}

/// Takes the names of all structures.
pub(crate) fn mapping_parser() -> impl TypedValueParser<Value = Mapping> {
    PossibleValuesParser::new(Mapping::ALL.iter().map(|mapping| mapping.name()))
        .map(|name| Mapping::from_name(&name).unwrap_or_default())
}

impl Mkfs {
    pub(crate) fn run(self) -> Outcome {
        let size_bytes = self.size()?;
        if !self.force {
            refuse_to_overwrite(&self.pool)?;
        }
        let options = MkfsOptions {
            mapping: self.mapping,
            inodes: self.inodes,
            names: self.names,
            rings: self.rings,
            block_bytes: Some(self.block_size),
            data_checksum: self.data_checksum,
            root_owner: (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()),
            ..MkfsOptions::default()
        };
        let made = ferrite_fs::create(&self.pool, size_bytes, &options);
        let region = made.map_err(|error| match &error {
            EngineError::Options(_) => Failure::new(USAGE, error.to_string()).of(&self.pool),
            EngineError::Medium(_) => error.into(),
            _ => about(&self.pool)(error),
        })?;
        let medium = region.medium();
        say(format!(
            "{}: {} pool{} on {}",
            self.pool.display(),
            size::human(size_bytes),
            if self.data_checksum { " with data checksums" } else { "" },
            medium.describe()
        ));
        Ok(0)
    }

    fn size(&self) -> Result<u64, Failure> {
        let metadata = std::fs::metadata(&self.pool).ok();
        let is_device = metadata.as_ref().is_some_and(|m| m.file_type().is_char_device());
        match (self.size, metadata) {
            (Some(size), _) => Ok(size),
            (None, Some(_)) if is_device => Ok(Region::open(&self.pool, ferrite_pm::Access::ReadWrite)?.len()),
            (None, Some(metadata)) if metadata.is_file() && metadata.len() > 0 => Ok(metadata.len()),
            _ => Err(Failure::new(
                USAGE,
                "how large is the pool to be? Give --size, for example --size 1G",
            )),
        }
    }
}

/// What known signatures say is in a file or on a device.
fn signature(file: &File) -> Option<&'static str> {
    const KNOWN: [(u64, &[u8], &str); 9] = [
        (0, b"FERRITE\x1a", "a Ferrite pool"),
        (0x438, b"\x53\xef", "an ext2, ext3 or ext4 file system"),
        (0, b"XFSB", "an XFS file system"),
        (0x10040, b"_BHRfS_M", "a btrfs file system"),
        (0, b"hsqs", "a squashfs file system"),
        (4086, b"SWAPSPACE2", "swap space"),
        (512, b"EFI PART", "a GPT partition table"),
        (510, b"\x55\xaa", "a partition table"),
        (0, b"SQLite format 3", "an SQLite database"),
    ];
    KNOWN.into_iter().find_map(|(offset, magic, name)| {
        let mut found = vec![0; magic.len()];
        file.read_exact_at(&mut found, offset).ok()?;
        (found == magic).then_some(name)
    })
}

fn refuse_to_overwrite(pool: &Path) -> Result<(), Failure> {
    let Ok(metadata) = std::fs::metadata(pool) else {
        return Ok(());
    };
    if metadata.is_dir() {
        return Err(Failure::new(
            FAILED,
            format!("{}: is a directory; name a file in it", pool.display()),
        ));
    }
    if metadata.file_type().is_fifo() {
        // To open it would be to wait for a writer.
        return Err(Failure::new(
            FAILED,
            format!("{}: is a named pipe; name a file or a DAX device", pool.display()),
        ));
    }
    let file = File::open(pool).map_err(about(pool))?;
    let what = match signature(&file) {
        Some(what) => format!("already holds {what}"),
        None if metadata.is_file() && !ferrite_pm::blank::holds_nothing(&file) => "is not empty".to_string(),
        None => return Ok(()),
    };
    Err(Failure::new(
        FAILED,
        format!("{}: {what}; give --force to overwrite it", pool.display()),
    ))
}
