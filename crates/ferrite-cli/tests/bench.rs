//! `ferrite bench` measures any directory, prints each operation once, and removes what it made.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::common::server::Server;
use crate::common::{fails, ferrite, ok};

const NAMES: [&str; 8] = [
    "write, 1 MiB, fsync",
    "read, 1 MiB",
    "read, 4 KiB, random",
    "write, 4 KiB, random",
    "append, 4 KiB, fsync",
    "create, 4 KiB",
    "stat",
    "remove",
];

fn is_empty(dir: &Path) -> bool {
    std::fs::read_dir(dir).unwrap().next().is_none()
}

#[test]
fn directories_pools_and_exports_are_measured() {
    let base = tempfile::tempdir().unwrap();
    let (dir, pool) = (base.path().join("dir"), base.path().join("pool"));
    std::fs::create_dir(&dir).unwrap();
    ok(ferrite().arg("mkfs").arg(&pool).args(["--size", "64M"]));
    let server = Server::new("64M", &["--no-root-squash"]);
    let in_pool = format!("pm:{}:/", pool.display());
    for place in [dir.to_str().unwrap(), &in_pool, server.at("/").as_str()] {
        let words = ["bench", place, "--size", "4M", "--files", "20", "--json"];
        let said = ok(ferrite().args(words));
        let rows: Vec<serde_json::Value> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let names: Vec<_> = rows.iter().map(|row| row["name"].as_str().unwrap()).collect();
        assert_eq!(names, NAMES, "{place}");
        for row in &rows {
            let number = |name: &str| row[name].as_f64().unwrap();
            assert!(number("operations_per_second") > 0.0, "{place}: {row}");
            assert!(
                number("p50_us") <= number("p99_us") && number("p99_us") <= number("max_us"),
                "{place}: {row}"
            );
        }
    }
    assert!(is_empty(&dir));
    assert_eq!(ok(ferrite().args(["ls", "-a", &in_pool])), "");
    assert_eq!(ok(ferrite().args(["ls", "-a", &server.at("/")])), "");
    let table = ok(ferrite().arg("bench").arg(&dir).args(["--size", "1M", "--files", "1"]));
    assert!(
        NAMES.iter().all(|name| table.contains(name)) && table.contains("p99 us"),
        "{table}"
    );
}

/// A signal, a full disk and a missing directory leave nothing behind.
#[test]
fn what_ends_early_leaves_nothing() {
    let base = tempfile::tempdir().unwrap();
    let dir = base.path().join("dir");
    std::fs::create_dir(&dir).unwrap();
    let mut child = ferrite()
        .arg("bench")
        .arg(&dir)
        .args(["--size", "1M", "--files", "1000000"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let start = Instant::now();
    while is_empty(&dir) {
        assert!(start.elapsed() < Duration::from_secs(20), "it begins");
        std::thread::sleep(Duration::from_millis(5));
    }
    ok(std::process::Command::new("kill").arg(child.id().to_string()));
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert!(is_empty(&dir));

    let pool = base.path().join("pool");
    ok(ferrite().arg("mkfs").arg(&pool).args(["--size", "16M"]));
    let in_pool = format!("pm:{}:/", pool.display());
    let said = fails(ferrite().args(["bench", &in_pool, "--size", "64M"]), 1);
    assert!(said.contains("No space left"), "{said}");
    assert_eq!(ok(ferrite().args(["ls", "-a", &in_pool])), "");

    let said = fails(ferrite().arg("bench").arg(base.path().join("nowhere")), 1);
    assert!(said.contains("nowhere: No such file"), "{said}");
    let said = fails(ferrite().arg("bench").arg(&dir).args(["--size", "12"]), 2);
    assert!(said.contains("1M or more"), "{said}");
}
