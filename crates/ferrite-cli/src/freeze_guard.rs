//! The daemon's side of `ferrite freeze`, `ferrite thaw` and `ferrite copy`.
//!
//! Contents: [`FreezeGuard`], which holds back the changes of one mount and lets them proceed.
//!
//! Invariant: a freeze ends on its own: after the requested time, or when the copying client has disconnected or sends
//! nothing any more. Only a thread of this module waits for that.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use ferrite::volume::Volume;
use ferrite_fuse::FreezeBarrier;
use parking_lot::Mutex;

use super::{FAILED, Failure};

/// How long a copying client may be silent.
const SILENCE: Duration = Duration::from_secs(60);
/// Messages of the client while it copies, and at the end.
pub(crate) const COPYING: &str = "copying";
pub(crate) const DONE: &str = "done";

/// State of a mount's freezes.
#[derive(Default)]
struct Holder {
    /// The number of the current freeze.
    now: Option<u64>,
    last: u64,
}

/// Freezes and thaws a daemon's mount.
#[derive(Clone)]
pub(crate) struct FreezeGuard {
    volume: Arc<dyn Volume>,
    freeze_barrier: FreezeBarrier,
    holder: Arc<Mutex<Holder>>,
}

impl FreezeGuard {
    pub(crate) fn new(volume: Arc<dyn Volume>, freeze_barrier: FreezeBarrier) -> FreezeGuard {
        FreezeGuard {
            volume,
            freeze_barrier,
            holder: Arc::default(),
        }
    }

    /// Freezes; returns the number that ends this very freeze.
    fn freeze(&self) -> Result<u64, Failure> {
        let mut holder = self.holder.lock();
        if holder.now.is_some() {
            return Err(Failure::new(FAILED, "it is frozen already; run `ferrite thaw` first"));
        }
        // Changing requests first, so that none of them waits inside the engine holding locks that readers need.
        self.freeze_barrier.close();
        if let Err(error) = self.volume.freeze() {
            self.freeze_barrier.open();
            return Err(error.into());
        }
        holder.last += 1;
        holder.now = Some(holder.last);
        tracing::info!("frozen");
        Ok(holder.last)
    }

    /// Ends the freeze of this number, or any; false if no such freeze exists (any more).
    pub(crate) fn thaw(&self, freeze: Option<u64>) -> Result<bool, Failure> {
        let thawed = {
            let mut holder = self.holder.lock();
            if holder.now.is_none() || freeze.is_some_and(|freeze| holder.now != Some(freeze)) {
                return Ok(false);
            }
            holder.now = None;
            self.volume.thaw()
        };
        self.freeze_barrier.open();
        tracing::info!("thawed");
        Ok(thawed.map(|()| true)?)
    }

    /// Freezes until a thaw, but at most for this long.
    pub(crate) fn freeze_for(&self, most: Duration) -> Result<(), Failure> {
        let freeze = self.freeze()?;
        let freeze_guard = self.clone();
        let timer = std::thread::Builder::new().name("thaw".into()).spawn(move || {
            std::thread::sleep(most);
            if freeze_guard.thaw(Some(freeze)).unwrap_or(true) {
                tracing::warn!(
                    seconds = most.as_secs(),
                    "the freeze timed out, and changes are allowed again"
                );
            }
        });
        if let Err(error) = timer {
            self.thaw(Some(freeze))?;
            return Err(error.into());
        }
        Ok(())
    }

    /// Freezes for as long as the client at the other end of `stream` copies `file` (device and inode number).
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

/// Returns when the copy is done; an error if the client is gone, or silent.
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
