//! Rights to lock a file: a caller needs the matching access to it. And bounds on waiting lock requests.

use std::sync::Arc;

use crate::common::raw::Raw;
use crate::common::{export, serve};
use ferrite_proto::{FileRequest, FsRequest, ImmediateRequest, LockingRequest, NodeAttr, OpenedFile};
use ferrite_server::{Server, ServerOptions};
use ferrite_vfs::locks::{ByteRange, LockKind, LockOwner, LockRequest, RecordLock, Unlock};
use ferrite_vfs::memfs::MemFs;
use ferrite_vfs::{
    BadArgument, Cred, Ctx, FileKind, FileSystem, FsError, NewFile, NewNode, OpenMode, ROOT_INO, SYSTEM, SetAttr,
    SpaceOf,
};

use LockKind::{Exclusive, Shared};

const OWNER: u32 = 1000;
const OTHER_USER: u32 = 2000;
const NONE: u32 = u32::MAX;

fn server() -> (Server, String, Arc<MemFs>) {
    let fs = Arc::new(MemFs::new());
    let open_to_all = SetAttr {
        mode: Some(0o777),
        ..SetAttr::default()
    };
    fs.setattr(SYSTEM, ROOT_INO, &open_to_all).unwrap();
    for (name, mode) in [("private", 0o600), ("readable", 0o644), ("public", 0o666)] {
        let node = NewNode {
            kind: FileKind::File,
            mode,
            rdev: 0,
        };
        let owner = Ctx::trusted(Cred::new(OWNER, OWNER));
        fs.mknod(&owner, ROOT_INO, name.as_bytes(), &node).unwrap();
    }
    let exports = vec![
        export("squashed").root_squash(true),
        export("trusted"),
        export("read-only").read_only(true),
    ];
    let (server, address) = serve(Arc::clone(&fs) as _, exports, &ServerOptions::default());
    (server, address, fs)
}

struct User {
    raw: Raw,
    root: ferrite_proto::Node,
    owners: u64,
}

impl User {
    fn at(address: &str, export: &str, uid: u32) -> User {
        let (mut raw, welcome) = Raw::with_session(address, export);
        (raw.uid, raw.gid, raw.check) = (uid, uid, export == "squashed");
        User {
            raw,
            root: welcome.root,
            owners: 0,
        }
    }

    fn found(&mut self, name: &str) -> NodeAttr {
        self.raw.done(&FsRequest::Lookup {
            parent: self.root,
            name: name.as_bytes(),
        })
    }

    /// Locks, and unlocks if that succeeded.
    fn locks(&mut self, name: &str, is_flock: bool, kind: LockKind) -> Result<(), FsError> {
        let node = self.found(name).node();
        self.owners += 1;
        let owner = LockOwner(self.owners);
        let lock = match is_flock {
            true => LockRequest::Flock(owner, kind),
            false => LockRequest::Record(RecordLock {
                owner,
                pid: 1,
                kind,
                range: ByteRange::ALL,
            }),
        };
        let request = ImmediateRequest::Lock {
            node,
            client: 1,
            lock,
            may_wait: false,
            is_claim: false,
        };
        self.raw.ask(&request).expect("a reply")?;
        self.raw.done::<()>(&LockingRequest::Unlock {
            node,
            client: 1,
            owner,
            what: Unlock::All,
        });
        Ok(())
    }
}

#[test]
fn a_lock_needs_the_right_that_an_open_file_would_need() {
    let (_server, address, fs) = server();
    let refused = Err(FsError::BadHandle);
    for is_flock in [true, false] {
        for (export, uid, name, shared, exclusive) in [
            ("squashed", OWNER, "private", Ok(()), Ok(())),
            ("squashed", OTHER_USER, "private", refused.clone(), refused.clone()),
            ("squashed", 0, "private", refused.clone(), refused.clone()),
            ("squashed", OTHER_USER, "readable", Ok(()), refused.clone()),
            ("squashed", OTHER_USER, "public", Ok(()), Ok(())),
            // A client that is trusted with permissions is trusted with locks.
            ("trusted", OTHER_USER, "private", Ok(()), Ok(())),
            ("read-only", OWNER, "public", Ok(()), Err(FsError::ReadOnly)),
        ] {
            let mut user = User::at(&address, export, uid);
            assert_eq!(user.locks(name, is_flock, Shared), shared, "{export} {uid} {name}");
            assert_eq!(
                user.locks(name, is_flock, Exclusive),
                exclusive,
                "{export} {uid} {name}"
            );
        }
    }
    // A file that is open keeps its rights, whatever becomes of the mode.
    let mut user = User::at(&address, "squashed", OWNER);
    let created: OpenedFile = user.raw.done(&FsRequest::Create {
        parent: user.root,
        name: b"own",
        new: NewFile {
            mode: 0o444,
            open: OpenMode::read_write(),
            exclusive: true,
        },
        file: 1,
    });
    fs.setattr(
        SYSTEM,
        created.node_attr.attr.ino,
        &SetAttr {
            mode: Some(0),
            ..SetAttr::default()
        },
    )
    .unwrap();
    assert_eq!(user.locks("own", false, Exclusive), Ok(()));
    user.raw.done::<()>(&FileRequest::Close { files: vec![1] });
    assert_eq!(user.locks("own", false, Exclusive), Err(FsError::BadHandle));
    assert_eq!(user.locks("own", true, Shared), Err(FsError::BadHandle));
    fs.setattr(
        SYSTEM,
        created.node_attr.attr.ino,
        &SetAttr {
            mode: Some(0o444),
            ..SetAttr::default()
        },
    )
    .unwrap();
    user.raw.done::<u64>(&FsRequest::Open {
        node: created.node_attr.node(),
        mode: OpenMode::read_only(),
        file: 2,
    });
    assert_eq!(user.locks("own", true, Shared), Ok(()));
    assert_eq!(user.locks("own", true, Exclusive), Err(FsError::BadHandle));
}

