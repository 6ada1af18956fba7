//! What a pool lies on, which decides what *durable* means (docs/design.md, "Media").

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use crate::error::PmError;

const TMPFS_MAGIC: u64 = 0x0102_1994;
const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;
const HUGE_PAGE_BYTES: u64 = 2 << 20;

/// What a region is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Medium {
    /// Device DAX, or a file on fs-DAX: durable after write-back and fence.
    Dax,
    /// DRAM with a name (tmpfs, hugetlbfs): the store itself is as durable as it gets.
    NamedDram,
    /// Memory without a name: gone with the process.
    Anonymous,
    /// An ordinary file: durable after a sync.
    File,
}

impl Medium {
    /// In a few words, for people.
    pub fn describe(self) -> &'static str {
        match self {
            Medium::Dax => "persistent memory (DAX)",
            Medium::NamedDram => "DRAM with a name (tmpfs or hugetlbfs)",
            Medium::Anonymous => "anonymous memory",
            Medium::File => "ordinary file",
        }
    }

    /// What an operation that returned survives there.
    pub fn survives(self) -> &'static str {
        match self {
            Medium::Dax | Medium::File => "a killed process and a power loss",
            Medium::NamedDram => "a killed process, but no power loss",
            Medium::Anonymous => "nothing: the content goes with the process",
        }
    }
}

/// What was found at a path: medium, usable length, page size of a mapping.
pub(crate) struct Detected {
    pub(crate) medium: Medium,
    pub(crate) len_bytes: u64,
    pub(crate) page_bytes: u64,
}

/// Looks at an open file or device. Whether a file is on fs-DAX shows only when it is mapped.
pub(crate) fn detect(path: &Path, file: &File) -> Result<Detected, PmError> {
    let metadata = file.metadata().map_err(|error| PmError::io("examine", path, error))?;
    let kind = metadata.file_type();
    if kind.is_char_device() {
        let len_bytes = dax_device_bytes(metadata.rdev()).ok_or_else(|| PmError::Unsuitable {
            path: path.to_path_buf(),
            why: "a character device, but no device DAX; give a /dev/dax device or a file".into(),
        })?;
        return Ok(Detected {
            medium: Medium::Dax,
            len_bytes,
            page_bytes: HUGE_PAGE_BYTES,
        });
    }
    if kind.is_block_device() {
        let why = "a block device cannot be mapped durably; make a file system on it and a pool file there".into();
        return Err(PmError::Unsuitable {
            path: path.to_path_buf(),
            why,
        });
    }
    if !kind.is_file() {
        let is = match () {
            () if kind.is_dir() => "a directory",
            () if kind.is_fifo() => "a named pipe",
            () => "neither a file nor a DAX device",
        };
        let why = format!("{is}; give a file or a DAX device");
        return Err(PmError::Unsuitable {
            path: path.to_path_buf(),
            why,
        });
    }
    let fs = rustix::fs::fstatfs(file.as_fd()).map_err(|error| PmError::io("examine", path, error))?;
    let (medium, page_bytes) = match fs.f_type as u64 & 0xffff_ffff {
        TMPFS_MAGIC => (Medium::NamedDram, 4096),
        HUGETLBFS_MAGIC => (Medium::NamedDram, fs.f_bsize as u64),
        _ => (Medium::File, 4096),
    };
    Ok(Detected {
        medium,
        len_bytes: metadata.len(),
        page_bytes,
    })
}

fn dax_device_bytes(rdev: u64) -> Option<u64> {
    let (major, minor) = (rustix::fs::major(rdev), rustix::fs::minor(rdev));
    let text = std::fs::read_to_string(format!("/sys/dev/char/{major}:{minor}/size")).ok()?;
    text.trim().parse().ok()
}
