//! The limits of an export against adversarial clients: MACs, resume tokens and tokens of other clients, ways out of a
//! subtree, changes of read-only exports, and root.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common;
use crate::common::bystander::{Bystander, new_file, node};
use crate::common::raw::{Raw, clone_tree, invented, root_without_mac};
use crate::common::{export, make_pool, mount, serve};
use ferrite_proto::{
    ENTRY_FOLLOWS, Entry, EntryInfo, FileRequest, FsRequest, ImmediateRequest, LISTING_ENDS, Node, NodeAttr,
    OpenedFile, Reader, ResumeToken, SessionRequest, SessionState,
};
use ferrite_server::{ExportOptions, NOBODY, Server, ServerOptions};
use ferrite_vfs::locks::{LockKind, LockOwner, LockRequest};
use ferrite_vfs::memfs::MemFs;
use ferrite_vfs::{
    DedupToken, FileKind, FileSystem, FsError, OpenFlags, OpenMode, ROOT_INO, RenameMode, SYSTEM, SetAttr, Start,
    XattrMode,
};

/// Whether the server closes the connection.
fn is_closed(raw: &mut Raw) -> bool {
    raw.receive().is_none()
}

#[test]
fn resume_tokens_of_others_are_worth_nothing() {
    let fs = Arc::new(MemFs::new());
    fs.mkdir(SYSTEM, ROOT_INO, b"sub", 0o777).unwrap();
    let exports = vec![export(""), export("sub").path("/sub")];
    let (server, address) = serve(fs, exports, &ServerOptions::default());
    let (mut mine, welcome) = Raw::with_session(&address, "");
    // Of another export, forged, with another number.
    let ResumeToken { session, mac } = welcome.resume_token;
    let others = [
        ("sub", welcome.resume_token),
        ("", ResumeToken { session, mac: mac ^ 1 }),
        (
            "",
            ResumeToken {
                session: session + 1,
                mac,
            },
        ),
        (
            "",
            ResumeToken {
                session: u64::MAX,
                mac: 0,
            },
        ),
    ];
    for (name, resume_token) in others {
        let given = Raw::connect(&address).set_up_session(name, Some(resume_token)).unwrap();
        assert_eq!(given.state, SessionState::New);
        assert_ne!(given.resume_token.session, session);
    }
    mine.done::<()>(&ImmediateRequest::Ping {});
    // The client's own resume token selects its session: the older connection is closed.
    let mut again = Raw::connect(&address);
    let given = again.set_up_session("", Some(welcome.resume_token)).unwrap();
    assert_eq!(
        (given.state, given.resume_token),
        (SessionState::Alive, welcome.resume_token)
    );
    assert!(is_closed(&mut mine));
    again.done::<()>(&ImmediateRequest::Ping {});
    // Sessions that began and have no state end with their connections.
    let began = Instant::now();
    while server.sessions() > 1 {
        assert!(began.elapsed() < Duration::from_secs(10), "{}", server.sessions());
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn macs_tokens_and_numbers_of_others() {
    let path = make_pool(16 << 20, 1000);
    let engine = mount(&path);
    engine.mkdir(SYSTEM, ROOT_INO, b"sub", 0o777).unwrap();
    let exports = vec![export(""), export("sub").path("/sub")];
    let (_server, address) = serve(Arc::new(engine.clone()), exports, &ServerOptions::default());
    let bystander = Bystander::at(&address, "");
    let (mut all, root) = Raw::with_session(&address, "");
    let (mut sub, sub_root) = Raw::with_session(&address, "sub");
    let mkdir = |parent, name: &'static str| FsRequest::Mkdir {
        parent,
        name: name.as_bytes(),
        mode: 0o777,
    };
    let outside: NodeAttr = all.done(&mkdir(root.root, "outside"));
    let inside: NodeAttr = sub.done(&mkdir(sub_root.root, "inside"));
    let mut flipped = inside.node();
    flipped.mac ^= 1 << 40;
    let mut renumbered = inside.node();
    renumbered.ino = outside.attr.ino;
    let mut aged = inside.node();
    aged.generation += 1;
    let foreign = [
        outside.node(),
        root.root,
        flipped,
        renumbered,
        aged,
        invented(2),
        invented(u64::MAX),
        root_without_mac(),
    ];
    for node in foreign {
        for request in [
            FsRequest::Getattr { node },
            FsRequest::Parent { dir: node },
            FsRequest::Pin { node },
            FsRequest::Lookup {
                parent: node,
                name: b"x",
            },
            mkdir(node, "x"),
            FsRequest::Readdir {
                dir: node,
                cookie: 0,
                with_attributes: true,
                reply_bytes: u32::MAX,
            },
            FsRequest::Link {
                node,
                parent: sub_root.root,
                name: b"x",
            },
            clone_tree(node, sub_root.root, b"x"),
            FsRequest::Resolve {
                root: node,
                base: node,
                path: b".",
                follow: true,
            },
            FsRequest::Resolve {
                root: sub_root.root,
                base: node,
                path: b"..",
                follow: true,
            },
            FsRequest::Open {
                node,
                mode: OpenMode::read_only(),
                file: 1,
            },
            FsRequest::Reopen {
                node,
                mode: OpenMode::read_only(),
                mac: 7,
                file: 1,
            },
            FsRequest::Setxattr {
                node,
                name: b"user.x",
                value: b"",
                mode: XattrMode::Any,
            },
        ] {
            assert_eq!(sub.refused(&request), FsError::Stale, "{request:?}");
        }
        let request = ImmediateRequest::Lock {
            node,
            client: 0,
            lock: LockRequest::Flock(LockOwner(1), LockKind::Shared),
            may_wait: false,
            is_claim: false,
        };
        assert_eq!(sub.refused(&request), FsError::Stale);
    }
    // A node of an inode that is gone, and whose number is used again.
    all.done::<()>(&FsRequest::Rmdir {
        parent: root.root,
        name: b"outside",
    });
    assert_eq!(
        all.refused(&FsRequest::Getattr { node: outside.node() }),
        FsError::Stale
    );
    for round in 0..40 {
        let _: NodeAttr = all.done(&mkdir(root.root, ["a", "b"][round % 2]));
        assert_eq!(
            all.refused(&FsRequest::Getattr { node: outside.node() }),
            FsError::Stale
        );
        all.done::<()>(&FsRequest::Rmdir {
            parent: root.root,
            name: [b"a", b"b"][round % 2],
        });
    }
    // Files that are not open, or belong to another client.
    let opened: OpenedFile = all.done(&FsRequest::Create {
        parent: root.root,
        name: b"f",
        new: new_file(true),
        file: 77,
    });
    for file in [77, 0, u64::MAX] {
        for request in [
            FileRequest::FileGetattr { file },
            FileRequest::Read {
                file,
                offset: 0,
                len_bytes: 10,
            },
            FileRequest::Fsync { file },
            FileRequest::FileSetattr {
                file,
                set: SetAttr::default(),
            },
        ] {
            assert_eq!(sub.refused(&request), FsError::Stale, "{request:?}");
        }
        sub.done::<()>(&FileRequest::Close {
            files: vec![file, file, 1, 2],
        });
    }
    all.done::<()>(&FileRequest::Fsync { file: 77 });
    // A MAC of an open file for reading does not open it for writing.
    let read: u64 = all.done(&FsRequest::Open {
        node: opened.node_attr.node(),
        mode: OpenMode::read_only(),
        file: 78,
    });
    for (mode, mac) in [(OpenMode::read_write(), read), (OpenMode::read_only(), opened.mac)] {
        let request = FsRequest::Reopen {
            node: opened.node_attr.node(),
            mode,
            mac,
            file: 79,
        };
        assert_eq!(all.refused(&request), FsError::Stale);
    }
    // Pins that it does not have cannot be released.
    sub.done::<()>(&FsRequest::Release {
        pins: vec![(ROOT_INO, u64::MAX), (opened.node_attr.attr.ino, 5), (u64::MAX, 1)],
    });
    // Slots and token numbers of other sessions, and slots that do not exist.
    let (number, slots): (u64, Vec<u32>) = all.done(&SessionRequest::Slots { count: u32::MAX });
    let (other_number, other_slots): (u64, Vec<u32>) = sub.done(&SessionRequest::Slots { count: u32::MAX });
    assert!(!slots.is_empty() && !other_slots.is_empty(), "the first has taken all");
    assert!(slots.iter().all(|slot| !other_slots.contains(slot)) && number != other_number);
    let reclaimed: (u64, Vec<u32>) = sub.done(&SessionRequest::ReclaimSlots {});
    assert_eq!(reclaimed, (other_number, other_slots.clone()), "its own, and no others");
    for (slot, upper) in [
        (slots[0], number),
        (slots[0], other_number),
        (other_slots[0], number),
        (u32::MAX, other_number),
        (other_slots[0], u64::from(u32::MAX)),
    ] {
        sub.token = Some(DedupToken {
            slot,
            seq: upper << 32 | 1,
        });
        assert!(
            matches!(sub.refused(&mkdir(sub_root.root, "x")), FsError::NotSupported(_)),
            "{slot} {upper}"
        );
    }
    sub.token = Some(DedupToken {
        slot: other_slots[0],
        seq: other_number << 32 | 1,
    });
    let first: NodeAttr = sub.done(&mkdir(sub_root.root, "once"));
    let second: NodeAttr = sub.done(&mkdir(sub_root.root, "once"));
    assert_eq!(first.attr.ino, second.attr.ino);
    bystander.goes_on();
}

/// An export of `/sub`, with unreachable objects around it.
fn subtree(options: impl Fn(ExportOptions) -> ExportOptions) -> (Arc<MemFs>, Server, String) {
    let fs = Arc::new(MemFs::new());
    for path in ["sub", "other"] {
        fs.mkdir(SYSTEM, ROOT_INO, path.as_bytes(), 0o777).unwrap();
    }
    let at = |path: &[u8]| fs.resolve(SYSTEM, &Start::default(), path, true).unwrap().ino;
    let (sub, other) = (at(b"/sub"), at(b"/other"));
    fs.mkdir(SYSTEM, sub, b"dir", 0o777).unwrap();
    fs.mkdir(SYSTEM, at(b"/sub/dir"), b"deep", 0o777).unwrap();
    fs.mknod(SYSTEM, other, b"secret", &node(FileKind::File, 0o666))
        .unwrap();
    fs.mknod(SYSTEM, ROOT_INO, b"secret", &node(FileKind::File, 0o666))
        .unwrap();
    let exports = vec![options(export("sub").path("/sub")), export("all")];
    let (server, address) = serve(fs.clone(), exports, &ServerOptions::default());
    (fs, server, address)
}

#[test]
fn nothing_leads_out_of_a_subtree() {
    let (fs, _server, address) = subtree(|options| options);
    let (mut raw, welcome) = Raw::with_session(&address, "sub");
    let root = welcome.root;
    let resolve = |base, path: &'static str| FsRequest::Resolve {
        root,
        base,
        path: path.as_bytes(),
        follow: true,
    };
    let dir: NodeAttr = raw.done(&resolve(root, "dir"));
    let deep: NodeAttr = raw.done(&resolve(root, "/dir/deep"));
    assert_eq!(raw.done::<Node>(&FsRequest::Parent { dir: root }), root);
    for (name, target) in [
        ("up", "../secret"),
        ("far", "../../../other/secret"),
        ("slash", "/other/secret"),
        ("root", "/../secret"),
        ("dirs", "dir/deep/../../../secret"),
    ] {
        let _: NodeAttr = raw.done(&FsRequest::Symlink {
            parent: root,
            name: name.as_bytes(),
            target: target.as_bytes(),
        });
    }
    let paths = [
        "../secret",
        "/../secret",
        "../../other/secret",
        "dir/../../secret",
        "dir/deep/../../../secret",
        "up",
        "far",
        "slash",
        "root",
        "dirs",
        "/up",
        "dir/../far",
    ];
    for path in paths {
        assert_eq!(raw.refused(&resolve(root, path)), FsError::NotFound, "{path}");
        let flags = OpenFlags {
            read: true,
            ..OpenFlags::default()
        };
        let open = FsRequest::OpenPath {
            root,
            base: root,
            path: path.as_bytes(),
            flags,
            file: 1,
        };
        assert_eq!(raw.refused(&open), FsError::NotFound, "{path}");
    }
    for path in ["..", "../..", "dir/../..", "/..", "."] {
        let node_attr: NodeAttr = raw.done(&resolve(root, path));
        assert_eq!(node_attr.node(), root, "{path}");
    }
    // A directory moved out while the client has it takes the client nowhere.
    let at = |path: &[u8]| fs.resolve(SYSTEM, &Start::default(), path, true).unwrap().ino;
    fs.rename(SYSTEM, at(b"/sub"), b"dir", at(b"/other"), b"dir", RenameMode::Replace)
        .unwrap();
    for path in ["..", "../secret", "../../secret", "deep/../..", "deep/../../secret"] {
        assert_eq!(raw.refused(&resolve(dir.node(), path)), FsError::Stale, "{path}");
    }
    for path in ["..", "../..", "../../secret"] {
        assert_eq!(raw.refused(&resolve(deep.node(), path)), FsError::Stale, "{path}");
    }
    for moved in [dir, deep] {
        assert!(raw.ask(&FsRequest::Parent { dir: moved.node() }).unwrap().is_err());
        // As its own root it has no parent.
        let request = FsRequest::Resolve {
            root: moved.node(),
            base: moved.node(),
            path: b"../../secret",
            follow: true,
        };
        assert_eq!(raw.refused(&request), FsError::Stale);
        // The root of the export is not below it.
        let request = FsRequest::Resolve {
            root: moved.node(),
            base: root,
            path: b"..",
            follow: true,
        };
        assert!(raw.ask(&request).unwrap().is_err());
    }
}

