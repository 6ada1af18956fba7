//! `ferrite quota`: limit what directory trees use, on a mount or in a volume.
//!
//! A quota is an extended attribute ([`QUOTA_XATTR`]), so this needs no call of its own, and works wherever files can
//! be reached.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use ferrite_vfs::{QUOTA_XATTR, Quota as Found, QuotaLimits};
use rustix::io::Errno;
use serde::Serialize;

use super::folder::Folder;
use super::place::{Place, Result as Tried, Why};
use super::snapshot::place_of;
use super::walk::dirs_below;
use super::{OPERANDS, Operand, Volumes, show};
use crate::{FAILED, Failure, Outcome, USAGE, output, say_json, size};

/// Limit what a directory tree uses: bytes, and files
#[derive(Debug, clap::Args)]
#[command(after_help = format!("\
{OPERANDS}

Examples:
  ferrite quota set --size 10G --inodes 100000 /mnt/data/alice
  ferrite quota get /mnt/data/alice
  ferrite quota list /mnt/data
  ferrite quota remove /mnt/data/alice

A quota counts the directory and all below it, exactly: inodes, and pages of 4096 bytes of files, directories and \
extended attributes. On devices and in Ceph, it counts the sizes of files, holes included. A change that would exceed \
a limit fails with EDQUOT, \"disk quota exceeded\". df(1) within the directory shows the quota. Blocks that files \
share count for each of them; snapshots count for none.

Files are not renamed into or out of a tree with a quota, or linked (EXDEV); mv(1) copies them then. A quota within \
another one counts for both. Root sets and removes quotas; other changes wait meanwhile, some microseconds for each \
file."))]
pub(crate) struct Quota {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Give a directory a quota, or its quota other limits
    Set(Set),
    /// Show the quota that counts a file or directory
    Get(Get),
    /// List the quotas of a directory and of those below
    List(List),
    /// Remove the quota of a directory
    Remove(Remove),
}

#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("limit").required(true).multiple(true).args(["size", "inodes"]))]
struct Set {
    /// The directory
    #[arg(value_parser = Operand::parser(), value_hint = clap::ValueHint::DirPath)]
    dir: Operand,
    /// Most bytes, such as 10G
    #[arg(short, long, value_parser = size::parse)]
    size: Option<u64>,
    /// Most files, directories and links
    #[arg(short, long)]
    inodes: Option<u64>,
}

#[derive(Debug, clap::Args)]
struct Get {
    /// The file or directory
    #[arg(value_parser = Operand::parser(), value_hint = clap::ValueHint::AnyPath)]
    path: Operand,
    /// Print JSON, with sizes in bytes
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct List {
    /// The directory
    #[arg(value_parser = Operand::parser(), value_hint = clap::ValueHint::DirPath)]
    dir: Operand,
    /// Print one line of JSON per quota, with sizes in bytes
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct Remove {
    /// The directory
    #[arg(value_parser = Operand::parser(), value_hint = clap::ValueHint::DirPath)]
    dir: Operand,
}

impl Quota {
    pub(crate) fn run(self) -> Outcome {
        match self.command {
            Command::Set(command) => command.run(),
            Command::Get(command) => command.run(),
            Command::List(command) => command.run(),
            Command::Remove(command) => command.run(),
        }
    }
}

fn attribute() -> &'static OsStr {
    OsStr::from_bytes(QUOTA_XATTR)
}

fn explained(why: Why) -> Why {
    match why {
        why if why.is(Errno::OPNOTSUPP) => Why::new("the file system there has no quotas"),
        why if why.is(Errno::PERM) => Why::new("only root sets and removes quotas"),
        why if why.is(Errno::NODATA) => Why::new("has no quota"),
        why if why.is(Errno::INVAL) => Why::new("directories have quotas, at most 64 within each other"),
        why => why,
    }
}

fn failure(at: &Place, why: Why) -> Failure {
    Failure::new(FAILED, at.message(&explained(why)))
}

/// The quota that counts a directory; `None` without one.
fn quota_of(folder: &Folder) -> Tried<Option<Found>> {
    match folder.thing().xattr(attribute()) {
        Ok(text) => match Found::parse(&text) {
            Some(quota) => Ok(Some(quota)),
            None => Err(Why::new(
                "the file system there has no quotas that this program understands",
            )),
        },
        Err(why) if why.is(Errno::NODATA) => Ok(None),
        Err(why) => Err(why),
    }
}

impl Set {
    fn run(self) -> Outcome {
        if self.inodes == Some(0) {
            return Err(Failure::new(USAGE, "0 sets no limit; use `ferrite quota remove`"));
        }
        let limits = QuotaLimits {
            bytes: self.size.unwrap_or(0),
            inodes: self.inodes.unwrap_or(0),
        };
        change(&self.dir, |folder| {
            folder.thing().set_xattr(attribute(), limits.to_string().as_bytes())
        })
    }
}

impl Remove {
    fn run(self) -> Outcome {
        change(&self.dir, |folder| folder.thing().remove_xattr(attribute()))
    }
}

fn change(dir: &Operand, act: impl FnOnce(&Folder) -> Tried<()>) -> Outcome {
    let mut volumes = Volumes::to_change();
    let place = place_of(dir, &mut volumes)?;
    let changed = Folder::open(&place).and_then(|folder| act(&folder));
    volumes.close()?;
    changed.map_err(|why| failure(&place, why))?;
    Ok(0)
}

#[derive(Serialize)]
struct Row<'r> {
    path: std::borrow::Cow<'r, str>,
    limit_bytes: Option<u64>,
    used_bytes: u64,
    limit_inodes: Option<u64>,
    used_inodes: u64,
}

