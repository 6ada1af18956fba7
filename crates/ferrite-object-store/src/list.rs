//! Listings of objects.
//!
//! Contents: [`Walk`], which lists a tree a batch at a time; [`one_level`].

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::sync::Arc;

use ferrite::{DirEntry, ReadDir};
use object_store::path::Path;
use object_store::{ListResult, ObjectMeta, Result};

use crate::failure;
use crate::files::{self, Files, RESERVED};

/// Objects that a batch has at least, unless the listing ends.
const BATCH: usize = 1000;

/// The part of a tree that is still to be listed.
pub(crate) struct Walk {
    files: Arc<Files>,
    /// Prefixes below which nothing was listed yet.
    ahead: Vec<Path>,
    /// The directory in which the listing is.
    here: Option<(Path, ReadDir)>,
}

/// The meaning of an entry of a directory for a store.
enum Found {
    Object(ObjectMeta),
    Prefix(Path),
    Nothing,
}

impl Walk {
    pub(crate) fn new(files: Arc<Files>, prefix: Path) -> Walk {
        Walk {
            files,
            ahead: vec![prefix],
            here: None,
        }
    }

    /// The next objects, in no order; none at the end.
    pub(crate) fn batch(&mut self) -> Result<Vec<ObjectMeta>> {
        let mut batch = Vec::new();
        while batch.len() < BATCH {
            let Some((dir, entries)) = &mut self.here else {
                let Some(dir) = self.ahead.pop() else { break };
                self.here = open(&self.files, &dir)?.map(|entries| (dir, entries));
                continue;
            };
            let Some(entry) = entries.next() else {
                self.here = None;
                continue;
            };
            match found(dir, &entry.map_err(failure::generic)?)? {
                Found::Object(meta) => batch.push(meta),
                Found::Prefix(below) => self.ahead.push(below),
                Found::Nothing => {}
            }
        }
        Ok(batch)
    }
}

/// The objects and the prefixes directly below a prefix.
pub(crate) fn one_level(files: &Files, prefix: &Path) -> Result<ListResult> {
    let (mut objects, mut common_prefixes) = (Vec::new(), Vec::new());
    for entry in open(files, prefix)?.into_iter().flatten() {
        match found(prefix, &entry.map_err(failure::generic)?)? {
            Found::Object(meta) => objects.push(meta),
            Found::Prefix(below) => common_prefixes.push(below),
            Found::Nothing => {}
        }
    }
    objects.sort_unstable_by(|one, other| one.location.cmp(&other.location));
    common_prefixes.sort_unstable();
    Ok(ListResult {
        common_prefixes,
        objects,
        extensions: Default::default(),
    })
}

/// Starts to list the directory of a prefix; `None` if there is no such directory.
fn open(files: &Files, prefix: &Path) -> Result<Option<ReadDir>> {
    if prefix.parts().next().is_some_and(|first| first.as_ref() == RESERVED) {
        return Ok(None);
    }
    match files.fs.read_dir_with_metadata(files.dir(prefix)) {
        Ok(entries) => Ok(Some(entries)),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(failure::of(prefix, error)),
    }
}

fn found(dir: &Path, entry: &DirEntry) -> Result<Found> {
    let name = entry.file_name();
    let is_root = dir.as_ref().is_empty();
    let Some(location) = location(dir, &name).filter(|_| !is_root || name != RESERVED) else {
        return Ok(Found::Nothing);
    };
    let kind = entry.file_type().map_err(failure::generic)?;
    if kind.is_dir() {
        return Ok(Found::Prefix(location));
    }
    if !kind.is_file() {
        return Ok(Found::Nothing);
    }
    match entry.metadata() {
        Ok(metadata) => files::meta(location, &metadata).map(Found::Object),
        // It was removed meanwhile.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Found::Nothing),
        Err(error) => Err(failure::of(&location, error)),
    }
}

/// The location of a name in a directory, if objects can have it.
fn location(dir: &Path, name: &OsStr) -> Option<Path> {
    let name = name.to_str()?;
    let text = match dir.as_ref() {
        "" => name.to_owned(),
        dir => format!("{dir}/{name}"),
    };
    // Parsing must not change it, or the location would lead to another file.
    Path::parse(&text).ok().filter(|path| path.as_ref() == text)
}
