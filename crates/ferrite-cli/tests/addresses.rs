//! Addresses on the command line: `pm:PATH` is a pool wherever a path is one, and commands refuse by name what this
//! build cannot open, before they do anything.

use std::ffi::OsString;
use std::path::Path;

use crate::common;
use crate::common::{fails, ferrite, has_fuse, ok};

fn pm(path: &Path) -> OsString {
    let mut address = OsString::from("pm:");
    address.push(path);
    address
}

#[test]
fn an_address_of_a_pool_is_as_good_as_its_path() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pm:a");
    ok(ferrite().arg("mkfs").arg(pm(&path)).args(["--size", "16M"]));
    assert!(path.is_file());
    for words in [
        &["info"][..],
        &["info", "--json"],
        &["df", "--json"],
        &["scrub"],
        &["fsck"],
    ] {
        let by_path = ok(ferrite().args(words).arg(&path));
        assert_eq!(ok(ferrite().args(words).arg(pm(&path))), by_path, "{words:?}");
    }
    let copy = dir.path().join("copy");
    ok(ferrite().arg("copy").arg(pm(&path)).arg(&copy));
    ok(ferrite().arg("fsck").arg(&copy));
    // The user can mark a name that begins like an address as a path.
    ok(ferrite().args(["info", "./pm:a"]).current_dir(dir.path()));
    let missing = fails(ferrite().args(["info", "pm:a"]).current_dir(dir.path()), 1);
    assert!(
        missing.starts_with("ferrite: a: ") && missing.contains("No such file"),
        "{missing}"
    );
}

#[test]
fn a_mount_by_its_address_is_that_of_the_path() {
    if !has_fuse() {
        return;
    }
    let test = common::TestPool::new("16M", &[]);
    test.umount();
    let address = pm(&test.pool);
    ok(ferrite().arg("mount").arg(&address).arg(&test.dir));
    std::fs::write(test.dir.join("file"), [1; 5000]).unwrap();
    let row: serde_json::Value = serde_json::from_str(&ok(ferrite().arg("df").arg(&address).arg("--json"))).unwrap();
    assert_eq!(row["pool"], test.pool.to_str().unwrap());
    assert_eq!(row["mounted_on"], test.dir.to_str().unwrap());
    // The daemon answers: a pool that is in use cannot be opened a second time.
    assert!(ok(ferrite().arg("info").arg(&address)).contains("fences"));
    assert!(ok(ferrite().arg("scrub").arg(&address)).contains("sound"));
    let dump = |pool: &dyn AsRef<std::ffi::OsStr>| ok(ferrite().arg("dump").arg(pool).args(["/file", "--json"]));
    assert_eq!(dump(&address).lines().count(), 2);
    assert_eq!(dump(&address), dump(&test.dir));
    ok(ferrite().arg("freeze").arg(&address));
    assert!(ok(ferrite().arg("info").arg(&test.dir)).contains("FROZEN"));
    ok(ferrite().arg("thaw").arg(&address));
    ok(ferrite()
        .arg("mount")
        .arg(&address)
        .arg(&test.dir)
        .args(["-o", "remount,ro"]));
    ok(ferrite().arg("umount").arg(&address));
    test.fsck();
}

#[test]
fn schemes_of_other_engines_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    for (address, words) in [
        #[cfg(not(feature = "nvme"))]
        ("nvme:/etc/drives", &["no engine for `nvme`"][..]),
        #[cfg(not(feature = "fabric"))]
        ("fabric://host/export", &["no engine for `fabric`"][..]),
        ("http://host/export", &["`http` is not a scheme"][..]),
        ("pm:", &["a path must follow the colon"]),
    ] {
        for (before, after, code) in [
            (&["info"][..], &[][..], 2),
            (&["df"], &[], 2),
            (&["scrub"], &[], 2),
            (&["dump"], &["/file"], 2),
            (&["flush"], &[], 2),
            (&["freeze"], &[], 2),
            (&["thaw"], &[], 2),
            (&["mount"], &["."], 2),
            (&["umount"], &[], 2),
            (&["copy"], &["copy"], 2),
            (&["mkfs", "--size", "16M"], &[], 2),
            (&["fsck"], &[], 16),
        ] {
            let mut command = ferrite();
            command.args(before).arg(address).args(after).current_dir(dir.path());
            let said = fails(&mut command, code);
            for word in words.iter().chain(&[address]) {
                assert!(said.contains(word), "{before:?}: `{word}` missing in: {said}");
            }
            assert!(
                address == "pm:" || said.contains("`pm:PATH`"),
                "what can be opened is named: {said}"
            );
        }
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing was made");
}

/// Commands do not make, check or copy a server's pool from elsewhere, and report a missing server as such.
#[test]
fn what_needs_a_pool_of_this_machine_refuses_a_server() {
    refuse_a_server("tcp://127.0.0.1:1/export");
    #[cfg(feature = "fabric")]
    refuse_a_server("fabric://127.0.0.1:1/export?provider=shm");
}

fn refuse_a_server(address: &str) {
    let dir = tempfile::tempdir().unwrap();
    for (before, after, code) in [
        (&["df"][..], &[][..], 2),
        (&["scrub"], &[], 2),
        (&["dump"], &["/file"], 2),
        (&["flush"], &[], 2),
        (&["freeze"], &[], 2),
        (&["thaw"], &[], 2),
        (&["copy"], &["copy"], 2),
        (&["serve"], &[], 2),
        (&["mkfs", "--size", "16M"], &[], 2),
        (&["fsck"], &[], 16),
    ] {
        let mut command = ferrite();
        command.args(before).arg(address).args(after).current_dir(dir.path());
        let said = fails(&mut command, code);
        assert!(
            said.contains(address) && said.contains("on the server's host"),
            "{said}"
        );
    }
    for words in [&["info"][..], &["mount"]] {
        let mut command = ferrite();
        command.args(words).arg(address).current_dir(dir.path());
        if words == ["mount"] {
            command.arg(".");
        }
        let said = fails(&mut command, 1);
        assert!(
            said.contains("127.0.0.1:1") && said.contains("is the server running"),
            "{said}"
        );
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing was made");
}
