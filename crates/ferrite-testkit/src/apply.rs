//! Applies an [`Op`] to a file system and returns the outcome in a form in which two engines can be compared.
//!
//! Invariants: an [`Outcome`] holds no inode number, no cookie and no reading of the engine's clock. A rule that a
//! single engine can break (an error that changed something, a listing with an entry twice) is checked here, as a
//! [`Violation`]; rules about two engines are checked in [`crate::model`].
//!
//! Where the contract leaves a result open, the runner makes both engines equal again instead of ignoring the attribute
//! from then on: see `settle_times` and `settle_content_change`.

/// Ends the operation with a violation unless the condition holds.
macro_rules! demand {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(Stop::Violation(format!($($message)+)));
        }
    };
}

mod clone;
mod listing;
mod nameless;

use std::sync::Arc;

use ferrite_vfs::{
    Attr, Cred, Ctx, FileKind, FileSystem, FsError, Ino, OpenFile, OpenMode, ROOT_INO, Result, SYSTEM, SetAttr,
    SetTime, Timestamp, Written,
};

use self::listing::Listing;
use crate::ops::{EXPLICIT_TIME_END, Op, Path, SLOTS, Target, name, xattr_name, xattr_value};
use crate::rng::pattern;

/// A broken rule of the contract, in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation(pub String);

/// A time stamp without the engine's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stamp {
    /// Set by an operation to this time, and not moved since.
    Explicit(Timestamp),
    /// Taken from the engine's clock.
    Clock,
}

impl Stamp {
    /// Distinguishes the two by value; see [`EXPLICIT_TIME_END`].
    pub fn of(time: Timestamp) -> Stamp {
        if time < EXPLICIT_TIME_END {
            Stamp::Explicit(time)
        } else {
            Stamp::Clock
        }
    }
}

/// The attributes that must be equal in two engines.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)] // As in `Attr`.
pub struct CanonAttr {
    pub kind: FileKind,
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u32,
    /// None for a directory: its size is up to the engine.
    pub size: Option<u64>,
    /// None unless a regular file: POSIX leaves open when listings and `readlink` count as reads.
    pub atime: Option<Stamp>,
    pub mtime: Stamp,
}

impl From<&Attr> for CanonAttr {
    fn from(attr: &Attr) -> Self {
        CanonAttr {
            kind: attr.kind,
            mode: attr.mode,
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            rdev: if matches!(attr.kind, FileKind::CharDevice | FileKind::BlockDevice) {
                attr.rdev
            } else {
                0
            },
            size: (attr.kind != FileKind::Directory).then_some(attr.size),
            atime: (attr.kind == FileKind::File).then(|| Stamp::of(attr.atime)),
            mtime: Stamp::of(attr.mtime),
        }
    }
}

/// The outcome of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Outcome {
    Done,
    /// The operation means nothing here (an empty slot, a `user.` attribute on a fifo).
    Skipped,
    /// Refused, where the contract does not specify the error.
    Refused,
    /// Refused with this error (its texts are the engine's own).
    Error(ErrorKind),
    Attr(CanonAttr),
    Bytes(Vec<u8>),
    Count(usize),
    Offset(u64),
    Place {
        offset: u64,
        count: usize,
    },
    Entries(Vec<(Vec<u8>, FileKind)>),
    Names(Vec<Vec<u8>>),
}

/// An [`FsError`] without its text.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ErrorKind(pub i32);

impl std::fmt::Debug for ErrorKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", std::io::Error::from_raw_os_error(self.0))
    }
}

impl From<FsError> for ErrorKind {
    fn from(error: FsError) -> Self {
        ErrorKind(error.errno())
    }
}

enum Slot {
    Empty,
    File(Arc<dyn OpenFile>, &'static Ctx),
    Pinned(Ino),
}

/// A caller with no rights but those of the handle: its changes clear setuid and setgid.
const UNPRIVILEGED: &Ctx = &Ctx::checked(Cred::new(1000, 1000));

/// Applies operations to one file system. Dropping it closes its handles and releases its pins.
pub struct Runner<'a> {
    fs: &'a dyn FileSystem,
    slots: Vec<Slot>,
    listings: Vec<Option<Listing>>,
}

