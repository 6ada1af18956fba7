//! A table of POSIX cases, run on the [`FileSystem`] trait and, for permissions, on [`ferrite_vfs::Vfs`].
//!
//! Invariants: a case gets a fresh, empty engine and depends on no other; it closes every handle and releases every
//! pin. After each case the whole tree is compared before and after a remount, and the engine's own check runs, so
//! every case is a test of persistence too.

mod acls;
mod change;
mod checks;
mod compound;
mod data;
mod errors;
mod flags;
mod links;
mod names;
mod open_unlinked;
mod paths;
mod permissions;
mod quotas;
pub mod read_only;
mod readdir;
mod rename;
mod snapshots;
mod space;
mod sparse;
mod times;
mod user_quotas;
mod xattrs;

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrite_vfs::{
    Attr, BadArgument, FileKind, FileSystem, FsError, Ino, NewNode, OpenFile, OpenMode, ROOT_INO, SYSTEM, SetAttr,
    SetTime, Timestamp,
};

use crate::TestEngine;
use crate::snapshot::Snapshot;

/// The tools of a case: the file system and shorthands that panic, naming the path, when a step that must succeed does
/// not.
pub struct Harness<'a> {
    fs: &'a dyn FileSystem,
    skipped: RefCell<Option<String>>,
}

/// One case.
#[derive(Clone, Copy)]
pub struct Case {
    /// Area and name.
    pub name: &'static str,
    /// Runs it; panics when the engine breaks the rule.
    pub run: fn(&Harness<'_>),
}

/// Cases that need an engine with more than 4,000 inodes, or names for as many.
const LARGE: &[&str] = &[
    "names/20,000 files in a directory",
    "links/LINK_MAX",
    "readdir/10,000 entries in parts of every size",
    "readdir/entries that stay come once, whatever else comes and goes",
];

/// Why a case is skipped on a small engine.
const TOO_FEW_INODES: &str = "too few inodes";

impl Case {
    /// Whether it needs more than 4,000 inodes, or names for as many. An engine with fewer is made and checked faster.
    pub fn is_large(&self) -> bool {
        LARGE.contains(&self.name)
    }
}

/// The results of a run of the suite.
#[derive(Debug, Default)]
pub struct Report {
    /// Number of cases that passed.
    pub passed: usize,
    /// Cases that could not run (too small a pool, for example), and why.
    pub skipped: Vec<String>,
    /// Cases that failed, and how.
    pub failed: Vec<String>,
}

/// Every case, grouped by area.
pub fn suite() -> Vec<Case> {
    [
        errors::CASES,
        names::CASES,
        links::CASES,
        rename::CASES,
        open_unlinked::CASES,
        times::CASES,
        data::CASES,
        sparse::CASES,
        xattrs::CASES,
        acls::CASES,
        readdir::CASES,
        permissions::CASES,
        checks::CASES,
        compound::CASES,
        paths::CASES,
        change::CASES,
        space::CASES,
        snapshots::CASES,
        quotas::CASES,
        user_quotas::CASES,
        flags::CASES,
    ]
    .concat()
}

/// Runs every case, each on a separate engine from `make`.
///
/// # Panics
/// At the end, if any case failed; the message names them all.
pub fn run_all(make: impl Fn() -> Box<dyn TestEngine>) {
    tell(&run(make, &suite()));
}

/// Every case but the large ones: for engines on which each call takes long.
///
/// # Panics
/// As [`run_all`].
pub fn run_small(make: impl Fn() -> Box<dyn TestEngine>) {
    let small: Vec<Case> = suite().into_iter().filter(|case| !case.is_large()).collect();
    tell(&run(make, &small));
}

/// The cases that [`run_small`] leaves out.
///
/// # Panics
/// As [`run_all`].
pub fn run_large(make: impl Fn() -> Box<dyn TestEngine>) {
    let large: Vec<Case> = suite().into_iter().filter(Case::is_large).collect();
    tell(&run(make, &large));
}

/// As [`run_all`], with engines that are made for the case.
///
/// # Panics
/// As [`run_all`], and if an engine has too few inodes for its case.
pub fn run_all_on(make: impl Fn(&Case) -> Box<dyn TestEngine>) {
    let cases = suite();
    let report = run_on(make, &cases);
    tell(&report);
    let large = cases.iter().filter(|case| case.is_large());
    assert_eq!(large.count(), LARGE.len(), "a name in the list is that of no case");
    let lacks = |skipped: &String| skipped.ends_with(TOO_FEW_INODES);
    assert!(!report.skipped.iter().any(lacks), "a case is large and not in the list");
}

fn tell(report: &Report) {
    for skipped in &report.skipped {
        println!("skipped: {skipped}");
    }
    let total = report.passed + report.failed.len() + report.skipped.len();
    let failed = report.failed.join("\n  ");
    assert!(
        report.failed.is_empty(),
        "{} of {total} POSIX cases failed:\n  {failed}",
        report.failed.len()
    );
    println!("{} of {total} POSIX cases passed", report.passed);
}

/// Runs `cases`, each on a separate engine from `make`; never panics.
pub fn run(make: impl Fn() -> Box<dyn TestEngine>, cases: &[Case]) -> Report {
    run_on(|_| make(), cases)
}

fn run_on(make: impl Fn(&Case) -> Box<dyn TestEngine>, cases: &[Case]) -> Report {
    let mut report = Report::default();
    for case in cases {
        let started = Instant::now();
        match catch_unwind(AssertUnwindSafe(|| run_case(&make, case))) {
            Ok(None) => report.passed += 1,
            Ok(Some(why)) => report.skipped.push(format!("{}: {why}", case.name)),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().cloned();
                let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
                report
                    .failed
                    .push(format!("{}: {}", case.name, text.unwrap_or_default()));
            }
        }
        if started.elapsed() > Duration::from_secs(5) {
            println!("slow: {} took {:.1?}", case.name, started.elapsed());
        }
    }
    report
}

