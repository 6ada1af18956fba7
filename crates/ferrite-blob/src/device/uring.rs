//! Files, block devices and NVMe namespaces, through io_uring.
//!
//! Transfers bypass the page cache where the file system supports that. A durable write is marked as such
//! (`RWF_DSYNC`): the kernel uses the device's own means (FUA), or a flush, or nothing if its cache survives.
//!
//! Invariant: one process uses a device at a time: files are locked, block devices opened exclusively, which also
//! refuses mounted ones.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrite_buffers::Pool;
use rustix::fs::{FlockOperation, OFlags};

use super::namespace::{self, Address};
pub use super::reactor::{Reactor, Waiting};
use super::{Device, Op, Part, Submitting, Transfer, failed};
use crate::{Error, PAGE_BYTES, Result};

/// A ring keeps its files, and so their locks, for moments after its process has ended.
const RINGS_END_WITHIN: Duration = Duration::from_secs(3);

/// How a device is opened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// Read only.
    pub read_only: bool,
    /// Pages of a file or device are written whole or not at all, also when power is lost. `None`: ask the device, and
    /// trust no file.
    pub whole_pages: Option<bool>,
}

/// See the module's head.
pub struct Uring {
    name: Arc<str>,
    file: File,
    at: Address,
    /// Of a character device: its block device, held open.
    _block: Option<File>,
    len_bytes: u64,
    whole_pages: bool,
    reactor: Arc<Reactor>,
}

impl Uring {
    /// Opens a file, a block device, or the character device of an NVMe namespace.
    ///
    /// # Errors
    /// [`Error::Refused`], with the reason: missing, no file or block device, blocks too large. [`Error::InUse`] if it
    /// is mounted, or another process has it.
    pub fn open(path: &Path, reactor: &Arc<Reactor>, options: &Options) -> Result<Uring> {
        let refused = |error: io::Error| Error::Refused(format!("{}: {error}", path.display()));
        let found = std::fs::metadata(path).map_err(refused)?;
        let is_block = found.file_type().is_block_device();
        let (file, commands) = open_device(path, &found, options)?;
        lock(&file, path, options)?;
        let len_bytes = match &commands {
            Some(commands) => commands.len_bytes,
            None => rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0)).map_err(|error| refused(error.into()))?,
        };
        let queue = match &commands {
            Some(commands) => Some(commands.queue.clone()),
            None => is_block.then(|| queue_of(found.rdev())).flatten(),
        };
        let promises = writes_pages_whole(queue.as_deref(), path)?;
        let number = reactor.attach(file.as_fd()).map_err(refused)?;
        Ok(Uring {
            name: path.display().to_string().into(),
            file,
            at: Address {
                file: number,
                namespace: commands.as_ref().map(|commands| commands.namespace),
            },
            _block: commands.map(|commands| commands.block),
            len_bytes,
            whole_pages: options.whole_pages.unwrap_or(promises),
            reactor: Arc::clone(reactor),
        })
    }

    /// Makes a file of this size, all of which is allocated, for [`Self::open`].
    ///
    /// # Errors
    /// [`Error::Refused`] if it exists and holds something, or space is lacking.
    pub fn create(path: &Path, len_bytes: u64) -> Result<()> {
        let refused = |text: String| Error::Refused(format!("{}: {text}", path.display()));
        let file = File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(|error| refused(error.to_string()))?;
        let flags = rustix::fs::FallocateFlags::empty();
        rustix::fs::fallocate(&file, flags, 0, len_bytes).map_err(|error| refused(error.to_string()))
    }

    /// Allocates all of it, if it is a file, so that no write needs space of the file system below. Its content stays.
    ///
    /// # Errors
    /// [`Error::Refused`] if space is lacking.
    pub fn allocate(&self) -> Result<()> {
        let refused = |error: io::Error| Error::Refused(format!("{}: {error}", self.name));
        let found = self.file.metadata().map_err(refused)?;
        if !found.is_file() || found.blocks().saturating_mul(512) >= self.len_bytes {
            return Ok(());
        }
        let flags = rustix::fs::FallocateFlags::empty();
        match rustix::fs::fallocate(&self.file, flags, 0, self.len_bytes) {
            // Some file systems cannot.
            Err(rustix::io::Errno::OPNOTSUPP) => Ok(()),
            done => done.map_err(|error| refused(error.into())),
        }
    }
}

