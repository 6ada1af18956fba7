//! Adversarial or broken servers: nothing on the client's machine uses their replies unless they can be true.
//!
//! Each lie is one that a client once believed. The fuzz target `client_replies` looks for others.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::replies::{Frame, HEAD_BYTES, Liar, honest, opcode_of};
use ferrite_client::volume::RemoteVolume;
use ferrite_client::{Client, ClientOptions};
use ferrite_proto::{ENTRY_FOLLOWS, Encode, Entry, EntryInfo, LISTING_ENDS, LISTING_GOES_ON};
use ferrite_vfs::volume::Volume;
use ferrite_vfs::{Attr, DirEntry, FileKind, FileSystem, FsError, OpenMode, ROOT_INO, SYSTEM};

/// A client of a server that changes the replies to one kind of request.
fn lied_to(kind: &str, lie: impl Fn(&mut Frame) + Send + Sync + 'static) -> (Client, Liar, Arc<AtomicUsize>) {
    let (number, lies) = (opcode_of(kind), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&lies);
    let liar = Liar::new(honest(), move |requested, mut frame| {
        if requested == number {
            count.fetch_add(1, Ordering::Relaxed);
            lie(&mut frame);
        }
        vec![frame]
    });
    let options = ClientOptions::default().timeout(Some(Duration::from_secs(20)));
    let client = Client::connect(&liar.address, "", &options).unwrap();
    (client, liar, lies)
}

/// Replaces the content behind the head of a reply, which reports success.
fn says(frame: &mut Frame, content: impl Fn(&mut Vec<u8>)) {
    frame.body.truncate(HEAD_BYTES);
    frame.body[HEAD_BYTES - 1] = 1;
    content(&mut frame.body);
}

fn is_refused<T: std::fmt::Debug>(reply: Result<T, FsError>) {
    match reply {
        Err(FsError::Io(why)) => {
            assert!(why.contains("the server"), "it says who is wrong: {why}");
            assert!(!why.contains(char::is_control), "{why:?}");
        }
        other => panic!("a lie is believed: {other:?}"),
    }
}

fn list(client: &Client) -> Result<usize, FsError> {
    let mut count = 0;
    client.readdir(SYSTEM, ROOT_INO, 0, &mut |_| {
        count += 1;
        true
    })?;
    Ok(count)
}

fn one_entry(name: &[u8], next_cookie: u64, out: &mut Vec<u8>) {
    entry_without(name, next_cookie, FsError::Stale, out);
}

/// An entry whose attributes could not be had.
fn entry_without(name: &[u8], next_cookie: u64, why: FsError, out: &mut Vec<u8>) {
    ENTRY_FOLLOWS.put(out);
    Entry {
        ino: 2,
        kind: FileKind::File,
        next_cookie,
        name,
        info: EntryInfo::Nothing(why),
    }
    .put(out);
}

#[test]
fn no_name_leads_out_of_its_directory() {
    let long = vec![b'n'; 256];
    let names = [
        &b"/etc/cron.d/x"[..],
        b"../x",
        b"..",
        b".",
        b"",
        b"a/b",
        b"a\0b",
        b"/",
        &long,
    ];
    for name in names.map(<[u8]>::to_vec) {
        let (client, _liar, _) = lied_to("Readdir", move |frame| {
            says(frame, |out| {
                one_entry(&name, 1, out);
                out.push(0);
            });
        });
        is_refused(list(&client));
        is_refused(client.readdir_plus(SYSTEM, ROOT_INO, 0, &mut |_, _| true));
    }
}

/// Each of these once made a client loop for ever.
#[test]
fn a_listing_that_does_not_proceed_ends() {
    let lies: [fn(&mut Vec<u8>); 3] = [
        |out| out.push(LISTING_GOES_ON),
        |out| {
            one_entry(b"a", 0, out);
            out.push(LISTING_GOES_ON);
        },
        |out| {
            one_entry(b"a", 7, out);
            out.push(LISTING_GOES_ON);
        },
    ];
    for lie in lies {
        let (client, _liar, lies) = lied_to("Readdir", move |frame| says(frame, lie));
        is_refused(list(&client));
        assert!(lies.load(Ordering::Relaxed) <= 2);
    }
}

