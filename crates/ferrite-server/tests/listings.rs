//! The cost of listings: a client that takes a directory in small parts, as kernels do, receives not much more than it
//! takes, and one that takes it at once needs no more replies for that.

use std::sync::Arc;

use crate::common::raw::Raw;
use crate::common::{connect, export, serve};
use ferrite_client::Client;
use ferrite_proto::{Counted, ENTRY_FOLLOWS, Entry, FsRequest, LISTING_BYTES_MAX, LISTING_GOES_ON, Reader, Request};
use ferrite_server::{Server, ServerOptions};
use ferrite_vfs::memfs::MemFs;
use ferrite_vfs::{FileKind, FileSystem, Ino, NewNode, ROOT_INO, SYSTEM};

const ENTRIES: usize = 3000;
/// Entries that a kernel's buffer of 4 KiB holds, with attributes and without.
const PART: [usize; 2] = [20, 80];

fn directory() -> (Server, String, Client, Ino) {
    let fs = Arc::new(MemFs::new());
    let dir = fs.mkdir(SYSTEM, ROOT_INO, b"dir", 0o755).unwrap().ino;
    let file = NewNode {
        kind: FileKind::File,
        mode: 0o644,
        rdev: 0,
    };
    for index in 0..ENTRIES {
        let name = format!("a file number {index:05}");
        fs.mknod(SYSTEM, dir, name.as_bytes(), &file).unwrap();
    }
    let (server, address) = serve(fs, vec![export("")], &ServerOptions::default());
    let client = connect(&address);
    assert_eq!(client.lookup(SYSTEM, ROOT_INO, b"dir").unwrap().ino, dir);
    (server, address, client, dir)
}

/// The cost of listings so far.
fn cost(client: &Client) -> Counted {
    let operations = client.activity().unwrap().operations;
    let is_listing = |number: u16| Request::name_of(number) == Some("Readdir");
    let found = operations.into_iter().find(|operation| is_listing(operation.number));
    found.map(|operation| operation.counted).unwrap_or_default()
}

/// Takes up to `count` entries from `cookie` on; returns how many there were, and the cookie after them.
fn part(client: &Client, dir: Ino, with_attributes: bool, cookie: u64, count: usize) -> (usize, u64) {
    let (mut taken, mut next) = (0, cookie);
    let mut take = |next_cookie| {
        if taken == count {
            return false;
        }
        (taken, next) = (taken + 1, next_cookie);
        true
    };
    match with_attributes {
        true => client.readdir_plus(SYSTEM, dir, cookie, &mut |entry, attr| {
            assert!(attr.is_ok());
            take(entry.next_cookie)
        }),
        false => client.readdir(SYSTEM, dir, cookie, &mut |entry| take(entry.next_cookie)),
    }
    .unwrap();
    (taken, next)
}

/// The number of replies, and their bytes, for a whole directory in parts.
fn take_all(client: &Client, dir: Ino, with_attributes: bool, count: usize) -> (u64, u64) {
    let before = cost(client);
    let (mut cookie, mut all) = (0, 0);
    loop {
        let (taken, next) = part(client, dir, with_attributes, cookie, count);
        (all, cookie) = (all + taken, next);
        if taken < count {
            break;
        }
    }
    assert_eq!(all, ENTRIES);
    let after = cost(client);
    (after.requests - before.requests, after.sent_bytes - before.sent_bytes)
}

#[test]
fn small_parts_cost_little_more_than_the_whole() {
    let (_server, _, client, dir) = directory();
    for with_attributes in [false, true] {
        let (whole_replies, whole_bytes) = take_all(&client, dir, with_attributes, usize::MAX);
        let part = PART[usize::from(!with_attributes)];
        let (replies, bytes) = take_all(&client, dir, with_attributes, part);
        let (again_replies, again_bytes) = take_all(&client, dir, with_attributes, usize::MAX);
        eprintln!(
            "with attributes {with_attributes}: whole {whole_replies} replies, {whole_bytes} bytes; in parts of {part} \
             {replies} replies, {bytes} bytes; whole again {again_replies} replies, {again_bytes} bytes"
        );
        let parts = (ENTRIES / part + 1) as u64;
        assert!(replies <= parts + 2, "{replies} replies for {parts} parts");
        assert!(
            bytes < 2 * whole_bytes,
            "{bytes} bytes in parts, {whole_bytes} as a whole"
        );
        assert!(again_replies <= whole_replies + 2);
        // The server does not send entries twice that the caller has taken.
        assert!(again_bytes < whole_bytes + whole_bytes / 20);
    }
}

/// The server sends as much as the client wants, but always an entry, and never more than fits into a message.
#[test]
fn a_reply_is_as_long_as_is_wanted() {
    let (_server, address, _client, _) = directory();
    let (mut raw, welcome) = Raw::with_session(&address, "");
    let dir: ferrite_proto::NodeAttr = raw.done(&FsRequest::Lookup {
        parent: welcome.root,
        name: b"dir",
    });
    for with_attributes in [false, true] {
        for reply_bytes in [0, 1, 1000, 5000, LISTING_BYTES_MAX as u32, u32::MAX] {
            let request = FsRequest::Readdir {
                dir: dir.node(),
                cookie: 0,
                with_attributes,
                reply_bytes,
            };
            let (body, _) = raw.ask(&request).unwrap().unwrap();
            let (mut reader, mut longest, mut entries) = (Reader::new(&body), 0, 0);
            while reader.get::<u8>().unwrap() == ENTRY_FOLLOWS {
                let before = reader.len_bytes();
                reader.get::<Entry<'_>>().unwrap();
                longest = longest.max(before - reader.len_bytes() + 1);
                entries += 1;
            }
            assert!(reader.is_empty() && body.last() == Some(&LISTING_GOES_ON));
            let wanted = (reply_bytes as usize).min(LISTING_BYTES_MAX);
            assert!(
                entries > 0 && body.len() > wanted && body.len() <= wanted + longest + 1,
                "{reply_bytes}"
            );
        }
    }
}
