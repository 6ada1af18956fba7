//! The tables of `tests/posix/` on the library: what the kernel does with paths and permissions for a mount, [`Vfs`] does for
//! a program that links it. On the reference engine and on a pool of each mapping.
//!
//! Lines with calls that the library does not have (sockets' names, directory handles, flags that no [`OpenFlags`] can say)
//! are skipped and counted.

mod posix;

use std::sync::Arc;

use ferrite_fs::{Engine, Mapping, MkfsOptions, MountOptions, mkfs};
use ferrite_pm::Region;
use ferrite_vfs::memfs::MemFs;
use ferrite_vfs::posix::Access;
use ferrite_vfs::{
    Attr, Cred, FallocateMode, FileKind, FileSystem, FsError, NewNode, OpenFile, OpenFlags, RenameMode, SetAttr,
    SetTime, Timestamp, Vfs, XattrMode,
};
use posix::{Answer, GivenTime, ROOT, System, Times, User, given_time, number, octal};

/// The library on an engine.
struct Library {
    fs: Arc<dyn FileSystem>,
}

fn done<T>(result: ferrite_vfs::Result<T>) -> Option<Answer> {
    Some(result.map(|_| "ok".to_owned()).map_err(|error| error.errno()))
}

fn told(result: ferrite_vfs::Result<String>) -> Option<Answer> {
    Some(result.map_err(|error| error.errno()))
}

/// `None` where the words say what the library cannot.
fn open_flags(words: &str, mode: u32) -> Option<OpenFlags> {
    let mut flags = OpenFlags {
        mode,
        ..OpenFlags::default()
    };
    for word in words.split(',') {
        match word {
            "r" => flags.read = true,
            "w" => flags.write = true,
            "rw" => (flags.read, flags.write) = (true, true),
            "creat" => flags.create = true,
            "excl" => flags.exclusive = true,
            "trunc" => flags.truncate = true,
            "nofollow" => flags.no_follow = true,
            "noatime" => flags.no_atime = true,
            // Appending is a call of its own, not a way to open.
            "append" => {}
            _ => return None,
        }
    }
    Some(flags)
}

fn id(word: &str) -> Option<u32> {
    u32::try_from(number(word)).ok()
}

/// `None` for nanoseconds that no [`Timestamp`] has.
fn set_time(word: &str) -> Option<Option<SetTime>> {
    match given_time(word) {
        GivenTime::Omit => Some(None),
        GivenTime::Now => Some(Some(SetTime::Now)),
        GivenTime::At(seconds, nanos) => {
            let nanos = u32::try_from(nanos).ok().filter(|&nanos| nanos < 1_000_000_000)?;
            Some(Some(SetTime::To(Timestamp::new(seconds, nanos))))
        }
    }
}

fn field(attr: &Attr, field: &str) -> String {
    match field {
        "type" => match attr.kind {
            FileKind::File => "file",
            FileKind::Directory => "dir",
            FileKind::Symlink => "link",
            FileKind::Fifo => "fifo",
            FileKind::Socket => "sock",
            FileKind::CharDevice => "chr",
            FileKind::BlockDevice => "blk",
        }
        .to_owned(),
        "mode" => format!("{:04o}", attr.mode),
        "nlink" => attr.nlink.to_string(),
        "owner" => format!("{}:{}", attr.uid, attr.gid),
        "size" => attr.size.to_string(),
        "blocks" => attr.blocks.to_string(),
        "rdev" => format!("{}:{}", libc::major(attr.rdev.into()), libc::minor(attr.rdev.into())),
        "mtime" => format!("{}.{:09}", attr.mtime.seconds(), attr.mtime.nanoseconds()),
        "atime" => format!("{}.{:09}", attr.atime.seconds(), attr.atime.nanoseconds()),
        other => panic!("`{other}` is no field"),
    }
}

fn list(vfs: &Vfs, path: &[u8]) -> ferrite_vfs::Result<String> {
    let mut names = Vec::new();
    vfs.readdir(path, 0, &mut |entry| {
        names.push(String::from_utf8_lossy(entry.name).into_owned());
        true
    })?;
    names.sort();
    Ok(names.join(" "))
}

