//! `RawFile`: an open file without buffering. The Python class `ferrite.File` wraps it.
//!
//! Invariant: a call that has begun keeps the file open until it ends; closing waits for nothing.

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrite::{FallocateMode, File, LockKind, Wait};
use parking_lot::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::buffer;
use crate::error::{not_negative, of_io, of_library, os_error, path_of};
use crate::stat::{StatTuple, stat_tuple};

/// A read of no more bytes gets memory for all of them, without asking how long the file is.
const ASKED_MAX: u64 = 64 << 10;
/// Signals are looked for this often while a lock is waited for.
const LOCK_TURN: Duration = Duration::from_millis(50);

/// An open file without buffering.
#[pyclass(frozen, module = "ferrite._ferrite")]
pub(crate) struct RawFile {
    file: Mutex<Option<Arc<File>>>,
    path: PathBuf,
}

impl RawFile {
    pub(crate) fn new(file: File, path: PathBuf) -> RawFile {
        RawFile {
            file: Mutex::new(Some(Arc::new(file))),
            path,
        }
    }

    fn open(&self) -> PyResult<Arc<File>> {
        let file = self.file.lock().clone();
        file.ok_or_else(|| PyValueError::new_err("I/O operation on closed file"))
    }

    fn run<T: Send>(&self, py: Python<'_>, f: impl FnOnce(&File) -> ferrite::Result<T> + Send) -> PyResult<T> {
        let file = self.open()?;
        // The last use may close the file, which may wait for a server.
        let result = py.detach(move || f(&file));
        result.map_err(|error| of_library(&error))
    }

    fn io<T>(&self, result: io::Result<T>) -> PyResult<T> {
        result.map_err(|error| of_io(&error, &self.path))
    }

    fn offset(&self, offset: i64) -> PyResult<u64> {
        not_negative(offset, "the offset", &self.path)
    }

    /// At most `size` bytes, and no more memory than the file has bytes left at `offset`.
    fn read_bytes<'py>(
        &self,
        py: Python<'py>,
        size: Option<u64>,
        offset: u64,
        read: impl FnOnce(&File, &mut [u8]) -> io::Result<usize> + Send,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let len = match size {
            Some(size) if size <= ASKED_MAX => size,
            _ => {
                let len = self.run(py, File::metadata)?.len().saturating_sub(offset);
                size.map_or(len, |size| size.min(len))
            }
        };
        let file = self.open()?;
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let mut count = 0;
        let bytes = PyBytes::new_with(py, len, |space| {
            count = self.io(py.detach(|| read(&file, space)))?;
            Ok(())
        })?;
        match count < len {
            true => Ok(PyBytes::new(py, &bytes.as_bytes()[..count])),
            false => Ok(bytes),
        }
    }

    /// Takes a lock by `attempt`, for as long as `timeout` says, and notices signals meanwhile.
    fn take_lock(
        &self,
        py: Python<'_>,
        blocking: bool,
        timeout: Option<f64>,
        attempt: impl Fn(&File, Wait) -> ferrite::Result<()> + Sync,
    ) -> PyResult<()> {
        let limit = match timeout {
            None => None,
            Some(seconds) => Some(
                Duration::try_from_secs_f64(seconds)
                    .map_err(|_| PyValueError::new_err("timeout must be a number of seconds, not negative"))?,
            ),
        };
        let begin = Instant::now();
        loop {
            let left = limit.map(|limit| limit.saturating_sub(begin.elapsed()));
            let wait = match blocking && left != Some(Duration::ZERO) {
                true => Wait::AtMost(left.map_or(LOCK_TURN, |left| left.min(LOCK_TURN))),
                false => Wait::No,
            };
            let is_last = matches!(wait, Wait::No);
            match self.run(py, |file| attempt(file, wait)) {
                Err(error) if !is_last && error.is_instance_of::<pyo3::exceptions::PyBlockingIOError>(py) => {
                    py.check_signals()?;
                }
                result => return result,
            }
        }
    }
}

fn kind(exclusive: bool) -> LockKind {
    match exclusive {
        true => LockKind::Exclusive,
        false => LockKind::Shared,
    }
}

#[pymethods]
impl RawFile {
    /// Closes the file; calls that have begun finish first. Further calls do nothing.
    fn close(&self, py: Python<'_>) {
        let file = self.file.lock().take();
        py.detach(move || drop(file));
    }

    /// Gives the file a name.
    fn link(&self, py: Python<'_>, path: &[u8]) -> PyResult<()> {
        self.run(py, |file| file.link(path_of(path)))
    }

    /// Reads into a buffer at the position.
    fn readinto(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>) -> PyResult<usize> {
        let file = self.open()?;
        let count = buffer::write(py, buffer, move |space| (&*file).read(space))?;
        self.io(count)
    }

    /// Reads into a buffer at an offset.
    fn preadinto(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>, offset: i64) -> PyResult<usize> {
        let (file, offset) = (self.open()?, self.offset(offset)?);
        let count = buffer::write(py, buffer, move |space| file.read_at(space, offset))?;
        self.io(count)
    }

