//! Few names and inode numbers, reused by two threads whose rings are far apart in their numbers.
//!
//! One thread makes a change each time, the other one mostly reads, so the numbers of the first ring run ahead. The
//! second thread sets what the first clears, by a record that must still have a higher number
//! (docs/crash-consistency.md, rules 4 and 6).

use super::*;

/// Operations of such a workload.
const REUSE_OPS: usize = 60;
/// Directories, and the names that each may have.
const DIRS: u8 = 3;
const NAMES: u64 = 10;
/// The file of two pages that is written across their border, so that one record covers two entries.
const PAGES: u8 = 5;

/// The initial tree.
pub(super) fn setup() -> Vec<Op> {
    let dirs = (0..DIRS).map(|dir| mkdir(&[dir]));
    let files = [
        make(&[0, A], FileKind::File),
        make(&[1, A], FileKind::File),
        make(&[PAGES], FileKind::File),
        write(&[PAGES], 0, 8192, 1),
    ];
    dirs.chain(files).collect()
}

/// The operations; the thread that is ahead does those of even index.
pub(super) fn ops(seed: u64) -> Vec<Op> {
    let mut rng = Rng::new(seed ^ 0x4e5);
    let step = |index: usize| {
        let is_ahead = index.is_multiple_of(2);
        // Neither thread touches a directory of the other, which would bring their numbers together.
        let dir = match is_ahead {
            true => [0, 2][rng.below(2) as usize],
            false => 1,
        };
        let name = [dir, rng.below(NAMES) as u8];
        let other = [dir, rng.below(NAMES) as u8];
        let fill = 100 + index as u32;
        match (rng.below(10), is_ahead) {
            (0..=3, false) => Op::Read {
                on: at(&[1, A]),
                offset: 0,
                len: 100,
            },
            (0..=1, true) => set(
                &[dir],
                SetAttr {
                    mode: Some(0o700 + index as u32 % 64),
                    ..SetAttr::default()
                },
            ),
            (2..=4, true) | (5, _) => Op::Unlink { path: path(&name) },
            (6, _) => rename(&name, &other, RenameMode::Replace),
            (7, true) => write(&[PAGES], 4096 - rng.below(150), 150 + rng.below(100) as usize, fill),
            _ => make(&name, FileKind::File),
        }
    };
    (0..REUSE_OPS).map(step).collect()
}
