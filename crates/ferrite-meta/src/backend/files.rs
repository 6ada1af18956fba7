//! RocksDB's files on blobs.
//!
//! Invariants: the table in memory is the one on the device, once a call has returned; a blob that lost its name goes
//! when the file is no longer open. Locks: names before a file's tail, that before the cache's; reads of files without
//! a writer take no lock but the cache's.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::rocksdb::{FileError, Files, Reader, Writer};
use parking_lot::Mutex;

use super::blobs::{BlobError, Blobs};
use super::cache::{BLOCK_BYTES, Cache};
use super::format::{self, Table};
use super::names::Names;
use super::tail::Tail;

/// The length of an in-order reader's requests to the device.
const AHEAD_BYTES: usize = 256 << 10;

impl From<BlobError> for FileError {
    fn from(error: BlobError) -> Self {
        match error {
            BlobError::NotFound => FileError::Corruption("a file's blob is missing".into()),
            BlobError::NoSpace => FileError::NoSpace(error.to_string()),
            BlobError::Corruption(text) => FileError::Corruption(text),
            BlobError::Io(text) => FileError::Io(text),
        }
    }
}

/// Files on blobs. Clones are the same files.
#[derive(Clone)]
pub(crate) struct BlobFiles(Arc<Backend>);

struct Backend {
    device: Arc<Device>,
    directory: Mutex<Directory>,
    locked: Mutex<BTreeSet<Vec<u8>>>,
}

/// The part of a backend that files use.
struct Device {
    blobs: Arc<dyn Blobs>,
    cache: Cache,
}

struct Directory {
    names: Names,
    files: BTreeMap<Vec<u8>, Arc<File>>,
}

struct File {
    device: Arc<Device>,
    id: u64,
    is_log: bool,
    /// All appended bytes, if no writer has it open.
    size_bytes: AtomicU64,
    /// While a writer has it open.
    tail: Mutex<Option<Tail>>,
    /// Its name is removed; its blob follows.
    removed: AtomicBool,
}

impl Drop for File {
    fn drop(&mut self) {
        if *self.removed.get_mut() {
            self.device.cache.forget(self.id);
            // If that fails, the blob is found without a name at the next opening.
            let _ = self.device.blobs.delete(self.id);
        }
    }
}

impl File {
    fn new(device: &Arc<Device>, id: u64, name: &[u8], size_bytes: u64) -> Arc<File> {
        Arc::new(File {
            device: Arc::clone(device),
            id,
            is_log: name.ends_with(b".log"),
            size_bytes: AtomicU64::new(size_bytes),
            tail: Mutex::default(),
            removed: AtomicBool::new(false),
        })
    }

    fn size_bytes(&self) -> u64 {
        let tail = self.tail.lock();
        tail.as_ref()
            .map_or_else(|| self.size_bytes.load(Ordering::Acquire), Tail::size_bytes)
    }

    /// Begins to append. [`Self::end`] ends that.
    fn begin(self: &Arc<Self>) -> Result<Box<dyn Writer>, FileError> {
        let mut tail = self.tail.lock();
        if tail.is_some() {
            return Err(FileError::Locked("another one appends to the file".into()));
        }
        let size_bytes = self.size_bytes.load(Ordering::Acquire);
        *tail = Some(Tail::of(&*self.device.blobs, self.id, self.is_log, size_bytes)?);
        self.device.cache.forget(self.id);
        Ok(Box::new(Open { file: Arc::clone(self) }))
    }

    fn end(&self) -> Result<(), FileError> {
        let mut tail = self.tail.lock();
        if let Some(mut last) = tail.take() {
            let synced = last.sync(&*self.device.blobs, self.id, true);
            self.size_bytes.store(last.size_bytes(), Ordering::Release);
            synced?;
        }
        Ok(())
    }

    fn on_tail<T>(&self, work: impl FnOnce(&mut Tail) -> Result<T, BlobError>) -> Result<T, FileError> {
        match &mut *self.tail.lock() {
            Some(tail) => Ok(work(tail)?),
            None => Err(FileError::Io("the file is closed".into())),
        }
    }

