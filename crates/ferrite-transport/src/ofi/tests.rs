//! Tests of endpoints.

use super::*;

fn open() -> Endpoint {
    Endpoint::open(Provider::Shm, None, 8, &Pool::new(1).expect("memory"), Reach::Remote).expect("shm")
}

/// A client and its server in one process: either may be gone first, while the other still sends to it.
#[test]
fn an_endpoint_stays_while_another_of_this_process_knows_it() {
    if !Provider::Shm.is_there() {
        eprintln!("skipped: libfabric has no provider shm here");
        return;
    }
    let (mut stays, mut goes) = (open(), open());
    let name = goes.name().expect("a name");
    let text = String::from_utf8_lossy(&name);
    let text = text.trim_matches('\0').trim_start_matches("fi_shm://");
    let file = std::path::Path::new("/dev/shm").join(text);
    let is_there = || file.exists();
    assert!(is_there(), "{file:?}");
    let peer = stays.insert(&name).expect("known");
    // The first send finds that the other side does not know this one yet.
    let is_sent = (0..1000).any(|_| {
        goes.poll(&mut Vec::new()).expect("polled");
        stays.poll(&mut Vec::new()).expect("polled");
        stays.inject(peer, b"there").expect("sent")
    });
    assert!(is_sent);
    drop(goes);
    assert!(is_there(), "it was closed under who knows it");
    for _ in 0..3 {
        stays.inject(peer, b"gone").expect("sent");
        stays.poll(&mut Vec::new()).expect("polled");
    }
    stays.remove(peer);
    assert!(!is_there(), "nobody closed it");
    // Both know each other, and neither forgets the other.
    let mut goes = open();
    stays.insert(&goes.name().expect("a name")).expect("known");
    goes.insert(&stays.name().expect("a name")).expect("known");
    drop(goes);
    drop(stays);
    assert!(LISTS.lock().closing.is_empty());
}
