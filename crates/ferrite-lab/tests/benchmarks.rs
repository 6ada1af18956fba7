//! `ferrite-lab bench` names what it measures, describes each row, and leaves nothing behind.

mod common;

use std::path::Path;
#[cfg(feature = "nvme")]
use std::process::Command;
use std::process::Stdio;

#[cfg(any(feature = "nvme", feature = "rdma"))]
use common::ok;
use common::{fails, lab};

#[cfg(any(feature = "nvme", feature = "rdma"))]
const DOCUMENTED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/benchmarks.md");

#[test]
fn a_benchmark_that_is_not_there_is_told_with_those_that_are() {
    let bench = |words: &[&str]| fails(lab().arg("bench").args(words), 2);
    let said = bench(&["--only", "wrong"]);
    let known = [
        "wrong",
        "overwrite_4k_durable",
        "varmail_1_thread",
        "fsck_10k_files",
        "run_length",
    ];
    assert!(known.iter().all(|name| said.contains(name)), "{said}");
    for name in ["published", "cold_misses"] {
        assert!(said.contains(name), "docs/benchmarks.md names {name}: {said}");
    }
    let said = bench(&["core", "--only", "varmail_1_thread"]);
    assert!(said.contains("stat") && !said.contains("webproxy"), "{said}");
}

/// In a program without probes it says how to build one with them.
#[test]
fn an_operation_is_explained_by_a_program_with_probes() {
    let said = fails(lab().args(["bench", "threads", "--explain"]), 2);
    assert!(said.contains("ferrite-lab bench core --explain"), "{said}");
    let mut explain = lab();
    explain.args(["bench", "core", "--explain", "--quick", "--json"]);
    if !cfg!(feature = "spans") {
        let said = fails(&mut explain, 2);
        assert!(said.contains("--features spans"), "{said}");
        return;
    }
    let output = explain.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stdout).unwrap();
    let rows: Vec<serde_json::Value> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names: Vec<_> = rows.iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        [
            "overwrite_4k",
            "read_4k",
            "overwrite_8b",
            "read_4k_logged",
            "append_64b",
            "create"
        ]
    );
    for row in &rows {
        let spans = row["spans"].as_array().unwrap();
        let sum: f64 = spans.iter().map(|span| span["ns"].as_f64().unwrap()).sum();
        let number = |field: &str| row[field].as_f64().unwrap();
        assert!((sum - number("sum_ns")).abs() < 0.01, "{row}");
        assert!(spans.iter().any(|span| span["span"] == "rest"), "{row}");
        // Loosely, since others use the machine.
        let share = sum / number("whole_ns");
        assert!((0.3..3.0).contains(&share), "the spans are {share} of the whole: {row}");
        let fences = if row["name"].as_str().unwrap().starts_with("read") {
            0.0
        } else {
            1.0
        };
        assert!((number("fences") - fences).abs() < 0.1, "{row}");
    }
}

#[test]
fn a_benchmark_that_nobody_reads_leaves_nothing() {
    let mut bench = lab()
        .args(["bench", "core", "--quick", "--only", "create_unlink"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    drop(bench.stdout.take());
    assert!(bench.wait().unwrap().success());
    let left = format!("/dev/shm/ferrite-bench-{}", bench.id());
    assert!(!Path::new(&left).exists(), "{left}");
}

/// Every row is there and described, whoever runs it; nothing is left behind.
#[cfg(feature = "nvme")]
#[test]
fn a_benchmark_of_devices_has_its_rows() {
    let documented = std::fs::read_to_string(DOCUMENTED).unwrap();
    let out = ok(lab().args(["bench", "nvme", "--quick", "--json"]));
    let rows: Vec<serde_json::Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let mut names: Vec<&str> = rows.iter().map(|row| row["name"].as_str().unwrap()).collect();
    for row in &rows {
        let (ratio, ours) = (row["ratio"].as_f64().unwrap(), row["median_ns"].as_f64().unwrap());
        assert!(ratio.is_finite() && ratio > 0.0 && ours > 0.0, "{row}");
        assert!(
            documented.contains(row["name"].as_str().unwrap()),
            "{row} is not described"
        );
    }
    let has_ext4 = rows.iter().any(|row| row["against"] == "ext4, O_SYNC");
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), if has_ext4 { 17 } else { 14 }, "{names:?}");
    let stats: Vec<&str> = rows
        .iter()
        .filter(|row| row["name"] == "nvme_stat")
        .map(|row| row["contents"].as_str().unwrap())
        .collect();
    assert!(
        stats.len() == 2 && stats.iter().all(|text| text.ends_with("; 0 device reads")),
        "{stats:?}"
    );
    let loops = Command::new("losetup").args(["-l", "-n", "-O", "BACK-FILE"]).output();
    let left = loops.map_or_else(
        |_| String::new(),
        |output| String::from_utf8_lossy(&output.stdout).into_owned(),
    );
    assert!(!left.contains("ferrite-bench-"), "{left}");
}

