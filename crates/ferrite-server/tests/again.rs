//! Repeated requests: locks that a session claims again after each restart, and a change that a client sends a second
//! time while the first waits.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::bystander::new_file;
use crate::common::raw::Raw;
use crate::common::{export, make_pool, mount, serve, serve_at};
use ferrite_proto::{
    FileRequest, FsRequest, ImmediateRequest, Node, NodeAttr, OpenedFile, SessionRequest, SessionState,
};
use ferrite_server::ServerOptions;
use ferrite_vfs::locks::{LockKind, LockOwner, LockRequest};
use ferrite_vfs::memfs::MemFs;
use ferrite_vfs::{Attr, FileSystem, FsError, Position, SYSTEM, WriteMode};

fn lock(node: Node, is_claim: bool) -> ImmediateRequest<'static> {
    ImmediateRequest::Lock {
        node,
        client: 1,
        lock: LockRequest::Flock(LockOwner(1), LockKind::Exclusive),
        may_wait: false,
        is_claim,
    }
}

/// A session claims its locks in the middle of the end of grace. The pool forgets it then with the sessions that did
/// not come, and must know it again before the next restart: it still has its lock.
#[test]
fn a_lock_that_was_claimed_late_is_claimed_again_after_the_next_restart() {
    let path = make_pool(16 << 20, 1000);
    let lease = Duration::from_secs(1);
    let options = ServerOptions::default().lease(lease);
    let engine = mount(&path);
    let (mut server, address) = serve(Arc::new(engine.clone()), vec![export("")], &options);
    let (mut raw, welcome) = Raw::with_session(&address, "");
    let file: OpenedFile = raw.done(&FsRequest::Create {
        parent: welcome.root,
        name: b"file",
        new: new_file(true),
        file: 1,
    });
    let node = file.node_attr.node();
    raw.done::<()>(&lock(node, false));
    for restart in 0..3 {
        server.stop();
        drop(server);
        server = serve_at(&address, Arc::new(engine.clone()), &options);
        let number = raw.number();
        raw = Raw::connect(&address);
        raw.next_is(number);
        let again = raw.set_up_session("", Some(welcome.resume_token)).unwrap();
        assert_eq!(again.state, SessionState::ToReclaim, "restart {restart}");
        raw.done::<()>(&lock(node, true));
        // Grace ends while it still claims: its time is used up.
        let began = Instant::now();
        while server.observer().look().unwrap().exports[0].1.is_in_grace {
            raw.done::<()>(&ImmediateRequest::Ping {});
            assert!(began.elapsed() < lease * 20, "grace does not end");
            std::thread::sleep(lease / 20);
        }
        raw.done::<()>(&ImmediateRequest::Reclaimed {});
        let (mut other, _) = Raw::with_session(&address, "");
        let refused = other.refused(&lock(node, false));
        assert_eq!(refused, FsError::WouldBlock, "restart {restart}: it is still locked");
    }
}

/// A token would hide a repetition: the engine executes such a change once, however often it arrives.
#[test]
fn a_change_without_a_token_that_comes_again_while_it_waits_is_made_once() {
    let fs = Arc::new(MemFs::new());
    let options = ServerOptions::default().cache_term(Duration::from_secs(5));
    let (_server, address) = serve(fs.clone(), vec![export("")], &options);
    let (mut reader, reader_welcome) = Raw::with_session(&address, "");
    let (mut writer, welcome) = Raw::with_session(&address, "");
    let file: OpenedFile = writer.done(&FsRequest::Create {
        parent: welcome.root,
        name: b"file",
        new: new_file(true),
        file: 1,
    });
    // It answers no recall, so that changes wait for its term.
    let _: u32 = reader.done(&SessionRequest::Leases { relied_on: false });
    let _: NodeAttr = reader.done(&FsRequest::Lookup {
        parent: reader_welcome.root,
        name: b"file",
    });
    let append = FileRequest::Write {
        file: 1,
        mode: WriteMode {
            position: Position::End,
            kill_priv: false,
        },
    };
    let body = writer.body(&append);
    let id = writer.number();
    assert!(writer.send(&body, b"x"));
    // On the same connection, and on later ones: the server answers one of them when the change is made.
    assert!(writer.send(&body, b"x"));
    let size = || fs.getattr(SYSTEM, file.node_attr.attr.ino).unwrap().size;
    for _ in 0..2 {
        // Everything sent so far has arrived.
        writer.done::<()>(&ImmediateRequest::Ping {});
        assert_eq!(size(), 0, "it does not wait for the lease");
        let number = writer.number();
        drop(writer);
        writer = Raw::connect(&address);
        writer.next_is(number);
        assert_eq!(
            writer.set_up_session("", Some(welcome.resume_token)).unwrap().state,
            SessionState::Alive
        );
        assert!(writer.send(&body, b"x"));
    }
    loop {
        let (replied, came) = writer.receive().expect("a reply");
        if replied == id {
            came.unwrap();
            break;
        }
    }
    // Every earlier request is done before this, which waits its turn as the write did.
    let attr: Attr = writer.done(&FileRequest::FileGetattr { file: 1 });
    assert_eq!((attr.size, size()), (1, 1), "it was made more than once");
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(size(), 1, "it was made once more");
}