/// A server that loses the volume in the middle of a listing: callers look the name up, and the owner answers.
#[test]
fn an_entry_from_a_server_that_is_not_the_owner_has_no_attributes() {
    let owner = || FsError::NotOwner {
        address: "elsewhere:1".into(),
    };
    let (client, _liar, _) = lied_to("Readdir", move |frame| {
        says(frame, |out| {
            entry_without(b"a", 1, owner(), out);
            out.push(LISTING_ENDS);
        });
    });
    let mut found = Vec::new();
    let mut take = |_: &DirEntry<'_>, attr: Result<Attr, FsError>| {
        found.push(attr.err());
        true
    };
    client.readdir_plus(SYSTEM, ROOT_INO, 0, &mut take).unwrap();
    assert_eq!(found, [Some(FsError::Stale)]);
}

#[test]
fn a_search_in_a_file_leads_on() {
    for (kind, reported) in [
        ("SeekData", 0),
        ("SeekHole", 0),
        ("SeekData", u64::MAX),
        ("SeekHole", 1 << 63),
    ] {
        let (client, _liar, _) = lied_to(kind, move |frame| says(frame, |out| reported.put(out)));
        let ino = client.lookup(SYSTEM, ROOT_INO, b"file").unwrap().ino;
        let file = client.open(SYSTEM, ino, OpenMode::read_only()).unwrap();
        is_refused(match kind {
            "SeekData" => file.seek_data(SYSTEM, 1),
            _ => file.seek_hole(SYSTEM, 1),
        });
    }
}

#[test]
fn a_write_goes_where_it_was_sent_and_is_no_longer_than_it_was() {
    for reported in [(3, 100), (4, 1), (u64::MAX, 1), (3, u64::MAX), (1 << 63, 1)] {
        let (client, _liar, _) = lied_to("Write", move |frame| says(frame, |out| reported.put(out)));
        let ino = client.lookup(SYSTEM, ROOT_INO, b"file").unwrap().ino;
        let file = client.open(SYSTEM, ino, OpenMode::read_write()).unwrap();
        is_refused(file.write_at(SYSTEM, 3, b"text"));
    }
}

#[test]
fn links_and_attributes_have_content_that_they_can_have() {
    for target in [&b""[..], b"a\0b", &[b'x'; 5000]] {
        let target = target.to_vec();
        let (client, _liar, _) = lied_to("Readlink", move |frame| says(frame, |out| (&target[..]).put(out)));
        let ino = client.lookup(SYSTEM, ROOT_INO, b"link").unwrap().ino;
        is_refused(client.readlink(SYSTEM, ino));
    }
    for name in [&b""[..], b"user.\0", &[b'x'; 256]] {
        let name = name.to_vec();
        let (client, _liar, _) = lied_to("Listxattr", move |frame| says(frame, |out| vec![&name[..]].put(out)));
        is_refused(client.listxattr(SYSTEM, ROOT_INO));
    }
}

#[test]
fn sizes_numbers_and_space_are_those_of_files() {
    // The size is behind inode, generation, kind, mode, links, owner, group and device.
    const SIZE_AT: usize = HEAD_BYTES + 8 + 4 + 1 + 5 * 4;
    let (client, _liar, _) = lied_to("Lookup", |frame| {
        frame.body[SIZE_AT..SIZE_AT + 8].copy_from_slice(&u64::MAX.to_le_bytes());
    });
    is_refused(client.lookup(SYSTEM, ROOT_INO, b"file"));
    let (client, _liar, _) = lied_to("Getattr", |frame| frame.body[HEAD_BYTES] ^= 0x40);
    is_refused(client.getattr(SYSTEM, ROOT_INO));
    for (blocks, free) in [(u64::MAX, 0u64), (5, 6)] {
        let liar = Liar::new(honest(), move |requested, mut frame| {
            if requested == opcode_of("Statfs") {
                says(&mut frame, |out| {
                    4096u32.put(out);
                    (blocks, free).put(out);
                    (0u64, 0u64).put(out);
                    (0u64, 0u64).put(out);
                });
            }
            vec![frame]
        });
        let address = format!("tcp://{}", liar.address);
        let volume = RemoteVolume::open(&address, &ClientOptions::default()).unwrap();
        assert!(volume.info().is_err(), "{blocks} blocks, {free} of them free");
    }
}

