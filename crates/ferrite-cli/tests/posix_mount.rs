//! POSIX on a real mount, as root and as other users: the tables in `ferrite/tests/posix/`, one system call a line
//! (`posix/mod.rs` explains how to read them).
//!
//! Which side is wrong, table or file system? `FERRITE_POSIX_DIR=/some/dir` runs the tables on another file system.

use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

use crate::common::{TestPool, has_fuse, ways};
use crate::posix;
use crate::posix::{Answer, GivenTime, Run, System, Times, User, given_time, number, octal};

fn check(result: impl Into<i64>) -> Result<i64, i32> {
    let result = result.into();
    if result < 0 {
        Err(std::io::Error::last_os_error().raw_os_error().unwrap())
    } else {
        Ok(result)
    }
}

fn done(result: impl Into<i64>) -> Answer {
    check(result).map(|_| "ok".to_owned())
}

fn open(path: &CStr, flags: &str, mode: u32) -> Result<OwnedFd, i32> {
    let flags = flags.split(',').fold(libc::O_CLOEXEC, |flags, word| {
        flags
            | match word {
                "r" => libc::O_RDONLY,
                "w" => libc::O_WRONLY,
                "rw" => libc::O_RDWR,
                "creat" => libc::O_CREAT,
                "excl" => libc::O_EXCL,
                "trunc" => libc::O_TRUNC,
                "append" => libc::O_APPEND,
                "dir" => libc::O_DIRECTORY,
                "nofollow" => libc::O_NOFOLLOW,
                "nonblock" => libc::O_NONBLOCK,
                "noatime" => libc::O_NOATIME,
                "path" => libc::O_PATH,
                "tmpfile" => libc::O_TMPFILE,
                other => panic!("`{other}` is no open flag"),
            }
    });
    // SAFETY: the path is a C string; only this code owns the returned descriptor.
    unsafe {
        let fd = check(libc::open(path.as_ptr(), flags, mode))?;
        Ok(OwnedFd::from_raw_fd(fd as i32))
    }
}

fn stat(path: &CStr, follow: bool) -> Result<libc::stat, i32> {
    // SAFETY: stat is plain data, and the kernel fills it where the call succeeds.
    unsafe {
        let mut stat = std::mem::zeroed();
        let flags = if follow { 0 } else { libc::AT_SYMLINK_NOFOLLOW };
        check(libc::fstatat(libc::AT_FDCWD, path.as_ptr(), &raw mut stat, flags))?;
        Ok(stat)
    }
}

fn field(stat: &libc::stat, field: &str) -> String {
    match field {
        "type" => match stat.st_mode & libc::S_IFMT {
            libc::S_IFREG => "file",
            libc::S_IFDIR => "dir",
            libc::S_IFLNK => "link",
            libc::S_IFIFO => "fifo",
            libc::S_IFSOCK => "sock",
            libc::S_IFCHR => "chr",
            libc::S_IFBLK => "blk",
            _ => "?",
        }
        .to_owned(),
        "mode" => format!("{:04o}", stat.st_mode & 0o7777),
        "nlink" => stat.st_nlink.to_string(),
        "owner" => format!("{}:{}", stat.st_uid, stat.st_gid),
        "size" => stat.st_size.to_string(),
        "blocks" => stat.st_blocks.to_string(),
        "rdev" => format!("{}:{}", libc::major(stat.st_rdev), libc::minor(stat.st_rdev)),
        "mtime" => format!("{}.{:09}", stat.st_mtime, stat.st_mtime_nsec),
        "atime" => format!("{}.{:09}", stat.st_atime, stat.st_atime_nsec),
        other => panic!("`{other}` is no field"),
    }
}

fn time(text: &str) -> libc::timespec {
    let (tv_sec, tv_nsec) = match given_time(text) {
        GivenTime::Omit => (0, libc::UTIME_OMIT),
        GivenTime::Now => (0, libc::UTIME_NOW),
        GivenTime::At(seconds, nanos) => (seconds, nanos),
    };
    libc::timespec { tv_sec, tv_nsec }
}

fn list(path: &CStr) -> Answer {
    let entries =
        std::fs::read_dir(Path::new(path.to_str().unwrap())).map_err(|error| error.raw_os_error().unwrap())?;
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    Ok(names.join(" "))
}

