//! The seam between engine and adapter: here a test stops a packet, or a local call, and lets another event happen.
//!
//! Contents: [`Seam`], an engine that intercepts its regions and adapters; [`Stops`], the events at a stop.
//!
//! Stores are held as a processor may hold streamed ones: other threads need not see them before the fence of their
//! thread. So a thread that copies a page while its guard is released too early misses those stores.

use std::cell::RefCell;
use std::sync::Arc;

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

/// A store that only its own thread sees: page, offset, bytes.
type Held = (u32, u32, Vec<u8>);

thread_local! {
    static HELD: RefCell<Vec<Held>> = const { RefCell::new(Vec::new()) };
}

struct SeenRegion {
    below: Arc<dyn Region>,
    stops: Arc<dyn Stops>,
}

impl SeenRegion {
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
        self.stops.in_packet(false);
        if self.stops.is_seen_at_once() {
            self.below.store(page, within, data);
        } else {
            HELD.with_borrow_mut(|held| held.push((page, within, data.to_vec())));
        }
        self.stops.in_packet(false);
    }

    fn load(&self, page: u32, within: u32, into: &mut [u8]) {
        // A thread sees its own stores.
        self.let_out();
        self.below.load(page, within, into);
    }

    fn fetch_add(&self, page: u32, within: u32, add: u64) -> u64 {
        self.let_out();
        let before = self.below.fetch_add(page, within, add);
        self.stops.in_packet(false);
        before
    }

    fn compare_swap(&self, page: u32, within: u32, compare: u64, swap: u64) -> u64 {
        self.let_out();
        let before = self.below.compare_swap(page, within, compare, swap);
        self.stops.in_packet(false);
        before
    }

    fn fence(&self) -> Result<()> {
        self.stops.in_packet(false);
        self.let_out();
        self.stops.in_packet(false);
        self.below.fence()
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

    fn seal(&self, ctx: &Ctx, ino: Ino) -> Result<()> {
        self.below.seal(ctx, ino)
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
