//! A pool whose devices and metadata fail on demand, and files whose acknowledged content is known.
//!
//! Invariant: a failed call leaves unknown only what it may have changed.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use ferrite_blob::device::{Device, Faulty, Memory, Op};
use ferrite_blob::{BlobStore, FormatOptions, PAGE_BYTES};
use ferrite_meta::{Lock, MemoryRemote, MetaStore, Owned, OwnedOptions, Owner, Transaction};
use ferrite_nvme::content_store::Blob;
use ferrite_nvme::{NvmeFs, Options};
use ferrite_testkit::rng::{Rng, pattern};
use ferrite_vfs::{Cred, FileSystem, FsError, OpenFile, OpenFlags, OpenMode, RenameMode, SYSTEM, SetAttr, Vfs};
use parking_lot::Mutex;

type Result<T> = ferrite_vfs::Result<T>;

/// Holes read as zeros, and holes and data take turns.
pub(crate) fn check_holes(blob: &dyn Blob, want: &[u8], what: &str) {
    let (mut at, len) = (0, want.len() as u64);
    while at < len {
        let data = blob.next_data(at).unwrap().unwrap_or(len).min(len);
        assert!(
            want[at as usize..data as usize].iter().all(|&byte| byte == 0),
            "{what}: data in a hole at {at}"
        );
        if data == len {
            return;
        }
        at = blob.next_hole(data).unwrap();
        assert!(at > data, "{what}: neither data nor a hole at {data}");
    }
}

/// Runs a test in a thread of its own; one that hangs fails.
pub(crate) fn within(limit: Duration, work: impl FnOnce() + Send + 'static) {
    let (done, wait) = channel();
    let thread = std::thread::spawn(move || {
        work();
        let _ = done.send(());
    });
    match wait.recv_timeout(limit) {
        Err(RecvTimeoutError::Timeout) => panic!("it hangs: not done within {limit:?}"),
        Ok(()) | Err(RecvTimeoutError::Disconnected) => {
            if let Err(panic) = thread.join() {
                std::panic::resume_unwind(panic);
            }
        }
    }
}

/// The shard of the database.
const SHARD: u64 = 1;
/// So few that most reads ask the database.
const CACHE_BYTES: usize = 16 << 10;

/// Metadata in a database in memory; the next commits may fail: before they are done, or after.
pub(crate) struct FailingStore {
    database: Arc<MemoryRemote>,
    /// 0: works. 1: fails. 2: is carried out, and fails. 3: is full, but for steps that delete. 4: refuses one commit
    /// for lack of space. 5: one commit fails. Both come after `left` others.
    mode: AtomicU8,
    left: AtomicU64,
    /// Called once, after the next commit has been carried out and before it returns.
    committed: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl FailingStore {
    fn new() -> FailingStore {
        FailingStore {
            database: Arc::new(MemoryRemote::new()),
            mode: AtomicU8::new(0),
            left: AtomicU64::new(0),
            committed: Mutex::default(),
        }
    }

    /// Takes the shard from its owner, whose time is over.
    fn own(&self) -> Owned<Arc<MemoryRemote>> {
        self.database.move_epoch(SHARD);
        let owner = Owner {
            name: "test".into(),
            address: String::new(),
        };
        let mut options = OwnedOptions::default();
        options.ttl = Duration::from_secs(3600);
        options.renews = false;
        options.cache_bytes = CACHE_BYTES;
        Owned::open(Arc::clone(&self.database), SHARD, &owner, options).unwrap()
    }

    pub(crate) fn fail(&self, is_late: bool) {
        self.mode.store(if is_late { 2 } else { 1 }, Ordering::SeqCst);
    }

    pub(crate) fn fill(&self) {
        self.mode.store(3, Ordering::SeqCst);
    }

    /// One commit is refused for lack of space, after so many others.
    pub(crate) fn refuse_one(&self, after: u64) {
        self.left.store(after, Ordering::SeqCst);
        self.mode.store(4, Ordering::SeqCst);
    }

    /// One commit fails, after so many others.
    pub(crate) fn fail_one(&self, after: u64) {
        self.left.store(after, Ordering::SeqCst);
        self.mode.store(5, Ordering::SeqCst);
    }

    /// Whether that has happened.
    pub(crate) fn is_spent(&self) -> bool {
        self.mode.load(Ordering::SeqCst) == 0
    }

    /// Counts a commit down; whether it is the one that goes wrong.
    fn is_due(&self) -> bool {
        let is_due = self.left.load(Ordering::SeqCst) == 0;
        match is_due {
            true => self.mend(),
            false => drop(self.left.fetch_sub(1, Ordering::SeqCst)),
        }
        is_due
    }

    pub(crate) fn mend(&self) {
        self.mode.store(0, Ordering::SeqCst);
    }

    /// See `committed`.
    pub(crate) fn after_next_commit(&self, work: impl FnOnce() + Send + 'static) {
        *self.committed.lock() = Some(Box::new(work));
    }
}

/// One opening's access to the pool. An engine that was dropped as by a crash may still be at work in a thread; none of
/// its writes arrive.
struct Opening<T> {
    of: Arc<T>,
    is_over: Arc<AtomicBool>,
}

/// The same of the metadata: each opening is an owner of its own, with an empty cache.
struct Tenancy {
    of: Arc<FailingStore>,
    store: Owned<Arc<MemoryRemote>>,
    is_over: Arc<AtomicBool>,
}

struct FailingTransaction<'s> {
    inner: Box<dyn Transaction + 's>,
    of: &'s FailingStore,
    is_over: &'s AtomicBool,
    deletes: bool,
    is_admitted: bool,
}