/// One call. The words are those of the table's line; the working directory is the case's.
fn call(words: &[String]) -> Answer {
    let paths: Vec<CString> = words.iter().map(|word| CString::new(word.as_str()).unwrap()).collect();
    let word = |at: usize| words.get(at).map_or("", String::as_str);
    let path = |at: usize| &*paths[at];
    let p = |at: usize| paths[at].as_ptr();
    let mode = |at: usize| octal(word(at));
    let id = |at: usize| number(word(at)) as u32;
    let mut buffer = vec![0_u8; 1 << 17];
    // SAFETY: every pointer is a C string or a buffer with its length that outlives the call; descriptors are ours.
    unsafe {
        match word(0) {
            "create" => open(path(1), "creat,excl,w", mode(2)).map(|_| "ok".to_owned()),
            "open" => open(path(1), word(2), 0o644).map(|_| "ok".to_owned()),
            "umask" => {
                libc::umask(mode(1));
                call(&words[2..])
            }
            "read" => {
                let fd = open(path(1), "r", 0)?;
                let len = check(libc::read(fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len()) as i64)?;
                Ok(String::from_utf8_lossy(&buffer[..len as usize]).into_owned())
            }
            "write" | "append" => {
                let fd = open(path(1), if word(0) == "write" { "w" } else { "w,append" }, 0)?;
                done(libc::write(fd.as_raw_fd(), p(2).cast(), word(2).len()) as i64)
            }
            "pwrite" => {
                let fd = open(path(1), "w", 0)?;
                done(libc::pwrite(fd.as_raw_fd(), p(3).cast(), word(3).len(), number(word(2))) as i64)
            }
            "mkdir" => done(libc::mkdir(p(1), mode(2))),
            "rmdir" => done(libc::rmdir(p(1))),
            "unlink" => done(libc::unlink(p(1))),
            "symlink" => done(libc::symlink(p(1), p(2))),
            "readlink" => {
                let len = check(libc::readlink(p(1), buffer.as_mut_ptr().cast(), buffer.len()) as i64)?;
                Ok(String::from_utf8_lossy(&buffer[..len as usize]).into_owned())
            }
            "link" => done(libc::link(p(1), p(2))),
            "rename" => done(libc::rename(p(1), p(2))),
            "rename2" => {
                let flags = word(3).split(',').fold(0, |flags, word| {
                    flags
                        | match word {
                            "noreplace" => libc::RENAME_NOREPLACE,
                            "exchange" => libc::RENAME_EXCHANGE,
                            "unknown" => 1 << 20,
                            other => panic!("`{other}` is no rename flag"),
                        }
                });
                done(libc::renameat2(libc::AT_FDCWD, p(1), libc::AT_FDCWD, p(2), flags))
            }
            "mkfifo" => done(libc::mkfifo(p(1), mode(2))),
            "mknod" => {
                let kind = match word(2) {
                    "chr" => libc::S_IFCHR,
                    "blk" => libc::S_IFBLK,
                    "sock" => libc::S_IFSOCK,
                    "file" => libc::S_IFREG,
                    other => panic!("`{other}` is no kind of node"),
                };
                done(libc::mknod(p(1), kind | mode(3), libc::makedev(1, 3)))
            }
            "bind" => std::os::unix::net::UnixListener::bind(word(1))
                .map(|_| "ok".to_owned())
                .map_err(|error| error.raw_os_error().unwrap()),
            "chmod" => done(libc::chmod(p(1), mode(2))),
            "chown" => done(libc::chown(p(1), id(2), id(3))),
            "lchown" => done(libc::lchown(p(1), id(2), id(3))),
            "truncate" => done(libc::truncate(p(1), number(word(2)))),
            "ftruncate" => {
                let fd = open(path(1), word(2), 0)?;
                done(libc::ftruncate(fd.as_raw_fd(), number(word(3))))
            }
            "access" => {
                let wanted = word(2).chars().fold(0, |wanted, letter| {
                    wanted
                        | match letter {
                            'r' => libc::R_OK,
                            'w' => libc::W_OK,
                            'x' => libc::X_OK,
                            _ => libc::F_OK,
                        }
                });
                done(libc::access(p(1), wanted))
            }
            "utimes" | "lutimes" => {
                let times = [time(word(2)), time(word(3))];
                let flags = if word(0) == "utimes" {
                    0
                } else {
                    libc::AT_SYMLINK_NOFOLLOW
                };
                done(libc::utimensat(libc::AT_FDCWD, p(1), times.as_ptr(), flags))
            }
            "stat" => Ok(field(&stat(path(1), true)?, word(2))),
            "lstat" => Ok(field(&stat(path(1), false)?, word(2))),
            "chdir" => done(libc::chdir(p(1))),
            "ls" => list(path(1)),
            "setxattr" => {
                let flags = match word(4) {
                    "create" => libc::XATTR_CREATE,
                    "replace" => libc::XATTR_REPLACE,
                    _ => 0,
                };
                done(libc::lsetxattr(p(1), p(2), p(3).cast(), word(3).len(), flags))
            }
            "getxattr" => {
                let size = if word(3).is_empty() {
                    buffer.len()
                } else {
                    number(word(3)) as usize
                };
                let len = check(libc::lgetxattr(p(1), p(2), buffer.as_mut_ptr().cast(), size) as i64)?;
                Ok(match (size, std::str::from_utf8(&buffer[..len as usize])) {
                    (0, _) => len.to_string(),
                    (_, text) => text.unwrap().to_owned(),
                })
            }
            "removexattr" => done(libc::lremovexattr(p(1), p(2))),
            "listxattr" => {
                let len = check(libc::llistxattr(p(1), buffer.as_mut_ptr().cast(), buffer.len()) as i64)?;
                let mut names: Vec<_> = buffer[..len as usize]
                    .split(|&byte| byte == 0)
                    .map(String::from_utf8_lossy)
                    .filter(|name| name.starts_with("user."))
                    .collect();
                names.sort();
                Ok(names.join(" "))
            }
            "fallocate" => {
                let fd = open(path(1), word(2), 0)?;
                let how = word(3).split(',').fold(0, |how, word| {
                    how | match word {
                        "plain" => 0,
                        "keep" => libc::FALLOC_FL_KEEP_SIZE,
                        "punch" => libc::FALLOC_FL_PUNCH_HOLE,
                        "zero" => libc::FALLOC_FL_ZERO_RANGE,
                        other => panic!("`{other}` is no way to allocate"),
                    }
                });
                done(libc::fallocate(fd.as_raw_fd(), how, number(word(4)), number(word(5))))
            }
            "seek" => {
                let fd = open(path(1), "r", 0)?;
                let whence = if word(2) == "hole" {
                    libc::SEEK_HOLE
                } else {
                    libc::SEEK_DATA
                };
                check(libc::lseek(fd.as_raw_fd(), number(word(3)), whence)).map(|at| at.to_string())
            }
            other => panic!("`{other}` is no call"),
        }
    }
}

