//! Behaviour of a Linux file system that programs and administrators take for granted.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use crate::common;
use crate::common::{TestPool, ferrite, has_fuse, ok, sh};

/// Runs a command as a user who is in one other group.
fn as_user(user: u32, program: &Path, words: &[&str]) -> Command {
    let mut command = Command::new("setpriv");
    command
        .args([format!("--reuid={user}"), format!("--regid={user}")])
        .args(["--groups=1005", "--"])
        .arg(program)
        .args(words)
        .current_dir("/")
        .env_remove("XDG_RUNTIME_DIR");
    command
}

/// As Linux's own file systems do since 6.2: a change removes setgid if the group may execute, or if the caller is not
/// in the group.
#[test]
fn whoever_changes_a_file_of_another_group_takes_setgid_away() {
    if !has_fuse() {
        return;
    }
    let test = TestPool::new("64M", &[]);
    fs::set_permissions(test.dir.parent().unwrap(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&test.dir, fs::Permissions::from_mode(0o777)).unwrap();
    let path = test.path("f");
    let name = path.to_str().unwrap();
    let write = format!("printf x | dd of={name} conv=notrunc status=none");
    let ways: [&[&str]; 6] = [
        &["fallocate", "-l", "8192", name],
        &["fallocate", "-n", "-l", "8192", name],
        &["fallocate", "-p", "-l", "4096", name],
        &["fallocate", "-z", "-l", "4096", name],
        &["truncate", "-s", "100", name],
        &["sh", "-c", &write],
    ];
    for way in ways {
        for (group, before, after) in [
            (1000, 0o2666, 0o666),
            (1001, 0o2666, 0o2666),
            (1005, 0o2666, 0o2666),
            (1000, 0o6666, 0o666),
            (1005, 0o6666, 0o2666),
            (1005, 0o2676, 0o676),
            (1000, 0o644, 0o644),
        ] {
            fs::write(&path, vec![7; 8192]).unwrap();
            chown(&path, Some(if before == 0o644 { 1001 } else { 1000 }), Some(group)).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(before)).unwrap();
            ok(&mut as_user(1001, Path::new(way[0]), &way[1..]));
            let found = fs::metadata(&path).unwrap().mode() & 0o7777;
            assert_eq!(found, after, "{way:?} on {before:o} of group {group}: {found:o}");
            // Root keeps all.
            fs::set_permissions(&path, fs::Permissions::from_mode(before)).unwrap();
            ok(Command::new(way[0]).args(&way[1..]));
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, before, "{way:?} by root");
        }
    }
    test.finish();
}

#[test]
fn requests_that_are_not_there_fill_no_log() {
    if !has_fuse() {
        return;
    }
    let test = TestPool::new("16M", &[]);
    test.umount();
    let log = test.scratch().join("log");
    test.mount(&["--log", log.to_str().unwrap()]);
    fs::write(test.path("f"), "x").unwrap();
    let python = "import fcntl,errno\nf=open('f')\ntry: fcntl.ioctl(f,0x1234,b'12345678')\nexcept OSError as e: \
    print(e.errno==errno.ENOTTY)\n";
    for _ in 0..3 {
        let said = ok(Command::new("python3").args(["-c", python]).current_dir(&test.dir));
        assert_eq!(said.trim(), "True");
    }
    test.umount();
    assert_eq!(fs::read_to_string(&log).unwrap(), "");
    test.mount(&[]);
    test.finish();
}

#[test]
fn access_times_move_as_the_mount_options_say() {
    if !has_fuse() {
        return;
    }
    let test = TestPool::new("16M", &[]);
    let old = "touch -a -d 2001-01-01 .";
    for (options, moves) in [
        ("nodiratime", false),
        ("diratime", true),
        ("lazytime,dirsync,discard", true),
    ] {
        sh(&test.dir, old);
        test.umount();
        test.mount(&["-o", options]);
        assert_eq!(fs::read_dir(&test.dir).unwrap().count(), 0);
        test.umount();
        test.mount(&[]);
        let moved = fs::metadata(&test.dir).unwrap().atime() > 1_000_000_000;
        assert_eq!(moved, moves, "{options}");
    }
    test.umount();
    let mount = |options: &str| {
        let output = ferrite()
            .arg("mount")
            .args([&test.pool, &test.dir])
            .args(["-o", options])
            .output();
        let output = output.unwrap();
        (output.status.code(), common::text(&output))
    };
    let (code, said) = mount("strictatime");
    assert!(
        code == Some(0) && said.contains("strictatime") && said.contains("cache"),
        "{said}"
    );
    test.umount();
    let (code, said) = mount("noacl");
    assert!(
        code == Some(2) && said.contains("`noacl`: access control lists"),
        "{said}"
    );
    test.mount(&[]);
    test.finish();
}
