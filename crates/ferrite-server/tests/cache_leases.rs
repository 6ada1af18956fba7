//! A client's guarantees to a kernel that caches its replies: no change happens before they are revoked.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use crate::common::{connect, connect_leased, export, serve};
use ferrite_client::Client;
use ferrite_server::ServerOptions;
use ferrite_vfs::memfs::MemFs;
use ferrite_vfs::{
    Attr, CacheLeases, FileSystem, FsError, Ino, NewFile, OpenMode, ROOT_INO, RecallHandler, SYSTEM, SetAttr,
};

const TERM: Duration = Duration::from_millis(1500);
/// The delay that a loaded machine may add.
const SLACK: Duration = Duration::from_secs(5);

struct Two {
    _server: ferrite_server::Server,
    holder: Client,
    other: Client,
    attr: Attr,
}

impl Two {
    fn new() -> Two {
        let options = ServerOptions::default().cache_term(TERM);
        let (server, address) = serve(Arc::new(MemFs::new()), vec![export("")], &options);
        let (holder, other) = (connect_leased(&address, 1 << 20), connect(&address));
        let new = NewFile {
            mode: 0o644,
            open: OpenMode::read_write(),
            exclusive: true,
        };
        let attr = other.create(SYSTEM, ROOT_INO, b"file", &new).unwrap().attr;
        Two {
            _server: server,
            holder,
            other,
            attr,
        }
    }

    fn cache_leases(&self) -> &dyn CacheLeases {
        self.holder.cache_leases().expect("it keeps something")
    }

    /// Makes calls as a kernel does, and returns how long the replies may be cached: attributes, the name, and another
    /// that is absent.
    fn requested(&self) -> [Duration; 3] {
        let holder = &self.holder;
        let attr = holder.lookup(SYSTEM, ROOT_INO, b"file").unwrap();
        let missing = holder.lookup(SYSTEM, ROOT_INO, b"missing");
        assert_eq!(missing, Err(FsError::NotFound));
        let cache_leases = self.cache_leases();
        [
            cache_leases.attr(&holder.getattr(SYSTEM, attr.ino).unwrap()),
            cache_leases.name(ROOT_INO, b"file", Some(attr.ino)),
            cache_leases.name(ROOT_INO, b"missing", None),
        ]
    }

    fn change(&self) -> Duration {
        let began = Instant::now();
        let set = SetAttr {
            mode: Some(0o600),
            ..SetAttr::default()
        };
        self.other.setattr(SYSTEM, self.attr.ino, &set).unwrap();
        began.elapsed()
    }
}

/// Reports which inodes are revoked, each after a while.
fn watcher(after: Duration, done: bool) -> (RecallHandler, Receiver<Ino>) {
    let (sender, taken) = channel();
    let sender = parking_lot::Mutex::new(sender);
    let handler = move |ino| {
        std::thread::sleep(after);
        let _ = sender.lock().send(ino);
        done
    };
    (Box::new(handler), taken)
}

#[test]
fn the_client_gives_no_lease_without_one_of_its_own_or_before_it_can_recall() {
    let two = Two::new();
    assert!(two.other.cache_leases().is_none());
    assert_eq!(two.requested(), [Duration::ZERO; 3]);
    two.cache_leases().watch(watcher(Duration::ZERO, true).0);
    for validity in two.requested() {
        assert!(validity > Duration::ZERO && validity <= TERM / 2, "{validity:?}");
    }
    // Nor for replies that it has not given.
    let cache_leases = two.cache_leases();
    let other = Attr { size: 7, ..two.attr };
    assert_eq!(cache_leases.attr(&other), Duration::ZERO);
    assert_eq!(cache_leases.name(ROOT_INO, b"file", None), Duration::ZERO);
    assert_eq!(cache_leases.name(ROOT_INO, b"file", Some(99)), Duration::ZERO);
    assert_eq!(cache_leases.name(ROOT_INO, b"unknown", None), Duration::ZERO);
}

