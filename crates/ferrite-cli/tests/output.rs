//! A closed or full output changes nothing about the work of a command, and hides no exit code.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::common::{ferrite, has_fuse, mkfs, ok};

/// A pool with an error: its second superblock.
fn damaged(dir: &Path) -> PathBuf {
    let pool = dir.join("pool");
    mkfs(&pool, &["--size", "16M"]);
    let file = OpenOptions::new().write(true).open(&pool).unwrap();
    file.write_all_at(&[0; 4096], (16 << 20) - 4096).unwrap();
    pool
}

/// A place to write to that has no reader any more.
fn closed() -> Stdio {
    // The reader is gone before the first write.
    let (_, writer) = std::io::pipe().unwrap();
    writer.into()
}

/// There is no space.
fn full() -> Stdio {
    OpenOptions::new().write(true).open("/dev/full").unwrap().into()
}

fn run(command: &mut Command) -> (Option<i32>, String) {
    let Output { status, stderr, .. } = command.output().unwrap();
    (status.code(), String::from_utf8_lossy(&stderr).into_owned())
}

#[test]
fn a_closed_output_hides_no_exit_code() {
    let dir = tempfile::tempdir().unwrap();
    let pool = damaged(dir.path());
    for (words, code) in [
        (&["fsck"][..], 4),
        (&["fsck", "--json"], 4),
        (&["scrub"], 4),
        (&["info"], 0),
        (&["df"], 0),
    ] {
        let command = || {
            let mut command = ferrite();
            command.args(words).arg(&pool);
            command
        };
        let (found, said) = run(command().stdout(closed()));
        assert_eq!(found, Some(code), "{words:?}: {said}");
        assert!(!said.contains("standard output"), "{words:?}: {said}");
        // The messages about it are lost, and nothing else.
        assert_eq!(
            run(command().stdout(closed()).stderr(closed())).0,
            Some(code),
            "{words:?}"
        );
    }
    assert_eq!(
        run(ferrite().args(["fsck", "--repair"]).arg(&pool).stdout(closed())).0,
        Some(1)
    );
    ok(ferrite().arg("fsck").arg(&pool));
    let nowhere = dir.path().join("nowhere");
    assert_eq!(run(ferrite().arg("info").arg(&nowhere).stderr(closed())).0, Some(1));
    assert_eq!(run(ferrite().arg("wrong").stderr(closed())).0, Some(2));
    assert_eq!(run(ferrite().arg("--help").stdout(closed())).0, Some(0));
}

#[test]
fn a_full_output_is_an_error_and_hides_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let pool = damaged(dir.path());
    for (words, code) in [
        (&["fsck"][..], 4),
        (&["scrub"], 4),
        (&["info"], 1),
        (&["df"], 1),
        (&["df", "--json"], 1),
    ] {
        let (found, said) = run(ferrite().args(words).arg(&pool).stdout(full()));
        assert_eq!(found, Some(code), "{words:?}: {said}");
        assert!(said.contains("standard output: No space left"), "{words:?}: {said}");
        let both = run(ferrite().args(words).arg(&pool).stdout(full()).stderr(full()));
        assert_eq!(both.0, Some(code), "{words:?}");
    }
    // The work is done all the same.
    assert_eq!(
        run(ferrite().args(["fsck", "--repair"]).arg(&pool).stdout(full())).0,
        Some(1)
    );
    ok(ferrite().arg("fsck").arg(&pool));
    assert_eq!(
        run(ferrite().arg("fsck").arg(&pool).stdout(full())).0,
        Some(8),
        "sound, but not told"
    );
    assert_eq!(run(ferrite().arg("--help").stdout(full())).0, Some(1));
    assert_eq!(run(ferrite().arg("doctor").stdout(full())).0, Some(1));
}

#[test]
fn a_damaged_pool_is_mounted_whoever_listens() {
    if !has_fuse() {
        return;
    }
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let pool = damaged(dir.path());
    let mount = dir.path().join("mnt");
    std::fs::create_dir(&mount).unwrap();
    for output in [closed, full] {
        let command = &mut ferrite();
        let status = command
            .arg("mount")
            .args([&pool, &mount])
            .stdout(output())
            .stderr(output())
            .status()
            .unwrap();
        assert_eq!(status.code(), Some(0));
        ok(ferrite().arg("umount").arg(&mount));
    }
}
