//! Exact texts for the most frequent mistakes of users: each names the thing, the cause and the remedy, and users can
//! type the commands in it.

use std::fs;

use crate::common::{fails, ferrite, ok};

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
