//! NVMe namespaces by their character devices (`/dev/ng0n1`): commands of the device itself, past the block layer.
//!
//! Contents: the queries at opening, and the device's commands as io_uring takes them.
//!
//! Invariant: while it is open, the block device of the same namespace is held exclusively, so that no process mounts
//! it or writes what commands write past it.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use io_uring::{opcode, squeue, types};
use rustix::fs::OFlags;
use zerocopy::{Immutable, IntoBytes};

/// `_IO('N', 0x40)`: the number of the namespace.
const IOCTL_ID: libc::c_ulong = 0x4e40;
/// `_IOWR('N', 0x80, struct nvme_uring_cmd)`: a command of the namespace's queues.
const URING_CMD_IO: u32 = 0xc048_4e80;
const FLUSH: u8 = 0;
const WRITE: u8 = 1;
const READ: u8 = 2;
/// In the twelfth word: it survives a power loss once it has ended (FUA).
const FORCE_UNIT_ACCESS: u32 = 1 << 30;
/// Longest command unless the device says otherwise.
const COMMAND_BYTES: usize = 128 << 10;

/// `struct nvme_uring_cmd` of `linux/nvme_ioctl.h`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, IntoBytes, Immutable)]
#[repr(C)]
struct Command {
    opcode: u8,
    flags: u8,
    reserved: u16,
    namespace: u32,
    words_2_3: [u32; 2],
    metadata: u64,
    address: u64,
    metadata_bytes: u32,
    data_bytes: u32,
    words_10_15: [u32; 6],
    timeout_ms: u32,
    reserved_too: u32,
}

/// The action of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Read,
    Write { durable: bool },
    Flush,
}

/// How commands address a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Namespace {
    number: u32,
    /// Bytes of a block, as a power of two.
    block_log2: u32,
    /// Longest transfer of one command.
    pub(super) command_bytes_max: usize,
}

/// Where requests go.
#[derive(Debug, Clone, Copy)]
pub(super) struct Address {
    /// A file that is registered with the ring, by number.
    pub(super) file: u32,
    /// The namespace, if this is its character device.
    pub(super) namespace: Option<Namespace>,
}

/// An opened namespace.
pub(super) struct Opened {
    pub(super) namespace: Namespace,
    pub(super) len_bytes: u64,
    /// The directory in which the kernel describes its queue.
    pub(super) queue: PathBuf,
    /// See the module's head.
    pub(super) block: File,
}

/// The block device of the same namespace, if this is the character device of one.
pub fn block_device_of(path: &Path) -> Option<PathBuf> {
    let found = std::fs::metadata(path).ok()?;
    if !found.file_type().is_char_device() {
        return None;
    }
    let (major, minor) = (rustix::fs::major(found.rdev()), rustix::fs::minor(found.rdev()));
    let described = std::fs::canonicalize(format!("/sys/dev/char/{major}:{minor}")).ok()?;
    let name = described.file_name()?.to_str()?.strip_prefix("ng")?;
    let block = format!("nvme{name}");
    Path::new("/sys/class/block")
        .join(&block)
        .exists()
        .then(|| path.with_file_name(block))
}

/// Opens the files that a character device needs besides itself.
pub(super) fn open(device: &File, block: &Path) -> io::Result<Opened> {
    let name = block.file_name().unwrap_or_default();
    let described = Path::new("/sys/class/block").join(name);
    let number = |file: &str| -> Option<u64> {
        let text = std::fs::read_to_string(described.join(file)).ok()?;
        text.trim().parse().ok()
    };
    let exclusive = File::options()
        .read(true)
        .custom_flags(OFlags::EXCL.bits() as i32)
        .open(block)?;
    // SAFETY: this request takes no argument and returns a number.
    let id = unsafe { libc::ioctl(device.as_raw_fd(), IOCTL_ID) };
    let namespace = u32::try_from(id).map_err(|_| io::Error::last_os_error())?;
    let unknown = || io::Error::other(format!("{} tells no size", described.display()));
    let block_bytes = number("queue/logical_block_size").ok_or_else(unknown)?;
    let longest = number("queue/max_hw_sectors_kb").map_or(COMMAND_BYTES, |kib| (kib as usize) << 10);
    // Pages may lie anywhere in memory.
    let pages = number("queue/max_segments").map_or(1, |segments| segments as usize);
    let longest = longest.min(pages * crate::PAGE_BYTES);
    Ok(Opened {
        namespace: Namespace {
            number: namespace,
            block_log2: block_bytes.max(512).ilog2(),
            command_bytes_max: (longest / crate::PAGE_BYTES).max(1) * crate::PAGE_BYTES,
        },
        len_bytes: number("size").ok_or_else(unknown)? * 512,
        queue: described.join("queue"),
        block: exclusive,
    })
}

