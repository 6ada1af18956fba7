//! Commands find the intended pool, continue where they can, and neither hang nor leave something half done.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use crate::common::{TestPool, fails, ferrite, has_fuse, mkfs, ok, sh, text};
use ferrite::volume::{Address, VolumeInfo};

/// Whether something is mounted on a directory.
fn mounted(dir: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    mounts.lines().any(|line| line.split(' ').nth(1) == dir.to_str())
}

/// A mount beside that of a [`TestPool`], removed when dropped.
struct Beside<'a>(&'a Path);

impl Drop for Beside<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).output();
    }
}

#[test]
fn a_mount_that_fails_leaves_no_mount_and_no_empty_trace() {
    if !has_fuse() {
        return;
    }
    let test = TestPool::new("16M", &[]);
    test.umount();
    let (pool, mnt, trace) = (&test.pool, &test.dir, test.scratch().join("trace"));
    for log in ["/nonexistent/log", test.scratch().to_str().unwrap()] {
        let said = fails(ferrite().arg("mount").args([pool, mnt]).args(["--log", log]), 1);
        assert!(said.contains(log) && !mounted(mnt), "{said}");
    }
    fs::write(&trace, "ferrite-trace 1\nf 7 0\n12\n").unwrap();
    let option = format!("trace={}", trace.display());
    let nowhere = test.scratch().join("nowhere");
    let said = fails(ferrite().arg("mount").args([pool, &nowhere]).args(["-o", &option]), 1);
    assert!(said.contains("nowhere"), "{said}");
    assert!(
        fs::read_to_string(&trace).unwrap().ends_with("12\n"),
        "the old trace is there"
    );
    let said = fails(
        ferrite()
            .arg("mount")
            .args([pool, mnt])
            .args(["-o", "clean_low=20,clean_high=10"]),
        2,
    );
    assert!(
        said.contains("clean_low=20") && said.contains("clean_high=10"),
        "{said}"
    );
}

/// A copy has the uuid of its original, and is another pool.
#[test]
fn a_mounted_copy_answers_for_itself() {
    if !has_fuse() {
        return;
    }
    let test = TestPool::new("64M", &[]);
    let (copy, dir) = (test.scratch().join("copy"), test.scratch().join("mnt"));
    fs::create_dir(&dir).unwrap();
    test.umount();
    fs::copy(&test.pool, &copy).unwrap();
    test.mount(&[]);
    let _beside = Beside(&dir);
    ok(ferrite().arg("mount").args([&copy, &dir]));
    fs::write(dir.join("only in the copy"), vec![1; 5000]).unwrap();
    let inodes_free = |path: &Path| {
        let said = ok(ferrite().arg("info").arg(path).arg("--json"));
        serde_json::from_str::<serde_json::Value>(&said).unwrap()["inodes_free"]
            .as_u64()
            .unwrap()
    };
    let original = inodes_free(&test.dir);
    assert_eq!(inodes_free(&test.pool), original);
    assert_eq!([inodes_free(&dir), inodes_free(&copy)], [original - 1; 2]);
    ok(ferrite().arg("dump").arg(&dir).arg("only in the copy"));
    fails(ferrite().arg("dump").arg(&test.dir).arg("only in the copy"), 1);
    // The end of one takes nothing from the other, nor does a killed daemon.
    ok(ferrite().arg("umount").arg(&dir));
    assert_eq!(inodes_free(&test.dir), original);
    assert_eq!(inodes_free(&copy), original - 1);
    test.kill();
    test.mount(&[]);
    assert_eq!(inodes_free(&test.dir), original);
    test.finish();
}

#[test]
fn a_pool_that_was_renamed_or_deleted_is_known_by_its_mount() {
    if !has_fuse() {
        return;
    }
    let test = TestPool::new("64M", &[]);
    let new = test.scratch().join("new name");
    fs::rename(&test.pool, &new).unwrap();
    // Another file in its place is not mistaken for it.
    mkfs(&test.pool, &["--size", "16M"]);
    let size = |path: &Path| {
        let said = ok(ferrite().arg("df").arg(path).arg("--json"));
        serde_json::from_str::<serde_json::Value>(&said).unwrap()["size_bytes"]
            .as_u64()
            .unwrap()
            >> 20
    };
    assert!(size(&test.dir) > 50 && size(&new) > 50 && size(&test.pool) < 16);
    fs::remove_file(&test.pool).unwrap();
    fs::rename(&new, &test.pool).unwrap();
    test.umount();
    test.mount(&[]);
    fs::remove_file(&test.pool).unwrap();
    assert!(size(&test.dir) > 50);
    ok(ferrite().arg("scrub").arg(&test.dir));
    test.umount();
}

