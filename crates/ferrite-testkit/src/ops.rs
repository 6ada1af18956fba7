//! Every operation of the contract as a value ([`Op`]), and a seeded generator of sequences of them.
//!
//! Invariants: an operation names things by path or slot, never by inode number, so that the same sequence
//! means the same on two engines and stays meaningful when any of its operations is dropped (the shrinker
//! does that). A sequence is fixed by (profile, seed, length).

use std::fmt;

use ferrite_vfs::{FallocateMode, FileKind, NewNode, OpenMode, RenameMode, SetAttr, SetTime, Timestamp, XattrMode};

use crate::rng::Rng;

/// Slots for open handles, pins and running listings (separate arrays).
pub const SLOTS: u8 = 6;
/// Page size whose multiples the generator favours.
pub const PAGE: u64 = 4096;
/// Farthest offset the generator uses.
pub const FAR: u64 = 1 << 40;
/// Times set by operations lie before this (2001); the engines' own clocks lie after it. So whether a stamp moved
/// can be told without comparing clocks.
pub const EXPLICIT_TIME_END: Timestamp = Timestamp(1_000_000_000 * 1_000_000_000);

const NAMES: usize = 12;

/// The name with this index: short ones, ones of bytes that are no UTF-8, and two of the largest length.
pub fn name(index: u8) -> Vec<u8> {
    match index as usize % NAMES {
        8 => b"with space\xff\x01".to_vec(),
        9 => "\u{e9}\u{4e2d}\u{6587}".as_bytes().to_vec(),
        10 => vec![b'x'; ferrite_vfs::NAME_MAX],
        11 => [vec![b'x'; ferrite_vfs::NAME_MAX - 1], vec![b'y']].concat(),
        short => vec![b'a' + short as u8],
    }
}

/// The extended-attribute name with this index.
pub fn xattr_name(index: u8) -> Vec<u8> {
    match index % 5 {
        0 => b"user.a".to_vec(),
        1 => b"user.b".to_vec(),
        2 => b"trusted.c".to_vec(),
        3 => b"security.capability".to_vec(),
        _ => [b"user.".to_vec(), vec![b'n'; ferrite_vfs::XATTR_NAME_MAX - 5]].concat(),
    }
}

/// A path as name indices from the root; empty for the root itself.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Path(pub Vec<u8>);

impl fmt::Debug for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("/");
        }
        for &index in &self.0 {
            let bytes = name(index);
            let short = &bytes[bytes.len().saturating_sub(6)..];
            write!(f, "/{}{}", if bytes.len() > 6 { "~" } else { "" }, short.escape_ascii())?;
        }
        Ok(())
    }
}

/// What an operation works on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Target {
    /// The inode a path leads to now.
    At(Path),
    /// The open handle or pinned inode in a slot, whatever became of its name.
    Slot(u8),
}

/// One call of the contract.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)] // The fields are the parameters of the trait's methods.
pub enum Op {
    Mknod { path: Path, node: NewNode, user: u32 },
    Mkdir { path: Path, mode: u32, user: u32 },
    Symlink { path: Path, len: usize },
    Link { from: Path, to: Path },
    Unlink { path: Path },
    Rmdir { path: Path },
    Rename { from: Path, to: Path, mode: RenameMode },
    Lookup { path: Path },
    Parent { path: Path },
    Readlink { path: Path },
    Getattr { on: Target },
    Setattr { on: Target, set: SetAttr },
    Pin { path: Path, slot: u8 },
    Open { path: Path, slot: u8, mode: OpenMode },
    Close { slot: u8 },
    Read { on: Target, offset: u64, len: usize },
    Write { on: Target, offset: u64, len: usize, fill: u32 },
    Append { on: Target, len: usize, fill: u32 },
    Fallocate { on: Target, mode: FallocateMode, offset: u64, len: u64 },
    SeekData { on: Target, offset: u64 },
    SeekHole { on: Target, offset: u64 },
    Fsync { on: Target },
    Getxattr { on: Target, name: u8 },
    Setxattr { on: Target, name: u8, len: usize, mode: XattrMode },
    Listxattr { on: Target },
    Removexattr { on: Target, name: u8 },
    List { path: Path },
    ListBegin { path: Path, slot: u8 },
    ListNext { slot: u8, count: usize },
    ListEnd { slot: u8 },
    Statfs,
    Sync,
}

