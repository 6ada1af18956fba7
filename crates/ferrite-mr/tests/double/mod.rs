//! An engine in memory that moves pages, and asserts at each store and load that the page may be touched.
//!
//! Guarantees under test: no page is touched that was revoked, freed or never published; no store is left without a
//! fence when its guard is gone. A mistake of the adapter is a panic here, or in a local write that finds it later.

#![allow(dead_code, reason = "each test uses its part")]

use std::cell::RefCell;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use ferrite_mr::{FileMemory, Granted, Options, Registrar, Rights, SessionId};
use ferrite_roce::memory::{Delivery, Fault, Memory, Message, Part};
use ferrite_vfs::memfs::MemFs;
use ferrite_vfs::regions::{Access, Adapter, Binding, BoundFile, PageRun, Region, Regions};
use ferrite_vfs::*;

pub(crate) const PAGE: usize = 4096;
/// A freed page holds this.
const POISON: u8 = 0xdd;

struct Page {
    bytes: Box<[u8; PAGE]>,
    /// An adapter may touch it.
    is_published: bool,
    /// Stores that were not fenced yet.
    unfenced: u64,
}

thread_local! {
    /// Pages that this thread has stored to since its last fence.
    static STORED: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
}

/// Memory.
pub(crate) struct Arena {
    pages: Vec<Mutex<Page>>,
    free: Mutex<Vec<u32>>,
}

impl Arena {
    fn new(count: u32) -> Arena {
        let page = || Page {
            bytes: Box::new([POISON; PAGE]),
            is_published: false,
            unfenced: 0,
        };
        Arena {
            pages: (0..count).map(|_| Mutex::new(page())).collect(),
            // Neighbours in a file are rarely neighbours in memory.
            free: Mutex::new((0..count).map(|at| at.wrapping_mul(7) % count).collect()),
        }
    }

    fn allocate(&self, bytes: &[u8]) -> Result<u32> {
        let at = self
            .free
            .lock()
            .unwrap()
            .pop()
            .ok_or(FsError::NoSpace(SpaceOf::Blocks))?;
        let mut page = self.pages[at as usize].lock().unwrap();
        assert!(!page.is_published);
        page.bytes.copy_from_slice(bytes);
        Ok(at)
    }

    fn read(&self, at: u32) -> [u8; PAGE] {
        *self.pages[at as usize].lock().unwrap().bytes
    }

    fn set_published(&self, at: u32, is_published: bool) {
        let mut page = self.pages[at as usize].lock().unwrap();
        assert_eq!(page.unfenced, 0, "page {at} has stores without a fence, and no guard");
        page.is_published = is_published;
    }

    fn free(&self, at: u32) {
        let mut page = self.pages[at as usize].lock().unwrap();
        assert!(!page.is_published && page.unfenced == 0);
        page.bytes.fill(POISON);
        drop(page);
        self.free.lock().unwrap().insert(0, at);
    }

    /// How many are free.
    pub(crate) fn free_pages(&self) -> usize {
        self.free.lock().unwrap().len()
    }
}

#[derive(Default)]
struct State {
    size: u64,
    map: BTreeMap<u32, u32>,
    adapter: Option<Arc<dyn Adapter>>,
    mode: u32,
}

/// A file.
pub(crate) struct File {
    ino: Ino,
    arena: Arc<Arena>,
    state: Mutex<State>,
    /// After a local write its pages are published again; otherwise faults bring them.
    pub(crate) publishes: AtomicBool,
    /// Pages that are published when it is bound.
    pub(crate) told_first: AtomicU32,
    /// Faults fail.
    pub(crate) is_full: AtomicBool,
    /// It cannot be finalized when its binding ends.
    pub(crate) cannot_finalize: AtomicBool,
    /// Faults and changes are deferred.
    pub(crate) is_frozen: AtomicBool,
    /// Faults that were served.
    pub(crate) faults: AtomicU64,
    /// Calls of `append`.
    pub(crate) steps: AtomicU64,
    /// Every part that was appended.
    pub(crate) parts: Mutex<Vec<(u64, Vec<u8>)>>,
    pub(crate) atomic_writes: AtomicU64,
    /// Actions that happen once in the middle of a call, by its name.
    stops: Mutex<HashMap<&'static str, Stop>>,
}

type Stop = Box<dyn FnOnce() + Send>;

