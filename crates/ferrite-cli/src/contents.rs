//! Detection of existing data in a file or on a device, by signatures.
//!
//! Contents: [`find`], which `mkfs` calls before it overwrites something. A built-in table names the most common
//! contents; blkid(8), if installed, knows the rest, and looks at the end as well.
//!
//! Invariant: this module writes nothing, and reports nothing that has a signature as empty.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ferrite_pm::{Access, Region};
use rustix::fs::MemfdFlags;

use super::{FAILED, Failure, about};

/// The part of a device's ends that can have a signature known to blkid(8).
const FIRST_BYTES: u64 = 4 << 20;
const LAST_BYTES: u64 = 1 << 20;
/// Where the second superblock of a pool lies, counted from the end.
const SECOND_SUPERBLOCK: u64 = 4096;

/// The first bytes of both superblocks of a data store.
const STORE: (u64, &[u8], &str) = (0, b"FerrBlob", "a data store of a Ferrite pool");
/// Offset, bytes there, name. The first match counts: other file systems have the signature of a partition table, too.
const KNOWN: [(u64, &[u8], &str); 32] = [
    (0, b"FERRITE\x1a", "a Ferrite pool"),
    STORE,
    (0x438, b"\x53\xef", "an ext2, ext3 or ext4 file system"),
    (0, b"XFSB", "an XFS file system"),
    (0x10040, b"_BHRfS_M", "a btrfs file system"),
    (0, b"LUKS\xba\xbe", "LUKS encryption"),
    (0, b"LABELONE", "an LVM2 physical volume"),
    (512, b"LABELONE", "an LVM2 physical volume"),
    (1024, b"LABELONE", "an LVM2 physical volume"),
    (1536, b"LABELONE", "an LVM2 physical volume"),
    (4086, b"SWAPSPACE2", "swap space"),
    (4086, b"SWAP-SPACE", "swap space"),
    (4086, b"S1SUSPEND", "the image of a suspended system"),
    (0, b"\xfc\x4e\x2b\xa9", "a member of a Linux RAID"),
    (4096, b"\xfc\x4e\x2b\xa9", "a member of a Linux RAID"),
    (4120, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca", "a bcache device"),
    (4120, b"\xc6\x85\x73\xf6\x66\xce\x90\xa9", "a bcachefs file system"),
    (128 << 10, b"\x0c\xb1\xba\0\0\0\0\0", "a member of a ZFS pool"),
    (1024, b"\x10\x20\xf5\xf2", "an F2FS file system"),
    (1024, b"\xe2\xe1\xf5\xe0", "an EROFS file system"),
    (0, b"hsqs", "a squashfs file system"),
    (32769, b"CD001", "an ISO 9660 file system"),
    (3, b"NTFS    ", "an NTFS file system"),
    (3, b"EXFAT   ", "an exFAT file system"),
    (54, b"FAT1", "a FAT file system"),
    (82, b"FAT32", "a FAT file system"),
    (512, b"EFI PART", "a GPT partition table"),
    (4096, b"EFI PART", "a GPT partition table"),
    (0, b"QFI\xfb", "a QEMU disk image"),
    (0, b"SQLite format 3", "an SQLite database"),
    (0, b"ferrite-trace ", "a trace of writes"),
    (510, b"\x55\xaa", "a partition table"),
];

/// A source of bytes.
enum Source {
    /// A file or a block device.
    File(File),
    /// Device DAX, which can be read only through a mapping.
    Mapped(Box<Region>),
}

impl Source {
    fn open(path: &Path) -> Result<Source, Failure> {
        let kind = std::fs::metadata(path).map_err(about(path))?.file_type();
        Ok(match kind.is_char_device() {
            true => Source::Mapped(Box::new(Region::open(path, Access::ReadOnlyPrivate)?)),
            false => Source::File(File::open(path).map_err(about(path))?),
        })
    }

    /// Its length; 0 if unknown.
    fn len_bytes(&self) -> u64 {
        match self {
            Source::Mapped(region) => region.len(),
            // The length of a block device is the offset of its end.
            Source::File(file) => rustix::fs::seek(file, rustix::fs::SeekFrom::End(0)).unwrap_or(0),
        }
    }

    fn has(&self, offset: u64, magic: &[u8]) -> bool {
        let mut found = vec![0; magic.len()];
        match self {
            Source::File(file) => file.read_exact_at(&mut found, offset).is_ok() && found == magic,
            Source::Mapped(region) => {
                let is_inside = region.len() >= offset + magic.len() as u64;
                if is_inside {
                    region.read(offset, &mut found);
                }
                is_inside && found == magic
            }
        }
    }
}

/// The kind of data that the signatures show: "an XFS file system". `None` for an empty file. Blocking: it may start
/// blkid(8).
pub(crate) fn find(path: &Path) -> Result<Option<String>, Failure> {
    let source = Source::open(path)?;
    if let Some(known) = find_known(&source) {
        return Ok(Some(known.into()));
    }
    Ok(match &source {
        Source::File(file) => blkid(&through_proc(file)),
        Source::Mapped(region) => ends_of(region).ok().and_then(|copy| blkid(&through_proc(&copy))),
    })
}

/// Whether it holds a data store of a pool on devices, even with only one of its two superblocks.
#[cfg(feature = "nvme")]
pub(crate) fn is_data_store(path: &Path) -> bool {
    let Ok(source) = Source::open(path) else {
        return false;
    };
    let second = (source.len_bytes() / SECOND_SUPERBLOCK).saturating_sub(1) * SECOND_SUPERBLOCK;
    [0, second].into_iter().any(|offset| source.has(offset, STORE.1))
}

/// Refuses a path that holds something, with or without a signature.
pub(crate) fn refuse_to_overwrite(pool: &Path) -> Result<(), Failure> {
    let Ok(metadata) = std::fs::metadata(pool) else {
        return Ok(());
    };
    let what = match find(pool)? {
        Some(what) => format!("already holds {what}"),
        None if metadata.is_file() && !ferrite_pm::blank::holds_nothing(&File::open(pool).map_err(about(pool))?) => {
            "is not empty".into()
        }
        None => return Ok(()),
    };
    Err(Failure::new(
        FAILED,
        format!("{}: {what}; give --force to overwrite it", pool.display()),
    ))
}

fn find_known(source: &Source) -> Option<&'static str> {
    let known = KNOWN.into_iter().find(|(offset, magic, _)| source.has(*offset, magic));
    let len_bytes = source.len_bytes() / SECOND_SUPERBLOCK * SECOND_SUPERBLOCK;
    let second = len_bytes.checked_sub(SECOND_SUPERBLOCK);
    match known {
        Some((_, _, name)) => Some(name),
        None if second.is_some_and(|offset| source.has(offset, KNOWN[0].1)) => Some("a damaged Ferrite pool"),
        None => None,
    }
}

