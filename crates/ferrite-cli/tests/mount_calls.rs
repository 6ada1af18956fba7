//! Calls of Linux that programs make on a mount, beyond those of POSIX: of a pool in memory, and of a server.

use std::process::Command;

use crate::common::{TestPool, has_fuse, ok, sh};

/// Files without a name, as programs use them to make a file appear whole.
const NAMELESS: &str = r#"
import ctypes, errno, os
def refused(call):
    try: call()
    except OSError as error: return error.errno
libc = ctypes.CDLL(None, use_errno=True)
def name(fd, to):
    AT_FDCWD, AT_SYMLINK_FOLLOW = -100, 0x400
    path = f"/proc/self/fd/{fd}".encode()
    if libc.linkat(AT_FDCWD, path, AT_FDCWD, to.encode(), AT_SYMLINK_FOLLOW):
        raise OSError(ctypes.get_errno(), to)
os.mkdir("d", 0o2770)
before = os.stat("d")
fd = os.open("d", os.O_TMPFILE | os.O_RDWR, 0o666)
assert os.write(fd, b"data" * 50_000) == 200_000
assert os.fstat(fd).st_nlink == 0 and os.listdir("d") == []
assert os.stat("d").st_mtime_ns == before.st_mtime_ns
assert os.fstat(fd).st_gid == before.st_gid and os.fstat(fd).st_mode & 0o777 == 0o666 & ~UMASK
os.setxattr(fd, "user.note", b"text")
name(fd, "d/whole")
assert os.stat("d/whole").st_nlink == 1 and os.stat("d/whole").st_size == 200_000
assert os.getxattr("d/whole", "user.note") == b"text"
assert refused(lambda: name(fd, "d/whole")) == errno.EEXIST
name(fd, "second")
os.close(fd)
assert open("second", "rb").read() == b"data" * 50_000
final = os.open("d", os.O_TMPFILE | os.O_EXCL | os.O_RDWR)
assert refused(lambda: name(final, "third")) == errno.ENOENT
assert refused(lambda: os.open("second", os.O_TMPFILE | os.O_RDWR)) == errno.ENOTDIR
assert refused(lambda: os.open("none", os.O_TMPFILE | os.O_RDWR)) == errno.ENOENT
fd = os.open("second", os.O_RDWR)
os.unlink("second"); os.unlink("d/whole")
assert refused(lambda: name(fd, "back")) == errno.ENOENT
many = [os.open("d", os.O_TMPFILE | os.O_RDWR) for _ in range(200)]
for number, fd in enumerate(many):
    os.write(fd, b"%d" % number)
    if number % 2: name(fd, f"d/{number}")
    os.close(fd)
assert len(os.listdir("d")) == 100 and open("d/77").read() == "77"
"#;

fn python(test: &TestPool, script: &str) {
    let script = format!("UMASK = 0o22\nimport os\nos.umask(UMASK)\n{script}");
    ok(Command::new("python3").current_dir(&test.dir).args(["-c", &script]));
}

fn calls(test: &TestPool) {
    python(test, NAMELESS);
    // The time of birth, which no other call moves.
    sh(
        &test.dir,
        "echo text > born; birth=$(stat -c %W born); test $birth -gt 1700000000; test $birth -le $(date +%s)
         touch -d 2001-01-01 born; mv born moved; chmod 600 moved; test $(stat -c %W moved) = $birth
         test $(stat -c %Y moved) = $(date -d 2001-01-01 +%s); test $(stat -c %W .) -gt 1700000000
         mkfifo pipe; test $(stat -c %W pipe) -gt 0
         mknod null c 1 3; test $(stat -c %t:%T null) = 1:3; rm -r pipe null",
    );
}

#[test]
fn calls_on_a_mounted_pool() {
    if has_fuse() {
        let test = TestPool::new("64M", &[]);
        calls(&test);
        test.umount();
        test.fsck();
        test.mount(&[]);
        sh(
            &test.dir,
            "test $(ls d | wc -l) = 100; test $(cat d/99) = 99; test $(stat -c %W moved) -gt 1700000000",
        );
        test.finish();
    }
}

#[test]
fn calls_on_a_mounted_server() {
    if has_fuse() {
        let test = TestPool::served("64M");
        calls(&test);
        test.finish();
    }
}