#[test]
fn pools_that_cannot_be_read_do_not_hide_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let [first, foreign, last] = ["first", "foreign", "last"].map(|name| dir.path().join(name));
    mkfs(&first, &["--size", "16M"]);
    fs::write(&foreign, [7; 9000]).unwrap();
    mkfs(&last, &["--size", "16M"]);
    let said = fails(ferrite().arg("df").args([&first, &foreign, &last]), 1);
    let lines = |name: &Path| {
        said.lines()
            .filter(|line| line.contains(name.to_str().unwrap()))
            .count()
    };
    assert_eq!([&first, &foreign, &last].map(|name| lines(name)), [1, 1, 1], "{said}");
    assert!(said.contains("not a Ferrite pool"), "{said}");
}

#[test]
fn what_can_be_no_pool_is_named_and_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    sh(dir.path(), "mkfifo pipe");
    let pipe = dir.path().join("pipe");
    let program = ferrite().get_program().to_owned();
    for (words, code) in [
        (&["info"][..], 1),
        (&["df"], 1),
        (&["scrub"], 1),
        (&["fsck"], 8),
        (&["mkfs", "--size", "16M"], 1),
    ] {
        let said = fails(
            Command::new("timeout").arg("20").arg(&program).args(words).arg(&pipe),
            code,
        );
        assert!(
            said.contains("pipe: ") && said.contains("a named pipe"),
            "{words:?}: {said}"
        );
        if words[0] == "mkfs" {
            continue;
        }
        let said = fails(ferrite().args(words).arg(dir.path()), code);
        assert!(said.contains("no pool is mounted there"), "{words:?}: {said}");
    }
    let said = fails(ferrite().arg("dump").arg(dir.path()).arg("/x"), 1);
    assert!(said.contains("no pool is mounted there"), "{said}");
}

#[test]
fn a_remount_changes_the_mount_that_is_meant_or_says_why_not() {
    if !has_fuse() {
        return;
    }
    let test = TestPool::new("64M", &[]);
    let remount = |pool: &Path, dir: &Path, option: &str| -> Command {
        let mut command = ferrite();
        command
            .arg("mount")
            .args([pool, dir])
            .args(["-o", &format!("remount,{option}")]);
        command
    };
    let said = fails(&mut remount(&test.pool, &test.scratch(), "ro"), 1);
    assert!(said.contains("no pool is mounted there"), "{said}");
    let other = test.scratch().join("other");
    mkfs(&other, &["--size", "16M"]);
    let said = fails(&mut remount(&other, &test.dir, "ro"), 1);
    assert!(
        said.contains("other") && said.contains(test.pool.to_str().unwrap()),
        "{said}"
    );
    fs::write(test.path("f"), "x").unwrap();
    ok(&mut remount(&test.pool, &test.dir, "ro"));
    fs::write(test.path("f"), "x").unwrap_err();
    ok(&mut remount(&test.pool, &test.dir, "rw"));
    fs::write(test.path("f"), "x").unwrap();
    test.umount();
    test.mount(&["-o", "ro"]);
    let said = fails(&mut remount(&test.pool, &test.dir, "rw"), 1);
    assert!(said.contains("read-only") && said.contains("unmount"), "{said}");
    ok(&mut remount(&test.pool, &test.dir, "ro"));
    test.umount();
    test.mount(&[]);
    test.finish();
}

#[test]
fn any_name_can_be_dumped() {
    if !has_fuse() {
        return;
    }
    let test = TestPool::new("64M", &[]);
    let names: [&[u8]; 3] = [b"two\nlines", b"no \xff text", b"blank "];
    for name in names {
        let file = fs::File::create(test.dir.join(OsStr::from_bytes(name))).unwrap();
        file.write_all_at(&[1; 5000], 0).unwrap();
    }
    let dump = || names.map(|name| ok(ferrite().arg("dump").arg(&test.pool).arg(OsStr::from_bytes(name))));
    let live = dump();
    assert!(live.iter().all(|said| said.lines().count() == 2), "{live:?}");
    test.umount();
    assert_eq!(dump().map(|said| said.len()), live.map(|said| said.len()));
    test.mount(&[]);
    test.finish();
}

#[test]
fn info_leaves_out_what_means_nothing() {
    let dir = tempfile::tempdir().unwrap();
    for mapping in ferrite_fs::Mapping::ALL {
        let pool = dir.path().join(mapping.name());
        ok(ferrite()
            .arg("mkfs")
            .arg(&pool)
            .args(["--size", "16M", "--mapping", mapping.name()]));
        let said = ok(ferrite().arg("info").arg(&pool));
        assert!(!said.contains(" 0 of 0 ") && !said.contains("0.0 % of them"), "{said}");
        assert!(said.contains(mapping.name()), "{said}");
    }
}