/// How an operation ends early: with an error of the engine, with a fixed outcome, or with a broken rule.
enum Stop {
    Error(FsError),
    Outcome(Outcome),
    Violation(String),
}

impl From<FsError> for Stop {
    fn from(error: FsError) -> Self {
        Stop::Error(error)
    }
}

type Step<T> = std::result::Result<T, Stop>;

const SETTLED: SetTime = SetTime::To(Timestamp(77_000_000_000));

impl<'a> Runner<'a> {
    /// A runner on `fs`, with no handles.
    pub fn new(fs: &'a dyn FileSystem) -> Self {
        Runner {
            fs,
            slots: (0..SLOTS).map(|_| Slot::Empty).collect(),
            listings: (0..SLOTS).map(|_| None).collect(),
        }
    }

    /// Gives the root of a fresh file system known attributes, because engines create theirs differently.
    ///
    /// # Panics
    /// When they cannot be set.
    pub fn settle_root(&self) {
        let set = SetAttr {
            mode: Some(0o755),
            uid: Some(0),
            gid: Some(0),
            atime: Some(SETTLED),
            mtime: Some(SETTLED),
            ..SetAttr::default()
        };
        self.fs
            .setattr(SYSTEM, ROOT_INO, &set)
            .expect("the attributes of the root can be set");
    }

    /// Applies `op`.
    ///
    /// # Errors
    /// A rule that the engine broke.
    pub fn apply(&mut self, op: &Op) -> std::result::Result<Outcome, Violation> {
        match self.step(op) {
            Ok(outcome) | Err(Stop::Outcome(outcome)) => Ok(outcome),
            Err(Stop::Error(error)) => Ok(Outcome::Error(error.into())),
            Err(Stop::Violation(text)) => Err(Violation(text)),
        }
    }

    /// Closes every handle, pin and listing.
    pub fn close_all(&mut self) {
        for slot in 0..SLOTS {
            self.close(slot);
            self.end_listing(slot);
        }
    }

