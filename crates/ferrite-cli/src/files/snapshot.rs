//! `ferrite snapshot`: take, list, compare, restore and delete snapshots of a directory, on a mount or in a volume.
//!
//! A snapshot is made by `mkdir` in the directory `.snapshots`, and removed by `rmdir`; so this needs no call of its
//! own, and works wherever files can be reached.

mod diff;
mod keep;
mod restore;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use ferrite_vfs::{SNAPSHOT_XATTR, SnapshotSpace};
use jiff::Timestamp;
use rustix::io::Errno;
use serde::Serialize;

use super::clone::NO_SPACE;
use super::folder::{Folder, NAMES_MAX};
use super::place::{Place, Result as Tried, Why};
use super::{OPERANDS, Operand, Volumes, show};
use crate::{FAILED, Failure, Outcome, USAGE, complain, output, say_json, size};
use keep::{Keep, TIME_NAME};

/// The directory of snapshots.
pub(super) const SNAPSHOTS: &str = ".snapshots";
/// A name that a directory of snapshots refuses, and others do not.
const PROBE: &str = ".ferrite-is-of-snapshots";

/// Take, list, compare, restore and delete snapshots of a directory
#[derive(Debug, clap::Args)]
#[command(after_help = format!("\
{OPERANDS}

Examples:
  ferrite snapshot create /mnt/data before-upgrade
  ferrite snapshot create --keep hourly=24,daily=7 /mnt/data
  ferrite snapshot list --space /mnt/data
  ferrite snapshot diff /mnt/data before-upgrade
  cp /mnt/data/.snapshots/before-upgrade/report.txt /mnt/data
  ferrite snapshot restore /mnt/data before-upgrade
  ferrite clone /mnt/data/.snapshots/before-upgrade /mnt/data-as-it-was

A snapshot is a directory DIR/.snapshots/NAME that holds DIR as it was at one moment, and in which nothing changes. \
Listings of DIR leave `.snapshots` out. It shares the blocks of its files with DIR, and takes space for names and \
inodes, and for what DIR changes later: blocks, or, on devices (nvme), whole files. Snapshots within DIR are not in it.

The owner of a directory takes snapshots of it, and root; others read them as they may read the files. Other changes \
wait meanwhile, some microseconds for each file. The commands are the same as `mkdir DIR/.snapshots/NAME` and \
`rmdir DIR/.snapshots/NAME`."))]
pub(crate) struct Snapshot {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Take a snapshot; without a name, it is called by the time
    Create(Create),
    /// List the snapshots of a directory
    List(List),
    /// Delete snapshots
    Delete(Delete),
    /// Show what differs between a snapshot and the directory now, or two snapshots
    Diff(Diff),
    /// Give the directory the content of a snapshot again
    Restore(Restore),
}