type Visit<'v> = &'v mut dyn FnMut(&[u8], &[u8]) -> ControlFlow<()>;

impl MetaStore for Tenancy {
    fn begin(&self) -> Box<dyn Transaction + '_> {
        Box::new(FailingTransaction {
            inner: self.store.begin(),
            of: &self.of,
            is_over: &self.is_over,
            deletes: false,
            is_admitted: false,
        })
    }

    fn get(&self, key: &[u8]) -> ferrite_meta::Result<Option<Vec<u8>>> {
        self.store.get(key)
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: Visit<'_>) -> ferrite_meta::Result<()> {
        self.store.scan(from, to, visit)
    }

    fn sync(&self) -> ferrite_meta::Result<()> {
        self.store.sync()
    }
}

impl Transaction for FailingTransaction<'_> {
    fn get(&self, key: &[u8]) -> ferrite_meta::Result<Option<Vec<u8>>> {
        self.inner.get(key)
    }

    fn get_for_update(&mut self, key: &[u8], lock: Lock) -> ferrite_meta::Result<Option<Vec<u8>>> {
        self.inner.get_for_update(key, lock)
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> ferrite_meta::Result<()> {
        self.inner.put(key, value)
    }

    fn delete(&mut self, key: &[u8]) -> ferrite_meta::Result<()> {
        self.deletes = true;
        self.inner.delete(key)
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: Visit<'_>) -> ferrite_meta::Result<()> {
        self.inner.scan(from, to, visit)
    }

    fn savepoint(&mut self) {
        self.inner.savepoint();
    }

    fn rollback_to_savepoint(&mut self) -> ferrite_meta::Result<()> {
        self.inner.rollback_to_savepoint()
    }

    fn admit(&mut self) -> ferrite_meta::Result<()> {
        if self.is_over.load(Ordering::SeqCst) {
            return Ok(());
        }
        let is_full = match self.of.mode.load(Ordering::SeqCst) {
            3 => !self.deletes,
            4 => self.of.is_due(),
            _ => false,
        };
        match is_full {
            true => Err(ferrite_meta::Error::NoSpace("the store is full".into())),
            false => {
                self.is_admitted = true;
                Ok(())
            }
        }
    }

    fn commit(mut self: Box<Self>) -> ferrite_meta::Result<()> {
        if !self.is_admitted {
            self.admit()?;
        }
        let mode = match self.is_over.load(Ordering::SeqCst) {
            true => 1,
            false => match self.of.mode.load(Ordering::SeqCst) {
                5 if self.of.is_due() => 1,
                4 | 5 => 0,
                mode => mode,
            },
        };
        if mode != 1 {
            self.inner.commit()?;
        }
        match mode {
            0 | 3 => {
                let work = self.of.committed.lock().take();
                work.into_iter().for_each(|work| work());
                Ok(())
            }
            _ => Err(ferrite_meta::Error::Io("input/output error".into())),
        }
    }
}