/// The kernel. Credentials, working directory and umask of a call are those of a separate thread.
struct Kernel;

impl System for Kernel {
    fn call(&self, who: &User, dir: &str, words: &[String]) -> Option<Answer> {
        let &User { uid, gid, groups, .. } = who;
        let answer = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                // SAFETY: the thread leaves the process' shared working directory first; the raw calls change this
                // thread's credentials only (the wrappers of the C library would change those of all threads).
                unsafe {
                    check(libc::unshare(libc::CLONE_FS)).unwrap();
                    libc::umask(0);
                    std::env::set_current_dir(dir).unwrap();
                    if uid != 0 {
                        check(libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr())).unwrap();
                        check(libc::syscall(libc::SYS_setresgid, gid, gid, gid)).unwrap();
                        check(libc::syscall(libc::SYS_setresuid, uid, uid, uid)).unwrap();
                    }
                }
                call(words)
            });
            thread.join().unwrap_or_else(|_| panic!("{who:?}: {words:?}"))
        });
        Some(answer)
    }

    fn times(&self, dir: &str, path: &str) -> Option<Times> {
        let path = CString::new(format!("{dir}/{path}")).unwrap();
        let stat = stat(&path, false).ok()?;
        Some([
            (stat.st_atime, stat.st_atime_nsec),
            (stat.st_mtime, stat.st_mtime_nsec),
            (stat.st_ctime, stat.st_ctime_nsec),
        ])
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("the tests' own directories have plain names")
}

#[test]
fn every_line_of_the_tables_holds() {
    let other = std::env::var_os("FERRITE_POSIX_DIR").map(std::path::PathBuf::from);
    if other.is_none() && !has_fuse() {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: the tables change users, which only root may");
        return;
    }
    if let Some(dir) = other {
        let scratch = tempfile::tempdir_in(dir).unwrap();
        posix::run_sticky(&Kernel, text(scratch.path())).assert_good("sticky directories elsewhere", 3500);
        return posix::run_all(&Kernel, text(scratch.path())).assert_good("elsewhere", 900);
    }
    for way in ways() {
        let test = TestPool::new_in(Path::new("/dev/shm"), "64M", &[], &["-o", way]);
        posix::run_all(&Kernel, text(&test.dir)).assert_good(way, 900);
        posix::run_sticky(&Kernel, text(&test.dir)).assert_good("sticky directories on a mount", 3500);
        test.finish();
    }
    let test = TestPool::with("64M", "direct_io");
    posix::run_all(&Kernel, text(&test.dir)).assert_good("past the kernel's cache", 900);
    test.finish();
}

/// The server checks all permissions; engine and kernel do the rest.
#[test]
fn every_line_of_the_tables_holds_on_a_server() {
    if !has_fuse() {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: the tables change users, which only root may");
        return;
    }
    let test = TestPool::served("64M");
    posix::run_all(&Kernel, text(&test.dir)).assert_good("mount of a server", 900);
    test.finish();
}

#[test]
fn a_read_only_mount_refuses_every_change() {
    if !has_fuse() {
        return;
    }
    let test = TestPool::new("64M", &[]);
    let dir = text(&test.dir);
    let mut run = Run::default();
    for line in [
        "create f 0666",
        "write f text",
        "mkdir d 0777",
        "symlink f l",
        "setxattr f user.a 1",
    ] {
        assert_eq!(posix::run_line(&Kernel, line, dir, &mut run), [""; 0], "{line}");
    }
    test.umount();
    test.mount(&["-o", "ro"]);
    posix::run_table(&Kernel, ("read_only", posix::READ_ONLY), dir, &mut run);
    // The same through a remount, which must not be affected by any earlier line; and back.
    test.umount();
    test.mount(&[]);
    test.mount(&["-o", "remount,ro"]);
    posix::run_table(&Kernel, ("read_only", posix::READ_ONLY), dir, &mut run);
    test.mount(&["-o", "remount,rw"]);
    assert_eq!(posix::run_line(&Kernel, "write f more", dir, &mut run), [""; 0]);
    run.assert_good("read-only mount", 75);
    test.finish();
}