/// Which operations a sequence favours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// Some of everything.
    Mixed,
    /// Creating, removing, attributes, listings.
    Metadata,
    /// Reads, writes, truncates and holes in a few files.
    Data,
    /// Many files around the size where inline storage ends.
    SmallFiles,
    /// Renames in a tree of three levels.
    Renames,
}

impl Profile {
    /// All profiles.
    pub const ALL: [Profile; 5] =
        [Profile::Mixed, Profile::Metadata, Profile::Data, Profile::SmallFiles, Profile::Renames];

    /// Weights of {names, renames, data, holes, attributes, xattrs, handles, listings}.
    fn weights(self) -> [u64; 8] {
        match self {
            Profile::Mixed => [24, 8, 26, 10, 10, 6, 10, 6],
            Profile::Metadata => [40, 12, 4, 0, 18, 8, 6, 12],
            Profile::Data => [8, 1, 60, 20, 4, 0, 7, 0],
            Profile::SmallFiles => [25, 5, 45, 6, 6, 5, 6, 2],
            Profile::Renames => [40, 45, 3, 0, 3, 0, 4, 5],
        }
    }
}

/// Generates operations.
#[derive(Debug)]
pub struct OpGenerator {
    rng: Rng,
    profile: Profile,
    fill: u32,
}

impl OpGenerator {
    /// A generator whose sequence is fixed by `profile` and `seed`.
    pub fn new(profile: Profile, seed: u64) -> Self {
        OpGenerator { rng: Rng::new(seed ^ ((profile as u64) << 56)), profile, fill: 0 }
    }

    /// The first `count` operations.
    pub fn take(&mut self, count: usize) -> Vec<Op> {
        (0..count).map(|_| self.next_op()).collect()
    }

    /// The next operation.
    pub fn next_op(&mut self) -> Op {
        let weights = self.profile.weights();
        let mut roll = self.rng.below(weights.iter().sum());
        let mut group = 0;
        while roll >= weights[group] {
            roll -= weights[group];
            group += 1;
        }
        match group {
            0 => self.names(),
            1 => {
                let mode =
                    *self.rng.pick(&[RenameMode::Replace, RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange]);
                Op::Rename { from: self.path(), to: self.path(), mode }
            }
            2 => self.data(),
            3 => self.holes(),
            4 => self.attributes(),
            5 => self.xattrs(),
            6 => self.handles(),
            _ => self.listings(),
        }
    }

    /// Few names are common and the rest rare, so that operations meet each other.
    fn name(&mut self) -> u8 {
        if self.profile == Profile::Data {
            return self.rng.below(3) as u8;
        }
        self.rng.below(NAMES as u64).min(self.rng.below(NAMES as u64)).min(self.rng.below(NAMES as u64)) as u8
    }

    fn path(&mut self) -> Path {
        let roll = self.rng.below(10);
        let depth = match self.profile {
            Profile::Data => 1,
            Profile::Renames => 1 + roll as usize * 3 / 10,
            _ if roll < 4 => 1,
            _ if roll < 8 => 2,
            _ => 3,
        };
        Path((0..depth).map(|_| self.name()).collect())
    }

    fn directory(&mut self) -> Path {
        let mut path = self.path();
        path.0.pop();
        path
    }

    fn slot(&mut self) -> u8 {
        self.rng.below(u64::from(SLOTS)) as u8
    }

    fn target(&mut self) -> Target {
        if self.rng.chance(30) {
            return Target::Slot(self.slot());
        }
        Target::At(if self.rng.chance(4) { Path(Vec::new()) } else { self.path() })
    }

