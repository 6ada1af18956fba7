//! A bound file, two queue pairs that send packets to it, and a program that changes it meanwhile.
//!
//! Contents: [`Scene`], which stops packets and local calls halfway and lets others happen there; [`Watched`], the
//! memory of an adapter's thread, which records the effects of packets in the [`Book`]. The order of events is in
//! [`super::script`].
//!
//! Invariants, so that everything follows from a seed:
//! * One thing happens at a time. A stopped thread waits for the events meanwhile: until they are done, or wait in turn
//!   for the guard of the stopped thread.
//! * While a local call is stopped, others happen only before it commits, so their effects precede its own.
//! * The two queue pairs store to different halves of the file, so it does not matter which of two stores came first.
//! * Between any two packets, no range fault is under way.

use std::cell::Cell;
use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ferrite_checks::condvar::Condvar;
use ferrite_fs::{Engine, number_thread};
use ferrite_mr::{FileMemory, Registrar};
use ferrite_roce::memory::{Delivery, Fault, Memory, Message, Part, RESERVE_AT, Received};
use ferrite_roce::wire::Qpn;
use ferrite_testkit::rng::Rng;
use ferrite_vfs::regions::Region;
use ferrite_vfs::{FallocateMode, FileSystem, Ino, NewNode, OpenMode, ROOT_INO, RenameMode, SYSTEM, SetAttr};
use parking_lot::Mutex;

use super::effects::{Book, Effect, word_at};
use super::seam::{self, Stops};
use super::support::Hosts;

/// After so long in a call of the adapter, the call waits for a guard.
const WAITS: Duration = Duration::from_millis(2);
/// Anything slower is a hang.
const HANGS: Duration = Duration::from_secs(30);
/// The fault that makes the second queue pair wait where it must not call the engine.
const LATER: Fault = Fault::NotReady { wait_ns: 50_000 };

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// The thread of the script, and of the first queue pair.
    First,
    /// The second queue pair.
    Second,
    Local,
    Other,
}

thread_local! {
    static ROLE: Cell<Role> = const { Cell::new(Role::Other) };
    /// The effect of the packet under way, unless it is done.
    static CURRENT: Cell<Option<u64>> = const { Cell::new(None) };
}

/// The event at the point where a packet is stopped.
#[derive(Debug, Clone)]
pub(crate) enum Act {
    Local(Effect),
    /// Packets of the second queue pair.
    Second,
}

/// The progress of a local call.
#[derive(Default)]
struct Progress {
    /// The start of its call of the adapter.
    waits_since: Option<Instant>,
    /// The packet continues, because the call waits for it.
    is_left: bool,
    /// The packet is done.
    may_go_on: bool,
    is_over: bool,
}

#[derive(Default)]
struct Call {
    progress: Mutex<Progress>,
    changed: Condvar,
}

struct Running {
    id: u64,
    call: Arc<Call>,
    thread: JoinHandle<()>,
}

/// Reports that a local call is over, even if it panics.
struct Over(Arc<Call>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.progress.lock().is_over = true;
        self.0.changed.notify_all();
    }
}

/// Everything that the threads share.
pub(crate) struct Scene {
    me: Weak<Scene>,
    pub(crate) engine: Arc<Engine>,
    pub(crate) book: Book,
    pub(crate) random: Mutex<Rng>,
    pub(crate) registrar: OnceLock<Arc<Registrar>>,
    /// The bound file.
    pub(crate) ino: AtomicU64,
    pub(crate) other: AtomicU64,
    pub(crate) region: Mutex<Option<Arc<dyn Region>>>,
    /// Stops until the next event, and that event.
    pub(crate) trap: Mutex<Option<(u64, Act)>>,
    running: Mutex<Option<Running>>,
    call: Mutex<Option<Arc<Call>>>,
    /// Whether to stop the local call under way as well.
    stops_local: Mutex<bool>,
    pub(crate) second: Mutex<Option<Hosts<Watched>>>,
    /// Whether a packet is stopped for other events.
    is_stopped: Mutex<bool>,
    goes_on: Condvar,
    /// Calls that the second queue pair may make; `None`: any.
    calls_left: Mutex<Option<u64>>,
    seen: Mutex<HashSet<Vec<u8>>>,
    /// Whether to check replies to packets at once; otherwise only the state after a crash shows that one was wrong.
    pub(crate) is_checked: bool,
    /// Local calls that waited for a guard, and packets in the middle of other calls.
    pub(crate) waited: AtomicU64,
    pub(crate) between: AtomicU64,
}

