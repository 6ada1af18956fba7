//! The workloads, and their names.
//!
//! Invariant: a name always stands for the same workload (as long as the alphabets here and the testkit's generator
//! stay the same), so it can be printed and replayed.

mod clones;
mod name;
mod reuse;
mod scenes;
mod tokens;
mod turns;

use std::fmt;

use ferrite_testkit::generate::{OpGenerator, Profile};
use ferrite_testkit::ops::{Op, Path, Target};
use ferrite_testkit::rng::Rng;
use ferrite_vfs::{DedupToken, FallocateMode, FileKind, NewNode, RenameMode, SetAttr, XattrMode};

pub use name::Name;
pub use turns::Turns;

/// A family of workloads, and a member of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// All sequences of one or two operations of [`alphabet`] on a small tree.
    Pair(u64),
    /// All sequences of three operations of [`reduced`].
    Triple(u64),
    /// A long random sequence of a profile: its index in [`Profile::ALL`], and a seed.
    Random(u64, u64),
    /// Overwrites, log entries and merges on a pool with a handful of free blocks, so that freed blocks are reused at
    /// once.
    Churn(u64),
    /// The same as `Random`, but another thread does every other operation, whose record so goes to another ring.
    Relay(u64, u64),
    /// Isolated pages on a pool whose mapping table is nearly full, so that entries move; files that come and go.
    Crowd(u64),
    /// Few names and inode numbers that two threads reuse after each other.
    Reuse(u64),
    /// Three files that share most of their blocks, on a pool with a handful of free ones.
    Clones(u64),
    /// A script for one rule of the journal, see `scenes.rs`.
    Scene(u64),
    /// Several threads, each with random operations in a separate directory.
    Threads(u64),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Pair(n) => write!(f, "pair:{n}"),
            Source::Triple(n) => write!(f, "triple:{n}"),
            Source::Random(profile, seed) => write!(f, "random:{profile}:{seed}"),
            Source::Relay(profile, seed) => write!(f, "relay:{profile}:{seed}"),
            Source::Churn(seed) => write!(f, "churn:{seed}"),
            Source::Crowd(seed) => write!(f, "crowd:{seed}"),
            Source::Reuse(seed) => write!(f, "reuse:{seed}"),
            Source::Clones(seed) => write!(f, "clones:{seed}"),
            Source::Scene(seed) => write!(f, "scene:{seed}"),
            Source::Threads(seed) => write!(f, "threads:{seed}"),
        }
    }
}

fn path(names: &[u8]) -> Path {
    Path(names.to_vec())
}

fn at(names: &[u8]) -> Target {
    Target::At(path(names))
}

/// Names by letter.
const A: u8 = 0;
const B: u8 = 1;
const C: u8 = 2;
const D: u8 = 3;
const E: u8 = 4;
/// The file that takes all space except a little.
const FILLER: u8 = 7;

/// Its path.
pub fn filler() -> Path {
    path(&[FILLER])
}

fn node(kind: FileKind) -> NewNode {
    NewNode {
        kind,
        mode: 0o640,
        rdev: 0,
    }
}

fn make(names: &[u8], kind: FileKind) -> Op {
    Op::Mknod {
        path: path(names),
        node: node(kind),
        user: 0,
    }
}

fn mkdir(names: &[u8]) -> Op {
    Op::Mkdir {
        path: path(names),
        mode: 0o755,
        user: 0,
    }
}

fn link(from: &[u8], to: &[u8]) -> Op {
    Op::Link {
        from: path(from),
        to: path(to),
    }
}

fn rename(from: &[u8], to: &[u8], mode: RenameMode) -> Op {
    Op::Rename {
        from: path(from),
        to: path(to),
        mode,
    }
}

fn write(names: &[u8], offset: u64, len: usize, fill: u32) -> Op {
    Op::Write {
        on: at(names),
        offset,
        len,
        fill,
    }
}

fn append(names: &[u8], len: usize, fill: u32) -> Op {
    Op::Append {
        on: at(names),
        len,
        fill,
    }
}

fn allocate(names: &[u8], mode: FallocateMode, offset: u64, len: u64) -> Op {
    Op::Fallocate {
        on: at(names),
        mode,
        offset,
        len,
    }
}

fn clone(source: &[u8], on: &[u8], offset: u64) -> Op {
    Op::Clone {
        source: at(source),
        source_offset: 0,
        on: at(on),
        offset,
        len: 1 << 20,
    }
}

fn clone_tree(from: &[u8], to: &[u8]) -> Op {
    Op::CloneTree {
        from: path(from),
        to: path(to),
    }
}

