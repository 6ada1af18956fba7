//! Clients of a part of an engine reach nothing else, even if directories move across its border or the administrator
//! changes its `path`.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use crate::common::bystander::{new_file, node};
use crate::common::raw::Raw;
use crate::common::{export, serve};
use ferrite_proto::{FsRequest, Node, NodeAttr, OpenedFile, SessionState};
use ferrite_server::{ExportOptions, Server, ServerOptions};
use ferrite_vfs::memfs::MemFs;
use ferrite_vfs::{
    FileKind, FileSystem, FsError, Ino, OpenFlags, OpenMode, ROOT_INO, RenameMode, SYSTEM, SetAttr, XattrMode,
};

/// `/sub/dir/deep` and `/other`, with a file in each.
fn tree() -> Arc<MemFs> {
    let fs = Arc::new(MemFs::new());
    let dir = |parent: Ino, name: &str| {
        let ino = fs.mkdir(SYSTEM, parent, name.as_bytes(), 0o777).unwrap().ino;
        fs.mknod(SYSTEM, ino, b"file", &node(FileKind::File, 0o666)).unwrap();
        ino
    };
    let sub = dir(ROOT_INO, "sub");
    dir(dir(sub, "dir"), "deep");
    dir(ROOT_INO, "other");
    fs
}

fn resolve(root: Node, path: &str) -> FsRequest<'_> {
    FsRequest::Resolve {
        root,
        base: root,
        path: path.as_bytes(),
        follow: true,
    }
}

fn find(raw: &mut Raw, root: Node, path: &str) -> Node {
    raw.done::<NodeAttr>(&resolve(root, path)).node()
}

/// One request of each kind that names a directory.
fn requests_in(dir: Node, root: Node) -> Vec<FsRequest<'static>> {
    let flags = OpenFlags {
        read: true,
        ..OpenFlags::default()
    };
    vec![
        FsRequest::Getattr { node: dir },
        FsRequest::Parent { dir },
        FsRequest::Pin { node: dir },
        FsRequest::Lookup {
            parent: dir,
            name: b"file",
        },
        FsRequest::Readdir {
            dir,
            cookie: 0,
            with_attributes: true,
            reply_bytes: 1000,
        },
        FsRequest::Resolve {
            root,
            base: dir,
            path: b"file",
            follow: true,
        },
        FsRequest::Resolve {
            root: dir,
            base: dir,
            path: b"file",
            follow: true,
        },
        FsRequest::OpenPath {
            root,
            base: dir,
            path: b"file",
            flags,
            file: 77,
        },
        FsRequest::Listxattr { node: dir },
        FsRequest::Getxattr {
            node: dir,
            name: b"user.x",
        },
        FsRequest::Setattr {
            node: dir,
            set: SetAttr {
                mode: Some(0o700),
                ..SetAttr::default()
            },
        },
        FsRequest::Setxattr {
            node: dir,
            name: b"user.x",
            value: b"y",
            mode: XattrMode::Any,
        },
        FsRequest::Removexattr {
            node: dir,
            name: b"user.x",
        },
        FsRequest::Mknod {
            parent: dir,
            name: b"new",
            new: node(FileKind::File, 0o644),
        },
        FsRequest::Mkdir {
            parent: dir,
            name: b"new",
            mode: 0o755,
        },
        FsRequest::Symlink {
            parent: dir,
            name: b"new",
            target: b"x",
        },
        FsRequest::Create {
            parent: dir,
            name: b"new",
            new: new_file(true),
            file: 78,
        },
        FsRequest::Unlink {
            parent: dir,
            name: b"file",
        },
        FsRequest::Rmdir {
            parent: dir,
            name: b"deep",
        },
        FsRequest::Rename {
            parent: dir,
            name: b"file",
            new_parent: root,
            new_name: b"stolen",
            mode: RenameMode::Replace,
        },
        FsRequest::Rename {
            parent: root,
            name: b"file",
            new_parent: dir,
            new_name: b"given",
            mode: RenameMode::Replace,
        },
    ]
}

fn rename(raw: &mut Raw, (from, name): (Node, &str), (to, new_name): (Node, &str), mode: RenameMode) {
    raw.done::<()>(&FsRequest::Rename {
        parent: from,
        name: name.as_bytes(),
        new_parent: to,
        new_name: new_name.as_bytes(),
        mode,
    });
}

