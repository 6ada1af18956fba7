//! The seam between engine and adapter: here a test stops a packet, or a local call, and lets another event happen.
//!
//! Contents: [`Seam`], an engine that intercepts its regions and adapters; [`Stops`], the events at a stop; [`Fences`],
//! which mistake an adapter makes with its fences.
//!
//! Stores are held as a processor may hold streamed ones: other threads need not see them before the fence of their
//! thread. So a thread that copies a page while its guard is released too early misses those stores.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};

use ferrite_fs::{Engine, number_thread};
use ferrite_vfs::regions::{Access, Adapter, Binding, BoundFile, PageRun, Region, Regions};
use ferrite_vfs::*;
use parking_lot::Mutex;

/// The engine's name for the threads that serve faults.
const FAULT_THREAD: u64 = 3;

/// The events between the steps of packets and of local calls.
pub(crate) trait Stops: Send + Sync {
    /// A packet is between two of its steps. `holds_others`: nothing may append beside it.
    fn in_packet(&self, holds_others: bool);
    /// The engine has finished an operation that came from elsewhere.
    fn done_by_engine(&self);
    /// Whether other threads see the current store at once.
    fn is_seen_at_once(&self) -> bool;
    /// A local call begins to wait for guards. `is_before`: it has not committed yet.
    fn begins_to_wait(&self, is_before: bool);
    /// The call need not wait any more.
    fn has_waited(&self, is_before: bool);
    /// A range fault is about to be served. Waits while packets are stopped: it would wait for a guard, and others for
    /// it.
    fn before_fault(&self);
}

/// The engine of the scene.
pub(crate) struct Seam {
    below: Arc<Engine>,
    stops: Arc<dyn Stops>,
    region: Mutex<Option<Arc<dyn Region>>>,
}

impl Seam {
    pub(crate) fn new(below: Arc<Engine>, stops: Arc<dyn Stops>) -> Seam {
        Seam {
            below,
            stops,
            region: Mutex::new(None),
        }
    }

    /// The region that was last bound.
    pub(crate) fn take_region(&self) -> Option<Arc<dyn Region>> {
        self.region.lock().take()
    }
}

struct SeenAdapter {
    below: Arc<dyn Adapter>,
    stops: Arc<dyn Stops>,
    size: Mutex<u64>,
}

impl SeenAdapter {
    fn waits(&self, is_before: bool, wait: impl FnOnce(&dyn Adapter)) {
        self.stops.begins_to_wait(is_before);
        wait(&*self.below);
        self.stops.has_waited(is_before);
    }
}

impl Adapter for SeenAdapter {
    fn revoke(&self, first: u32, end: u32) {
        self.waits(true, |below| below.revoke(first, end));
    }

    fn publish(&self, runs: &[PageRun]) {
        self.waits(false, |below| below.publish(runs));
    }

    fn resize(&self, size: u64) {
        let before = std::mem::replace(&mut *self.size.lock(), size);
        self.waits(size < before, |below| below.resize(size));
    }

    fn attributes_changed(&self, attr: &Attr) {
        self.waits(false, |below| below.attributes_changed(attr));
    }

    fn unbound(&self) {
        self.waits(true, |below| below.unbound());
    }
}

/// When the fences of adapters take effect. The adapter fences after its stores, under the guard of their pages; the
/// seam stands for one that does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(
    not(feature = "seeded-bugs"),
    allow(dead_code, reason = "other builds search for no mistakes")
)]
pub(crate) enum Fences {
    /// Where they are.
    InTime,
    /// A packet is acknowledged before the fence that makes it durable: the adapter fences, and then stores.
    BeforeAccess,
    /// A guard is released before the fence of what was stored under it.
    AfterGuard,
}

static FENCES: AtomicU8 = AtomicU8::new(Fences::InTime as u8);

/// Sets when they do, in the whole process.
#[cfg(feature = "seeded-bugs")]
pub(crate) fn fence_of_adapters(fences: Fences) {
    FENCES.store(fences as u8, SeqCst);
}

fn are_fences(fences: Fences) -> bool {
    FENCES.load(SeqCst) == fences as u8
}

thread_local! {
    /// Fences that come after the guard is released.
    static LATE: RefCell<Vec<SeenRegion>> = const { RefCell::new(Vec::new()) };
    /// An access has begun, and its fence was before it.
    static HAS_BEGUN: Cell<bool> = const { Cell::new(false) };
}

/// The adapter has released its last guard.
pub(crate) fn guard_is_released() {
    for region in LATE.take() {
        let _ = region.complete();
    }
}

/// A store that only its own thread sees: page, offset, bytes.
type Held = (u32, u32, Vec<u8>);