#[test]
fn a_read_only_export_changes_nothing() {
    let (fs, _server, address) = subtree(|options| options.read_only(true));
    let bystander = Bystander::at(&address, "all");
    let (mut raw, welcome) = Raw::with_session(&address, "sub");
    let root = welcome.root;
    let sub = fs.resolve(SYSTEM, &Start::default(), b"/sub", true).unwrap();
    fs.mknod(SYSTEM, sub.ino, b"file", &node(FileKind::File, 0o666))
        .unwrap();
    fs.symlink(SYSTEM, sub.ino, b"link", b"file").unwrap();
    let file: NodeAttr = raw.done(&FsRequest::Lookup {
        parent: root,
        name: b"file",
    });
    let before = fs.getattr(SYSTEM, file.attr.ino).unwrap();
    let flags = OpenFlags {
        read: true,
        ..OpenFlags::default()
    };
    let opens = [
        OpenFlags { write: true, ..flags },
        OpenFlags {
            truncate: true,
            ..flags
        },
        OpenFlags {
            create: true,
            mode: 0o644,
            ..flags
        },
    ];
    let path = |flags| FsRequest::OpenPath {
        root,
        base: root,
        path: b"file",
        flags,
        file: 3,
    };
    let set = SetAttr {
        atime: Some(ferrite_vfs::SetTime::Now),
        ..SetAttr::default()
    };
    let truncating = OpenMode {
        truncate: true,
        ..OpenMode::read_only()
    };
    let mut requests = vec![
        FsRequest::Setattr { node: file.node(), set },
        FsRequest::Mknod {
            parent: root,
            name: b"new",
            new: node(FileKind::File, 0o644),
        },
        FsRequest::Mkdir {
            parent: root,
            name: b"new",
            mode: 0o755,
        },
        FsRequest::Symlink {
            parent: root,
            name: b"new",
            target: b"x",
        },
        FsRequest::Link {
            node: file.node(),
            parent: root,
            name: b"new",
        },
        clone_tree(file.node(), root, b"new"),
        FsRequest::Unlink {
            parent: root,
            name: b"file",
        },
        FsRequest::Rmdir {
            parent: root,
            name: b"dir",
        },
        FsRequest::Rename {
            parent: root,
            name: b"file",
            new_parent: root,
            new_name: b"new",
            mode: RenameMode::Replace,
        },
        FsRequest::Setxattr {
            node: file.node(),
            name: b"user.x",
            value: b"",
            mode: XattrMode::Any,
        },
        FsRequest::Removexattr {
            node: file.node(),
            name: b"user.x",
        },
        FsRequest::Create {
            parent: root,
            name: b"new",
            new: new_file(false),
            file: 2,
        },
        FsRequest::Open {
            node: file.node(),
            mode: OpenMode::read_write(),
            file: 2,
        },
        FsRequest::Open {
            node: file.node(),
            mode: truncating,
            file: 2,
        },
    ];
    requests.extend(opens.map(path));
    let mac: u64 = raw.done(&FsRequest::Open {
        node: file.node(),
        mode: OpenMode::read_only(),
        file: 1,
    });
    assert_ne!(mac, 0);
    for request in requests {
        assert_eq!(raw.refused(&request), FsError::ReadOnly, "{request:?}");
    }
    let by_file = [
        FileRequest::FileSetattr { file: 1, set },
        FileRequest::Fallocate {
            file: 1,
            mode: ferrite_vfs::FallocateMode::PunchHole,
            offset: 0,
            len_bytes: 1,
        },
    ];
    for request in by_file {
        assert_eq!(raw.refused(&request), FsError::ReadOnly, "{request:?}");
    }
    assert_eq!(fs.getattr(SYSTEM, file.attr.ino).unwrap(), before);
    bystander.goes_on();
}