impl File {
    /// Runs `act` in the middle of the next `store`, `load`, `fence`, `append` or `attr`.
    pub(crate) fn stop_at(&self, call: &'static str, act: impl FnOnce() + Send + 'static) {
        self.stops.lock().unwrap().insert(call, Box::new(act));
    }

    fn stops(&self, call: &'static str) {
        let stop = self.stops.lock().unwrap().remove(call);
        stop.into_iter().for_each(|stop| stop());
    }

    /// Revokes pages, so that no thread touches them.
    fn revoke(&self, state: &State, first: u32, end: u32) {
        if let Some(adapter) = &state.adapter {
            adapter.revoke(first, end);
        }
        for page in state.map.range(first..end).map(|(_, page)| *page) {
            self.arena.set_published(page, false);
        }
    }

    fn publish(&self, state: &State, first: u32, end: u32) {
        let Some(adapter) = &state.adapter else {
            return;
        };
        let end = end.min(state.size.div_ceil(PAGE as u64) as u32);
        let runs: Vec<PageRun> = (first..end)
            .map(|at| PageRun {
                at,
                page: state.map.get(&at).copied(),
                pages: 1,
            })
            .collect();
        for page in runs.iter().filter_map(|run| run.page) {
            // Pages that are published already may be in use.
            let mut page = self.arena.pages[page as usize].lock().unwrap();
            page.is_published = true;
        }
        adapter.publish(&runs);
    }

    fn page(&self, state: &State, at: u32) -> [u8; PAGE] {
        state.map.get(&at).map_or([0; PAGE], |page| self.arena.read(*page))
    }

    /// Replaces pages by copies that `change` has changed.
    fn replace(&self, state: &mut State, first: u32, end: u32, change: impl Fn(u32, &mut [u8; PAGE])) -> Result<()> {
        self.revoke(state, first, end);
        for at in first..end {
            let mut bytes = self.page(state, at);
            // A thread that still writes to the old page loses that write.
            std::thread::yield_now();
            change(at, &mut bytes);
            let new = self.arena.allocate(&bytes)?;
            if let Some(old) = state.map.insert(at, new) {
                self.arena.free(old);
            }
        }
        Ok(())
    }

    fn overwrite(&self, state: &mut State, offset: u64, data: &[u8]) -> Result<()> {
        let end_byte = offset + data.len() as u64;
        let (first, end) = ((offset / PAGE as u64) as u32, end_byte.div_ceil(PAGE as u64) as u32);
        self.replace(state, first, end, |at, bytes| {
            let start = u64::from(at) * PAGE as u64;
            for (byte, place) in (start..).zip(bytes.iter_mut()) {
                if (offset..end_byte).contains(&byte) {
                    *place = data[(byte - offset) as usize];
                }
            }
        })?;
        if end_byte > state.size {
            state.size = end_byte;
            if let Some(adapter) = &state.adapter {
                adapter.resize(end_byte);
            }
        }
        if self.publishes.load(SeqCst) {
            self.publish(state, first, end);
        }
        Ok(())
    }

    /// A local write.
    pub(crate) fn write(&self, offset: u64, data: &[u8]) {
        self.overwrite(&mut self.state.lock().unwrap(), offset, data).unwrap();
    }