    /// Reads, through the cache if allowed.
    fn read_at(&self, offset: u64, into: &mut [u8], cached: bool) -> Result<usize, FileError> {
        let (blobs, cache) = (&*self.device.blobs, &self.device.cache);
        let tail = self.tail.lock();
        let size_bytes = tail
            .as_ref()
            .map_or_else(|| self.size_bytes.load(Ordering::Acquire), Tail::size_bytes);
        let len = into.len().min(size_bytes.saturating_sub(offset) as usize);
        let into = &mut into[..len];
        if let Some(tail) = &*tail {
            let before = tail.read(into, offset);
            blobs.read_at(self.id, &mut into[..before], offset)?;
            return Ok(len);
        }
        drop(tail);
        if !cached {
            blobs.read_at(self.id, into, offset)?;
            return Ok(len);
        }
        let load = |number: u64| {
            let start = number * BLOCK_BYTES as u64;
            let mut block = vec![0; BLOCK_BYTES.min(size_bytes.saturating_sub(start) as usize)];
            blobs.read_at(self.id, &mut block, start)?;
            Ok(block.into_boxed_slice())
        };
        cache.read(self.id, offset, into, &load)?;
        Ok(len)
    }
}

/// A file that is appended to.
struct Open {
    file: Arc<File>,
}

impl Writer for Open {
    fn append(&self, data: &[u8]) -> Result<(), FileError> {
        let file = &*self.file;
        file.on_tail(|tail| tail.append(&*file.device.blobs, file.id, data))
    }

    fn sync(&self) -> Result<(), FileError> {
        let file = &*self.file;
        file.on_tail(|tail| tail.sync(&*file.device.blobs, file.id, false))
    }

    fn truncate(&self, len_bytes: u64) -> Result<(), FileError> {
        let file = &*self.file;
        file.on_tail(|tail| tail.truncate(&*file.device.blobs, file.id, len_bytes))
    }

    fn size_bytes(&self) -> u64 {
        self.file.size_bytes()
    }

    fn close(&self) -> Result<(), FileError> {
        self.file.end()
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        // RocksDB closes first, and gets errors there.
        let _ = self.file.end();
    }
}

struct AnywhereReader(Arc<File>);

impl Reader for AnywhereReader {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize, FileError> {
        self.0.read_at(offset, into, true)
    }
}

/// Reads ahead, bypassing the cache.
struct InOrderReader {
    file: Arc<File>,
    /// The bytes read, and where they begin.
    ahead: Mutex<(u64, Vec<u8>)>,
}

impl Reader for InOrderReader {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize, FileError> {
        let mut ahead = self.ahead.lock();
        let mut done = 0;
        while done < into.len() {
            let at = offset + done as u64;
            let there = at
                .checked_sub(ahead.0)
                .and_then(|from| ahead.1.get(from as usize..))
                .unwrap_or_default();
            if there.is_empty() {
                let mut bytes = vec![0; AHEAD_BYTES];
                let len = self.file.read_at(at, &mut bytes, false)?;
                if len == 0 {
                    break;
                }
                bytes.truncate(len);
                *ahead = (at, bytes);
                continue;
            }
            let len = there.len().min(into.len() - done);
            into[done..done + len].copy_from_slice(&there[..len]);
            done += len;
        }
        Ok(done)
    }
}

impl Directory {
    /// Writes the new table, and then adopts it.
    fn change(&mut self, blobs: &dyn Blobs, files: BTreeMap<Vec<u8>, Arc<File>>) -> Result<(), FileError> {
        let table: Table = files.iter().map(|(name, file)| (name.clone(), file.id)).collect();
        self.names.write(blobs, &table)?;
        for (name, file) in std::mem::replace(&mut self.files, files) {
            let stays = self.files.get(&name).is_some_and(|now| now.id == file.id);
            if !stays && !self.files.values().any(|now| now.id == file.id) {
                file.removed.store(true, Ordering::Release);
            }
        }
        Ok(())
    }

