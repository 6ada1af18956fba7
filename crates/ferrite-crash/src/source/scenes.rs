//! Scenes: short scripts that lead straight to a moment where one rule of the journal matters
//! (docs/crash-consistency.md), varied by a seed.
//!
//! Random workloads rarely reach the moment: the other ring must reuse what one ring has freed or cleared before the
//! checkpoint moves, while the numbers of the first are ahead. So a scene keeps its files open, because otherwise the
//! inode cache would drop them and remember one number for all. It runs one ring ahead, and then makes in the other the
//! changes that must come later.
//!
//! Invariant: a setup depends on the seed only through a choice of a few, because each setup's pool is made once and
//! kept.

use super::*;

/// The thread that does an operation: this one, or the other.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ring {
    Here,
    Elsewhere,
}

/// Number of scripts.
const SCRIPTS: u64 = 4;
/// Names that a directory may have besides its first one.
const LINKS: u8 = 11;
/// Files that a directory gets where inode numbers matter.
const FILES: u8 = 6;
/// Blocks left on a pool in scenes about dead records: few enough that a page can be written to all of them after a
/// crash.
const BLOCKS_LEFT: [u64; 2] = [14, 24];
/// The same for scenes that must reclaim space again and again.
const FEW_BLOCKS_LEFT: [u64; 2] = [5, 8];

struct Script {
    rng: Rng,
    ahead: Ring,
    ops: Vec<(Ring, Op)>,
}

/// The scene of a seed.
pub(super) fn scene(seed: u64) -> Workload {
    let mut rng = Rng::new(seed ^ 0x5ce9e);
    let ahead = if rng.below(2) == 0 { Ring::Here } else { Ring::Elsewhere };
    let mut script = Script {
        rng,
        ahead,
        ops: Vec::new(),
    };
    let which = (seed / SCRIPTS) as usize % 2;
    let (setup, inodes, blocks_left) = match seed % SCRIPTS {
        0 => script.names(),
        1 => script.inodes(),
        2 => script.dead_records(BLOCKS_LEFT[which]),
        _ => script.space(FEW_BLOCKS_LEFT[which]),
    };
    let (turns, ops) = script.ops.into_iter().unzip::<_, _, Vec<_>, Vec<_>>();
    Workload {
        setup,
        inodes,
        blocks_left,
        threads: vec![ops],
        tokens: Vec::new(),
        turns: Turns::Each(turns.into_iter().map(|ring| ring == Ring::Elsewhere).collect()),
        // A merge would give the reader's ring a number above that of the file.
        merge_read_entries: 0,
        pages_per_block: 1,
    }
}

impl Script {
    fn ahead(&mut self, op: Op) {
        self.ops.push((self.ahead, op));
    }

    fn behind(&mut self, op: Op) {
        let behind = match self.ahead {
            Ring::Here => Ring::Elsewhere,
            Ring::Elsewhere => Ring::Here,
        };
        self.ops.push((behind, op));
    }

    /// Keeps the files at these paths open until the end.
    fn hold(&mut self, paths: &[&[u8]]) {
        for (slot, names) in (0..).zip(paths) {
            self.ahead(Op::Pin {
                path: path(names),
                slot,
            });
        }
    }

    /// Makes a few records that change nothing but a directory's inode: the numbers of one ring run ahead.
    fn hurry(&mut self, dir: u8) {
        for _ in 0..3 + self.rng.below(4) {
            let mode = 0o700 + self.rng.below(64) as u32;
            self.ahead(set(
                &[dir],
                SetAttr {
                    mode: Some(mode),
                    ..SetAttr::default()
                },
            ));
        }
    }

    /// Removes names of one directory, and adds names to another one, some to freed slots. Links, so that no inode
    /// number orders them.
    fn names(&mut self) -> (Vec<Op>, u64, Option<u64>) {
        let mut setup: Vec<_> = [A, B, C, D].map(|dir| mkdir(&[dir])).into();
        setup.extend([A, B, C, D].map(|dir| make(&[dir, A], FileKind::File)));
        // There are many more slots than names, and few names share a home slot. So the scene removes and adds many
        // names, in one pair of directories or another.
        setup.extend(
            [A, C]
                .iter()
                .flat_map(|&dir| (1..=LINKS).map(move |name| link(&[dir, A], &[dir, name]))),
        );
        let (old, new) = ([A, C][self.rng.below(2) as usize], [B, D][self.rng.below(2) as usize]);
        self.hold(&[&[], &[old], &[new], &[old, A], &[new, A]]);
        self.hurry(old);
        for name in self.some_of_links() {
            self.ahead(Op::Unlink {
                path: path(&[old, name]),
            });
        }
        for name in self.some_of_links() {
            self.behind(link(&[new, A], &[new, name]));
        }
        (setup, FEW_INODES, None)
    }

