//! How long the cache keeps replies.

use ferrite_vfs::memfs::MemFs;
use ferrite_vfs::{FileSystem, ROOT_INO, SYSTEM};

use super::*;

const TERM: Duration = Duration::from_millis(200);

fn attr() -> Attr {
    MemFs::new().getattr(SYSTEM, ROOT_INO).unwrap()
}

fn node(attr: &Attr) -> Node {
    Node {
        ino: attr.ino,
        generation: attr.generation,
        mac: 0,
    }
}

fn requester() -> Requester {
    Requester {
        caller: Caller {
            uid: 0,
            gid: 0,
            groups: Vec::new(),
        },
        check: false,
    }
}

/// A reply arrives when its term is over, after one that was requested later: the lease had ended between the two,
/// and something may have changed in between.
#[test]
fn a_reply_is_not_kept_longer_than_its_own_term_whatever_came_before_it() {
    let (cache, attr) = (Cache::new(1 << 20), attr());
    let node = node(&attr);
    cache.connected(TERM);
    let early = cache.ask();
    std::thread::sleep(TERM * 3 / 2);
    // On a stalled machine the second may be over as well: then the test retries.
    let late = (0..50).find_map(|_| {
        let late = cache.ask();
        cache.keep_attr(&late, &attr);
        cache.attr(node).map(|_| late)
    });
    let late = late.expect("a reply in time is kept");
    cache.keep_data(&early, node, 0, b"old", 16);
    cache.keep_name(&early, node, b"name", requester(), None);
    assert_eq!(cache.read(node, 0, &mut [0; 3]), None, "data of a reply that came late");
    assert_eq!(
        cache.name(node, b"name", &requester()).map(|found| found.is_err()),
        None
    );
    cache.keep_data(&late, node, 0, b"new", 16);
    cache.keep_attr(&early, &Attr { size: 99, ..attr });
    let kept = cache.attr(node);
    assert!(kept.is_none_or(|kept| kept.size == attr.size), "{kept:?}");
}

/// The term counts from before the request was sent, and only another reply extends it.
#[test]
fn nothing_is_served_after_its_term() {
    let (cache, attr) = (Cache::new(1 << 20), attr());
    let node = node(&attr);
    cache.connected(TERM);
    let start = cache.ask();
    cache.keep_attr(&start, &attr);
    cache.keep_data(&start, node, 0, b"data", 16);
    while start.since.0 + TERM > Moment::now().0 {
        // A hit does not renew it.
        let _ = (cache.attr(node), cache.read(node, 0, &mut [0; 4]));
        std::thread::sleep(TERM / 20);
    }
    assert_eq!((cache.attr(node), cache.read(node, 0, &mut [0; 4])), (None, None));
    assert_eq!(cache.validity(&attr), Duration::ZERO);
}