impl Scene {
    pub(crate) fn new(engine: Arc<Engine>, book: Book, seed: u64, is_checked: bool) -> Arc<Scene> {
        ROLE.set(Role::First);
        number_thread(0);
        Arc::new_cyclic(|me| Scene {
            me: Weak::clone(me),
            engine,
            book,
            random: Mutex::new(Rng::new(seed)),
            registrar: OnceLock::new(),
            ino: AtomicU64::new(0),
            other: AtomicU64::new(0),
            region: Mutex::new(None),
            trap: Mutex::new(None),
            running: Mutex::new(None),
            call: Mutex::new(None),
            stops_local: Mutex::new(false),
            second: Mutex::new(None),
            is_stopped: Mutex::new(false),
            goes_on: Condvar::new(),
            calls_left: Mutex::new(None),
            seen: Mutex::default(),
            is_checked,
            waited: AtomicU64::new(0),
            between: AtomicU64::new(0),
        })
    }

    fn chance(&self, percent: u64) -> bool {
        self.random.lock().chance(percent)
    }

    /// Starts a local call; returns when it is over, or waits for the stopped packet.
    pub(crate) fn local(&self, effect: &Effect, stops: bool) {
        let id = self.book.begin(effect.clone());
        let call = Arc::<Call>::default();
        *self.call.lock() = Some(Arc::clone(&call));
        *self.stops_local.lock() = stops;
        let thread = {
            let (scene, call, effect) = (self.me.upgrade().unwrap(), Arc::clone(&call), effect.clone());
            std::thread::spawn(move || {
                let _over = Over(call);
                ROLE.set(Role::Local);
                number_thread(1);
                scene.perform(&effect);
            })
        };
        *self.running.lock() = Some(Running {
            id,
            call: Arc::clone(&call),
            thread,
        });
        let mut progress = call.progress.lock();
        loop {
            if progress.is_over {
                drop(progress);
                return self.end_local();
            }
            match progress.waits_since {
                Some(since) if !stops && since.elapsed() >= WAITS => {
                    progress.is_left = true;
                    self.waited.fetch_add(1, SeqCst);
                    return;
                }
                Some(_) if !stops => drop(call.changed.wait_for(&mut progress, WAITS)),
                _ => call.changed.wait(&mut progress),
            }
        }
    }

    /// The packet, if any, is done: waits for the local call under way.
    fn end_local(&self) {
        let Some(Running { id, call, thread }) = self.running.lock().take() else {
            return;
        };
        call.progress.lock().may_go_on = true;
        call.changed.notify_all();
        if let Err(panic) = thread.join() {
            std::panic::resume_unwind(panic);
        }
        *self.call.lock() = None;
        self.book.end(id, true);
    }

    /// The local call that runs on this thread.
    fn own_call(&self) -> Option<Arc<Call>> {
        (ROLE.get() == Role::Local).then(|| self.call.lock().clone()).flatten()
    }

    fn perform(&self, effect: &Effect) {
        let engine = &*self.engine;
        let (ino, other) = (self.ino.load(SeqCst), self.other.load(SeqCst));
        let write = |ino: Ino, at: usize, data: &[u8]| {
            let file = engine.open(SYSTEM, ino, OpenMode::read_write()).unwrap();
            assert_eq!(file.write_at(SYSTEM, at as u64, data).unwrap(), data.len());
        };
        let truncate = |ino: Ino, len: usize| {
            let set = SetAttr {
                size: Some(len as u64),
                ..SetAttr::default()
            };
            engine.setattr(SYSTEM, ino, &set).unwrap();
        };
        match effect {
            Effect::Write { at, data } => write(ino, *at, data),
            Effect::Truncate(len) => truncate(ino, *len),
            Effect::Zero { at, len } => {
                let mode = match at % 2 {
                    0 => FallocateMode::PunchHole,
                    _ => FallocateMode::ZeroRange { keep_size: true },
                };
                let file = engine.open(SYSTEM, ino, OpenMode::read_write()).unwrap();
                file.fallocate(SYSTEM, mode, *at as u64, *len as u64).unwrap();
            }
            Effect::Rename(name) => {
                let old = self.book.state().name.clone().unwrap();
                let (old, new) = (old.as_bytes(), name.as_bytes());
                engine
                    .rename(SYSTEM, ROOT_INO, old, ROOT_INO, new, RenameMode::Replace)
                    .unwrap();
            }
            Effect::Unlink => {
                let name = self.book.state().name.clone().unwrap();
                engine.unlink(SYSTEM, ROOT_INO, name.as_bytes()).unwrap();
            }
            Effect::Create(name) => {
                let node = NewNode {
                    kind: ferrite_vfs::FileKind::File,
                    mode: 0o644,
                    rdev: 0,
                };
                let made = engine.mknod(SYSTEM, ROOT_INO, name.as_bytes(), &node).unwrap();
                self.ino.store(made.ino, SeqCst);
            }
            Effect::OtherWrite { at, data } => write(other, *at, data),
            Effect::OtherTruncate(len) => truncate(other, *len),
            Effect::Nothing("stat") => drop(engine.getattr(SYSTEM, ino).unwrap()),
            Effect::Nothing("sync") => engine.sync(SYSTEM).unwrap(),
            Effect::Nothing("chmod") => {
                let set = SetAttr {
                    mode: Some(0o640),
                    ..SetAttr::default()
                };
                engine.setattr(SYSTEM, ino, &set).unwrap();
            }
            Effect::Nothing("unbind") => {
                let region = self.region.lock().take();
                region.into_iter().for_each(|region| region.unbind().unwrap());
            }
            other => panic!("{other:?} is not local"),
        }
    }

