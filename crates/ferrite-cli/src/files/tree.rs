//! Copying files and trees from one place to another.
//!
//! Invariant: no file has its final name before it is whole; until then it has one that begins with [`TEMPORARY`]. What
//! fails is reported and skipped, and the rest is copied.

use std::time::{SystemTime, UNIX_EPOCH};

use ferrite::FileKind;
use rustix::io::Errno;

use super::content::{self, Watch};
use super::place::{Found, Place, Result, Why};
use crate::complain;

/// How things are copied.
pub(super) struct How {
    pub(super) recursive: bool,
    pub(super) preserve: bool,
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
    /// The directories that were made at the top. They are not copied: the copy would not end.
    made: Vec<(u64, u64)>,
    temporaries: u64,
}

/// How the name begins of a file that is not whole yet.
const TEMPORARY: &str = ".ferrite-cp-";

/// The message of something that failed at a place.
fn at(place: &Place) -> impl FnOnce(Why) -> String + '_ {
    move |why| place.message(&why)
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

    /// Copies `from`, whose copy gets the name `to`.
    pub(super) fn copy(&mut self, from: &Place, to: &Place) {
        let found = match self.how.recursive {
            true => from.look(),
            false => from.look_through(),
        };
        let copied = found
            .map_err(at(from))
            .and_then(|found| self.copy_found(from, &found, to, true));
        if let Err(message) = copied {
            self.report(&message);
        }
    }

    /// Copies standard input.
    pub(super) fn copy_input(&mut self, to: &Place) {
        if let Err(message) = self.copy_file(None, to) {
            self.report(&message);
        }
    }

    fn copy_found(&mut self, from: &Place, found: &Found, to: &Place, is_top: bool) -> Result<(), String> {
        self.watch.check().map_err(at(from))?;
        if found.is_dir() {
            return self.copy_dir(from, found, to, is_top);
        }
        if to.ends_in_slash() {
            return Err(to.message(&Why::from(Errno::NOTDIR)));
        }
        let is_content = found.kind == FileKind::File || !self.how.recursive;
        if is_content {
            return self.copy_file(Some((from, found)), to);
        }
        let Some(replace) = self.may_replace(Some(found), to)? else {
            return Ok(());
        };
        let mode = found.mode & !self.how.umask;
        let new = match found.kind {
            FileKind::Symlink => {
                let target = from.read_link().map_err(at(from))?;
                self.make_temporary(to, |new| new.symlink(&target))?
            }
            _ => self.make_temporary(to, |new| new.make_node(found, mode))?,
        };
        let finished = match self.how.preserve {
            true => new.0.preserve(from, found).map_err(at(to)),
            false => Ok(()),
        };
        self.finish(finished, &new.0, to, replace.is_some())
    }

    /// Copies content: that of a file, or standard input.
    fn copy_file(&mut self, from: Option<(&Place, &Found)>, to: &Place) -> Result<(), String> {
        // First, as users expect the complaint about what is not there.
        let source = match from {
            Some((place, _)) => Some((place, place.open().map_err(at(place))?)),
            None => None,
        };
        let Some(replace) = self.may_replace(from.map(|(_, found)| found), to)? else {
            return Ok(());
        };
        let wanted = match (replace, from) {
            (Some(there), _) => there & 0o777,
            (None, Some((_, found))) => found.mode & 0o777 & !self.how.umask,
            (None, None) => 0o666 & !self.how.umask,
        };
        // Open to nobody else before it has its owner.
        let mode = if self.how.preserve { 0o600 } else { wanted };
        let (new, file) = self.make_temporary(to, |new| new.create_new(mode))?;
        let copied = match &source {
            Some((_, source)) => content::copy(source, &file, &self.watch),
            None => content::copy_input(&file, &self.watch),
        };
        let mut finished = copied.map_err(at(to));
        if let (Ok(()), Some((place, found)), true) = (&finished, from, self.how.preserve) {
            finished = new.preserve(place, found).map_err(at(to));
        } else if finished.is_ok() && replace.is_some() {
            // The umask is not for what was there.
            finished = new.set_mode(wanted).map_err(at(to));
        }
        drop(file);
        self.finish(finished, &new, to, replace.is_some())
    }

    /// Gives a file that is whole its name, or removes it.
    fn finish(&self, finished: Result<(), String>, new: &Place, to: &Place, replaces: bool) -> Result<(), String> {
        let replace = replaces || !self.how.no_clobber;
        let named = finished.and_then(|()| match new.rename(to, replace) {
            // Somebody was faster.
            Err(why) if !replace && why.is(Errno::EXIST) => new.remove_file().map_err(at(to)),
            named => named.map_err(at(to)),
        });
        if named.is_err() {
            // It has failed already.
            let _ = new.remove_file();
        }
        named
    }

    /// The permission bits of the file that is replaced, or `Some(None)` if none is; `None` if it is to be kept.
    fn may_replace(&self, from: Option<&Found>, to: &Place) -> Result<Option<Option<u32>>, String> {
        let Some(there) = to.look_for().map_err(at(to))? else {
            // There may be a symbolic link that leads nowhere, which is replaced.
            return Ok(match self.how.no_clobber && to.look().is_ok() {
                true => None,
                false => Some(None),
            });
        };
        let refuse = |text: &str| Err(to.message(&Why::new(text)));
        match from {
            Some(from) if from.identity == there.identity => return refuse("is the file itself"),
            _ if self.how.no_clobber => return Ok(None),
            _ if there.is_dir() => return refuse("is a directory, and cannot be replaced by what is none"),
            _ if there.kind != FileKind::File => {
                return refuse("is no regular file, and is not replaced; to write to standard output give `-`");
            }
            _ => {}
        }
        // It is replaced, not written; so this is not the system's rule, but what users expect.
        match self.how.force || to.may_write() {
            true => Ok(Some(Some(there.mode))),
            false => refuse("Permission denied; give -f to replace it nevertheless"),
        }
    }

    /// Makes something next to `to`, under a name of its own.
    fn make_temporary<T>(&mut self, to: &Place, make: impl Fn(&Place) -> Result<T>) -> Result<(Place, T), String> {
        let nanos = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |now| now.subsec_nanos());
        loop {
            self.temporaries += 1;
            let name = format!("{TEMPORARY}{}-{nanos}-{}", std::process::id(), self.temporaries);
            let new = to.parent().join(name.as_ref());
            match make(&new) {
                Ok(made) => return Ok((new, made)),
                Err(why) if why.is(Errno::EXIST) => {}
                Err(why) => return Err(to.message(&why)),
            }
        }
    }

    fn copy_dir(&mut self, from: &Place, found: &Found, to: &Place, is_top: bool) -> Result<(), String> {
        let refuse = |place: &Place, text: &str| Err(place.message(&Why::new(text)));
        if !self.how.recursive {
            return refuse(from, "is a directory, and is left out; give -r to copy it");
        }
        if self.made.contains(&found.identity) {
            return refuse(from, "is the copy that is being made, and is left out");
        }
        // Before it has another entry, which may be the copy.
        let names = from.names().map_err(at(from))?;
        let is_new = match to.look_for().map_err(at(to))? {
            Some(there) if there.identity == found.identity => return refuse(to, "is the directory itself"),
            Some(there) if there.is_dir() => false,
            Some(_) => return refuse(to, "is no directory, and cannot be replaced by one"),
            None => {
                // Its owner must be able to fill it.
                to.create_dir((found.mode & 0o777 & !self.how.umask) | 0o700)
                    .map_err(at(to))?;
                true
            }
        };
        if is_top {
            self.made.push(to.look_through().map_err(at(to))?.identity);
        }
        for name in names {
            let (from, to) = (from.join(&name), to.join(&name));
            let copied = from
                .look()
                .map_err(at(&from))
                .and_then(|found| self.copy_found(&from, &found, &to, false));
            if let Err(message) = copied {
                self.report(&message);
            }
            if self.watch.check().is_err() {
                // It was reported.
                return Ok(());
            }
        }
        let mode = found.mode & 0o777 & !self.how.umask;
        match (self.how.preserve, is_new) {
            (true, _) => to.preserve(from, found).map_err(at(to)),
            (false, true) if mode | 0o700 != mode => to.set_mode(mode).map_err(at(to)),
            _ => Ok(()),
        }
    }
}
