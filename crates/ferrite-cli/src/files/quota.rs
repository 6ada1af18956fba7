//! `ferrite quota`: limit what directory trees and users use, on a mount or in a volume.
//!
//! A quota is an extended attribute ([`QuotaAttribute`]), so this needs no call of its own, and works wherever files
//! can be reached.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use ferrite_vfs::{Quota as Found, QuotaAttribute, QuotaLimits, USER_QUOTAS_MAX, UserQuota};
use nix::unistd::User;
use rustix::io::Errno;
use serde::Serialize;

use super::folder::Folder;
use super::place::{Place, Result as Tried, Why};
use super::snapshot::place_of;
use super::walk::dirs_below;
use super::{OPERANDS, Operand, Volumes, show};
use crate::{FAILED, Failure, Outcome, USAGE, output, say_json, size};

/// Limit what a directory tree, or a user, uses: bytes, and files
#[derive(Debug, clap::Args)]
#[command(after_help = format!("\
{OPERANDS}

Examples:
  ferrite quota set --size 10G --inodes 100000 /mnt/data/alice
  ferrite quota get /mnt/data/alice
  ferrite quota list /mnt/data
  ferrite quota remove /mnt/data/alice
  ferrite quota set --user alice --size 10G /mnt/data
  ferrite quota list --users /mnt/data

A quota counts the directory and all below it, exactly: inodes, and pages of 4096 bytes of files, directories and \
extended attributes. On devices and in Ceph, it counts the sizes of files, holes included. A change that would exceed \
a limit fails with EDQUOT, \"disk quota exceeded\". df(1) within the directory shows the quota. Blocks that files \
share count for each of them; snapshots count for none.

Files are not renamed into or out of a tree with a quota, or linked (EXDEV); mv(1) copies them then. A quota within \
another one counts for both. Root sets and removes quotas; other changes wait meanwhile, some microseconds for each \
file.

With --user, PATH is the root directory of the file system, and the quota counts what the user owns in all of it. It \
limits the user's files, whoever writes them. Users see their own quota with `get --user`."))]
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
    /// Limit what this user owns, by name or number, in the whole file system of which DIR is the root
    #[arg(short, long, value_parser = user)]
    user: Option<u32>,
}

