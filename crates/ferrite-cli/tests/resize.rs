//! `ferrite resize`: a pool becomes larger and keeps its files; refusals change nothing; a kill leaves a whole pool.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use crate::common::{fails, ferrite, ok};

/// A pool of 64 MiB with a file of 20 MiB in a directory.
fn pool_with_a_file(dir: &Path, options: &[&str]) -> (std::path::PathBuf, Vec<u8>) {
    let (pool, file) = (dir.join("pool"), dir.join("file"));
    let content: Vec<u8> = (0..20u32 << 20).map(|at| (at / 3) as u8).collect();
    fs::write(&file, &content).unwrap();
    ok(ferrite().arg("mkfs").arg(&pool).args(["--size", "64M"]).args(options));
    ok(ferrite().arg("mkdir").arg(format!("pm:{}:/dir", pool.display())));
    ok(ferrite()
        .arg("cp")
        .arg(&file)
        .arg(format!("pm:{}:/dir/file", pool.display())));
    (pool, content)
}

fn check(pool: &Path, content: &[u8]) {
    let said = ok(ferrite().arg("fsck").arg(pool));
    assert!(said.contains(": sound"), "{said}");
    let found = ferrite::Fs::open(pool).unwrap();
    assert!(found.read("/dir/file").unwrap() == content);
    found.close().unwrap();
}

#[test]
fn a_pool_grows_and_keeps_its_files() {
    for options in [
        &[][..],
        &["--mapping", "leaf", "--data-checksum"],
        &["--mapping", "extent"],
    ] {
        let dir = tempfile::tempdir().unwrap();
        let (pool, content) = pool_with_a_file(dir.path(), options);
        let said = ok(ferrite().arg("resize").arg(&pool).args(["--size", "256M"]));
        assert!(said.contains("256.0 MiB, was 64.0 MiB"), "{said}");
        check(&pool, &content);
        // By default to the length of the file, here without space: the pool was made with all of it.
        fs::File::options()
            .write(true)
            .open(&pool)
            .unwrap()
            .set_len(512 << 20)
            .unwrap();
        ok(ferrite().arg("resize").arg(&pool));
        check(&pool, &content);
        let info = ok(ferrite().arg("info").arg(&pool));
        assert!(info.contains("512.0 MiB"), "{info}");
        // Twenty times as much as the first pool had space for.
        let filled = ferrite::Fs::open(&pool).unwrap();
        filled.write("/dir/large", vec![7; 300 << 20]).unwrap();
        filled.close().unwrap();
        check(&pool, &content);
    }
}

#[test]
fn what_cannot_grow_is_left_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let (pool, content) = pool_with_a_file(dir.path(), &[]);
    let refused = |size: &str, code: i32, what: &str| {
        let said = fails(ferrite().arg("resize").arg(&pool).args(["--size", size]), code);
        assert!(said.contains(what), "{said}");
        assert_eq!(fs::metadata(&pool).unwrap().len(), 64 << 20, "the file's length");
    };
    refused("32M", 2, "cannot become smaller");
    refused("64M", 2, "already has");
    refused("65M", 2, "give it at least");
    refused("400G", 2, "--log-unit 64");
    {
        let open = ferrite::Fs::open(&pool).unwrap();
        refused("256M", 1, "in use");
        open.close().unwrap();
    }
    refused("200G", 1, "MiB free");
    check(&pool, &content);
    // A pool that ended before its file would not find its second superblock.
    let longer = dir.path().join("longer");
    fs::copy(&pool, &longer).unwrap();
    fs::File::options()
        .write(true)
        .open(&longer)
        .unwrap()
        .set_len(300 << 20)
        .unwrap();
    let said = fails(ferrite().arg("resize").arg(&longer).args(["--size", "256M"]), 2);
    assert!(said.contains("300.0 MiB") && said.contains("omit --size"), "{said}");
    assert_eq!(fs::metadata(&longer).unwrap().len(), 300 << 20);
    ok(ferrite().arg("resize").arg(&longer));
    check(&longer, &content);
    let none = dir.path().join("none");
    let said = fails(ferrite().arg("resize").arg(&none).args(["--size", "1G"]), 1);
    assert!(said.contains("none") && !none.exists(), "{said}");
    fs::write(&none, [1; 100_000]).unwrap();
    let said = fails(ferrite().arg("resize").arg(&none).args(["--size", "1G"]), 1);
    assert!(said.contains("not a Ferrite pool"), "{said}");
    assert_eq!(fs::read(&none).unwrap(), [1; 100_000]);
}

/// Killed at various moments, the command leaves the pool as it was or larger, and succeeds when it is repeated.
#[test]
fn a_resize_that_is_killed_leaves_a_whole_pool() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let (pool, content) = pool_with_a_file(dir.path(), &[]);
    let mut size_mib = 64;
    for delay_ms in [1, 3, 6, 10, 15, 25] {
        size_mib += 128;
        let size = format!("{size_mib}M");
        let mut resize = ferrite();
        resize.arg("resize").arg(&pool).args(["--size", &size]);
        let mut child = resize.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(delay_ms));
        let _ = child.kill();
        child.wait().unwrap();
        check(&pool, &content);
    }
    ok(ferrite().arg("resize").arg(&pool).args(["--size", "2G"]));
    check(&pool, &content);
}