    fn mode(&mut self) -> u32 {
        *self.rng.pick(&[0o644, 0o755, 0o600, 0o777, 0o4755, 0o2755, 0o2644, 0o6777, 0o1777, 0o000])
    }

    fn time(&mut self) -> SetTime {
        if self.rng.chance(20) {
            return SetTime::Now;
        }
        let nanoseconds = self.rng.below(EXPLICIT_TIME_END.0 as u64) as i64;
        SetTime::To(Timestamp(if self.rng.chance(10) { -nanoseconds } else { nanoseconds }))
    }

    fn len(&mut self) -> usize {
        let rng = &mut self.rng;
        let small = self.profile == Profile::SmallFiles;
        let len = match rng.below(if small { 5 } else { 10 }) {
            0 => rng.below(16),
            1 | 2 => rng.below(400),
            3 => *rng.pick(&[8, 64, 128, 256, 512, 4096]),
            4 => rng.below(PAGE + 2),
            5 | 6 => rng.below(5 * PAGE),
            7 => (1 + rng.below(8)) * PAGE,
            8 => ((1 + rng.below(8)) * PAGE + rng.below(5)).saturating_sub(2),
            _ => rng.below(300 << 10),
        };
        len as usize
    }

    fn offset(&mut self) -> u64 {
        let rng = &mut self.rng;
        if self.profile == Profile::SmallFiles && rng.chance(90) {
            return rng.below(600);
        }
        match rng.below(12) {
            0..=2 => 0,
            3 | 4 => rng.below(20) * PAGE,
            5 | 6 => (rng.below(20) * PAGE + rng.below(5)).saturating_sub(2),
            7..=9 => rng.below(20 * PAGE),
            10 => rng.below(1 << 20),
            _ => {
                let far = 1u64 << (20 + rng.below(21));
                (far - 3 * PAGE + rng.below(6 * PAGE)).min(FAR - PAGE)
            }
        }
    }

    fn fill(&mut self) -> u32 {
        self.fill += 1;
        if self.rng.chance(5) { 0 } else { self.fill }
    }

    fn names(&mut self) -> Op {
        let user = *self.rng.pick(&[0, 0, 1000, 1001]);
        let path = self.path();
        match self.rng.below(20) {
            0..=5 => {
                let kind = *self.rng.pick(&[
                    FileKind::File,
                    FileKind::File,
                    FileKind::File,
                    FileKind::File,
                    FileKind::Fifo,
                    FileKind::Socket,
                    FileKind::CharDevice,
                    FileKind::BlockDevice,
                ]);
                let rdev = if matches!(kind, FileKind::CharDevice | FileKind::BlockDevice) { 0x0103 } else { 0 };
                Op::Mknod { path, node: NewNode { kind, mode: self.mode(), rdev }, user }
            }
            6..=9 => Op::Mkdir { path, mode: self.mode(), user },
            10 | 11 => Op::Symlink { path, len: *self.rng.pick(&[1, 5, 40, 100, 255, 1000, 4095]) },
            12 | 13 => Op::Link { from: self.path(), to: path },
            14..=16 => Op::Unlink { path },
            17 | 18 => Op::Rmdir { path },
            _ => Op::Lookup { path },
        }
    }

    fn data(&mut self) -> Op {
        let on = self.target();
        match self.rng.below(20) {
            0..=7 => {
                let len = self.len();
                // Whether a write of nothing clears setuid is not settled, so it never goes through a slot.
                let on = if len == 0 { Target::At(self.path()) } else { on };
                Op::Write { on, offset: self.offset(), len, fill: self.fill() }
            }
            8..=10 => Op::Append { on, len: self.len().max(1), fill: self.fill() },
            11..=16 => Op::Read { on, offset: self.offset(), len: self.len() },
            17 | 18 => {
                let size = if self.rng.chance(50) { self.len() as u64 } else { self.offset() };
                Op::Setattr { on, set: SetAttr { size: Some(size), ..SetAttr::default() } }
            }
            _ => Op::Mknod {
                path: self.path(),
                node: NewNode { kind: FileKind::File, mode: 0o644, rdev: 0 },
                user: 0,
            },
        }
    }

