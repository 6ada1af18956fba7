//! Which directories of a served pool take the space: [`Space`].
//!
//! A walk is bounded by [`ENTRIES_MAX`] and [`TIME_MAX`]; the answer says whether it reached everything. One walk
//! runs at a time, so that readers of the console cannot slow the server down together.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ferrite_vfs::{Attr, FileKind, FileSystem, FsError, Ino, SYSTEM, Start};
use serde::Serialize;

use crate::endpoint::{Get, Reply};
use crate::served::Volumes;

/// Entries of directories that a walk visits.
const ENTRIES_MAX: usize = 200_000;
const TIME_MAX: Duration = Duration::from_secs(2);
/// The largest that are shown.
const SHOWN_MAX: usize = 200;

/// See the head of this module.
pub(super) struct Space {
    volumes: Volumes,
    walk: Mutex<()>,
}

/// A file or directory, with all that is below it.
#[derive(Serialize)]
struct Child {
    name: String,
    /// The name as bytes, in hexadecimal digits.
    name_hex: String,
    is_directory: bool,
    bytes: u64,
    files: u64,
}

#[derive(Serialize)]
struct Answer {
    children: Vec<Child>,
    /// The directory has more than those.
    hidden: usize,
    /// The sizes are complete.
    is_complete: bool,
}

impl Space {
    pub(super) fn new(volumes: Volumes) -> Space {
        Space {
            volumes,
            walk: Mutex::new(()),
        }
    }

    /// The sizes of what is in the directory `path` of the pool with this number.
    pub(super) fn answer(&self, get: &Get<'_>) -> Reply {
        let Ok(_walk) = self.walk.try_lock() else {
            return Reply::Refused("503 Service Unavailable", "another walk is under way; try again".into());
        };
        let number = get
            .parameter("pool")
            .and_then(|text| String::from_utf8(text).ok()?.parse::<usize>().ok());
        let found = number.and_then(|number| Some(self.volumes.now().get(number)?.1.fs()));
        let (Some(fs), Some(path)) = (found, get.parameter("path")) else {
            return Reply::Refused("404 Not Found", "no such pool, or no path".into());
        };
        match look(&fs, &path) {
            Ok(answer) => Reply::Json(serde_json::to_string(&answer).expect("numbers and text can be written")),
            Err(error) => Reply::Refused("404 Not Found", error.to_string()),
        }
    }
}

fn look(fs: &Arc<dyn FileSystem>, path: &[u8]) -> Result<Answer, FsError> {
    let dir = fs.resolve(SYSTEM, &Start::default(), path, false)?;
    if dir.kind != FileKind::Directory {
        return Err(FsError::NotDirectory);
    }
    let mut walk = Walk {
        fs,
        left: ENTRIES_MAX,
        until: Instant::now() + TIME_MAX,
    };
    let mut children: Vec<Child> = Vec::new();
    let mut below = Vec::new();
    let mut is_complete = walk.list(dir.ino, &mut |name, attr| {
        below.push((children.len(), attr.ino));
        children.push(Child {
            name: String::from_utf8_lossy(name).into_owned(),
            name_hex: name.iter().map(|byte| format!("{byte:02x}")).collect(),
            is_directory: attr.kind == FileKind::Directory,
            bytes: attr.blocks * 512,
            files: u64::from(attr.kind != FileKind::Directory),
        });
    })?;
    for (index, ino) in below {
        let child = &mut children[index];
        if child.is_directory {
            let (bytes, files, is_whole) = walk.all_of(ino);
            child.bytes += bytes;
            child.files += files;
            is_complete &= is_whole;
        }
    }
    children.sort_by_key(|child| std::cmp::Reverse(child.bytes));
    let hidden = children.len().saturating_sub(SHOWN_MAX);
    children.truncate(SHOWN_MAX);
    Ok(Answer {
        children,
        hidden,
        is_complete,
    })
}

struct Walk<'w> {
    fs: &'w Arc<dyn FileSystem>,
    left: usize,
    until: Instant,
}

impl Walk<'_> {
    /// Shows the entries of a directory; false if not all.
    fn list(&mut self, dir: Ino, see: &mut dyn FnMut(&[u8], &Attr)) -> Result<bool, FsError> {
        let (mut seen, mut is_complete) = (0, true);
        let (left, until) = (self.left, self.until);
        self.fs.readdir_plus(SYSTEM, dir, 0, &mut |entry, attr| {
            is_complete = seen < left && Instant::now() < until;
            if is_complete {
                seen += 1;
                if let Ok(attr) = attr {
                    see(entry.name, &attr);
                }
            }
            is_complete
        })?;
        self.left -= seen;
        Ok(is_complete)
    }

    /// Bytes and files below a directory; false if there are more. A file with several names counts once.
    fn all_of(&mut self, dir: Ino) -> (u64, u64, bool) {
        let (mut bytes, mut is_complete) = (0, true);
        let mut linked = BTreeSet::new();
        let mut files = 0;
        let mut waiting = vec![dir];
        while let Some(dir) = waiting.pop() {
            let listed = self.list(dir, &mut |_, attr| match attr.kind {
                FileKind::Directory => {
                    bytes += attr.blocks * 512;
                    waiting.push(attr.ino);
                }
                _ if attr.nlink > 1 && !linked.insert(attr.ino) => {}
                _ => {
                    bytes += attr.blocks * 512;
                    files += 1;
                }
            });
            // A directory that was removed meanwhile has nothing.
            is_complete &= listed.unwrap_or(true);
            if !is_complete {
                break;
            }
        }
        (bytes, files, is_complete)
    }
}
