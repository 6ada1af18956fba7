//! Copying files and trees from one place to another.
//!
//! Invariants:
//! * No file has its final name before it is whole; until then it has one that begins with [`TEMPORARY`]. A copy that
//!   fails is reported and skipped, and the rest is copied.
//! * The path that a user names may be a symbolic link; below it no link is followed ([`super::folder`]). A file
//!   replaces an entry of the target that is a link; such an entry blocks a directory.
//! * A walk keeps a list of levels, not recursion on the thread's stack, and few descriptors: another user chooses the
//!   depth of the tree.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::time::{SystemTime, UNIX_EPOCH};

use ferrite::FileKind;
use rustix::io::Errno;

use super::content::{self, Watch};
use super::folder::{Folder, Kept, NAMES_MAX, Thing};
use super::place::{Found, Open, Place, Result, Why};
use crate::complain;

/// How things are copied.
pub(super) struct How {
    pub(super) recursive: bool,
    pub(super) preserve: bool,
    /// A server's files may have privileges on this machine.
    pub(super) privileges: bool,
    pub(super) no_clobber: bool,
    pub(super) force: bool,
    pub(super) umask: u32,
}

/// A copy under way.
pub(super) struct Job {
    pub(super) how: How,
    pub(super) watch: Watch,
    /// Something could not be copied.
    pub(super) has_failed: bool,
    /// The directories made at the top. They are not copied: the copy would not end.
    made: Vec<(u64, u64)>,
    temporaries: u64,
}

/// The first characters in the name of an incomplete file.
const TEMPORARY: &str = ".ferrite-cp-";
/// Levels of a tree that are copied. A server can claim that each directory contains another one, without end.
const LEVELS_MAX: usize = 8192;
/// Longest path of an entry below the top, for the same reason.
const PATH_BYTES_MAX: usize = 64 << 10;
/// Levels above the lowest whose directories stay open; higher ones are opened again on the way back.
const OPEN_LEVELS: usize = 32;

/// One of the two trees, and the names of its entries in messages.
struct Side<'p> {
    top: &'p Place,
    path: Vec<u8>,
}

impl<'p> Side<'p> {
    fn of(top: &'p Place) -> Side<'p> {
        Side {
            top,
            path: top.shown().into_vec(),
        }
    }

    fn message(&self, why: &Why) -> String {
        self.top.message_at(OsStr::from_bytes(&self.path), why)
    }

    /// Goes to an entry; returns the way back.
    fn push(&mut self, name: &OsStr) -> usize {
        let len = self.path.len();
        if !self.path.ends_with(b"/") {
            self.path.push(b'/');
        }
        self.path.extend_from_slice(name.as_bytes());
        len
    }
}

/// Source and target of the copy, as messages name them.
struct Sides<'p> {
    from: Side<'p>,
    to: Side<'p>,
}

impl<'p> Sides<'p> {
    fn of(from: &'p Place, to: &'p Place) -> Sides<'p> {
        Sides {
            from: Side::of(from),
            to: Side::of(to),
        }
    }

    fn failed_from(&self) -> impl FnOnce(Why) -> String + '_ {
        move |why| self.from.message(&why)
    }

    fn failed_to(&self) -> impl FnOnce(Why) -> String + '_ {
        move |why| self.to.message(&why)
    }

    /// A server's files come to this machine.
    fn is_download(&self) -> bool {
        self.from.top.is_remote() && !self.to.top.is_remote()
    }

    fn push(&mut self, name: &OsStr) -> (usize, usize) {
        (self.from.push(name), self.to.push(name))
    }

    fn pop(&mut self, (from, to): (usize, usize)) {
        self.from.path.truncate(from);
        self.to.path.truncate(to);
    }
}

/// A directory on the way down: open, or the means to recognise it again.
enum Level {
    Open(Folder),
    Closed((u64, u64)),
}

impl Level {
    fn folder(&self) -> Result<&Folder> {
        match self {
            Level::Open(folder) => Ok(folder),
            Level::Closed(_) => Err(Why::new("is not open any more")),
        }
    }

    /// Gives its descriptor back, if it has one.
    fn close(&mut self) -> Result<()> {
        if let Level::Open(folder) = self
            && folder.is_here()
        {
            *self = Level::Closed(folder.itself()?.identity);
        }
        Ok(())
    }

