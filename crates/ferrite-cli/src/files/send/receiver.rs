//! The receiving side: records, applied to a directory.
//!
//! Invariants: nothing outside of the directory is read or changed, whatever the stream says: paths lead through
//! directories only, never through links or `..`, and never into a directory of snapshots. A record that is applied
//! again, with those that followed it, leads to the same state.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::SystemTime;

use ferrite::FileKind;
use rustix::io::Errno;

use super::super::folder::{Folder, Kept, Thing};
use super::super::place::{Found, Open, Result, Why, time};
use super::super::snapshot::SNAPSHOTS;
use super::is_marker;
use super::stream::{Attributes, File, Record, Time};

/// Modes of what is not complete yet: nobody else reads it.
const DIR_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
/// Longest path below the directory.
const PATH_BYTES_MAX: usize = 64 << 10;

/// See the head of this module.
pub(super) struct Receiver<'r> {
    dir: &'r Folder,
    /// The directory that was used last, with its path.
    last: Option<(Vec<u8>, Folder)>,
    /// The file whose data arrives, with its path.
    file: Option<(Vec<u8>, Open)>,
}

/// A path that ends at a name.
fn split(path: &[u8]) -> Result<(&[u8], &OsStr)> {
    if path.len() > PATH_BYTES_MAX {
        return Err(Why::new("a path is too long"));
    }
    let (above, name) = match path.iter().rposition(|&byte| byte == b'/') {
        Some(0) => return Err(Why::new("a path leads from the root of this machine")),
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (&b""[..], path),
    };
    Ok((above, check(name)?))
}

/// Refuses a name by which snapshots would be made. A folder refuses those that lead elsewhere.
fn check(name: &[u8]) -> Result<&OsStr> {
    let name = OsStr::from_bytes(name);
    match name == SNAPSHOTS {
        true => Err(Why::new(format!("`{SNAPSHOTS}` is not sent"))),
        false => Ok(name),
    }
}