    fn step(&mut self, op: &Op) -> Step<Outcome> {
        match op {
            Op::Mknod { path, node, user } => {
                let ctx = Ctx::trusted(Cred::new(*user, *user));
                self.create(path, |fs, dir, name| fs.mknod(&ctx, dir, name, node))
            }
            Op::Mkdir { path, mode, user } => {
                let ctx = Ctx::trusted(Cred::new(*user, *user));
                self.create(path, |fs, dir, name| fs.mkdir(&ctx, dir, name, *mode))
            }
            Op::Symlink { path, len } => {
                let target = link_target(*len);
                self.create(path, |fs, dir, name| fs.symlink(SYSTEM, dir, name, &target))
            }
            Op::Link { from, to } => {
                let ino = self.resolve(from)?.ino;
                self.create(to, |fs, dir, name| fs.link(SYSTEM, ino, dir, name))
            }
            Op::CloneTree { from, to } => {
                let ino = self.resolve(from)?.ino;
                self.create(to, |fs, dir, name| fs.clone_tree(SYSTEM, ino, dir, name))
            }
            Op::Unlink { path } => self.change_name(path, |fs, dir, name| fs.unlink(SYSTEM, dir, name)),
            Op::Rmdir { path } => self.rmdir(path),
            Op::Rename { from, to, mode } => {
                let (dir, old) = self.split(from)?;
                let (new_dir, new) = self.split(to)?;
                self.touch(dir, &old);
                self.touch(new_dir, &new);
                let before = [self.stat(dir)?, self.stat(new_dir)?];
                let result = self.fs.rename(SYSTEM, dir, &old, new_dir, &new, *mode);
                self.judge(before[0], result.is_ok())?;
                self.judge(before[1], result.is_ok())?;
                result?;
                Ok(Outcome::Done)
            }
            Op::Lookup { path } => {
                let attr = self.resolve(path)?;
                let again = self.stat(attr.ino)?;
                demand!(
                    same_but_atime(&attr, &again),
                    "lookup gave {attr:?}, getattr gave {again:?}"
                );
                Ok(Outcome::Attr((&attr).into()))
            }
            Op::Parent { path } => {
                let attr = self.resolve(path)?;
                let expected = self
                    .resolve(&Path(path.0[..path.0.len().saturating_sub(1)].to_vec()))?
                    .ino;
                match self.fs.parent(SYSTEM, attr.ino) {
                    Ok(parent) => {
                        demand!(
                            attr.kind == FileKind::Directory,
                            "parent() of a {:?} gave {parent}",
                            attr.kind
                        );
                        demand!(parent == expected, "parent() gave {parent}, the path gives {expected}");
                        Ok(Outcome::Done)
                    }
                    Err(error) => {
                        demand!(attr.kind != FileKind::Directory, "parent() of a directory: {error}");
                        Ok(Outcome::Refused)
                    }
                }
            }
            Op::Readlink { path } => {
                let attr = self.resolve(path)?;
                let target = self.fs.readlink(SYSTEM, attr.ino)?;
                demand!(
                    target.len() as u64 == attr.size,
                    "link of {} bytes, size {}",
                    target.len(),
                    attr.size
                );
                Ok(Outcome::Bytes(target))
            }
            Op::Getattr { on } => {
                let attr = self.target_attr(on)?;
                demand!(
                    attr.btime <= attr.ctime,
                    "made at {:?}, changed at {:?}",
                    attr.btime,
                    attr.ctime
                );
                Ok(Outcome::Attr((&attr).into()))
            }
            Op::Setattr { on, set } => {
                let before = self.target_attr(on)?;
                let result = self.fs.setattr(SYSTEM, before.ino, set);
                let after = self.judge(before, result.is_ok())?;
                let given = result?;
                demand!(
                    same_but_atime(&given, &after),
                    "setattr gave {given:?}, getattr gave {after:?}"
                );
                Ok(Outcome::Attr((&after).into()))
            }
            Op::Pin { path, slot } => {
                self.close(*slot);
                let attr = self.resolve(path)?;
                self.fs.pin(SYSTEM, attr.ino, attr.generation)?;
                self.slots[*slot as usize] = Slot::Pinned(attr.ino);
                Ok(Outcome::Done)
            }
            Op::Open {
                path,
                slot,
                mode,
                privileged,
            } => {
                self.close(*slot);
                let attr = self.resolve(path)?;
                let file = self.open(&attr, *mode)?;
                demand!(
                    file.ino() == attr.ino,
                    "opened {}, the handle says {}",
                    attr.ino,
                    file.ino()
                );
                let ctx = if *privileged { SYSTEM } else { UNPRIVILEGED };
                self.slots[*slot as usize] = Slot::File(file, ctx);
                Ok(Outcome::Done)
            }
            Op::CreateNameless { .. } | Op::LinkOpen { .. } => self.nameless(op),
            Op::Close { slot } => {
                self.close(*slot);
                Ok(Outcome::Done)
            }
            Op::Read { .. }
            | Op::Write { .. }
            | Op::Append { .. }
            | Op::Fallocate { .. }
            | Op::Clone { .. }
            | Op::SeekData { .. }
            | Op::SeekHole { .. }
            | Op::Fsync { .. } => self.data(op),
            Op::Getxattr { .. } | Op::Setxattr { .. } | Op::Listxattr { .. } | Op::Removexattr { .. } => self.xattr(op),
            Op::List { path } => self.list(path),
            Op::ListBegin { path, slot } => self.begin_listing(path, *slot),
            Op::ListNext { slot, count } => self.continue_listing(*slot, *count),
            Op::ListEnd { slot } => self.finish_listing(*slot),
            Op::Statfs => {
                let s = self.fs.statfs(SYSTEM)?;
                demand!(s.block_bytes.is_power_of_two(), "block size {}", s.block_bytes);
                let is_ordered = s.blocks_available <= s.blocks_free && s.blocks_free <= s.blocks;
                demand!(is_ordered, "free more than all: {s:?}");
                demand!(s.inodes_free <= s.inodes, "more inodes free than there are: {s:?}");
                Ok(Outcome::Done)
            }
            Op::Sync => {
                self.fs.sync(SYSTEM)?;
                Ok(Outcome::Done)
            }
        }
    }