/// A server's texts end up in messages, and messages in terminals and logs.
#[test]
fn texts_of_errors_control_nothing() {
    let (client, _liar, _) = lied_to("Statfs", |frame| {
        frame.body.truncate(HEAD_BYTES);
        frame.body[HEAD_BYTES - 1] = 0;
        (0x202u16, 0u16).put(&mut frame.body);
        let text = format!("\x1b]0;title\x07\nferrite: all is well\u{9b}31m{}", "x".repeat(100_000));
        text.as_bytes().put(&mut frame.body);
    });
    let said = client.statfs(SYSTEM).unwrap_err().to_string();
    assert!(!said.contains(char::is_control) && said.contains("title"), "{said:?}");
    assert!(said.len() < 2000, "{} bytes", said.len());
}

/// A number of slots that no token can have once took all slots out of use, and the next change waited for ever.
#[test]
fn slots_that_cannot_be_are_not_waited_for() {
    let (client, _liar, _) = lied_to("Slots", |frame| {
        says(frame, |out| {
            (1u64 << 63).put(out);
            vec![1u32, 2].put(out);
        });
    });
    let started = Instant::now();
    for _ in 0..5 {
        is_refused(client.mkdir(SYSTEM, ROOT_INO, b"never", 0o755));
    }
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
}

/// The client answers endless recalls as long as that is possible, and they keep no caller from giving up.
#[test]
fn a_flood_of_recalls_keeps_nobody() {
    let liar = Liar::new(honest(), |requested, frame| {
        if requested != opcode_of("Statfs") {
            return vec![frame];
        }
        let recall = |number: u64| {
            let mut body = Vec::new();
            0u64.put(&mut body);
            1u8.put(&mut body);
            (number, number).put(&mut body);
            Frame { body, data: Vec::new() }
        };
        (0..60_000).map(recall).collect()
    });
    let options = ClientOptions::default()
        .timeout(Some(Duration::from_secs(2)))
        .cache_bytes(Some(1 << 20));
    let client = Client::connect(&liar.address, "", &options).unwrap();
    let started = Instant::now();
    assert!(client.statfs(SYSTEM).is_err());
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    client.getattr(SYSTEM, ROOT_INO).unwrap();
}

/// A client does not reconnect without a pause to a server that breaks every connection.
#[test]
fn a_server_that_breaks_connections_costs_little() {
    let liar = Liar::new(honest(), |requested, mut frame| {
        if requested == opcode_of("Getattr") {
            // No valid reply has these flags.
            frame.body[HEAD_BYTES - 1] = 0xff;
        }
        vec![frame]
    });
    let options = ClientOptions::default().timeout(Some(Duration::from_secs(1)));
    let client = Client::connect(&liar.address, "", &options).unwrap();
    assert!(client.getattr(SYSTEM, ROOT_INO).is_err());
    let reconnects = client.reconnects();
    assert!((2..80).contains(&reconnects), "{reconnects} in a second");
}

/// The welcome: a session that ends at once would make the client reconnect for ever.
#[test]
fn a_welcome_that_cannot_be_is_refused() {
    for lease_at in [HEAD_BYTES + 2 + 8 + 16 + 1, HEAD_BYTES] {
        let liar = Liar::new(honest(), move |requested, mut frame| {
            if requested == opcode_of("Hello") {
                frame.body[lease_at..lease_at + 4].fill(0);
            }
            vec![frame]
        });
        let refused = Client::connect(&liar.address, "", &ClientOptions::default());
        let said = refused.err().expect("a welcome that is believed").to_string();
        assert!(said.contains(&liar.address) && said.contains("version"), "{said}");
    }
}
