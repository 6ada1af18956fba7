//! Rights that a file gives to those who run it (setuid, setgid, file capabilities) end with a change of its content or
//! its owner: on every kind of mount, for each kind of change, and before the change returns.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common;
use crate::common::{TestPool, has_fuse, ok, text};
use rustix::fs::{AtFlags, CWD, FallocateFlags, StatxFlags, XattrFlags};
use rustix::thread::{Gid, Uid, set_thread_groups, set_thread_res_gid, set_thread_res_uid};

/// A program that prints the user that it runs as.
const PROGRAM: &str = "/usr/bin/id";
/// A caller who owns nothing.
const OTHER_USER: u32 = 1234;
const CAPABILITY: &str = "security.capability";
/// `cap_setuid+ep`, as `struct vfs_cap_data` has it.
const SETUID_CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
const PRIVILEGED: u32 = 0o6000;

/// Runs `work` on a thread that is another user's: on Linux each thread has credentials of its own.
fn as_other_user(work: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(move || {
        let (uid, gid) = (Uid::from_raw(OTHER_USER), Gid::from_raw(OTHER_USER));
        set_thread_groups(&[]).unwrap();
        set_thread_res_gid(gid, gid, gid).unwrap();
        set_thread_res_uid(uid, uid, uid).unwrap();
        work();
    });
    thread.join().expect("the other user's change");
}

/// The mode that a kernel reports: the call requests nothing else, so that the kernel may answer from its cache.
fn mode(path: &Path) -> u32 {
    let found = rustix::fs::statx(CWD, path, AtFlags::empty(), StatxFlags::MODE).unwrap();
    u32::from(found.stx_mode) & 0o7777
}

fn has_capability(path: &Path) -> bool {
    let mut value = [0; 64];
    match rustix::fs::getxattr(path, CAPABILITY, &mut value) {
        Ok(_) => true,
        Err(rustix::io::Errno::NODATA) => false,
        Err(error) => panic!("{}: {error}", path.display()),
    }
}

/// The user that the program runs as if the other user starts it. A process that another test has just forked has the
/// descriptors of this one, until it runs its program.
fn runs_as(path: &Path) -> u32 {
    let id = OTHER_USER.to_string();
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", &id, "--regid", &id, "--clear-groups"]);
        let output = command.arg(path).arg("-u").output().unwrap();
        let (said, is_late) = (text(&output), Instant::now() > end);
        match said.trim().parse() {
            Ok(uid) if output.status.success() => return uid,
            _ => assert!(
                said.contains("Text file busy") && !is_late,
                "{}: {said}",
                path.display()
            ),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A change by the other user to the file at this path, or through a descriptor opened before the file became
/// privileged.
type Change = fn(&Path, &File);

fn opened(path: &Path) -> File {
    OpenOptions::new().write(true).open(path).unwrap()
}

const BY_OTHER_USER: [(&str, Change); 9] = [
    ("a write", |path, _| {
        opened(path).write_all_at(&fs::read(PROGRAM).unwrap(), 0).unwrap();
    }),
    ("a write of a byte", |path, _| {
        opened(path).write_all_at(b"\x7f", 0).unwrap();
    }),
    ("a write through an old descriptor", |_, file| {
        file.write_all_at(b"\x7f", 0).unwrap();
    }),
    ("an append", |path, _| {
        let mut file = OpenOptions::new().append(true).open(path).unwrap();
        file.write_all(b"!").unwrap();
    }),
    ("open with O_TRUNC", |path, _| {
        let mut file = OpenOptions::new().write(true).truncate(true).open(path).unwrap();
        file.write_all(&fs::read(PROGRAM).unwrap()).unwrap();
    }),
    ("ftruncate", |path, _| {
        opened(path).set_len(fs::metadata(PROGRAM).unwrap().len() + 10).unwrap();
    }),
    ("ftruncate of an old descriptor", |_, file| {
        file.set_len(fs::metadata(PROGRAM).unwrap().len() + 10).unwrap();
    }),
    ("fallocate", |path, _| {
        let len = fs::metadata(PROGRAM).unwrap().len();
        let grows = rustix::fs::fallocate(opened(path), FallocateFlags::empty(), 0, len + 5000);
        grows.unwrap();
    }),
    ("copy_file_range", |path, _| {
        let (from, to) = (File::open(path.with_file_name("source")).unwrap(), opened(path));
        let copied = rustix::fs::copy_file_range(&from, None, &to, None, 1 << 20).unwrap();
        assert!(copied > 0);
    }),
];

/// Makes the file privileged, and has the kernel cache that.
fn make_privileged(path: &Path) {
    fs::set_permissions(path, Permissions::from_mode(0o777 | PRIVILEGED)).unwrap();
    rustix::fs::setxattr(path, CAPABILITY, &SETUID_CAPABILITY, XattrFlags::empty()).unwrap();
    for _ in 0..2 {
        assert_eq!((mode(path), has_capability(path)), (0o777 | PRIVILEGED, true));
    }
}

/// Makes all changes on a mount. `others` are paths of the same directory on other mounts.
fn check(dir: &Path, others: &[PathBuf], what: &str) {
    fs::copy(PROGRAM, dir.join("source")).unwrap();
    make_privileged(&dir.join("source"));
    assert_eq!(runs_as(&dir.join("source")), 0, "{what}: the mount honours setuid");
    for (change, make) in BY_OTHER_USER {
        let path = dir.join("program");
        let _ = fs::remove_file(&path);
        fs::copy(PROGRAM, &path).unwrap();
        // Attributes that grant no rights stay.
        rustix::fs::setxattr(&path, "user.other", b"stays", XattrFlags::empty()).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o777)).unwrap();
        let old = opened(&path);
        let seen: Vec<PathBuf> = others.iter().map(|other| other.join("program")).collect();
        make_privileged(&path);
        seen.iter()
            .for_each(|path| assert_eq!(mode(path), 0o777 | PRIVILEGED, "{what}"));
        let changed = path.clone();
        as_other_user(move || make(&changed, &old));
        for path in seen.iter().chain([&path]) {
            // First: it needs only permission, and reads.
            assert_eq!(runs_as(path), OTHER_USER, "{what}: {change} on {}", path.display());
            let (mode, has_capability) = (mode(path), has_capability(path));
            assert_eq!(mode & PRIVILEGED, 0, "{what}: {change}: {mode:o} on {}", path.display());
            assert!(!has_capability, "{what}: {change}: capability on {}", path.display());
        }
        let mut value = [0; 8];
        assert_eq!(
            rustix::fs::getxattr(&path, "user.other", &mut value),
            Ok(5),
            "{what}: {change}"
        );
    }
    by_root(&dir.join("program"), what);
}