    fn data(&mut self, op: &Op) -> Step<Outcome> {
        match op {
            Op::Read { on, offset, len } => {
                let (file, _) = self.file(on)?;
                let mut buffer = vec![0xee; *len];
                let count = file.read_at(SYSTEM, *offset, &mut buffer)?;
                demand!(count <= *len, "read {count} bytes into a buffer of {len}");
                let size = file.getattr(SYSTEM)?.size;
                let expected = size.saturating_sub(*offset).min(*len as u64);
                demand!(
                    count as u64 == expected,
                    "read {count} bytes at {offset}, size {size}, wanted {expected}"
                );
                if count == 0 {
                    self.settle_times(
                        file.ino(),
                        SetAttr {
                            atime: Some(SETTLED),
                            ..SetAttr::default()
                        },
                    )?;
                }
                buffer.truncate(count);
                Ok(Outcome::Bytes(buffer))
            }
            Op::Write { on, offset, len, fill } => {
                let (file, ctx) = self.file(on)?;
                let before = file.getattr(SYSTEM)?;
                let result = file.write_at(ctx, *offset, &pattern(*fill, *len));
                self.judge(before, result.is_ok())?;
                let count = result?;
                demand!(count == *len, "wrote {count} of {len} bytes, below the atomic bound");
                Ok(Outcome::Count(count))
            }
            Op::Append { on, len, fill } => {
                let (file, ctx) = self.file(on)?;
                let before = file.getattr(SYSTEM)?;
                let result = file.append(ctx, &pattern(*fill, *len));
                self.judge(before, result.is_ok())?;
                let Written {
                    offset,
                    len_bytes: count,
                } = result?;
                demand!(
                    offset == before.size,
                    "appended at {offset}, the end was at {}",
                    before.size
                );
                demand!(count == *len, "appended {count} of {len} bytes, below the atomic bound");
                Ok(Outcome::Place { offset, count })
            }
            Op::Fallocate { on, mode, offset, len } => {
                let (file, ctx) = self.file(on)?;
                let before = file.getattr(SYSTEM)?;
                let result = file.fallocate(ctx, *mode, *offset, *len);
                let after = self.judge(before, result.is_ok())?;
                result?;
                self.settle_content_change(&after)?;
                Ok(Outcome::Done)
            }
            Op::Clone { .. } => self.clone_range(op),
            Op::SeekData { on, offset } => Ok(Outcome::Offset(self.file(on)?.0.seek_data(SYSTEM, *offset)?)),
            Op::SeekHole { on, offset } => Ok(Outcome::Offset(self.file(on)?.0.seek_hole(SYSTEM, *offset)?)),
            Op::Fsync { on } => {
                self.file(on)?.0.fsync(SYSTEM)?;
                Ok(Outcome::Done)
            }
            other => unreachable!("{other:?} is no data operation"),
        }
    }

    fn xattr(&mut self, op: &Op) -> Step<Outcome> {
        let (Op::Getxattr { on, .. } | Op::Setxattr { on, .. } | Op::Listxattr { on } | Op::Removexattr { on, .. }) =
            op
        else {
            unreachable!("{op:?} is no attribute operation")
        };
        let before = self.target_attr(on)?;
        if !matches!(before.kind, FileKind::File | FileKind::Directory) {
            // Linux keeps `user.` attributes off these; whether the engine or the front end refuses them is open.
            return Ok(Outcome::Skipped);
        }
        match op {
            Op::Getxattr { name, .. } => Ok(Outcome::Bytes(self.fs.getxattr(
                SYSTEM,
                before.ino,
                &xattr_name(*name),
            )?)),
            Op::Setxattr { name, len, mode, .. } => {
                let value = xattr_value(*name, *len);
                let result = self.fs.setxattr(SYSTEM, before.ino, &xattr_name(*name), &value, *mode);
                self.judge(before, result.is_ok())?;
                result?;
                Ok(Outcome::Done)
            }
            Op::Removexattr { name, .. } => {
                let result = self.fs.removexattr(SYSTEM, before.ino, &xattr_name(*name));
                self.judge(before, result.is_ok())?;
                result?;
                Ok(Outcome::Done)
            }
            _ => {
                let mut names = self.fs.listxattr(SYSTEM, before.ino)?;
                names.sort();
                Ok(Outcome::Names(names))
            }
        }
    }