    /// Most names of a directory, starting at a random one.
    fn some_of_links(&mut self) -> impl Iterator<Item = u8> + use<> {
        let first = self.rng.below(u64::from(LINKS)) as u8;
        let count = 8 + self.rng.below(3) as u8;
        (0..count).map(move |n| 1 + (first + n) % LINKS)
    }

    /// The last inode number is taken: the one that is freed in one directory is the one allocated in the other.
    fn inodes(&mut self) -> (Vec<Op>, u64, Option<u64>) {
        let mut setup = tree();
        let files = |dir: u8, last: u8| (1..=last).map(move |name| make(&[dir, name], FileKind::File));
        setup.extend(files(A, FILES));
        // The root, two directories and the file in each exist already.
        let left = FEW_INODES as u8 - FILES - 5;
        setup.extend(files(B, left));
        self.hold(&[&[], &[A], &[B]]);
        self.hurry(A);
        let name = 1 + self.rng.below(u64::from(FILES)) as u8;
        let other = 1 + (name + self.rng.below(u64::from(FILES) - 1) as u8) % FILES;
        match self.rng.below(3) {
            0 => self.ahead(rename(&[A, name], &[A, other], RenameMode::Replace)),
            _ => self.ahead(Op::Unlink { path: path(&[A, name]) }),
        }
        let names = 1 + self.rng.below(2) as u8;
        for name in (left + 1..).take(usize::from(names)) {
            let kind = [FileKind::File, FileKind::Fifo][self.rng.below(2) as usize];
            match self.rng.below(3) {
                0 => self.behind(mkdir(&[B, name])),
                _ => self.behind(make(&[B, name], kind)),
            }
        }
        (setup, FEW_INODES, None)
    }

    /// Pages whose records may outlive them, on a pool so full that the same page gets the same block again when it is
    /// written after the crash.
    fn dead_records(&mut self, blocks_left: u64) -> (Vec<Op>, u64, Option<u64>) {
        let mut setup = tree();
        setup.push(write(&[A, A], 0, 2 * 4096, 1));
        for _ in 0..2 + self.rng.below(3) {
            if self.rng.below(3) == 0 {
                self.hurry(B);
            }
            let fill = 100 + self.rng.below(1000) as u32;
            let page = self.rng.below(3);
            self.ahead(write(&[A, A], page * 4096, 4096, fill));
        }
        (setup, INODES, Some(blocks_left))
    }

    /// Writes pages over and over until no block is left except the reserve, and then something new in the other ring.
    /// The checkpoint moves for that write, which reuses blocks written, and covered by a record, since the checkpoint
    /// last moved. To that end its thread has searched for a block before, and continues from there; otherwise it would
    /// take a free block that was written long ago.
    fn space(&mut self, blocks_left: u64) -> (Vec<Op>, u64, Option<u64>) {
        let mut setup = tree();
        setup.push(write(&[A, A], 0, 2 * 4096, 1));
        let count = blocks_left + self.rng.below(3);
        let first = 1 + self.rng.below(2);
        for index in 0..count {
            let fill = 100 + self.rng.below(1000) as u32;
            let op = write(&[A, A], 4096 * self.rng.below(2), 4096, fill);
            match index < first {
                true => self.behind(op),
                false => self.ahead(op),
            }
        }
        let taker = match self.rng.below(4) {
            // A link's target and attributes take any block; pages may look for one followed by others.
            0 | 1 => Op::Symlink {
                path: path(&[B, B]),
                len: 3000,
            },
            2 => setxattr(&[[A, B][self.rng.below(2) as usize], A], 2000),
            _ => write(&[A, A], 2 * 4096, 4096 << self.rng.below(3), 99),
        };
        self.behind(taker);
        (setup, INODES, Some(blocks_left))
    }
}

/// Two directories with one file each.
fn tree() -> Vec<Op> {
    let files = [make(&[A, A], FileKind::File), make(&[B, A], FileKind::File)];
    [mkdir(&[A]), mkdir(&[B])].into_iter().chain(files).collect()
}