    /// Opens it again from `below`, a directory in it, unless that was moved.
    fn open_from(&mut self, below: &Folder) -> Result<()> {
        if let Level::Closed(identity) = *self {
            let above = below.above()?;
            if above.itself()?.identity != identity {
                return Err(Why::new(
                    "was moved while it was copied, so the rest of what it was in is left out; copy it again",
                ));
            }
            *self = Level::Open(above);
        }
        Ok(())
    }
}

/// A directory that is being copied.
struct Walk {
    from: Level,
    to: Level,
    names: std::vec::IntoIter<OsString>,
    found: Found,
    is_new: bool,
    /// The lengths of the paths of the level above.
    back: (usize, usize),
}

/// The source of content.
enum Source<'s> {
    Input,
    File(Open, &'s Found),
}

/// The target of a copy: a directory, and a name in it.
#[derive(Clone, Copy)]
struct Spot<'s> {
    folder: &'s Folder,
    name: &'s OsStr,
}

impl Job {
    pub(super) fn new(how: How, watch: Watch) -> Job {
        Job {
            how,
            watch,
            has_failed: false,
            made: Vec::new(),
            temporaries: 0,
        }
    }

    pub(super) fn report(&mut self, message: &str) {
        self.has_failed = true;
        self.watch.bar.suspend(|| complain(format_args!("ferrite: {message}")));
    }

    /// Copies `from` to `to`.
    pub(super) fn copy(&mut self, from: &Place, to: &Place) {
        if let Err(message) = self.copy_top(from, to) {
            self.report(&message);
        }
    }

    /// Copies standard input.
    pub(super) fn copy_input(&mut self, to: &Place) {
        let sides = Sides::of(to, to);
        let copied = spot_of(to).and_then(|(folder, name)| {
            let spot = Spot {
                folder: &folder,
                name: &name,
            };
            self.copy_file(Source::Input, spot, &sides)
        });
        if let Err(message) = copied {
            self.report(&message);
        }
    }

    fn copy_top(&mut self, from: &Place, to: &Place) -> Result<(), String> {
        let mut sides = Sides::of(from, to);
        self.watch.check().map_err(sides.failed_from())?;
        let found = match self.how.recursive {
            true => from.look(),
            false => from.look_through(),
        };
        let found = found.map_err(sides.failed_from())?;
        if found.is_dir() {
            return self.copy_tree(from, to, &mut sides);
        }
        if to.ends_in_slash() {
            return Err(to.message(&Why::from(Errno::NOTDIR)));
        }
        // The file itself under another name; the check follows no link below the target.
        let there = to.look_for().map_err(sides.failed_to())?;
        if there.is_some_and(|there| there.identity == found.identity) {
            return Err(to.message(&Why::new("is the file itself")));
        }
        if found.kind == FileKind::File || !self.how.recursive {
            // First, because users expect the complaint about a missing source.
            let source = Source::File(from.open().map_err(sides.failed_from())?, &found);
            let (folder, name) = spot_of(to)?;
            let spot = Spot {
                folder: &folder,
                name: &name,
            };
            return self.copy_file(source, spot, &sides);
        }
        let (from_folder, from_name) = spot_of(from)?;
        let (folder, name) = spot_of(to)?;
        let spot = Spot {
            folder: &folder,
            name: &name,
        };
        self.copy_special(&from_folder, &from_name, &found, spot, &sides)
    }

    /// Copies a link or a special file.
    fn copy_special(
        &mut self,
        from: &Folder,
        name: &OsStr,
        found: &Found,
        to: Spot<'_>,
        sides: &Sides<'_>,
    ) -> Result<(), String> {
        let is_device = matches!(found.kind, FileKind::CharDevice | FileKind::BlockDevice);
        if is_device && sides.is_download() && !self.how.privileges {
            return Err(sides.from.message(&Why::new(
                "is a device, and a server's is not made on this machine; give --privileges to have it made",
            )));
        }
        let Some(replace) = self.may_replace(Some(found), to, sides)? else {
            return Ok(());
        };
        let mode = found.mode & 0o7777 & !self.how.umask;
        let new = match found.kind {
            FileKind::Symlink => {
                let target = from.read_link(name).map_err(sides.failed_from())?;
                self.make_temporary(sides, |new| to.folder.symlink(&target, new))?.0
            }
            _ => {
                self.make_temporary(sides, |new| to.folder.make_node(new, found, mode))?
                    .0
            }
        };
        let finished = match self.how.preserve {
            true => to.folder.closed(&new, found.kind).and_then(|made| {
                let from = from.closed(name, found.kind)?;
                made.preserve(&from, found, self.kept(sides))
            }),
            false => Ok(()),
        };
        self.finish(finished, &new, to, replace.is_some(), sides)
    }