#[test]
fn root_is_nobody_unless_it_may_be() {
    let (fs, _server, address) = subtree(|options| options.root_squash(true));
    let sub = fs.resolve(SYSTEM, &Start::default(), b"/sub", true).unwrap();
    let private = |name: &[u8], mode, gid| {
        let made = fs.mknod(SYSTEM, sub.ino, name, &node(FileKind::File, mode)).unwrap();
        let set = SetAttr {
            uid: Some(0),
            gid: Some(gid),
            ..SetAttr::default()
        };
        fs.setattr(SYSTEM, made.ino, &set).unwrap();
    };
    private(b"roots", 0o600, 0);
    private(b"wheels", 0o060, 0);
    private(b"groups", 0o060, 5);
    let (mut raw, welcome) = Raw::with_session(&address, "sub");
    let root = welcome.root;
    // `check` is off: the server does not trust that.
    let made: NodeAttr = raw.done(&FsRequest::Mkdir {
        parent: root,
        name: b"mine",
        mode: 0o755,
    });
    assert_eq!((made.attr.uid, made.attr.gid), (NOBODY, NOBODY));
    let read = |path: &'static [u8]| {
        let flags = OpenFlags {
            read: true,
            ..OpenFlags::default()
        };
        FsRequest::OpenPath {
            root,
            base: root,
            path,
            flags,
            file: 1,
        }
    };
    let set = SetAttr {
        uid: Some(1000),
        ..SetAttr::default()
    };
    assert_eq!(raw.refused(&read(b"roots")), FsError::AccessDenied);
    assert_eq!(
        raw.refused(&FsRequest::Setattr { node: made.node(), set }),
        FsError::NotPermitted
    );
    for (uid, gid, groups) in [
        (1000, 1000, vec![]),
        (1000, 0, vec![]),
        (1000, 1000, vec![7, 0]),
        (0, 0, vec![0, 5]),
    ] {
        (raw.uid, raw.gid, raw.groups) = (uid, gid, groups);
        assert_eq!(raw.refused(&read(b"roots")), FsError::AccessDenied);
        assert_eq!(
            raw.refused(&read(b"wheels")),
            FsError::AccessDenied,
            "as {uid}, {gid}, {:?}",
            raw.groups
        );
    }
    assert_eq!(
        raw.refused(&read(b"groups")),
        FsError::AccessDenied,
        "the groups of who was root do not count"
    );
    (raw.uid, raw.gid, raw.groups) = (1000, 1000, vec![5]);
    let opened: OpenedFile = raw.done(&read(b"groups"));
    assert_eq!(opened.node_attr.attr.gid, 5);
}

