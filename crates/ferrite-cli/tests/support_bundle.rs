//! `ferrite support-bundle`: it has what a report needs, whatever hangs, and nothing secret.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::common::server::Server;
use crate::common::{TestPool, fails, ferrite, has_fuse, ok};

#[test]
fn it_reports_pools_servers_and_files_without_secrets() {
    let server = Server::new("64M", &["--no-root-squash"]);
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("data.key");
    ok(ferrite().arg("key").arg(&key));
    let config = dir.path().join("server.toml");
    let secret = fs::read_to_string(&key).unwrap();
    fs::write(&config, format!("# {secret}\npassword = \"hunter2\"\nlisten = []\n")).unwrap();
    let log = dir.path().join("log");
    fs::write(&log, "took postgres://me:hunter2@host/db, and went on\n").unwrap();
    let report = dir.path().join("report");
    let mut command = ferrite();
    command
        .arg("support-bundle")
        .arg(&server.address)
        .arg("--config")
        .arg(&config);
    command
        .arg("--log")
        .arg(&log)
        .arg("--log")
        .arg("/nonexistent/log")
        .arg("--output")
        .arg(&report);
    assert!(ok(&mut command).contains("read it before you send it"));
    let text = fs::read_to_string(&report).unwrap();
    for expected in [
        concat!("ferrite ", env!("CARGO_PKG_VERSION")),
        "==== ferrite doctor",
        "==== ferrite df",
        "==== ferrite top --once",
        "busiest with",
        "listen = []",
        "and went on",
        "==== the file /nonexistent/log\ncannot be read: No such file",
        "descriptors: ",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    assert!(!text.contains("hunter2") && !text.contains(secret.trim()), "{text}");
    assert_eq!(fs::metadata(&report).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(fails(&mut command, 1).contains("exists"), "an earlier report stays");
}

#[test]
fn it_describes_every_mount() {
    if !has_fuse() {
        return;
    }
    let test = TestPool::new("64M", &[]);
    let text = ok(ferrite().args(["support-bundle", "--output", "-"]));
    let title = format!("==== ferrite info {}", test.dir.display());
    let section = text.split(&title).nth(1).unwrap_or_else(|| panic!("{text}"));
    assert!(section.contains("mounts") && section.contains("this one"), "{section}");
    test.finish();
}