    /// Reads at the position: at most `size` bytes, all with a negative size.
    fn read<'py>(&self, py: Python<'py>, size: i64) -> PyResult<Bound<'py, PyBytes>> {
        let position = self.tell(py)?;
        self.read_bytes(py, u64::try_from(size).ok(), position, |mut file, space| {
            file.read(space)
        })
    }

    /// Reads at an offset: at most `size` bytes.
    fn pread<'py>(&self, py: Python<'py>, size: i64, offset: i64) -> PyResult<Bound<'py, PyBytes>> {
        let (size, offset) = (not_negative(size, "the size", &self.path)?, self.offset(offset)?);
        self.read_bytes(py, Some(size), offset, move |file, space| file.read_at(space, offset))
    }

    /// Writes at the position, or at the end of a file opened to append.
    fn write(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<usize> {
        let file = self.open()?;
        let count = buffer::read(py, data, move |bytes| (&*file).write(bytes))?;
        self.io(count)
    }

    /// Writes at an offset.
    fn pwrite(&self, py: Python<'_>, data: &Bound<'_, PyAny>, offset: i64) -> PyResult<usize> {
        let (file, offset) = (self.open()?, self.offset(offset)?);
        let count = buffer::read(py, data, move |bytes| file.write_at(bytes, offset))?;
        self.io(count)
    }

    /// Appends atomically; returns the offset of the data.
    fn append(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<u64> {
        let file = self.open()?;
        buffer::read(py, data, move |bytes| file.append(bytes))?.map_err(|error| of_library(&error))
    }

    /// Moves the position.
    #[pyo3(signature = (offset, whence=0))]
    fn seek(&self, py: Python<'_>, offset: i64, whence: i32) -> PyResult<u64> {
        let to = match whence {
            0 => SeekFrom::Start(self.offset(offset)?),
            1 => SeekFrom::Current(offset),
            2 => SeekFrom::End(offset),
            _ => return Err(PyValueError::new_err(format!("whence must be 0, 1 or 2, not {whence}"))),
        };
        let file = self.open()?;
        let position = py.detach(move || (&*file).seek(to));
        self.io(position)
    }

    /// The position.
    fn tell(&self, py: Python<'_>) -> PyResult<u64> {
        self.seek(py, 0, 1)
    }

    /// Sets the length.
    fn truncate(&self, py: Python<'_>, size: i64) -> PyResult<()> {
        let size = not_negative(size, "the size", &self.path)?;
        self.run(py, |file| file.set_len(size))
    }

    /// Allocates, punches or zeroes a range.
    fn fallocate(&self, py: Python<'_>, mode: &str, offset: i64, size: i64, keep_size: bool) -> PyResult<()> {
        let mode = match mode {
            "allocate" => FallocateMode::Allocate { keep_size },
            "punch" => FallocateMode::PunchHole,
            "zero" => FallocateMode::ZeroRange { keep_size },
            _ => {
                let text = format!("mode must be \"allocate\", \"punch\" or \"zero\", not {mode}");
                return Err(PyValueError::new_err(text));
            }
        };
        let (offset, size) = (self.offset(offset)?, not_negative(size, "the size", &self.path)?);
        self.run(py, |file| file.allocate(mode, offset, size))
    }

    /// Makes all changes durable.
    fn fsync(&self, py: Python<'_>) -> PyResult<()> {
        self.run(py, File::sync_all)
    }

    /// Attributes; see `StatTuple` in stat.rs.
    fn stat(&self, py: Python<'_>) -> PyResult<StatTuple> {
        Ok(stat_tuple(&self.run(py, File::metadata)?))
    }

    /// Locks the whole file.
    fn lock(&self, py: Python<'_>, exclusive: bool, blocking: bool, timeout: Option<f64>) -> PyResult<()> {
        let kind = kind(exclusive);
        self.take_lock(py, blocking, timeout, |file, wait| file.lock_with(kind, wait))
    }

    /// Unlocks the whole file.
    fn unlock(&self, py: Python<'_>) -> PyResult<()> {
        self.run(py, File::unlock)
    }

    /// Locks a range of bytes.
    fn lock_range(
        &self,
        py: Python<'_>,
        range: (i64, i64),
        exclusive: bool,
        blocking: bool,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let (kind, range) = (kind(exclusive), self.range(range)?);
        self.take_lock(py, blocking, timeout, |file, wait| {
            file.lock_range(range.clone(), kind, wait)
        })
    }

    /// Unlocks a range of bytes.
    fn unlock_range(&self, py: Python<'_>, range: (i64, i64)) -> PyResult<()> {
        let range = self.range(range)?;
        self.run(py, |file| file.unlock_range(range))
    }
}

impl RawFile {
    fn range(&self, (start, len): (i64, i64)) -> PyResult<std::ops::Range<u64>> {
        let (start, len) = (self.offset(start)?, not_negative(len, "the length", &self.path)?);
        let end = start.checked_add(len).filter(|&end| end <= i64::MAX as u64);
        let end = end.ok_or_else(|| os_error(libc::EOVERFLOW, "the range ends too far away".into(), &self.path))?;
        Ok(start..end)
    }
}