#[test]
fn a_demo_that_fails_says_how_to_remove_what_it_made() {
    if !has_fuse() {
        return;
    }
    let base = tempfile::tempdir_in("/dev/shm").unwrap();
    let dir = base.path().join("demo");
    let demo = |word: &str| {
        let mut command = ferrite();
        command.arg("demo").arg("--dir").arg(&dir).arg(word);
        command
    };
    let said = fails(&mut demo("--tree=/nonexistent/tree"), 1);
    assert!(said.contains("/nonexistent/tree") && !dir.exists(), "{said}");
    let mount = dir.join("mnt");
    let _beside = Beside(&mount);
    // Without the programs that it runs.
    let output = demo("--tree=/etc").env("PATH", "/nonexistent").output().unwrap();
    let said = text(&output);
    let mend = format!("demo --stop --dir {}", dir.display());
    assert!(output.status.code() == Some(1) && said.contains(&mend), "{said}");
    // Another demo does not replace what somebody may have worked with since.
    let said = fails(&mut demo("--tree=/etc"), 1);
    let mend = format!("demo --replace --dir {}", dir.display());
    assert!(said.contains("an earlier demo") && said.contains(&mend), "{said}");
    ok(&mut demo("--stop"));
    assert!(!dir.exists());
    // Nor are files that no demo has made.
    std::fs::create_dir(&dir).unwrap();
    std::fs::write(dir.join("pool"), "mine").unwrap();
    for word in ["--tree=/etc", "--stop", "--replace"] {
        let said = fails(&mut demo(word), 1);
        assert!(said.contains("not made by a demo"), "{word}: {said}");
    }
    assert_eq!(std::fs::read(dir.join("pool")).unwrap(), b"mine");
}

/// A daemon may be older than the program that queries it: its reply may lack fields that later builds have added. The
/// list of fields here never grows; a new field gets a default.
#[test]
fn what_an_older_daemon_answers_is_understood() {
    const FROM_THE_BEGINNING: &[&str] = &[
        "engine",
        "medium",
        "durability",
        "size_bytes",
        "capacity_bytes",
        "used_bytes",
        "available_bytes",
        "inodes",
        "inodes_free",
        "failed",
        "damage",
        "findings_since_open",
        "lines",
        "json",
    ];
    let dir = tempfile::tempdir().unwrap();
    let pool = dir.path().join("pool");
    mkfs(&pool, &["--size", "16M"]);
    let volume = Address::of_pool(&pool).open(ferrite::MountOptions::inspect()).unwrap();
    let answer = serde_json::to_value(volume.info().unwrap()).unwrap();
    let mut older = answer.as_object().unwrap().clone();
    older.retain(|field, _| FROM_THE_BEGINNING.contains(&field.as_str()));
    assert_eq!(older.len(), FROM_THE_BEGINNING.len());
    older.insert("a field of a newer daemon".into(), true.into());
    let understood = serde_json::from_value::<VolumeInfo>(older.into());
    assert!(understood.is_ok(), "{understood:?}");
}

/// The same for programs that read the output of `info --json` from an older program.
#[test]
fn what_an_older_program_wrote_is_understood() {
    const FROM_THE_BEGINNING: &[&str] = &[
        "uuid",
        "format_version",
        "medium",
        "durability",
        "mapping",
        "size_bytes",
        "block_bytes",
        "blocks",
        "blocks_free",
        "blocks_reserved",
        "blocks_pending",
        "inodes",
        "inodes_free",
        "names",
        "names_free",
        "map_slots",
        "map_slots_free",
        "pages",
        "logged_pages",
        "log_bytes",
        "log_blocks",
        "space_amplification",
        "merges",
        "pages_at_home_percent",
        "rings",
        "ring_bytes",
        "was_clean",
        "replayed_records",
        "mounts",
        "failed",
        "dram",
        "fences",
        "lines_written_back",
        "bytes_streamed",
    ];
    let dir = tempfile::tempdir().unwrap();
    let pool = dir.path().join("pool");
    mkfs(&pool, &["--size", "64M"]);
    let told = ok(ferrite().arg("info").arg(&pool).arg("--json"));
    let info: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&told).unwrap();
    for field in info
        .keys()
        .filter(|field| !FROM_THE_BEGINNING.contains(&field.as_str()))
    {
        let mut older = info.clone();
        older.remove(field);
        let understood = serde_json::from_value::<ferrite_fs::PoolInfo>(older.into());
        assert!(understood.is_ok(), "{field}: {understood:?}");
    }
    // The counts had another name.
    let mut older = info.clone();
    let merges = older.remove("merges").unwrap();
    older.insert("folds".into(), merges);
    let understood = serde_json::from_value::<ferrite_fs::PoolInfo>(older.into());
    assert!(understood.is_ok(), "{understood:?}");
    // The field had another name.
    let mut older = info.clone();
    let dram = older["dram"].as_object_mut().unwrap();
    dram.remove("deferred_pages").unwrap();
    dram.insert("held_pages".into(), 4096.into());
    let understood: ferrite_fs::PoolInfo = serde_json::from_value(older.into()).unwrap();
    assert_eq!(understood.dram.deferred_pages, 4096);
}
