//! Copies on mounts share blocks: `cp` and other programs make them, and neither sees what the other becomes.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::{self, TestPool, ferrite, has_fuse, sh};

const MIB: u64 = 1 << 20;

/// Bytes free on the mount, once the journal's leftovers count as free.
fn free(dir: &Path) -> u64 {
    let stat = rustix::fs::statvfs(dir).unwrap();
    stat.f_bfree * stat.f_frsize
}

/// Copies of a file of 4 MiB, which change one by one.
fn share(test: &TestPool) {
    let dir = &test.dir;
    sh(dir, "head -c 4M /dev/urandom > a; printf end >> a");
    let before = free(dir);
    sh(dir, "for n in b c d; do cp a $n; done; cmp a b; cmp a c; cmp a d");
    let taken = before - free(dir);
    assert!(taken < MIB, "three copies of 4 MiB take {taken} bytes");
    let file = File::options().read(true).write(true).open(dir.join("b")).unwrap();
    file.write_all_at(&[7; 10_000], 1_000_000).unwrap();
    file.write_all_at(b"at the end", 4 * MIB + 3).unwrap();
    file.set_len(5 * MIB).unwrap();
    drop(file);
    sh(
        dir,
        "truncate -s 1600K c; rm a; fallocate -p -o 200K -l 800K d; fallocate -z -o 2M -l 512K d
         printf new | dd of=d bs=1 seek=2200000 conv=notrunc status=none",
    );
    let original = || {
        sh(
            dir,
            "(head -c 1000000 b; head -c 10000 /dev/zero | tr '\\0' '\\7') | cksum",
        )
    };
    let changed = original();
    sh(dir, "cp b e; cmp b e; cp --sparse=never b f; cmp b f");
    // Beyond the spare entries of the mapping, data is copied.
    sh(dir, "for n in $(seq 10); do cp b more$n; cmp b more$n; done; rm more*");
    test.remount();
    assert_eq!(original(), changed);
    sh(
        dir,
        "cmp b e; cmp b f
         cmp -n 204800 b d; cmp -n 819200 <(tail -c +204801 d) /dev/zero
         test $(head -c 2200003 d | tail -c 3) = new
         cmp -n 1000000 <(tail -c +2700001 d) <(tail -c +2700001 b)
         cmp -n 1000000 c b; test $(stat -c %s c) = 1638400",
    );
    sh(dir, "rm b c d e f");
    // A server frees large files when the kernel has forgotten them, by another thread.
    let within = Instant::now() + Duration::from_secs(30);
    while free(dir) <= before {
        assert!(Instant::now() < within, "space is lost");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn on_a_pool_they_take_no_space() {
    if has_fuse() {
        let test = TestPool::new("128M", &[]);
        share(&test);
        test.finish();
    }
}

#[test]
fn on_a_server_they_take_no_space() {
    if has_fuse() {
        let test = TestPool::served("128M");
        share(&test);
        test.finish();
    }
}

/// Stores in mappings are copied, too, and show in mappings of the copy.
#[test]
fn stores_in_mappings_are_copied() {
    if !has_fuse() {
        return;
    }
    let test = TestPool::new("64M", &[]);
    let script = r#"
import mmap, os
a = os.open("a", os.O_RDWR | os.O_CREAT); os.ftruncate(a, 1 << 20)
b = os.open("b", os.O_RDWR | os.O_CREAT); os.ftruncate(b, 1 << 20)
m, n = mmap.mmap(a, 0), mmap.mmap(b, 0)
m[5000:5005] = b"store"; n[9000:9003] = b"old"
assert n[5000:5005] == bytes(5)
left, at = 1 << 20, 0
while left:
    count = os.copy_file_range(a, b, left, at, at)
    assert count
    left, at = left - count, at + count
assert n[5000:5005] == b"store" and n[9000:9003] == bytes(3), (n[5000:5005], n[9000:9003])
m[5000:5005] = b"later"
assert n[5000:5005] == b"store"
m.flush(); n.flush()
assert os.pread(a, 5, 5000) == b"later" and os.pread(b, 5, 5000) == b"store"
"#;
    fs::write(test.dir.join("script.py"), script).unwrap();
    sh(&test.dir, "python3 script.py");
    test.finish();
}

/// `ferrite clone`: a tree while a program changes it, and the refusals.
fn clone_trees(test: &TestPool) {
    let dir = &test.dir;
    sh(
        dir,
        "mkdir -p t/a/b; for n in $(seq 200); do echo $n > t/a/f$n; done; head -c 3M /dev/urandom > t/a/b/large
         ln t/a/f1 t/a/b/link; ln -s ../f2 t/a/b/symlink; setfattr -n user.note -v text t/a; chmod 2750 t/a/b
         touch -d 2001-02-03 t/a/b/large t",
    );
    let before = free(dir);
    let clone = |from: &str, to: &str| clone(&at(dir, from), &at(dir, to));
    // The kernel may remember that there is nothing of that name.
    sh(dir, "test ! -e t2; test ! -e t2");
    common::ok(&mut clone("t", "t2"));
    assert!(before - free(dir) < MIB, "it shares the large file");
    sh(
        dir,
        "diff -r t t2; test $(stat -c %h t2/a/f1) = 2; test t2/a/f1 -ef t2/a/b/link
         test $(stat -c %a:%Y t2/a/b) = 2750:$(stat -c %Y t/a/b); test $(readlink t2/a/b/symlink) = ../f2
         test $(getfattr --only-values -n user.note t2/a) = text; stat -c %Y t2 t | uniq | wc -l | grep -qx 1
         ls | tr '\\n' ' ' | grep -qx 't t2 '; test $(stat -c %h .) = 4
         echo changed > t/a/f5; test $(cat t2/a/f5) = 5; rm -r t/a/b; cp t2/a/b/large .",
    );
    common::ok(&mut clone("t2/a/b/large", "one"));
    sh(dir, "cmp one large; rm one large");
    let refused = |from: &str, to: &str, said: &str| {
        let failed = common::fails(&mut clone(from, to), 1);
        assert!(failed.contains(said), "{failed}");
    };
    refused("t", "t2", "exists");
    refused("none", "new", "none: No such file");
    refused("t", "none/new", "No such file");
    let elsewhere = tempfile::tempdir().unwrap();
    let other = elsewhere.path().join("t");
    let failed = common::fails(&mut self::clone(&at(dir, "t"), other.to_str().unwrap()), 1);
    assert!(failed.contains("another file system"), "{failed}");
    fs::write(&other, "x").unwrap();
    let copy = elsewhere.path().join("u");
    let failed = common::fails(&mut self::clone(other.to_str().unwrap(), copy.to_str().unwrap()), 1);
    assert!(failed.contains("cannot share blocks"), "{failed}");
    test.remount();
    sh(
        dir,
        "test $(ls t2/a | wc -l) = 201; test $(cat t2/a/f5) = 5; rm -r t t2",
    );
}

fn clone(from: &str, to: &str) -> Command {
    let mut command = ferrite();
    command.args(["clone", from, to]);
    command
}

fn at(dir: &Path, name: &str) -> String {
    dir.join(name).to_str().unwrap().to_owned()
}

#[cfg(feature = "nvme")]
#[test]
fn on_devices_copies_of_whole_files_take_no_space() {
    if has_fuse() {
        let test = TestPool::on_devices("256M");
        let dir = &test.dir;
        sh(dir, "head -c 30M /dev/urandom > large; sync");
        let before = free(dir);
        sh(dir, "cp large copy; cp large other; cmp large copy; cmp large other");
        assert!(before - free(dir) < MIB, "a copy takes space");
        sh(
            dir,
            "cp large kept; echo more >> copy; printf x | dd of=other conv=notrunc status=none
             cmp large kept; cmp -n 31457280 large copy; ! cmp -s large other; rm kept copy other large",
        );
        test.finish();
    }
}

#[cfg(feature = "nvme")]
#[test]
fn trees_are_cloned_on_devices() {
    if has_fuse() {
        let test = TestPool::on_devices("128M");
        clone_trees(&test);
        test.finish();
    }
}

#[test]
fn trees_are_cloned_on_a_pool() {
    if has_fuse() {
        let test = TestPool::new("128M", &[]);
        clone_trees(&test);
        test.finish();
    }
}

#[test]
fn trees_are_cloned_on_a_server() {
    if has_fuse() {
        let test = TestPool::served("128M");
        clone_trees(&test);
        test.finish();
    }
}

/// A user clones what is the user's own, by the rules of the directory. The command asks by an attribute.
#[test]
fn users_clone_their_own_trees() {
    if !has_fuse() {
        return;
    }
    let test = TestPool::new("64M", &[]);
    let dir = &test.dir;
    sh(
        dir,
        "chmod 777 .; mkdir own closed; echo x > own/f; echo y > own/g; chown 65534 own own/f",
    );
    // The command asks in this way.
    let script = "setfattr -n ferrite.clone -v \"$(getfattr --only-values -n ferrite.clone $1):$3\" $2";
    let ask = |from: &str, parent: &str, name: &str| {
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .args(["sh", "-c", script, "sh", from, parent, name])
            .current_dir(dir);
        command
    };
    let failed = common::fails(&mut ask("own", ".", "new"), 1);
    assert!(failed.contains("not permitted"), "a file in it is root's: {failed}");
    sh(dir, "chown 65534 own/g");
    common::ok(&mut ask("own", ".", "new"));
    sh(dir, "diff -r own new; test $(stat -c %u new/f) = 65534");
    let failed = common::fails(&mut ask("own", "closed", "new"), 1);
    assert!(failed.contains("Permission denied"), "{failed}");
    // Without a path to it, nobody has a token of an inode.
    sh(dir, "mkdir -m 700 private; mkdir private/own; chown 65534 private/own");
    common::fails(&mut ask("private/own", ".", "stolen"), 1);
    let token = sh(dir, "getfattr --only-values -n ferrite.clone own");
    let (number, proof) = token.split_once(':').unwrap();
    let other = std::os::unix::fs::MetadataExt::ino(&fs::metadata(dir.join("private/own")).unwrap());
    for nonsense in [
        format!("{other}:{proof}:a"),
        format!("{number}:0000000000000000:a"),
        format!("{number}::a"),
        format!("{number}:a"),
        format!("99999999999999999999:{proof}:a"),
        format!("{token}:a/b"),
        format!("{token}:.."),
        format!("{token}:"),
        String::new(),
        "x".into(),
    ] {
        let mut command = Command::new("setfattr");
        command.args(["-n", "ferrite.clone", "-v", &nonsense]).arg(dir);
        common::fails(&mut command, 1);
    }
    sh(dir, "test ! -e a; test ! -e stolen");
    test.finish();
}
