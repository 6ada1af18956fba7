//! `ferrite fsck` on a damaged pool, as an administrator meets it: its messages, its changes, and its exit codes.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

use crate::common::{TestPool, create, fails, ferrite, has_fuse, ok, sh, text};
use ferrite::Fs;
use ferrite_fs::layout::{BlockNo, Inum};

/// A pool with three files; returns the number of the one called `victim`.
fn pool(path: &Path) -> u64 {
    let pool = create(path, 16 << 20);
    pool.create_dir("/dir").unwrap();
    pool.write("/dir/sound", vec![1; 10_000]).unwrap();
    pool.write("/dir/victim", vec![2; 10_000]).unwrap();
    pool.write("/small", b"inside the inode").unwrap();
    let ino = pool.metadata("/dir/victim").unwrap().ino();
    pool.close().unwrap();
    ino
}

fn superblock(path: &Path) -> ferrite_fs::Superblock {
    let image = fs::read(path).unwrap();
    ferrite_fs::identify(&ferrite_pm::Region::from_image(&image).unwrap()).unwrap()
}

fn flip(path: &Path, offset: u64) {
    let mut image = fs::read(path).unwrap();
    image[offset as usize] ^= 0x10;
    fs::write(path, image).unwrap();
}

#[test]
fn a_damaged_inode_is_told_left_and_then_repaired() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    let victim = pool(&path);
    // Its owner.
    flip(&path, superblock(&path).inode_offset(Inum::new(victim as u32)) + 48);
    let before = fs::read(&path).unwrap();
    for option in ["-n", "-p"] {
        let said = fails(ferrite().args(["fsck", option]).arg(&path), 4);
        assert!(said.contains(&format!("inode {victim}")), "{said}");
        assert!(fs::read(&path).unwrap() == before, "{option} changed the pool");
    }
    let said = fails(ferrite().args(["fsck", "--repair"]).arg(&path), 1);
    assert!(said.contains(&format!("lost+found/damaged-{victim}")), "{said}");
    let said = ok(ferrite().args(["fsck", "-y"]).arg(&path));
    assert!(said.contains("sound;"), "a second repair finds nothing: {said}");
    ok(ferrite().arg("fsck").arg(&path));
    let pool = Fs::open(&path).unwrap();
    assert_eq!(pool.read("/dir/sound").unwrap(), vec![1; 10_000]);
    assert_eq!(pool.read("/small").unwrap(), b"inside the inode");
    assert!(
        pool.metadata("/dir/victim").is_err(),
        "damaged content must not stand in its place"
    );
    assert_eq!(
        pool.read(format!("/lost+found/damaged-{victim}")).unwrap(),
        vec![2; 10_000]
    );
    // An administrator who looks there wants to know when that was.
    let made = pool.metadata("/lost+found").unwrap();
    let recent = UNIX_EPOCH + Duration::from_secs(1_600_000_000);
    for time in [made.created(), made.modified(), made.changed(), made.accessed()] {
        assert!(time.unwrap() > recent, "{made:?}");
    }
}

#[test]
fn a_scrub_finds_what_fsck_would_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    let victim = pool(&path);
    let said = ok(ferrite().arg("scrub").arg(&path));
    assert!(said.contains("sound; 5 inodes, 4 names"), "{said}");
    flip(&path, superblock(&path).inode_offset(Inum::new(victim as u32)) + 48);
    let before = fs::read(&path).unwrap();
    let said = fails(ferrite().args(["scrub", "--limit", "100"]).arg(&path), 4);
    assert!(said.contains(&format!("inode {victim}: wrong checksum")), "{said}");
    assert!(
        said.contains("unmount the pool and run `ferrite fsck --repair`"),
        "{said}"
    );
    assert!(fs::read(&path).unwrap() == before);
}

#[test]
fn preening_mends_what_costs_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    pool(&path);
    let superblock = superblock(&path);
    // The first copy of the superblock, and all of the name table.
    flip(&path, 100);
    let mut image = fs::read(&path).unwrap();
    let names = superblock.name_offset as usize..(superblock.name_offset + superblock.name_slots * 8) as usize;
    image[names].fill(0);
    fs::write(&path, image).unwrap();
    let said = fails(ferrite().args(["fsck", "-p"]).arg(&path), 1);
    assert!(said.contains("name table") && said.contains("first copy"), "{said}");
    ok(ferrite().args(["fsck", "-p"]).arg(&path));
    let pool = Fs::open(&path).unwrap();
    assert_eq!(pool.read("/dir/victim").unwrap(), vec![2; 10_000]);
}

