//! Stores of programs to shared mappings, which only the kernel knows until it writes them out: no call reports them as
//! durable when they are not, and no copy omits them.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common;
use crate::common::{TestPool, ferrite, has_fuse, ok};
use tempfile::TempDir;

fn python(script: &str, words: &[&str]) -> String {
    ok(Command::new("python3").args(["-c", script]).args(words))
}

/// A pool on devices, and a directory to mount it on.
#[cfg(feature = "nvme")]
fn devices() -> (TempDir, String, PathBuf) {
    let base = tempfile::Builder::new()
        .prefix("ferrite-test-")
        .tempdir_in("/dev/shm")
        .unwrap();
    std::fs::create_dir(base.path().join("mnt")).unwrap();
    let words = [
        "mkfs",
        "nvme:pool.toml",
        "--meta",
        "meta",
        "--data",
        "a.data",
        "--size",
        "64M",
    ];
    ok(ferrite().current_dir(base.path()).args(words));
    let (address, dir) = (
        format!("nvme:{}/pool.toml", base.path().display()),
        base.path().join("mnt"),
    );
    (base, address, dir)
}

/// The pools of this machine that can be mounted: their addresses, and directories to mount on.
fn pools() -> Vec<(TempDir, String, PathBuf)> {
    let base = tempfile::Builder::new()
        .prefix("ferrite-test-")
        .tempdir_in("/dev/shm")
        .unwrap();
    let (pool, dir) = (base.path().join("pool"), base.path().join("mnt"));
    std::fs::create_dir(&dir).unwrap();
    common::mkfs(&pool, &["--size", "64M"]);
    let pool = (base, pool.display().to_string(), dir);
    #[cfg(feature = "nvme")]
    return vec![pool, devices()];
    #[cfg(not(feature = "nvme"))]
    vec![pool]
}

/// Stores into a mapping, kills the daemon, and prints the results of `msync`, `fsync` and `close` after that. Before,
/// it makes each request once whose reply could stop the kernel from sending further ones.
const STORES: &str = r#"
import os, sys, mmap, signal
path, daemon = sys.argv[1], int(sys.argv[2])
f = os.open(path, os.O_RDWR | os.O_CREAT); os.pwrite(f, b"o" * 8192, 0)
if sys.argv[3] == "before":
    os.fsync(f); os.fdatasync(f); os.close(os.dup(f)); os.lseek(f, 0, os.SEEK_HOLE)
    d = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY); os.fsync(d)
m = mmap.mmap(f, 8192); m[0:4] = b"new!"
os.kill(daemon, 9)
while os.path.exists("/proc/%d/exe" % daemon): pass
while True:
    try: os.statvfs(os.path.dirname(path))
    except OSError: break
for what, call in (("msync", m.flush), ("fsync", lambda: os.fsync(f)), ("fdatasync", lambda: os.fdatasync(f)),
                   ("close", lambda: os.close(f))):
    try: call(); print(what, "says that all is well")
    except OSError as error: print(what, "fails")
if sys.argv[3] == "before":
    try: os.fsync(d); print("fsync of a directory says that all is well")
    except OSError: pass
"#;