fn in_use(path: &Path, by: &str, mend: &'static str) -> Error {
    Error::InUse {
        device: path.display().to_string(),
        by: by.into(),
        mend,
    }
}

/// Opens a file, a block device, or a namespace's character device together with its block device, bypassing the page
/// cache where possible.
fn open_device(path: &Path, found: &std::fs::Metadata, options: &Options) -> Result<(File, Option<namespace::Opened>)> {
    let refused = |text: String| Error::Refused(format!("{}: {text}", path.display()));
    let is_block = found.file_type().is_block_device();
    let block = namespace::block_device_of(path);
    if !is_block && block.is_none() && !found.is_file() {
        return Err(refused(
            "neither a file nor a block device, nor an NVMe namespace".into(),
        ));
    }
    let open = |flags: OFlags| {
        File::options()
            .read(true)
            .write(!options.read_only)
            .custom_flags(flags.bits() as i32)
            .open(path)
    };
    // Exclusive use of a block device refuses mounted ones.
    let exclusive = if is_block { OFlags::EXCL } else { OFlags::empty() };
    let said = |error: io::Error| match is_busy(&error) {
        true => in_use(path, "a mount or another program", "stop that first"),
        false => refused(error.to_string()),
    };
    let file = match retry_while_busy(|| open(OFlags::DIRECT | exclusive)) {
        // Some file systems in memory have no direct transfers, and need none; character devices have no such mode.
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::INVAL.raw_os_error()) => open(exclusive),
        other => other,
    };
    let file = file.map_err(said)?;
    let commands = block.map(|block| retry_while_busy(|| namespace::open(&file, &block)));
    let commands = commands.transpose().map_err(said)?;
    Ok((file, commands))
}

