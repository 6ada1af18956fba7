//! File handles (`name_to_handle_at(2)`, `open_by_handle_at(2)`), by which servers that export a mount, and backup
//! programs, keep files: each finds its file again as long as it exists, and never another.

use std::path::Path;
use std::process::Command;

use crate::common::{TestPool, has_fuse, ok, sh};

/// `save`: writes the handles of all files below `.` to the file that is named. `check`: opens each, and prints paths
/// whose file has the inode number of the handle's path, or the error.
const PROGRAM: &str = r#"
import ctypes, errno, json, os, sys
libc = ctypes.CDLL(None, use_errno=True)
class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint), ("type", ctypes.c_int), ("data", ctypes.c_ubyte * 128)]
def handle(path):
    h, mount = Handle(bytes=128), ctypes.c_int()
    if libc.name_to_handle_at(-100, path.encode(), ctypes.byref(h), ctypes.byref(mount), 0):
        raise OSError(ctypes.get_errno(), "name_to_handle_at")
    return [h.type, list(h.data[:h.bytes])]
def reopen(root, kind, data):
    h = Handle(bytes=len(data), type=kind)
    h.data[:len(data)] = data
    fd = libc.open_by_handle_at(root, ctypes.byref(h), os.O_PATH)
    if fd < 0: raise OSError(ctypes.get_errno(), "open_by_handle_at")
    return fd
word, saved = sys.argv[1:]
if word == "save":
    paths = ["."] + [os.path.join(d, n) for d, ds, fs in os.walk(".") for n in ds + fs]
    json.dump([[p, os.lstat(p).st_ino] + handle(p) for p in paths], open(saved, "w"))
else:
    root = os.open(".", os.O_RDONLY)
    for path, ino, kind, data in json.load(open(saved)):
        try:
            fd = reopen(root, kind, data)
            found = os.stat(fd).st_ino == ino
            if os.path.isdir(f"/proc/self/fd/{fd}"): os.listdir(f"/proc/self/fd/{fd}/..")
            print(path, "found" if found else "another file")
            os.close(fd)
        except OSError as e:
            print(path, errno.errorcode[e.errno])
"#;

fn run(dir: &Path, word: &str, saved: &Path) -> Vec<(String, String)> {
    let mut command = Command::new("python3");
    let said = ok(command.args(["-c", PROGRAM, word]).arg(saved).current_dir(dir));
    let pairs = said.lines().filter_map(|line| line.rsplit_once(' '));
    let mut pairs: Vec<_> = pairs.map(|(path, state)| (path.to_owned(), state.to_owned())).collect();
    pairs.sort();
    pairs
}

/// Has the kernel forget what no program uses, where that is permitted.
fn drop_caches() {
    let _ = std::fs::write("/proc/sys/vm/drop_caches", "2");
}

fn make_tree(test: &TestPool) {
    sh(
        &test.dir,
        "mkdir -p a/b/c && echo one > a/b/c/one && echo two > a/two && ln -s two a/link && mkfifo a/pipe
         ln a/two a/b/second",
    );
}

fn all_found(test: &TestPool, saved: &Path, when: &str) {
    let found = run(&test.dir, "check", saved);
    assert_eq!(found.len(), 9, "{when}: {found:?}");
    assert!(found.iter().all(|(_, state)| state == "found"), "{when}: {found:?}");
}

#[test]
fn a_handle_finds_its_file_and_never_another() {
    if !has_fuse() {
        return;
    }
    let test = TestPool::new("64M", &["--inodes", "64"]);
    let saved = test.scratch().join("handles");
    make_tree(&test);
    run(&test.dir, "save", &saved);
    all_found(&test, &saved, "at once");
    drop_caches();
    all_found(&test, &saved, "forgotten by the kernel");
    test.remount();
    all_found(&test, &saved, "in another mount");
    sh(&test.dir, "mv a/b/c moved && mv a/two renamed");
    test.remount();
    all_found(&test, &saved, "renamed");
    // Until no inode is left, so that new files have the numbers of the ones removed.
    sh(
        &test.dir,
        "rm -r a moved renamed && mkdir new && cd new
         for n in $(seq 200); do : > $n || break; done 2>/dev/null; test $(ls | wc -l) -lt 200",
    );
    for when in ["at once", "in another mount"] {
        for (path, state) in run(&test.dir, "check", &saved) {
            let expected = if path == "." { "found" } else { "ESTALE" };
            assert_eq!(state, expected, "{path}, removed, {when}");
        }
        test.remount();
    }
    test.finish();
}

/// The kernel's number of a file on a server is good as long as the client knows the file; after that, the handle is
/// stale.
#[test]
fn on_a_server_a_handle_finds_its_file_or_is_stale() {
    if !has_fuse() {
        return;
    }
    let test = TestPool::served("64M");
    let saved = test.scratch().join("handles");
    make_tree(&test);
    run(&test.dir, "save", &saved);
    all_found(&test, &saved, "at once");
    for remount in [false, true] {
        if remount {
            test.remount();
        }
        drop_caches();
        for (path, state) in run(&test.dir, "check", &saved) {
            assert!(["found", "ESTALE"].contains(&&*state), "{path}: {state}");
        }
    }
    test.finish();
}
