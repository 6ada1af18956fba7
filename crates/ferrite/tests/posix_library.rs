//! The tables of `tests/posix/` on the library: it handles paths and permissions for a program that links it, as the
//! kernel does for a mount. On the reference engine and on a pool of each mapping, through directory handles.
//!
//! Lines with calls that the library lacks (flags that [`OpenOptions`] cannot express, sizes of buffers) are skipped
//! and counted.

use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::common;
use crate::posix;
use crate::posix::{Answer, GivenTime, ROOT, System, Times, User, given_time, number, octal};
use ferrite::{
    Access, Cred, Dir, FallocateMode, File, FileKind, FileTimes, Fs, Mapping, Metadata, MkfsOptions, NewNode,
    OpenOptions, RenameMode, XattrMode,
};

/// The library on an engine.
struct Library {
    fs: Fs,
}

fn done<T, E: Into<std::io::Error>>(result: Result<T, E>) -> Option<Answer> {
    told(result.map(|_| "ok".to_owned()))
}

fn told<E: Into<std::io::Error>>(result: Result<String, E>) -> Option<Answer> {
    Some(result.map_err(|error| {
        let error = error.into();
        error
            .raw_os_error()
            .unwrap_or_else(|| panic!("no error number: {error}"))
    }))
}

/// The options for opening, and whether it must be a directory. `None` for words that the library cannot express.
fn open_options(words: &str, mode: u32) -> Option<(OpenOptions, bool)> {
    let mut options = OpenOptions::new();
    options.mode(mode);
    let mut is_dir = false;
    for word in words.split(',') {
        match word {
            "r" => options.read(true),
            "w" => options.write(true),
            "rw" => options.read(true).write(true),
            "creat" => options.create(true),
            "excl" => options.create_new(true),
            "trunc" => options.truncate(true),
            "nofollow" => options.no_follow(true),
            "noatime" => options.no_atime(true),
            "append" => options.append(true),
            "dir" => {
                is_dir = true;
                &mut options
            }
            _ => return None,
        };
    }
    Some((options, is_dir))
}

fn id(word: &str) -> Option<u32> {
    u32::try_from(number(word)).ok()
}

/// `None` for times that [`SystemTime`] cannot represent.
fn system_time(seconds: i64, nanos: i64) -> Option<SystemTime> {
    let nanos = u32::try_from(nanos).ok().filter(|&nanos| nanos < 1_000_000_000)?;
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let start = if seconds < 0 {
        UNIX_EPOCH.checked_sub(whole)
    } else {
        UNIX_EPOCH.checked_add(whole)
    };
    start?.checked_add(Duration::from_nanos(nanos.into()))
}

fn file_times(accessed: &str, modified: &str) -> Option<FileTimes> {
    let mut times = FileTimes::new();
    times = match given_time(accessed) {
        GivenTime::Omit => times,
        GivenTime::Now => times.set_accessed_now(),
        GivenTime::At(seconds, nanos) => times.set_accessed(system_time(seconds, nanos)?),
    };
    Some(match given_time(modified) {
        GivenTime::Omit => times,
        GivenTime::Now => times.set_modified_now(),
        GivenTime::At(seconds, nanos) => times.set_modified(system_time(seconds, nanos)?),
    })
}

fn field(found: &Metadata, field: &str) -> String {
    let time = |seconds: i64, nanos: i64| format!("{seconds}.{nanos:09}");
    match field {
        "type" => match found.file_type().kind() {
            FileKind::File => "file",
            FileKind::Directory => "dir",
            FileKind::Symlink => "link",
            FileKind::Fifo => "fifo",
            FileKind::Socket => "sock",
            FileKind::CharDevice => "chr",
            FileKind::BlockDevice => "blk",
        }
        .to_owned(),
        "mode" => format!("{:04o}", found.permissions().mode()),
        "nlink" => found.nlink().to_string(),
        "owner" => format!("{}:{}", found.uid(), found.gid()),
        "size" => found.len().to_string(),
        "blocks" => found.blocks().to_string(),
        "rdev" => format!("{}:{}", libc::major(found.rdev()), libc::minor(found.rdev())),
        "mtime" => time(found.mtime(), found.mtime_nsec()),
        "atime" => time(found.atime(), found.atime_nsec()),
        other => panic!("`{other}` is no field"),
    }
}