#[test]
fn a_pool_that_is_in_use_is_not_repaired() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    pool(&path);
    let open = Fs::open(&path).unwrap();
    let said = fails(ferrite().args(["fsck", "--repair"]).arg(&path), 8);
    assert!(said.contains("in use"), "{said}");
    drop(open);
}

/// From 2 fsck(8) would understand that the machine is to be restarted.
#[test]
fn wrong_usage_exits_as_fsck_8_says() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    pool(&path);
    for words in [["--repair", "-n"], ["-p", "-n"], ["-p", "-y"], ["-a", "-y"]] {
        let said = fails(ferrite().arg("fsck").args(words).arg(&path), 16);
        assert!(said.contains("cannot be used with"), "{words:?}: {said}");
    }
    let helper = dir.path().join("fsck.ferrite");
    std::os::unix::fs::symlink(ferrite().get_program(), &helper).unwrap();
    for words in [&["--what"][..], &["-C", "x"], &[]] {
        fails(ferrite().arg("fsck").args(words), 16);
        fails(std::process::Command::new(&helper).args(words), 16);
    }
    ok(std::process::Command::new(&helper).arg("--help"));
    // The options that fsck(8) passes to the checkers that it calls.
    for words in [
        &["-f"][..],
        &["-V"],
        &["-C0"],
        &["-C", "-1"],
        &["-r"],
        &["-T"],
        &["-M"],
        &["-T", "-C0", "-V", "-a"],
    ] {
        let said = ok(std::process::Command::new(&helper).args(words).arg(&path));
        assert!(said.contains("sound;"), "{words:?}: {said}");
    }
}

#[test]
fn a_mount_point_is_its_pool() {
    if !has_fuse() {
        return;
    }
    let test = TestPool::new("64M", &[]);
    let daemon = format!("process {}", test.daemon());
    for words in [&[][..], &["--repair"]] {
        let said = fails(ferrite().arg("fsck").args(words).arg(&test.dir), 8);
        let mounted = format!("mounted on {}", test.dir.display());
        assert!(said.contains(&daemon) && said.contains(&mounted), "{said}");
    }
    for path in [&test.dir, &test.pool] {
        ok(ferrite().args(["fsck", "-M"]).arg(path));
    }
    test.finish();
}

#[test]
fn a_scrub_is_as_fast_as_it_is_told_and_ends() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    pool(&path);
    for limit in ["0", "1000000"] {
        // A byte a second, the former meaning of 0, would take hours.
        let said = ok(std::process::Command::new("timeout")
            .arg("60")
            .arg(ferrite().get_program())
            .args(["scrub", "--limit", limit])
            .arg(&path));
        assert!(said.contains("sound"), "{said}");
    }
    // As a number of bytes, it is 2 to the 64th.
    for limit in ["1000001", "17592186044416", "-1", "fast"] {
        let said = fails(ferrite().arg("scrub").arg(format!("--limit={limit}")).arg(&path), 2);
        assert!(said.contains(limit), "{said}");
    }
}

/// Damages the header of the log of a file's first page.
fn damage_log(pool: &Path, ino: u64) {
    let image = fs::read(pool).unwrap();
    let is_header = |unit: &&[u8]| unit[8..12] == *b"FpLg" && unit[16..24] == ino.to_le_bytes();
    let found: Vec<_> = image
        .chunks(64)
        .enumerate()
        .filter(|(_, unit)| is_header(unit))
        .map(|(index, _)| index as u64 * 64)
        .collect();
    assert_eq!(found.len(), 1, "the log has one segment");
    flip(pool, found[0] + 24);
}

