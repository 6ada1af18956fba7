//! In a sticky directory no user removes another user's file, in any race: the engine checks under the locks under
//! which it removes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Barrier, Mutex};

use ferrite_vfs::{Cred, Ctx, FileKind, FileSystem, Ino, NewNode, ROOT_INO, RenameMode, Result, SYSTEM, SetAttr};

use super::{Check, together};

const ROUNDS: usize = 1000;
const NAME: &[u8] = b"name";
const OTHER: &[u8] = b"other";
const AWAY: &[u8] = b"away";
const FILE: NewNode = NewNode {
    kind: FileKind::File,
    mode: 0o644,
    rdev: 0,
};

pub(super) fn checks() -> [Check; 3] {
    [
        Check {
            name: "linear/nobody unlinks another's file in a sticky directory",
            run: |fs, _| race(fs, |fs, alice, dir| fs.unlink(alice, dir, NAME)),
        },
        Check {
            name: "linear/nobody moves another's file in a sticky directory",
            run: |fs, _| {
                race(fs, |fs, alice, dir| {
                    fs.rename(alice, dir, NAME, dir, AWAY, RenameMode::Replace)
                })
            },
        },
        Check {
            name: "linear/nobody replaces another's file in a sticky directory",
            run: |fs, _| {
                race(fs, |fs, alice, dir| {
                    fs.unlink(alice, dir, NAME)?;
                    fs.rename(alice, dir, OTHER, dir, NAME, RenameMode::Replace)
                });
            },
        },
    ]
}

/// One way for Alice to remove the file at the name.
type Take = fn(&dyn FileSystem, &Ctx, Ino) -> Result<()>;

/// Alice has a file at the name. Two threads of hers remove it at once, and as soon as it is gone, Bob makes one there.
/// A file whose creation Bob saw succeed is there, and belongs to Bob.
fn race(fs: &dyn FileSystem, take: Take) {
    let dir = fs.mkdir(SYSTEM, ROOT_INO, b"tmp", 0o777).expect("mkdir").ino;
    let sticky = SetAttr {
        mode: Some(0o1777),
        ..SetAttr::default()
    };
    fs.setattr(SYSTEM, dir, &sticky).expect("chmod");
    let (alice, bob) = (Ctx::checked(Cred::new(1000, 1000)), Ctx::checked(Cred::new(1001, 1001)));
    let turn = Barrier::new(3);
    // The inode that Bob made in this round; 0 for none.
    let made = AtomicU64::new(0);
    let gone = Mutex::new(None);
    together(3, |thread| {
        for round in 0..ROUNDS {
            if thread == 2 {
                for name in [NAME, OTHER] {
                    fs.mknod(&alice, dir, name, &FILE).expect("mknod");
                }
                made.store(0, Ordering::Relaxed);
            }
            turn.wait();
            if thread < 2 {
                let _ = take(fs, &alice, dir);
            } else if let Some(attr) = (0..400).find_map(|_| fs.mknod(&bob, dir, NAME, &FILE).ok()) {
                made.store(attr.ino, Ordering::Relaxed);
            }
            turn.wait();
            if thread == 2 {
                let made = made.load(Ordering::Relaxed);
                let found = fs.lookup(SYSTEM, dir, NAME).map(|attr| (attr.ino, attr.uid));
                if made != 0 && found != Ok((made, 1001)) {
                    // A panic here would leave the others waiting.
                    *gone.lock().expect("never poisoned") = Some(format!("round {round}: {found:?}"));
                }
                for name in [NAME, OTHER, AWAY] {
                    let _ = fs.unlink(SYSTEM, dir, name);
                }
            }
        }
    });
    let gone = gone.into_inner().expect("never poisoned");
    assert!(gone.is_none(), "Bob's file is gone: {gone:?}");
}
