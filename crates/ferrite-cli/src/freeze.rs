//! `ferrite freeze` and `ferrite thaw`: holding the changes of a mount back, so that its pool can be copied.
//!
//! What lives here: the commands, and [`Frost`], the daemon's side of them and of `ferrite copy`.
//!
//! Invariant: a freeze ends by itself: after the time that was asked for, or when whoever copies has gone or says nothing
//! any more. Nobody but a thread of this module waits for that.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ferrite_fs::Engine;
use ferrite_fuse::Freezer;
use parking_lot::Mutex;

use super::control::Request;
use super::target::{Target, not_mounted};
use super::{FAILED, Failure, Outcome, mounts};

/// How long whoever copies may say nothing.
const SILENCE: Duration = Duration::from_secs(60);
/// What it says while it copies, and at the end.
pub(crate) const COPYING: &str = "copying";
pub(crate) const DONE: &str = "done";

/// Hold changes on a mount back, so that its pool can be copied or a snapshot taken
#[derive(Debug, clap::Args)]
#[command(after_help = "\
What lies in the pool's file meanwhile is what an unmount would leave, so any copy or snapshot of it is a sound pool. Programs \
that change something on the mount wait until `ferrite thaw`; reads go on. `ferrite copy` does all of it by itself.

Example:
  ferrite freeze /mnt && lvcreate --snapshot --name backup --size 1G vg/pools; ferrite thaw /mnt")]
pub(crate) struct Freeze {
    /// Directory where a pool is mounted, or the pool
    dir: PathBuf,
    /// Thaw by itself after so many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: u64,
}

/// Let changes on a frozen mount go on
#[derive(Debug, clap::Args)]
pub(crate) struct Thaw {
    /// Directory where a pool is mounted, or the pool
    dir: PathBuf,
}

impl Freeze {
    pub(crate) fn run(self) -> Outcome {
        write_out(&self.dir);
        ask(&self.dir, &Request::Freeze(self.timeout))
    }
}

impl Thaw {
    pub(crate) fn run(self) -> Outcome {
        ask(&self.dir, &Request::Thaw)
    }
}

fn ask(dir: &Path, request: &Request) -> Outcome {
    let answer: Option<bool> = Target::new(dir).ask_patiently(request)?;
    answer.map(|_| 0).ok_or_else(|| not_mounted(dir))
}

/// Has the kernel send what programs stored in shared mappings, as fsfreeze(8) does. It does not wait for all of it: what
/// is to be in a copy for certain needs an `msync`.
pub(crate) fn write_out(path: &Path) {
    let mount = mounts::find(path);
    if let Some(dir) = mount.and_then(|mount| std::fs::File::open(mount.dir).ok()) {
        let _ = rustix::fs::syncfs(dir);
    }
}

/// Who has a mount frozen.
#[derive(Default)]
struct Holder {
    /// The number of the freeze that holds.
    now: Option<u64>,
    last: u64,
}

/// Freezes and thaws a daemon's mount.
#[derive(Clone)]
pub(crate) struct Frost {
    engine: Engine,
    freezer: Freezer,
    holder: Arc<Mutex<Holder>>,
}

impl Frost {
    pub(crate) fn new(engine: Engine, freezer: Freezer) -> Frost {
        Frost {
            engine,
            freezer,
            holder: Arc::default(),
        }
    }

    /// Freezes; returns the number by which this very freeze is ended.
    fn freeze(&self) -> Result<u64, Failure> {
        let mut holder = self.holder.lock();
        if holder.now.is_some() {
            return Err(Failure::new(FAILED, "it is frozen already; `ferrite thaw` ends that"));
        }
        // First those who change something, so that none of them waits within the engine with locks that readers need.
        self.freezer.close();
        if let Err(error) = self.engine.freeze() {
            self.freezer.open();
            return Err(error.into());
        }
        holder.last += 1;
        holder.now = Some(holder.last);
        tracing::info!("frozen");
        Ok(holder.last)
    }

    /// Ends the freeze of this number, or any; false if there is none (any more).
    pub(crate) fn thaw(&self, freeze: Option<u64>) -> Result<bool, Failure> {
        let thawed = {
            let mut holder = self.holder.lock();
            if holder.now.is_none() || freeze.is_some_and(|freeze| holder.now != Some(freeze)) {
                return Ok(false);
            }
            holder.now = None;
            self.engine.thaw()
        };
        self.freezer.open();
        tracing::info!("thawed");
        Ok(thawed.map(|()| true)?)
    }

    /// Freezes until somebody thaws, for so long at most.
    pub(crate) fn freeze_for(&self, most: Duration) -> Result<(), Failure> {
        let freeze = self.freeze()?;
        let frost = self.clone();
        let timer = std::thread::Builder::new().name("thaw".into()).spawn(move || {
            std::thread::sleep(most);
            if frost.thaw(Some(freeze)).unwrap_or(true) {
                tracing::warn!(
                    seconds = most.as_secs(),
                    "the freeze was forgotten, and ended by itself"
                );
            }
        });
        if let Err(error) = timer {
            self.thaw(Some(freeze))?;
            return Err(error.into());
        }
        Ok(())
    }

    /// Freezes for as long as whoever is at the other end of `stream` copies `file` (device and inode number).
    pub(crate) fn hold(&self, mut stream: UnixStream, file: (u64, u64)) -> std::io::Result<()> {
        let freeze = match self.freeze() {
            Ok(freeze) => freeze,
            Err(failure) => return writeln!(stream, "{}", serde_json::json!({ "error": failure.message })),
        };
        let copied = writeln!(stream, "{}", serde_json::json!(file)).and_then(|()| wait_for_copy(&stream));
        let held = self
            .thaw(Some(freeze))
            .map_err(|failure| std::io::Error::other(failure.message))?;
        copied?;
        writeln!(stream, "{held}")
    }
}

/// Returns when the copy is done; an error if whoever makes it is gone, or says nothing.
fn wait_for_copy(stream: &UnixStream) -> std::io::Result<()> {
    stream.set_read_timeout(Some(SILENCE))?;
    let mut lines = BufReader::new(stream);
    loop {
        let mut line = String::new();
        match lines.read_line(&mut line)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            _ if line.trim() == DONE => return Ok(()),
            _ => {}
        }
    }
}