fn set(names: &[u8], set: SetAttr) -> Op {
    Op::Setattr { on: at(names), set }
}

fn truncate(names: &[u8], size: u64) -> Op {
    set(
        names,
        SetAttr {
            size: Some(size),
            ..SetAttr::default()
        },
    )
}

fn setxattr(names: &[u8], len: usize) -> Op {
    Op::Setxattr {
        on: at(names),
        name: 0,
        len,
        mode: XattrMode::Any,
    }
}

/// The small tree that pairs and triples start from.
fn small_tree() -> Vec<Op> {
    vec![
        make(&[A], FileKind::File),
        write(&[A], 0, 9000, 1),
        write(&[A], 700, 90, 2),
        write(&[A], 4000, 200, 3),
        mkdir(&[B]),
        make(&[B, A], FileKind::File),
        write(&[B, A], 0, 50, 4),
        Op::Symlink {
            path: path(&[C]),
            len: 20,
        },
        make(&[D], FileKind::File),
        write(&[D], 0, 4096, 5),
        link(&[D], &[B, D]),
        setxattr(&[D], 30),
    ]
}

/// Every kind of operation, on the small tree.
pub fn alphabet() -> Vec<Op> {
    let punch = FallocateMode::PunchHole;
    let zero = FallocateMode::ZeroRange { keep_size: false };
    vec![
        make(&[E], FileKind::File),
        make(&[B, E], FileKind::Fifo),
        mkdir(&[E]),
        mkdir(&[B, E]),
        Op::Symlink {
            path: path(&[E]),
            len: 20,
        },
        Op::Symlink {
            path: path(&[B, E]),
            len: 3000,
        },
        link(&[A], &[E]),
        link(&[A], &[B, E]),
        Op::Unlink { path: path(&[A]) },
        Op::Unlink { path: path(&[B, A]) },
        Op::Unlink { path: path(&[B, D]) },
        Op::Unlink { path: path(&[C]) },
        Op::Unlink { path: path(&[D]) },
        Op::Rmdir { path: path(&[B]) },
        Op::Rmdir { path: path(&[E]) },
        rename(&[A], &[E], RenameMode::Replace),
        rename(&[A], &[E], RenameMode::Whiteout),
        rename(&[A], &[D], RenameMode::Whiteout),
        rename(&[B], &[E], RenameMode::NoReplaceWhiteout),
        rename(&[A], &[B, E], RenameMode::NoReplace),
        rename(&[A], &[D], RenameMode::Replace),
        rename(&[B], &[E], RenameMode::Replace),
        rename(&[B, A], &[A], RenameMode::Replace),
        rename(&[E], &[A], RenameMode::Replace),
        rename(&[A], &[D], RenameMode::Exchange),
        rename(&[A], &[B], RenameMode::Exchange),
        rename(&[B, D], &[D], RenameMode::Replace),
        write(&[A], 0, 100, 11),
        write(&[A], 4096, 4096, 12),
        write(&[A], 4000, 300, 13),
        write(&[A], 100, 9000, 14),
        write(&[A], 20_000, 10, 15),
        write(&[E], 0, 100, 16),
        write(&[B, A], 10, 20, 17),
        write(&[B, A], 100, 300, 18),
        append(&[A], 64, 19),
        append(&[B, A], 500, 20),
        append(&[D], 5000, 21),
        truncate(&[A], 0),
        truncate(&[A], 5000),
        truncate(&[A], 30_000),
        truncate(&[B, A], 10),
        allocate(&[A], punch, 100, 3000),
        allocate(&[A], punch, 4096, 4096),
        allocate(&[A], zero, 3000, 9000),
        clone(&[A], &[B, A], 0),
        clone(&[B, A], &[A], 4096),
        clone_tree(&[A], &[E]),
        clone_tree(&[B], &[E]),
        clone_tree(&[], &[B, E]),
        clone_tree(&[C], &[D]),
        allocate(&[B, A], FallocateMode::Allocate { keep_size: false }, 0, 9000),
        set(
            &[A],
            SetAttr {
                mode: Some(0o4711),
                ..SetAttr::default()
            },
        ),
        set(
            &[D],
            SetAttr {
                uid: Some(7),
                gid: Some(8),
                ..SetAttr::default()
            },
        ),
        setxattr(&[A], 100),
        setxattr(&[D], 2000),
        setxattr(&[A], 9000),
        Op::Removexattr { on: at(&[D]), name: 0 },
        Op::Read {
            on: at(&[A]),
            offset: 0,
            len: 9000,
        },
    ]
}

