//! [`Log`]: appending, rewinding, and reporting the length. Walking is in `walk`.
//!
//! Invariants:
//! * The appends of one [`Log`] run in sequence, so the numbers of a writer grow along the file. A record with a number
//!   that a walk has already met is a copy of an append that was resent.
//! * The header's page is written once; after that only its start changes, and only upwards.

use parking_lot::Mutex;

use crate::error::{Error, Result};
use crate::format::{FIRST_RECORD_AT, FRAME_BYTES, Frame, HEADER, Header, RECORD_BYTES_MAX, START_AT};
use crate::store::Store;
use crate::walk::{self, Walked};

/// Options for opening a log.
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct LogOptions {
    /// Make a log of an empty file.
    pub create: bool,
    /// Bytes that a new log may hold, with [`FRAME_BYTES`] for each append; 0: as many as the file.
    pub capacity: u64,
}

impl LogOptions {
    /// Sets [`Self::create`].
    #[must_use]
    pub fn create(self, create: bool) -> Self {
        LogOptions { create, ..self }
    }

    /// Sets [`Self::capacity`].
    #[must_use]
    pub fn capacity(self, capacity: u64) -> Self {
        LogOptions { capacity, ..self }
    }
}

/// State that appends share.
struct Writer {
    id: u64,
    /// Of its last append.
    number: u64,
}

/// An append-only log in a file. Threads may share one; others, also on other hosts, may have the same file open as a
/// log, too. All calls block.
pub struct Log<S> {
    store: S,
    id: [u8; 16],
    capacity: u64,
    writer: Mutex<Writer>,
    /// Held while the start moves: of two concurrent rewinds, the slower one must not move it back.
    rewinding: Mutex<()>,
}

impl<S: Store> Log<S> {
    /// Opens the log in a file; makes one there if the options ask for that and the file is empty.
    ///
    /// # Errors
    /// `Empty` and `NotALog` if the file has no log; the errors of the file.
    pub fn open(store: S, options: &LogOptions) -> Result<Log<S>> {
        if store.size()? == 0 {
            if !options.create {
                return Err(Error::Empty);
            }
            let header = Header {
                id: ferrite_vfs::random()?,
                capacity: options.capacity,
                start: FIRST_RECORD_AT,
            };
            // At the end: of several concurrent callers one is first. The pages of the others are not records.
            store.append(&header.page())?;
        }
        let header = header(&store)?;
        let id = u64::from_le_bytes(ferrite_vfs::random()?);
        Ok(Log {
            store,
            id: header.id,
            capacity: header.capacity,
            writer: Mutex::new(Writer { id, number: 0 }),
            rewinding: Mutex::new(()),
        })
    }

    /// Appends: all of it, or after a crash perhaps nothing. When it returns it is durable.
    ///
    /// # Errors
    /// `TooLong`; `Full`, which several concurrent appenders may miss by the bytes that they append at that moment; the
    /// errors of the file. After other errors than the first two the bytes may be there: not in part, and not twice.
    pub fn append(&self, data: &[u8]) -> Result<()> {
        self.appendv(&[data])
    }

    /// Appends several parts as one.
    ///
    /// # Errors
    /// As [`Self::append`].
    pub fn appendv(&self, parts: &[&[u8]]) -> Result<()> {
        let len = parts.iter().map(|part| part.len()).sum::<usize>();
        let most = self.append_bytes_max();
        if len as u64 > most {
            let len_bytes = len as u64;
            return Err(Error::TooLong { len_bytes, most });
        }
        if len == 0 {
            return Ok(());
        }
        let mut writer = self.writer.lock();
        let record_bytes = len as u64 + FRAME_BYTES;
        if self.capacity > 0 {
            // Computed each time: others append and rewind, too.
            let (used, capacity) = (self.tell()?, self.capacity);
            if used + record_bytes > capacity {
                return Err(Error::Full { used, capacity });
            }
        }
        writer.number += 1;
        let record = Frame::record(&self.id, writer.id, writer.number, len, parts.iter().copied());
        self.store.append(&record)
    }

    /// Passes the bytes of all appends that had returned when it was called to `take`, in their order, in chunks of
    /// `chunk_bytes`; the last may be shorter. 0: all at once, even if there are none. Ends when `take` returns false.
    ///
    /// # Errors
    /// The errors of the file.
    pub fn walk(&self, chunk_bytes: usize, mut take: impl FnMut(&[u8]) -> bool) -> Result<Walked> {
        let mut gathered = Vec::new();
        let mut goes_on = true;
        let walked = walk::walk(&self.store, &self.id, header(&self.store)?.start, |data| {
            gathered.extend_from_slice(data);
            let mut taken = 0;
            while goes_on && chunk_bytes > 0 && gathered.len() - taken >= chunk_bytes {
                goes_on = take(&gathered[taken..taken + chunk_bytes]);
                taken += chunk_bytes;
            }
            gathered.drain(..taken);
            goes_on
        })?;
        if goes_on && (chunk_bytes == 0 || !gathered.is_empty()) {
            take(&gathered);
        }
        Ok(walked)
    }

    /// The same, append by append.
    ///
    /// # Errors
    /// The errors of the file.
    pub fn walk_appends(&self, take: impl FnMut(&[u8]) -> bool) -> Result<Walked> {
        walk::walk(&self.store, &self.id, header(&self.store)?.start, take)
    }

    /// Empties the log. A concurrent append may or may not survive; afterwards no removed record comes back.
    ///
    /// # Errors
    /// The errors of the file. The log may be empty all the same, and its space not yet free.
    pub fn rewind(&self) -> Result<()> {
        let _alone = self.rewinding.lock();
        let end = self.store.size()?;
        if end > header(&self.store)?.start {
            self.store.store_word(START_AT, end)?;
        }
        // This includes the remains of a rewind that was cut short.
        match end.saturating_sub(FIRST_RECORD_AT) {
            0 => Ok(()),
            len_bytes => self.store.free(FIRST_RECORD_AT, len_bytes),
        }
    }

    /// Bytes that the log holds, with [`FRAME_BYTES`] for each append.
    ///
    /// # Errors
    /// The errors of the file.
    pub fn tell(&self) -> Result<u64> {
        let start = header(&self.store)?.start;
        let size = self.store.size()?;
        size.checked_sub(start).ok_or(Error::Start { start, size })
    }

    /// Bytes that it may hold, counted in the same way.
    pub fn nbyte(&self) -> u64 {
        match self.capacity {
            0 => self.store.file_bytes_max().saturating_sub(FIRST_RECORD_AT),
            capacity => capacity,
        }
    }

    /// The longest append.
    pub fn append_bytes_max(&self) -> u64 {
        self.store
            .append_bytes_max()
            .saturating_sub(FRAME_BYTES)
            .min(RECORD_BYTES_MAX)
    }

    /// The file.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// Gives the file back.
    pub fn into_store(self) -> S {
        self.store
    }
}

fn header(store: &impl Store) -> Result<Header> {
    let mut bytes = [0; HEADER];
    let count = store.read(0, &mut bytes)?;
    let header = Header::read(&bytes[..count])?;
    match header.start < FIRST_RECORD_AT {
        true => Err(Error::Start {
            start: header.start,
            size: store.size()?,
        }),
        false => Ok(header),
    }
}