fn list(dir: &Dir, path: &str) -> ferrite::Result<String> {
    let mut names = Vec::new();
    for entry in dir.read_dir(path)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names.join(" "))
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The purpose of opening a directory here: checking who may list it.
fn open(dir: &Dir, path: &str, words: &str) -> Option<Answer> {
    let (options, is_dir) = open_options(words, 0o644)?;
    if is_dir {
        return done(dir.open_dir(path));
    }
    match dir.open_with(path, &options) {
        Err(error) if error.raw_os_error() == Some(libc::EISDIR) && words == "r" => done(dir.open_dir(path)),
        result => done(result),
    }
}

/// One call under a umask.
fn call(dir: &Dir, umask: u32, words: &[String]) -> Option<Answer> {
    let word = |at: usize| words.get(at).map_or("", String::as_str);
    let path = word(1);
    let mode = |at: usize| octal(word(at)) & !umask;
    let handle = |words: &str| -> Option<ferrite::Result<File>> {
        open_options(words, 0).map(|(options, _)| dir.open_with(path, &options))
    };
    let write_at = |offset: u64, data: &str| -> std::io::Result<usize> {
        let file = dir.open_with(path, OpenOptions::new().write(true))?;
        file.write_at(data.as_bytes(), offset)
    };
    let node = |kind, mode| {
        let device = matches!(kind, FileKind::CharDevice | FileKind::BlockDevice);
        let rdev = if device { libc::makedev(1, 3) as u32 } else { 0 };
        done(dir.mknod(path, &NewNode { kind, mode, rdev }))
    };
    match word(0) {
        "create" => done(dir.open_with(path, &open_options("creat,excl,w", mode(2))?.0)),
        "open" => open(dir, path, word(2)),
        "umask" => call(dir, octal(word(1)), &words[2..]),
        "read" => told(dir.read(path).map(text)),
        "write" => done(write_at(0, word(2))),
        "append" => done(handle("w")?.and_then(|file| file.append(word(2).as_bytes()))),
        "pwrite" => done(write_at(number(word(2)) as u64, word(3))),
        "mkdir" => done(dir.create_dir_with(path, mode(2))),
        "rmdir" => done(dir.remove_dir(path)),
        "unlink" => done(dir.remove_file(path)),
        "symlink" => done(dir.symlink(path, word(2))),
        "readlink" => told(dir.read_link(path).map(|target| target.to_string_lossy().into_owned())),
        "link" => done(dir.hard_link(path, dir, word(2))),
        "rename" => done(dir.rename(path, dir, word(2))),
        "rename2" => match word(3) {
            "noreplace" => done(dir.rename_with(path, dir, word(2), RenameMode::NoReplace)),
            "exchange" => done(dir.rename_with(path, dir, word(2), RenameMode::Exchange)),
            _ => None,
        },
        "mkfifo" => node(FileKind::Fifo, mode(2)),
        "mknod" => match word(2) {
            "chr" => node(FileKind::CharDevice, mode(3)),
            "blk" => node(FileKind::BlockDevice, mode(3)),
            "sock" => node(FileKind::Socket, mode(3)),
            _ => node(FileKind::File, mode(3)),
        },
        // The effect of `bind` on the file system.
        "bind" => node(FileKind::Socket, 0o777 & !umask),
        "chmod" => done(dir.set_mode(path, octal(word(2)))),
        // One that changes nothing does not reach the library; the kernel turns it into a change of times.
        "chown" | "lchown" if id(word(2)).or(id(word(3))).is_none() => None,
        "chown" => done(dir.chown(path, id(word(2)), id(word(3)))),
        "lchown" => done(dir.lchown(path, id(word(2)), id(word(3)))),
        "truncate" => done(dir.truncate(path, u64::try_from(number(word(2))).ok()?)),
        "ftruncate" => {
            let len = u64::try_from(number(word(3))).ok()?;
            done(handle(word(2))?.and_then(|file| file.set_len(len)))
        }
        "access" => {
            let want = Access {
                read: word(2).contains('r'),
                write: word(2).contains('w'),
                exec: word(2).contains('x'),
            };
            done(dir.access(path, want))
        }
        "utimes" => done(dir.set_times(path, file_times(word(2), word(3))?)),
        "lutimes" => done(dir.set_times_nofollow(path, file_times(word(2), word(3))?)),
        "stat" => told(dir.metadata(path).map(|found| field(&found, word(2)))),
        "lstat" => told(dir.symlink_metadata(path).map(|found| field(&found, word(2)))),
        "chdir" => done(dir.metadata(format!("{path}/."))),
        "ls" => told(list(dir, path)),
        // The tables mean the attributes of a link itself.
        "setxattr" => {
            let how = match word(4) {
                "create" => XattrMode::Create,
                "replace" => XattrMode::Replace,
                _ => XattrMode::Any,
            };
            done(dir.set_xattr_nofollow(path, word(2), word(3), how))
        }
        // With a size it concerns the caller's buffer.
        "getxattr" if !word(3).is_empty() => None,
        "getxattr" => told(dir.get_xattr_nofollow(path, word(2)).map(text)),
        "removexattr" => done(dir.remove_xattr_nofollow(path, word(2))),
        "listxattr" => told(dir.list_xattrs_nofollow(path).map(|names| {
            let mut names: Vec<_> = names
                .iter()
                .map(|name| name.to_string_lossy().into_owned())
                .filter(|name| name.starts_with("user."))
                .collect();
            names.sort();
            names.join(" ")
        })),
        "fallocate" => {
            let how = match word(3) {
                "plain" => FallocateMode::Allocate { keep_size: false },
                "keep" => FallocateMode::Allocate { keep_size: true },
                "punch,keep" => FallocateMode::PunchHole,
                "zero" => FallocateMode::ZeroRange { keep_size: false },
                "zero,keep" => FallocateMode::ZeroRange { keep_size: true },
                _ => return None,
            };
            let offset = u64::try_from(number(word(4))).ok()?;
            let len = u64::try_from(number(word(5))).ok()?;
            done(handle(word(2))?.and_then(|file| file.allocate(how, offset, len)))
        }
        "seek" => {
            let at = number(word(3)) as u64;
            let found = handle("r")?.and_then(|file| match word(2) {
                "hole" => file.seek_hole(at),
                _ => file.seek_data(at),
            });
            told(found.map(|at| at.to_string()))
        }
        other => panic!("`{other}` is no call"),
    }
}