impl<D: Device> Device for Opening<D> {
    fn name(&self) -> &str {
        self.of.name()
    }

    fn len_bytes(&self) -> u64 {
        self.of.len_bytes()
    }

    fn writes_whole_pages(&self) -> bool {
        self.of.writes_whole_pages()
    }

    fn run(&self, batch: &mut [Op<'_>]) -> ferrite_blob::Result<()> {
        match self.is_over.load(Ordering::SeqCst) {
            true => Err(ferrite_blob::Error::Stopped("the process has ended".into())),
            false => self.of.run(batch),
        }
    }
}

/// Where things are on a device, in bytes (docs/format-blob.md).
#[derive(Debug, Clone)]
pub(crate) struct Areas {
    pub(crate) slots: Range<u64>,
    pub(crate) ring: Range<u64>,
    /// Empty without checksums of data.
    pub(crate) sums: Range<u64>,
    pub(crate) data: Range<u64>,
}

/// A pool that can be opened again and again.
pub(crate) struct Pool {
    pub(crate) meta: Arc<FailingStore>,
    pub(crate) devices: Vec<Arc<Faulty<Memory>>>,
    /// Of the last opening: whether it is over.
    last: Mutex<Arc<AtomicBool>>,
}

impl Pool {
    pub(crate) fn new(devices: usize, mib: u64, tears: bool) -> Pool {
        Pool::with(devices, mib, tears, false)
    }

    /// With checksums of data, or without.
    pub(crate) fn with(devices: usize, mib: u64, tears: bool, checksums: bool) -> Pool {
        let meta = Arc::new(FailingStore::new());
        ferrite_nvme::format(&meta.own(), [7; 16], [9; 16], devices as u16).unwrap();
        let device = |index: usize| {
            // Arbitrary old contents.
            let device = Memory::of(vec![0xee; (mib << 20) as usize]);
            let device = if tears { device.tearing() } else { device };
            let options = FormatOptions {
                store: [index as u8; 16],
                pool: [7; 16],
                index: index as u16,
                checksums,
                shares_clusters: tears == checksums,
            };
            BlobStore::format(&device, &options).unwrap();
            Arc::new(Faulty::new(device))
        };
        Pool {
            meta,
            devices: (0..devices).map(device).collect(),
            last: Mutex::default(),
        }
    }

    /// Any earlier opening is over.
    pub(crate) fn open(&self) -> Result<NvmeFs> {
        self.assemble(None, None)
    }

    /// Without one of its devices.
    pub(crate) fn open_without(&self, device: usize) -> Result<NvmeFs> {
        self.assemble(None, Some(device))
    }

    /// With another store of metadata.
    #[cfg(feature = "rocksdb")]
    pub(crate) fn open_with(&self, meta: Box<dyn MetaStore>) -> Result<NvmeFs> {
        self.assemble(Some(meta), None)
    }

    fn assemble(&self, meta: Option<Box<dyn MetaStore>>, without: Option<usize>) -> Result<NvmeFs> {
        let is_over = Arc::new(AtomicBool::new(false));
        std::mem::replace(&mut *self.last.lock(), Arc::clone(&is_over)).store(true, Ordering::SeqCst);
        let mut stores = Vec::new();
        for (index, device) in self.devices.iter().enumerate() {
            let device = Opening {
                of: Arc::clone(device),
                is_over: Arc::clone(&is_over),
            };
            stores.push(match without == Some(index) {
                true => None,
                false => Some(BlobStore::open(Box::new(device), false)?),
            });
        }
        let meta = meta.unwrap_or_else(|| {
            Box::new(Tenancy {
                of: Arc::clone(&self.meta),
                store: self.meta.own(),
                is_over,
            })
        });
        let mut options = Options::default();
        options.small_bytes_max = 2048;
        ferrite_nvme::assemble(meta, stores, options)
    }

    pub(crate) fn image_bytes(&self, device: usize) -> u64 {
        self.devices[device].device().image().len() as u64
    }