/// Every row is there and described, and the two sides are what they are said to be; nothing is left behind.
#[cfg(feature = "nvme")]
#[test]
fn a_benchmark_of_metadata_in_postgres_has_its_rows() {
    let documented = std::fs::read_to_string(DOCUMENTED).unwrap();
    let bench = lab()
        .args(["bench", "cluster", "--quick", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let left = format!("/dev/shm/ferrite-bench-{}", bench.id());
    let output = bench.wait_with_output().unwrap();
    if common::text(&output).contains("is not installed") {
        println!("skipped: {}", common::text(&output));
        return;
    }
    assert!(output.status.success(), "{}", common::text(&output));
    assert!(!Path::new(&left).exists(), "{left}");
    let out = String::from_utf8(output.stdout).unwrap();
    let mut ratios = std::collections::BTreeMap::new();
    for row in out.lines() {
        let row: serde_json::Value = serde_json::from_str(row).unwrap();
        if row["against"] != "RocksDB" {
            continue;
        }
        let (ratio, ours) = (row["ratio"].as_f64().unwrap(), row["median_ns"].as_f64().unwrap());
        assert!(ratio.is_finite() && ratio > 0.0 && ours > 0.0, "{row}");
        let (name, contents) = (row["name"].as_str().unwrap(), row["contents"].as_str().unwrap());
        assert!(documented.contains(name), "{row} is not described");
        assert!(contents.starts_with("goal"), "{row}");
        assert!(ratios.insert(name.to_owned(), ratio).is_none(), "{row}: twice");
    }
    assert_eq!(ratios.len(), 12, "{ratios:?}");
    // A commit sends messages to another process, which takes longer than a write of RocksDB's log in memory; a lookup
    // that did so would take a hundred times as long.
    assert!(ratios["cluster_create"] > 1.0, "{ratios:?}");
    assert!(ratios["cluster_stat"] < 10.0, "{ratios:?}");
}

/// Every row is there and described.
#[cfg(feature = "rdma")]
#[test]
fn a_benchmark_of_files_by_rdma_has_its_rows() {
    let documented = std::fs::read_to_string(DOCUMENTED).unwrap();
    let out = ok(lab().args(["bench", "mr", "--quick", "--json"]));
    let rows: Vec<serde_json::Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let mut counts = std::collections::BTreeMap::new();
    for row in &rows {
        let (ratio, ours) = (row["ratio"].as_f64().unwrap(), row["median_ns"].as_f64().unwrap());
        assert!(ratio.is_finite() && ratio > 0.0 && ours > 0.0, "{row}");
        let (name, contents) = (row["name"].as_str().unwrap(), row["contents"].as_str().unwrap());
        assert!(documented.contains(name), "{row} is not described");
        assert!(contents.starts_with("goal"), "{row}");
        *counts.entry(name).or_insert(0) += 1;
    }
    let counts: Vec<_> = counts.into_iter().collect();
    let expected = [
        ("mr_append_64b", 1),
        // Two files in each of five mappings.
        ("mr_bind", 10),
        ("mr_hit_rate", 2),
        ("mr_publish", 10),
        ("mr_register", 2),
        ("mr_write_1k", 2),
        ("mr_write_4k", 1),
    ];
    assert_eq!(counts, expected);
    // Values that do not depend on the machine: a range is one entry, and a cache of ranges knows a file in few runs.
    for row in &rows {
        match row["name"].as_str().unwrap() {
            "mr_register" => assert!(row["contents"].as_str().unwrap().contains(", 1 and "), "{row}"),
            "mr_hit_rate" => assert!(row["ratio"].as_f64().unwrap() < 0.26, "{row}"),
            _ => {}
        }
    }
}