    fn below<'d>(&'d self, dir: &'d [u8]) -> impl Iterator<Item = (&'d Vec<u8>, &'d [u8])> {
        let dir = dir.strip_suffix(b"/").unwrap_or(dir);
        let names = self.files.range::<[u8], _>((Bound::Included(dir), Bound::Unbounded));
        names
            .map_while(move |(name, _)| Some((name, name.strip_prefix(dir)?)))
            .filter_map(|(name, rest)| Some((name, rest.strip_prefix(b"/")?)))
    }
}

impl BlobFiles {
    /// Opens the backend on a device read-only. Nothing is written.
    ///
    /// # Errors
    /// [`BlobError::NotFound`] if the device has none.
    pub(crate) fn inspect(blobs: Arc<dyn Blobs>, cache_bytes: usize) -> Result<BlobFiles, BlobError> {
        let (names, table) = Names::find(&*blobs)?;
        BlobFiles::of(blobs, cache_bytes, names, table)
    }

    /// Opens the backend on a device, or makes one, and deletes nameless blobs that a crash left.
    ///
    /// # Errors
    /// [`BlobError::NotFound`] if the device has none and none is to be made.
    pub(crate) fn open(blobs: Arc<dyn Blobs>, cache_bytes: usize, create: bool) -> Result<BlobFiles, BlobError> {
        let (names, table) = match Names::find(&*blobs) {
            Err(BlobError::NotFound) if create => (Names::create(&*blobs)?, Table::new()),
            found => found?,
        };
        let files = BlobFiles::of(blobs, cache_bytes, names, table)?;
        let blobs = &files.0.device.blobs;
        let named: BTreeSet<u64> = files.0.directory.lock().files.values().map(|file| file.id).collect();
        for id in blobs.ids()? {
            if !named.contains(&id) && format::file_size(&blobs.metadata(id)?).is_some() {
                blobs.delete(id)?;
            }
        }
        Ok(files)
    }

    fn of(blobs: Arc<dyn Blobs>, cache_bytes: usize, names: Names, table: Table) -> Result<BlobFiles, BlobError> {
        let device = Arc::new(Device {
            cache: Cache::new(cache_bytes),
            blobs,
        });
        let mut files = BTreeMap::new();
        for (name, id) in table {
            let metadata = device.blobs.metadata(id);
            let size_bytes = metadata
                .ok()
                .and_then(|metadata| format::file_size(&metadata))
                .ok_or_else(|| {
                    BlobError::Corruption(format!("{}: its blob {id} is no file", String::from_utf8_lossy(&name)))
                })?;
            let file = File::new(&device, id, &name, size_bytes);
            files.insert(name, file);
        }
        Ok(BlobFiles(Arc::new(Backend {
            device,
            directory: Mutex::new(Directory { names, files }),
            locked: Mutex::default(),
        })))
    }

    /// Bytes of the whole device, and approximately those that may still be written.
    pub(crate) fn space_bytes(&self) -> Result<(u64, u64), BlobError> {
        let blobs = &self.0.device.blobs;
        Ok((blobs.size_bytes()?, blobs.free_bytes()?))
    }

    /// Removes all files below `dir`, and gives their names to those below `by`, in one step.
    pub(crate) fn replace(&self, dir: &[u8], by: &[u8]) -> Result<(), FileError> {
        let mut directory = self.0.directory.lock();
        let files = &directory.files;
        let is_below = |name: &[u8], dir: &[u8]| name.strip_prefix(dir).is_some_and(|rest| rest.starts_with(b"/"));
        let mut left = BTreeMap::new();
        for (name, file) in files {
            if is_below(name, by) {
                left.insert([dir, &name[by.len()..]].concat(), Arc::clone(file));
            } else if !is_below(name, dir) {
                left.insert(name.clone(), Arc::clone(file));
            }
        }
        directory.change(&*self.0.device.blobs, left)
    }

    /// Writes the table of names once more, to its other place: after that, damage of one place loses nothing.
    pub(crate) fn write_names_twice(&self) -> Result<(), FileError> {
        let mut directory = self.0.directory.lock();
        let files = directory.files.clone();
        directory.change(&*self.0.device.blobs, files)
    }

