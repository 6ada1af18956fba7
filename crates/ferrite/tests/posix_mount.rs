//! POSIX on a real mount, as root and as other users: the tables in `tests/posix/`, one system call a line.
//!
//! A line reads `who: call arguments = expected`. Without `who:` root calls, without `=` the call must succeed. `--- name`
//! opens a case, which starts in an empty directory that everybody may write to. `changes f:mc d: | …` says in addition
//! which of access (a), modification (m) and change (c) times the call moves; m and c that are not named must stay.
//! `{255}` is a name of that length, `{path 4095 f}` a path to `f` of that length.
//!
//! Which side is wrong, table or file system? `FERRITE_POSIX_DIR=/some/dir` runs the tables on another file system.

mod common;

use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use common::{TestPool, has_fuse};

/// Longer than a tick of the coarse clock, so that a changed time shows.
const TICK: Duration = Duration::from_millis(12);

const TABLES: [(&str, &str); 5] = [
    ("errors", include_str!("posix/errors.table")),
    ("permissions", include_str!("posix/permissions.table")),
    ("rename", include_str!("posix/rename.table")),
    ("attributes", include_str!("posix/attributes.table")),
    ("data", include_str!("posix/data.table")),
];

/// Users of the tables: name, user, group, further groups.
const USERS: [(&str, u32, u32, &[u32]); 5] = [
    ("root", 0, 0, &[]),
    ("u", 65534, 65534, &[]),
    ("v", 65533, 65533, &[]),
    // Not the user, but in the user's group: by the first group, or by a further one.
    ("g", 65532, 65534, &[]),
    ("s", 65531, 65531, &[65534]),
];

const ERRORS: [(&str, i32); 27] = [
    ("EPERM", libc::EPERM),
    ("ENOENT", libc::ENOENT),
    ("EIO", libc::EIO),
    ("ENXIO", libc::ENXIO),
    ("E2BIG", libc::E2BIG),
    ("EBADF", libc::EBADF),
    ("EACCES", libc::EACCES),
    ("EBUSY", libc::EBUSY),
    ("EEXIST", libc::EEXIST),
    ("EXDEV", libc::EXDEV),
    ("ENODEV", libc::ENODEV),
    ("ENOTDIR", libc::ENOTDIR),
    ("EISDIR", libc::EISDIR),
    ("EINVAL", libc::EINVAL),
    ("ETXTBSY", libc::ETXTBSY),
    ("EFBIG", libc::EFBIG),
    ("ENOSPC", libc::ENOSPC),
    ("EROFS", libc::EROFS),
    ("EMLINK", libc::EMLINK),
    ("ERANGE", libc::ERANGE),
    ("ENAMETOOLONG", libc::ENAMETOOLONG),
    ("ENOSYS", libc::ENOSYS),
    ("ENOTEMPTY", libc::ENOTEMPTY),
    ("ELOOP", libc::ELOOP),
    ("ENODATA", libc::ENODATA),
    ("EOPNOTSUPP", libc::EOPNOTSUPP),
    ("EOVERFLOW", libc::EOVERFLOW),
];

/// What a call returned: text ("ok" where there is nothing to tell), or an error number.
type Answer = Result<String, i32>;

fn name_of(errno: i32) -> String {
    ERRORS
        .iter()
        .find(|(_, number)| *number == errno)
        .map_or_else(|| format!("errno {errno}"), |(name, _)| (*name).to_owned())
}

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

fn octal(text: &str) -> u32 {
    u32::from_str_radix(text, 8).unwrap_or_else(|_| panic!("`{text}` is no mode"))
}

