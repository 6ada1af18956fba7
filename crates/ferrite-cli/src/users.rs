//! Other users of a file or a device: the kernel, for a mount, for swap, or below another device.
//!
//! Contents: [`find`], which `mkfs` calls even with `--force`: writing there would destroy data in use. Programs that
//! merely have a file open do not count; another Ferrite has the lock.

use std::fs::{File, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::io::Errno;

use super::mounts;

/// The user, in words that follow "is": "mounted on /mnt". `None` if no user is known.
pub(crate) fn find(path: &Path) -> Option<String> {
    let metadata = std::fs::metadata(path).ok()?;
    if metadata.file_type().is_block_device() {
        return swap(&metadata).or_else(|| block_device(path, metadata.rdev()));
    }
    swap(&metadata).or_else(|| loop_device(&metadata))
}

fn swap(metadata: &Metadata) -> Option<String> {
    let swaps = std::fs::read("/proc/swaps").unwrap_or_default();
    let mut names = swaps
        .split(|&byte| byte == b'\n')
        .skip(1)
        .filter_map(|line| line.split(|&byte| byte == b' ' || byte == b'\t').next());
    names
        .any(|name| is_same(metadata, &mounts::unescape(name)))
        .then(|| "used as swap space".into())
}

fn block_device(path: &Path, rdev: u64) -> Option<String> {
    let number = format!("{}:{}", rustix::fs::major(rdev), rustix::fs::minor(rdev));
    if let Some(dir) = mounts::dir_of_device(&number) {
        return Some(format!("mounted on {}", dir.display()));
    }
    let holders = std::fs::read_dir(format!("/sys/dev/block/{number}/holders"));
    if let Some(holder) = holders.into_iter().flatten().flatten().next() {
        return Some(format!("used by /dev/{}", holder.file_name().to_string_lossy()));
    }
    // Also detects mounts that we do not see, and partitions of the device that are in use.
    let mut options = File::options();
    let opened = options
        .read(true)
        .custom_flags(libc::O_EXCL | libc::O_NONBLOCK)
        .open(path);
    let is_busy = opened.is_err_and(|error| error.raw_os_error() == Some(Errno::BUSY.raw_os_error()));
    is_busy.then(|| "in use by the kernel".into())
}

/// The loop device that is backed by the file.
fn loop_device(metadata: &Metadata) -> Option<String> {
    let devices = std::fs::read_dir("/sys/block").ok()?.flatten();
    devices.map(|device| device.path()).find_map(|device| {
        let file = std::fs::read(device.join("loop/backing_file")).ok()?;
        let file = Path::new(std::ffi::OsStr::from_bytes(file.trim_ascii_end()));
        let name = device.file_name()?.to_string_lossy();
        is_same(metadata, file).then(|| format!("the content of /dev/{name}"))
    })
}

/// Whether `path` leads to that file or device.
fn is_same(metadata: &Metadata, path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|other| match metadata.file_type().is_block_device() {
        true => other.file_type().is_block_device() && other.rdev() == metadata.rdev(),
        false => (other.dev(), other.ino()) == (metadata.dev(), metadata.ino()),
    })
}