#[test]
fn a_change_waits_until_what_was_cached_is_taken_back() {
    const SLOW: Duration = Duration::from_millis(300);
    let two = Two::new();
    let (handler, taken) = watcher(SLOW, true);
    two.cache_leases().watch(handler);
    assert!(two.requested()[0] > Duration::ZERO);
    let took = two.change();
    assert!(took >= SLOW, "{took:?}");
    assert_eq!(taken.try_recv(), Ok(two.attr.ino));
    // Its own changes revoke nothing.
    two.holder.lookup(SYSTEM, ROOT_INO, b"file").unwrap();
    let set = SetAttr {
        mode: Some(0o640),
        ..SetAttr::default()
    };
    two.holder.setattr(SYSTEM, two.attr.ino, &set).unwrap();
    assert!(taken.try_recv().is_err());
}

#[test]
fn what_cannot_be_recalled_is_over_with_its_lease() {
    let two = Two::new();
    let (handler, taken) = watcher(Duration::ZERO, false);
    two.cache_leases().watch(handler);
    assert!(two.requested()[0] > Duration::ZERO);
    let took = two.change();
    assert!(took >= TERM / 2 && took < TERM + SLACK, "{took:?}");
    assert_eq!(taken.try_recv(), Ok(two.attr.ino));
}

/// A broken connection revokes no replies of the client: its guarantees hold nevertheless.
#[test]
fn what_was_cached_holds_over_a_broken_connection() {
    for connects_first in [true, false] {
        let two = Two::new();
        let is_taken = Arc::new(AtomicBool::new(false));
        let taking = Arc::clone(&is_taken);
        two.cache_leases().watch(Box::new(move |_| {
            taking.store(true, Ordering::SeqCst);
            true
        }));
        let began = Instant::now();
        let validity = two.requested()[0];
        assert!(validity > Duration::ZERO);
        two.holder.disconnect();
        if connects_first {
            two.holder.statfs(SYSTEM).unwrap();
            assert_eq!(two.holder.reconnects(), 1);
        }
        two.change();
        assert!(
            is_taken.load(Ordering::SeqCst) || began.elapsed() >= validity,
            "changed {:?} after it was cached for {validity:?}",
            began.elapsed()
        );
    }
}

/// Many changes and many lookups: at no time has the client a lease on state that has changed already.
#[test]
fn what_is_kept_is_never_older_than_a_change_that_has_returned() {
    let two = Two::new();
    // The mode that may be cached, and until when, in nanoseconds since the start; as a kernel has it.
    let start = Instant::now();
    let kept = Arc::new(parking_lot::Mutex::new((0u32, Duration::ZERO)));
    let versions = Arc::new(AtomicU64::new(0));
    {
        let (kept, versions) = (Arc::clone(&kept), Arc::clone(&versions));
        two.cache_leases().watch(Box::new(move |_| {
            // Replies in flight are older than this.
            versions.fetch_add(1, Ordering::SeqCst);
            kept.lock().1 = Duration::ZERO;
            true
        }));
    }
    two.holder.lookup(SYSTEM, ROOT_INO, b"file").unwrap();
    let ends = start + Duration::from_secs(2);
    let (mut looks, mut changes) = (0, 0);
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let mut count = 0;
            while Instant::now() < ends {
                let version = versions.load(Ordering::SeqCst);
                let attr = two.holder.getattr(SYSTEM, two.attr.ino).unwrap();
                let validity = two.cache_leases().attr(&attr);
                let mut kept = kept.lock();
                if versions.load(Ordering::SeqCst) == version {
                    *kept = (attr.mode & 0o777, start.elapsed() + validity);
                    count += u32::from(validity > Duration::ZERO);
                }
            }
            count
        });
        let mut mode = 0;
        while Instant::now() < ends {
            mode = (mode + 1) % 0o777;
            let set = SetAttr {
                mode: Some(mode),
                ..SetAttr::default()
            };
            two.other.setattr(SYSTEM, two.attr.ino, &set).unwrap();
            let (known, until) = *kept.lock();
            assert!(
                until <= start.elapsed() || known == mode,
                "{known:o} is kept, and it is {mode:o} already"
            );
            changes += 1;
        }
        looks += asking.join().unwrap();
    });
    assert!(looks > 10 && changes > 10, "{looks} looks, {changes} changes");
}
