//! In a sticky directory no user removes another's file, whoever is faster: the engine checks under its own locks.
//!
//! Each caller has a [`Vfs`] of its own, as two mounts or two clients would: they share nothing but the engine.

use std::sync::{Arc, Barrier};

use ferrite_vfs::memfs::MemFs;
use ferrite_vfs::{Cred, FileKind, FsError, NewNode, RenameMode, SetAttr, Vfs};

const ROUNDS: usize = 3000;
const NAME: &[u8] = b"/tmp/name";
const FILE: NewNode = NewNode {
    kind: FileKind::File,
    mode: 0o644,
    rdev: 0,
};

/// One way for Alice to remove the file at the name.
type Take = fn(&Vfs) -> ferrite_vfs::Result<()>;

/// Alice has a file at the name. Two of her programs remove it at once, and as soon as it is gone, Bob creates one
/// there. A file whose creation succeeded for Bob is there, and belongs to Bob.
fn race(take: Take) {
    let fs = Arc::new(MemFs::new());
    let user = |uid| Vfs::new(fs.clone(), Cred::new(uid, uid));
    let root = user(0);
    root.mkdir(b"/tmp", 0o777).unwrap();
    let sticky = SetAttr {
        mode: Some(0o1777),
        ..SetAttr::default()
    };
    root.setattr(b"/tmp", &sticky, true).unwrap();
    let turn = Barrier::new(3);
    for round in 0..ROUNDS {
        let alice = user(1000);
        alice.mknod(NAME, &FILE).unwrap();
        alice.mknod(b"/tmp/other", &FILE).unwrap();
        let made = std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let alice = user(1000);
                    turn.wait();
                    let _ = take(&alice);
                });
            }
            let bob = user(1001);
            turn.wait();
            let mut made = Err(FsError::Exists);
            for _ in 0..200 {
                made = bob.mknod(NAME, &FILE);
                if made.is_ok() {
                    break;
                }
                std::hint::spin_loop();
            }
            made
        });
        let found = root.stat(NAME, false);
        if let Ok(made) = made {
            assert_eq!(
                found.map(|found| found.ino),
                Ok(made.ino),
                "round {round}: Bob's file is gone"
            );
        }
        for name in [NAME, b"/tmp/other", b"/tmp/away"] {
            let _ = root.unlink(name);
        }
    }
}

#[test]
fn a_file_is_not_removed_in_the_place_of_another() {
    race(|alice| alice.unlink(NAME));
}

#[test]
fn a_file_is_not_moved_in_the_place_of_another() {
    race(|alice| alice.rename(NAME, b"/tmp/away", RenameMode::Replace));
}

#[test]
fn a_file_is_not_replaced_in_the_place_of_another() {
    race(|alice| {
        alice.unlink(NAME)?;
        alice.rename(b"/tmp/other", NAME, RenameMode::Replace)
    });
}
