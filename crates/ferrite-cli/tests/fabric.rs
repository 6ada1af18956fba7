//! `fabric://` as its users meet it: an export over libfabric, the messages when that is impossible, and the report of
//! `ferrite doctor`.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::common::fabric::{doctor, find, has};
use crate::common::{fails, ferrite, mkfs, ok};

/// A pool that is served, until it is dropped.
struct Served {
    _dir: tempfile::TempDir,
    process: Child,
    /// `HOST:PORT`.
    place: String,
}

impl Served {
    fn new(listen: &str) -> Served {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let pool = dir.path().join("pool");
        mkfs(&pool, &["--size", "32M"]);
        let mut process = ferrite()
            .arg("serve")
            .arg(&pool)
            .args(["--listen", listen, "--no-root-squash"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut said = BufReader::new(process.stdout.take().unwrap());
        said.read_line(&mut line).unwrap();
        let address = line.rsplit(' ').next().unwrap().trim();
        let place = address.split("://").nth(1).unwrap_or_default();
        let place = place.split(['/', '?']).next().unwrap_or_default().to_owned();
        assert!(place.starts_with("127.0.0.1:"), "it says where it serves: {line}");
        Served {
            _dir: dir,
            process,
            place,
        }
    }

    fn at(&self, provider: &str, path: &str) -> String {
        format!("fabric://{}/?provider={provider}:{path}", self.place)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn files_of_an_export_are_reached_over_a_fabric() {
    for provider in ["shm", "tcp"] {
        if !has(provider) {
            continue;
        }
        let served = Served::new(&format!("fabric://127.0.0.1:0?provider={provider}"));
        let dir = tempfile::tempdir().unwrap();
        let (there, back) = (dir.path().join("there"), dir.path().join("back"));
        let content: Vec<u8> = (0..3_000_000u32).map(|at| (at ^ (at >> 8)) as u8).collect();
        std::fs::write(&there, &content).unwrap();
        ok(ferrite().arg("cp").arg(&there).arg(served.at(provider, "/file")));
        ok(ferrite().arg("cp").arg(served.at(provider, "/file")).arg(&back));
        assert!(std::fs::read(&back).unwrap() == content);
        assert!(ok(ferrite().arg("ls").arg(served.at(provider, "/"))).contains("file"));
        // A client that chooses no provider gets shared memory from a server of this host; and TCP is still open.
        if provider == "shm" {
            ok(ferrite().arg("ls").arg(served.at("auto", "/")));
        }
        ok(ferrite().arg("ls").arg(format!("tcp://{}/:/", served.place)));
        drop(served);
    }
}

#[test]
fn what_cannot_be_reached_over_a_fabric_is_said_with_a_remedy() {
    if !has("shm") || !has("tcp") {
        return;
    }
    let plain = Served::new("tcp://127.0.0.1:0");
    let said = fails(ferrite().arg("ls").arg(plain.at("shm", "/")), 1);
    assert!(
        said.contains("does not serve fabric://") && said.contains("--listen fabric://"),
        "{said}"
    );
    let shm = Served::new("fabric://127.0.0.1:0?provider=shm");
    let said = fails(ferrite().arg("ls").arg(shm.at("tcp", "/")), 1);
    assert!(said.contains("only shm"), "{said}");
    // No server is there, and no listener.
    let place = shm.at("shm", "/");
    drop(shm);
    let said = fails(ferrite().arg("ls").arg(&place), 1);
    assert!(said.contains("is the server running"), "{said}");
    // libfabric lacks the provider.
    let shm = Served::new("fabric://127.0.0.1:0?provider=shm");
    let said = fails(ferrite().env("FI_PROVIDER", "tcp").arg("ls").arg(shm.at("shm", "/")), 1);
    assert!(
        said.contains("fabric provider `shm`") && said.contains("ferrite doctor"),
        "{said}"
    );
    let words = [
        "serve",
        "pool",
        "--listen",
        "fabric://127.0.0.1:0?provider=carrier-pigeon",
    ];
    let said = fails(ferrite().args(words), 2);
    assert!(said.contains("shm, verbs, tcp or auto"), "{said}");
}

#[test]
fn the_doctor_knows_what_fabrics_need() {
    let checks = doctor(&mut ferrite());
    assert_eq!(find(&checks, "libfabric")["state"], "good");
    let verbs = find(&checks, "fabric:// over verbs");
    if !Path::new("/dev/infiniband").exists() {
        assert_eq!(verbs["state"], "missing");
        assert!(verbs["mend"].as_str().unwrap().contains("/dev/infiniband"), "{verbs}");
    }
    assert_eq!(find(&checks, "memory for shm")["state"], "good");
    // A provider that the environment hides.
    let checks = doctor(ferrite().env("FI_PROVIDER", "none"));
    for provider in ["shm", "verbs", "tcp"] {
        let hidden = find(&checks, &format!("fabric:// over {provider}"));
        assert_eq!(hidden["state"], "missing");
        assert!(
            hidden["mend"].as_str().unwrap().contains("unset FI_PROVIDER"),
            "{hidden}"
        );
    }
    let mut limited = Command::new("prlimit");
    let checks = doctor(limited.arg("--memlock=65536:65536").arg(ferrite().get_program()));
    let locked = find(&checks, "locked memory");
    assert_eq!(
        (&locked["state"], &locked["found"]),
        (&"missing".into(), &"64.0 KiB".into())
    );
    assert!(locked["mend"].as_str().unwrap().contains("LimitMEMLOCK"), "{locked}");
}

/// The doctor names segments that a killed process left, and the next user of shared memory removes them.
#[test]
fn the_doctor_finds_what_killed_processes_left() {
    if !has("shm") {
        return;
    }
    let mut served = Served::new("fabric://127.0.0.1:0?provider=shm");
    ok(ferrite().arg("ls").arg(served.at("shm", "/")));
    let mine = format!("-{}:", served.process.id());
    let is_there = || {
        let names = std::fs::read_dir("/dev/shm").unwrap().flatten();
        names
            .map(|entry| entry.file_name())
            .any(|name| name.to_string_lossy().contains(&mine))
    };
    assert!(is_there(), "the server has an endpoint");
    served.process.kill().unwrap();
    served.process.wait().unwrap();
    let checks = doctor(&mut ferrite());
    // Another test may have swept since.
    if is_there() {
        assert_eq!(find(&checks, "left in shm")["state"], "missing");
    }
    let next = Served::new("fabric://127.0.0.1:0?provider=shm");
    ok(ferrite().arg("ls").arg(next.at("shm", "/")));
    assert!(!is_there(), "nobody has removed it");
}