fn read(file: &dyn OpenFile) -> ferrite_vfs::Result<String> {
    let mut buffer = vec![0; 1 << 17];
    let len = file.read_at(0, &mut buffer)?;
    Ok(String::from_utf8_lossy(&buffer[..len]).into_owned())
}

/// What opening a directory is for: asking who may list it.
fn open(vfs: &Vfs, path: &[u8], flags: &OpenFlags) -> ferrite_vfs::Result<()> {
    match vfs.open(path, flags) {
        Err(FsError::IsDirectory) if flags.read && !(flags.write || flags.create || flags.truncate) => {
            vfs.readdir(path, 0, &mut |_| false)
        }
        result => result.map(drop),
    }
}

/// One call under a umask.
fn call(vfs: &Vfs, umask: u32, words: &[String]) -> Option<Answer> {
    let word = |at: usize| words.get(at).map_or("", String::as_str);
    let path = |at: usize| word(at).as_bytes();
    let mode = |at: usize| octal(word(at)) & !umask;
    let handle = |words: &str| open_flags(words, 0).map(|flags| vfs.open(path(1), &flags));
    let node = |kind, mode| {
        let rdev = if matches!(kind, FileKind::CharDevice | FileKind::BlockDevice) {
            libc::makedev(1, 3) as u32
        } else {
            0
        };
        done(vfs.mknod(path(1), &NewNode { kind, mode, rdev }))
    };
    let set = |set: SetAttr, follow| done(vfs.setattr(path(1), &set, follow));
    match word(0) {
        "create" => done(vfs.open(path(1), &open_flags("creat,excl,w", mode(2))?)),
        "open" => done(open(vfs, path(1), &open_flags(word(2), 0o644)?)),
        "umask" => call(vfs, octal(word(1)), &words[2..]),
        "read" => told(handle("r")?.and_then(|file| read(&*file))),
        "write" => done(handle("w")?.and_then(|file| file.write_at(0, path(2)))),
        "append" => done(handle("w")?.and_then(|file| file.append(path(2)))),
        "pwrite" => done(handle("w")?.and_then(|file| file.write_at(number(word(2)) as u64, path(3)))),
        "mkdir" => done(vfs.mkdir(path(1), mode(2))),
        "rmdir" => done(vfs.rmdir(path(1))),
        "unlink" => done(vfs.unlink(path(1))),
        "symlink" => done(vfs.symlink(path(1), path(2))),
        "readlink" => told(
            vfs.readlink(path(1))
                .map(|target| String::from_utf8_lossy(&target).into_owned()),
        ),
        "link" => done(vfs.link(path(1), path(2))),
        "rename" => done(vfs.rename(path(1), path(2), RenameMode::Replace)),
        "rename2" => match word(3) {
            "noreplace" => done(vfs.rename(path(1), path(2), RenameMode::NoReplace)),
            "exchange" => done(vfs.rename(path(1), path(2), RenameMode::Exchange)),
            _ => None,
        },
        "mkfifo" => node(FileKind::Fifo, mode(2)),
        "mknod" => match word(2) {
            "chr" => node(FileKind::CharDevice, mode(3)),
            "blk" => node(FileKind::BlockDevice, mode(3)),
            "sock" => node(FileKind::Socket, mode(3)),
            _ => node(FileKind::File, mode(3)),
        },
        // What `bind` does to the file system.
        "bind" => node(FileKind::Socket, 0o777 & !umask),
        "chmod" => {
            let mode = Some(octal(word(2)));
            set(
                SetAttr {
                    mode,
                    ..SetAttr::default()
                },
                true,
            )
        }
        // One that changes nothing does not reach the library; the kernel makes a change of times of it.
        "chown" | "lchown" if id(word(2)).or(id(word(3))).is_none() => None,
        "chown" | "lchown" => {
            let (uid, gid) = (id(word(2)), id(word(3)));
            set(
                SetAttr {
                    uid,
                    gid,
                    ..SetAttr::default()
                },
                word(0) == "chown",
            )
        }
        "truncate" => {
            let size = Some(u64::try_from(number(word(2))).ok()?);
            set(
                SetAttr {
                    size,
                    ..SetAttr::default()
                },
                true,
            )
        }
        "access" => {
            let want = Access {
                read: word(2).contains('r'),
                write: word(2).contains('w'),
                exec: word(2).contains('x'),
            };
            done(vfs.access(path(1), want))
        }
        "utimes" | "lutimes" => {
            let (atime, mtime) = (set_time(word(2))?, set_time(word(3))?);
            set(
                SetAttr {
                    atime,
                    mtime,
                    ..SetAttr::default()
                },
                word(0) == "utimes",
            )
        }
        "stat" => told(vfs.stat(path(1), true).map(|attr| field(&attr, word(2)))),
        "lstat" => told(vfs.stat(path(1), false).map(|attr| field(&attr, word(2)))),
        "chdir" => done(vfs.stat(&[path(1), b"/."].concat(), true)),
        "ls" => told(list(vfs, path(1))),
        // The library follows a link here, as `setxattr` does; the tables mean `lsetxattr`.
        "setxattr" | "getxattr" | "removexattr" | "listxattr"
            if vfs
                .stat(path(1), false)
                .is_ok_and(|attr| attr.kind == FileKind::Symlink) =>
        {
            None
        }
        "setxattr" => {
            let how = match word(4) {
                "create" => XattrMode::Create,
                "replace" => XattrMode::Replace,
                _ => XattrMode::Any,
            };
            done(vfs.setxattr(path(1), path(2), path(3), how))
        }
        // With a size it is about the caller's buffer.
        "getxattr" if !word(3).is_empty() => None,
        "getxattr" => told(
            vfs.getxattr(path(1), path(2))
                .map(|value| String::from_utf8_lossy(&value).into_owned()),
        ),
        "removexattr" => done(vfs.removexattr(path(1), path(2))),
        "listxattr" => told(vfs.listxattr(path(1)).map(|names| {
            let mut names: Vec<_> = names
                .iter()
                .map(|name| String::from_utf8_lossy(name).into_owned())
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
            done(handle(word(2))?.and_then(|file| file.fallocate(how, offset, len)))
        }
        "seek" => {
            let at = number(word(3)) as u64;
            let found = handle("r")?.and_then(|file| match word(2) {
                "hole" => file.seek_hole(at),
                _ => file.seek_data(at),
            });
            told(found.map(|at| at.to_string()))
        }
        // A handle has no size to set; its path has.
        "ftruncate" => None,
        other => panic!("`{other}` is no call"),
    }
}

impl Library {
    fn vfs(&self, who: &User, dir: &str) -> Vfs {
        let cred = Cred {
            groups: Arc::from(who.groups),
            ..Cred::new(who.uid, who.gid)
        };
        let root = Vfs::new(Arc::clone(&self.fs), cred);
        match dir {
            "" => root,
            dir => {
                let above = Vfs::new(Arc::clone(&self.fs), Cred::root());
                root.at(above.stat(dir.as_bytes(), true).unwrap().ino)
            }
        }
    }
}

impl System for Library {
    fn call(&self, who: &User, dir: &str, words: &[String]) -> Option<Answer> {
        call(&self.vfs(who, dir), 0, words)
    }

    fn times(&self, dir: &str, path: &str) -> Option<Times> {
        let attr = self.vfs(&ROOT, dir).stat(path.as_bytes(), false).ok()?;
        Some([attr.atime, attr.mtime, attr.ctime].map(|time| (time.seconds(), time.nanoseconds().into())))
    }
}

#[test]
fn the_tables_hold_on_the_reference_engine() {
    let library = Library {
        fs: Arc::new(MemFs::new()),
    };
    posix::run_all(&library, "").assert_good("memory", 880);
    posix::run_sticky(&library, "").assert_good("sticky directories in memory", 3500);
}

#[test]
fn the_tables_hold_on_every_mapping() {
    for &mapping in Mapping::ALL {
        let region = Region::anonymous(64 << 20).unwrap();
        let options = MkfsOptions {
            mapping,
            ..MkfsOptions::default()
        };
        mkfs(&region, &options).unwrap();
        let engine = Engine::mount(region, &MountOptions::default()).unwrap();
        let library = Library {
            fs: Arc::new(engine.clone()),
        };
        posix::run_all(&library, "").assert_good(&mapping.to_string(), 880);
        posix::run_sticky(&library, "").assert_good(&format!("sticky directories, {mapping}"), 3500);
        drop(library);
        engine.unmount().unwrap();
    }
}
