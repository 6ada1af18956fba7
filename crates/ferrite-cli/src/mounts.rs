//! All mounts, of Ferrite and others, from `/proc/self/mountinfo`.

use std::collections::BTreeSet;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// File-system type of Ferrite's mounts.
const FS_TYPE: &[u8] = b"fuse.ferrite";

/// One mounted pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MountPoint {
    /// The pool.
    pub(crate) pool: PathBuf,
    /// Where it is mounted.
    pub(crate) dir: PathBuf,
    /// Number of the device that the kernel made for the mount, as `major:minor`. No two mounts of this machine have
    /// the same number at the same time.
    pub(crate) device: String,
    /// The user who mounted it.
    pub(crate) user: u32,
    /// The mount makes no changes to the pool.
    pub(crate) is_read_only: bool,
}

/// All mounted pools.
pub(crate) fn all() -> Vec<MountPoint> {
    seen_by("self")
}

/// Those that a path leads to: of mounts on one directory, the last.
pub(crate) fn reachable(mut mounts: Vec<MountPoint>) -> Vec<MountPoint> {
    let mut dirs = BTreeSet::new();
    mounts.reverse();
    mounts.retain(|mount| dirs.insert(mount.dir.clone()));
    mounts.reverse();
    mounts
}

/// All mounted pools that a process sees.
pub(crate) fn seen_by(process: impl std::fmt::Display) -> Vec<MountPoint> {
    parse(&std::fs::read(format!("/proc/{process}/mountinfo")).unwrap_or_default())
}

/// One line of a list of mounts.
struct Line<'a> {
    device: &'a [u8],
    dir: &'a [u8],
    fs_type: &'a [u8],
    source: &'a [u8],
    /// The options of the file system, as opposed to the mount's.
    options: &'a [u8],
}

fn lines(mountinfo: &[u8]) -> impl Iterator<Item = Line<'_>> {
    mountinfo.split(|&byte| byte == b'\n').filter_map(|line| {
        let mut fields = line.split(|&byte| byte == b' ');
        let (device, dir) = (fields.nth(2)?, fields.nth(1)?);
        let mut behind_dash = fields.skip_while(|field| *field != b"-").skip(1);
        Some(Line {
            device,
            dir,
            fs_type: behind_dash.next()?,
            source: behind_dash.next()?,
            options: behind_dash.next()?,
        })
    })
}

fn parse(mountinfo: &[u8]) -> Vec<MountPoint> {
    lines(mountinfo)
        .filter(|line| line.fs_type == FS_TYPE)
        .map(|line| {
            let options = || line.options.split(|&byte| byte == b',');
            let user = options().find_map(|option| {
                std::str::from_utf8(option.strip_prefix(b"user_id=")?)
                    .ok()?
                    .parse()
                    .ok()
            });
            MountPoint {
                pool: unescape(line.source),
                dir: unescape(line.dir),
                device: String::from_utf8_lossy(line.device).into_owned(),
                user: user.unwrap_or(0),
                is_read_only: options().any(|option| option == b"ro"),
            }
        })
        .collect()
}

/// Where a block device, given as `major:minor`, is mounted.
pub(crate) fn dir_of_device(device: &str) -> Option<PathBuf> {
    let mountinfo = std::fs::read("/proc/self/mountinfo").ok()?;
    // Some file systems have a separate number, but name the device as their source.
    let is_it = |source: &Path| {
        std::fs::metadata(source).is_ok_and(|found| {
            let (major, minor) = (rustix::fs::major(found.rdev()), rustix::fs::minor(found.rdev()));
            found.file_type().is_block_device() && format!("{major}:{minor}") == device
        })
    };
    lines(&mountinfo)
        .find(|line| line.device == device.as_bytes() || is_it(&unescape(line.source)))
        .map(|line| unescape(line.dir))
}

/// The directory where this device is mounted with DAX for all files.
pub(crate) fn dax_dir_of(source: &Path) -> Option<PathBuf> {
    let mountinfo = std::fs::read("/proc/self/mountinfo").ok()?;
    let has_dax = |options: &[u8]| {
        let mut options = options.split(|&byte| byte == b',');
        options.any(|option| option == b"dax" || option == b"dax=always")
    };
    lines(&mountinfo)
        .find(|line| unescape(line.source) == source && has_dax(line.options))
        .map(|line| unescape(line.dir))
}

/// The kernel writes blanks and similar characters as three octal digits.
pub(crate) fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, behind)) = rest.split_first() {
        let octal = (byte == b'\\').then(|| behind.get(..3)).flatten();
        let value = octal.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        match value {
            Some(value) => {
                bytes.push(value);
                rest = &behind[3..];
            }
            None => {
                bytes.push(byte);
                rest = behind;
            }
        }
    }
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

/// The mount on a directory, or of a pool, that a path names.
pub(crate) fn find(path: &Path) -> Option<MountPoint> {
    let path = Names::of(path);
    newest(|mount| path.has(&mount.dir) || path.has(&mount.pool))
}

/// The mount on a directory.
pub(crate) fn on(dir: &Path) -> Option<MountPoint> {
    let dir = Names::of(dir);
    newest(|mount| dir.has(&mount.dir))
}

/// The mount on a directory that has exactly this path. Sends nothing to the mount, so its daemon may call this before
/// it serves.
pub(crate) fn with_path(dir: &Path) -> Option<MountPoint> {
    newest(|mount| mount.dir.as_os_str() == dir.as_os_str())
}

fn newest(wanted: impl Fn(&MountPoint) -> bool) -> Option<MountPoint> {
    all().into_iter().rev().find(wanted)
}

/// A path as given, and as resolved. A dead mount cannot be resolved, so both count.
struct Names([PathBuf; 2]);

impl Names {
    fn of(path: &Path) -> Names {
        let given = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
        let resolved = std::fs::canonicalize(path).unwrap_or_else(|_| given.clone());
        Names([given, resolved])
    }

    fn has(&self, path: &Path) -> bool {
        self.0
            .iter()
            .any(|name| name.as_os_str().as_bytes() == path.as_os_str().as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_mounts_are_found_among_others() {
        let text = b"22 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
            30 22 0:50 / /mnt/a\\040b rw - fuse.ferrite /dev/shm/my\\040pool rw,user_id=1000,group_id=7\n\
            31 22 0:51 / /mnt/c ro - fuse.ferrite tcp://a:1,b/other ro,user_id=0,group_id=0\n";
        let expected = MountPoint {
            pool: "/dev/shm/my pool".into(),
            dir: "/mnt/a b".into(),
            device: "0:50".into(),
            user: 1000,
            is_read_only: false,
        };
        let other = MountPoint {
            pool: "tcp://a:1,b/other".into(),
            dir: "/mnt/c".into(),
            device: "0:51".into(),
            user: 0,
            is_read_only: true,
        };
        assert_eq!(parse(text), [expected, other]);
    }

    #[test]
    fn of_mounts_on_one_directory_the_last_can_be_reached() {
        let text = b"30 22 0:50 / /mnt/a rw - fuse.ferrite /pool rw\n\
            31 22 0:51 / /mnt/b rw - fuse.ferrite /pool rw\n\
            32 22 0:52 / /mnt/a rw - fuse.ferrite /pool rw\n";
        let devices: Vec<_> = reachable(parse(text)).into_iter().map(|mount| mount.device).collect();
        assert_eq!(devices, ["0:51", "0:52"]);
    }
}