impl Library {
    fn dir(&self, who: &User, dir: &str) -> Dir {
        let cred = Cred::new(who.uid, who.gid).with_groups(who.groups);
        self.fs.open_dir(format!("/{dir}")).unwrap().as_user(cred)
    }
}

impl System for Library {
    fn call(&self, who: &User, dir: &str, words: &[String]) -> Option<Answer> {
        call(&self.dir(who, dir), 0, words)
    }

    fn times(&self, dir: &str, path: &str) -> Option<Times> {
        let found = self.dir(&ROOT, dir).symlink_metadata(path).ok()?;
        Some([
            (found.atime(), found.atime_nsec()),
            (found.mtime(), found.mtime_nsec()),
            (found.ctime(), found.ctime_nsec()),
        ])
    }
}

#[test]
fn the_tables_hold_on_the_reference_engine() {
    let library = Library { fs: Fs::memory() };
    posix::run_all(&library, "").assert_good("memory", 910);
    posix::run_sticky(&library, "").assert_good("sticky directories in memory", 3500);
}

#[test]
fn the_tables_hold_on_every_mapping() {
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    for &mapping in Mapping::ALL {
        let pool = place.path().join(mapping.name());
        let options = MkfsOptions::default().mapping(mapping);
        let library = Library {
            fs: Fs::create_with(&pool, 64 << 20, &options).unwrap(),
        };
        posix::run_all(&library, "").assert_good(&mapping.to_string(), 910);
        posix::run_sticky(&library, "").assert_good(&format!("sticky directories, {mapping}"), 3500);
        library.fs.close().unwrap();
        common::fsck(&pool);
    }
}
