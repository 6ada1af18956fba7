//! Administrators of pools see the state of the machine: other users' pools, dead daemons, damage, the limits of a
//! container.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common;
use crate::common::{TestPool, fails, ferrite, has_fuse, mkfs, ok, sh};

/// A mount that is removed when dropped, whatever happened.
struct Mounted<'a>(&'a Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).output();
    }
}

/// A user who has a name, as fusermount3 requires.
const NOBODY: u32 = 65_534;

/// Runs a command as that user.
fn as_nobody(program: &Path, words: &[&str]) -> Command {
    let mut command = Command::new("setpriv");
    command
        .args([format!("--reuid={NOBODY}"), format!("--regid={NOBODY}")])
        .args(["--clear-groups", "--"])
        .arg(program)
        .args(words)
        .current_dir("/")
        .env_remove("XDG_RUNTIME_DIR");
    command
}

/// The program in a place where every user can run it.
fn for_all(dir: &Path) -> PathBuf {
    let program = dir.join("ferrite");
    fs::copy(ferrite().get_program(), &program).unwrap();
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
    program
}

#[test]
fn a_missing_pool_is_a_failure_unless_that_was_said() {
    let dir = tempfile::tempdir().unwrap();
    let mount = |options: &[&str]| {
        let mut command = ferrite();
        command
            .arg("mount")
            .arg(dir.path().join("pool"))
            .arg(dir.path())
            .args(options);
        command
    };
    assert!(fails(&mut mount(&[]), 1).contains("pool"));
    let output = mount(&["-o", "rw,nofail"]).output().unwrap();
    assert!(output.status.success(), "{}", common::text(&output));
    assert!(common::text(&output).contains("nofail"));
    // A pool that exists but is wrong is a failure all the same.
    fs::write(dir.path().join("pool"), "no pool").unwrap();
    fails(&mut mount(&["-o", "nofail"]), 1);
}

#[test]
fn helpers_show_commands_that_exist() {
    let dir = tempfile::tempdir().unwrap();
    for (helper, command) in [
        ("mkfs.ferrite", "mkfs"),
        ("mount.ferrite", "mount"),
        ("fsck.ferrite", "fsck"),
    ] {
        let link = dir.path().join(helper);
        std::os::unix::fs::symlink(ferrite().get_program(), &link).unwrap();
        let said = ok(Command::new(&link).arg("--help"));
        assert!(said.contains(&format!("Usage: ferrite {command} ")), "{said}");
    }
}

#[test]
fn what_a_container_lacks_is_named() {
    if !has_fuse() {
        return;
    }
    let test = TestPool::new("16M", &[]);
    test.umount();
    let without = |words: &[&str]| {
        let mut command = Command::new("setpriv");
        command
            .arg("--bounding-set=-sys_admin")
            .arg(ferrite().get_program())
            .args(words);
        command
    };
    let said = fails(&mut without(&["doctor"]), 1);
    assert!(said.contains("CAP_SYS_ADMIN is missing"), "{said}");
    let said = fails(
        &mut without(&["mount", test.pool.to_str().unwrap(), test.dir.to_str().unwrap()]),
        1,
    );
    assert!(said.contains("CAP_SYS_ADMIN") && said.contains("doctor"), "{said}");
    test.mount(&[]);
    test.finish();
}

#[test]
fn root_sees_the_pools_of_others() {
    if !has_fuse() {
        return;
    }
    if fs::metadata("/dev/fuse").unwrap().mode() & 0o6 != 0o6 {
        eprintln!("skipped: /dev/fuse is not for all users here");
        return;
    }
    let base = tempfile::tempdir_in("/dev/shm").unwrap();
    let program = for_all(base.path());
    let home = base.path().join("home");
    // The helper takes the pool's name among its options, between commas.
    let (pool, dir) = (home.join(r"pool,1\2"), home.join("mnt"));
    fs::create_dir_all(&dir).unwrap();
    mkfs(&pool, &["--size", "16M"]);
    for path in [&home, &pool, &dir] {
        chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let (pool_name, dir_name) = (pool.to_str().unwrap(), dir.to_str().unwrap());
    let _mounted = Mounted(&dir);
    ok(&mut as_nobody(&program, &["mount", pool_name, dir_name]));
    let mine = TestPool::new("16M", &[]);
    let df = |words: &[&str]| ok(ferrite().arg("df").args(words));
    // Some pools of this machine may be damaged.
    let all = common::text(&ferrite().arg("df").output().unwrap());
    for said in [all, df(&[pool_name]), df(&[dir_name])] {
        let line = said.lines().find(|line| line.contains(dir_name)).unwrap();
        assert!(line.contains(" ok "), "{said}");
    }
    assert!(ok(ferrite().args(["info", pool_name])).contains("fences"));
    assert!(ok(ferrite().args(["info", dir_name])).contains("fences"));
    // And the user sees those of root, as far as the kernel reports them.
    let said = common::text(&as_nobody(&program, &["df"]).output().unwrap());
    let line = said
        .lines()
        .find(|line| line.contains(mine.dir.to_str().unwrap()))
        .unwrap();
    assert!(line.contains(" ? "), "{said}");
    ok(&mut as_nobody(Path::new("fusermount3"), &["-u", dir_name]));
    mine.finish();
}

#[test]
fn dead_and_damaged_pools_do_not_look_healthy() {
    if !has_fuse() {
        return;
    }
    let test = TestPool::new("16M", &[]);
    fs::write(test.path("f"), "x").unwrap();
    let line = || {
        let said = ok(ferrite().arg("df").arg(&test.pool));
        said.lines().nth(1).unwrap().to_owned()
    };
    let state = || {
        let said = ok(ferrite().arg("df").arg(&test.pool).arg("--json"));
        serde_json::from_str::<serde_json::Value>(&said).unwrap()["state"].clone()
    };
    assert!(line().contains(" ok ") && state() == "ok");
    // The kernel has the attributes ready, so the mount looks alive.
    let daemon = test.daemon().to_string();
    fs::metadata(&test.dir).unwrap();
    sh(
        &test.scratch(),
        &format!("kill -9 {daemon}; while kill -0 {daemon} 2>/dev/null; do sleep 0.02; done"),
    );
    assert!(line().contains(" DEAD ") && state() == "dead", "{}", line());
    test.mount(&[]);
    test.umount();
    let file = fs::OpenOptions::new().write(true).open(&test.pool).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[0; 4096], (16 << 20) - 4096).unwrap();
    drop(file);
    assert!(line().contains(" DAMAGED ") && state() == "damaged");
    test.mount(&[]);
    assert!(line().contains(" DAMAGED "));
    test.umount();
}

#[test]
fn an_inspection_is_no_mount() {
    let dir = tempfile::tempdir().unwrap();
    let pool = dir.path().join("pool");
    mkfs(&pool, &["--size", "16M"]);
    let mounts = || {
        let said = ok(ferrite().arg("info").arg(&pool).arg("--json"));
        serde_json::from_str::<serde_json::Value>(&said).unwrap()["mounts"].clone()
    };
    assert_eq!([mounts(), mounts()], [0, 0]);
    ferrite::Fs::open(&pool).unwrap().close().unwrap();
    assert_eq!([mounts(), mounts()], [1, 1]);
}