/// A file with a device's length and the same ends, for programs that cannot read a device.
fn ends_of(region: &Region) -> std::io::Result<File> {
    let copy = File::from(rustix::fs::memfd_create("device", MemfdFlags::CLOEXEC)?);
    copy.set_len(region.len())?;
    let first = FIRST_BYTES.min(region.len());
    let last = LAST_BYTES.min(region.len() - first);
    let mut buffer = vec![0; first as usize];
    region.read(0, &mut buffer);
    (&copy).write_all(&buffer)?;
    buffer.truncate(last as usize);
    region.read(region.len() - last, &mut buffer);
    copy.write_all_at(&buffer, region.len() - last)?;
    Ok(copy)
}

/// A path under which other programs can open an open file.
fn through_proc(file: &File) -> PathBuf {
    format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()).into()
}

/// The report of blkid(8) about a file; `None` also if it is not installed.
fn blkid(path: &Path) -> Option<String> {
    // Users other than root may not have it in their path.
    let output = ["blkid", "/usr/sbin/blkid", "/sbin/blkid"].iter().find_map(|program| {
        let mut command = Command::new(program);
        command.args(["-p", "-o", "export"]).arg(path).stdin(Stdio::null());
        command.output().ok()
    })?;
    parse(output.status.code(), &String::from_utf8_lossy(&output.stdout))
}

fn parse(code: Option<i32>, output: &str) -> Option<String> {
    /// Signatures contradict each other.
    const AMBIVALENT: i32 = 8;
    let value = |key: &str| {
        output
            .lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
    };
    match (value("TYPE"), value("PTTYPE")) {
        (Some(kind), _) => Some(format!("content of type {kind}, according to blkid")),
        (None, Some(table)) => Some(format!("a partition table of type {table}, according to blkid")),
        (None, None) if code == Some(AMBIVALENT) => Some("several signatures, according to blkid".into()),
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_blkid_says_is_understood() {
        let disk = "DEVNAME=/dev/x\nUUID=1-2\nVERSION=1.0\nTYPE=ocfs2\nUSAGE=filesystem\n";
        assert!(parse(Some(0), disk).unwrap().contains("type ocfs2"));
        assert!(
            parse(Some(0), "DEVNAME=/dev/x\nPTTYPE=sun\n")
                .unwrap()
                .contains("type sun")
        );
        assert!(parse(Some(8), "").unwrap().contains("several"));
        assert_eq!(parse(Some(2), ""), None);
        // A subtype alone is not a type.
        assert_eq!(parse(Some(0), "SEC_TYPE=ext2\nBLOCK_SIZE=512\n"), None);
    }

    #[test]
    fn every_signature_is_found_where_it_lies() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        for (offset, magic, name) in KNOWN {
            let file = File::create(&path).unwrap();
            file.set_len(1 << 20).unwrap();
            file.write_all_at(magic, offset).unwrap();
            assert_eq!(find(&path).unwrap().as_deref(), Some(name));
        }
        let file = File::create(&path).unwrap();
        file.set_len((1 << 20) + 100).unwrap();
        assert_eq!(find(&path).unwrap(), None);
        file.write_all_at(KNOWN[0].1, (1 << 20) - SECOND_SUPERBLOCK).unwrap();
        assert_eq!(find(&path).unwrap().as_deref(), Some("a damaged Ferrite pool"));
    }
}
