//! `ferrite clone`: clone a file or a tree, on a mount or in a volume.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use ferrite_fuse::{CLONE_XATTR, clone_request};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, XattrFlags};
use rustix::io::Errno;

use super::place::{Place, Why};
use super::{OPERANDS, Operand, Volumes};
use crate::{FAILED, Failure, Outcome, USAGE};

/// The resources that clones, and snapshots, may lack.
pub(super) const NO_SPACE: &str = "\
no space left: of inodes or names (`ferrite df`), or of entries of the mapping, of which `ferrite mkfs \
--pages-per-block` makes more";

/// Longest token of an inode.
const TOKEN_BYTES_MAX: usize = 64;

/// Clone a file or a directory tree, without copying data
#[derive(Debug, clap::Args)]
#[command(after_help = format!("\
Both paths are on one mount, or in one volume that is not mounted. {OPERANDS}

Examples:
  ferrite clone /mnt/data /mnt/data-before-upgrade
  ferrite clone /mnt/images/base.img /mnt/images/vm7.img
  ferrite clone pm:/var/lib/pool:/data pm:/var/lib/pool:/data.old

The clone is one state of the tree: other changes wait while it is made, some microseconds for each file, and reads do \
not. It has the owners, modes, times and extended attributes of the original, and shares its blocks: it takes space \
for names and inodes, and later for what differs. On devices (nvme) whole files are shared: the first change of one \
copies it. It is there whole or, after a failure or a crash, not at all.

Users other than root may clone what they own. Data that programs have not written yet, as in mappings, is not in it, \
except on a mount, whose data the command writes first."))]
pub(crate) struct Clone {
    /// The file or directory
    #[arg(value_name = "SOURCE", value_parser = Operand::parser(), value_hint = clap::ValueHint::AnyPath)]
    source: Operand,
    /// The name of the clone, which must be new
    #[arg(value_name = "DEST", value_parser = Operand::parser(), value_hint = clap::ValueHint::AnyPath)]
    dest: Operand,
}

impl Clone {
    pub(crate) fn run(self) -> Outcome {
        let mut volumes = Volumes::to_change();
        let usage = || Failure::new(USAGE, "standard input and output cannot be cloned");
        let from = Place::of(&self.source, &mut volumes)?.ok_or_else(usage)?;
        let to = Place::of(&self.dest, &mut volumes)?.ok_or_else(usage)?;
        let cloned = clone_to(&from, &to);
        volumes.close()?;
        cloned.map_err(|why| Failure::new(FAILED, to.message(&explained(why))))?;
        Ok(0)
    }
}

/// Makes a clone with a new name.
pub(super) fn clone_to(from: &Place, to: &Place) -> Result<(), Why> {
    match (from, to) {
        (Place::Here(from), Place::Here(to)) => on_mount(from, to),
        (
            Place::There { volume, path, .. },
            Place::There {
                volume: other,
                path: clone,
                ..
            },
        ) if volume.address == other.address => volume.fs().clone_tree(path, clone).map_err(Why::from),
        _ => Err(Why::new(
            "a clone is in the volume of its original; use `ferrite cp -r -p`",
        )),
    }
}

fn explained(why: Why) -> Why {
    match why {
        why if why.is(Errno::OPNOTSUPP) => Why::new("the files there cannot share blocks; use `cp -a`"),
        why if why.is(Errno::NOSPC) => Why::new(NO_SPACE),
        why if why.is(Errno::PERM) => Why::new("only root may clone devices, and files that belong to another user"),
        why => why,
    }
}

/// Asks the daemon of the mount, which is that of both.
fn on_mount(from: &Path, to: &Path) -> Result<(), Why> {
    let place = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // As long as it is open, the daemon knows the inode by its number.
    let source = rustix::fs::openat(CWD, from, place, Mode::empty())
        .map_err(|errno| Why::new(format!("{}: {}", from.display(), std::io::Error::from(errno))))?;
    let name = to.file_name().ok_or_else(|| Why::new("is no name that could be new"))?;
    let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty());
    let dir = File::open(parent.unwrap_or(Path::new(".")))?;
    let (found, there) = (rustix::fs::fstat(&source)?, rustix::fs::fstat(&dir)?);
    if found.st_dev != there.st_dev {
        return Err(Why::new("is on another file system than the original; use `cp -a`"));
    }
    // Data that the kernel still has belongs to the state that is cloned.
    rustix::fs::syncfs(&dir)?;
    let mut token = [0; TOKEN_BYTES_MAX];
    let opened = format!("/proc/self/fd/{}", source.as_raw_fd());
    let len_bytes = match rustix::fs::getxattr(opened, CLONE_XATTR, &mut token) {
        // Of file systems that are not Ferrite's.
        Err(Errno::NODATA | Errno::INVAL) => Err(Errno::OPNOTSUPP),
        other => other,
    }
    .map_err(|errno| match errno {
        Errno::OPNOTSUPP => errno.into(),
        errno => Why::new(format!("{}: {}", from.display(), std::io::Error::from(errno))),
    })?;
    let request = clone_request(&token[..len_bytes], name.as_bytes());
    rustix::fs::fsetxattr(&dir, CLONE_XATTR, &request, XattrFlags::empty())?;
    show(&dir, name)
}

/// Has the kernel learn of the new name, which it may remember as absent, and of what has become of the directory.
fn show(dir: &File, name: &OsStr) -> Result<(), Why> {
    if rustix::fs::mkdirat(dir, name, Mode::empty()).is_ok() {
        // Somebody has removed the clone already.
        rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR)?;
    }
    rustix::fs::statx(
        dir,
        "",
        AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC,
        StatxFlags::ALL,
    )?;
    Ok(())
}
