//! A pool that is served on a loopback address, for tests without a mount of it. (A process that has files open on such
//! a mount must not start its server itself; see `serve.rs`.)
#![allow(dead_code, reason = "each test binary uses its part")]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Stdio};

use tempfile::TempDir;

use super::{ferrite, mkfs};

/// See the head of this module. Dropping it removes everything.
pub(crate) struct Server {
    base: TempDir,
    pub(crate) pool: PathBuf,
    /// `tcp://HOST:PORT`, or of another scheme.
    pub(crate) address: String,
    words: Vec<String>,
    process: Child,
    /// The server's further output.
    pub(crate) said: BufReader<ChildStdout>,
}

impl Server {
    /// Makes a pool and serves it, with further words for `serve`.
    pub(crate) fn new(size: &str, words: &[&str]) -> Server {
        Server::listening(size, "tcp://127.0.0.1:0", words)
    }

    /// The same over libfabric, through one of its providers.
    pub(crate) fn on_fabric(size: &str, provider: &str, words: &[&str]) -> Server {
        let mut server = Server::listening(size, &format!("fabric://127.0.0.1:0?provider={provider}"), words);
        let place = server.address.trim_start_matches("fabric://");
        let place = place.split(['/', '?']).next().unwrap_or_default();
        server.address = format!("fabric://{place}/?provider={provider}");
        server
    }

    fn listening(size: &str, listen: &str, words: &[&str]) -> Server {
        let base = directory();
        let pool = base.path().join("pool");
        mkfs(&pool, &["--size", size]);
        Server::of(base, pool, listen, words)
    }

    /// Serves a pool that exists.
    pub(crate) fn serving(pool: &str, words: &[&str]) -> Server {
        Server::of(directory(), pool.into(), "tcp://127.0.0.1:0", words)
    }

    fn of(base: TempDir, pool: PathBuf, listen: &str, words: &[&str]) -> Server {
        let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
        let (process, said, address) = start(&pool, listen, &words);
        Server {
            base,
            pool,
            address,
            words,
            process,
            said,
        }
    }

    /// A directory for further files of a test.
    pub(crate) fn scratch(&self) -> PathBuf {
        let path = self.base.path().join("scratch");
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    /// A path in the export, as commands take it.
    pub(crate) fn at(&self, path: &str) -> String {
        format!("{}:{path}", self.address)
    }

    /// Its process.
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Asks it to end, and waits until it has.
    pub(crate) fn stop(&mut self) {
        let id = self.process.id().to_string();
        super::ok(std::process::Command::new("kill").arg(id));
        assert!(self.process.wait().unwrap().success());
    }

    /// Kills it without warning.
    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Starts it again at the same address.
    pub(crate) fn start(&mut self) {
        (self.process, self.said, _) = start(&self.pool, &self.address, &self.words);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn directory() -> TempDir {
    let mut builder = tempfile::Builder::new();
    builder.prefix("ferrite-test-").tempdir_in("/dev/shm").unwrap()
}

fn start(pool: &Path, listen: &str, words: &[String]) -> (Child, BufReader<ChildStdout>, String) {
    let mut process = ferrite()
        .arg("serve")
        .arg(pool)
        .args(["--listen", listen, "--lease", "4"])
        .args(words)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(process.stdout.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    let address = line.rsplit(' ').next().unwrap().trim().trim_end_matches('/').to_owned();
    let scheme = listen.split("://").next().unwrap_or_default();
    assert!(
        address.starts_with(&format!("{scheme}://")),
        "it says where it serves: {line}"
    );
    (process, said, address)
}