fn number(text: &str) -> i64 {
    match text.split_once("<<") {
        Some((value, shift)) => number(value) << number(shift),
        None => text.parse().unwrap_or_else(|_| panic!("`{text}` is no number")),
    }
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
    // SAFETY: the path is a C string; a descriptor that comes back is ours alone.
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

/// `omit`, `now`, or seconds and nanoseconds with a dot between.
fn time(text: &str) -> libc::timespec {
    let (tv_sec, tv_nsec) = match text {
        "omit" => (0, libc::UTIME_OMIT),
        "now" => (0, libc::UTIME_NOW),
        _ => text
            .split_once('.')
            .map(|(seconds, nanos)| (number(seconds), number(nanos)))
            .unwrap_or_else(|| panic!("`{text}` is no time")),
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

/// Makes a call as a user. Credentials, working directory and umask are those of a thread of its own.
fn call_as(who: &str, dir: &Path, words: &[String]) -> Answer {
    let (_, user, group, groups) = *USERS
        .iter()
        .find(|(name, ..)| *name == who)
        .unwrap_or_else(|| panic!("`{who}` is no user"));
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: the thread leaves the process' shared working directory first; the raw calls change this thread's
            // credentials only (the wrappers of the C library would change those of all threads).
            unsafe {
                check(libc::unshare(libc::CLONE_FS)).unwrap();
                libc::umask(0);
                std::env::set_current_dir(dir).unwrap();
                if user != 0 {
                    check(libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr())).unwrap();
                    check(libc::syscall(libc::SYS_setresgid, group, group, group)).unwrap();
                    check(libc::syscall(libc::SYS_setresuid, user, user, user)).unwrap();
                }
            }
            call(words)
        });
        thread.join().unwrap_or_else(|_| panic!("{who}: {words:?}"))
    })
}

/// `{255}` and `{path 4095 f}`, see above.
fn expand(line: &str) -> String {
    let mut text = String::new();
    let mut rest = line;
    while let Some((before, behind)) = rest.split_once('{') {
        let (inside, after) = behind.split_once('}').unwrap_or_else(|| panic!("no }} in {line}"));
        text.push_str(before);
        match inside.split(' ').collect::<Vec<_>>()[..] {
            ["path", len, tail] => {
                text.push('.');
                text.push_str(&"/".repeat(number(len) as usize - 1 - tail.len()));
                text.push_str(tail);
            }
            [len] => text.push_str(&"n".repeat(number(len) as usize)),
            _ => panic!("{{{inside}}} is nothing"),
        }
        rest = after;
    }
    text + rest
}

/// Access, modification and change time.
fn times(dir: &Path, path: &str) -> Option<[(i64, i64); 3]> {
    let path = CString::new(dir.join(path).to_str().unwrap()).unwrap();
    let stat = stat(&path, false).ok()?;
    Some([
        (stat.st_atime, stat.st_atime_nsec),
        (stat.st_mtime, stat.st_mtime_nsec),
        (stat.st_ctime, stat.st_ctime_nsec),
    ])
}

/// What is wrong with the times after a call, if anything.
fn wrong_times(path: &str, expected: &str, before: [(i64, i64); 3], after: [(i64, i64); 3]) -> Option<String> {
    let moved: String = ['a', 'm', 'c']
        .into_iter()
        .zip(before.iter().zip(&after))
        .filter(|(letter, (before, after))| before != after && (*letter != 'a' || expected.contains('a')))
        .map(|(letter, _)| letter)
        .collect();
    (moved != expected).then(|| format!("times of {path}: moved `{moved}`, expected `{expected}`"))
}