fn print(path: &OsStr, quota: &Found, json: bool) -> Tried<()> {
    let limit = |limit: u64| (limit > 0).then_some(limit);
    if json {
        let row = Row {
            path: path.to_string_lossy(),
            limit_bytes: limit(quota.limits.bytes),
            used_bytes: quota.used_bytes,
            limit_inodes: limit(quota.limits.inodes),
            used_inodes: quota.used_inodes,
        };
        return say_json(&row).map_err(|failure| Why::new(failure.message));
    }
    let of = |used: String, limit: Option<String>| match limit {
        Some(limit) => format!("{used} of {limit}"),
        None => used,
    };
    let bytes = of(
        size::human(quota.used_bytes),
        limit(quota.limits.bytes).map(size::human),
    );
    let inodes = of(
        quota.used_inodes.to_string(),
        limit(quota.limits.inodes).map(|limit| limit.to_string()),
    );
    let mut line = show::name(path).to_vec();
    line.extend_from_slice(format!(": {bytes}, {inodes} inodes\n").as_bytes());
    output::write(&line);
    Ok(())
}

impl Get {
    fn run(self) -> Outcome {
        let mut volumes = Volumes::to_read();
        let place = place_of(&self.path, &mut volumes)?;
        let shown = place.shown();
        let found = place.xattr(attribute()).and_then(|text| {
            let quota =
                Found::parse(&text).ok_or_else(|| Why::new("has a quota that this program does not understand"))?;
            print(&shown, &quota, self.json)
        });
        volumes.close()?;
        found.map_err(|why| failure(&place, why))?;
        Ok(0)
    }
}

impl List {
    fn run(self) -> Outcome {
        let mut volumes = Volumes::to_read();
        let place = place_of(&self.dir, &mut volumes)?;
        let listed = Folder::open(&place).and_then(|folder| list(&folder, place.path(), self.json));
        volumes.close()?;
        listed.map_err(|why| failure(&place, why))?;
        Ok(0)
    }
}

/// Prints the quotas of directories, each before those below it.
fn list(top: &Folder, path: &Path, json: bool) -> Tried<()> {
    let print_own = |path: &Path, folder: &Folder| -> Tried<()> {
        match quota_of(folder)? {
            Some(quota) if quota.root == folder.itself()?.identity.1 => print(path.as_os_str(), &quota, json),
            _ => Ok(()),
        }
    };
    print_own(path, top)?;
    dirs_below(top, &mut |below, folder| {
        print_own(&path.join(below), folder)?;
        Ok(output::goes_on())
    })
}
