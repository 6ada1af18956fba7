//! Requests that must not be executed twice, or too late: a repeated release, and a request of a connection that
//! another has replaced.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::raw::{Raw, prefix};
use crate::common::{export, serve};
use ferrite_proto::{FsRequest, NodeAttr, SessionState};
use ferrite_server::ServerOptions;
use ferrite_vfs::memfs::MemFs;
use ferrite_vfs::{Attr, Ctx, FileKind, FileSystem, FsError, Layer, NewNode, ROOT_INO, Result, SYSTEM, StatFs};

/// The client has two pins, releases one, and repeats that: a file without a name is still there.
#[test]
fn a_release_that_is_repeated_gives_back_one_pin() {
    let fs = Arc::new(MemFs::new());
    let node = NewNode {
        kind: FileKind::File,
        mode: 0o644,
        rdev: 0,
    };
    let ino = fs.mknod(SYSTEM, ROOT_INO, b"file", &node).unwrap().ino;
    let (_server, address) = serve(Arc::clone(&fs) as _, vec![export("")], &ServerOptions::default());
    let (mut raw, welcome) = Raw::with_session(&address, "");
    raw.pins = true;
    let lookup = FsRequest::Lookup {
        parent: welcome.root,
        name: b"file",
    };
    let node_attr: NodeAttr = raw.done(&lookup);
    assert!(node_attr.is_pinned);
    raw.done::<NodeAttr>(&lookup);
    raw.pins = false;
    fs.unlink(SYSTEM, ROOT_INO, b"file").unwrap();
    let release = FsRequest::Release { pins: vec![(ino, 1)] };
    raw.done::<()>(&release);
    let number = raw.number();
    for _ in 0..3 {
        raw.next_is(number - 1);
        raw.done::<()>(&release);
    }
    let getattr = FsRequest::Getattr { node: node_attr.node() };
    assert_eq!(raw.done::<Attr>(&getattr).nlink, 0);
    // Another release releases the other.
    raw.done::<()>(&release);
    assert_eq!(raw.refused(&getattr), FsError::Stale);
}

/// Executes one kind of request as slowly as the test wants.
#[derive(Default)]
struct Slow {
    fs: MemFs,
    has_begun: AtomicBool,
    may_end: AtomicBool,
}

impl Layer for Slow {
    fn below(&self) -> &dyn FileSystem {
        &self.fs
    }

    fn statfs(&self, ctx: &Ctx) -> Result<StatFs> {
        self.has_begun.store(true, Ordering::Release);
        spin_until(&self.may_end);
        self.fs.statfs(ctx)
    }
}

fn spin_until(flag: &AtomicBool) {
    while !flag.load(Ordering::Acquire) {
        std::hint::spin_loop();
    }
}

/// The old connection's thread is at work on a request, with more behind it, while the client comes with a new one at
/// another thread. Either the request takes longer than the turn of a connection, after which the thread looks whether
/// the connection is still open; or, in most of the short rounds, it does not.
#[test]
fn what_an_old_connection_still_brings_is_not_done() {
    let fs = Arc::new(Slow::default());
    let options = ServerOptions::default().threads(2);
    let (_server, address) = serve(Arc::clone(&fs) as _, vec![export("")], &options);
    for round in 0..40 {
        fs.has_begun.store(false, Ordering::Release);
        fs.may_end.store(false, Ordering::Release);
        // Connections go to the threads in turn.
        let (mut old, welcome) = Raw::with_session(&address, "");
        let mut new = Raw::connect(&address);
        let mut bytes = Vec::new();
        let mkdir = FsRequest::Mkdir {
            parent: welcome.root,
            name: b"late",
            mode: 0o755,
        };
        for request in [&FsRequest::Statfs {}, &mkdir] {
            let body = old.body(request);
            bytes.extend_from_slice(&prefix(body.len(), 0));
            bytes.extend_from_slice(&body);
        }
        std::io::Write::write_all(&mut old.stream, &bytes).unwrap();
        spin_until(&fs.has_begun);
        let again = new.set_up_session("", Some(welcome.resume_token)).unwrap();
        assert_eq!(again.state, SessionState::Alive);
        if round == 0 {
            std::thread::sleep(Duration::from_millis(50));
        }
        fs.may_end.store(true, Ordering::Release);
        while old.receive().is_some() {}
        // Each thread serves one of these, and has got past all that the old connection brought.
        for _ in 0..2 {
            Raw::with_session(&address, "");
        }
        let lookup = FsRequest::Lookup {
            parent: welcome.root,
            name: b"late",
        };
        assert_eq!(new.refused(&lookup), FsError::NotFound, "round {round}");
    }
}