#[test]
fn a_damaged_log_leaves_the_pool_readable() {
    if !has_fuse() {
        return;
    }
    let test = TestPool::new("64M", &[]);
    fs::write(test.path("sound"), vec![1; 10_000]).unwrap();
    fs::write(test.path("victim"), vec![2; 8192]).unwrap();
    let file = OpenOptions::new().write(true).open(test.path("victim")).unwrap();
    file.write_all_at(b"a part of a page", 100).unwrap();
    let ino = file.metadata().unwrap().ino();
    drop(file);
    test.umount();
    damage_log(&test.pool, ino);
    let mounted = ferrite().arg("mount").arg(&test.pool).arg(&test.dir).output().unwrap();
    let said = text(&mounted);
    assert!(mounted.status.success(), "{said}");
    for word in [
        "DAMAGED",
        "READ-ONLY",
        "fsck --repair",
        &format!("inode {ino}, bytes 0 to 4095"),
    ] {
        assert!(said.contains(word), "{word}: {said}");
    }
    assert_eq!(fs::read(test.path("sound")).unwrap(), vec![1; 10_000]);
    let mut page = vec![0; 4096];
    let victim = File::open(test.path("victim")).unwrap();
    let error = victim.read_exact_at(&mut page, 0).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(5), "{error}");
    victim.read_exact_at(&mut page, 4096).unwrap();
    assert_eq!(page, vec![2; 4096]);
    drop(victim);
    let error = fs::write(test.path("new"), b"").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(30), "{error}");
    assert_eq!(test.info()["damage"].as_array().unwrap().len(), 1);
    let said = ok(ferrite().arg("info").arg(&test.dir));
    assert!(said.contains("DAMAGED") && said.contains("fsck --repair"), "{said}");
    test.umount();
    let said = fails(ferrite().args(["fsck", "--repair"]).arg(&test.pool), 1);
    assert!(said.contains(&format!("lost+found/damaged-{ino}")), "{said}");
    test.mount(&[]);
    assert!(test.info()["damage"].as_array().unwrap().is_empty());
    assert_eq!(fs::read(test.path("sound")).unwrap(), vec![1; 10_000]);
    fs::write(test.path("new"), b"").unwrap();
    test.finish();
}

/// A lost name is a loss, even if its file has another one.
#[test]
fn preening_gives_up_no_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    pool(&path);
    let open = Fs::open(&path).unwrap();
    open.hard_link("/dir/sound", "/dir/another-name").unwrap();
    open.close().unwrap();
    let mut image = fs::read(&path).unwrap();
    let first = superblock(&path).first_block as usize * 4096;
    let is_entry = |at: &usize| image[at + 16..].starts_with(b"another-name\0");
    let at = (first..image.len() - 64).step_by(8).find(is_entry).unwrap();
    // Its length is all that a free entry keeps.
    image[at..at + 4].fill(0);
    image[at + 6..at + 8].fill(0);
    fs::write(&path, &image).unwrap();
    let said = fails(ferrite().args(["fsck", "-p"]).arg(&path), 4);
    assert!(
        said.contains("link count 2, 1 found") && said.contains("nothing changed"),
        "{said}"
    );
    assert!(fs::read(&path).unwrap() == image, "-p changed the pool");
    let said = fails(ferrite().args(["fsck", "-p", "--json"]).arg(&path), 4);
    let report: serde_json::Value = serde_json::from_str(&said).unwrap();
    let found = report["findings"].as_array().unwrap();
    assert!(!found.is_empty() && found.len() == report["mended"].as_array().unwrap().len());
    assert!(found.iter().all(|finding| finding["what"].is_string()), "{said}");
    fails(ferrite().args(["fsck", "-y"]).arg(&path), 1);
    ok(ferrite().args(["fsck", "-p"]).arg(&path));
}

/// Sets a word of the pool.
fn set(path: &Path, offset: u64, value: u64) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(&value.to_le_bytes(), offset).unwrap();
}

/// A power loss with durability=process is reported, accepted only on request, and then the pool mounts.
#[test]
fn a_power_loss_is_accepted_by_a_repair_and_by_nothing_less() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    pool(&path);
    set(
        &path,
        ferrite_fs::layout::CONTROL_STATE,
        ferrite_fs::layout::STATE_IN_USE,
    );
    set(&path, ferrite_fs::layout::CONTROL_BOOT, 77);
    assert!(Fs::open(&path).is_err());
    for option in ["-n", "-p"] {
        let said = fails(ferrite().args(["fsck", option]).arg(&path), 4);
        assert!(said.contains("when the machine restarted"), "{option}: {said}");
    }
    assert!(Fs::open(&path).is_err());
    let said = fails(ferrite().args(["fsck", "-y"]).arg(&path), 1);
    assert!(said.contains("accepted"), "{said}");
    ok(ferrite().args(["fsck", "-y"]).arg(&path));
    assert_eq!(Fs::open(&path).unwrap().read("/dir/sound").unwrap(), vec![1; 10_000]);
}