    /// Tells listings in progress that `name` of `dir` may come and go.
    fn touch(&mut self, dir: Ino, name: &[u8]) {
        for listing in self.listings.iter_mut().flatten().filter(|listing| listing.dir == dir) {
            listing.touched.insert(name.to_vec());
        }
    }

    fn create(&mut self, path: &Path, make: impl FnOnce(&dyn FileSystem, Ino, &[u8]) -> Result<Attr>) -> Step<Outcome> {
        let (dir, name) = self.split(path)?;
        self.touch(dir, &name);
        let before = self.stat(dir)?;
        let result = make(self.fs, dir, &name);
        self.judge(before, result.is_ok())?;
        let attr = result?;
        let found = self.fs.lookup(SYSTEM, dir, &name)?;
        demand!(
            same_but_atime(&attr, &found),
            "creating gave {attr:?}, lookup gave {found:?}"
        );
        Ok(Outcome::Attr((&attr).into()))
    }

    fn change_name(
        &mut self,
        path: &Path,
        change: impl FnOnce(&dyn FileSystem, Ino, &[u8]) -> Result<()>,
    ) -> Step<Outcome> {
        let (dir, name) = self.split(path)?;
        self.touch(dir, &name);
        let before = self.stat(dir)?;
        let result = change(self.fs, dir, &name);
        self.judge(before, result.is_ok())?;
        result?;
        Ok(Outcome::Done)
    }

    /// After a change: `ctime` has not gone back. After an error: nothing has changed.
    fn judge(&self, before: Attr, changed: bool) -> Step<Attr> {
        let after = self.stat(before.ino)?;
        if changed {
            demand!(
                after.ctime >= before.ctime,
                "ctime went back from {:?} to {:?}",
                before.ctime,
                after.ctime
            );
        } else {
            demand!(
                same_but_atime(&before, &after),
                "an operation failed but changed {before:?} to {after:?}"
            );
        }
        Ok(after)
    }

    fn stat(&self, ino: Ino) -> Step<Attr> {
        let attr = self
            .fs
            .getattr(SYSTEM, ino)
            .map_err(|error| Stop::Violation(format!("getattr of inode {ino}, which is in use: {error}")))?;
        demand!(attr.ino == ino, "getattr of inode {ino} gave {attr:?}");
        Ok(attr)
    }

    fn resolve(&self, path: &Path) -> Result<Attr> {
        path.0
            .iter()
            .try_fold(self.fs.getattr(SYSTEM, ROOT_INO)?, |dir, &index| {
                self.fs.lookup(SYSTEM, dir.ino, &name(index))
            })
    }

    /// The directory of `path` and its last name; the root has none and is refused.
    fn split(&self, path: &Path) -> Step<(Ino, Vec<u8>)> {
        let Some((&last, dir)) = path.0.split_last() else {
            return Err(Stop::Outcome(Outcome::Skipped));
        };
        Ok((self.resolve(&Path(dir.to_vec()))?.ino, name(last)))
    }

    fn target_attr(&self, on: &Target) -> Step<Attr> {
        match on {
            Target::At(path) => Ok(self.resolve(path)?),
            Target::Slot(slot) => match &self.slots[*slot as usize] {
                Slot::Empty => Err(Stop::Outcome(Outcome::Skipped)),
                Slot::Pinned(ino) => self.stat(*ino),
                Slot::File(file, _) => {
                    let (attr, by_ino) = (file.getattr(SYSTEM)?, self.stat(file.ino())?);
                    demand!(
                        same_but_atime(&attr, &by_ino),
                        "the handle says {attr:?}, the inode says {by_ino:?}"
                    );
                    Ok(attr)
                }
            },
        }
    }

    fn file(&self, on: &Target) -> Step<(Arc<dyn OpenFile>, &'static Ctx)> {
        if let Target::Slot(slot) = on
            && let Slot::File(file, ctx) = &self.slots[*slot as usize]
        {
            return Ok((file.clone(), ctx));
        }
        let file = self.open(&self.target_attr(on)?, OpenMode::read_write())?;
        Ok((file, SYSTEM))
    }

