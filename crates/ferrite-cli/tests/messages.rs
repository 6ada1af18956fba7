//! Exact texts for the most frequent mistakes of users: each names the thing, the cause and the remedy, and users can
//! type the commands in it.

use std::fs;

use crate::common::{TestPool, fails, ferrite, has_fuse, ok};

/// A pool that this process has open through the library has no mount.
#[test]
fn a_pool_that_a_program_has_open_names_the_program() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let pool = dir.path().join("pool");
    let opened = ferrite::Fs::create(&pool, 16 << 20).unwrap();
    let (own, pool_name) = (std::process::id(), pool.display());
    let name = fs::read_to_string(format!("/proc/{own}/comm")).unwrap();
    let expected = format!(
        "ferrite: {pool_name}: in use by process {own} ({}), which has it open; close it there, or end that process\n",
        name.trim()
    );
    assert_eq!(fails(ferrite().arg("fsck").arg(&pool), 8), expected);
    drop(opened);
    assert!(ok(ferrite().arg("fsck").arg(&pool)).contains("sound"));
}

/// The address of an NFS export, as people write it.
#[test]
fn a_server_without_a_scheme_is_told_its_address() {
    for (given, meant) in [
        ("127.0.0.1:/x", "tcp://127.0.0.1:7447/x"),
        ("files.example:7448/x", "tcp://files.example:7448/x"),
        ("files.example:7448", "tcp://files.example:7448/"),
    ] {
        for words in [&["mount", given, "/mnt"][..], &["info", given], &["ls", given]] {
            let said = fails(ferrite().args(words), 2);
            assert!(
                said.contains(&format!("the address of a server is {meant}")),
                "{words:?}: {said}"
            );
        }
        let Err(error) = ferrite::Fs::open(given) else {
            panic!("there is no pool {given}");
        };
        assert!(
            error.to_string().contains(meant) && error.raw_os_error() == Some(libc::ENOENT),
            "{error}"
        );
    }
    // A pool may have such a name.
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    ok(ferrite().args(["mkfs", "./a:1", "--size", "16M"]).current_dir(&dir));
    ok(ferrite().args(["fsck", "a:1"]).current_dir(&dir));
}

#[test]
fn a_pool_and_a_directory_in_the_wrong_order_are_told_the_right_one() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let (pool, mount) = (dir.path().join("pool"), dir.path().join("mnt"));
    ok(ferrite().args(["mkfs", "--size", "16M"]).arg(&pool));
    fs::create_dir(&mount).unwrap();
    for given in [
        pool.as_os_str(),
        "tcp://127.0.0.1:1/x".as_ref(),
        "127.0.0.1:/x".as_ref(),
    ] {
        let said = fails(ferrite().arg("mount").arg(&mount).arg(given), 2);
        let right = format!(
            "the pool comes first: ferrite mount {} {}\n",
            given.display(),
            mount.display()
        );
        assert!(said.ends_with(&right), "{said}");
    }
}

#[test]
fn a_mount_option_with_a_wrong_value_is_told_the_right_ones() {
    for (option, mend) in [
        ("durability=none", "its values are strict, fsync, process"),
        ("durability", "its values are strict, fsync, process"),
        ("scrub", "it needs a value"),
        ("nonsense=1", "see `ferrite mount --help`"),
    ] {
        let said = fails(ferrite().args(["mount", "/nonexistent/pool", "/mnt", "-o", option]), 2);
        assert!(said.contains(mend), "{option}: {said}");
    }
}

#[test]
fn a_key_that_exists_says_why_it_is_not_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("data.key");
    ok(ferrite().arg("key").arg(&key));
    let before = fs::read(&key).unwrap();
    let said = fails(ferrite().arg("key").arg(&key), 1);
    assert!(
        said.contains("exists already") && said.contains("choose another"),
        "{said}"
    );
    assert!(fs::read(&key).unwrap() == before);
}

#[test]
fn a_text_without_quotation_marks_is_told_how_to_write_it() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("server.toml");
    for (text, mend) in [
        ("listen = tcp\n", ":1: a text needs quotation marks: `listen = \"tcp\"`"),
        (
            "[[pool]]\npath = /dev/shm/pool\n",
            ":2: a text needs quotation marks: `path = \"/dev/shm/pool\"`",
        ),
    ] {
        fs::write(&config, text).unwrap();
        let said = fails(ferrite().args(["serve", "--check", "--config"]).arg(&config), 2);
        assert!(said.contains(mend), "{said}");
    }
}

/// The uses of a pool, as `info` tells them: before a mount, during it, after it, and after a crash.
#[test]
fn info_says_how_a_pool_was_used() {
    if !has_fuse() {
        return;
    }
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let pool = dir.path().join("pool");
    ok(ferrite().args(["mkfs", "--size", "16M"]).arg(&pool));
    let line_of = |pool: &std::path::Path| {
        let said = ok(ferrite().arg("info").arg(pool));
        let line = said.lines().find(|line| line.starts_with("mounts")).unwrap();
        line.trim_start_matches("mounts").trim().to_owned()
    };
    assert_eq!(line_of(&pool), "0");
    ferrite::Fs::open(&pool).unwrap().close().unwrap();
    assert_eq!(line_of(&pool), "1; the last one ended cleanly");
    let test = TestPool::new("64M", &[]);
    assert_eq!(line_of(&test.pool), "1, this one");
    test.kill();
    let said = line_of(&test.pool);
    assert!(
        said.starts_with("1; the last one ended in a crash, or has not ended; "),
        "{said}"
    );
    test.mount(&[]);
    let said = line_of(&test.dir);
    assert!(
        said.starts_with("2 with this one; the one before ended in a crash, "),
        "{said}"
    );
    test.finish();
}