    /// A local read.
    pub(crate) fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let state = self.state.lock().unwrap();
        let last = (offset + len as u64).div_ceil(PAGE as u64) as u32;
        let first = (offset / PAGE as u64) as u32;
        let pages: Vec<u8> = (first..last).flat_map(|at| self.page(&state, at)).collect();
        let skip = (offset % PAGE as u64) as usize;
        pages[skip..skip + len].to_vec()
    }

    pub(crate) fn size(&self) -> u64 {
        self.state.lock().unwrap().size
    }

    /// A local truncation, also to grow.
    pub(crate) fn truncate(&self, size: u64) {
        let mut state = self.state.lock().unwrap();
        let state = &mut *state;
        let before = std::mem::replace(&mut state.size, size);
        if let Some(adapter) = &state.adapter {
            adapter.resize(size);
        }
        if size < before {
            let end = size.div_ceil(PAGE as u64) as u32;
            self.revoke(state, end, u32::MAX);
            for (_, page) in state.map.split_off(&end) {
                self.arena.free(page);
            }
            let within = (size % PAGE as u64) as usize;
            if within > 0 {
                self.replace(state, end - 1, end, |_, bytes| bytes[within..].fill(0))
                    .unwrap();
                self.publish(state, end - 1, end);
            }
        }
    }

    /// Forgets everything the adapter knows, without a change.
    pub(crate) fn forget(&self) {
        self.revoke(&self.state.lock().unwrap(), 0, u32::MAX);
    }

    /// Changes permissions.
    pub(crate) fn chmod(&self, mode: u32) {
        let mut state = self.state.lock().unwrap();
        state.mode = mode;
        if let Some(adapter) = &state.adapter {
            adapter.attributes_changed(&self.attr_of(&state));
        }
    }

    pub(crate) fn is_bound(&self) -> bool {
        self.state.lock().unwrap().adapter.is_some()
    }

    fn attr_of(&self, state: &State) -> Attr {
        let fs = MemFs::new();
        let mut attr = fs.getattr(SYSTEM, ROOT_INO).unwrap();
        attr.ino = self.ino;
        attr.kind = FileKind::File;
        attr.size = state.size;
        attr.mode = state.mode;
        (attr.uid, attr.gid) = (1000, 1000);
        attr
    }

    /// For a change.
    fn thawed(&self) -> Result<std::sync::MutexGuard<'_, State>> {
        match self.is_frozen.load(SeqCst) {
            true => Err(FsError::Busy),
            false => self.bound(),
        }
    }

    fn bound(&self) -> Result<std::sync::MutexGuard<'_, State>> {
        let state = self.state.lock().unwrap();
        match state.adapter {
            Some(_) => Ok(state),
            None => Err(FsError::Stale),
        }
    }

    fn touch<T>(&self, page: u32, act: impl FnOnce(&mut Page) -> T) -> T {
        // A thread without a guard is overtaken here by an engine that moves the page.
        std::thread::yield_now();
        let mut page = self.arena.pages[page as usize].lock().unwrap();
        assert!(page.is_published, "a page is touched that nobody may touch");
        act(&mut page)
    }

    fn change(&self, number: u32, within: u32, with: impl FnOnce(u64) -> u64) -> u64 {
        let at = within as usize;
        assert_eq!(at % 8, 0);
        STORED.with_borrow_mut(|stored| stored.push(number));
        self.touch(number, |page| {
            page.unfenced += 1;
            let before = u64::from_le_bytes(page.bytes[at..at + 8].try_into().unwrap());
            page.bytes[at..at + 8].copy_from_slice(&with(before).to_le_bytes());
            before
        })
    }
}

impl Region for File {
    fn ino(&self) -> Ino {
        self.ino
    }

    fn attr(&self) -> Result<Attr> {
        let attr = self.attr_of(&*self.bound()?);
        self.stops("attr");
        Ok(attr)
    }

    fn store(&self, number: u32, within: u32, data: &[u8]) {
        let within = within as usize;
        STORED.with_borrow_mut(|stored| stored.push(number));
        self.touch(number, |page| {
            page.bytes[within..within + data.len()].copy_from_slice(data);
            page.unfenced += 1;
        });
        self.stops("store");
    }

    fn load(&self, page: u32, within: u32, into: &mut [u8]) {
        let within = within as usize;
        self.touch(page, |page| {
            into.copy_from_slice(&page.bytes[within..within + into.len()])
        });
        self.stops("load");
    }

    fn fetch_add(&self, page: u32, within: u32, add: u64) -> u64 {
        self.change(page, within, |before| before.wrapping_add(add))
    }

    fn compare_swap(&self, page: u32, within: u32, compare: u64, swap: u64) -> u64 {
        self.change(page, within, |before| if before == compare { swap } else { before })
    }

    fn fence(&self) -> Result<()> {
        self.stops("fence");
        for page in STORED.take() {
            self.touch(page, |page| page.unfenced -= 1);
        }
        Ok(())
    }

    fn fault(&self, first: u32, pages: u32, access: Access) -> Result<()> {
        STORED.with_borrow(|stored| assert!(stored.is_empty(), "the engine is called with stores under way"));
        let mut state = self.bound()?;
        self.faults.fetch_add(1, SeqCst);
        if self.is_full.load(SeqCst) {
            return Err(FsError::NoSpace(SpaceOf::Blocks));
        }
        if self.is_frozen.load(SeqCst) {
            return Err(FsError::Busy);
        }
        let end = (first + pages).min(state.size.div_ceil(PAGE as u64) as u32);
        if access == Access::Write {
            for at in first..end {
                if let Entry::Vacant(place) = state.map.entry(at) {
                    place.insert(self.arena.allocate(&[0; PAGE])?);
                }
            }
        }
        self.publish(&state, first, end);
        Ok(())
    }

