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
    assert!(LISTS.lock().are_empty());
}

/// A peer whose first message comes after it was forgotten, and which then goes; and one that was introduced when it
/// had gone already. Both ended the process, within libfabric.
#[test]
fn peers_that_come_late_and_go_do_no_harm() {
    if !Provider::Shm.is_there() {
        eprintln!("skipped: libfabric has no provider shm here");
        return;
    }
    let mut server = open();
    for turn in 0..20 {
        let mut client = open();
        let client_name = client.name().expect("a name");
        let peer = server.insert(&client_name).expect("known");
        let to_server = client.insert(&server.name().expect("a name")).expect("known");
        server.remove(peer);
        // The first one only asks to be known.
        let sent = (0..3)
            .filter(|_| client.inject(to_server, b"late").unwrap_or(false))
            .count();
        if turn % 2 == 0 {
            server.poll(&mut Vec::new()).expect("polled");
        }
        drop(client);
        for _ in 0..2 * POLLS_PER_LOOK {
            server.poll(&mut Vec::new()).expect("polled");
        }
        assert!(server.known.is_empty(), "{sent} messages, and it is still known");
        assert!(server.insert(&client_name).is_err(), "it is known after its end");
    }
    assert!(LISTS.lock().are_empty());
}
