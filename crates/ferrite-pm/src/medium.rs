//! The medium of a pool, which decides the meaning of *durable* (docs/design.md, "Media").

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use crate::error::PmError;

const TMPFS_MAGIC: u64 = 0x0102_1994;
const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;
const HUGE_PAGE_BYTES: u64 = 2 << 20;

/// The kind of a region's medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Medium {
    /// Device DAX, or a file on fs-DAX: durable after write-back and fence.
    Dax,
    /// Named DRAM (tmpfs, hugetlbfs): a store is as durable as the medium allows at once.
    NamedDram,
    /// Anonymous memory: gone with the process.
    Anonymous,
    /// An ordinary file: durable after a sync.
    File,
}

impl Medium {
    /// In a few words, for people.
    pub fn describe(self) -> &'static str {
        match self {
            Medium::Dax => "persistent memory (DAX)",
            Medium::NamedDram => "named DRAM (tmpfs or hugetlbfs)",
            Medium::Anonymous => "anonymous memory",
            Medium::File => "ordinary file",
        }
    }

    /// The failures that a completed operation survives on this medium.
    pub fn survives(self) -> &'static str {
        match self {
            Medium::Dax | Medium::File => "a killed process and a power loss",
            Medium::NamedDram => "a killed process, but not a power loss",
            Medium::Anonymous => "nothing: the content is lost with the process",
        }
    }
}

/// The medium found at a path.
pub(crate) struct Detected {
    pub(crate) medium: Medium,
    /// How much of it can be mapped.
    pub(crate) len_bytes: u64,
    /// Page size of a mapping.
    pub(crate) page_bytes: u64,
    /// Device DAX: a mapping is shared, begins at a multiple of its page size both in memory and on the device, and
    /// consists of whole pages.
    pub(crate) is_device: bool,
}

/// Examines an open file or device. Whether a file is on fs-DAX shows only when it is mapped.
pub(crate) fn detect(path: &Path, file: &File) -> Result<Detected, PmError> {
    let metadata = file.metadata().map_err(|error| PmError::io("examine", path, error))?;
    let kind = metadata.file_type();
    let unsuitable = |why: &str| PmError::Unsuitable {
        path: path.to_path_buf(),
        why: why.into(),
    };
    if kind.is_char_device() {
        let none = || unsuitable("a character device, but not a device DAX; give a /dev/dax device or a file");
        let size_bytes = dax_device(metadata.rdev(), "size").ok_or_else(none)?;
        // Kernels before 5.10 do not report it, and have no device with another one unless an administrator chose so.
        let page_bytes = dax_device(metadata.rdev(), "align")
            .filter(|align| align.is_power_of_two())
            .unwrap_or(HUGE_PAGE_BYTES);
        let len_bytes = size_bytes / page_bytes * page_bytes;
        if len_bytes == 0 {
            return Err(unsuitable("a DAX device without space; `daxctl list` shows why"));
        }
        return Ok(Detected {
            medium: Medium::Dax,
            len_bytes,
            page_bytes,
            is_device: true,
        });
    }
    if kind.is_block_device() {
        return Err(unsuitable(if is_pmem(metadata.rdev()) {
            "persistent memory as a block device, which cannot be mapped durably; make a file system on it, mount \
             that with \
             `-o dax=always` and make the pool in a file there, or turn it into device DAX (`ndctl create-namespace \
             --mode devdax`)"
        } else {
            "a block device, which cannot be mapped durably; make a file system on it and the pool in a file there"
        }));
    }
    if !kind.is_file() {
        let is = match () {
            () if kind.is_dir() => "a directory",
            () if kind.is_fifo() => "a named pipe",
            () => "neither a file nor a DAX device",
        };
        return Err(unsuitable(&format!("{is}; give a file or a DAX device")));
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
        is_device: false,
    })
}

/// A number that the kernel reports for a DAX device.
fn dax_device(rdev: u64, attribute: &str) -> Option<u64> {
    let (major, minor) = (rustix::fs::major(rdev), rustix::fs::minor(rdev));
    let text = std::fs::read_to_string(format!("/sys/dev/char/{major}:{minor}/{attribute}")).ok()?;
    text.trim().parse().ok()
}

/// Whether a block device is persistent memory, or a partition of it.
fn is_pmem(rdev: u64) -> bool {
    let (major, minor) = (rustix::fs::major(rdev), rustix::fs::minor(rdev));
    let device = std::fs::read_link(format!("/sys/dev/block/{major}:{minor}")).unwrap_or_default();
    let name = device.file_name().unwrap_or_default();
    name.as_encoded_bytes().starts_with(b"pmem")
}

/// Whether a file created at `path` would lie among the devices. A user who names a missing device does not want a file
/// in its place, in DRAM and gone with the next boot. The file system does not show it: it is a tmpfs, or claims to be.
pub(crate) fn is_among_devices(path: &Path) -> bool {
    let devices = Path::new("/dev");
    let parent = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    let Ok(dir) = std::fs::canonicalize(parent.unwrap_or(Path::new("."))) else {
        return false;
    };
    // A root directory without mounts may have it as an ordinary directory.
    if !dir.starts_with(devices) || dir.starts_with("/dev/shm") {
        return false;
    }
    let of = |path: &Path| std::fs::metadata(path).map(|found| found.dev());
    matches!((of(&dir), of(devices)), (Ok(dir), Ok(devices)) if dir == devices)
}
