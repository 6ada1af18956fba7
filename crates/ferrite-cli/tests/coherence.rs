//! The kernel caches pages of files on a mount; after a direct write has returned no reader gets an old page, in
//! whatever way it reads.

use std::process::Command;

use crate::common::{TestPool, has_fuse, ok};

const PROGRAM: &str = include_str!("coherence.py");

fn is_coherent(kind: &str) {
    if !has_fuse() {
        return;
    }
    let test = TestPool::new("64M", &[]);
    let stale = ok(Command::new("python3")
        .args(["-c", PROGRAM])
        .arg(test.path("f"))
        .args([kind, "100"]));
    assert_eq!(stale.trim(), "0", "rounds in which somebody read old pages");
    test.finish();
}

#[test]
fn asynchronous_direct_writes_leave_no_old_pages_in_the_cache() {
    is_coherent("aio");
}

#[test]
fn direct_writes_leave_no_old_pages_in_the_cache() {
    is_coherent("sync");
}

#[test]
fn direct_writes_leave_no_old_pages_in_mappings() {
    is_coherent("mmap");
}

#[test]
fn a_truncation_beside_a_direct_write_leaves_no_old_pages_in_the_cache() {
    is_coherent("truncate");
}
