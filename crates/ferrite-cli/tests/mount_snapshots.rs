//! Snapshots as users have them: by the command line and by mkdir and rmdir, on mounts of pools and of servers, and in
//! volumes that are not mounted.

use std::path::Path;
use std::process::Command;

use crate::common::{TestPool, fails, ferrite, has_fuse, ok, sh};

fn snapshot(arguments: &[&str]) -> Command {
    let mut command = ferrite();
    command.arg("snapshot").args(arguments);
    command
}

fn said(arguments: &[&str]) -> String {
    ok(&mut snapshot(arguments))
}

fn at(dir: &Path, name: &str) -> String {
    dir.join(name).to_str().unwrap().to_owned()
}

const TREE: &str = "
    mkdir -p t/a/b; for n in $(seq 100); do echo $n > t/a/f$n; done; head -c 3M /dev/urandom > t/a/b/large
    ln t/a/f1 t/a/b/link; ln -s ../f2 t/a/b/symlink; setfattr -n user.note -v text t/a; cp -a t copy";

fn users_take_and_delete(test: &TestPool) {
    let dir = &test.dir;
    sh(dir, TREE);
    let t = at(dir, "t");
    // The kernel may remember that there is nothing of that name.
    sh(dir, "test ! -e t/.snapshots; test ! -e t/.snapshots");
    assert_eq!(said(&["list", &t]), "");
    assert_eq!(said(&["create", &t, "one"]), "");
    sh(
        dir,
        "diff -r copy t/.snapshots/one; test \"$(ls -A t)\" = a; cmp t/.snapshots/one/a/b/link copy/a/f1
         test t/.snapshots/one/a/f1 -ef t/.snapshots/one/a/b/link
         test $(getfattr --only-values -n user.note t/.snapshots/one/a) = text
         echo changed > t/a/f5; rm t/a/f6; mkdir t/new; chmod 600 t/a/f7; diff -r copy t/.snapshots/one",
    );
    assert_eq!(said(&["diff", &t, "one"]), "+ new\nM a/f5\n- a/f6\nm a/f7\n");
    // By other programs.
    sh(
        dir,
        "mkdir t/.snapshots/two; test $(ls t/.snapshots | wc -l) = 2; diff -r t t/.snapshots/two",
    );
    assert_eq!(said(&["diff", &t, "one", "two"]), said(&["diff", &t, "one"]));
    let json = said(&["diff", "--json", &t, "one"]);
    assert!(json.starts_with("{\"change\":\"added\",\"path\":\"new\"}\n"), "{json}");
    the_space_is_shown(dir);
    nothing_changes(dir);
    let refused = |arguments: &[&str], said: &str| {
        let failed = fails(&mut snapshot(arguments), 1);
        assert!(failed.contains(said), "{failed}");
    };
    refused(&["create", &t, "one"], "exists");
    refused(&["delete", &t, "three"], "no snapshot three");
    refused(&["diff", &t, "three"], "no snapshot three");
    refused(&["create", &at(dir, "none"), "x"], "No such file");
    refused(&["create", &at(dir, "copy/a/f1"), "x"], "Not a directory");
    refused(&["create", &at(dir, "t/.snapshots/one"), "x"], "Read-only");
    // Lost files come back, and a restored tree may change.
    ok(ferrite().args(["clone", &at(dir, "t/.snapshots/one"), &at(dir, "restored")]));
    sh(
        dir,
        "diff -r copy restored; echo x > restored/a/f1; rm -r restored/a; diff -r copy t/.snapshots/one",
    );
    test.remount();
    sh(
        dir,
        "diff -r copy t/.snapshots/one; exec 5< t/.snapshots/one/a/b/large; rmdir t/.snapshots/one
         cmp /dev/fd/5 copy/a/b/large",
    );
    let listed = said(&["list", &t]);
    assert!(listed.ends_with("  two\n") && listed.lines().count() == 1, "{listed}");
    ok(&mut snapshot(&["delete", &t, "two"]));
    sh(dir, "test ! -e t/.snapshots; rm -r t copy restored");
}

/// Two snapshots of one state hold little each; with the only one of an earlier state goes what only that has.
fn the_space_is_shown(dir: &Path) {
    let held = |when: &str| {
        let json = said(&["list", "--space", "--json", &at(dir, "s")]);
        let rows = json.lines().map(|line| {
            let row: serde_json::Value = serde_json::from_str(line).unwrap();
            (
                row["name"].as_str().unwrap().to_owned(),
                row["held_bytes"].as_u64().unwrap(),
            )
        });
        println!("{when}: {json}");
        rows.collect::<std::collections::BTreeMap<_, _>>()
    };
    sh(
        dir,
        "mkdir s; head -c 3M /dev/urandom > s/large; mkdir s/.snapshots; mkdir s/.snapshots/1 s/.snapshots/2",
    );
    let same = held("nothing has changed");
    assert!(
        same.values().all(|bytes| *bytes < 1 << 20) && same.len() == 2,
        "{same:?}"
    );
    sh(
        dir,
        "rm s/large; rmdir s/.snapshots/2; echo x > s/new; mkdir s/.snapshots/3",
    );
    let rows = held("the file is gone");
    assert!(rows["1"] >= 3 << 20 && rows["3"] < 1 << 20, "{rows:?}");
    let listed = said(&["list", "--space", &at(dir, "s")]);
    let shows = |end: &str| {
        let line = listed.lines().find(|line| line.ends_with(end)).expect(end);
        assert!(line.trim_start().starts_with("3."), "{listed}");
    };
    shows("  1");
    shows("  all together");
    assert_eq!(listed.lines().count(), 3, "{listed}");
    sh(dir, "rmdir s/.snapshots/* s/.snapshots; rm -r s");
}

