//! The cost of an operation for a client of an engine over a network: the number of calls, and the fate of one that
//! fails.
//!
//! A call that no caller waits for (`unpin`, `file.close`) is counted, too, but is not a round trip.

use std::collections::BTreeMap;
use std::sync::Arc;

use ferrite_testkit::network::{Conditions, Remote};
use ferrite_vfs::memfs::MemFs;
use ferrite_vfs::{
    Cred, Ctx, DedupToken, FileKind, FileSystem, FsError, NewFile, NewNode, OpenFlags, OpenMode, ROOT_INO, RenameMode,
    SYSTEM, Vfs, Written,
};

type Distant = Remote<Arc<dyn FileSystem>>;

const FILE: NewNode = NewNode {
    kind: FileKind::File,
    mode: 0o644,
    rdev: 0,
};

const READ: OpenFlags = OpenFlags {
    read: true,
    write: false,
    create: false,
    exclusive: false,
    truncate: false,
    no_follow: false,
    no_atime: false,
    mode: 0o644,
};

fn remote(conditions: Conditions) -> (MemFs, Arc<Distant>) {
    let engine = MemFs::new();
    let below: Arc<dyn FileSystem> = Arc::new(engine.clone());
    (engine, Arc::new(Remote::new(below, conditions)))
}

/// The calls of `work`, below `/a/b/c` with a file `f`.
fn calls(work: impl FnOnce(&Vfs)) -> BTreeMap<&'static str, usize> {
    let (_, remote) = remote(Conditions::calm());
    let vfs = Vfs::new(remote.clone(), Cred::root());
    for dir in ["/a", "/a/b", "/a/b/c", "/other"] {
        vfs.mkdir(dir.as_bytes(), 0o755).unwrap();
    }
    vfs.mknod(b"/a/b/c/f", &FILE).unwrap();
    remote.network().take_calls();
    work(&vfs);
    remote.network().take_calls()
}

#[test]
fn creating_and_opening_is_one_call() {
    let flags = OpenFlags {
        write: true,
        create: true,
        ..READ
    };
    let counted = calls(|vfs| {
        let file = vfs.open(b"/a/b/c/new", &flags).unwrap();
        file.append(vfs.ctx(), b"content").unwrap();
    });
    assert_eq!(counted, [("file.close", 1), ("file.write", 1), ("open_path", 1)].into());
}

#[test]
fn opening_is_one_call() {
    let counted = calls(|vfs| drop(vfs.open(b"/a/b/../b/c/f", &READ).unwrap()));
    assert_eq!(counted, [("file.close", 1), ("open_path", 1)].into());
}

#[test]
fn attributes_are_one_call() {
    let counted = calls(|vfs| _ = vfs.stat(b"/a/b/c/f", true).unwrap());
    assert_eq!(counted, [("resolve", 1)].into());
}

/// Opening the directory is one call, its whole content another.
#[test]
fn a_listing_with_attributes_is_one_call() {
    let counted = calls(|vfs| {
        for index in 0..1000 {
            let name = format!("f{index}");
            vfs.fs().mknod(SYSTEM, ROOT_INO, name.as_bytes(), &FILE).unwrap();
        }
        let mut listed = 0;
        let mut sizes = |_: &ferrite_vfs::DirEntry<'_>, attr: ferrite_vfs::Result<ferrite_vfs::Attr>| {
            listed += usize::from(attr.unwrap().kind == FileKind::File);
            true
        };
        vfs.open_dir(b"/").unwrap().readdir_plus(0, &mut sizes).unwrap();
        assert_eq!(listed, 1000);
    });
    assert_eq!(counted, [("mknod", 1000), ("readdir_plus", 1), ("resolve", 1)].into());
}

/// A change by path needs the directory first, which stays pinned until the change is done.
#[test]
fn a_change_by_path_is_two_calls() {
    let counted = calls(|vfs| _ = vfs.mkdir(b"/a/b/new", 0o755).unwrap());
    assert_eq!(counted, [("mkdir", 1), ("resolve", 1), ("unpin", 1)].into());
    let counted = calls(|vfs| _ = vfs.mkdir(b"/new", 0o755).unwrap());
    assert_eq!(counted, [("mkdir", 1), ("resolve", 1)].into(), "the root needs no pin");
    let counted = calls(|vfs| vfs.unlink(b"/a/b/c/f").unwrap());
    assert_eq!(counted, [("resolve", 1), ("unlink", 1), ("unpin", 1)].into());
    let counted = calls(|vfs| vfs.rmdir(b"/other").unwrap());
    assert_eq!(counted, [("resolve", 1), ("rmdir", 1)].into());
}

#[test]
fn a_rename_by_path_is_three_calls() {
    let counted = calls(|vfs| vfs.rename(b"/a/b/c/f", b"/other/f", RenameMode::Replace).unwrap());
    assert_eq!(counted, [("rename", 1), ("resolve", 2), ("unpin", 2)].into());
}