    fn append(&self, parts: &[&[u8]]) -> Result<u64> {
        self.stops("append");
        let mut state = self.thawed()?;
        self.steps.fetch_add(1, SeqCst);
        let start = state.size;
        let mut at = start;
        for part in parts {
            self.parts.lock().unwrap().push((at, part.to_vec()));
            at += part.len() as u64;
        }
        self.overwrite(&mut state, start, &parts.concat())?;
        Ok(start)
    }

    fn reserve(&self, len_bytes: u64) -> Result<u64> {
        let mut state = self.thawed()?;
        let end = state.size.checked_add(len_bytes).filter(|end| *end < 1 << 40);
        let start = std::mem::replace(&mut state.size, end.ok_or(FsError::FileTooBig)?);
        if let Some(adapter) = &state.adapter {
            adapter.resize(state.size);
        }
        Ok(start)
    }

    fn extend(&self, from: u64, to: u64) -> Result<u64> {
        let mut state = self.thawed()?;
        if state.size == from {
            state.size = to;
            if let Some(adapter) = &state.adapter {
                adapter.resize(to);
            }
            return Ok(from);
        }
        Ok(state.size)
    }

    fn write_atomic(&self, offset: u64, data: &[u8]) -> Result<()> {
        let mut state = self.thawed()?;
        if offset + data.len() as u64 > state.size {
            return Err(FsError::Invalid(BadArgument::BeforeStart));
        }
        self.atomic_writes.fetch_add(1, SeqCst);
        self.overwrite(&mut state, offset, data)
    }

    fn unbind(&self) -> Result<()> {
        let mut state = self.state.lock().unwrap();
        self.revoke(&state, 0, u32::MAX);
        if let Some(adapter) = state.adapter.take() {
            adapter.unbound();
        }
        match self.cannot_finalize.load(SeqCst) {
            true => Err(FsError::NoSpace(SpaceOf::Blocks)),
            false => Ok(()),
        }
    }
}

/// The engine. Calls that are not about regions go to another one.
pub(crate) struct Double {
    below: MemFs,
    pub(crate) arena: Arc<Arena>,
    files: Mutex<HashMap<Ino, Arc<File>>>,
}

impl Double {
    pub(crate) fn new(pages: u32) -> Arc<Double> {
        Arc::new(Double {
            below: MemFs::new(),
            arena: Arc::new(Arena::new(pages)),
            files: Mutex::default(),
        })
    }

    /// A file of holes.
    pub(crate) fn file(&self, ino: Ino, size: u64) -> Arc<File> {
        let state = State {
            size,
            mode: 0o666,
            ..State::default()
        };
        let file = Arc::new(File {
            ino,
            arena: Arc::clone(&self.arena),
            state: Mutex::new(state),
            publishes: AtomicBool::new(true),
            told_first: AtomicU32::new(u32::MAX),
            is_full: AtomicBool::new(false),
            cannot_finalize: AtomicBool::new(false),
            is_frozen: AtomicBool::new(false),
            faults: AtomicU64::new(0),
            steps: AtomicU64::new(0),
            parts: Mutex::default(),
            atomic_writes: AtomicU64::new(0),
            stops: Mutex::default(),
        });
        self.files.lock().unwrap().insert(ino, Arc::clone(&file));
        file
    }
}

impl Regions for Double {
    fn bind(&self, ctx: &Ctx, ino: Ino, how: Binding, adapter: Arc<dyn Adapter>) -> Result<Arc<dyn Region>> {
        let file = self.files.lock().unwrap().get(&ino).cloned().ok_or(FsError::NotFound)?;
        let mut state = file.state.lock().unwrap();
        if state.adapter.is_some() {
            return Err(FsError::Busy);
        }
        if ctx.check {
            let want = posix::Access {
                read: true,
                write: how.writable,
                exec: false,
            };
            posix::may_access(&posix::Guarded::by_mode(file.attr_of(&state)), &ctx.cred, want)?;
        }
        adapter.resize(state.size);
        state.adapter = Some(adapter);
        file.publish(&state, 0, file.told_first.load(SeqCst));
        drop(state);
        Ok(file)
    }