fn run_case(make: &impl Fn(&Case) -> Box<dyn TestEngine>, case: &Case) -> Option<String> {
    let mut engine = make(case);
    let (skipped, beside_before) = {
        let harness = Harness::on(engine.fs());
        harness.chmod(ROOT_INO, 0o755);
        (case.run)(&harness);
        let beside = beside(case, &harness);
        (harness.skipped.into_inner(), beside)
    };
    let before = Snapshot::capture(engine.fs()).expect("the tree can be walked after the case");
    engine.remount();
    let after = Snapshot::capture(engine.fs()).expect("the tree can be walked after the remount");
    if let Some(difference) = before.difference(&after, ["before the remount", "after"]) {
        panic!("{difference}");
    }
    let beside_after = beside(case, &Harness::on(engine.fs()));
    assert_eq!(beside_after, beside_before, "after the remount, and before");
    engine.check();
    skipped
}

/// State that a snapshot does not have, where a case is about it.
fn beside(case: &Case, harness: &Harness<'_>) -> Vec<String> {
    let of_quotas = || quotas::all(harness).into_iter().map(|found| format!("{found:?}"));
    let of_flags = || flags::all(harness).into_iter().map(|found| format!("{found:?}"));
    match case.name.split('/').next() {
        Some("quotas") => of_quotas().collect(),
        Some("user quotas") => user_quotas::all(harness).iter().map(ToString::to_string).collect(),
        Some("flags") => of_flags().collect(),
        _ => Vec::new(),
    }
}

/// Asserts that an operation is refused with this error, whatever the error's text is.
#[macro_export]
macro_rules! refused {
    ($result:expr, $variant:ident $(| $other:ident)*) => {
        match $result {
            Err(error) => {
                let errno = error.errno();
                let wanted = [$crate::posix::errno_of(stringify!($variant)) $(, $crate::posix::errno_of(stringify!($other)))*];
                assert!(
                    wanted.contains(&errno),
                    "{}: refused with \"{error}\", wanted {}",
                    stringify!($result),
                    stringify!($variant $(or $other)*)
                );
            }
            Ok(_) => panic!("{}: succeeded, wanted {}", stringify!($result), stringify!($variant $(or $other)*)),
        }
    };
}