thread_local! {
    static HELD: RefCell<Vec<Held>> = const { RefCell::new(Vec::new()) };
}

#[derive(Clone)]
struct SeenRegion {
    below: Arc<dyn Region>,
    stops: Arc<dyn Stops>,
}

impl SeenRegion {
    /// An access to pages under a guard, which may be the first under it.
    fn access(&self) {
        guard_is_released();
        if are_fences(Fences::BeforeAccess) && !HAS_BEGUN.replace(true) {
            let _ = self.complete();
        }
    }

    fn complete(&self) -> Result<()> {
        self.stops.in_packet(false);
        self.let_out();
        self.stops.in_packet(false);
        self.below.fence()
    }

    fn let_out(&self) {
        for (page, within, data) in HELD.take() {
            self.below.store(page, within, &data);
        }
    }
}

impl Region for SeenRegion {
    fn ino(&self) -> Ino {
        self.below.ino()
    }

    fn attr(&self) -> Result<Attr> {
        self.below.attr()
    }

    fn store(&self, page: u32, within: u32, data: &[u8]) {
        self.access();
        self.stops.in_packet(false);
        if self.stops.is_seen_at_once() {
            self.below.store(page, within, data);
        } else {
            HELD.with_borrow_mut(|held| held.push((page, within, data.to_vec())));
        }
        self.stops.in_packet(false);
    }

    fn load(&self, page: u32, within: u32, into: &mut [u8]) {
        self.access();
        // A thread sees its own stores.
        self.let_out();
        self.below.load(page, within, into);
    }

    fn fetch_add(&self, page: u32, within: u32, add: u64) -> u64 {
        self.access();
        self.let_out();
        let before = self.below.fetch_add(page, within, add);
        self.stops.in_packet(false);
        before
    }

    fn compare_swap(&self, page: u32, within: u32, compare: u64, swap: u64) -> u64 {
        self.access();
        self.let_out();
        let before = self.below.compare_swap(page, within, compare, swap);
        self.stops.in_packet(false);
        before
    }

    fn fence(&self) -> Result<()> {
        if are_fences(Fences::BeforeAccess) {
            HAS_BEGUN.set(false);
            return Ok(());
        }
        if are_fences(Fences::AfterGuard) {
            LATE.with_borrow_mut(|late| late.push(self.clone()));
            return Ok(());
        }
        self.complete()
    }

    fn fault(&self, first: u32, pages: u32, access: Access) -> Result<()> {
        number_thread(FAULT_THREAD);
        self.stops.before_fault();
        self.below.fault(first, pages, access)
    }

    fn append(&self, parts: &[&[u8]]) -> Result<u64> {
        self.stops.in_packet(true);
        let at = self.below.append(parts)?;
        self.stops.done_by_engine();
        self.stops.in_packet(true);
        Ok(at)
    }

    fn reserve(&self, len_bytes: u64) -> Result<u64> {
        self.stops.in_packet(true);
        let at = self.below.reserve(len_bytes)?;
        self.stops.done_by_engine();
        self.stops.in_packet(true);
        Ok(at)
    }

    fn extend(&self, from: u64, to: u64) -> Result<u64> {
        self.stops.in_packet(true);
        let at = self.below.extend(from, to)?;
        self.stops.done_by_engine();
        self.stops.in_packet(true);
        Ok(at)
    }

    fn write_atomic(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.stops.in_packet(true);
        self.below.write_atomic(offset, data)?;
        self.stops.done_by_engine();
        self.stops.in_packet(true);
        Ok(())
    }

    fn unbind(&self) -> Result<()> {
        self.below.unbind()
    }
}

impl Regions for Seam {
    fn bind(&self, ctx: &Ctx, ino: Ino, how: Binding, adapter: Arc<dyn Adapter>) -> Result<Arc<dyn Region>> {
        let adapter = SeenAdapter {
            below: adapter,
            stops: Arc::clone(&self.stops),
            size: Mutex::new(0),
        };
        let below = self.below.bind(ctx, ino, how, Arc::new(adapter))?;
        let stops = Arc::clone(&self.stops);
        let region: Arc<dyn Region> = Arc::new(SeenRegion { below, stops });
        *self.region.lock() = Some(Arc::clone(&region));
        Ok(region)
    }

    fn bound(&self) -> Vec<BoundFile> {
        self.below.bound()
    }

    fn finalize(&self, ctx: &Ctx, ino: Ino) -> Result<()> {
        self.below.finalize(ctx, ino)
    }
}

impl Layer for Seam {
    fn below(&self) -> &dyn FileSystem {
        &*self.below
    }

    fn regions(&self) -> Option<&dyn Regions> {
        Some(self)
    }
}