    fn bound(&self) -> Vec<BoundFile> {
        Vec::new()
    }

    fn finalize(&self, _: &Ctx, _: Ino) -> Result<()> {
        Ok(())
    }
}

impl Layer for Double {
    fn below(&self) -> &dyn FileSystem {
        &self.below
    }

    fn regions(&self) -> Option<&dyn Regions> {
        Some(self)
    }

    fn limits(&self) -> Limits {
        let mut limits = self.below.limits();
        limits.atomic_write_bytes = 64 << 10;
        limits
    }

    /// The files here have none, and the engine below does not know them.
    fn getxattr(&self, _: &Ctx, _: Ino, _: &[u8]) -> Result<Vec<u8>> {
        Err(FsError::NoAttribute)
    }
}

/// A writable binding.
pub(crate) const WRITABLE: Binding = Binding {
    writable: true,
    defragment: false,
    whole: false,
};
/// The session of tests that need one.
pub(crate) const SESSION: SessionId = SessionId(1);

/// An engine, a registrar, and a key for one file with all rights, usable on queue pairs 1 to 9.
pub(crate) struct Fixture {
    pub(crate) engine: Arc<Double>,
    pub(crate) shared: Arc<dyn FileSystem>,
    pub(crate) registrar: Registrar,
    pub(crate) file: Arc<File>,
    pub(crate) key: u32,
}

pub(crate) fn fixture(size: u64, options: Options) -> Fixture {
    let engine = Double::new(4000);
    let file = engine.file(10, size);
    let shared: Arc<dyn FileSystem> = Arc::clone(&engine) as _;
    let registrar = Registrar::new(options).unwrap();
    let granted: Granted = registrar
        .bind(&shared, SYSTEM, 10, WRITABLE, SESSION, Rights::ALL)
        .unwrap();
    assert_eq!(granted.size, size);
    (1..10).for_each(|qpn| registrar.attach(SESSION, qpn));
    let key = granted.key;
    Fixture {
        engine,
        shared,
        registrar,
        file,
        key,
    }
}

/// A WRITE or READ of a queue pair.
pub(crate) fn message(qpn: u32, key: u32, at: u64, len: usize) -> Message {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    Message {
        qpn,
        number: NUMBER.fetch_add(1, SeqCst),
        key,
        at,
        len_bytes: len as u32,
    }
}

/// Retries as long as it is deferred, as a sender does.
pub(crate) fn retry_while_deferred<T>(
    mut act: impl FnMut() -> std::result::Result<T, Fault>,
) -> std::result::Result<T, Fault> {
    loop {
        match act() {
            Err(Fault::NotReady { wait_ns }) => {
                assert!(wait_ns > 0 && wait_ns <= 655_000_000);
                std::thread::yield_now();
            }
            result => return result,
        }
    }
}

/// A WRITE, packet by packet, as a responder delivers it.
pub(crate) fn write(
    memory: &mut FileMemory,
    qpn: u32,
    key: u32,
    at: u64,
    data: &[u8],
) -> std::result::Result<(), Fault> {
    let message = message(qpn, key, at, data.len());
    let result = match retry_while_deferred(|| memory.begin(&message))? {
        Delivery::Whole => retry_while_deferred(|| memory.write_whole(&message, data, None)),
        Delivery::Parts => data.chunks(1024).enumerate().try_for_each(|(number, chunk)| {
            let part = Part {
                offset_bytes: number as u32 * 1024,
                data: chunk,
                is_last: number == (data.len() - 1) / 1024,
                immediate: None,
            };
            retry_while_deferred(|| memory.write(&message, &part))
        }),
    };
    if result.is_err() {
        memory.abandon(&message, 0);
    }
    result
}

/// A READ.
pub(crate) fn read(
    memory: &mut FileMemory,
    qpn: u32,
    key: u32,
    at: u64,
    len: usize,
) -> std::result::Result<Vec<u8>, Fault> {
    let message = message(qpn, key, at, len);
    retry_while_deferred(|| memory.may_read(&message))?;
    let mut bytes = vec![1; len];
    for (number, chunk) in bytes.chunks_mut(1024).enumerate() {
        retry_while_deferred(|| memory.read(&message, number as u32 * 1024, chunk))?;
    }
    Ok(bytes)
}
