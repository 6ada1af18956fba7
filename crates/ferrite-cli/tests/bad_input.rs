//! Bad input gets an error that names the thing, the cause and the remedy, a non-zero exit, and changes nothing.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common;
use crate::common::{fails, ferrite, mkfs, ok};

fn pool(dir: &Path) -> PathBuf {
    let pool = dir.join("pool");
    mkfs(&pool, &["--size", "16M"]);
    pool
}

/// Changes a superblock copy and makes its checksum right again.
fn change(image: &mut [u8], block: usize, at: usize, value: u32) {
    let block = &mut image[block..block + 4096];
    block[at..at + 4].copy_from_slice(&value.to_le_bytes());
    let crc = crc32c::crc32c(&block[..4088]);
    block[4088..4092].copy_from_slice(&crc.to_le_bytes());
}

/// `info` must fail and say all of `words`; the file must stay as it is.
fn refused(path: &Path, words: &[&str]) {
    let before = fs::read(path).unwrap();
    let said = fails(ferrite().arg("info").arg(path), 1);
    for word in words {
        assert!(said.contains(word), "`{word}` missing in: {said}");
    }
    assert!(fs::read(path).unwrap() == before);
}

#[test]
fn what_is_no_pool_is_called_so() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("foreign");
    fs::write(&path, vec![b'x'; 1 << 20]).unwrap();
    refused(&path, &["foreign", "not a Ferrite pool", "mkfs"]);
    fs::write(&path, "").unwrap();
    refused(&path, &["empty"]);
    fs::write(&path, "short").unwrap();
    refused(&path, &["not a Ferrite pool"]);
    let said = fails(ferrite().arg("info").arg(dir.path().join("missing")), 1);
    assert!(said.contains("missing") && said.contains("No such file"), "{said}");
}

#[test]
fn a_truncated_pool_says_how_much_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let path = pool(dir.path());
    fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(9 << 20)
        .unwrap();
    refused(&path, &["truncated", "16777216", "9437184"]);
}

#[test]
fn one_damaged_superblock_is_survived_two_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = pool(dir.path());
    let mut image = fs::read(&path).unwrap();
    image[100] ^= 1;
    fs::write(&path, &image).unwrap();
    ok(ferrite().arg("info").arg(&path));
    let said = fails(ferrite().arg("fsck").arg(&path), 4);
    assert!(said.contains("first copy"), "{said}");
    let second = image.len() - 4096 + 100;
    image[second] ^= 1;
    fs::write(&path, &image).unwrap();
    refused(&path, &["superblock checksum", "fsck"]);
}

#[test]
fn a_newer_format_and_unknown_features_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = pool(dir.path());
    let image = fs::read(&path).unwrap();
    let last = image.len() - 4096;
    for (at, value, word) in [(8, 2, "version 2"), (64, 1 << 30, "0x40000000")] {
        let mut newer = image.clone();
        change(&mut newer, 0, at, value);
        change(&mut newer, last, at, value);
        fs::write(&path, &newer).unwrap();
        refused(&path, &[word, "newer Ferrite"]);
    }
}

#[test]
fn mkfs_overwrites_nothing_unless_forced() {
    let dir = tempfile::tempdir().unwrap();
    let path = pool(dir.path());
    let mkfs = |path: &Path, words: &[&str]| fails(ferrite().arg("mkfs").arg(path).args(words), 1);
    let said = mkfs(&path, &["--size", "16M"]);
    assert!(
        said.contains("already holds a Ferrite pool") && said.contains("--force"),
        "{said}"
    );
    common::mkfs(&path, &["--size", "16M", "--force"]);
    let other = dir.path().join("ext4");
    let mut image = vec![0; 64 << 10];
    image[0x438..0x43a].copy_from_slice(b"\x53\xef");
    fs::write(&other, &image).unwrap();
    assert!(mkfs(&other, &["--size", "16M"]).contains("ext4"));
    fs::write(&other, "notes").unwrap();
    assert!(mkfs(&other, &["--size", "16M"]).contains("not empty"));
    assert_eq!(fs::read(&other).unwrap(), b"notes");
    assert!(mkfs(dir.path(), &["--size", "16M"]).contains("directory"));
}