/// The operations that make up triples.
pub fn reduced() -> Vec<Op> {
    vec![
        make(&[E], FileKind::File),
        mkdir(&[E]),
        Op::Unlink { path: path(&[A]) },
        link(&[A], &[E]),
        rename(&[A], &[D], RenameMode::Replace),
        rename(&[E], &[A], RenameMode::Replace),
        rename(&[A], &[D], RenameMode::Exchange),
        write(&[A], 0, 4096, 31),
        write(&[A], 100, 3, 32),
        write(&[E], 0, 100, 33),
        append(&[A], 5000, 34),
        truncate(&[A], 5000),
        setxattr(&[A], 60),
    ]
}

/// Number of pairs: sequences of one operation first, then those of two.
pub fn pairs() -> u64 {
    let n = alphabet().len() as u64;
    n + n * n
}

/// Number of triples.
pub fn triples() -> u64 {
    (reduced().len() as u64).pow(3)
}

/// Inodes of most pools.
const INODES: u64 = 127;
/// The fewest that a pool can have.
const FEW_INODES: u64 = 15;
/// Operations of a random workload.
const RANDOM_OPS: usize = 40;
/// Operations per thread of a workload with threads.
const THREAD_OPS: usize = 20;
/// Operations of a churn.
const CHURN_OPS: usize = 60;
/// Churns write this file in part and page by page before this page, and several pages at a time from it on.
const CHURN_LARGE_PAGE: u64 = 40;
const CHURN_LARGE_PAGES: u64 = 16;
const CHURN_PAGES: u64 = CHURN_LARGE_PAGE + CHURN_LARGE_PAGES;
/// Distance of pages whose words must not share a line: no mapping keeps more of a file's words in one line.
const CHURN_STRIDE: u64 = 8;

/// A pool that churns is filled until this many blocks are available.
const CHURN_BLOCKS_LEFT: u64 = 6;
/// Operations of a crowd.
const CROWD_OPS: usize = 50;
/// A pool that gets crowded is filled until this many blocks are available: more than the isolated pages need.
const CROWD_BLOCKS_LEFT: u64 = 40;
/// Places for isolated pages, in each of two files, and the distance from one to the next: more than a line of leaf
/// maps.
const CROWD_PLACES: u64 = 30;
const CROWD_STRIDE: u64 = 8;

/// The parts of a workload.
#[derive(Debug, Clone)]
pub struct Workload {
    /// Operations before the recording.
    pub setup: Vec<Op>,
    /// Inodes of the pool.
    pub inodes: u64,
    /// After the setup a separate file reserves all blocks except this many.
    pub blocks_left: Option<u64>,
    /// The recorded operations of each thread.
    pub threads: Vec<Vec<Op>>,
    /// The tokens of these operations; empty for all threads if no operation carries one.
    pub tokens: Vec<Vec<Option<DedupToken>>>,
    /// Which thread does which operation, if `threads` has only one sequence.
    pub turns: Turns,
    /// A read that walks this many log entries merges the page.
    pub merge_read_entries: u32,
    /// How many pages the mapping has entries for, for each block.
    pub pages_per_block: u32,
}

impl Workload {
    /// The token that an operation of a thread carries.
    pub fn token(&self, thread: usize, index: usize) -> Option<DedupToken> {
        *self.tokens.get(thread)?.get(index)?
    }
}