    /// Copies content: that of a file, or standard input.
    fn copy_file(&mut self, source: Source<'_>, to: Spot<'_>, sides: &Sides<'_>) -> Result<(), String> {
        let found = match &source {
            Source::File(_, found) => Some(*found),
            Source::Input => None,
        };
        let Some(replace) = self.may_replace(found, to, sides)? else {
            return Ok(());
        };
        let wanted = match (replace, found) {
            (Some(there), _) => there & 0o777,
            (None, Some(found)) => found.mode & 0o777 & !self.how.umask,
            (None, None) => 0o666 & !self.how.umask,
        };
        // Closed to other users before it has its owner.
        let mode = if self.how.preserve { 0o600 } else { wanted };
        let (new, file) = self.make_temporary(sides, |new| to.folder.create_new(new, mode))?;
        let finished = match &source {
            Source::File(source, _) => content::copy(source, &file, &self.watch),
            Source::Input => content::copy_input(&file, &self.watch),
        };
        let finished = finished.and_then(|()| match &source {
            Source::File(source, found) if self.how.preserve => {
                file.thing().preserve(&source.thing(), found, self.kept(sides))
            }
            // The umask does not apply to a file that existed before.
            _ if replace.is_some() => file.thing().set_mode(wanted),
            _ => Ok(()),
        });
        drop(file);
        self.finish(finished, &new, to, replace.is_some(), sides)
    }

    fn kept(&self, sides: &Sides<'_>) -> Kept {
        Kept {
            privileges: self.how.privileges || !sides.is_download(),
        }
    }

    /// Gives a complete file its name, or removes it.
    fn finish(
        &self,
        finished: Result<()>,
        new: &OsStr,
        to: Spot<'_>,
        replaces: bool,
        sides: &Sides<'_>,
    ) -> Result<(), String> {
        let replace = replaces || !self.how.no_clobber;
        let named = finished.and_then(|()| match to.folder.rename(new, to.name, replace) {
            // Another process was faster.
            Err(why) if !replace && why.is(Errno::EXIST) => to.folder.remove_file(new),
            named => named,
        });
        if named.is_err() {
            // It has failed already.
            let _ = to.folder.remove_file(new);
        }
        named.map_err(sides.failed_to())
    }

    /// The permission bits of the file to replace, or `Some(None)` if no file exists; `None` if the existing file is
    /// kept.
    fn may_replace(
        &self,
        from: Option<&Found>,
        to: Spot<'_>,
        sides: &Sides<'_>,
    ) -> Result<Option<Option<u32>>, String> {
        let Some(there) = to.folder.look_for(to.name).map_err(sides.failed_to())? else {
            return Ok(Some(None));
        };
        let refuse = |text: &str| Err(sides.to.message(&Why::new(text)));
        match from {
            Some(from) if from.identity == there.identity => return refuse("is the file itself"),
            _ if self.how.no_clobber => return Ok(None),
            _ if there.is_dir() => return refuse("is a directory, and only a directory can take its place"),
            // The target of the link stays as it is.
            _ if there.kind == FileKind::Symlink => return Ok(Some(None)),
            _ if there.kind != FileKind::File => {
                return refuse("is no regular file, and is not replaced; to write to standard output give `-`");
            }
            _ => {}
        }
        // The copy replaces the file and does not write to it, so this is not a rule of the system but what users
        // expect.
        match self.how.force || to.folder.may_write(to.name) {
            true => Ok(Some(Some(there.mode))),
            false => refuse("Permission denied; give -f to replace it nevertheless"),
        }
    }

