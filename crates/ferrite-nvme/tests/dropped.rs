//! An engine that is dropped without a close ends its threads: a process may exit right after that.

mod common;

use std::process::Command;

use common::Memory;
use ferrite_vfs::{Cred, OpenFlags, SYSTEM, Vfs};

const CHILD: &str = "FERRITE_DROPS";

/// Makes work for the housekeeper, and drops the engine while it does it.
fn drop_one(round: u64) {
    #[cfg(feature = "rocksdb")]
    let mut pool = Memory::at(common::Backend::Directory, 1, 16, 62);
    #[cfg(not(feature = "rocksdb"))]
    let mut pool = Memory::new(1, 16, 62);
    let vfs = Vfs::new(pool.shared(), Cred::root());
    let flags = OpenFlags {
        write: true,
        create: true,
        mode: 0o644,
        ..OpenFlags::default()
    };
    for number in 0..300 {
        let path = format!("/{number}");
        vfs.open(path.as_bytes(), &flags)
            .unwrap()
            .write_at(SYSTEM, 0, &[1; 100])
            .unwrap();
        vfs.unlink(path.as_bytes()).unwrap();
    }
    // Somewhere in the housekeeper's round.
    std::thread::sleep(std::time::Duration::from_micros(round * 370 % 5000));
    drop(vfs);
    pool.abandon();
    assert!(pool.engine_is_gone());
}

#[test]
fn a_process_may_end_when_the_engine_is_dropped() {
    if let Ok(round) = std::env::var(CHILD) {
        drop_one(round.parse().unwrap());
        // At once: no one waits for a thread that is left.
        std::process::exit(0);
    }
    let this = std::env::current_exe().unwrap();
    for round in 0..40_u64 {
        let child = Command::new(&this)
            .args(["--exact", "a_process_may_end_when_the_engine_is_dropped"])
            .env(CHILD, round.to_string())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stderr);
        assert!(child.status.success(), "round {round}: {}: {said}", child.status);
    }
}