/// Each program that would change something hears that it is read-only.
fn nothing_changes(dir: &Path) {
    for change in [
        "echo x > t/.snapshots/one/a/f1",
        "echo x >> t/.snapshots/one/a/b/large",
        "touch t/.snapshots/one/a/new",
        "touch -d 2001-02-03 t/.snapshots/one/a/f1",
        "rm t/.snapshots/one/a/f1",
        "rm -rf t/.snapshots/one/a",
        "mkdir t/.snapshots/one/a/new",
        "mv t/.snapshots/one/a/f1 .",
        "mv copy/a/f1 t/.snapshots/one/a/f1",
        "mv t/.snapshots/one t/.snapshots/three",
        "mv t/.snapshots/one .",
        "ln t/.snapshots/one/a/f1 linked",
        "chmod 777 t/.snapshots/one",
        "setfattr -n user.x -v x t/.snapshots/one/a/f1",
        "truncate -s 1 t/.snapshots/one/a/b/large",
        "touch t/.snapshots/file",
        "ferrite clone copy t/.snapshots/three",
    ] {
        let program = ferrite().get_program().to_str().unwrap().to_owned();
        let change = change.replace("ferrite ", &format!("{program} "));
        let output = Command::new("bash")
            .args(["-c", &change])
            .current_dir(dir)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && said.contains("Read-only file system"),
            "{change}: {said}"
        );
    }
    sh(dir, "diff -r copy t/.snapshots/one; test ! -e linked");
}

#[test]
fn snapshots_of_a_mounted_pool() {
    if has_fuse() {
        let test = TestPool::new("128M", &[]);
        users_take_and_delete(&test);
        restore_brings_all_back(&test);
        rules_keep_some(&test);
        others_may_not(&test);
        test.finish();
    }
}

#[cfg(feature = "nvme")]
#[test]
fn snapshots_of_a_mounted_pool_on_devices() {
    if has_fuse() {
        let test = TestPool::on_devices("128M");
        users_take_and_delete(&test);
        restore_brings_all_back(&test);
        rules_keep_some(&test);
        others_may_not(&test);
        test.finish();
    }
}

#[test]
fn snapshots_of_a_mounted_server() {
    if has_fuse() {
        let test = TestPool::served("128M");
        users_take_and_delete(&test);
        restore_brings_all_back(&test);
        test.finish();
    }
}

/// A directory becomes what it was, whatever became of it, and what it was before that is not lost.
/// A tree deeper than a shell lets a program have files open: one for each directory on the way down.
#[test]
fn deep_trees_are_walked() {
    if !has_fuse() {
        return;
    }
    let test = TestPool::new("256M", &["--inodes", "9000"]);
    let deep = ["d"; 1000].join("/");
    std::fs::create_dir_all(test.dir.join("t").join(&deep)).unwrap();
    std::fs::write(test.dir.join("t").join(&deep).join("file"), "text").unwrap();
    let program = ferrite().get_program().to_str().unwrap().to_owned();
    sh(
        &test.dir,
        &format!(
            "ulimit -S -n 256; mkdir copy; {program} snapshot create t one
             {program} send t one | {program} receive copy
             cmp t/{deep}/file copy/.snapshots/one/{deep}/file; echo more >> t/{deep}/file
             test \"$({program} snapshot diff t one)\" = \"M {deep}/file\"; {program} snapshot restore t one
             test $(cat t/{deep}/file) = text"
        ),
    );
    test.finish();
}

