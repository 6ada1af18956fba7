//! `mkfs --data-checksum` from outside: `info` says so, and a damaged page is an error on a mount and a finding of
//! `scrub`.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use crate::common::{PAGE, TestPool, damage_block, fails, ferrite, has_fuse, mkfs, ok, unlike_pages};

/// The pages that a test damages.
fn content() -> Vec<u8> {
    unlike_pages(4)
}

#[test]
fn info_tells_and_the_default_is_without() {
    let dir = tempfile::tempdir().unwrap();
    let pool = dir.path().join("pool");
    for (words, told, json) in [
        (&[][..], "no", "\"data_checksum\":false"),
        (&["--data-checksum", "--force"], "yes", "\"data_checksum\":true"),
    ] {
        mkfs(&pool, &[&["--size", "16M"], words].concat());
        let info = ok(ferrite().arg("info").arg(&pool));
        let line = info.lines().find(|line| line.starts_with("data checksums")).unwrap();
        assert!(line.contains(told), "{line}");
        assert!(ok(ferrite().arg("info").arg(&pool).arg("--json")).contains(json));
        assert!(ok(ferrite().arg("fsck").arg(&pool)).contains("sound"));
        ok(ferrite().arg("scrub").arg(&pool));
    }
}

#[test]
fn a_damaged_page_is_an_error_and_a_finding() {
    if !has_fuse() {
        return;
    }
    let test = TestPool::new("64M", &["--data-checksum"]);
    fs::write(test.path("f"), content()).unwrap();
    fs::write(test.path("sound"), vec![7; 3 * PAGE]).unwrap();
    test.umount();
    damage_block(&test.pool, &content()[2 * PAGE..][..PAGE]);
    let scrubbed = fails(ferrite().arg("scrub").arg(&test.pool), 4);
    assert!(scrubbed.contains("bytes 8192 to 12287"), "{scrubbed}");
    assert!(scrubbed.contains("1 damaged: restore these files"), "{scrubbed}");
    test.mount(&[]);
    let file = File::open(test.path("f")).unwrap();
    let mut page = vec![0; PAGE];
    let error = file.read_exact_at(&mut page, 2 * PAGE as u64).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(5), "{error}");
    for sound in [0, 1, 3] {
        file.read_exact_at(&mut page, (sound * PAGE) as u64).unwrap();
        assert_eq!(page, content()[sound * PAGE..][..PAGE]);
    }
    drop(file);
    assert_eq!(fs::read(test.path("sound")).unwrap(), vec![7; 3 * PAGE]);
    let scrubbed = fails(ferrite().arg("scrub").arg(&test.dir), 4);
    assert!(scrubbed.contains("bytes 8192 to 12287"), "{scrubbed}");
    fs::write(test.path("f"), content()).unwrap();
    assert_eq!(fs::read(test.path("f")).unwrap(), content());
    ok(ferrite().arg("scrub").arg(&test.dir));
    test.finish();
}