/// The errno of the [`FsError`] variant of this name; for [`refused!`].
#[doc(hidden)]
pub fn errno_of(variant: &str) -> i32 {
    match variant {
        "NotFound" => FsError::NotFound,
        "AccessDenied" => FsError::AccessDenied,
        "NotPermitted" => FsError::NotPermitted,
        "Exists" => FsError::Exists,
        "NotDirectory" => FsError::NotDirectory,
        "IsDirectory" => FsError::IsDirectory,
        "NotEmpty" => FsError::NotEmpty,
        "NameTooLong" => FsError::NameTooLong,
        "Invalid" => FsError::Invalid(BadArgument::ReservedName),
        "TooManyLinks" => FsError::TooManyLinks,
        "NoAttribute" => FsError::NoAttribute,
        "ValueTooLong" => FsError::ValueTooLong,
        "FileTooBig" => FsError::FileTooBig,
        "NoSuchAddress" => FsError::NoSuchAddress,
        "BadHandle" => FsError::BadHandle,
        "Loop" => FsError::Loop,
        "Busy" => FsError::Busy,
        "Stale" => FsError::Stale,
        "ReadOnly" => FsError::ReadOnly,
        "OverQuota" => FsError::OverQuota,
        "CrossDevice" => FsError::CrossDevice,
        other => unreachable!("errno_of lacks {other}"),
    }
    .errno()
}

/// A time long past, distinct from every engine's clock.
pub(crate) const PAST: Timestamp = Timestamp(86_400_000_000_000);

impl<'a> Harness<'a> {
    fn on(fs: &'a dyn FileSystem) -> Self {
        Harness {
            fs,
            skipped: RefCell::new(None),
        }
    }

