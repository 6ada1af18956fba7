//! Logs in files of servers: in a single file, and in one with several replicas.
//!
//! Invariant: an append whose connection broke is resent. If the first one is there, too, walks recognise it by its
//! number.

use std::time::{Duration, Instant};

use ferrite_client::rdma::{RemoteError, RemoteFile, ReplicatedError, ReplicatedFile, VerbError};
use ferrite_vfs::FsError;

use crate::error::{Error, Result};
use crate::store::Store;

/// A file of a server, by verbs or by requests. See [`RemoteFile`].
pub struct RemoteStore {
    file: RemoteFile,
    timeout: Duration,
}

impl RemoteStore {
    /// A log in this file. If the connection breaks, it resends an append for about this long.
    pub fn new(file: RemoteFile, timeout: Duration) -> RemoteStore {
        RemoteStore { file, timeout }
    }

    /// The file.
    pub fn file(&self) -> &RemoteFile {
        &self.file
    }

    /// Gives the file back.
    pub fn into_file(self) -> RemoteFile {
        self.file
    }
}

fn failed(error: RemoteError) -> Error {
    match error {
        RemoteError::Fs(error) => Error::Fs(error),
        error => Error::Store(Box::new(error)),
    }
}

/// Whether an append may be there, or may succeed when it is tried again. A key that was refused has been replaced; one
/// that the server does not give any more is another error.
fn may_go_well(error: &RemoteError) -> bool {
    match error {
        RemoteError::Unacknowledged => true,
        RemoteError::Fs(FsError::Disconnected | FsError::TimedOut) => true,
        RemoteError::Verb(error) => error.is_of_connection() || matches!(error, VerbError::Access),
        _ => false,
    }
}

impl Store for RemoteStore {
    fn size(&self) -> Result<u64> {
        self.file.size().map_err(failed)
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        self.file.read(offset, into).map_err(failed)
    }

    fn append(&self, data: &[u8]) -> Result<()> {
        let began = Instant::now();
        loop {
            match self.file.append(data).and_then(|()| self.file.flush()) {
                Err(error) if may_go_well(&error) && began.elapsed() < self.timeout => {}
                result => return result.map_err(failed),
            }
        }
    }

    fn store_word(&self, offset: u64, word: u64) -> Result<()> {
        let stored = self.file.write(offset, &word.to_le_bytes());
        stored.and_then(|()| self.file.flush()).map_err(failed)
    }

    fn free(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.file.free(offset, len_bytes).map_err(failed)
    }

    fn append_bytes_max(&self) -> u64 {
        self.file.limits().whole_write_bytes
    }

    fn file_bytes_max(&self) -> u64 {
        self.file.limits().file_bytes_max
    }
}

fn not_replicated(error: ReplicatedError) -> Error {
    Error::Store(Box::new(error))
}

impl Store for ReplicatedFile {
    fn size(&self) -> Result<u64> {
        ReplicatedFile::size(self).map_err(not_replicated)
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        ReplicatedFile::read(self, offset, into).map_err(not_replicated)
    }

    fn append(&self, data: &[u8]) -> Result<()> {
        ReplicatedFile::append(self, data).map(drop).map_err(not_replicated)
    }

    fn store_word(&self, offset: u64, word: u64) -> Result<()> {
        let stored = self.write(offset, &word.to_le_bytes());
        stored.map(drop).map_err(not_replicated)
    }

    fn free(&self, offset: u64, len_bytes: u64) -> Result<()> {
        let freed = ReplicatedFile::free(self, offset, len_bytes);
        freed.map(drop).map_err(not_replicated)
    }

    fn append_bytes_max(&self) -> u64 {
        crate::format::RECORD_BYTES_MAX + crate::format::FRAME_BYTES
    }

    fn file_bytes_max(&self) -> u64 {
        self.bytes_max()
    }
}