#[test]
fn nothing_is_durable_by_the_word_of_a_dead_daemon() {
    if !has_fuse() {
        return;
    }
    for (_base, address, dir) in pools() {
        for before in ["before", "not"] {
            let mut daemon = ferrite()
                .arg("mount")
                .arg(&address)
                .arg(&dir)
                .arg("-f")
                .spawn()
                .unwrap();
            let start = std::time::Instant::now();
            while !is_mounted(&dir) {
                assert!(start.elapsed().as_secs() < 20 && daemon.try_wait().unwrap().is_none());
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            let file = dir.join("file");
            let said = python(STORES, &[file.to_str().unwrap(), &daemon.id().to_string(), before]);
            let _ = daemon.wait();
            ok(Command::new("umount").arg("-l").arg(&dir));
            let expected = "msync fails\nfsync fails\nfdatasync fails\nclose fails\n";
            assert_eq!(said, expected, "{address}, asked {before}");
        }
    }
}

fn is_mounted(dir: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    mounts.contains(&format!(" {} ", dir.display()))
}

/// Copies a file whose only data was stored through a mapping, with every program that looks for holes; with the
/// descriptor of the mapping open, and closed.
const COPIES: &str = r#"
import os, sys, mmap, subprocess, ctypes
base = sys.argv[1]
libc = ctypes.CDLL(None, use_errno=True)
# It is there before the file is opened: a fork would inherit the descriptor, and closing that writes what is dirty.
shell = subprocess.Popen(["bash"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
def sh(command):
    shell.stdin.write(command + "\necho done $?\n"); shell.stdin.flush()
    assert shell.stdout.readline() == "done 0\n", command
LEN, AT, WHAT = 1 << 20, 300000, b"0123456789"
COPIES = ("cp m copy", "cp --sparse=always m copy", "cp --sparse=auto --reflink=never m copy", "rsync -S m copy",
          "dd if=m of=copy bs=64k conv=sparse status=none", "tar -Scf - m | tar -xOf - > copy",
          "tar -Scf - m | tar -C to -xf - && mv to/m copy")
sh("cd %s && mkdir -p to" % base)
for closed in (False, True):
    f = os.open(base + "/m", os.O_RDWR | os.O_CREAT); os.ftruncate(f, LEN)
    m = mmap.mmap(f, LEN)
    reader = os.open(base + "/m", os.O_RDONLY)
    punch = os.open(base + "/m", os.O_WRONLY)
    # Python has a descriptor of its own for each mapping; so the mapping is another library's.
    libc.mmap.restype = ctypes.c_void_p
    at = libc.mmap(None, ctypes.c_size_t(LEN), 3, 1, f, ctypes.c_long(0))
    m.close()
    if closed: os.close(f)
    for copy in COPIES:
        assert libc.fallocate(punch, 3, ctypes.c_long(0), ctypes.c_long(LEN)) == 0
        if closed: os.close(punch)
        ctypes.memmove(at + AT, WHAT, len(WHAT))
        assert os.lseek(reader, AT, os.SEEK_DATA) == AT and os.lseek(reader, 0, os.SEEK_HOLE) == LEN
        assert os.stat(base + "/m").st_blocks > 0, "tar believes that a file without blocks is all holes"
        sh("rm -f copy to/m; " + copy)
        with open(base + "/copy", "rb") as copied: data = copied.read()
        assert len(data) == LEN and data[AT:AT + len(WHAT)] == WHAT, (copy, closed)
        if closed: punch = os.open(base + "/m", os.O_WRONLY)
    os.close(punch)
    libc.munmap(ctypes.c_void_p(at), ctypes.c_size_t(LEN))
    if not closed: os.close(f)
    f = os.open(base + "/m", os.O_WRONLY)
    assert libc.fallocate(f, 3, ctypes.c_long(0), ctypes.c_long(LEN)) == 0
    os.close(f)
    # The last one is released a moment later. Then holes are holes again.
    for n in range(2000):
        try: os.lseek(reader, 0, os.SEEK_DATA)
        except OSError: break
        subprocess.run(["sleep", "0.01"])
    else: raise SystemExit("a file that nobody writes has holes")
    assert os.stat(base + "/m").st_blocks == 0
    os.close(reader); os.remove(base + "/m")
"#;

#[test]
fn no_copy_leaves_out_what_a_mapping_has_stored() {
    if !has_fuse() {
        return;
    }
    for (_base, address, dir) in pools() {
        for options in ["rw", "direct_io"] {
            ok(ferrite().arg("mount").arg(&address).arg(&dir).args(["-o", options]));
            python(COPIES, &[dir.to_str().unwrap()]);
            ok(ferrite().arg("umount").arg(&dir));
        }
    }
    for options in ["cache=off", "cache=leased"] {
        let test = TestPool::served("64M");
        test.umount();
        test.mount(&["-o", options]);
        python(COPIES, &[test.dir.to_str().unwrap()]);
        test.finish();
    }
}
