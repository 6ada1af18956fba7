//! Copying the content of a file: large pieces, several under way, holes kept. Files of one volume share blocks where
//! it can do that.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::place::{Open, Result, Why};
use crate::progress::Bytes;

/// Bytes per read and write.
pub(super) const PIECE_BYTES: usize = 4 << 20;
const BECAME_SHORTER: &str = "it became shorter while it was read";
/// Pieces of one file that are under way.
const PIECES: usize = 4;

/// The stop flag and the progress bar of a copy.
pub(super) struct Watch {
    pub(super) bar: Bytes,
    /// Set by a signal that asks to end.
    stop: Arc<AtomicBool>,
}

impl Watch {
    /// Until SIGINT, SIGTERM or SIGHUP. A second signal ends the process at once: it may be waiting for a server.
    pub(super) fn until_signal(bar: Bytes) -> std::io::Result<Watch> {
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&stop))?;
            signal_hook::flag::register(signal, Arc::clone(&stop))?;
        }
        Ok(Watch { bar, stop })
    }

    /// An error if the copy must end.
    pub(super) fn check(&self) -> Result<()> {
        match self.stop.load(Ordering::Relaxed) {
            true => Err(Why::new("interrupted")),
            false => Ok(()),
        }
    }
}

/// The pieces of a file that hold data.
struct Pieces<'f> {
    from: &'f Open,
    len_bytes: u64,
    /// The rest of the range of data that is being handed out.
    at: u64,
    end: u64,
}

impl Pieces<'_> {
    fn next(&mut self) -> Option<(u64, usize)> {
        if self.at == self.end {
            (self.at, self.end) = self.from.data_from(self.end, self.len_bytes)?;
        }
        let len = (self.end - self.at).min(PIECE_BYTES as u64);
        let piece = (self.at, len as usize);
        self.at += len;
        Some(piece)
    }
}

/// Copies all of `from` into `to`, which is empty.
pub(super) fn copy(from: &Open, to: &Open, watch: &Watch) -> Result<()> {
    let len_bytes = from.look()?;
    if len_bytes == 0 {
        // Some files of the kernel have content, but no length.
        let mut offset = 0;
        return stream(
            |buffer| {
                let count = from.read_next(buffer, offset)?;
                offset += count as u64;
                Ok(count)
            },
            to,
            watch,
        );
    }
    watch.bar.expect(len_bytes);
    let pieces = Mutex::new(Pieces {
        from,
        len_bytes,
        at: 0,
        end: 0,
    });
    let (failed, written_end) = (Mutex::new(None), Mutex::new(0));
    let work = || {
        let mut buffer = Vec::new();
        loop {
            // In a statement of its own, to unlock before the copy of the piece.
            let piece = pieces.lock().next();
            let Some((offset, len)) = piece else { return };
            if failed.lock().is_some() {
                return;
            }
            buffer.resize(len, 0);
            if let Err(why) = copy_piece(from, to, offset, &mut buffer, watch) {
                failed.lock().get_or_insert(why);
                return;
            }
            let mut written = written_end.lock();
            *written = offset.saturating_add(len as u64).max(*written);
        }
    };
    match len_bytes <= PIECE_BYTES as u64 {
        true => work(),
        false => std::thread::scope(|scope| {
            for _ in 1..PIECES {
                scope.spawn(work);
            }
            work();
        }),
    }
    if let Some(why) = failed.into_inner() {
        return Err(why);
    }
    // A hole at the end.
    match written_end.into_inner() < len_bytes {
        true => to.set_len(len_bytes),
        false => Ok(()),
    }
}

fn copy_piece(from: &Open, to: &Open, offset: u64, buffer: &mut [u8], watch: &Watch) -> Result<()> {
    watch.check()?;
    if let (Open::There(from), Open::There(to)) = (from, to) {
        share_piece(from, to, offset, buffer.len() as u64)?;
        watch.bar.advance(buffer.len() as u64);
        return Ok(());
    }
    let mut read = 0;
    while read < buffer.len() {
        match from.read_at(&mut buffer[read..], offset + read as u64)? {
            0 => return Err(Why::new(BECAME_SHORTER)),
            count => read += count,
        }
    }
    to.write_all_at(buffer, offset)?;
    watch.bar.advance(buffer.len() as u64);
    Ok(())
}

/// Copies a piece from one file of a volume to another, which may share its blocks.
fn share_piece(from: &ferrite::File, to: &ferrite::File, offset: u64, len: u64) -> Result<()> {
    match to.copy_range(from, offset, offset, len)? {
        count if count == len => Ok(()),
        _ => Err(Why::new(BECAME_SHORTER)),
    }
}

/// Copies the bytes that `read` returns, until it returns none.
fn stream(mut read: impl FnMut(&mut [u8]) -> Result<usize>, to: &Open, watch: &Watch) -> Result<()> {
    let mut buffer = vec![0; PIECE_BYTES];
    let mut offset = 0;
    loop {
        watch.check()?;
        // Gather short reads, so that writes are large.
        let mut len = 0;
        while len < buffer.len() {
            match read(&mut buffer[len..])? {
                0 => break,
                count => len += count,
            }
        }
        if len == 0 {
            return Ok(());
        }
        to.write_all_at(&buffer[..len], offset)?;
        offset += len as u64;
        watch.bar.advance(len as u64);
    }
}

/// Copies standard input into `to`, which is empty.
pub(super) fn copy_input(to: &Open, watch: &Watch) -> Result<()> {
    let mut input = std::io::stdin().lock();
    stream(
        |buffer| {
            loop {
                match input.read(buffer) {
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => watch.check()?,
                    other => return Ok(other?),
                }
            }
        },
        to,
        watch,
    )
}
