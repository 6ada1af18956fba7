//! The cost of a client that has worked and is now idle.
//!
//! The server is a process of its own ([`common::child`]), so that only its memory is counted. The system reports that
//! on Linux only.

#![cfg(target_os = "linux")]

mod common;

use std::time::{Duration, Instant};

use common::child::{Site, serve_if_child};
use common::make_pool;
use common::raw::{Raw, root_without_mac};
use ferrite_proto::{FsRequest, ImmediateRequest};

/// Not a test: the work of the measured process.
#[test]
fn child() {
    serve_if_child();
}

const CLIENTS: u64 = 200;
/// The server's own memory for an idle client, at most. Its whole cost may be 256 KiB; its socket is part of that.
const CLIENT_BYTES_MAX: u64 = 64 << 10;
/// A request so long that keeping its space would exceed that.
const NAME_BYTES: usize = 120 << 10;

#[test]
fn an_idle_client_holds_little_of_the_servers_memory() {
    let path = make_pool(64 << 20, 1000);
    let site = Site::new(&path, Duration::from_secs(600), 2);
    let work = |raw: &mut Raw| {
        // Refused, which is a reply too; the space for the request was taken.
        let name = vec![b'n'; NAME_BYTES];
        let _ = raw.refused(&FsRequest::Lookup {
            parent: root_without_mac(),
            name: &name,
        });
        raw.done::<()>(&ImmediateRequest::Ping {});
    };
    // Memory that the server allocates once, for the first clients, is not any client's.
    let mut first: Vec<Raw> = (0..8).map(|_| Raw::with_session(&site.address, "").0).collect();
    first.iter_mut().for_each(work);
    let before = site.memory_bytes();
    let mut idle: Vec<Raw> = (0..CLIENTS).map(|_| Raw::with_session(&site.address, "").0).collect();
    idle.iter_mut().for_each(work);
    // The server frees the space after the reply, not before it.
    let began = Instant::now();
    let mut each = u64::MAX;
    while each > CLIENT_BYTES_MAX && began.elapsed() < Duration::from_secs(10) {
        each = site.memory_bytes().saturating_sub(before) / CLIENTS;
        std::thread::sleep(Duration::from_millis(20));
    }
    println!("an idle client costs {each} bytes of the server's memory");
    assert!(each <= CLIENT_BYTES_MAX, "{each} bytes for each idle client");
}
