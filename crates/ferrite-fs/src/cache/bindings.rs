//! Bound files: which files others may change in place, and the adapters that let them.
//!
//! Contents: [`Attached`], a file with its adapter, and [`Bindings`], all of them. A flag of the inode marks a file as
//! bound; a bound file need not have an adapter. The code that changes pages is in the floor `file`, the trait for
//! adapters in `engine`.
//!
//! Invariants:
//! * A file that has an adapter is bound and pinned. It gets and loses its adapter under its inode's exclusive lock.
//! * The adapter is called only through [`Attached::tell`], and so by one thread at a time.
//! * An adapter's thread serves many, so no call of one waits for a thaw: a freeze waits for their calls.
//! * The list is locked for a lookup only. The adapter's own locks come after all of the engine's.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use ferrite_checks::ranked::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use ferrite_map::{Inum, Lblk, PageRange};
use ferrite_vfs::regions::{Adapter, Binding};
use rustc_hash::FxHashMap;

use crate::background::Stop;
use crate::lock_order;

/// Failed attempts to finalize a file before it is left to an unmount, or the next mount.
const TRIES_MAX: u32 = 10;
/// The wait after the first failure. It doubles with each.
const RETRY: Duration = Duration::from_secs(1);
/// The longest.
const RETRY_MAX: Duration = Duration::from_secs(64);

/// A bound file with its adapter.
pub(crate) struct Attached {
    pub(crate) ino: Inum,
    pub(crate) how: Binding,
    /// Something was stored since the times were set.
    is_dirty: AtomicBool,
    /// The adapter named a page that holds no data: it is buggy, and none of its stores count.
    is_misused: AtomicBool,
    telling: Mutex<lock_order::Adapter, Telling>,
}

/// The state for calls to the adapter, under its lock.
pub(crate) struct Telling {
    /// `None` once the binding has ended.
    adapter: Option<Arc<dyn Adapter>>,
    /// The size that the adapter knows.
    pub(crate) size: u64,
    /// Pages beyond the end that only appends have reserved. The inode's lock protects it as well.
    pub(crate) window: Window,
    /// Number of pages of the next window.
    pub(crate) window_pages: u64,
    /// Runs that were published when the file was bound.
    pub(crate) runs: u64,
}

/// Pages that appends have reserved ahead, to be unmapped if no append comes.
#[derive(Default)]
pub(crate) struct Window {
    pages: BTreeSet<u64>,
}

impl Window {
    /// Adds reserved pages; those before `first` are in the file by now.
    pub(crate) fn add(&mut self, first: u64, pages: &[Lblk]) {
        self.pages = self.pages.split_off(&first);
        self.pages.extend(pages.iter().map(|page| u64::from(page.get())));
    }

    /// Takes pages that another caller wants to keep out of the window.
    pub(crate) fn keep(&mut self, pages: PageRange) {
        if self.pages.range(pages.first..pages.end).next().is_some() {
            self.pages.retain(|&page| page < pages.first || page >= pages.end);
        }
    }

    /// Those from page `first` on.
    pub(crate) fn from(&self, first: u64) -> Vec<Lblk> {
        self.pages.range(first..).map(|&page| Lblk::at(page)).collect()
    }
}

impl Telling {
    /// The adapter, unless the binding has ended.
    pub(crate) fn adapter(&self) -> Option<&dyn Adapter> {
        self.adapter.as_deref()
    }

    /// Removes the adapter, which gets no more calls.
    pub(crate) fn end(&mut self) -> Option<Arc<dyn Adapter>> {
        self.adapter.take()
    }
}

impl Attached {
    /// A file with a new adapter, which knows nothing yet.
    pub(crate) fn new(ino: Inum, how: Binding, adapter: Arc<dyn Adapter>) -> Attached {
        Attached {
            ino,
            how,
            is_dirty: AtomicBool::new(false),
            is_misused: AtomicBool::new(false),
            telling: Mutex::new(Telling {
                adapter: Some(adapter),
                size: 0,
                window: Window::default(),
                window_pages: 0,
                runs: 0,
            }),
        }
    }