    /// The areas of the first device; all have the same.
    pub(crate) fn areas(&self) -> Areas {
        let image = self.devices[0].device().image();
        let field = |at: usize| u64::from(u32::from_le_bytes(image[at..at + 4].try_into().unwrap()));
        let (slots, overflow) = (field(64), field(68));
        let page = PAGE_BYTES as u64;
        let ring = 1 + 2 * slots + overflow;
        let (sums, sum_pages) = (ring + 256, field(88));
        let data = (sums + sum_pages).next_multiple_of(256);
        Areas {
            slots: page..(1 + 2 * slots) * page,
            ring: ring * page..(ring + 256) * page,
            sums: sums * page..(sums + sum_pages) * page,
            data: data * page..image.len() as u64 - page,
        }
    }
}

fn vfs(fs: &NvmeFs) -> Vfs {
    Vfs::new(Arc::new(fs.clone()), Cred::root())
}

fn path(name: &str) -> Vec<u8> {
    format!("/{name}").into_bytes()
}

/// Bytes that identify their number.
pub(crate) fn content(number: u64, len: usize) -> Vec<u8> {
    pattern(number as u32 + 1, len)
}

/// The names in a directory.
pub(crate) fn names_in(fs: &NvmeFs, dir: &str) -> Vec<String> {
    let mut names = Vec::new();
    vfs(fs)
        .readdir(&path(dir), 0, &mut |entry| {
            names.push(String::from_utf8_lossy(entry.name).into_owned());
            true
        })
        .unwrap();
    names.retain(|name| name != "." && name != "..");
    names
}

pub(crate) fn ino_of(fs: &NvmeFs, name: &str) -> u64 {
    vfs(fs).stat(&path(name), true).unwrap().ino
}

/// Writes into a file, which is made if it is missing.
pub(crate) fn put(fs: &NvmeFs, name: &str, offset: u64, data: &[u8]) -> Result<()> {
    let flags = OpenFlags {
        write: true,
        create: true,
        mode: 0o644,
        ..OpenFlags::default()
    };
    vfs(fs)
        .open(&path(name), &flags)?
        .write_at(SYSTEM, offset, data)
        .map(drop)
}

pub(crate) fn open(fs: &NvmeFs, name: &str, mode: OpenMode) -> Result<Arc<dyn OpenFile>> {
    let flags = OpenFlags {
        read: mode.read,
        write: mode.write,
        ..OpenFlags::default()
    };
    vfs(fs).open(&path(name), &flags)
}

pub(crate) fn read(fs: &NvmeFs, name: &str) -> Result<Vec<u8>> {
    let flags = OpenFlags {
        read: true,
        ..OpenFlags::default()
    };
    let file = vfs(fs).open(&path(name), &flags)?;
    let mut bytes = vec![0; file.getattr(SYSTEM)?.size as usize];
    let count = file.read_at(SYSTEM, 0, &mut bytes)?;
    bytes.truncate(count);
    Ok(bytes)
}

pub(crate) fn unlink(fs: &NvmeFs, name: &str) -> Result<()> {
    vfs(fs).unlink(&path(name))
}

pub(crate) fn chmod(fs: &NvmeFs, name: &str, mode: u32) -> Result<()> {
    let set = SetAttr {
        mode: Some(mode),
        ..SetAttr::default()
    };
    vfs(fs).setattr(&path(name), &set, true).map(drop)
}

pub(crate) fn rename(fs: &NvmeFs, from: &str, to: &str, mode: RenameMode) -> Result<()> {
    vfs(fs).rename(&path(from), &path(to), mode)
}

/// The check finds nothing.
pub(crate) fn sound(fs: &NvmeFs, what: &str) {
    let report = fs.check().unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(report.findings.is_empty(), "{what}: {:#?}", report.findings);
}

/// The known state of a file.
#[derive(Default)]
struct Known {
    bytes: Vec<u8>,
    /// A failed call may have written this byte.
    is_unsure: Vec<bool>,
    /// Failed calls may have made it longer, up to this.
    other_len: Option<usize>,
}

impl Known {
    fn resize(&mut self, len: usize) {
        self.bytes.resize(len, 0);
        self.is_unsure.resize(len, false);
    }