/// A client's kernel lets its root list everything, and a client of its own lists without having opened anything.
#[test]
fn where_root_is_nobody_a_directory_is_listed_to_who_may_read_it() {
    let (fs, _server, address) = subtree(|options| options.root_squash(true));
    let sub = fs.resolve(SYSTEM, &Start::default(), b"/sub", true).unwrap();
    for (name, mode) in [("private", 0o700), ("names", 0o744), ("search", 0o711), ("open", 0o755)] {
        let made = fs.mkdir(SYSTEM, sub.ino, name.as_bytes(), mode).unwrap();
        let set = SetAttr {
            uid: Some(5),
            ..SetAttr::default()
        };
        fs.setattr(SYSTEM, made.ino, &set).unwrap();
        fs.mknod(SYSTEM, made.ino, b"secret", &node(FileKind::File, 0o600))
            .unwrap();
    }
    let (mut raw, welcome) = Raw::with_session(&address, "sub");
    raw.pins = true;
    let mut list = |uid, name: &'static str, with_attributes| {
        raw.uid = uid;
        let dir: NodeAttr = raw.done(&FsRequest::Lookup {
            parent: welcome.root,
            name: name.as_bytes(),
        });
        let reply = raw.ask(&FsRequest::Readdir {
            dir: dir.node(),
            cookie: 0,
            with_attributes,
            reply_bytes: u32::MAX,
        });
        let (body, _) = reply.expect("a reply")?;
        let mut reader = Reader::new(&body);
        assert_eq!(reader.get::<u8>().unwrap(), ENTRY_FOLLOWS);
        let entry: Entry<'_> = reader.get().unwrap();
        assert_eq!(
            (entry.name, reader.get::<u8>().unwrap()),
            (&b"secret"[..], LISTING_ENDS)
        );
        match entry.info {
            EntryInfo::Nothing(error) => Ok(Err(error)),
            EntryInfo::Node(_) => Ok(Ok(false)),
            EntryInfo::Attributes(_) => Ok(Ok(true)),
        }
    };
    for with_attributes in [true, false] {
        for uid in [0, 1000] {
            let mut list = |name| list(uid, name, with_attributes);
            assert_eq!(list("private"), Err(FsError::AccessDenied));
            assert_eq!(list("search"), Err(FsError::AccessDenied));
            assert_eq!(
                list("names"),
                Ok(Err(FsError::AccessDenied)),
                "a node would serve to look in"
            );
            assert_eq!(list("open"), Ok(Ok(with_attributes)));
        }
        assert_eq!(list(5, "private", with_attributes), Ok(Ok(with_attributes)));
    }
}