/// Runs one line; counts what it asserts; returns what went wrong.
fn run_line(line: &str, dir: &Path, assertions: &mut usize) -> Vec<String> {
    let (changes, line) = match line.strip_prefix("changes ") {
        Some(rest) => rest.split_once('|').unwrap_or_else(|| panic!("no | in {line}")),
        None => ("", line),
    };
    let (line, expected) = match line.rsplit_once(" =") {
        Some((line, expected)) => (line, expected.trim()),
        None => (line, "ok"),
    };
    let line = expand(line.trim());
    let expected = expand(expected);
    let (who, line) = line.split_once(": ").unwrap_or(("root", &line));
    // One space between words, so that an empty one (`{0}`) is a word.
    let words: Vec<String> = line.split(' ').map(String::from).collect();
    let changes: Vec<(&str, &str, Option<_>)> = changes
        .split_whitespace()
        .map(|word| word.split_once(':').unwrap())
        .map(|(path, letters)| (path, letters, times(dir, path)))
        .collect();
    if !changes.is_empty() {
        std::thread::sleep(TICK);
    }
    let answer = call_as(who, dir, &words).unwrap_or_else(name_of);
    let mut wrong = Vec::new();
    *assertions += 1 + changes.len();
    if answer != expected {
        let short: String = answer.chars().take(100).collect();
        wrong.push(format!("expected `{expected}`, got `{short}`"));
    }
    for (path, letters, before) in changes {
        match (before, times(dir, path)) {
            (Some(before), Some(after)) => wrong.extend(wrong_times(path, letters, before, after)),
            _ => wrong.push(format!("{path}: no such file to watch")),
        }
    }
    wrong
}

/// Runs a table in `base`; returns the number of assertions and the lines that failed.
fn run_table(name: &str, table: &str, base: &Path) -> (usize, Vec<String>) {
    let (mut assertions, mut failures) = (0, Vec::new());
    let (mut case, mut dir) = ("", PathBuf::new());
    for (number, line) in table.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(title) = line.strip_prefix("--- ") {
            (case, dir) = (title, base.join(format!("{name}-{number}")));
            call_as(
                "root",
                base,
                &["mkdir".into(), dir.display().to_string(), "0777".into()],
            )
            .unwrap();
            continue;
        }
        for wrong in run_line(line, &dir, &mut assertions) {
            failures.push(format!("{name}.table:{} ({case}): {line}: {wrong}", number + 1));
        }
    }
    (assertions, failures)
}

#[test]
fn every_line_of_the_tables_holds() {
    let other = std::env::var_os("FERRITE_POSIX_DIR").map(PathBuf::from);
    if other.is_none() && !has_fuse() {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: the tables change users, which only root may");
        return;
    }
    let test = other.is_none().then(|| TestPool::new("64M", &[]));
    let scratch = other.map(|dir| tempfile::tempdir_in(dir).unwrap());
    let base = match (&test, &scratch) {
        (Some(test), _) => test.dir.clone(),
        (None, Some(scratch)) => scratch.path().to_path_buf(),
        (None, None) => unreachable!("one of them was made"),
    };
    let (mut assertions, mut failures) = (0, Vec::new());
    for (name, table) in TABLES {
        let (count, wrong) = run_table(name, table, &base);
        assertions += count;
        failures.extend(wrong);
    }
    eprintln!("{assertions} assertions");
    assert!(
        failures.is_empty(),
        "{} of {assertions} assertions failed:\n{}",
        failures.len(),
        failures.join("\n")
    );
    assert!(assertions >= 300, "the tables shrank to {assertions} assertions");
    if let Some(test) = test {
        test.finish();
    }
}

#[test]
fn a_read_only_mount_refuses_every_change() {
    if !has_fuse() {
        return;
    }
    let test = TestPool::new("64M", &[]);
    for line in [
        "create f 0666",
        "write f text",
        "mkdir d 0777",
        "symlink f l",
        "setxattr f user.a 1",
    ] {
        assert_eq!(run_line(line, &test.dir, &mut 0), [""; 0], "{line}");
    }
    test.umount();
    test.mount(&["-o", "ro"]);
    let (_, failures) = run_table_in("read_only", include_str!("posix/read_only.table"), &test.dir);
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    test.finish();
}

/// As [`run_table`], in one directory that is there already.
fn run_table_in(name: &str, table: &str, dir: &Path) -> (usize, Vec<String>) {
    let (mut assertions, mut failures) = (0, Vec::new());
    for (number, line) in table.lines().enumerate() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        for wrong in run_line(line, dir, &mut assertions) {
            failures.push(format!("{name}.table:{}: {line}: {wrong}", number + 1));
        }
    }
    (assertions, failures)
}