#[derive(Debug, clap::Args)]
struct Get {
    /// The file or directory
    #[arg(value_parser = Operand::parser(), value_hint = clap::ValueHint::AnyPath)]
    path: Operand,
    /// Show the quota of this user, by name or number
    #[arg(short, long, value_parser = user)]
    user: Option<u32>,
    /// Print JSON, with sizes in bytes
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct List {
    /// The directory
    #[arg(value_parser = Operand::parser(), value_hint = clap::ValueHint::DirPath)]
    dir: Operand,
    /// List the quotas of users instead
    #[arg(short, long)]
    users: bool,
    /// Print one line of JSON per quota, with sizes in bytes
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct Remove {
    /// The directory
    #[arg(value_parser = Operand::parser(), value_hint = clap::ValueHint::DirPath)]
    dir: Operand,
    /// Remove the quota of this user, by name or number, in the whole file system of which DIR is the root
    #[arg(short, long, value_parser = user)]
    user: Option<u32>,
}

/// The number of a user who can have a quota.
fn user(text: &str) -> Result<u32, String> {
    let uid = match text.parse() {
        Ok(uid) => uid,
        Err(_) => match User::from_name(text) {
            Ok(Some(found)) => found.uid.as_raw(),
            Ok(None) => return Err("no such user".into()),
            Err(error) => return Err(format!("users cannot be looked up: {error}")),
        },
    };
    match uid {
        0 => Err("root has no quota".into()),
        u32::MAX => Err("this number stands for no user".into()),
        uid => Ok(uid),
    }
}

/// The name of a user, if the machine knows one.
fn user_name(uid: u32) -> Option<String> {
    User::from_uid(uid.into()).ok().flatten().map(|user| user.name)
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

fn attribute(user: Option<u32>) -> OsString {
    OsString::from_vec(user.map_or(QuotaAttribute::Tree, QuotaAttribute::User).name())
}

fn explained(why: Why, is_of_user: bool) -> Why {
    match why {
        why if is_of_user && why.is(Errno::NODATA) => Why::new("the user has no quota"),
        why if is_of_user && why.is(Errno::INVAL) => {
            Why::new("users have quotas of a whole file system: name its root directory")
        }
        why if is_of_user && why.is(Errno::PERM) => {
            Why::new("only root sets, removes and lists quotas of users, and users see their own")
        }
        why if is_of_user && why.is(Errno::NOSPC) => Why::new(format!(
            "there is no space for it, or {USER_QUOTAS_MAX} users have quotas already"
        )),
        why if why.is(Errno::OPNOTSUPP) => Why::new("the file system there has no quotas"),
        why if why.is(Errno::PERM) => Why::new("only root sets and removes quotas"),
        why if why.is(Errno::NODATA) => Why::new("has no quota"),
        why if why.is(Errno::INVAL) => Why::new("directories have quotas, at most 64 within each other"),
        why => why,
    }
}

fn failure(at: &Place, why: Why, is_of_user: bool) -> Failure {
    Failure::new(FAILED, at.message(&explained(why, is_of_user)))
}

/// The quota that counts a directory; `None` without one.
fn quota_of(folder: &Folder) -> Tried<Option<Found>> {
    match folder.thing().xattr(&attribute(None)) {
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
        let attribute = attribute(self.user);
        change(&self.dir, self.user.is_some(), |folder| {
            folder.thing().set_xattr(&attribute, limits.to_string().as_bytes())
        })
    }
}

impl Remove {
    fn run(self) -> Outcome {
        let attribute = attribute(self.user);
        change(&self.dir, self.user.is_some(), |folder| {
            folder.thing().remove_xattr(&attribute)
        })
    }
}

fn change(dir: &Operand, is_of_user: bool, act: impl FnOnce(&Folder) -> Tried<()>) -> Outcome {
    let mut volumes = Volumes::to_change();
    let place = place_of(dir, &mut volumes)?;
    let changed = Folder::open(&place).and_then(|folder| act(&folder));
    volumes.close()?;
    changed.map_err(|why| failure(&place, why, is_of_user))?;
    Ok(0)
}

/// Limits and usage, as lines show them.
#[derive(Serialize)]
struct Amounts {
    limit_bytes: Option<u64>,
    used_bytes: u64,
    limit_inodes: Option<u64>,
    used_inodes: u64,
}

#[derive(Serialize)]
struct Row<'r> {
    path: std::borrow::Cow<'r, str>,
    #[serde(flatten)]
    amounts: Amounts,
}

#[derive(Serialize)]
struct UserRow {
    uid: u32,
    user: Option<String>,
    #[serde(flatten)]
    amounts: Amounts,
}

impl Amounts {
    fn of(limits: QuotaLimits, used_bytes: u64, used_inodes: u64) -> Amounts {
        let limit = |limit: u64| (limit > 0).then_some(limit);
        Amounts {
            limit_bytes: limit(limits.bytes),
            used_bytes,
            limit_inodes: limit(limits.inodes),
            used_inodes,
        }
    }

    fn text(&self) -> String {
        let of = |used: String, limit: Option<String>| match limit {
            Some(limit) => format!("{used} of {limit}"),
            None => used,
        };
        let bytes = of(size::human(self.used_bytes), self.limit_bytes.map(size::human));
        let inodes = of(
            self.used_inodes.to_string(),
            self.limit_inodes.map(|limit| limit.to_string()),
        );
        format!(": {bytes}, {inodes} inodes\n")
    }
}

fn print(path: &OsStr, quota: &Found, json: bool) -> Tried<()> {
    let amounts = Amounts::of(quota.limits, quota.used_bytes, quota.used_inodes);
    if json {
        let path = path.to_string_lossy();
        return say_json(&Row { path, amounts }).map_err(|failure| Why::new(failure.message));
    }
    output::write(&[show::name(path), amounts.text().into_bytes()].concat());
    Ok(())
}

fn print_user(quota: &UserQuota, json: bool) -> Tried<()> {
    let amounts = Amounts::of(quota.limits(), quota.used_bytes, quota.used_inodes);
    let (uid, user) = (quota.uid, user_name(quota.uid));
    if json {
        return say_json(&UserRow { uid, user, amounts }).map_err(|failure| Why::new(failure.message));
    }
    let who = user.map_or_else(|| uid.to_string(), |name| format!("{name} ({uid})"));
    output::write(format!("{who}{}", amounts.text()).as_bytes());
    Ok(())
}

impl Get {
    fn run(self) -> Outcome {
        let mut volumes = Volumes::to_read();
        let place = place_of(&self.path, &mut volumes)?;
        let shown = place.shown();
        let found = place.xattr(&attribute(self.user)).and_then(|text| {
            let unknown = || Why::new("has a quota that this program does not understand");
            match self.user {
                Some(_) => print_user(&UserQuota::parse(&text).ok_or_else(unknown)?, self.json),
                None => print(&shown, &Found::parse(&text).ok_or_else(unknown)?, self.json),
            }
        });
        volumes.close()?;
        found.map_err(|why| failure(&place, why, self.user.is_some()))?;
        Ok(0)
    }
}

impl List {
    fn run(self) -> Outcome {
        let mut volumes = Volumes::to_read();
        let place = place_of(&self.dir, &mut volumes)?;
        let listed = match self.users {
            true => list_users(&place, self.json),
            false => Folder::open(&place).and_then(|folder| list(&folder, place.path(), self.json)),
        };
        volumes.close()?;
        listed.map_err(|why| failure(&place, why, self.users))?;
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

/// Prints the quotas of users, by number.
fn list_users(place: &Place, json: bool) -> Tried<()> {
    let (mut from, mut listed) = (0, 0);
    loop {
        let text = place.xattr(&OsString::from_vec(QuotaAttribute::Users(from).name()))?;
        let mut last = None;
        for line in text.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
            let quota = UserQuota::parse(line)
                .filter(|quota| quota.uid >= from && last < Some(quota.uid))
                .ok_or_else(|| {
                    Why::new("the file system there has no quotas of users that this program understands")
                })?;
            print_user(&quota, json)?;
            last = Some(quota.uid);
            listed += 1;
        }
        match last.and_then(|last| last.checked_add(1)) {
            Some(next) if next != u32::MAX && listed < USER_QUOTAS_MAX && output::goes_on() => from = next,
            _ => return Ok(()),
        }
    }
}