    fn check(&self, found: &[u8], what: &str) {
        let longest = self.other_len.unwrap_or(0).max(self.bytes.len());
        let is_right = (self.bytes.len()..=longest).contains(&found.len());
        assert!(
            is_right,
            "{what}: {} bytes, not {} or {:?}",
            found.len(),
            self.bytes.len(),
            self.other_len
        );
        for (at, (byte, want)) in found.iter().zip(&self.bytes).enumerate() {
            assert!(
                byte == want || self.is_unsure[at],
                "{what}: byte {at} is {byte}, not {want}"
            );
        }
    }
}

/// Files that random work is done with.
pub(crate) struct Files {
    known: Vec<(String, Known)>,
    rng: Rng,
    made: u64,
}

impl Files {
    pub(crate) fn new(seed: u64) -> Files {
        Files {
            known: Vec::new(),
            rng: Rng::new(seed ^ 0xf11e),
            made: 0,
        }
    }

    /// Does something. Calls on names and nodes alone must succeed, whatever happens to data devices.
    pub(crate) fn step(&mut self, fs: &NvmeFs, what: &str) -> Result<()> {
        let must = |done: Result<()>| done.unwrap_or_else(|error| panic!("{what}: {error}"));
        if self.known.len() < 6 {
            self.made += 1;
            let name = format!("f{}", self.made);
            must(put(fs, &name, 0, b"first"));
            let mut known = Known::default();
            known.resize(5);
            known.bytes.copy_from_slice(b"first");
            self.known.push((name, known));
        }
        let at = self.rng.below(self.known.len() as u64) as usize;
        match self.rng.below(12) {
            0 => {
                let (name, _) = self.known.swap_remove(at);
                must(unlink(fs, &name));
                Ok(())
            }
            1 => {
                self.made += 1;
                let name = format!("f{}", self.made);
                must(rename(fs, &self.known[at].0, &name, RenameMode::Replace));
                self.known[at].0 = name;
                Ok(())
            }
            2 => self.truncate(fs, at),
            3 | 4 => {
                let (name, known) = &self.known[at];
                known.check(&read(fs, name)?, &format!("{what}: {name}"));
                Ok(())
            }
            _ => self.write(fs, at),
        }
    }

    fn truncate(&mut self, fs: &NvmeFs, at: usize) -> Result<()> {
        let len = self.rng.below(40_000);
        let (name, known) = &mut self.known[at];
        let set = SetAttr {
            size: Some(len),
            ..SetAttr::default()
        };
        vfs(fs).setattr(&path(name), &set, true)?;
        known.resize(len as usize);
        known.other_len = None;
        Ok(())
    }

    fn write(&mut self, fs: &NvmeFs, at: usize) -> Result<()> {
        let (name, known) = &mut self.known[at];
        let old = known.bytes.len();
        let len = 1 + match self.rng.below(3) {
            0 => self.rng.below(300),
            1 => self.rng.below(5_000),
            _ => self.rng.below(30_000),
        } as usize;
        let offset = match self.rng.below(4) {
            0 | 1 => old,
            2 => self.rng.below(old as u64 + 1) as usize,
            _ => self.rng.below(60_000) as usize,
        };
        let end = offset + len;
        let data = content(self.rng.below(1 << 30), len);
        match put(fs, name, offset as u64, &data) {
            Ok(()) => {
                if end > old {
                    known.resize(end);
                    known.other_len = None;
                }
                known.bytes[offset..end].copy_from_slice(&data);
                known.is_unsure[offset..end].fill(false);
                Ok(())
            }
            Err(error) => {
                let shown = old.min(end).max(offset.min(old));
                known.is_unsure[offset.min(old)..shown].fill(true);
                if end > old {
                    known.other_len = Some(known.other_len.map_or(end, |other| other.max(end)));
                }
                Err(error)
            }
        }
    }

    /// All files are as they were acknowledged. The content found counts as known from now on.
    pub(crate) fn verify(&mut self, fs: &NvmeFs, what: &str) {
        for (name, known) in &mut self.known {
            let found = read(fs, name).unwrap_or_else(|error| panic!("{what}: {name}: {error}"));
            known.check(&found, &format!("{what}: {name}"));
            known.is_unsure = vec![false; found.len()];
            (known.bytes, known.other_len) = (found, None);
        }
        let mut names = 0;
        fs.readdir(SYSTEM, ferrite_vfs::ROOT_INO, 0, &mut |entry| {
            names += usize::from(entry.name != b"." && entry.name != b"..");
            true
        })
        .unwrap();
        assert_eq!(names, self.known.len(), "{what}: names");
        assert!(matches!(read(fs, "never"), Err(FsError::NotFound)));
    }
}