#[cfg(feature = "nvme")]
mod nvme {
    use std::os::unix::fs::FileExt;

    use super::*;

    fn description(dir: &std::path::Path, metadata: &str, devices: &[&str]) -> std::path::PathBuf {
        let path = dir.join("fast.toml");
        let devices: String = devices
            .iter()
            .map(|device| format!("[[data]]\ndevice = '{device}'\n"))
            .collect();
        fs::write(&path, format!("[metadata]\n{metadata}\n{devices}")).unwrap();
        path
    }

    /// Every command that takes a pool says the address that it wants.
    #[test]
    fn a_description_without_its_scheme_is_told_its_address() {
        let dir = tempfile::tempdir().unwrap();
        let path = description(dir.path(), "directory = 'meta'", &["a.data"]);
        let before = fs::read(&path).unwrap();
        let name = path.display();
        for words in [
            &["mount", "PATH", "/mnt"][..],
            &["info", "PATH"],
            &["df", "PATH"],
            &["fsck", "PATH"],
            &["scrub", "PATH"],
            &["serve", "PATH"],
            &["mkfs", "PATH", "--size", "64M", "--force"],
        ] {
            let mut command = ferrite();
            for &word in words {
                match word {
                    "PATH" => command.arg(&path),
                    word => command.arg(word),
                };
            }
            // fsck(8) has codes of its own.
            let said = fails(&mut command, if words[0] == "fsck" { 16 } else { 2 });
            let expected = format!("the file describes a pool on devices; name it nvme:{name}");
            assert!(said.contains(&expected), "{words:?}: {said}");
        }
        assert!(fs::read(&path).unwrap() == before, "it is as it was");
        let Err(error) = ferrite::Fs::open(&path) else {
            panic!("the library opens a description as a pool");
        };
        let expected = format!("{name}: the file describes a pool on devices; its address is nvme:{name}");
        assert!(error.to_string().contains(&expected), "{error}");
        // A pool in memory may have such a name, too.
        let pool = dir.path().join("pool.toml");
        ok(ferrite().args(["mkfs", "--size", "16M"]).arg(&pool));
        assert!(ok(ferrite().arg("fsck").arg(&pool)).contains("sound"));
    }

    #[test]
    fn a_device_that_is_named_twice_is_told_so() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a.data"), "").unwrap();
        std::os::unix::fs::symlink("a.data", dir.path().join("link")).unwrap();
        for (metadata, devices, twice) in [
            ("directory = 'meta'", &["a.data", "a.data"][..], "a.data"),
            ("directory = 'meta'", &["a.data", "./b.data", "link"], "link"),
            ("device = 'new.data'", &["a.data", "new.data"], "new.data"),
        ] {
            let path = description(dir.path(), metadata, devices);
            let (name, twice) = (path.display(), dir.path().join(twice));
            let said = fails(ferrite().args(["mkfs", "--size", "64M"]).arg(format!("nvme:{name}")), 1);
            let expected = format!(
                "ferrite: {name}: it names {} twice; name each device once\n",
                twice.display()
            );
            assert_eq!(said, expected);
        }
        let path = dir.path().join("other.toml");
        let said = fails(
            ferrite().current_dir(dir.path()).args([
                "mkfs",
                "--size",
                "64M",
                "--meta",
                "m",
                "--data",
                "x",
                "--data",
                "x",
                "nvme:other.toml",
            ]),
            1,
        );
        let twice = dir.path().join("x");
        assert!(
            said.contains(&format!("it names {} twice; name each device once\n", twice.display())),
            "{said}"
        );
        assert!(!path.exists() && !twice.exists(), "nothing is made");
    }

    /// The commands in fsck's messages contain the address, and no text shows internal representations of the program.
    #[test]
    fn fsck_says_what_can_be_typed() {
        let dir = tempfile::tempdir().unwrap();
        let path = description(dir.path(), "directory = 'meta'", &["a.data"]);
        let address = format!("nvme:{}", path.display());
        ok(ferrite().args(["mkfs", "--size", "64M", &address]));
        let content = dir.path().join("content");
        fs::write(&content, vec![7; 200_000]).unwrap();
        ok(ferrite()
            .arg("cp")
            .arg(&content)
            .arg(format!("{address}:/it's \"a\" file")));
        // The metadata of the first blobs.
        let device = fs::OpenOptions::new()
            .write(true)
            .open(dir.path().join("a.data"))
            .unwrap();
        device.write_all_at(&[0xee; 32 * 4096], 4096).unwrap();
        drop(device);
        let said = fails(ferrite().args(["fsck", "-n", &address]), 4);
        let advice = format!("`ferrite fsck --repair {address}` mends those that can be mended");
        assert!(said.contains(&advice), "{said}");
        assert!(
            said.contains("its blob ") && said.contains(" of data store 0 "),
            "{said}"
        );
        for form in ["{ ", "Place", "BlobId", "Some(", "\\\""] {
            assert!(!said.contains(form), "{form} in: {said}");
        }
        ok_or_repaired(&address);
    }

    fn ok_or_repaired(address: &str) {
        fails(ferrite().args(["fsck", "--repair", address]), 1);
        assert!(ok(ferrite().args(["fsck", address])).contains("sound"));
    }
}