/// The kernel of a client reads a program for a caller that may execute it, and says no more than that it reads.
#[test]
fn where_root_is_nobody_a_program_is_read_to_run_it() {
    let (fs, _server, address) = subtree(|options| options.root_squash(true));
    let sub = fs.resolve(SYSTEM, &Start::default(), b"/sub", true).unwrap();
    let (mut raw, welcome) = Raw::with_session(&address, "sub");
    (raw.uid, raw.gid) = (1000, 1000);
    for (name, mode) in [("program", 0o711), ("private", 0o700)] {
        fs.mknod(SYSTEM, sub.ino, name.as_bytes(), &node(FileKind::File, mode))
            .unwrap();
        let file: NodeAttr = raw.done(&FsRequest::Lookup {
            parent: welcome.root,
            name: name.as_bytes(),
        });
        let mut open = |mode, check| {
            raw.check = check;
            let node = file.node();
            let reply = raw.ask(&FsRequest::Open { node, mode, file: 1 });
            reply.expect("a reply").map(|_| ())
        };
        let (read, both, denied) = (
            OpenMode::read_only(),
            OpenMode::read_write(),
            Err(FsError::AccessDenied),
        );
        assert_eq!(open(read, false), if mode == 0o711 { Ok(()) } else { denied.clone() });
        assert_eq!(open(both, false), denied);
        assert_eq!(open(read, true), denied, "who has the server check does not run it");
    }
}

/// A value longer than a message is refused as any engine refuses it, and the connection stays.
#[test]
fn values_and_names_longer_than_a_message_are_refused() {
    let (_server, address) = serve(Arc::new(MemFs::new()), vec![export("")], &ServerOptions::default());
    let client = common::connect(&address);
    let long = vec![b'x'; 200 << 10];
    let set = client.setxattr(SYSTEM, ROOT_INO, b"user.long", &long, XattrMode::Any);
    assert_eq!(set, Err(FsError::ValueTooLong));
    assert_eq!(client.lookup(SYSTEM, ROOT_INO, &long), Err(FsError::NameTooLong));
    assert_eq!(
        client.getxattr(SYSTEM, ROOT_INO, b"user.long"),
        Err(FsError::NoAttribute)
    );
    assert_eq!(client.reconnects(), 0);
}