impl Source {
    /// The workload, without tokens.
    pub fn workload(&self) -> Workload {
        let plain = |setup: Vec<Op>, ops: Vec<Op>| Workload {
            setup,
            inodes: INODES,
            blocks_left: None,
            threads: vec![ops],
            tokens: Vec::new(),
            turns: Turns::One,
            merge_read_entries: 1,
            pages_per_block: 1,
        };
        match *self {
            Source::Pair(index) => {
                let all = alphabet();
                let n = all.len() as u64;
                let pick = |index: u64| all[(index % n) as usize].clone();
                match index.checked_sub(n) {
                    None => plain(small_tree(), vec![pick(index)]),
                    Some(rest) => plain(small_tree(), vec![pick(rest / n), pick(rest)]),
                }
            }
            Source::Triple(index) => {
                let all = reduced();
                let n = all.len() as u64;
                let pick = |index: u64| all[(index % n) as usize].clone();
                plain(small_tree(), vec![pick(index / n / n), pick(index / n), pick(index)])
            }
            Source::Random(profile, seed) | Source::Relay(profile, seed) => {
                let profile = Profile::ALL[profile as usize % Profile::ALL.len()];
                Workload {
                    turns: Turns::alternate_if(matches!(self, Source::Relay(..))),
                    ..plain(Vec::new(), recordable(profile, seed).take(RANDOM_OPS).collect())
                }
            }
            Source::Churn(seed) => Workload {
                setup: vec![
                    make(&[A], FileKind::File),
                    write(&[A], 0, CHURN_PAGES as usize * 4096, 1),
                ],
                inodes: INODES,
                blocks_left: Some(CHURN_BLOCKS_LEFT),
                threads: vec![churn(seed)],
                tokens: Vec::new(),
                turns: Turns::alternate_if(seed % 3 == 2),
                merge_read_entries: (seed % 2) as u32,
                pages_per_block: 1,
            },
            Source::Crowd(seed) => Workload {
                setup: vec![
                    make(&[A], FileKind::File),
                    make(&[C], FileKind::File),
                    write(&[A], 0, 4096, 1),
                    write(&[C], 0, 4096, 2),
                ],
                inodes: INODES,
                blocks_left: Some(CROWD_BLOCKS_LEFT),
                threads: vec![crowd(seed)],
                tokens: Vec::new(),
                // Mostly alternating: replay must order a move correctly among older and later records in other rings.
                turns: Turns::alternate_if(seed % 4 != 0),
                merge_read_entries: (seed % 2) as u32,
                pages_per_block: 1,
            },
            Source::Reuse(seed) => Workload {
                inodes: FEW_INODES,
                turns: Turns::Alternate,
                // A merge would give the reader's ring a number above that of the file.
                merge_read_entries: 0,
                ..plain(reuse::setup(), reuse::ops(seed))
            },
            Source::Clones(seed) => Workload {
                blocks_left: Some(clones::BLOCKS_LEFT),
                turns: Turns::alternate_if(seed % 2 == 1),
                merge_read_entries: (seed % 2) as u32,
                pages_per_block: clones::PAGES_PER_BLOCK,
                ..plain(clones::setup(), clones::ops(seed))
            },
            Source::Scene(seed) => scenes::scene(seed),
            Source::Threads(seed) => {
                let profiles = [Profile::Unaligned, Profile::Metadata, Profile::Mixed, Profile::Renames];
                let ops = |thread: u8| {
                    let profile = profiles[(seed / 2 + u64::from(thread)) as usize % profiles.len()];
                    let ops = recordable(profile, seed * 2 + u64::from(thread));
                    ops.take(THREAD_OPS).map(|op| below(thread, op)).collect()
                };
                Workload {
                    setup: vec![mkdir(&[0]), mkdir(&[1])],
                    inodes: INODES,
                    blocks_left: None,
                    threads: vec![ops(0), ops(1)],
                    tokens: Vec::new(),
                    turns: Turns::One,
                    merge_read_entries: 1,
                    pages_per_block: 1,
                }
            }
        }
    }
}

/// Random operations that change something, or may (a read merges logs).
fn recordable(profile: Profile, seed: u64) -> impl Iterator<Item = Op> {
    let mut generator = OpGenerator::new(profile, seed);
    std::iter::from_fn(move || Some(generator.next_op())).filter(|op| {
        !matches!(
            op,
            Op::Lookup { .. }
                | Op::Parent { .. }
                | Op::Readlink { .. }
                | Op::Getattr { .. }
                | Op::SeekData { .. }
                | Op::SeekHole { .. }
                | Op::Getxattr { .. }
                | Op::Listxattr { .. }
                | Op::List { .. }
                | Op::ListBegin { .. }
                | Op::ListNext { .. }
                | Op::ListEnd { .. }
                | Op::Statfs
        )
    })
}

