//! Loops of several threads. Their limits: several parts of the journal whose records free and take the same resources;
//! structures shared by all threads (free maps, name table) under contention.
//!
//! Invariant: threads touch different names and bytes, so that the outcome does not depend on their order.

use ferrite_vfs::{FallocateMode, RenameMode};

use super::{Loop, Pair};

const PAGE: u64 = 4096;
const THREADS: u64 = 4;

pub(super) const LOOPS: &[Loop] = &[
    Loop {
        name: "each_its_own_file",
        presses: "rings side by side: what one frees another takes",
        threads: THREADS,
        weight: 4,
        prepare: |pair| {
            for thread in 0..THREADS {
                let dir = format!("dir{thread}");
                pair.mkdir(&dir);
                pair.create(&format!("{dir}/state"));
            }
        },
        turn: |pair, n| {
            let dir = format!("dir{}", pair.thread);
            rewrite(pair, &dir, n);
        },
    },
    Loop {
        name: "all_in_one_directory",
        presses: "one directory's blocks, name slots and inode numbers, taken by one and freed by another",
        threads: THREADS,
        weight: 4,
        prepare: |pair| pair.mkdir("dir"),
        turn: |pair, n| {
            let mine = |k: u64| format!("dir/{}-{k}", pair.thread);
            let [new, old, oldest] = [mine(n), mine(n.wrapping_sub(1)), mine(n.wrapping_sub(2))];
            pair.create(&new);
            pair.write(&new, 0, 200 + (n % 3) as usize * 2000);
            // No turn precedes the first ones.
            if pair.exists(&old) {
                pair.rename(&old, &format!("{old}.moved"), RenameMode::Replace);
            }
            if pair.exists(&format!("{oldest}.moved")) {
                pair.unlink(&format!("{oldest}.moved"));
            }
        },
    },
    Loop {
        name: "all_in_one_file",
        presses: "one inode that several rings have records of",
        threads: THREADS,
        weight: 4,
        prepare: |pair| {
            pair.create("shared");
            pair.write("shared", 0, (THREADS * 8 * PAGE) as usize);
        },
        turn: |pair, n| {
            let first = pair.thread * 8;
            let page = (first + pair.rng.below(7)) * PAGE;
            match n % 3 {
                0 => pair.write("shared", page, PAGE as usize),
                1 => {
                    let at = page + pair.rng.below(3000);
                    pair.write("shared", at, 900);
                }
                _ => {
                    pair.fallocate("shared", FallocateMode::PunchHole, page, PAGE);
                    pair.write("shared", page, 3000);
                }
            }
        },
    },
];

/// One of the ways to rewrite `state` in `dir`.
fn rewrite(pair: &mut Pair<'_>, dir: &str, n: u64) {
    let (state, new) = (format!("{dir}/state"), format!("{dir}/new"));
    match n / 64 % 3 {
        0 => {
            pair.truncate(&state, 0);
            pair.write(&state, 0, 1492);
        }
        1 => {
            pair.create(&new);
            pair.write(&new, 0, 5000);
            pair.rename(&new, &state, RenameMode::Replace);
        }
        _ => {
            pair.unlink(&state);
            pair.create(&state);
            pair.append(&state, 700);
        }
    }
}
