//! `ferrite serve --rdma` and `ferrite mr` with real processes.
//!
//! Protects: verbs write bytes to a file and read them back, programs that use the server's file system see them, and
//! they survive a kill of the server; where verbs are impossible, the same commands work and say why.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Output, Stdio};

use crate::common::server::Server;
use crate::common::{fails, ferrite, mkfs, ok};
use serde_json::Value;

fn mr(words: &[&str]) -> Command {
    let mut command = ferrite();
    command.arg("mr").args(words);
    command
}

/// Runs a command with this on its standard input.
fn feed(mut command: Command, input: &[u8]) -> Output {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    output
}

fn json(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(bytes)))
}

/// The content of a file according to the server's file system.
fn cat(url: &str) -> Vec<u8> {
    let output = ferrite().args(["cat", url]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    output.stdout
}

fn by_verbs(report: &Value) {
    assert_eq!(report["how"], "verbs", "{report}");
    assert!(report["packets"].as_u64().unwrap() > 0, "{report}");
}

fn served() -> Server {
    Server::new("128M", &["--no-root-squash", "--rdma=127.0.0.1:0"])
}

#[test]
fn bytes_go_by_verbs_and_are_there_after_a_restart() {
    let mut server = served();
    let url = server.at("/file");
    let data: Vec<u8> = (0..5_000_000_u32).map(|index| (index * 7) as u8).collect();
    let written = json(&feed(mr(&["write", &url, "--offset", "3", "--json"]), &data).stdout);
    by_verbs(&written);
    assert_eq!(
        (written["bytes"].as_u64(), written["mtu"].as_u64()),
        (Some(5_000_000), Some(4_096))
    );
    let appended = json(&feed(mr(&["append", &url, "--json"]), b"appended").stdout);
    by_verbs(&appended);
    let once = json(
        &feed(
            mr(&["append", &url, "--reserve", "--length", "4", "--json"]),
            b"once and more",
        )
        .stdout,
    );
    assert_eq!(once["offset"].as_u64(), Some(5_000_011));
    let local = cat(&url);
    assert!(local[..3] == [0; 3] && local[3..5_000_003] == data[..]);
    assert_eq!(local[5_000_003..], *b"appendedonce");
    server.kill();
    server.start();
    let read = mr(&["read", &url, "--json"]).output().unwrap();
    assert!(
        read.status.success() && read.stdout == local,
        "{}",
        String::from_utf8_lossy(&read.stderr)
    );
    by_verbs(&json(&read.stderr));
    let part = mr(&["read", &url, "--offset", "5000003", "--length", "8"])
        .output()
        .unwrap();
    assert_eq!((&part.stdout[..], &part.stderr[..]), (&b"appended"[..], &b""[..]));
    // The same without verbs, to compare.
    let read = mr(&["read", &url, "--no-verbs", "--json"]).output().unwrap();
    assert!(read.stdout == local && json(&read.stderr)["how"] == "rpc");
    server.kill();
    let fsck = ok(ferrite().arg("fsck").arg(&server.pool));
    assert!(!fsck.contains("wrong"), "{fsck}");
}

#[test]
fn a_key_is_held_shown_and_revoked() {
    let server = served();
    let url = server.at("/file");
    feed(mr(&["append", &url]), b"content");
    let mut holder = mr(&["bind", &url, "--json"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    BufReader::new(holder.stdout.take().unwrap())
        .read_line(&mut said)
        .unwrap();
    let key = json(said.as_bytes());
    assert!(
        key["key"].as_u64().unwrap() > 0 && key["size"] == 7 && key["udp"][0].as_str().is_some(),
        "{key}"
    );
    let list = |word: &str| {
        ok(&mut mr(
            &["list", &server.address, word][..if word.is_empty() { 2 } else { 3 }]
        ))
    };
    let told = json(list("--json").as_bytes());
    assert_eq!(
        (
            told["files"][0]["keys"].as_u64(),
            told["files"][0]["writable"].as_bool()
        ),
        (Some(1), Some(true))
    );
    assert!(list("").contains("writable"));
    let stat = ok(ferrite().args(["stat", &url]));
    // The previous append used a queue pair that is gone.
    let shown = [
        "Region: 1 key, 1 ranges",
        "writable",
        "RDMA: 0 queue pairs",
        " carried out, 0 again, ",
    ];
    assert!(shown.iter().all(|part| stat.contains(part)), "{stat}");
    ok(&mut mr(&["unbind", &url]));
    assert_eq!(json(list("--json").as_bytes())["files"], Value::Array(vec![]));
    ok(Command::new("kill").arg(holder.id().to_string()));
    assert!(holder.wait().unwrap().success());
    assert_eq!(cat(&url), b"content");
}

#[test]
fn without_verbs_the_commands_work_and_say_why() {
    // A pool in a file on a disk cannot be written in place; a server may offer no RDMA.
    let base = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let pool = base.path().join("pool");
    mkfs(&pool, &["--size", "64M"]);
    let (on_disk, _said, address) = serve(&pool, &["--rdma=127.0.0.1:0"]);
    let mute = Server::new("64M", &["--no-root-squash"]);
    for (address, why) in [(&address, "pool in a disk file"), (&mute.address, "offers no RDMA")] {
        let url = format!("{address}:/file");
        let report = json(&feed(mr(&["append", &url, "--json"]), b"by requests").stdout);
        assert_eq!(report["how"], "rpc");
        assert!(report["why"].as_str().unwrap().contains(why), "{report}");
        assert_eq!(mr(&["read", &url]).output().unwrap().stdout, b"by requests");
    }
    let said = ok(&mut mr(&["list", &mute.address]));
    assert!(said.contains("offers no RDMA"), "{said}");
    drop(on_disk);
}

struct Process(std::process::Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn serve(pool: &std::path::Path, words: &[&str]) -> (Process, BufReader<std::process::ChildStdout>, String) {
    let mut process = ferrite()
        .arg("serve")
        .arg(pool)
        .args(["--listen", "tcp://127.0.0.1:0", "--no-root-squash"])
        .args(words)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(process.stdout.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    let address = line.rsplit(' ').next().unwrap().trim().trim_end_matches('/').to_owned();
    (Process(process), said, address)
}

#[test]
fn rdma_at_other_addresses_than_loopback_must_be_wanted() {
    let base = tempfile::tempdir().unwrap();
    let pool = base.path().join("pool");
    let path = pool.to_str().unwrap();
    let said = fails(ferrite().args(["serve", path, "--rdma=0.0.0.0"]), 2);
    assert!(
        said.contains("neither encrypted nor authenticated") && said.contains("--rdma-unprotected"),
        "{said}"
    );
    let said = fails(ferrite().args(["serve", path, "--rdma=somewhere"]), 2);
    assert!(said.contains("give an IP address"), "{said}");
    let file = base.path().join("server.toml");
    let text =
        format!("rdma = [\"[::1]\", \"10.0.0.1:4791\"]\n[[pool]]\npath = \"{path}\"\n[[pool.export]]\nname = \"x\"\n");
    std::fs::write(&file, &text).unwrap();
    let check = |code| fails(ferrite().args(["serve", "--check", "--config"]).arg(&file), code);
    let said = check(2);
    assert!(
        said.contains(":1: rdma = \"10.0.0.1:4791\"") && said.contains("rdma_unprotected"),
        "{said}"
    );
    std::fs::write(&file, format!("rdma_unprotected = true\n{text}")).unwrap();
    // The only remaining problem is that no pool exists.
    assert!(!check(1).contains("rdma"));
    let said = fails(&mut mr(&["list", path]), 2);
    assert!(said.contains("only files of a server have RDMA"), "{said}");
}
