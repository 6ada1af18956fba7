//! A server in a process of its own, which a test can kill as servers are killed: at any instruction.
//!
//! The child is this very test program, which the environment directs to run the one test that calls
//! [`serve_if_child`]. It ends when its input does, so it does not outlive its parent.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use ferrite_server::ServerOptions;
use rustix::process::{Pid, Signal, kill_process};

use super::{host, mount, serve_at};

const WHAT: &str = "FERRITE_TEST_SERVER";
const READY: &str = "the server is ready";

/// Does a child's work, if this process is one. Must be the whole of a test named `child`.
pub(crate) fn serve_if_child() {
    let Ok(what) = std::env::var(WHAT) else {
        return;
    };
    let [path, address, lease_ms, threads] = what.split('|').collect::<Vec<_>>()[..] else {
        panic!("{WHAT}={what}");
    };
    let engine = mount(Path::new(path));
    let lease = Duration::from_millis(lease_ms.parse().unwrap());
    let options = ServerOptions::default().lease(lease).threads(threads.parse().unwrap());
    let mut server = serve_at(address, Arc::new(engine.clone()), &options);
    println!("{READY}");
    let mut word = [0; 1];
    if std::io::stdin().read(&mut word).unwrap_or(0) == 1 {
        server.stop();
        engine.unmount().unwrap();
        println!("{READY}");
    }
    // Without running drops: open files stay as they are.
    std::process::exit(0);
}

/// A pool, and the child that serves it.
pub(crate) struct Site {
    path: PathBuf,
    pub(crate) address: String,
    lease: Duration,
    threads: usize,
    child: Option<(Child, ChildStdin, BufReader<ChildStdout>)>,
}

impl Site {
    /// Serves a pool that a crash has left, or a new one.
    pub(crate) fn new(path: &Path, lease: Duration, threads: usize) -> Site {
        let listener = std::net::TcpListener::bind((host(), 0)).unwrap();
        let mut site = Site {
            path: path.to_owned(),
            address: listener.local_addr().unwrap().to_string(),
            lease,
            threads,
            child: None,
        };
        drop(listener);
        site.start();
        site
    }

    pub(crate) fn start(&mut self) {
        assert!(self.child.is_none());
        let what = format!(
            "{}|{}|{}|{}",
            self.path.display(),
            self.address,
            self.lease.as_millis(),
            self.threads
        );
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["child", "--exact", "--nocapture"])
            .env(WHAT, what)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut output = BufReader::new(output);
        wait_for_ready(&mut output);
        self.child = Some((child, input, output));
    }

    /// Private memory of the server's process in bytes: without its program, and without the pool it maps.
    #[cfg(target_os = "linux")]
    pub(crate) fn memory_bytes(&self) -> u64 {
        let (child, _, _) = self.child.as_ref().expect("it runs");
        let text = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", child.id())).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("Anonymous:")).unwrap();
        let kib: u64 = line.split_whitespace().next().unwrap().parse().unwrap();
        kib << 10
    }

    /// Stops the server's process for a time.
    pub(crate) fn freeze(&self, time: Duration) {
        let (child, _, _) = self.child.as_ref().expect("it runs");
        let send = |signal| kill_process(Pid::from_child(child), signal).unwrap();
        send(Signal::STOP);
        std::thread::sleep(time);
        send(Signal::CONT);
    }

    /// Kills the server, at any point.
    pub(crate) fn kill(&mut self) {
        let (mut child, _, _) = self.child.take().expect("it runs");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Stops the server, and unmounts the pool.
    pub(crate) fn stop(&mut self) {
        let (mut child, mut input, mut output) = self.child.take().expect("it runs");
        input.write_all(b"s").unwrap();
        wait_for_ready(&mut output);
        assert!(child.wait().unwrap().success());
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if self.child.is_some() {
            self.kill();
        }
    }
}

fn wait_for_ready(output: &mut BufReader<ChildStdout>) {
    let mut line = String::new();
    while !line.contains(READY) {
        line.clear();
        assert!(output.read_line(&mut line).unwrap() > 0, "the server's process ended");
    }
}