#[test]
fn without_a_superblock_the_check_says_what_helps() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    pool(&path);
    let second = superblock(&path).second_copy_offset() + 100;
    flip(&path, 100);
    let said = fails(ferrite().arg("fsck").arg(&path), 4);
    assert!(said.contains("the first copy: wrong superblock checksum"), "{said}");
    assert!(!said.contains("mkfs") && !said.contains("run `ferrite fsck`"), "{said}");
    flip(&path, second);
    for option in ["-n", "-y"] {
        let said = fails(ferrite().args(["fsck", option]).arg(&path), 8);
        assert!(said.contains("restore the pool from a copy"), "{option}: {said}");
    }
}

/// A file that cannot be read because its checksum was damaged: fsck with `--data` finds and quarantines it.
#[test]
fn data_is_checked_and_put_aside_when_that_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    ok(ferrite().args(["mkfs", "--data-checksum", "--size", "16M"]).arg(&path));
    let pool = Fs::open(&path).unwrap();
    pool.write("/sound", vec![1; 10_000]).unwrap();
    pool.write("/victim", vec![2; 10_000]).unwrap();
    let victim = pool.metadata("/victim").unwrap().ino();
    pool.close().unwrap();
    let image = fs::read(&path).unwrap();
    let superblock = superblock(&path);
    let block = image.chunks(4096).position(|block| block == [2; 4096]).unwrap();
    flip(&path, superblock.sum_word_offset(BlockNo::new(block as u32)).unwrap());
    assert!(Fs::open(&path).unwrap().read("/victim").is_err());
    ok(ferrite().arg("fsck").arg(&path));
    let said = fails(ferrite().args(["fsck", "--data"]).arg(&path), 4);
    assert!(
        said.contains(&format!("inode {victim}, bytes ")) && said.contains("--repair --data"),
        "{said}"
    );
    let said = fails(ferrite().args(["fsck", "-y", "--data"]).arg(&path), 1);
    assert!(said.contains(&format!("lost+found/damaged-{victim}")), "{said}");
    ok(ferrite().args(["fsck", "--data"]).arg(&path));
    let pool = Fs::open(&path).unwrap();
    let aside = format!("/lost+found/damaged-{victim}");
    assert_eq!(pool.read(aside).unwrap(), vec![2; 10_000]);
    assert_eq!(pool.read("/sound").unwrap(), vec![1; 10_000]);
}

/// A copy of a directory of a damaged pool must fail at the damage, not continue without it.
#[test]
fn a_file_with_a_damaged_inode_is_listed() {
    if !has_fuse() {
        return;
    }
    let test = TestPool::new("32M", &[]);
    fs::create_dir(test.path("d")).unwrap();
    for name in ["d/a", "d/hit", "d/z"] {
        fs::write(test.path(name), name).unwrap();
    }
    let ino = fs::metadata(test.path("d/hit")).unwrap().ino();
    test.umount();
    flip(
        &test.pool,
        superblock(&test.pool).inode_offset(Inum::new(ino as u32)) + 40,
    );
    test.mount(&[]);
    // Twice: the kernel asks for names with and without attributes.
    for _ in 0..2 {
        assert_eq!(sh(&test.path("d"), "ls -U | sort | tr '\\n' ' '"), "a hit z ");
        let error = fs::metadata(test.path("d/hit")).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EIO), "{error}");
    }
    let copy = test.scratch();
    let copied = Command::new("cp")
        .arg("-r")
        .arg(test.path("d"))
        .arg(&copy)
        .output()
        .unwrap();
    assert!(!copied.status.success(), "a copy without a file passes for whole");
    assert_eq!(fs::read(test.path("d/z")).unwrap(), b"d/z");
    test.umount();
}