    /// Runs packets of the second queue pair, while another thread is stopped. They make at most `calls` calls of
    /// memory.
    fn run_second(&self, calls: Option<u64>, steps: u64) {
        *self.calls_left.lock() = calls;
        let scene = self.me.upgrade().unwrap();
        let thread = std::thread::spawn(move || {
            ROLE.set(Role::Second);
            number_thread(2);
            if let Some(hosts) = &mut *scene.second.lock() {
                (0..steps).all(|_| hosts.step());
            }
        });
        if let Err(panic) = thread.join() {
            std::panic::resume_unwind(panic);
        }
        *self.calls_left.lock() = None;
    }

    /// The same while no thread is stopped.
    pub(crate) fn run_second_alone(&self, steps: u64) {
        self.run_second(None, steps);
    }

    /// Waits for range faults.
    pub(crate) fn settle(&self) {
        let registrar = self.registrar.get().unwrap();
        let start = Instant::now();
        while registrar.list().iter().any(|file| file.status.faults > 0) {
            assert!(start.elapsed() < HANGS, "a fault hangs");
            std::thread::yield_now();
        }
    }

    /// The bytes that the file has now, as far as replies have shown.
    fn content(&self, at: usize, len: usize) -> Vec<u8> {
        self.book.state().content[at..at + len].to_vec()
    }
}

impl Stops for Scene {
    fn in_packet(&self, holds_others: bool) {
        if ROLE.get() != Role::First {
            return;
        }
        let act = match &mut *self.trap.lock() {
            Some((0, act)) => act.clone(),
            Some((left, _)) => {
                *left -= 1;
                return;
            }
            None => return,
        };
        *self.trap.lock() = None;
        match act {
            Act::Local(effect) => self.local(&effect, false),
            Act::Second if !holds_others => {
                *self.is_stopped.lock() = true;
                self.run_second(Some(3), 6);
                *self.is_stopped.lock() = false;
                self.goes_on.notify_all();
            }
            Act::Second => {}
        }
    }

    fn done_by_engine(&self) {
        if let Some(id) = CURRENT.take() {
            self.book.end(id, true);
        }
    }

    fn is_seen_at_once(&self) -> bool {
        self.chance(50)
    }

    fn begins_to_wait(&self, is_before: bool) {
        let Some(call) = self.own_call() else {
            return;
        };
        if is_before && *self.stops_local.lock() && self.chance(60) {
            self.run_second(Some(3), 4);
        }
        call.progress.lock().waits_since = Some(Instant::now());
        call.changed.notify_all();
    }

    fn has_waited(&self, is_before: bool) {
        let Some(call) = self.own_call() else {
            return;
        };
        let mut progress = call.progress.lock();
        progress.waits_since = None;
        while progress.is_left && !progress.may_go_on {
            call.changed.wait(&mut progress);
        }
        drop(progress);
        if is_before && *self.stops_local.lock() && self.chance(60) {
            self.run_second(Some(3), 4);
        }
    }

    fn before_fault(&self) {
        let mut is_stopped = self.is_stopped.lock();
        while *is_stopped {
            self.goes_on.wait(&mut is_stopped);
        }
    }
}

/// The memory of one adapter's thread.
pub(crate) struct Watched {
    scene: Arc<Scene>,
    below: FileMemory,
}

impl Watched {
    pub(crate) fn new(scene: &Arc<Scene>, below: FileMemory) -> Watched {
        let scene = Arc::clone(scene);
        Watched { scene, below }
    }

    /// Makes a call for a packet with this `effect`.
    fn does<T>(
        &mut self,
        effect: Effect,
        is_for_engine: bool,
        has_happened: impl Fn(&T) -> bool,
        call: impl FnOnce(&mut FileMemory) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        self.may_call(is_for_engine)?;
        let id = self.scene.book.begin(effect);
        CURRENT.set(Some(id));
        let result = call(&mut self.below);
        seam::guard_is_released();
        if let Some(id) = CURRENT.take() {
            let happened = result.as_ref().is_ok_and(has_happened);
            self.scene.book.end(id, happened);
        }
        if result.is_ok() && self.scene.calls_left.lock().is_some() {
            self.scene.between.fetch_add(1, SeqCst);
        }
        self.after();
        result
    }