#[derive(Debug, clap::Args)]
struct Create {
    /// The directory
    #[arg(value_parser = Operand::parser(), value_hint = clap::ValueHint::DirPath)]
    dir: Operand,
    /// The name [default: the time in UTC, as 2026-01-31T235959Z]
    name: Option<OsString>,
    /// Afterwards, of all snapshots that are called by their time, delete those that no rule keeps
    #[arg(long, value_name = "RULES", value_parser = Keep::parse, long_help = format!("{}", keep::HELP))]
    keep: Option<Keep>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct List {
    /// The directory
    #[arg(value_parser = Operand::parser(), value_hint = clap::ValueHint::DirPath)]
    dir: Operand,
    /// Show also how much space each one holds alone, and all of them together: what comes back when they are deleted.
    /// That looks at every file in them
    #[arg(long)]
    space: bool,
    /// Print one line of JSON per snapshot
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct Delete {
    /// The directory
    #[arg(value_parser = Operand::parser(), value_hint = clap::ValueHint::DirPath)]
    dir: Operand,
    /// The snapshots
    #[arg(required = true)]
    names: Vec<OsString>,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Each line has a sign and a path below the directory:
  +  it is new
  -  it is gone
  M  its content has changed, or its kind
  m  its mode or its owner has changed

Files of the same size and the same time of modification count as unchanged. The exit code is 0 whatever differs.")]
struct Diff {
    /// The directory
    #[arg(value_parser = Operand::parser(), value_hint = clap::ValueHint::DirPath)]
    dir: Operand,
    /// The older snapshot
    name: OsString,
    /// The newer one [default: the directory now]
    other: Option<OsString>,
    /// Print one line of JSON per difference
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
First takes another snapshot, of the directory as it is now, and prints its name. Then each entry of the directory is \
replaced by that of the snapshot, in one step each, and the directory gets its owner, mode and attributes. It takes no \
space but for names and inodes. Programs that have files open keep the old ones: end them before. A restore that was \
interrupted leaves some entries old and some restored, and a directory .ferrite-restore; make it again.

A directory below that has snapshots of its own is an error, since it would be replaced as all others.")]
struct Restore {
    /// The directory
    #[arg(value_parser = Operand::parser(), value_hint = clap::ValueHint::DirPath)]
    dir: Operand,
    /// The snapshot
    name: OsString,
    /// Take no snapshot before: what is there now is lost
    #[arg(long)]
    discard: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Snapshot {
    pub(crate) fn run(self) -> Outcome {
        match self.command {
            Command::Create(command) => command.run(),
            Command::List(command) => command.run(),
            Command::Delete(command) => command.run(),
            Command::Diff(command) => command.run(),
            Command::Restore(command) => command.run(),
        }
    }
}

/// The directory that an operand names.
pub(super) fn place_of(dir: &Operand, volumes: &mut Volumes) -> Result<Place, Failure> {
    let usage = || Failure::new(USAGE, "standard input and output have no snapshots");
    Place::of(dir, volumes)?.ok_or_else(usage)
}

fn failure(at: &Place, why: Why) -> Failure {
    Failure::new(FAILED, at.message(&explained(why)))
}

pub(super) fn explained(why: Why) -> Why {
    match why {
        why if why.is(Errno::OPNOTSUPP) => Why::new("the files there cannot share blocks, so there are no snapshots"),
        why if why.is(Errno::PERM) => Why::new("only root may take a snapshot of files that belong to another user"),
        why if why.is(Errno::NOSPC) => Why::new(NO_SPACE),
        why => why,
    }
}

/// The names in a directory.
fn names_in(folder: &Folder) -> Tried<Vec<OsString>> {
    folder.names(NAMES_MAX, &|| Ok(()))
}

/// The snapshots of a directory; `None` if it never had any.
pub(super) fn snapshots_of(dir: &Folder) -> Tried<Option<Folder>> {
    match dir.enter(OsStr::new(SNAPSHOTS)) {
        Ok(snapshots) => Ok(Some(snapshots)),
        Err(why) if why.is(Errno::NOENT) => Ok(None),
        Err(why) => Err(why),
    }
}

/// One snapshot, whose name must not lead elsewhere.
pub(super) fn enter(snapshots: Option<&Folder>, name: &OsStr) -> Tried<Folder> {
    let none = || Why::new(format!("has no snapshot {}", name.display()));
    match snapshots.ok_or_else(none)?.enter(name) {
        Err(why) if why.is(Errno::NOENT) => Err(none()),
        entered => entered,
    }
}

/// Refuses an ordinary directory of that name, in which `mkdir` would make an empty directory.
fn check_is_of_snapshots(snapshots: &Folder) -> Tried<()> {
    match snapshots.symlink(Path::new(SNAPSHOTS), OsStr::new(PROBE)) {
        Err(why) if why.is(Errno::ROFS) => Ok(()),
        Err(why) => Err(why),
        Ok(()) => {
            snapshots.remove_file(OsStr::new(PROBE))?;
            Err(Why::new(format!(
                "has an ordinary directory `{SNAPSHOTS}`; rename it, or use a pool that can share blocks"
            )))
        }
    }
}

#[derive(Serialize)]
struct Created<'c> {
    name: &'c str,
    deleted: Vec<String>,
}

impl Create {
    fn run(self) -> Outcome {
        let mut volumes = Volumes::to_change();
        let place = place_of(&self.dir, &mut volumes)?;
        let name = self.name.clone().unwrap_or_else(name_of_now);
        let taken = Folder::open(&place).and_then(|dir| take(&dir, &name));
        let (mut deleted, mut code) = (Vec::new(), 0);
        if let (Some(keep), Ok(snapshots)) = (&self.keep, &taken)
            && let Err(why) = delete_others(keep, snapshots, &name, &mut deleted)
        {
            complain(format_args!("ferrite: {}", place.message(&explained(why))));
            code = FAILED;
        }
        let taken = taken.map(drop);
        volumes.close()?;
        taken.map_err(|why| failure(&place, why))?;
        let shown = name.to_string_lossy();
        match () {
            () if self.json => say_json(&Created { name: &shown, deleted })?,
            () if self.name.is_none() => output::say(&shown),
            () => {}
        }
        Ok(code)
    }
}

/// The name of a snapshot that the user does not name.
fn name_of_now() -> OsString {
    Timestamp::now().strftime(TIME_NAME).to_string().into()
}

/// The directory of snapshots, and whether it was made for that.
fn make_directory(dir: &Folder) -> Tried<(Folder, bool)> {
    Ok(match snapshots_of(dir)? {
        Some(snapshots) => (snapshots, false),
        None => (dir.make_dir(OsStr::new(SNAPSHOTS), 0o755)?, true),
    })
}

/// Has a directory that can have snapshots be ready for them.
///
/// # Errors
/// If it cannot have any.
pub(super) fn prepare(dir: &Folder) -> Tried<()> {
    let (snapshots, is_new) = make_directory(dir)?;
    check_is_of_snapshots(&snapshots).inspect_err(|_| {
        if is_new {
            let _ = dir.remove_dir(OsStr::new(SNAPSHOTS));
        }
    })
}

/// Takes a snapshot; returns the directory that it is in.
pub(super) fn take(dir: &Folder, name: &OsStr) -> Tried<Folder> {
    // Data that the kernel still has belongs to the state.
    dir.sync()?;
    let (snapshots, is_new) = make_directory(dir)?;
    let taken = check_is_of_snapshots(&snapshots).and_then(|()| snapshots.make_dir(name, 0o755));
    if taken.is_err() && is_new {
        // Nothing has changed then.
        let _ = dir.remove_dir(OsStr::new(SNAPSHOTS));
    }
    taken.map(|_| snapshots)
}

/// Deletes the snapshots that no rule keeps; never the one just taken, whatever the clock says.
fn delete_others(keep: &Keep, snapshots: &Folder, taken: &OsStr, deleted: &mut Vec<String>) -> Tried<()> {
    for name in keep.superfluous(&names_in(snapshots)?) {
        if taken != name.as_str() {
            snapshots.remove_dir(OsStr::new(&name))?;
            deleted.push(name);
        }
    }
    Ok(())
}

#[derive(Serialize)]
struct Row<'r> {
    name: std::borrow::Cow<'r, str>,
    /// When it was taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    taken: Option<String>,
    /// The space that it holds alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    held_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    held_inodes: Option<u64>,
}

/// The space that a snapshot holds alone, or all of a directory of snapshots.
fn space_of(at: &Place) -> Tried<SnapshotSpace> {
    let text = at.xattr(OsStr::from_bytes(SNAPSHOT_XATTR)).map_err(|why| match why {
        why if why.is(Errno::PERM) => Why::new("only the owner of the directory and root see the space of snapshots"),
        why if why.is(Errno::BUSY) => Why::new("somebody else asks for the space of snapshots there; try again later"),
        why if why.is(Errno::NODATA) || why.is(Errno::OPNOTSUPP) => {
            Why::new("the file system there does not tell the space of snapshots")
        }
        why => why,
    })?;
    SnapshotSpace::parse(&text)
        .ok_or_else(|| Why::new("has a report of its space that this program does not understand"))
}

/// The bytes in a column.
fn show_space(space: &SnapshotSpace) -> String {
    format!("{:>10}", size::human(space.bytes))
}

impl List {
    /// Prints a snapshot.
    fn print(&self, name: &OsStr, at: &Place) -> Result<(), Failure> {
        let taken = at.changed();
        let space = match self.space.then(|| space_of(at)) {
            // It was deleted since it was listed.
            Some(Err(why)) if why.is(Errno::NOENT) || why.is(Errno::STALE) => return Ok(()),
            space => space.transpose().map_err(|why| failure(at, why))?,
        };
        if self.json {
            let taken = taken.and_then(|time| Some(Timestamp::try_from(time).ok()?.to_string()));
            return say_json(&Row {
                name: name.to_string_lossy(),
                taken,
                held_bytes: space.map(|space| space.bytes),
                held_inodes: space.map(|space| space.inodes),
            });
        }
        let space = space.as_ref().map(show_space);
        let mut line = space.map_or(String::new(), |space| space + "  ").into_bytes();
        line.extend(show::time(taken, "%Y-%m-%d %H:%M:%S  ").into_bytes());
        line.extend(show::name(name));
        line.push(b'\n');
        output::write(&line);
        Ok(())
    }

    fn run(self) -> Outcome {
        let mut volumes = Volumes::to_read();
        let place = place_of(&self.dir, &mut volumes)?;
        let rows = Folder::open(&place).and_then(|dir| match snapshots_of(&dir)? {
            Some(snapshots) => names_in(&snapshots),
            None => Ok(Vec::new()),
        });
        let above = place.join(OsStr::new(SNAPSHOTS));
        let names = rows.map_err(|why| failure(&place, why))?;
        for name in &names {
            self.print(name, &above.join(name))?;
            if !output::goes_on() {
                break;
            }
        }
        if self.space && !self.json && names.len() > 1 {
            let all = space_of(&above).map_err(|why| failure(&above, why))?;
            output::say(format_args!("{}  all together", show_space(&all)));
        }
        volumes.close()?;
        Ok(0)
    }
}

impl Delete {
    fn run(self) -> Outcome {
        let mut volumes = Volumes::to_change();
        let place = place_of(&self.dir, &mut volumes)?;
        let dir = Folder::open(&place).map_err(|why| failure(&place, why))?;
        let snapshots = snapshots_of(&dir).map_err(|why| failure(&place, why))?;
        let (mut code, mut has_deleted) = (0, false);
        for name in &self.names {
            let deleted = enter(snapshots.as_ref(), name).and_then(|_| match &snapshots {
                Some(snapshots) => check_is_of_snapshots(snapshots).and_then(|()| snapshots.remove_dir(name)),
                None => Ok(()),
            });
            match deleted {
                Ok(()) => has_deleted = true,
                Err(why) => {
                    complain(format_args!("ferrite: {}", place.message(&explained(why))));
                    code = FAILED;
                }
            }
        }
        // With its last snapshot, so that an empty directory can be removed as any other.
        if let Some(snapshots) = snapshots
            && has_deleted
            && names_in(&snapshots).is_ok_and(|names| names.is_empty())
        {
            let _ = dir.remove_dir(OsStr::new(SNAPSHOTS));
        }
        drop(dir);
        volumes.close()?;
        Ok(code)
    }
}

impl Diff {
    fn run(self) -> Outcome {
        let mut volumes = Volumes::to_read();
        let place = place_of(&self.dir, &mut volumes)?;
        let compared = Folder::open(&place).and_then(|dir| {
            let snapshots = snapshots_of(&dir)?;
            let older = enter(snapshots.as_ref(), &self.name)?;
            let newer = match &self.other {
                Some(name) => enter(snapshots.as_ref(), name)?,
                None => dir,
            };
            diff::compare(older, newer, self.json)
        });
        volumes.close()?;
        compared.map_err(|why| failure(&place, why))?;
        Ok(0)
    }
}

#[derive(Serialize)]
struct Restored<'r> {
    /// The snapshot of what was there before.
    before: Option<std::borrow::Cow<'r, str>>,
}

impl Restore {
    fn run(self) -> Outcome {
        let mut volumes = Volumes::to_change();
        let place = place_of(&self.dir, &mut volumes)?;
        let restored = Folder::open(&place).and_then(|dir| self.restore(&dir, &place));
        volumes.close()?;
        let before = restored.map_err(|why| failure(&place, why))?;
        let before = before.as_deref().map(OsStr::to_string_lossy);
        match before {
            before if self.json => say_json(&Restored { before })?,
            Some(before) => output::say(format_args!("what was there before is in the snapshot {before}")),
            None => {}
        }
        Ok(0)
    }

    /// Returns the name of the snapshot that was taken before.
    fn restore(&self, dir: &Folder, place: &Place) -> Tried<Option<OsString>> {
        let snapshots = snapshots_of(dir)?;
        drop(enter(snapshots.as_ref(), &self.name)?);
        if let Some(snapshots) = &snapshots {
            check_is_of_snapshots(snapshots)?;
        }
        restore::check_has_no_snapshots_below(dir)?;
        let before = match self.discard {
            true => None,
            false => Some(take_now(dir)?),
        };
        match (restore::restore(dir, place, &self.name), before) {
            (Err(why), Some(before)) => Err(Why {
                text: format!(
                    "{}; what was there before is in the snapshot {}",
                    why.text,
                    before.display()
                ),
                ..why
            }),
            (restored, before) => restored.map(|()| before),
        }
    }
}

/// Takes a snapshot that is called by the time; waits for the next second if there is one already.
fn take_now(dir: &Folder) -> Tried<OsString> {
    let mut tries = 0;
    loop {
        let name = name_of_now();
        match take(dir, &name) {
            Err(why) if why.is(Errno::EXIST) && tries < 5 => std::thread::sleep(Duration::from_millis(300)),
            taken => return taken.map(|_| name),
        }
        tries += 1;
    }
}