    /// The file system under test.
    pub fn fs(&self) -> &'a dyn FileSystem {
        self.fs
    }

    /// Whether each call is a message to a service. The suite then leaves bounds of the engine behind it, which take
    /// very many calls to reach, to that engine's own tests: a service adds nothing to them.
    pub fn is_served(&self) -> bool {
        self.fs().limits().validity.is_zero()
    }

    /// Notes that the case cannot run on this engine.
    pub fn skip(&self, why: impl Into<String>) {
        *self.skipped.borrow_mut() = Some(why.into());
    }

    /// The inode of a path from the root, `a/b/c`; empty for the root.
    pub fn ino(&self, path: &str) -> Ino {
        self.stat(path).ino
    }

    /// Attributes of a path.
    pub fn stat(&self, path: &str) -> Attr {
        let mut attr = self.fs.getattr(SYSTEM, ROOT_INO).expect("getattr of the root");
        for name in path.split('/').filter(|name| !name.is_empty()) {
            attr = self
                .fs
                .lookup(SYSTEM, attr.ino, name.as_bytes())
                .unwrap_or_else(|error| panic!("lookup {name} of {path}: {error}"));
        }
        attr
    }

    /// Whether a path exists.
    pub fn exists(&self, path: &str) -> bool {
        let (dir, name) = self.split(path);
        match self.fs.lookup(SYSTEM, dir, name) {
            Ok(_) => true,
            Err(FsError::NotFound) => false,
            Err(error) => panic!("lookup {path}: {error}"),
        }
    }

    /// Directory and last name of a path.
    pub fn split<'p>(&self, path: &'p str) -> (Ino, &'p [u8]) {
        match path.rsplit_once('/') {
            Some((dir, name)) => (self.ino(dir), name.as_bytes()),
            None => (ROOT_INO, path.as_bytes()),
        }
    }

    /// Creates a directory, mode 0755, owned by root.
    pub fn mkdir(&self, path: &str) -> Ino {
        let (dir, name) = self.split(path);
        self.fs
            .mkdir(SYSTEM, dir, name, 0o755)
            .unwrap_or_else(|error| panic!("mkdir {path}: {error}"))
            .ino
    }

    /// Creates an empty regular file, mode 0644, owned by root.
    pub fn file(&self, path: &str) -> Ino {
        self.node(path, FileKind::File)
    }

    /// Creates a file of this kind.
    pub fn node(&self, path: &str, kind: FileKind) -> Ino {
        let (dir, name) = self.split(path);
        let made = match kind {
            FileKind::Directory => self.fs.mkdir(SYSTEM, dir, name, 0o755),
            FileKind::Symlink => self.fs.symlink(SYSTEM, dir, name, b"target"),
            kind => {
                let rdev = if matches!(kind, FileKind::CharDevice | FileKind::BlockDevice) {
                    0x0507
                } else {
                    0
                };
                self.fs.mknod(
                    SYSTEM,
                    dir,
                    name,
                    &NewNode {
                        kind,
                        mode: 0o644,
                        rdev,
                    },
                )
            }
        };
        made.unwrap_or_else(|error| panic!("making {path} ({kind:?}): {error}"))
            .ino
    }

    /// Opens a file for reading and writing.
    pub fn open(&self, ino: Ino) -> Arc<dyn OpenFile> {
        self.fs
            .open(SYSTEM, ino, OpenMode::read_write())
            .unwrap_or_else(|error| panic!("open inode {ino}: {error}"))
    }

    /// Creates a file with this content and returns its inode.
    pub fn write(&self, path: &str, content: &[u8]) -> Ino {
        let ino = self.file(path);
        self.write_at(ino, 0, content);
        ino
    }

    /// Writes all of `data`.
    pub fn write_at(&self, ino: Ino, offset: u64, data: &[u8]) {
        assert_eq!(
            self.open(ino).write_at(SYSTEM, offset, data).expect("write"),
            data.len(),
            "a write is whole"
        );
    }

    /// Reads up to `len` bytes.
    pub fn read_at(&self, ino: Ino, offset: u64, len: usize) -> Vec<u8> {
        let mut buffer = vec![0xaa; len];
        let count = self.open(ino).read_at(SYSTEM, offset, &mut buffer).expect("read");
        buffer.truncate(count);
        buffer
    }

    /// The same of a file that may not be opened for writing.
    pub fn read_at_only(&self, ino: Ino, offset: u64, len: usize) -> Vec<u8> {
        let file = self.fs.open(SYSTEM, ino, OpenMode::read_only()).expect("open");
        let mut buffer = vec![0xaa; len];
        let count = file.read_at(SYSTEM, offset, &mut buffer).expect("read");
        buffer.truncate(count);
        buffer
    }

    /// Removes a name.
    pub fn unlink(&self, path: &str) {
        let (dir, name) = self.split(path);
        self.fs
            .unlink(SYSTEM, dir, name)
            .unwrap_or_else(|error| panic!("unlink {path}: {error}"));
    }

    /// Removes a directory.
    pub fn rmdir(&self, path: &str) {
        let (dir, name) = self.split(path);
        self.fs
            .rmdir(SYSTEM, dir, name)
            .unwrap_or_else(|error| panic!("rmdir {path}: {error}"));
    }

    /// Gives the inode of `path` another name.
    pub fn link(&self, path: &str, to: &str) {
        let (dir, name) = self.split(to);
        self.fs
            .link(SYSTEM, self.ino(path), dir, name)
            .unwrap_or_else(|error| panic!("link {path} {to}: {error}"));
    }

    /// Renames, replacing.
    pub fn rename(&self, from: &str, to: &str) {
        self.try_rename(from, to, ferrite_vfs::RenameMode::Replace)
            .unwrap_or_else(|error| panic!("rename {from} {to}: {error}"));
    }

    /// Renames.
    ///
    /// # Errors
    /// The engine's.
    pub fn try_rename(&self, from: &str, to: &str, mode: ferrite_vfs::RenameMode) -> ferrite_vfs::Result<()> {
        let ((dir, old), (new_dir, new)) = (self.split(from), self.split(to));
        self.fs.rename(SYSTEM, dir, old, new_dir, new, mode)
    }

    /// Sets the permission bits.
    pub fn chmod(&self, ino: Ino, mode: u32) {
        self.set(
            ino,
            SetAttr {
                mode: Some(mode),
                ..SetAttr::default()
            },
        );
    }

    /// Sets the size.
    pub fn truncate(&self, ino: Ino, size: u64) {
        self.set(
            ino,
            SetAttr {
                size: Some(size),
                ..SetAttr::default()
            },
        );
    }

    /// Sets attributes.
    pub fn set(&self, ino: Ino, set: SetAttr) -> Attr {
        self.fs
            .setattr(SYSTEM, ino, &set)
            .unwrap_or_else(|error| panic!("setattr {set:?} of inode {ino}: {error}"))
    }

    /// Sets `atime` and `mtime` to the past, so that an operation that moves them shows.
    pub fn age(&self, ino: Ino) {
        let set = SetAttr {
            atime: Some(SetTime::To(PAST)),
            mtime: Some(SetTime::To(PAST)),
            ..SetAttr::default()
        };
        self.set(ino, set);
    }

    /// Names in a directory, sorted.
    pub fn names(&self, path: &str) -> Vec<String> {
        let mut names = Vec::new();
        self.fs
            .readdir(SYSTEM, self.ino(path), 0, &mut |entry| {
                names.push(String::from_utf8_lossy(entry.name).into_owned());
                true
            })
            .unwrap_or_else(|error| panic!("readdir {path}: {error}"));
        names.sort();
        names
    }

    /// Link count of a path.
    pub fn nlink(&self, path: &str) -> u32 {
        self.stat(path).nlink
    }
}