impl<'r> Receiver<'r> {
    pub(super) fn new(dir: &'r Folder) -> Receiver<'r> {
        Receiver {
            dir,
            last: None,
            file: None,
        }
    }

    /// Goes on with a file of which data was received before.
    pub(super) fn reopen(&mut self, path: &[u8]) -> Result<()> {
        let file = self.in_parent(path, open)?;
        self.file = Some((path.to_vec(), file));
        Ok(())
    }

    /// Applies a record that is neither the first nor the last of a stream.
    pub(super) fn apply(&mut self, record: &Record<'_>) -> Result<()> {
        match record {
            Record::Data(data) => return self.open_file()?.write_all_at(data.bytes, data.offset),
            Record::Hole(hole) => return self.open_file()?.punch(hole.offset, hole.len_bytes),
            Record::Attributes(attributes) => return self.set_attributes(attributes),
            _ => self.file = None,
        }
        match *record {
            Record::Remove(path) => self.remove(path),
            Record::Directory(path) => self.in_parent(path, |above, name| {
                match above.look_for(name)? {
                    Some(found) if found.is_dir() => return Ok(()),
                    Some(_) => above.remove_file(name)?,
                    None => {}
                }
                above.make_dir(name, DIR_MODE).map(drop)
            }),
            Record::File(file) => self.start_file(&file),
            Record::Symlink(link) => self.in_parent(link.path, |above, name| {
                clear(above, name)?;
                above.symlink(Path::new(OsStr::from_bytes(link.target)), name)
            }),
            Record::Node(node) => self.in_parent(node.path, |above, name| {
                clear(above, name)?;
                let like = found(kind_of(node.mode)?, node.mode, node.rdev);
                above.make_node(name, &like, like.mode)
            }),
            Record::Link(link) => {
                let (path, name) = split(link.original)?;
                let original = self.walk(path)?;
                let from = original.as_ref().unwrap_or(self.dir);
                self.in_parent(link.path, |above, new| {
                    clear(above, new)?;
                    from.link_to(name, above, new)
                })
            }
            _ => Err(Why::new("the stream has a record where none can be")),
        }
    }

    fn remove(&mut self, path: &[u8]) -> Result<()> {
        let is_below = |last: &[u8]| {
            last.strip_prefix(path)
                .is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
        };
        self.last.take_if(|(last, _)| is_below(last));
        match self.in_parent(path, clear) {
            // It was removed before, with what it was in.
            Err(why) if why.is(Errno::NOENT) => Ok(()),
            removed => removed,
        }
    }

    fn open_file(&self) -> Result<&Open> {
        let none = || Why::new("the stream has data without a file");
        self.file.as_ref().map(|(_, file)| file).ok_or_else(none)
    }

    fn start_file(&mut self, file: &File<'_>) -> Result<()> {
        let opened = self.in_parent(file.path, |above, name| {
            let opened = match file.is_new {
                true => {
                    clear(above, name)?;
                    above.create_new(name, FILE_MODE)?
                }
                false => open(above, name)?,
            };
            opened.set_len(file.len_bytes)?;
            Ok(opened)
        })?;
        self.file = Some((file.path.to_vec(), opened));
        Ok(())
    }

    fn set_attributes(&mut self, attributes: &Attributes<'_>) -> Result<()> {
        let file = self.file.take();
        let kind = kind_of(attributes.mode)?;
        let mut like = found(kind, attributes.mode, 0);
        (like.uid, like.gid) = (attributes.uid, attributes.gid);
        (like.accessed, like.modified) = (time_of(attributes.accessed)?, time_of(attributes.modified)?);
        let xattrs: Vec<(OsString, Vec<u8>)> = attributes
            .xattrs
            .iter()
            .map(|&(name, value)| (OsStr::from_bytes(name).to_owned(), value.to_vec()))
            .filter(|(name, _)| !is_marker(name))
            .collect();
        let set = |thing: Thing<'_>| thing.set_all(&like, &xattrs, is_marker, Kept { privileges: true });
        match &file {
            Some((path, file)) if path == attributes.path => set(file.thing()),
            _ if attributes.path.is_empty() => set(self.dir.thing()),
            _ => self.in_parent(attributes.path, |above, name| set(above.closed(name, kind)?)),
        }
    }

    /// Does something with a name in its directory.
    fn in_parent<T>(&mut self, path: &[u8], act: impl FnOnce(&Folder, &OsStr) -> Result<T>) -> Result<T> {
        let (above, name) = split(path)?;
        if above.is_empty() {
            return act(self.dir, name);
        }
        if self.last.as_ref().is_none_or(|(path, _)| path != above) {
            self.last = self.walk(above)?.map(|folder| (above.to_vec(), folder));
        }
        let gone = || Why::from(Errno::NOENT);
        let (_, folder) = self.last.as_ref().ok_or_else(gone)?;
        act(folder, name)
    }

    /// Opens a directory below; `None` for the directory itself.
    fn walk(&self, path: &[u8]) -> Result<Option<Folder>> {
        let mut folder = None::<Folder>;
        for name in path.split(|&byte| byte == b'/').filter(|_| !path.is_empty()) {
            folder = Some(folder.as_ref().unwrap_or(self.dir).enter(check(name)?)?);
        }
        Ok(folder)
    }
}

/// Opens a file to change it, also if its owner may not write it.
fn open(above: &Folder, name: &OsStr) -> Result<Open> {
    match above.open_to_write(name) {
        Err(why) if why.is_refusal() => {
            above.closed(name, FileKind::File)?.set_mode(FILE_MODE)?;
            above.open_to_write(name)
        }
        opened => opened,
    }
}

/// Removes what has a name, if anything has.
fn clear(above: &Folder, name: &OsStr) -> Result<()> {
    match above.look_for(name)? {
        Some(found) if found.is_dir() => above.remove_tree(name),
        Some(_) => above.remove_file(name),
        None => Ok(()),
    }
}

fn kind_of(mode: u32) -> Result<FileKind> {
    FileKind::from_mode(mode).ok_or_else(|| Why::new("the stream has a file of an unknown kind"))
}

fn time_of((seconds, nanos): Time) -> Result<SystemTime> {
    match nanos < 1_000_000_000 {
        true => Ok(time(seconds, nanos.into())),
        false => Err(Why::new("the stream has a time with too many nanoseconds")),
    }
}

fn found(kind: FileKind, mode: u32, rdev: u64) -> Found {
    Found {
        kind,
        mode: mode & 0o7777,
        uid: 0,
        gid: 0,
        rdev,
        links: 1,
        identity: (0, 0),
        len_bytes: 0,
        accessed: SystemTime::UNIX_EPOCH,
        modified: SystemTime::UNIX_EPOCH,
        changed: SystemTime::UNIX_EPOCH,
    }
}