    fn holes(&mut self) -> Op {
        let on = self.target();
        let offset = self.offset();
        let len = if self.rng.chance(3) { 0 } else { self.len().max(1) as u64 };
        let keep_size = self.rng.chance(50);
        match self.rng.below(10) {
            0 | 1 => Op::Fallocate { on, mode: FallocateMode::Allocate { keep_size }, offset, len },
            2 | 3 => {
                let len = if self.rng.chance(15) { FAR } else { len };
                Op::Fallocate { on, mode: FallocateMode::PunchHole, offset, len }
            }
            4 | 5 => Op::Fallocate { on, mode: FallocateMode::ZeroRange { keep_size }, offset, len },
            6 | 7 => Op::SeekData { on, offset },
            _ => Op::SeekHole { on, offset },
        }
    }

    fn attributes(&mut self) -> Op {
        let on = self.target();
        if self.rng.chance(30) {
            return Op::Getattr { on };
        }
        let mut set = SetAttr::default();
        let bits = self.rng.next_u64();
        let has = |bit: u64| bits >> bit & 1 == 1;
        if has(0) {
            set.mode = Some(self.mode());
        }
        if has(1) && has(2) {
            set.uid = Some(*self.rng.pick(&[0, 1000, 1001, u32::MAX - 1]));
        }
        if has(3) && has(4) {
            set.gid = Some(*self.rng.pick(&[0, 100, 1000]));
        }
        if has(5) && has(6) {
            set.atime = Some(self.time());
        }
        if has(7) {
            set.mtime = Some(self.time());
        }
        if has(8) && has(9) && has(10) {
            set.size = Some(self.offset());
        }
        set.kill_priv = has(11) && has(12) && set.mode.is_none();
        Op::Setattr { on, set }
    }

    fn xattrs(&mut self) -> Op {
        let on = self.target();
        let name = self.rng.below(5) as u8;
        match self.rng.below(10) {
            0..=4 => {
                let len = *self.rng.pick(&[0, 1, 20, 100, 300, 1000, 4000, 10_000]);
                let mode = *self.rng.pick(&[XattrMode::Any, XattrMode::Any, XattrMode::Create, XattrMode::Replace]);
                Op::Setxattr { on, name, len, mode }
            }
            5 | 6 => Op::Getxattr { on, name },
            7 => Op::Listxattr { on },
            _ => Op::Removexattr { on, name },
        }
    }

    fn handles(&mut self) -> Op {
        let (path, slot) = (self.path(), self.slot());
        match self.rng.below(20) {
            0..=8 => {
                let mode = match self.rng.below(8) {
                    0 => OpenMode::read_only(),
                    1 => OpenMode { write: true, ..OpenMode::default() },
                    2 => OpenMode { kill_priv: true, ..OpenMode::read_write() },
                    3 => OpenMode { no_atime: true, ..OpenMode::read_write() },
                    _ => OpenMode::read_write(),
                };
                Op::Open { path, slot, mode }
            }
            9 | 10 => Op::Pin { path, slot },
            11..=14 => Op::Close { slot },
            15 => Op::Fsync { on: Target::Slot(slot) },
            16 => Op::Sync,
            17 => Op::Statfs,
            _ => Op::Getattr { on: Target::Slot(slot) },
        }
    }

    fn listings(&mut self) -> Op {
        let path = self.directory();
        let slot = self.rng.below(2) as u8;
        match self.rng.below(10) {
            0 | 1 => Op::List { path },
            2 | 3 => Op::ListBegin { path, slot },
            4..=6 => Op::ListNext { slot, count: self.rng.below(4) as usize },
            7 => Op::ListEnd { slot },
            8 => Op::Parent { path: self.path() },
            _ => Op::Readlink { path: self.path() },
        }
    }
}