    /// Whether the second queue pair may make one more call.
    fn may_call(&self, is_for_engine: bool) -> Result<(), Fault> {
        match &mut *self.scene.calls_left.lock() {
            _ if ROLE.get() == Role::First => Ok(()),
            None => Ok(()),
            Some(left) if *left > 0 && !is_for_engine => {
                *left -= 1;
                Ok(())
            }
            Some(_) => Err(LATER),
        }
    }

    /// The packet is done: threads that wait for it continue, and the results that it has requested are there before
    /// the next one.
    fn after(&self) {
        seam::guard_is_released();
        if ROLE.get() == Role::First {
            self.scene.end_local();
        }
        if ROLE.get() == Role::First || self.scene.calls_left.lock().is_none() {
            self.scene.settle();
        }
    }
}

impl Memory for Watched {
    fn begin(&mut self, message: &Message) -> Result<Delivery, Fault> {
        self.may_call(false)?;
        let begun = self.below.begin(message);
        self.after();
        begun
    }

    fn write(&mut self, message: &Message, part: &Part<'_>) -> Result<(), Fault> {
        let effect = Effect::Store {
            at: message.at as usize + part.offset_bytes as usize,
            data: part.data.to_vec(),
        };
        self.does(effect, false, |()| true, |below| below.write(message, part))
    }

    fn write_whole(&mut self, message: &Message, data: &[u8], immediate: Option<u32>) -> Result<(), Fault> {
        let effect = match message.is_append() {
            true => Effect::Append(data.to_vec()),
            false => Effect::Write {
                at: message.at as usize,
                data: data.to_vec(),
            },
        };
        let is_append = message.is_append();
        let done = self.does(
            effect,
            true,
            |()| true,
            |below| below.write_whole(message, data, immediate),
        );
        if done.is_ok() && is_append {
            assert!(self.scene.seen.lock().insert(data.to_vec()), "an append came twice");
        }
        done
    }

    fn abandon(&mut self, message: &Message, arrived_bytes: u32) {
        self.below.abandon(message, arrived_bytes);
    }

    fn may_read(&mut self, message: &Message) -> Result<(), Fault> {
        self.may_call(false)?;
        let may = self.below.may_read(message);
        self.after();
        may
    }

    fn read(&mut self, message: &Message, offset_bytes: u32, into: &mut [u8]) -> Result<(), Fault> {
        self.may_call(false)?;
        let is_alone = !self.scene.book.has_stores();
        let read = self.below.read(message, offset_bytes, into);
        if read.is_ok() && is_alone && self.scene.is_checked {
            let at = message.at as usize + offset_bytes as usize;
            assert!(*into == self.scene.content(at, into.len()), "a READ at {at} is wrong");
        }
        self.after();
        read
    }

    fn fetch_add(&mut self, qpn: Qpn, key: u32, at: u64, add: u64) -> Result<u64, Fault> {
        let call = |below: &mut FileMemory| below.fetch_add(qpn, key, at, add);
        if at == RESERVE_AT {
            return self.does(Effect::Reserve(add as usize), true, |_| true, call);
        }
        let scene = Arc::clone(&self.scene);
        let before = |found: &u64| {
            let content = &scene.book.state().content;
            assert_eq!(
                *found,
                word_at(content, at as usize),
                "an addition found something else"
            );
            true
        };
        let done = self.does(Effect::Word { at: at as usize, add }, false, before, call);
        if done.is_ok() {
            let name = add.to_le_bytes().to_vec();
            assert!(self.scene.seen.lock().insert(name), "an addition came twice");
        }
        done
    }

    fn compare_swap(&mut self, qpn: Qpn, key: u32, at: u64, compare: u64, swap: u64) -> Result<u64, Fault> {
        let has_swapped = |found: &u64| *found == compare;
        if at == RESERVE_AT {
            let (from, to) = (compare as usize, swap as usize);
            return self.does(Effect::Extend { from, to }, true, has_swapped, |below| {
                below.compare_swap(qpn, key, at, compare, swap)
            });
        }
        let effect = Effect::Word {
            at: at as usize,
            add: swap.wrapping_sub(compare),
        };
        self.does(effect, false, has_swapped, |below| {
            below.compare_swap(qpn, key, at, compare, swap)
        })
    }

    fn receive(&mut self, qpn: Qpn, received: &Received<'_>) -> Result<(), Fault> {
        self.below.receive(qpn, received)
    }
}