fn restore_brings_all_back(test: &TestPool) {
    let dir = &test.dir;
    sh(dir, TREE);
    let t = at(dir, "t");
    said(&["create", &t, "one"]);
    sh(
        dir,
        "stat -c '%a %u %Y' t > before; setfattr -n user.other -v x t; echo new > t/new; rm -r t/a/b; mkdir t/a/b
         echo changed > t/a/f1; rm t/a/f2; mkdir t/a/f2; chmod 700 t; mkdir t/.ferrite-restore; touch t/.ferrite-restore/x",
    );
    let restored = said(&["restore", &t, "one"]);
    let before = restored
        .trim()
        .strip_prefix("what was there before is in the snapshot ")
        .unwrap();
    sh(
        dir,
        "diff -r copy t; diff -r copy t/.snapshots/one; test t/a/f1 -ef t/a/b/link; test ! -e t/.ferrite-restore
         stat -c '%a %u %Y' t | cmp - before; test -z \"$(getfattr -n user.other t 2> /dev/null)\"",
    );
    sh(
        dir,
        &format!("test $(cat t/.snapshots/{before}/new) = new; test -d t/.snapshots/{before}/a/f2"),
    );
    // One that holds the rest of an interrupted restore.
    said(&["restore", "--discard", &t, before]);
    sh(
        dir,
        "test $(cat t/new) = new; test ! -e t/.ferrite-restore; test $(ls t/.snapshots | wc -l) = 2",
    );
    sh(dir, "mkdir -p t/a/.snapshots; mkdir t/a/.snapshots/inner");
    let refused = fails(&mut snapshot(&["restore", &t, "one"]), 1);
    assert!(refused.contains("directory a with snapshots of its own"), "{refused}");
    let json = fails(&mut snapshot(&["restore", "--json", &t, "none"]), 1);
    assert!(json.contains("no snapshot none"), "{json}");
    sh(
        dir,
        "rmdir t/a/.snapshots/inner t/a/.snapshots t/.snapshots/*; rmdir t/.snapshots; rm -r t copy before",
    );
}

fn rules_keep_some(test: &TestPool) {
    let dir = &test.dir;
    sh(
        dir,
        "mkdir -p k/.snapshots/mine; for day in 01 02 03 04; do for hour in 01 02; do
         mkdir k/.snapshots/2001-01-${day}T${hour}0000Z; done; done",
    );
    let k = at(dir, "k");
    let name = said(&["create", "--keep", "hourly=2,daily=3", &k]);
    let name = name.trim();
    let listed = said(&["list", &k]);
    let names: Vec<&str> = listed.lines().filter_map(|line| line.rsplit("  ").next()).collect();
    assert_eq!(
        names,
        ["2001-01-03T020000Z", "2001-01-04T020000Z", name, "mine"],
        "{listed}"
    );
    let refused = fails(&mut snapshot(&["create", "--keep", "often=2", &k]), 2);
    assert!(refused.contains("hourly"), "{refused}");
    sh(dir, "rmdir k/.snapshots/*; rmdir k/.snapshots k");
}

/// Users take snapshots of what they own alone.
fn others_may_not(test: &TestPool) {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let dir = &test.dir;
    sh(
        dir,
        "chmod 755 .; mkdir -m 777 own theirs; chown nobody own; setpriv --reuid nobody --clear-groups bash -ec '
         echo text > own/file; mkdir own/.snapshots; mkdir own/.snapshots/s; test $(cat own/.snapshots/s/file) = text
         ! mkdir theirs/.snapshots 2> /dev/null'
         ! setpriv --reuid daemon --clear-groups mkdir own/.snapshots/t 2> /dev/null
         ! setpriv --reuid daemon --clear-groups rmdir own/.snapshots/s 2> /dev/null
         chmod 777 own/.snapshots; ! setpriv --reuid daemon --clear-groups rmdir own/.snapshots/s 2> /dev/null
         echo secret > own/of-root; chmod 600 own/of-root
         ! setpriv --reuid nobody --clear-groups mkdir own/.snapshots/t 2> /dev/null
         setpriv --reuid nobody --clear-groups rmdir own/.snapshots/s own/.snapshots; rm -r own theirs",
    );
}

/// In a pool that nobody has mounted, and where there are no snapshots.
#[test]
fn snapshots_without_a_mount() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let pool = folder.path().join("pool");
    ok(ferrite().args(["mkfs", "--size", "64M"]).arg(&pool));
    let volume = format!("pm:{}:/", pool.display());
    std::fs::write(folder.path().join("file"), "first").unwrap();
    let put = || ok(ferrite().arg("cp").arg(folder.path().join("file")).arg(&volume));
    put();
    ok(&mut snapshot(&["create", &volume, "s"]));
    std::fs::write(folder.path().join("file"), "second").unwrap();
    put();
    let cat = |path: &str| ok(ferrite().args(["cat", &format!("{volume}{path}")]));
    assert_eq!(
        (cat("file"), cat(".snapshots/s/file")),
        ("second".into(), "first".into())
    );
    assert_eq!(said(&["diff", &volume, "s"]), "M file\n");
    let failed = fails(ferrite().args(["rm", &format!("{volume}.snapshots/s/file")]), 1);
    assert!(failed.contains("read-only file system"), "{failed}");
    let json = said(&["list", "--json", &volume]);
    assert!(json.starts_with("{\"name\":\"s\",\"taken\":\"2"), "{json}");
    ok(&mut snapshot(&["delete", &volume, "s"]));
    assert_eq!(said(&["list", &volume]), "");
    ok(ferrite().arg("fsck").arg(&pool));
    // An ordinary directory of that name, on another file system.
    let elsewhere = folder.path().to_str().unwrap();
    let failed = fails(&mut snapshot(&["create", elsewhere, "s"]), 1);
    assert!(failed.contains("ordinary directory"), "{failed}");
    assert!(!folder.path().join(".snapshots").exists());
}