    /// Blocks of random reads that were found in the cache, and those that were not.
    pub(crate) fn cache_counts(&self) -> (u64, u64) {
        self.0.device.cache.counts()
    }

    fn find(&self, name: &[u8]) -> Result<Arc<File>, FileError> {
        self.0
            .directory
            .lock()
            .files
            .get(name)
            .map(Arc::clone)
            .ok_or(FileError::NotFound)
    }
}

impl Files for BlobFiles {
    fn open(&self, name: &[u8], in_order: bool) -> Result<Box<dyn Reader>, FileError> {
        let file = self.find(name)?;
        Ok(if in_order {
            Box::new(InOrderReader {
                file,
                ahead: Mutex::default(),
            })
        } else {
            Box::new(AnywhereReader(file))
        })
    }

    fn create(&self, name: &[u8]) -> Result<Box<dyn Writer>, FileError> {
        let blobs = &*self.0.device.blobs;
        let mut directory = self.0.directory.lock();
        let id = blobs.create(&format::file(0))?;
        let file = File::new(&self.0.device, id, name, 0);
        let mut files = directory.files.clone();
        files.insert(name.to_vec(), Arc::clone(&file));
        // After an error the table may still name it, so its blob stays. If nothing names it, the next opening deletes
        // it.
        directory.change(blobs, files)?;
        file.begin()
    }

    fn append(&self, name: &[u8]) -> Result<Box<dyn Writer>, FileError> {
        match self.find(name) {
            Ok(file) => file.begin(),
            Err(FileError::NotFound) => self.create(name),
            Err(error) => Err(error),
        }
    }

    fn exists(&self, name: &[u8]) -> Result<bool, FileError> {
        let directory = self.0.directory.lock();
        Ok(directory.files.contains_key(name) || directory.below(name).next().is_some())
    }

    fn size_bytes(&self, name: &[u8]) -> Result<u64, FileError> {
        Ok(self.find(name)?.size_bytes())
    }

    fn free_bytes(&self) -> Result<u64, FileError> {
        Ok(self.0.device.blobs.free_bytes()?)
    }

    fn list(&self, dir: &[u8]) -> Result<Vec<Vec<u8>>, FileError> {
        let directory = self.0.directory.lock();
        let first = |rest: &[u8]| rest.split(|&byte| byte == b'/').next().unwrap_or_default().to_vec();
        let parts: BTreeSet<Vec<u8>> = directory.below(dir).map(|(_, rest)| first(rest)).collect();
        Ok(parts.into_iter().collect())
    }

    fn remove(&self, name: &[u8]) -> Result<(), FileError> {
        let mut directory = self.0.directory.lock();
        let mut files = directory.files.clone();
        files.remove(name).ok_or(FileError::NotFound)?;
        directory.change(&*self.0.device.blobs, files)
    }

    fn rename(&self, from: &[u8], to: &[u8]) -> Result<(), FileError> {
        let mut directory = self.0.directory.lock();
        let mut files = directory.files.clone();
        if let Some(file) = files.remove(from) {
            files.insert(to.to_vec(), file);
        } else {
            let moved: Vec<_> = directory
                .below(from)
                .map(|(name, rest)| (name.clone(), rest.to_vec()))
                .collect();
            if moved.is_empty() {
                return Err(FileError::NotFound);
            }
            for (name, rest) in moved {
                if let Some(file) = files.remove(&name) {
                    files.insert([to, b"/", &rest].concat(), file);
                }
            }
        }
        directory.change(&*self.0.device.blobs, files)
    }

    fn lock(&self, name: &[u8]) -> Result<(), FileError> {
        if self.0.locked.lock().insert(name.to_vec()) {
            return Ok(());
        }
        Err(FileError::Locked(
            "this backend has the database open already; share it between threads".into(),
        ))
    }

    fn unlock(&self, name: &[u8]) {
        self.0.locked.lock().remove(name);
    }
}