/// Root keeps setuid when it writes, and loses it with a chown, even to the same owner; a capability goes with both.
fn by_root(path: &Path, what: &str) {
    make_privileged(path);
    opened(path).write_all_at(b"\x7f", 0).unwrap();
    assert!(!has_capability(path), "{what}: a write by root");
    make_privileged(path);
    chown(path, Some(0), Some(0)).unwrap();
    assert_eq!(mode(path) & PRIVILEGED, 0, "{what}: chown");
    assert!(!has_capability(path), "{what}: chown");
    assert_eq!(runs_as(path), OTHER_USER, "{what}: chown");
}

/// The mount points lie where the other user may go.
fn open_for_all(test: &TestPool) {
    let base = test.dir.parent().unwrap();
    fs::set_permissions(base, Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn of_a_pool() {
    if !has_fuse() {
        return;
    }
    for way in common::ways() {
        for options in [format!("suid,{way}"), format!("suid,direct_io,{way}")] {
            let test = TestPool::with("64M", &options);
            open_for_all(&test);
            check(&test.dir, &[], &options);
            test.finish();
        }
    }
}

#[test]
fn of_a_server() {
    if !has_fuse() {
        return;
    }
    for options in ["suid", "suid,cache=leased"] {
        let test = TestPool::served("64M");
        test.umount();
        test.mount(&["-o", options]);
        open_for_all(&test);
        let other = test.scratch().join("other");
        fs::create_dir_all(&other).unwrap();
        test.mount_on(&other, &["-o", "suid,cache=leased"]);
        check(&test.dir, std::slice::from_ref(&other), options);
        ok(common::ferrite().arg("umount").arg(&other));
        test.finish();
    }
}

#[cfg(feature = "nvme")]
#[test]
fn of_devices() {
    if !has_fuse() {
        return;
    }
    for options in ["suid", "suid,direct_io"] {
        let base = tempfile::tempdir().unwrap();
        fs::set_permissions(base.path(), Permissions::from_mode(0o755)).unwrap();
        let mnt = base.path().join("mnt");
        fs::create_dir(&mnt).unwrap();
        let args = [
            "mkfs",
            "nvme:pool.toml",
            "--meta",
            "meta",
            "--data",
            "a.data",
            "--size",
            "512M",
        ];
        ok(common::ferrite().current_dir(base.path()).args(args));
        let address = format!("nvme:{}", base.path().join("pool.toml").display());
        ok(common::ferrite()
            .arg("mount")
            .arg(&address)
            .arg(&mnt)
            .args(["-o", options]));
        check(&mnt, &[], options);
        ok(common::ferrite().arg("umount").arg(&mnt));
        ok(common::ferrite().args(["fsck", &address]));
    }
}