    fn open(&self, attr: &Attr, mode: OpenMode) -> Step<Arc<dyn OpenFile>> {
        match self.fs.open(SYSTEM, attr.ino, mode) {
            Ok(file) => {
                demand!(
                    attr.kind == FileKind::File,
                    "a {:?} was opened as a regular file",
                    attr.kind
                );
                Ok(file)
            }
            // The contract names no error for opening anything but a regular file.
            Err(_) if attr.kind != FileKind::File => Err(Stop::Outcome(Outcome::Refused)),
            Err(error) => Err(error.into()),
        }
    }

    fn close(&mut self, slot: u8) {
        if let Slot::Pinned(ino) = std::mem::replace(&mut self.slots[slot as usize], Slot::Empty) {
            self.fs.unpin(SYSTEM, ino, 1);
        }
    }

    /// Sets times that the contract leaves open (whether a read of nothing moves `atime`). Those in a snapshot stay.
    fn settle_times(&self, ino: Ino, set: SetAttr) -> Step<()> {
        match self.fs.setattr(SYSTEM, ino, &set) {
            Ok(_) | Err(FsError::ReadOnly) => Ok(()),
            Err(error) => Err(Stop::Violation(format!("setting times: {error}"))),
        }
    }

    /// After `fallocate`: the contract leaves open whether it moves `mtime` when no byte changes, and whether it clears
    /// setuid.
    fn settle_content_change(&self, attr: &Attr) -> Step<()> {
        let set = SetAttr {
            mode: Some(attr.mode & 0o777),
            mtime: Some(SETTLED),
            ..SetAttr::default()
        };
        self.settle_times(attr.ino, set)
    }

    /// Size of the file `on`, and the first byte at or after `offset` that is not zero; None for no file.
    ///
    /// Reads the file to find it, hole by hole, so the result is exact, whatever the engine reports as a hole.
    pub fn first_nonzero(&self, on: &Target, offset: u64) -> Option<(u64, Option<u64>)> {
        let ino = self.target_attr(on).ok()?.ino;
        let mode = OpenMode {
            no_atime: true,
            ..OpenMode::read_only()
        };
        let file = self.fs.open(SYSTEM, ino, mode).ok()?;
        let size = file.getattr(SYSTEM).ok()?.size;
        let mut at = offset;
        let mut buffer = vec![0; 64 << 10];
        while at < size {
            let Ok(data) = file.seek_data(SYSTEM, at) else { break };
            at = data;
            let count = file.read_at(SYSTEM, at, &mut buffer).ok()?;
            if let Some(index) = buffer[..count].iter().position(|&byte| byte != 0) {
                return Some((size, Some(at + index as u64)));
            }
            at += count.max(1) as u64;
        }
        Some((size, None))
    }

    /// The byte at `offset` of the file `on`.
    pub fn byte_at(&self, on: &Target, offset: u64) -> Option<u8> {
        let ino = self.target_attr(on).ok()?.ino;
        let file = self
            .fs
            .open(
                SYSTEM,
                ino,
                OpenMode {
                    no_atime: true,
                    ..OpenMode::read_only()
                },
            )
            .ok()?;
        let mut byte = [0];
        (file.read_at(SYSTEM, offset, &mut byte).ok()? == 1).then_some(byte[0])
    }
}

impl Drop for Runner<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The engine panicked and may hold a poisoned lock. A second panic would end the process before the failure
            // is reported, so the handles are leaked.
            std::mem::forget(std::mem::take(&mut self.slots));
            return;
        }
        self.close_all();
    }
}

/// The target of a generated symbolic link of this length.
pub fn link_target(len: usize) -> Vec<u8> {
    (0..len).map(|index| b"abc/../"[index % 7]).collect()
}

/// Whether two attributes are equal, except for those that a read or the engine's housekeeping may change.
fn same_but_atime(a: &Attr, b: &Attr) -> bool {
    Attr {
        atime: b.atime,
        blocks: b.blocks,
        change: b.change,
        ..*a
    } == *b
}