/// Querying a lock needs a right to the file, too.
#[test]
fn nobody_learns_of_the_locks_on_what_is_not_theirs() {
    let (_server, address, _) = server();
    for (uid, is_reported) in [(OWNER, true), (OTHER_USER, false)] {
        let mut user = User::at(&address, "squashed", uid);
        let node = user.found("private").node();
        let LockRequest::Record(lock) = LockRequest::Record(RecordLock {
            owner: LockOwner(1),
            pid: 1,
            kind: Exclusive,
            range: ByteRange::ALL,
        }) else {
            unreachable!("it is a record lock")
        };
        let came = user.raw.ask(&LockingRequest::ConflictingLock { node, client: 1, lock });
        assert_eq!(came.expect("a reply").is_ok(), is_reported);
    }
}

#[test]
fn no_number_is_a_user_that_is_none() {
    let (_server, address, _) = server();
    let none = FsError::Invalid(BadArgument::NoId);
    for export in ["squashed", "trusted"] {
        for (uid, gid, groups) in [(NONE, 0, vec![]), (0, NONE, vec![]), (5, 5, vec![7, NONE])] {
            let mut user = User::at(&address, export, 0);
            let root = user.root;
            (user.raw.uid, user.raw.gid, user.raw.groups) = (uid, gid, groups);
            let mkdir = FsRequest::Mkdir {
                parent: root,
                name: b"nobodys",
                mode: 0o777,
            };
            assert_eq!(user.raw.refused(&mkdir), none);
            assert_eq!(user.raw.refused(&FsRequest::Statfs {}), none);
        }
        let mut user = User::at(&address, export, 0);
        let node = user.found("public").node();
        let owner = SetAttr {
            uid: Some(NONE),
            ..SetAttr::default()
        };
        let group = SetAttr {
            gid: Some(NONE),
            ..SetAttr::default()
        };
        for set in [owner, group] {
            assert_eq!(user.raw.refused(&FsRequest::Setattr { node, set }), none);
        }
    }
}

/// The bound is a session's: others still wait.
#[test]
fn a_session_has_so_many_requests_that_wait() {
    let (_server, address, _) = server();
    let (mut holder, mut many) = (
        User::at(&address, "squashed", OWNER),
        User::at(&address, "squashed", OWNER),
    );
    let node = many.found("public").node();
    let lock = |owner, may_wait| ImmediateRequest::Lock {
        node,
        client: 1,
        lock: LockRequest::Flock(LockOwner(owner), Exclusive),
        may_wait,
        is_claim: false,
    };
    holder.found("public");
    holder.raw.done::<()>(&lock(1, false));
    for owner in 0..4096 {
        let body = many.raw.body(&lock(owner, true));
        assert!(many.raw.send(&body, &[]));
    }
    assert_eq!(
        many.raw.refused(&lock(4096, true)),
        FsError::NoSpace(SpaceOf::RecordLocks)
    );
    let mut other = User::at(&address, "squashed", OWNER);
    let body = other.raw.body(&lock(1, true));
    assert!(other.raw.send(&body, &[]));
    many.raw.done::<()>(&LockingRequest::ReleaseClient { client: 1 });
    holder.raw.done::<()>(&LockingRequest::Unlock {
        node,
        client: 1,
        owner: LockOwner(1),
        what: Unlock::All,
    });
    assert_eq!(other.raw.receive().expect("its turn has come").1.map(drop), Ok(()));
}

/// Programs are killed while their requests for locks are on the way. A lock that came after its owner's end would keep
/// all others out for as long as the session lives.
#[test]
fn a_lock_that_is_requested_while_its_client_ends_keeps_nobody_out() {
    let (_server, address, _) = server();
    let [mut holder, mut brief, mut next] = [(); 3].map(|()| User::at(&address, "squashed", OWNER));
    let node = [&mut holder, &mut brief, &mut next].map(|user| user.found("public").node())[0];
    let lock = |owner, may_wait| ImmediateRequest::Lock {
        node,
        client: 1,
        lock: LockRequest::Flock(LockOwner(owner), Exclusive),
        may_wait,
        is_claim: false,
    };
    let unlock = |owner| LockingRequest::Unlock {
        node,
        client: 1,
        owner: LockOwner(owner),
        what: Unlock::All,
    };
    for _ in 0..10 {
        // It may wait: a late lock is there for a moment, before it is released.
        holder.raw.done::<()>(&lock(1, true));
        for owner in 0..1000 {
            let body = brief.raw.body(&lock(owner, true));
            assert!(brief.raw.send(&body, &[]));
        }
        brief.raw.done::<()>(&LockingRequest::ReleaseClient { client: 1 });
        holder.raw.done::<()>(&unlock(1));
        next.raw.done::<()>(&lock(1, true));
        next.raw.done::<()>(&unlock(1));
    }
}