    /// The right to call the adapter.
    pub(crate) fn tell(&self) -> MutexGuard<'_, Telling> {
        self.telling.lock()
    }

    /// Whether the binding has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.tell().adapter.is_none()
    }

    /// Notes that something was stored. Cheap if that is known.
    #[inline]
    pub(crate) fn note_store(&self) {
        if !self.is_dirty.load(Ordering::Relaxed) {
            self.is_dirty.store(true, Ordering::Release);
        }
    }

    /// Whether something was stored since the last call.
    pub(crate) fn take_dirty(&self) -> bool {
        self.is_dirty.load(Ordering::Relaxed) && self.is_dirty.swap(false, Ordering::AcqRel)
    }

    /// Notes that the adapter named a page that holds no data.
    #[cold]
    pub(crate) fn note_misuse(&self, page: u32) {
        if !self.is_misused.swap(true, Ordering::AcqRel) {
            tracing::error!(ino = self.ino.get(), page, "an adapter named a page that holds no data");
        }
    }

    /// Whether that has happened.
    #[inline]
    pub(crate) fn is_misused(&self) -> bool {
        self.is_misused.load(Ordering::Acquire)
    }
}

/// How often a file could not be finalized, and when to retry.
#[derive(Debug, Default, Clone, Copy)]
struct Tries {
    failed: u32,
    next: Option<Instant>,
    /// An adapter has changed it, and its times do not show that yet.
    awaits_stamp: bool,
}

impl Tries {
    fn goes_on(&self) -> bool {
        self.failed < TRIES_MAX
    }

    fn is_due(&self, now: Instant) -> bool {
        self.goes_on() && self.next.is_none_or(|next| next <= now)
    }
}

#[derive(Default)]
struct List {
    attached: FxHashMap<Inum, Arc<Attached>>,
    /// Bound files without an adapter, and the attempts to finalize them.
    left: BTreeMap<Inum, Tries>,
    is_closed: bool,
}

/// All bound files of a mounted pool.
#[derive(Default)]
pub(crate) struct Bindings {
    list: Mutex<lock_order::BindingList, List>,
    /// Held shared by adapters' calls that change a file, exclusively by a freeze.
    calls: RwLock<lock_order::AdapterCalls, ()>,
    /// Number of those that have adapters.
    attached: AtomicUsize,
    /// The thread that finalizes files without an adapter.
    finalizer: OnceLock<Arc<Stop>>,
}

impl Bindings {
    /// The adapter's side of a bound file. One load if there are none.
    #[inline]
    pub(crate) fn of(&self, ino: Inum) -> Option<Arc<Attached>> {
        match self.is_empty() {
            true => None,
            false => self.list.lock().attached.get(&ino).cloned(),
        }
    }

