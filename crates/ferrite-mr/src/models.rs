//! Models of guards, revocation and appends under many schedules (shuttle).
//!
//! Contents: the real [`FileMr`] with an engine of one page, and the real [`Appends`]. The models must notice mistakes
//! in how they are used; otherwise they would prove nothing. `cargo test -p ferrite-mr --features shuttle --lib models`
//! runs them. Shuttle treats every atomic instruction as sequentially consistent.

use std::sync::Arc;

use ferrite_vfs::regions::{Access, Adapter, PageRun, Region};
use ferrite_vfs::{Attr, FsError, Ino, Result, SYSTEM};
use shuttle::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use shuttle::thread;

use crate::appends::Appends;
use crate::file::{FileId, FileMr};
use crate::key::{Holder, Key, Rights, SessionId, may_keep};
use crate::translation::Place;

fn holds(model: impl Fn() + Send + Sync + Clone + 'static) {
    shuttle::check_random(model.clone(), 3000);
    shuttle::check_pct(model, 1000, 3);
}

fn is_noticed(name: &str, model: impl Fn() + Send + Sync + Clone + 'static) {
    let noticed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        shuttle::check_random(model.clone(), 100_000);
        shuttle::check_pct(model, 50_000, 3);
    }));
    assert!(noticed.is_err(), "{name}: not noticed");
}

/// Two pages of memory. A store takes two steps, so that a page can be taken away in between.
#[derive(Default)]
struct Pages {
    words: [AtomicU64; 2],
    is_mapped: [AtomicBool; 2],
    appended: AtomicU64,
}

impl Region for Pages {
    fn ino(&self) -> Ino {
        1
    }

    fn attr(&self) -> Result<Attr> {
        Err(FsError::Stale)
    }

    fn store(&self, page: u32, _: u32, data: &[u8]) {
        let page = page as usize;
        assert!(self.is_mapped[page].load(SeqCst), "a store to a page that was revoked");
        self.words[page].store(u64::from(data[0]), SeqCst);
        assert!(self.is_mapped[page].load(SeqCst), "a page was revoked during a store");
    }

    fn load(&self, _: u32, _: u32, _: &mut [u8]) {}

    fn fetch_add(&self, _: u32, _: u32, _: u64) -> u64 {
        0
    }

    fn compare_swap(&self, _: u32, _: u32, _: u64, _: u64) -> u64 {
        0
    }

    fn fence(&self) -> Result<()> {
        Ok(())
    }

    fn fault(&self, _: u32, _: u32, _: Access) -> Result<()> {
        Ok(())
    }

    fn append(&self, parts: &[&[u8]]) -> Result<u64> {
        Ok(self.appended.fetch_add(parts.len() as u64, SeqCst))
    }

    fn reserve(&self, _: u64) -> Result<u64> {
        Ok(0)
    }

    fn extend(&self, _: u64, _: u64) -> Result<u64> {
        Ok(0)
    }

    fn write_atomic(&self, _: u64, _: &[u8]) -> Result<()> {
        Ok(())
    }