    /// Makes something next to `to`, under a unique name.
    fn make_temporary<T>(
        &mut self,
        sides: &Sides<'_>,
        make: impl Fn(&OsStr) -> Result<T>,
    ) -> Result<(OsString, T), String> {
        let nanos = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |now| now.subsec_nanos());
        loop {
            self.temporaries += 1;
            let name = OsString::from(format!(
                "{TEMPORARY}{}-{nanos}-{}",
                std::process::id(),
                self.temporaries
            ));
            match make(&name) {
                Ok(made) => return Ok((name, made)),
                Err(why) if why.is(Errno::EXIST) => {}
                Err(why) => return Err(sides.to.message(&why)),
            }
        }
    }

    fn copy_tree(&mut self, from: &Place, to: &Place, sides: &mut Sides<'_>) -> Result<(), String> {
        if !self.how.recursive {
            let why = "is a directory, and is left out; give -r to copy it";
            return Err(from.message(&Why::new(why)));
        }
        let from_folder = Folder::open(from).map_err(sides.failed_from())?;
        let found = from_folder.itself().map_err(sides.failed_from())?;
        let there = to.look_for().map_err(sides.failed_to())?;
        if there.as_ref().is_some_and(|there| there.identity == found.identity) {
            return Err(to.message(&Why::new("is the directory itself")));
        }
        // Before any change.
        let parent = match &there {
            Some(there) if !there.is_dir() => {
                return Err(to.message(&Why::new("is no directory, and cannot be replaced by one")));
            }
            Some(_) => (Folder::open(to).map_err(sides.failed_to())?, None),
            None => spot_of(to).map(|(folder, name)| (folder, Some(name)))?,
        };
        if is_below(&parent.0, &found).map_err(sides.failed_to())? {
            return Err(to.message(&Why::new(
                "is below the directory that is copied, and the copy would hold itself; copy to somewhere else",
            )));
        }
        let names = from_folder
            .names(NAMES_MAX, &|| self.watch.check())
            .map_err(sides.failed_from())?;
        let (to_folder, is_new) = match parent {
            (folder, None) => (folder, false),
            (folder, Some(name)) => {
                let made = folder.make_dir(&name, self.new_dir_mode(&found));
                (made.map_err(sides.failed_to())?, true)
            }
        };
        self.made.push(to_folder.itself().map_err(sides.failed_to())?.identity);
        let top = Walk {
            from: Level::Open(from_folder),
            to: Level::Open(to_folder),
            names: names.into_iter(),
            found,
            is_new,
            back: (sides.from.path.len(), sides.to.path.len()),
        };
        self.walk(top, sides)
    }

    /// The owner must be able to fill it.
    fn new_dir_mode(&self, found: &Found) -> u32 {
        (found.mode & 0o777 & !self.how.umask) | 0o700
    }

    /// Copies the entries of directories, depth first.
    fn walk(&mut self, top: Walk, sides: &mut Sides<'_>) -> Result<(), String> {
        let mut kept_names = top.names.len();
        let mut levels = vec![top];
        while let Some(level) = levels.last_mut() {
            self.watch.check().map_err(sides.failed_from())?;
            let Some(name) = level.names.next() else {
                self.leave(&mut levels, sides)?;
                continue;
            };
            kept_names -= 1;
            let back = sides.push(&name);
            let depth = levels.len();
            let entered = self.copy_entry(&levels[depth - 1], &name, depth, NAMES_MAX - kept_names, sides);
            match entered {
                Ok(Some(next)) => {
                    kept_names += next.names.len();
                    levels.push(Walk { back, ..next });
                    self.spare(&mut levels, sides)?;
                }
                Ok(None) => sides.pop(back),
                Err(message) => {
                    sides.pop(back);
                    // An interruption is reported once, at the top of the loop.
                    if self.watch.check().is_ok() {
                        self.report(&message);
                    }
                }
            }
        }
        Ok(())
    }

    /// Closes the directories of a level that is far above.
    fn spare(&self, levels: &mut [Walk], sides: &Sides<'_>) -> Result<(), String> {
        // The top stays open: no directory below it surely leads back to it, because a user's path may be a link.
        if let Some(far) = levels.len().checked_sub(OPEN_LEVELS + 1).filter(|&far| far > 0) {
            levels[far].from.close().map_err(sides.failed_from())?;
            levels[far].to.close().map_err(sides.failed_to())?;
        }
        Ok(())
    }

    /// Copies an entry; if it is a directory, makes it and returns it as the next one to walk.
    fn copy_entry(
        &mut self,
        level: &Walk,
        name: &OsStr,
        depth: usize,
        names_max: usize,
        sides: &Sides<'_>,
    ) -> Result<Option<Walk>, String> {
        let from = level.from.folder().map_err(sides.failed_from())?;
        let to = Spot {
            folder: level.to.folder().map_err(sides.failed_to())?,
            name,
        };
        let found = from.look(name).map_err(sides.failed_from())?;
        match found.kind {
            FileKind::Directory => {}
            FileKind::File => {
                let source = Source::File(from.open_file(name, &found).map_err(sides.failed_from())?, &found);
                return self.copy_file(source, to, sides).map(|()| None);
            }
            _ => return self.copy_special(from, name, &found, to, sides).map(|()| None),
        }
        let refuse = |side: &Side<'_>, text: &str| Err(side.message(&Why::new(text)));
        if self.made.contains(&found.identity) {
            return refuse(&sides.from, "is the copy that is being made, and is left out");
        }
        if depth >= LEVELS_MAX || sides.from.path.len() > PATH_BYTES_MAX {
            let text = format!(
                "is left out: a copy goes {LEVELS_MAX} levels and paths of {PATH_BYTES_MAX} bytes deep; copy from a \
                 directory further down"
            );
            return refuse(&sides.from, &text);
        }
        let entered = from.enter(name).map_err(sides.failed_from())?;
        if entered.is_here() && entered.itself().map_err(sides.failed_from())?.identity != found.identity {
            return refuse(
                &sides.from,
                "was replaced by another directory while it was copied; copy it again",
            );
        }
        // Before it gets another entry, which may be the copy.
        let names = entered
            .names(names_max, &|| self.watch.check())
            .map_err(sides.failed_from())?;
        let (made, is_new) = match to.folder.look_for(name).map_err(sides.failed_to())? {
            Some(there) if there.identity == found.identity => return refuse(&sides.to, "is the directory itself"),
            Some(there) if there.is_dir() => (to.folder.enter(name).map_err(sides.failed_to())?, false),
            Some(there) if there.kind == FileKind::Symlink => {
                let text = "is a symbolic link, which is not followed below the target; remove it, or copy to where \
                            it leads";
                return refuse(&sides.to, text);
            }
            Some(_) => return refuse(&sides.to, "is no directory, and cannot be replaced by one"),
            None => {
                let made = to.folder.make_dir(name, self.new_dir_mode(&found));
                (made.map_err(sides.failed_to())?, true)
            }
        };
        Ok(Some(Walk {
            from: Level::Open(entered),
            to: Level::Open(made),
            names: names.into_iter(),
            found,
            is_new,
            back: (0, 0),
        }))
    }

    /// Completes a directory: sets its attributes, and continues with its parent.
    fn leave(&mut self, levels: &mut Vec<Walk>, sides: &mut Sides<'_>) -> Result<(), String> {
        let Some(level) = levels.pop() else {
            return Ok(());
        };
        let (from, to) = (
            level.from.folder().map_err(sides.failed_from())?,
            level.to.folder().map_err(sides.failed_to())?,
        );
        let mode = level.found.mode & 0o777 & !self.how.umask;
        let made: Thing<'_> = to.thing();
        let finished = match (self.how.preserve, level.is_new) {
            (true, _) => made.preserve(&from.thing(), &level.found, self.kept(sides)),
            (false, true) if mode | 0o700 != mode => made.set_mode(mode),
            _ => Ok(()),
        };
        if let Err(message) = finished.map_err(sides.failed_to()) {
            self.report(&message);
        }
        if let Some(above) = levels.last_mut() {
            above.from.open_from(from).map_err(sides.failed_from())?;
            above.to.open_from(to).map_err(sides.failed_to())?;
        }
        sides.pop(level.back);
        Ok(())
    }
}

/// The directory that holds the last component of a user's path, and that name.
fn spot_of(place: &Place) -> Result<(Folder, OsString), String> {
    let failed = |why: Why| place.message(&why);
    let Some(name) = place.path().file_name() else {
        return Err(place.message(&Why::new("is a directory, and only a directory can take its place")));
    };
    Ok((Folder::open(&place.parent()).map_err(failed)?, name.to_owned()))
}

/// Whether `folder` is the directory that was `found`, or below it.
fn is_below(folder: &Folder, found: &Found) -> Result<bool> {
    let mut is_below = false;
    folder.up(LEVELS_MAX, |identity| {
        is_below = identity == found.identity;
        is_below
    })?;
    Ok(is_below)
}