    /// Whether no file has an adapter.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.attached.load(Ordering::Acquire) == 0
    }

    /// Lets an adapter's call change a file: until it is dropped the pool is not frozen, so the call waits for no thaw.
    /// `None` if a freeze is about to begin.
    pub(crate) fn enter(&self) -> Option<RwLockReadGuard<'_, ()>> {
        self.calls.try_read(None)
    }

    /// Waits for adapters' calls that change files, and keeps others out.
    pub(crate) fn keep_out(&self) -> RwLockWriteGuard<'_, ()> {
        self.calls.write()
    }

    /// Adds a file that has got an adapter; false if it has one, or if no more are taken.
    pub(crate) fn attach(&self, file: &Arc<Attached>) -> bool {
        let mut list = self.list.lock();
        if list.is_closed || list.attached.contains_key(&file.ino) {
            return false;
        }
        list.left.remove(&file.ino);
        list.attached.insert(file.ino, Arc::clone(file));
        self.attached.store(list.attached.len(), Ordering::Release);
        true
    }

    /// Removes a file that has lost its adapter, and stays bound.
    pub(crate) fn detach(&self, ino: Inum) {
        let mut list = self.list.lock();
        if list.attached.remove(&ino).is_some() {
            list.left.insert(ino, Tries::default());
        }
        self.attached.store(list.attached.len(), Ordering::Release);
        drop(list);
        self.wake_finalizer();
    }

    /// Notes that the times of a file that has lost its adapter are to move when it is finalized.
    pub(crate) fn stamp_later(&self, ino: Inum) {
        if let Some(tries) = self.list.lock().left.get_mut(&ino) {
            tries.awaits_stamp = true;
        }
    }

    /// Whether they are.
    pub(crate) fn awaits_stamp(&self, ino: Inum) -> bool {
        self.list.lock().left.get(&ino).is_some_and(|tries| tries.awaits_stamp)
    }

    /// Notes a bound file without an adapter.
    pub(crate) fn note_left(&self, ino: Inum) {
        self.list.lock().left.entry(ino).or_default();
        self.wake_finalizer();
    }

    /// Notes that a file without an adapter is bound no more.
    pub(crate) fn forget(&self, ino: Inum) {
        self.list.lock().left.remove(&ino);
    }

    /// Sets the thread to notify of files without an adapter from now on.
    pub(crate) fn has_finalizer(&self, finalizer: Arc<Stop>) {
        let _ = self.finalizer.set(finalizer);
        self.wake_finalizer();
    }

    /// Whether such a thread exists.
    pub(crate) fn is_watched(&self) -> bool {
        self.finalizer.get().is_some()
    }

    fn wake_finalizer(&self) {
        if let Some(finalizer) = self.finalizer.get() {
            finalizer.wake();
        }
    }

    /// Whether a file is to be finalized, now or later.
    pub(crate) fn awaits_finalizing(&self) -> bool {
        self.list.lock().left.values().any(Tries::goes_on)
    }

    /// Those that are to be finalized now, in order.
    pub(crate) fn due(&self, now: Instant) -> Vec<Inum> {
        let list = self.list.lock();
        let due = list.left.iter().filter(|(_, tries)| tries.is_due(now));
        due.map(|(ino, _)| *ino).collect()
    }

    /// Notes that a file could not be finalized; `is_final`: nor can it be before a repair. False if that was the last
    /// try.
    pub(crate) fn note_failure(&self, ino: Inum, now: Instant, is_final: bool) -> bool {
        let mut list = self.list.lock();
        let Some(tries) = list.left.get_mut(&ino) else {
            return false;
        };
        tries.next = Some(now + (RETRY * (1 << tries.failed.min(6))).min(RETRY_MAX));
        tries.failed = if is_final { TRIES_MAX } else { tries.failed + 1 };
        tries.goes_on()
    }

    /// Takes no more.
    pub(crate) fn close(&self) {
        self.list.lock().is_closed = true;
    }

    /// Those that have adapters, in order.
    pub(crate) fn attached(&self) -> Vec<Arc<Attached>> {
        let mut all: Vec<_> = self.list.lock().attached.values().cloned().collect();
        all.sort_unstable_by_key(|file| file.ino);
        all
    }

    /// Those that have none, in order.
    pub(crate) fn left(&self) -> Vec<Inum> {
        self.list.lock().left.keys().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_finalizing_is_retried_a_few_times_at_growing_distances() {
        let bindings = Bindings::default();
        let [one, two] = [1, 2].map(Inum::new);
        let start = Instant::now();
        bindings.note_left(one);
        let (mut now, mut tries) = (start, 0);
        loop {
            assert_eq!(bindings.due(now), [one]);
            tries += 1;
            if !bindings.note_failure(one, now, false) {
                break;
            }
            // It is not forgotten when it is found left again.
            bindings.note_left(one);
            assert!(bindings.awaits_finalizing() && bindings.due(now).is_empty());
            now += RETRY_MAX;
        }
        assert_eq!(tries, TRIES_MAX);
        assert!(!bindings.awaits_finalizing() && bindings.due(now + RETRY_MAX).is_empty());
        assert_eq!(bindings.left(), [one], "an unmount tries once more");
        bindings.note_left(two);
        assert!(!bindings.note_failure(two, now, true) && !bindings.awaits_finalizing());
        bindings.forget(two);
        assert!(!bindings.note_failure(two, now, false));
        assert_eq!(bindings.left(), [one]);
    }
}