    fn unbind(&self) -> Result<()> {
        Ok(())
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Flaw {
    None,
    /// The page is found under a guard, and stored to without.
    StoreBehindGuard,
    /// The engine takes the page without a revocation.
    NoRevocation,
    /// The engine publishes the page before it is copied.
    EarlyPublish,
    /// A key is revoked without waiting for its accesses.
    NoDrain,
}

fn run_of(page: u32) -> PageRun {
    PageRun {
        at: 0,
        page: Some(page),
        pages: 1,
    }
}

fn file_of(pages: &Arc<Pages>) -> (Arc<FileMr>, Arc<Key>) {
    let id = FileId { engine: 0, ino: 1 };
    let file = Arc::new(FileMr::new(0, id, 0, Arc::new(may_keep)));
    pages.is_mapped[0].store(true, SeqCst);
    file.resize(4096);
    file.publish(&[run_of(0)]);
    file.bound(Arc::clone(pages) as _);
    let holder = Holder {
        session: SessionId(1),
        rights: Rights::ALL,
        cred: SYSTEM.check.then(|| SYSTEM.cred.clone()),
    };
    let key = Arc::new(Key::new(1, holder));
    file.add_key(Arc::clone(&key));
    (file, key)
}

/// Packets write a page that the engine copies elsewhere. Writes acknowledged to them are in the copy.
fn a_page_moves_under_packets(flaw: Flaw) {
    let pages = Arc::new(Pages::default());
    let (file, key) = file_of(&pages);
    let packet = {
        let (file, key, pages) = (Arc::clone(&file), Arc::clone(&key), Arc::clone(&pages));
        thread::spawn(move || {
            let guard = file.guard(&key).expect("a key that is good");
            let Place::Run(run) = guard.place(0) else {
                return false;
            };
            let region = Arc::clone(&pages);
            let guard = (flaw != Flaw::StoreBehindGuard).then_some(guard);
            region.store(run.run.page, 0, &[7]);
            region.fence().expect("memory does not fail");
            drop(guard);
            true
        })
    };
    let engine = {
        let (file, pages) = (Arc::clone(&file), Arc::clone(&pages));
        thread::spawn(move || {
            if flaw != Flaw::NoRevocation {
                file.revoke(0, 1);
            }
            pages.is_mapped[0].store(false, SeqCst);
            let copy = pages.words[0].load(SeqCst);
            pages.is_mapped[1].store(true, SeqCst);
            if flaw == Flaw::EarlyPublish {
                file.publish(&[run_of(1)]);
            }
            pages.words[1].store(copy, SeqCst);
            file.publish(&[run_of(1)]);
        })
    };
    let is_written = packet.join().unwrap();
    engine.join().unwrap();
    assert!(
        !is_written || pages.words[1].load(SeqCst) == 7,
        "an acknowledged write is lost"
    );
}

#[test]
fn a_store_never_meets_a_page_that_was_revoked() {
    holds(|| a_page_moves_under_packets(Flaw::None));
    for (name, flaw) in [
        ("a store behind the guard", Flaw::StoreBehindGuard),
        ("no revocation", Flaw::NoRevocation),
        ("a page published before it is copied", Flaw::EarlyPublish),
    ] {
        is_noticed(name, move || a_page_moves_under_packets(flaw));
    }
}

/// A key is revoked while packets use it, by a store and by an append.
fn a_key_is_revoked(flaw: Flaw) {
    let pages = Arc::new(Pages::default());
    let (file, key) = file_of(&pages);
    let is_over = Arc::new(AtomicBool::new(false));
    let threads: Vec<_> = [false, true]
        .into_iter()
        .map(|is_append| {
            let (file, key, is_over) = (Arc::clone(&file), Arc::clone(&key), Arc::clone(&is_over));
            thread::spawn(move || {
                if is_append {
                    let _ = file.call(&key, |region| {
                        let at = region.append(&[b"a"]);
                        assert!(!is_over.load(SeqCst), "an append by a revoked key");
                        at
                    });
                } else if let Ok(guard) = file.guard(&key) {
                    guard.region().expect("it is bound").store(0, 0, &[1]);
                    assert!(!is_over.load(SeqCst), "a store by a revoked key");
                }
            })
        })
        .collect();
    key.revoke();
    if flaw != Flaw::NoDrain {
        file.drain();
    }
    is_over.store(true, SeqCst);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn a_revoked_key_is_not_in_use() {
    holds(|| a_key_is_revoked(Flaw::None));
    is_noticed("nobody is waited for", || a_key_is_revoked(Flaw::NoDrain));
}

/// Three threads append a byte each, and may share a step. The first step may fail.
fn appends_are_combined(fails: bool) {
    let state = Arc::new((
        Appends::default(),
        AtomicU64::new(0),
        AtomicU64::new(0),
        AtomicBool::new(false),
    ));
    let threads: Vec<_> = (0..3)
        .map(|_| {
            let state = Arc::clone(&state);
            thread::spawn(move || {
                let (appends, end, steps, is_busy) = &*state;
                appends.append(b"a", &|parts| {
                    assert!(!is_busy.swap(true, SeqCst), "two steps at a time");
                    thread::yield_now();
                    let is_first = steps.fetch_add(1, SeqCst) == 0;
                    let at = match fails && is_first {
                        true => Err(FsError::Stale),
                        false => Ok(end.fetch_add(parts.len() as u64, SeqCst)),
                    };
                    is_busy.store(false, SeqCst);
                    at
                })
            })
        })
        .collect();
    let results: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    let mut places: Vec<u64> = results
        .iter()
        .filter_map(|result| result.as_ref().ok().copied())
        .collect();
    places.sort_unstable();
    assert_eq!(
        places,
        (0..places.len() as u64).collect::<Vec<_>>(),
        "each at a place of its own"
    );
    assert_eq!(places.len() as u64, state.1.load(SeqCst));
    assert!(places.len() >= if fails { 2 } else { 3 });
}

#[test]
fn appends_come_once_each_and_nobody_waits_forever() {
    holds(|| appends_are_combined(false));
    holds(|| appends_are_combined(true));
}