/// Once a client that knew a directory continued to read and write it, and later entries of it.
#[test]
fn what_is_moved_out_of_an_export_is_out_of_reach() {
    for pins in [false, true] {
        let fs = tree();
        let exports = vec![export("sub").path("/sub"), export("all")];
        let (_server, address) = serve(fs.clone(), exports, &ServerOptions::default());
        let (mut all, welcome) = Raw::with_session(&address, "all");
        let top = welcome.root;
        let (sub, other) = (find(&mut all, top, "sub"), find(&mut all, top, "other"));
        let (mut raw, welcome) = Raw::with_session(&address, "sub");
        let root = welcome.root;
        raw.pins = pins;
        let (dir, deep) = (find(&mut raw, root, "dir"), find(&mut raw, root, "dir/deep"));
        let use_both = |raw: &mut Raw| {
            for node in [dir, deep] {
                assert!(raw.ask(&FsRequest::Getattr { node }).unwrap().is_ok());
                let _: NodeAttr = raw.done(&FsRequest::Lookup {
                    parent: node,
                    name: b"file",
                });
            }
        };
        use_both(&mut raw);
        rename(&mut all, (sub, "dir"), (other, "dir"), RenameMode::Replace);
        let moved = find(&mut all, top, "other/dir");
        let _: NodeAttr = all.done(&FsRequest::Mkdir {
            parent: moved,
            name: b"later",
            mode: 0o777,
        });
        for node in [dir, deep] {
            for request in requests_in(node, root) {
                assert_eq!(raw.refused(&request), FsError::Stale, "{request:?}");
            }
        }
        // The rest of the export is usable, and so is a directory that comes back.
        let _: NodeAttr = raw.done(&resolve(root, "file"));
        rename(&mut all, (other, "dir"), (sub, "back"), RenameMode::Replace);
        use_both(&mut raw);
        rename(&mut raw, (root, "back"), (root, "dir"), RenameMode::Replace);
        use_both(&mut raw);
        // An exchange takes one out and brings one in.
        let _: NodeAttr = all.done(&FsRequest::Mkdir {
            parent: other,
            name: b"in",
            mode: 0o777,
        });
        rename(&mut all, (sub, "dir"), (other, "in"), RenameMode::Exchange);
        assert_eq!(raw.refused(&FsRequest::Getattr { node: deep }), FsError::Stale);
        let came = find(&mut raw, root, "dir");
        assert!(came != dir && raw.ask(&FsRequest::Getattr { node: came }).unwrap().is_ok());
    }
}

/// A file has no single place: a client keeps its handle until the administrator ends all handles.
#[test]
fn a_file_that_was_moved_out_stays_known_to_who_knew_it() {
    let fs = tree();
    let exports = vec![export("sub").path("/sub"), export("all")];
    let (_server, address) = serve(fs.clone(), exports, &ServerOptions::default());
    let (mut raw, welcome) = Raw::with_session(&address, "sub");
    let file = find(&mut raw, welcome.root, "dir/file");
    let at = |path: &[u8]| {
        fs.resolve(SYSTEM, &ferrite_vfs::Start::default(), path, true)
            .unwrap()
            .ino
    };
    fs.rename(
        SYSTEM,
        at(b"/sub/dir"),
        b"file",
        at(b"/other"),
        b"moved",
        RenameMode::Replace,
    )
    .unwrap();
    assert!(raw.ask(&FsRequest::Getattr { node: file }).unwrap().is_ok());
    // A removed directory is nowhere, and does no harm.
    let deep = find(&mut raw, welcome.root, "dir/deep");
    raw.done::<()>(&FsRequest::Pin { node: deep });
    raw.done::<()>(&FsRequest::Unlink {
        parent: deep,
        name: b"file",
    });
    let dir = find(&mut raw, welcome.root, "dir");
    raw.done::<()>(&FsRequest::Rmdir {
        parent: dir,
        name: b"deep",
    });
    assert!(raw.ask(&FsRequest::Getattr { node: deep }).unwrap().is_ok());
}

fn serve_again(address: &str, fs: &Arc<MemFs>, export: ExportOptions) -> Server {
    let options = ServerOptions::default().lease(Duration::from_secs(5));
    let began = std::time::Instant::now();
    let listener = loop {
        match TcpListener::bind(address) {
            Ok(listener) => break listener,
            Err(error) => assert!(began.elapsed() < Duration::from_secs(10), "{error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let engines = vec![(Arc::clone(fs) as Arc<dyn FileSystem>, vec![export])];
    Server::start(vec![listener], engines, &options).unwrap()
}

/// Handles, resume tokens and open files outlive a restart, but not the administrator's changes of the export.
#[test]
fn a_changed_path_or_epoch_ends_all_handles() {
    let fs = tree();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let first = || export("").path("/sub");
    let mut server = serve_again(&address, &fs, first());
    let (mut raw, welcome) = Raw::with_session(&address, "");
    let (dir, deep) = (
        find(&mut raw, welcome.root, "dir"),
        find(&mut raw, welcome.root, "dir/deep"),
    );
    let file = find(&mut raw, welcome.root, "dir/deep/file");
    let mode = OpenMode::read_only();
    let mac: u64 = raw.done(&FsRequest::Open {
        node: file,
        mode,
        file: 1,
    });
    let reopen = FsRequest::Reopen {
        node: file,
        mode,
        mac,
        file: 1,
    };
    for (changed, stays) in [
        (first(), true),
        (export("").path("/sub/dir"), false),
        (export("").path("/other"), false),
        (export(""), false),
        (first().handle_epoch(1), false),
        (first(), true),
    ] {
        server.stop();
        drop(server);
        server = serve_again(&address, &fs, changed.clone());
        let mut raw = Raw::connect(&address);
        let state = raw.set_up_session("", Some(welcome.resume_token)).unwrap().state;
        let expected = if stays {
            SessionState::ToReclaim
        } else {
            SessionState::New
        };
        assert_eq!(state, expected, "{changed:?}");
        for node in [welcome.root, dir, deep, file] {
            let reply = raw.ask(&FsRequest::Getattr { node }).unwrap();
            assert_eq!(reply.is_ok(), stays, "{changed:?}: {node:?}");
        }
        assert_eq!(raw.ask(&reopen).unwrap().is_ok(), stays, "{changed:?}");
        assert_eq!(
            raw.ask(&FsRequest::Pin { node: deep }).unwrap().is_ok(),
            stays,
            "{changed:?}"
        );
    }
    let _: OpenedFile = {
        let (mut raw, welcome) = Raw::with_session(&address, "");
        raw.done(&FsRequest::Create {
            parent: welcome.root,
            name: b"new",
            new: new_file(true),
            file: 1,
        })
    };
}
