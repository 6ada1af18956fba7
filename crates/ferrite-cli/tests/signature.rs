//! Programs that identify files by their first bytes recognise a pool, given the signature from `docs/format.md`.

use std::path::Path;
use std::process::Command;

use crate::common::{ferrite, ok};
use ferrite_fs::Mapping;

/// The output of file(1) for a pool, with Ferrite's description.
fn file(pool: &Path, words: &[&str]) -> String {
    let magic = Path::new("../../scripts/ferrite.magic");
    ok(Command::new("file")
        .args(words)
        .arg("-b")
        .arg("-m")
        .arg(magic)
        .arg(pool))
}

#[test]
fn file_tells_what_a_pool_is() {
    if Command::new("file").arg("--version").output().is_err() {
        eprintln!("skipped: there is no file(1)");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let pool = dir.path().join("pool");
    for (mapping, sums) in Mapping::ALL.iter().zip([true, false].into_iter().cycle()) {
        let words: &[&str] = if sums { &["--data-checksum"] } else { &[] };
        ok(ferrite()
            .arg("mkfs")
            .arg(&pool)
            .args(["--size", "16M", "--force", "--mapping", mapping.name()])
            .args(words));
        let info: serde_json::Value =
            serde_json::from_str(&ok(ferrite().arg("info").arg(&pool).arg("--json"))).unwrap();
        let sums = if sums { ", data checksums" } else { "" };
        let expected = format!(
            "Ferrite pool, version 1, blocks of 4096 bytes, {} bytes, {} data blocks, {}{sums}, uuid {}\n",
            info["size_bytes"],
            info["blocks"],
            mapping.name(),
            info["uuid"].as_str().unwrap()
        );
        assert_eq!(file(&pool, &[]), expected);
    }
    assert!(file(&pool, &["-i"]).starts_with("application/x-ferrite-pool"));
    let open = ferrite::Fs::open(&pool).unwrap();
    assert!(file(&pool, &[]).contains(", in use, "));
    open.close().unwrap();
    assert!(!file(&pool, &[]).contains("in use"));
    // Other files are not taken for pools.
    let other = dir.path().join("other");
    std::fs::write(&other, [&b"FERRITE\x1b"[..], &[0; 5000]].concat()).unwrap();
    assert!(!file(&other, &[]).contains("Ferrite"));
}
