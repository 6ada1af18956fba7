//! An engine and the reference side by side: each operation goes to both, and both must give the same reply.
//!
//! Invariant: an operation makes no other calls of the engine than its name says. It reads and sets no further
//! attribute, so that only the loop's own records come between two moves of a journal's checkpoint.

use std::sync::Arc;

use ferrite_vfs::{
    FallocateMode, FileKind, FileSystem, FsError, Ino, NewNode, OpenFile, OpenMode, ROOT_INO, RenameMode, Result,
    SYSTEM, SetAttr, XattrMode,
};

use crate::rng::{Rng, pattern};
use crate::snapshot::Snapshot;

/// The tools of one thread of a loop.
pub struct Pair<'a> {
    subject: &'a dyn FileSystem,
    oracle: &'a dyn FileSystem,
    /// The number of this thread of the loop, from 0 on.
    pub thread: u64,
    /// Source of random numbers: the same ones in each run of a seed.
    pub rng: Rng,
    /// Pages of a file that the engine holds close together.
    neighbours: &'a [u32],
    fills: u32,
}

/// A file that is open on both sides.
pub struct OpenPair([Arc<dyn OpenFile>; 2]);

impl<'a> Pair<'a> {
    pub(super) fn new(fs: [&'a dyn FileSystem; 2], thread: u64, seed: u64, neighbours: &'a [u32]) -> Self {
        let [subject, oracle] = fs;
        Pair {
            subject,
            oracle,
            thread,
            rng: Rng::new(seed ^ thread << 32),
            neighbours,
            fills: (thread as u32) << 24,
        }
    }

    /// Offset of the `n`-th of the pages that the engine holds close together; the sequence repeats after a while.
    pub fn neighbour(&self, n: u64) -> u64 {
        u64::from(self.neighbours[n as usize % self.neighbours.len()]) * 4096
    }

    /// `len` bytes that were not written before.
    fn fresh(&mut self, len: usize) -> Vec<u8> {
        self.fills += 1;
        pattern(self.fills, len)
    }

    /// Makes the same call on both and returns their common reply.
    fn both<T: PartialEq + std::fmt::Debug>(
        &self,
        what: std::fmt::Arguments<'_>,
        work: impl Fn(&dyn FileSystem) -> Result<T>,
    ) -> std::result::Result<T, i32> {
        let answers = [self.subject, self.oracle].map(&work);
        let [ours, theirs] = &answers;
        let errno = |answer: &Result<T>| answer.as_ref().err().map(FsError::errno);
        let alike = match (ours, theirs) {
            (Ok(ours), Ok(theirs)) => ours == theirs,
            _ => errno(ours) == errno(theirs),
        };
        assert!(
            alike,
            "{what}: the engine says {}, the reference {}",
            short(ours),
            short(theirs)
        );
        let [ours, _] = answers;
        ours.map_err(|error| error.errno())
    }

    /// The same, but an error is a failure.
    fn must<T: PartialEq + std::fmt::Debug>(
        &self,
        what: std::fmt::Arguments<'_>,
        work: impl Fn(&dyn FileSystem) -> Result<T>,
    ) -> T {
        self.both(what, work)
            .unwrap_or_else(|errno| panic!("{what}: both refuse, errno {errno}"))
    }

    /// Creates an empty file.
    pub fn create(&mut self, path: &str) {
        self.must(format_args!("create {path}"), |fs| {
            let (parent, name) = place(fs, path)?;
            let node = NewNode {
                kind: FileKind::File,
                mode: 0o644,
                rdev: 0,
            };
            fs.mknod(SYSTEM, parent, name, &node).map(drop)
        });
    }

    /// Creates a directory.
    pub fn mkdir(&mut self, path: &str) {
        self.must(format_args!("mkdir {path}"), |fs| {
            let (parent, name) = place(fs, path)?;
            fs.mkdir(SYSTEM, parent, name, 0o755).map(drop)
        });
    }

    /// Creates a symbolic link to a target of `len` bytes.
    pub fn symlink(&mut self, path: &str, len: usize) {
        let target = vec![b'a' + (self.fills % 26) as u8; len];
        self.fills += 1;
        self.must(format_args!("symlink {path} to {len} bytes"), |fs| {
            let (parent, name) = place(fs, path)?;
            fs.symlink(SYSTEM, parent, name, &target).map(drop)
        });
    }

    /// Adds another name for a file.
    pub fn link(&mut self, path: &str, new: &str) {
        self.must(format_args!("link {path} {new}"), |fs| {
            let ino = resolve(fs, path)?;
            let (parent, name) = place(fs, new)?;
            fs.link(SYSTEM, ino, parent, name).map(drop)
        });
    }

    /// Removes a name.
    pub fn unlink(&mut self, path: &str) {
        self.must(format_args!("unlink {path}"), |fs| {
            let (parent, name) = place(fs, path)?;
            fs.unlink(SYSTEM, parent, name)
        });
    }

    /// Removes a directory.
    pub fn rmdir(&mut self, path: &str) {
        self.must(format_args!("rmdir {path}"), |fs| {
            let (parent, name) = place(fs, path)?;
            fs.rmdir(SYSTEM, parent, name)
        });
    }

    /// Renames; returns whether that was allowed.
    pub fn rename(&mut self, path: &str, new: &str, mode: RenameMode) -> bool {
        self.both(format_args!("rename {path} {new} {mode:?}"), |fs| {
            let (parent, name) = place(fs, path)?;
            let (new_parent, new_name) = place(fs, new)?;
            fs.rename(SYSTEM, parent, name, new_parent, new_name, mode)
        })
        .is_ok()
    }

    /// Whether such a name exists.
    pub fn exists(&self, path: &str) -> bool {
        resolve(self.oracle, path).is_ok()
    }

    /// Length of a file, according to the reference.
    pub fn len(&self, path: &str) -> u64 {
        resolve(self.oracle, path).map_or(0, |ino| self.oracle.getattr(SYSTEM, ino).map_or(0, |attr| attr.size))
    }

    /// Truncates a file, or extends it by a hole.
    pub fn truncate(&mut self, path: &str, len: u64) {
        let size = SetAttr {
            size: Some(len),
            ..SetAttr::default()
        };
        self.must(format_args!("truncate {path} to {len}"), |fs| {
            fs.setattr(SYSTEM, resolve(fs, path)?, &size).map(drop)
        });
    }

    /// Writes bytes that were never written before.
    pub fn write(&mut self, path: &str, offset: u64, len: usize) {
        let data = self.fresh(len);
        self.must(format_args!("write {path} at {offset}, {len} bytes"), |fs| {
            open(fs, path)?.write_at(SYSTEM, offset, &data)
        });
    }

    /// Appends new bytes.
    pub fn append(&mut self, path: &str, len: usize) {
        let data = self.fresh(len);
        self.must(format_args!("append {len} bytes to {path}"), |fs| {
            open(fs, path)?.append(SYSTEM, &data)
        });
    }

    /// Reads, which may make the engine merge small writes.
    pub fn read(&mut self, path: &str, offset: u64, len: usize) {
        self.must(format_args!("read {path} at {offset}, {len} bytes"), |fs| {
            let mut buf = vec![0; len];
            let count = open(fs, path)?.read_at(SYSTEM, offset, &mut buf)?;
            buf.truncate(count);
            Ok(buf)
        });
    }

    /// Reserves, punches or zeroes a range.
    pub fn fallocate(&mut self, path: &str, mode: FallocateMode, offset: u64, len: u64) {
        self.must(format_args!("{mode:?} {path} at {offset}, {len} bytes"), |fs| {
            open(fs, path)?.fallocate(SYSTEM, mode, offset, len)
        });
    }

    /// Sets an extended attribute.
    pub fn set_xattr(&mut self, path: &str, name: &str, len: usize) {
        let value = self.fresh(len);
        self.must(format_args!("set {name} of {path} to {len} bytes"), |fs| {
            fs.setxattr(SYSTEM, resolve(fs, path)?, name.as_bytes(), &value, XattrMode::Any)
        });
    }

    /// Removes an extended attribute, if it is there.
    pub fn remove_xattr(&mut self, path: &str, name: &str) {
        let _absent = self.both(format_args!("remove {name} of {path}"), |fs| {
            fs.removexattr(SYSTEM, resolve(fs, path)?, name.as_bytes())
        });
    }

    /// Opens a file, which may then lose its name.
    pub fn open(&self, path: &str) -> OpenPair {
        OpenPair([self.subject, self.oracle].map(|fs| open(fs, path).unwrap_or_else(|error| panic!("{path}: {error}"))))
    }

    /// Writes to an open file, and reads it back.
    pub fn write_open(&mut self, file: &OpenPair, offset: u64, len: usize) {
        let data = self.fresh(len);
        let mut found = vec![0; len];
        for side in &file.0 {
            assert_eq!(side.write_at(SYSTEM, offset, &data), Ok(len), "an open file");
        }
        assert_eq!(file.0[0].read_at(SYSTEM, offset, &mut found), Ok(len), "an open file");
        assert!(found == data, "an open file does not hold what was written at {offset}");
    }

    /// Removes everything, on both.
    pub(super) fn clear(&mut self) {
        let mut pending = vec![(String::new(), ROOT_INO)];
        let mut dirs = Vec::new();
        while let Some((path, dir)) = pending.pop() {
            let mut entries = Vec::new();
            let listed = self.oracle.readdir(SYSTEM, dir, 0, &mut |entry| {
                entries.push((
                    format!("{path}/{}", String::from_utf8_lossy(entry.name)),
                    entry.kind,
                    entry.ino,
                ));
                true
            });
            listed.unwrap_or_else(|error| panic!("the reference: {error}"));
            for (path, kind, ino) in entries {
                if kind == FileKind::Directory {
                    dirs.push(path.clone());
                    pending.push((path, ino));
                } else {
                    self.unlink(&path);
                }
            }
        }
        for dir in dirs.iter().rev() {
            self.rmdir(dir);
        }
    }

    /// Compares both trees, with all content.
    pub(super) fn compare(&self) {
        let [ours, theirs] = [(self.subject, "the engine"), (self.oracle, "the reference")]
            .map(|(fs, who)| Snapshot::capture(fs).unwrap_or_else(|error| panic!("reading {who}'s tree: {error}")));
        if let Some(what) = ours.difference(&theirs, ["engine", "reference"]) {
            panic!("{what}");
        }
    }
}

/// A short form of a reply.
fn short<T: std::fmt::Debug>(answer: &Result<T>) -> String {
    let mut text = format!("{answer:?}");
    if text.len() > 200 {
        text.truncate(text.char_indices().nth(200).map_or(text.len(), |(at, _)| at));
        text.push_str("...");
    }
    text
}

/// The directory and the last part of a path.
fn place<'p>(fs: &dyn FileSystem, path: &'p str) -> Result<(Ino, &'p [u8])> {
    let (dirs, name) = path.rsplit_once('/').unwrap_or(("", path));
    Ok((resolve(fs, dirs)?, name.as_bytes()))
}

fn resolve(fs: &dyn FileSystem, path: &str) -> Result<Ino> {
    path.split('/')
        .filter(|part| !part.is_empty())
        .try_fold(ROOT_INO, |dir, part| Ok(fs.lookup(SYSTEM, dir, part.as_bytes())?.ino))
}

fn open(fs: &dyn FileSystem, path: &str) -> Result<Arc<dyn OpenFile>> {
    fs.open(SYSTEM, resolve(fs, path)?, OpenMode::read_write())
}
