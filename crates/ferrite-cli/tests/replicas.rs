//! `ferrite log`, and `ferrite mr` with several replicas of a file, with real processes that are killed.
//!
//! Protects: a change that a command reported as done is there afterwards, on every replica once it was resynchronised;
//! and the command reports a replica that lacks something.

use std::io::Write;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use crate::common::server::Server;
use crate::common::{fails, ferrite, mkfs, ok};
use serde_json::Value;

/// Runs a command with this on its standard input.
fn feed(words: &[&str], input: &[u8]) -> Output {
    let mut child = ferrite()
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap()
}

/// The same with an expected exit code; returns the output.
fn fed(words: &[&str], input: &[u8], code: i32) -> Vec<u8> {
    let output = feed(words, input);
    assert_eq!(output.status.code(), Some(code), "{words:?}: {output:?}");
    output.stdout
}

fn json(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(bytes)))
}

fn served() -> Server {
    Server::new("64M", &["--no-root-squash", "--rdma=127.0.0.1:0"])
}

fn with<'w>(words: &[&'w str], urls: &'w [String]) -> Vec<&'w str> {
    words.iter().copied().chain(urls.iter().map(String::as_str)).collect()
}

fn held(report: &Value) -> Vec<&str> {
    let replicas = report["replicas"].as_array().unwrap();
    replicas
        .iter()
        .map(|replica| replica["held"].as_str().unwrap())
        .collect()
}

/// Resynchronises until all replicas are current; returns the last output.
fn resync(urls: &[String]) -> Value {
    let began = Instant::now();
    loop {
        let output = feed(&with(&["mr", "resync", "--json"], urls), b"");
        match output.status.code() {
            Some(0) => return json(&output.stdout),
            // A restarted server grants no locks for a while.
            code => assert!(began.elapsed() < Duration::from_secs(60), "{code:?}: {output:?}"),
        }
    }
}

#[test]
fn a_file_on_three_servers_survives_one() {
    let mut servers = [served(), served(), served()];
    let urls: Vec<String> = servers.iter().map(|server| server.at("/file")).collect();
    let data: Vec<u8> = (0..6_000_000_u32).map(|index| (index * 7) as u8).collect();
    let report = json(&fed(&with(&["mr", "write", "--json"], &urls), &data, 0));
    assert_eq!(
        (held(&report), report["bytes"].as_u64()),
        (vec!["yes"; 3], Some(6_000_000))
    );
    servers[0].kill();
    let report = json(&fed(&with(&["mr", "append", "--json"], &urls), b"appended", 3));
    assert_eq!(held(&report), ["no", "yes", "yes"]);
    assert_eq!(report["offset"].as_u64(), Some(6_000_000));
    // A user who wants all replicas learns that there are too few.
    let output = feed(&with(&["mr", "write", "--all"], &urls), b"x");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(1) && said.contains("mr resync"),
        "{output:?}"
    );
    servers[0].start();
    // The first replica is old, and no command reads it.
    let mut whole = data.clone();
    whole.extend(b"appended");
    whole[0] = b'x';
    let output = feed(&with(&["mr", "read"], &urls), b"");
    assert!(
        output.status.success() && output.stdout == whole,
        "{:?}",
        String::from_utf8_lossy(&output.stderr)
    );
    let told = resync(&urls);
    assert!(
        told.as_array()
            .unwrap()
            .iter()
            .all(|replica| replica["standing"] == "current"),
        "{told}"
    );
    assert!(
        told[0]["compared"].as_u64() >= Some(6_000_008) && told[0]["written"].as_u64() > Some(0),
        "{told}"
    );
    for url in &urls {
        assert!(ok_bytes(url) == whole, "{url}");
    }
    assert_eq!(
        held(&json(&fed(&with(&["mr", "append", "--all", "--json"], &urls), b"!", 0))),
        ["yes"; 3]
    );
    // Wrong words, and an incomplete set of replicas.
    let output = feed(&with(&["mr", "read"], &urls[..2]), b"");
    assert!(!output.status.success() && String::from_utf8_lossy(&output.stderr).contains("one of 3 replicas"));
    fails(ferrite().args(["mr", "resync", &urls[0]]), 2);
    fails(ferrite().args(["mr", "read", "pm:/x:/y", "pm:/x:/z"]), 2);
}

/// The content of a file according to the server's file system.
fn ok_bytes(url: &str) -> Vec<u8> {
    let output = ferrite().args(["cat", url]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    output.stdout
}

#[test]
fn logs_are_appended_to_walked_and_rewound() {
    let base = tempfile::tempdir_in("/dev/shm").unwrap();
    let pool = base.path().join("pool");
    mkfs(&pool, &["--size", "64M"]);
    let mut server = served();
    for url in [format!("pm:{}:/log", pool.display()), server.at("/log")] {
        let log = |words: &[&str]| [&["log", words[0], url.as_str()][..], &words[1..]].concat().join("\n");
        let run = |words: &[&str], input: &[u8], code| {
            let words = log(words);
            fed(&words.split('\n').collect::<Vec<_>>(), input, code)
        };
        run(&["walk"], b"", 1);
        run(&["append", "--capacity", "1M"], b"first\n", 0);
        let report = json(&run(&["append", "--lines", "--json"], b"one\ntwo\n\nlast", 0));
        assert_eq!(
            (report["appends"].as_u64(), report["bytes"].as_u64()),
            (Some(4), Some(13))
        );
        assert_eq!(run(&["walk"], b"", 0), b"first\none\ntwo\n\nlast");
        let lines = String::from_utf8(run(&["walk", "--appends"], b"", 0)).unwrap();
        assert_eq!(lines, "\"first\\n\"\n\"one\\n\"\n\"two\\n\"\n\"\\n\"\n\"last\"\n");
        let told = json(&run(&["tell", "--json"], b"", 0));
        assert_eq!(
            (told["used"].as_u64(), told["capacity"].as_u64()),
            (Some(5 * 32 + 19), Some(1 << 20))
        );
        // Full, and too long.
        run(&["append"], &vec![7; 1 << 20], 1);
        run(&["rewind"], b"", 0);
        assert_eq!(run(&["walk"], b"", 0), b"");
        run(&["append"], b"again", 0);
        assert_eq!(run(&["walk"], b"", 0), b"again");
    }
    server.kill();
    server.start();
    assert_eq!(fed(&["log", "walk", &server.at("/log")], b"", 0), b"again");
    let said = fails(ferrite().args(["log", "walk", "/etc/hostname"]), 2);
    assert!(said.contains("in a volume"), "{said}");
    ok(ferrite().args(["fsck"]).arg(&pool));
}

#[test]
fn a_log_on_three_servers_goes_on_when_one_is_killed() {
    let mut servers = [served(), served(), served()];
    let urls: Vec<String> = servers.iter().map(|server| server.at("/log")).collect();
    fed(&with(&["log", "append"], &urls), b"one ", 0);
    servers[1].kill();
    fed(&with(&["log", "append"], &urls), b"two ", 3);
    servers[1].start();
    fed(&with(&["log", "append"], &urls), b"three ", 3);
    assert_eq!(fed(&with(&["log", "walk"], &urls), b"", 0), b"one two three ");
    resync(&urls);
    fed(&with(&["log", "append"], &urls), b"four", 0);
    // Each replica is a log on its own.
    for url in &urls {
        assert_eq!(fed(&["log", "walk", url], b"", 0), b"one two three four");
    }
    fed(&with(&["log", "rewind"], &urls), b"", 0);
    assert_eq!(fed(&with(&["log", "walk"], &urls), b"", 0), b"");
}
