//! Files that share most of their blocks: clones, and all changes of a page that must notice that its block is shared.
//!
//! Few blocks are free, so that a block that is freed too early is written at once. The files are short, so that most
//! pages of each are pages of the others too, and the last page that names a block is soon gone as well.

use super::*;

/// Operations of such a workload.
const CLONES_OPS: usize = 50;
/// Pages of each file, at most.
const PAGES: u64 = 12;
/// A pool with clones is filled until this many blocks are available: a few more than a full overwrite takes.
pub(super) const BLOCKS_LEFT: u64 = 18;
/// Tables need entries for pages that share.
pub(super) const PAGES_PER_BLOCK: u32 = 4;

const FILES: [u8; 3] = [A, B, C];

/// One file with content, and two that share all of it.
pub(super) fn setup() -> Vec<Op> {
    let files = FILES.map(|name| make(&[name], FileKind::File));
    let content = write(&[A], 0, PAGES as usize * 4096, 1);
    let shared = [clone(&[A], &[B], 0), clone(&[A], &[C], 0)];
    files.into_iter().chain([content]).chain(shared).collect()
}

/// The operations.
pub(super) fn ops(seed: u64) -> Vec<Op> {
    let mut rng = Rng::new(seed ^ 0xc10e);
    let zero = FallocateMode::ZeroRange { keep_size: true };
    let step = |index: usize| {
        let (name, other) = (FILES[rng.below(3) as usize], FILES[rng.below(3) as usize]);
        let (page, pages) = (rng.below(PAGES), 1 + rng.below(PAGES / 2));
        let (offset, len) = (page * 4096, pages.min(PAGES - page) * 4096);
        let fill = 100 + index as u32;
        match rng.below(14) {
            0..=3 => Op::Clone {
                source: at(&[other]),
                source_offset: offset,
                on: at(&[name]),
                offset: rng.below(PAGES - len / 4096 + 1) * 4096,
                len,
            },
            4..=5 => write(&[name], offset, len as usize, fill),
            6..=7 => write(&[name], offset + rng.below(4000), 1 + rng.below(90) as usize, fill),
            8 => allocate(&[name], FallocateMode::PunchHole, offset, len),
            9 => allocate(&[name], zero, offset, len),
            10 => truncate(&[name], offset + rng.below(4096)),
            11 => Op::Unlink { path: path(&[name]) },
            12 if rng.below(3) == 0 => clone_tree(&[other], &[name]),
            12 => make(&[name], FileKind::File),
            _ => Op::Read {
                on: at(&[name]),
                offset: 0,
                len: PAGES as usize * 4096,
            },
        }
    };
    (0..CLONES_OPS).map(step).collect()
}