/// The client resends reads until a reply comes, and they leave no state behind that the caller does not know of.
#[test]
fn lost_reads_are_made_good() {
    let (engine, remote) = remote(Conditions::calm());
    let file = remote.mknod(SYSTEM, ROOT_INO, b"f", &FILE).unwrap();
    remote.network().set_conditions(Conditions {
        request_lost_percent: 20,
        answer_lost_percent: 20,
        doubled_percent: 20,
        ..Conditions::calm()
    });
    let pinning = SYSTEM.clone().pinning();
    for _ in 0..200 {
        assert_eq!(remote.lookup(&pinning, ROOT_INO, b"f").unwrap().ino, file.ino);
        remote.unpin(SYSTEM, file.ino, 1);
        drop(remote.open(SYSTEM, file.ino, OpenMode::read_only()).unwrap());
        let mut entries = Vec::new();
        remote
            .readdir_plus(&pinning, ROOT_INO, 0, &mut |entry, _| {
                entries.push(entry.name.to_vec());
                true
            })
            .unwrap();
        assert_eq!(entries, [b"f"]);
        remote.unpin(SYSTEM, file.ino, 1);
    }
    assert!(remote.network().resent() > 100, "{}", remote.network().resent());
    assert_eq!(remote.network().take_calls()["lookup"], 200, "each counts once");
    remote.unlink(SYSTEM, ROOT_INO, b"f").unwrap();
    assert_eq!(
        engine.getattr(SYSTEM, file.ino),
        Err(FsError::Stale),
        "a pin or an open file is left"
    );
}

/// A change is not resent: the caller learns that its outcome is unknown, and both outcomes can be the case.
#[test]
fn a_lost_change_happened_or_not() {
    let new = NewFile {
        mode: 0o600,
        open: OpenMode::read_write(),
        exclusive: true,
    };
    let ctx = Ctx::trusted(Cred::root()).pinning();
    for (request_lost_percent, happened) in [(100, false), (0, true)] {
        let (engine, remote) = remote(Conditions::calm());
        remote.mknod(SYSTEM, ROOT_INO, b"old", &FILE).unwrap();
        remote.network().set_conditions(Conditions {
            request_lost_percent,
            answer_lost_percent: 100,
            loses_changes: true,
            ..Conditions::calm()
        });
        let lost = |error: Option<FsError>| matches!(error, Some(FsError::TimedOut | FsError::Disconnected));
        assert!(lost(remote.create(&ctx, ROOT_INO, b"new", &new).err()));
        assert!(lost(remote.unlink(SYSTEM, ROOT_INO, b"old").err()));
        assert_eq!(engine.lookup(SYSTEM, ROOT_INO, b"new").is_ok(), happened);
        assert_eq!(engine.lookup(SYSTEM, ROOT_INO, b"old").is_err(), happened);
        if happened {
            let ino = engine.lookup(SYSTEM, ROOT_INO, b"new").unwrap().ino;
            engine.unlink(SYSTEM, ROOT_INO, b"new").unwrap();
            assert_eq!(
                engine.getattr(SYSTEM, ino),
                Err(FsError::Stale),
                "what nobody has is closed"
            );
        }
    }
}

/// A change with a token is resent like a read, and happens once.
#[test]
fn a_change_with_a_token_is_sent_again() {
    let (engine, remote) = remote(Conditions::calm());
    let ino = remote.mknod(SYSTEM, ROOT_INO, b"f", &FILE).unwrap().ino;
    let file = remote.open(SYSTEM, ino, OpenMode::read_write()).unwrap();
    remote.network().set_conditions(Conditions {
        request_lost_percent: 20,
        answer_lost_percent: 20,
        doubled_percent: 20,
        loses_changes: true,
        ..Conditions::calm()
    });
    for seq in 1..=100 {
        let ctx = SYSTEM.clone().token(DedupToken { slot: 0, seq });
        assert_eq!(file.append(&ctx, b"x"), Ok(Written::new(seq - 1, 1)));
    }
    assert!(remote.network().resent() > 50, "{}", remote.network().resent());
    assert_eq!(engine.getattr(SYSTEM, ino).unwrap().size, 100);
}

/// A listing in several replies returns each entry once, and pins only entries that its receiver accepted.
#[test]
fn a_long_listing_takes_several_answers() {
    let (engine, remote) = remote(Conditions {
        entries_max: 3,
        ..Conditions::calm()
    });
    let made: Vec<_> = (0..10)
        .map(|index| {
            let name = format!("{index}");
            remote.mknod(SYSTEM, ROOT_INO, name.as_bytes(), &FILE).unwrap().ino
        })
        .collect();
    remote.network().take_calls();
    let mut seen = Vec::new();
    let list = |seen: &mut Vec<u64>, cookie, most| {
        let mut next = cookie;
        let pinning = SYSTEM.clone().pinning();
        remote
            .readdir_plus(&pinning, ROOT_INO, cookie, &mut |entry, _| {
                let accepted = seen.len() < most;
                if accepted {
                    seen.push(entry.ino);
                    next = entry.next_cookie;
                }
                accepted
            })
            .unwrap();
        next
    };
    let next = list(&mut seen, 0, 5);
    assert_eq!(seen, made[..5]);
    assert_eq!(remote.network().take_calls(), [("readdir_plus", 2)].into());
    list(&mut seen, next, 8);
    assert_eq!(seen, made[..8]);
    for index in 0..10 {
        remote.unlink(SYSTEM, ROOT_INO, format!("{index}").as_bytes()).unwrap();
    }
    for (index, ino) in made.iter().enumerate() {
        assert_eq!(engine.getattr(SYSTEM, *ino).is_ok(), index < 8, "entry {index}");
    }
}
