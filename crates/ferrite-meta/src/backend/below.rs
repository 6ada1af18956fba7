//! The same files, for a second database beside the first: names below one directory map to names below another.
//!
//! Invariant: it has no state but the two directories.

use crate::rocksdb::{FileError, Files, Reader, Writer};

use super::files::BlobFiles;

/// Files below `from` are those below `to`.
pub(crate) struct Below {
    pub(crate) files: BlobFiles,
    pub(crate) from: &'static [u8],
    pub(crate) to: &'static [u8],
}

impl Below {
    fn at(&self, name: &[u8]) -> Vec<u8> {
        match name.strip_prefix(self.from) {
            Some(rest) => [self.to, rest].concat(),
            None => name.to_vec(),
        }
    }
}

impl Files for Below {
    fn open(&self, name: &[u8], in_order: bool) -> Result<Box<dyn Reader>, FileError> {
        self.files.open(&self.at(name), in_order)
    }

    fn create(&self, name: &[u8]) -> Result<Box<dyn Writer>, FileError> {
        self.files.create(&self.at(name))
    }

    fn append(&self, name: &[u8]) -> Result<Box<dyn Writer>, FileError> {
        self.files.append(&self.at(name))
    }

    fn exists(&self, name: &[u8]) -> Result<bool, FileError> {
        self.files.exists(&self.at(name))
    }

    fn size_bytes(&self, name: &[u8]) -> Result<u64, FileError> {
        self.files.size_bytes(&self.at(name))
    }

    fn free_bytes(&self) -> Result<u64, FileError> {
        self.files.free_bytes()
    }

    fn list(&self, dir: &[u8]) -> Result<Vec<Vec<u8>>, FileError> {
        self.files.list(&self.at(dir))
    }

    fn remove(&self, name: &[u8]) -> Result<(), FileError> {
        self.files.remove(&self.at(name))
    }

    fn rename(&self, from: &[u8], to: &[u8]) -> Result<(), FileError> {
        self.files.rename(&self.at(from), &self.at(to))
    }

    fn lock(&self, name: &[u8]) -> Result<(), FileError> {
        self.files.lock(&self.at(name))
    }

    fn unlock(&self, name: &[u8]) {
        self.files.unlock(&self.at(name));
    }
}