#[test]
fn a_mkfs_that_fails_changes_nothing() {
    // Smaller than the largest pool.
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let new = dir.path().join("new");
    let mkfs = |path: &Path, words: &[&str], code| fails(ferrite().arg("mkfs").arg(path).args(words), code);
    // `mkfs` checks the space first: a disk that fills up for a while hurts other programs.
    let said = mkfs(&new, &["--size", "250G"], 1);
    assert!(said.contains("free") && said.contains("256000 MiB"), "{said}");
    mkfs(&new, &["--size", "1K"], 2);
    assert!(ferrite::Fs::create(&new, 1024).is_err());
    let full = ferrite::Fs::create(&new, 250 << 30).err().unwrap();
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left behind");

    fs::write(&new, "").unwrap();
    mkfs(&new, &["--size", "1K"], 2);
    assert!(ferrite::Fs::create(&new, 1024).is_err());
    mkfs(&new, &["--size", "250G"], 1);
    assert_eq!(fs::metadata(&new).unwrap().len(), 0);

    let pool = pool(dir.path());
    mkfs(&pool, &["--size", "1K", "--force"], 2);
    mkfs(&pool, &["--size", "16M", "--inodes", "100000000", "--force"], 2);
    mkfs(&pool, &["--size", "250G", "--force"], 1);
    ok(ferrite().arg("fsck").arg(&pool));

    // A link names a file elsewhere, which appears and disappears independently of it.
    let link = dir.path().join("link");
    let target = dir.path().join("target");
    std::os::unix::fs::symlink("target", &link).unwrap();
    mkfs(&link, &["--size", "250G"], 1);
    assert!(link.is_symlink() && !target.exists());
    common::mkfs(&link, &["--size", "16M"]);
    ok(ferrite().arg("fsck").arg(&target));
}

#[test]
fn a_killed_mkfs_leaves_a_whole_pool_or_nothing() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("new");
    let mut killed = 0;
    for after_ms in [2, 5, 10, 20, 40, 80, 160] {
        let mut mkfs = ferrite()
            .arg("mkfs")
            .arg(&path)
            .args(["--size", "400M"])
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(std::time::Duration::from_millis(after_ms));
        mkfs.kill().unwrap();
        killed += i32::from(!mkfs.wait().unwrap().success());
        if path.exists() {
            ok(ferrite().arg("fsck").arg(&path));
            fs::remove_file(&path).unwrap();
        }
    }
    assert!(killed > 0, "it was never killed in time");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn space_that_was_only_reserved_is_no_content() {
    let dir = tempfile::tempdir().unwrap();
    for make in ["fallocate -l 16M", "truncate -s 16M"] {
        let path = dir.path().join(make.split(' ').next().unwrap());
        common::sh(dir.path(), &format!("{make} {}", path.display()));
        if make.starts_with("fallocate") {
            fs::read(&path).unwrap();
        }
        ok(ferrite().arg("mkfs").arg(&path));
        assert_eq!(fs::metadata(&path).unwrap().len(), 16 << 20);
        assert!(fails(ferrite().arg("mkfs").arg(&path), 1).contains("already holds a Ferrite pool"));
    }
    let path = dir.path().join("last");
    common::sh(dir.path(), "truncate -s 16M last; printf x >> last");
    assert!(fails(ferrite().arg("mkfs").arg(&path), 1).contains("not empty"));
    ok(ferrite().args(["mkfs", "--size", "16.5M"]).arg(dir.path().join("half")));
    assert_eq!(fs::metadata(dir.path().join("half")).unwrap().len(), 33 << 19);
}

#[test]
fn wrong_words_are_named_with_what_would_do() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("new");
    let usage = |words: &[&str]| fails(ferrite().arg("mkfs").arg(&path).args(words), 2);
    assert!(usage(&["--size", "1X"]).contains("not a size suffix"));
    assert!(usage(&["--size", "big"]).contains("not a size"));
    assert!(usage(&[]).contains("--size"));
    assert!(usage(&["--mapping", "magic", "--size", "16M"]).contains("hashfs"));
    assert!(usage(&["--size", "1M"]).contains("at least"));
    assert!(usage(&["--size", "1K"]).contains("a pool of 1.0 KiB"));
    assert!(usage(&["--size", "16M", "--block-size", "512"]).contains("4096"));
    assert!(usage(&["--size", "16M", "--inodes", "100000000"]).contains("fewer"));
    assert!(usage(&["--size", "16M", "-N", "0"]).contains(": 0 inodes: choose 15 to"));
    assert!(usage(&["--size", "900T"]).contains("new: a pool of"));
    assert!(!path.exists(), "a failed mkfs leaves nothing behind");
    let pool = pool(dir.path());
    let said = fails(
        ferrite()
            .arg("mount")
            .arg(&pool)
            .arg(dir.path())
            .args(["-o", "colour=red"]),
        2,
    );
    assert!(said.contains("colour=red"), "{said}");
    let said = fails(ferrite().arg("mount").arg(&pool).arg(dir.path().join("nowhere")), 1);
    assert!(said.contains("nowhere"), "{said}");
    let said = fails(ferrite().arg("umount").arg(dir.path()), 1);
    assert!(said.contains("no pool is mounted"), "{said}");
}