/// Whole pages, parts of pages, and reads that merge them. Every other seed keeps the pages with partial writes so far
/// apart that each page's word has a line to itself on any mapping: no record of a neighbour writes back the word that
/// a merge leaves there. It also writes more of the large ones, so that blocks freed by a merge are reused before its
/// page is written again.
fn churn(seed: u64) -> Vec<Op> {
    let mut rng = Rng::new(seed ^ 0xc4);
    let apart = seed % 2 == 1;
    let mut fill = 100;
    let mut ops = Vec::new();
    while ops.len() < CHURN_OPS {
        fill += 1;
        let (page, large_page) = match apart {
            true => (
                CHURN_STRIDE * rng.below(CHURN_LARGE_PAGE / CHURN_STRIDE),
                CHURN_LARGE_PAGE,
            ),
            false => {
                let page = rng.below(CHURN_LARGE_PAGE / 4);
                (page, 8 + page)
            }
        };
        let part = write(&[A], page * 4096 + rng.below(4000), 1 + rng.below(90) as usize, fill);
        let large = write(&[A], large_page * 4096, CHURN_LARGE_PAGES as usize * 4096, fill);
        let read = Op::Read {
            on: at(&[A]),
            offset: 0,
            len: CHURN_PAGES as usize * 4096,
        };
        ops.push(match (rng.below(10), apart) {
            (0..=2, _) | (3, false) => part,
            (4..=5, _) | (3 | 7, true) => large,
            (6, _) => write(&[A], page * 4096, 4096, fill),
            (7, false) => make(&[B], FileKind::File),
            (8, false) => Op::Unlink { path: path(&[B]) },
            _ => read,
        });
    }
    ops
}

/// New isolated pages, changes of existing ones, holes, and small files whose nodes and blocks are reused.
fn crowd(seed: u64) -> Vec<Op> {
    let mut rng = Rng::new(seed ^ 0xc0d);
    let mut fill = 100;
    let mut ops = Vec::new();
    while ops.len() < CROWD_OPS {
        fill += 1;
        let file = [[A], [C]][rng.below(2) as usize];
        let offset = (1 + rng.below(CROWD_PLACES)) * CROWD_STRIDE * 4096;
        match rng.below(12) {
            0..=5 => ops.push(write(&file, offset, 4096 << rng.below(3), fill)),
            6 => ops.push(write(&file, offset + rng.below(4000), 1 + rng.below(90) as usize, fill)),
            7 => {
                // The removal leaves space for the addition, so that the table stays equally full.
                let from = rng.below(400) * 4096;
                ops.push(allocate(&[FILLER], FallocateMode::PunchHole, from, 8 * 4096));
            }
            8 => ops.push(allocate(&file, FallocateMode::PunchHole, offset, CROWD_STRIDE * 4096)),
            9..=10 => {
                let page = [0, 1, 600][rng.below(3) as usize];
                let reserve = FallocateMode::Allocate { keep_size: false };
                ops.push(make(&[B], FileKind::File));
                // Nodes of trees come with data, which has a separate fence, and without.
                ops.push(match rng.below(2) {
                    0 => write(&[B], page * 4096, 4096, fill),
                    _ => allocate(&[B], reserve, page * 4096, 4096),
                });
                ops.push(Op::Unlink { path: path(&[B]) });
            }
            _ => ops.push(Op::Read {
                on: at(&file),
                offset: 0,
                len: (CROWD_PLACES * CROWD_STRIDE * 4096) as usize,
            }),
        }
    }
    ops
}

/// The same operation in a thread's directory.
fn below(thread: u8, mut op: Op) -> Op {
    fn sink(thread: u8, path: &mut Path) {
        path.0.insert(0, thread);
    }
    let target = |on: &mut Target| {
        if let Target::At(path) = on {
            sink(thread, path);
        }
    };
    match &mut op {
        Op::Mknod { path, .. }
        | Op::Mkdir { path, .. }
        | Op::Symlink { path, .. }
        | Op::Unlink { path }
        | Op::Rmdir { path }
        | Op::Lookup { path }
        | Op::Parent { path }
        | Op::Readlink { path }
        | Op::Pin { path, .. }
        | Op::Open { path, .. }
        | Op::CreateNameless { dir: path, .. }
        | Op::LinkOpen { to: path, .. }
        | Op::List { path }
        | Op::ListBegin { path, .. } => sink(thread, path),
        Op::Link { from, to } | Op::CloneTree { from, to } | Op::Rename { from, to, .. } => {
            sink(thread, from);
            sink(thread, to);
        }
        Op::Clone { source, on, .. } => {
            target(source);
            target(on);
        }
        Op::Getattr { on }
        | Op::Setattr { on, .. }
        | Op::Read { on, .. }
        | Op::Write { on, .. }
        | Op::Append { on, .. }
        | Op::Fallocate { on, .. }
        | Op::SeekData { on, .. }
        | Op::SeekHole { on, .. }
        | Op::Fsync { on }
        | Op::Getxattr { on, .. }
        | Op::Setxattr { on, .. }
        | Op::Listxattr { on }
        | Op::Removexattr { on, .. } => target(on),
        Op::Close { .. } | Op::ListNext { .. } | Op::ListEnd { .. } | Op::Statfs | Op::Sync => {}
    }
    op
}