/// Keeps other processes from using the device; those that only read share it.
fn lock(file: &File, path: &Path, options: &Options) -> Result<()> {
    let lock = match options.read_only {
        true => FlockOperation::NonBlockingLockShared,
        false => FlockOperation::NonBlockingLockExclusive,
    };
    let start = Instant::now();
    while rustix::fs::flock(file, lock).is_err() {
        if start.elapsed() > RINGS_END_WITHIN {
            return Err(in_use(path, "another process, as a data store", "close it there first"));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Whether the device with this queue promises to write a page whole or not at all, also when power is lost. An error
/// if its blocks are larger than pages.
fn writes_pages_whole(queue: Option<&Path>, path: &Path) -> Result<bool> {
    let number = |name: &str| -> Option<u64> {
        let text = std::fs::read_to_string(queue?.join(name)).ok()?;
        text.trim().parse().ok()
    };
    let block = number("logical_block_size").unwrap_or(512);
    if block > PAGE_BYTES as u64 {
        return Err(Error::Refused(format!(
            "{}: its blocks have {block} bytes; a store needs {PAGE_BYTES} or fewer",
            path.display()
        )));
    }
    let is_whole = |bytes: u64| bytes >= PAGE_BYTES as u64;
    Ok(block == PAGE_BYTES as u64 || number("atomic_write_unit_max_bytes").is_some_and(is_whole))
}

/// Retries while another process has it, which may just have ended.
fn retry_while_busy<T>(mut open: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let start = Instant::now();
    loop {
        match open() {
            Err(error) if is_busy(&error) && start.elapsed() < RINGS_END_WITHIN => {
                std::thread::sleep(Duration::from_millis(5));
            }
            other => return other,
        }
    }
}

fn is_busy(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::BUSY.raw_os_error())
}

/// The directory of a block device's queue; that of the whole device, if it is a partition.
fn queue_of(device: u64) -> Option<PathBuf> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let dir = std::fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    let own = dir.join("queue");
    if own.is_dir() {
        Some(own)
    } else {
        Some(dir.parent()?.join("queue"))
    }
}

impl Device for Uring {
    fn name(&self) -> &str {
        &self.name
    }

    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn is_cut_off(&self) -> bool {
        let found = self.file.metadata();
        found.is_ok_and(|found| found.is_file() && found.len() < self.len_bytes)
    }

    fn writes_whole_pages(&self) -> bool {
        self.whole_pages
    }

    fn submitting(&self) -> Option<&dyn Submitting> {
        Some(self)
    }

    fn run(&self, batch: &mut [Op<'_>]) -> Result<()> {
        if let Some(most) = self.command_bytes_max()
            && batch
                .iter()
                .any(|op| op.range().is_some_and(|range| range.end - range.start > most as u64))
        {
            let mut parts: Vec<Op<'_>> = batch.iter_mut().flat_map(|op| parts_of(op, most)).collect();
            return self.run(&mut parts);
        }
        let results = self.reactor.run(self.at, batch);
        for (op, result) in batch.iter_mut().zip(results) {
            self.finish(op, result)?;
        }
        Ok(())
    }
}

impl Submitting for Uring {
    fn submit(&self, mut transfer: Transfer) {
        if let Some(most) = self.command_bytes_max() {
            let cut = |part: Part| {
                let starts = part.bytes.clone().step_by(most);
                starts.map(move |start| Part {
                    offset: part.offset + (start - part.bytes.start) as u64,
                    bytes: start..part.bytes.end.min(start + most),
                })
            };
            transfer.parts = transfer.parts.into_iter().flat_map(cut).collect();
        }
        self.reactor.submit(self.at, Arc::clone(&self.name), transfer);
    }

    fn know_buffers(&self, pool: &Pool) {
        self.reactor.know_buffers(pool);
    }
}

/// An operation as several, none longer than `most`.
fn parts_of<'p>(op: &'p mut Op<'_>, most: usize) -> Vec<Op<'p>> {
    match op {
        Op::Read { offset, into } => into
            .chunks_mut(most)
            .enumerate()
            .map(|(index, into)| Op::Read {
                offset: *offset + (index * most) as u64,
                into,
            })
            .collect(),
        Op::Write { offset, from, durable } => from
            .chunks(most)
            .enumerate()
            .map(|(index, from)| Op::Write {
                offset: *offset + (index * most) as u64,
                from,
                durable: *durable,
            })
            .collect(),
        Op::Flush => vec![Op::Flush],
    }
}

impl Uring {
    /// Longest operation, if there is a bound.
    fn command_bytes_max(&self) -> Option<usize> {
        self.at.namespace.map(|namespace| namespace.command_bytes_max)
    }

    /// Judges a result; a partial transfer continues.
    fn finish(&self, op: &mut Op<'_>, result: i32) -> Result<()> {
        let mut done = match (usize::try_from(result), &op) {
            (Err(_), _) => return self.again(op, result),
            (Ok(_), Op::Flush) => return Ok(()),
            (Ok(count), _) => count,
        };
        let range = op.range().unwrap_or(0..0);
        let wanted = (range.end - range.start) as usize;
        while done < wanted {
            let at = range.start + done as u64;
            let mut rest = match op {
                Op::Read { into, .. } => Op::Read {
                    offset: at,
                    into: &mut into[done..],
                },
                Op::Write { from, durable, .. } => Op::Write {
                    offset: at,
                    from: &from[done..],
                    durable: *durable,
                },
                Op::Flush => return Ok(()),
            };
            let result = self.reactor.run(self.at, std::slice::from_mut(&mut rest));
            match result.first().copied().map(usize::try_from) {
                Some(Ok(count)) if count > 0 => done += count,
                Some(Err(_)) => return self.again(&mut rest, result[0]),
                _ => return Err(failed(self, op, "it was cut short")),
            }
        }
        Ok(())
    }

    fn again(&self, op: &mut Op<'_>, result: i32) -> Result<()> {
        let error = io::Error::from_raw_os_error(-result);
        match error.kind() {
            io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock => self.run(std::slice::from_mut(op)),
            _ => Err(failed(self, op, error)),
        }
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        self.reactor.detach(self.at.file);
        // The lock goes with the file, which the ring may keep for moments.
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}