impl Namespace {
    fn command(&self, action: Action, offset: u64, address: u64, len: u32) -> Command {
        let first = offset >> self.block_log2;
        // One less than the number of blocks.
        let count = (len >> self.block_log2).saturating_sub(1);
        let (opcode, flags) = match action {
            Action::Read => (READ, 0),
            Action::Write { durable: false } => (WRITE, 0),
            Action::Write { durable: true } => (WRITE, FORCE_UNIT_ACCESS),
            Action::Flush => (FLUSH, 0),
        };
        let words_10_15 = match action {
            Action::Flush => [0; 6],
            _ => [first as u32, (first >> 32) as u32, count | flags, 0, 0, 0],
        };
        Command {
            opcode,
            namespace: self.number,
            address,
            data_bytes: len,
            words_10_15,
            ..Command::default()
        }
    }

    /// The entry for a ring; `pool` is the number of the registered memory that the address is in.
    pub(super) fn entry(
        &self,
        file: types::Fixed,
        action: Action,
        offset: u64,
        (address, len): (*mut u8, u32),
        pool: Option<u16>,
    ) -> squeue::Entry128 {
        let command = self.command(action, offset, address as u64, len);
        let mut bytes = [0; 80];
        bytes[..size_of::<Command>()].copy_from_slice(command.as_bytes());
        opcode::UringCmd80::new(file, URING_CMD_IO)
            .buf_index(pool)
            .cmd(bytes)
            .build()
    }

    /// The result that a transfer would have: a command returns nothing, or the device's status.
    pub(super) fn result(result: i32, len: usize) -> i32 {
        match result {
            0 => len as i32,
            1.. => {
                tracing::warn!(status = format_args!("{result:#x}"), "an NVMe command has failed");
                -rustix::io::Errno::IO.raw_os_error()
            }
            error => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OF_4096: Namespace = Namespace {
        number: 7,
        block_log2: 12,
        command_bytes_max: COMMAND_BYTES,
    };

    /// Offsets of `linux/nvme_ioctl.h`, and the fields of the NVM command set.
    #[test]
    fn commands_are_as_the_kernel_and_devices_read_them() {
        assert_eq!(size_of::<Command>(), 72);
        let command = OF_4096.command(Action::Write { durable: true }, 5 << 44, 0x1234_5678_9abc, 16 << 10);
        let bytes = command.as_bytes();
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!((bytes[0], word(4), word(36)), (1, 7, 16 << 10));
        assert_eq!((word(24), word(28)), (0x5678_9abc, 0x1234));
        // First block, in two words; one less than the number of blocks, and the durable flag.
        assert_eq!((word(40), word(44), word(48)), (0, 5, 3 | 1 << 30));
        let of_512 = Namespace {
            block_log2: 9,
            ..OF_4096
        };
        let read = of_512.command(Action::Read, 4096, 0, 4096);
        assert_eq!((read.opcode, read.words_10_15), (2, [8, 0, 7, 0, 0, 0]));
        let flush = of_512.command(Action::Flush, 0, 0, 0);
        assert_eq!((flush.opcode, flush.words_10_15, flush.data_bytes), (0, [0; 6], 0));
    }

    #[test]
    fn a_status_is_an_error() {
        assert_eq!(Namespace::result(0, 4096), 4096);
        assert_eq!(Namespace::result(0x281, 4096), -5);
        assert_eq!(Namespace::result(-4, 4096), -4);
    }

    #[test]
    fn other_devices_are_no_namespaces() {
        assert_eq!(block_device_of(Path::new("/dev/null")), None);
        assert_eq!(block_device_of(Path::new("/dev/missing")), None);
    }
}
