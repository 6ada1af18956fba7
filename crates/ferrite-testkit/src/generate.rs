//! Seeded sequences of operations.
//!
//! Invariants: a sequence is fixed by (profile, seed), and a shorter one is a prefix of a longer one. The generator
//! never sees an outcome (the sequence would then depend on the engine); it keeps a guess of the tree instead
//! ([`guess::Guess`]), so that most operations find something they can work on, and the rest test the errors.

mod guess;

use ferrite_vfs::{FallocateMode, FileKind, NewNode, OpenMode, RenameMode, SetAttr, SetTime, Timestamp, XattrMode};

use crate::ops::{EXPLICIT_TIME_END, FAR, NAMES, Op, PAGE, Path, SLOTS, SNAPSHOTS, Target};
use crate::rng::Rng;
use guess::Guess;

/// The operations that a sequence favours.
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
    /// Writes of 1 byte to 20 KiB at any offset of a few pages, truncates and holes between them: the workload of page
    /// logs.
    Unaligned,
}

impl Profile {
    /// All profiles.
    pub const ALL: [Profile; 6] = [
        Profile::Mixed,
        Profile::Metadata,
        Profile::Data,
        Profile::SmallFiles,
        Profile::Renames,
        Profile::Unaligned,
    ];

    /// Weights of {names, renames, data, holes, attributes, xattrs, handles, listings}.
    fn weights(self) -> [u64; 8] {
        match self {
            Profile::Mixed => [24, 8, 26, 10, 10, 6, 10, 6],
            Profile::Metadata => [40, 12, 4, 0, 18, 8, 6, 12],
            Profile::Data => [8, 1, 60, 20, 4, 0, 7, 0],
            Profile::SmallFiles => [25, 5, 45, 6, 6, 5, 6, 2],
            Profile::Renames => [40, 45, 3, 0, 3, 0, 4, 5],
            Profile::Unaligned => [4, 1, 75, 15, 1, 0, 4, 0],
        }
    }
}

/// Generates operations.
#[derive(Debug)]
pub struct OpGenerator {
    rng: Rng,
    profile: Profile,
    fill: u32,
    guess: Guess,
}

impl OpGenerator {
    /// A generator whose sequence is fixed by `profile` and `seed`.
    pub fn new(profile: Profile, seed: u64) -> Self {
        OpGenerator {
            rng: Rng::new(seed ^ ((profile as u64) << 56)),
            profile,
            fill: 0,
            guess: Guess::default(),
        }
    }

    /// The first `count` operations.
    pub fn take(&mut self, count: usize) -> Vec<Op> {
        (0..count).map(|_| self.next_op()).collect()
    }

    /// The next operation.
    pub fn next_op(&mut self) -> Op {
        let op = self.draw();
        self.guess.follow(&op);
        op
    }

    fn draw(&mut self) -> Op {
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
                let mode = *self.rng.pick(&[
                    RenameMode::Replace,
                    RenameMode::Replace,
                    RenameMode::NoReplace,
                    RenameMode::Exchange,
                    RenameMode::Whiteout,
                    RenameMode::NoReplaceWhiteout,
                ]);
                let from = self.known(|_| true);
                let to = if self.rng.chance(40) {
                    self.known(|_| true)
                } else {
                    self.fresh()
                };
                Op::Rename { from, to, mode }
            }
            2 => self.data(),
            3 => self.holes(),
            4 => self.attributes(),
            5 => self.xattrs(),
            6 => self.handles(),
            _ => self.listings(),
        }
    }

    /// Whether it concerns the content of few files.
    fn is_data(&self) -> bool {
        matches!(self.profile, Profile::Data | Profile::Unaligned)
    }

    /// A few names are common and the rest rare, so that operations meet.
    fn name(&mut self) -> u8 {
        if self.is_data() {
            return self.rng.below(3) as u8;
        }
        self.rng
            .below(NAMES as u64)
            .min(self.rng.below(NAMES as u64))
            .min(self.rng.below(NAMES as u64)) as u8
    }

    fn path(&mut self) -> Path {
        let roll = self.rng.below(10);
        let depth = match self.profile {
            Profile::Data | Profile::Unaligned => 1,
            Profile::Renames => 1 + roll as usize * 3 / 10,
            _ if roll < 4 => 1,
            _ if roll < 8 => 2,
            _ => 3,
        };
        Path((0..depth).map(|_| self.name()).collect())
    }

    /// Mostly a path that leads to something of this kind, sometimes any.
    fn known(&mut self, wanted: impl Fn(FileKind) -> bool) -> Path {
        let fitting: Vec<_> = self
            .guess
            .nodes
            .iter()
            .filter(|(_, kind)| wanted(**kind))
            .map(|(path, _)| path)
            .collect();
        if fitting.is_empty() || self.rng.chance(15) {
            return self.path();
        }
        (*self.rng.pick(&fitting)).clone()
    }

    fn file(&mut self) -> Path {
        self.known(|kind| kind == FileKind::File)
    }

    /// The root or, mostly, an existing directory.
    fn directory(&mut self) -> Path {
        if self.rng.chance(35) {
            return Path(Vec::new());
        }
        self.known(|kind| kind == FileKind::Directory)
    }

    /// A name in an existing directory, up to three levels deep.
    fn fresh(&mut self) -> Path {
        if self.is_data() || self.rng.chance(10) {
            return self.path();
        }
        let mut path = self.directory();
        path.0.truncate(2);
        path.0.push(self.name());
        path
    }

    fn slot(&mut self) -> u8 {
        self.rng.below(u64::from(SLOTS)) as u8
    }

    /// Mostly a slot that is in use.
    fn used_slot(&mut self) -> u8 {
        let used: Vec<u8> = (0..SLOTS).filter(|slot| self.guess.open[*slot as usize]).collect();
        if used.is_empty() || self.rng.chance(10) {
            self.slot()
        } else {
            *self.rng.pick(&used)
        }
    }

    /// A regular file by path or slot.
    fn target(&mut self) -> Target {
        if self.rng.chance(30) && self.guess.open.contains(&true) {
            return Target::Slot(self.used_slot());
        }
        Target::At(self.file())
    }

    /// Anything by path or slot.
    fn any_target(&mut self) -> Target {
        match self.rng.below(10) {
            0 => Target::At(Path(Vec::new())),
            1..=4 => self.target(),
            _ => Target::At(self.known(|_| true)),
        }
    }

    fn mode(&mut self) -> u32 {
        *self.rng.pick(&[
            0o644, 0o755, 0o600, 0o777, 0o4755, 0o2755, 0o2644, 0o6777, 0o1777, 0o000,
        ])
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
        if self.profile == Profile::Unaligned {
            let most = *rng.pick(&[8, 64, 200, 1000, 3000, PAGE, 20 << 10]);
            return 1 + rng.below(most) as usize;
        }
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
        if self.profile == Profile::Unaligned {
            return rng.below(6 * PAGE);
        }
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
        let path = self.fresh();
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
                let rdev = if matches!(kind, FileKind::CharDevice | FileKind::BlockDevice) {
                    0x0103
                } else {
                    0
                };
                Op::Mknod {
                    path,
                    node: NewNode {
                        kind,
                        mode: self.mode(),
                        rdev,
                    },
                    user,
                }
            }
            6..=9 => Op::Mkdir {
                path,
                mode: self.mode(),
                user,
            },
            10 | 11 => Op::Symlink {
                path,
                len: *self.rng.pick(&[1, 5, 40, 100, 255, 1000, 4095]),
            },
            12 if self.rng.chance(60) => Op::CloneTree {
                from: self.known(|_| true),
                to: path,
            },
            13 if self.rng.chance(30) => self.snapshots(user),
            12 | 13 => Op::Link {
                from: self.known(|kind| kind != FileKind::Directory),
                to: path,
            },
            14..=16 => Op::Unlink {
                path: self.known(|kind| kind != FileKind::Directory),
            },
            17 | 18 => Op::Rmdir {
                path: self.known(|kind| kind == FileKind::Directory),
            },
            _ => Op::Lookup {
                path: self.known(|_| true),
            },
        }
    }

    /// Takes or removes a snapshot, or makes or removes the directory for that.
    fn snapshots(&mut self, user: u32) -> Op {
        let mut path = self.directory();
        path.0.truncate(1);
        path.0.push(SNAPSHOTS);
        let is_there = self.guess.nodes.contains_key(&path);
        if is_there && self.rng.chance(90) {
            path.0.push(self.rng.below(3) as u8);
        }
        match is_there && self.rng.chance(30) {
            true => Op::Rmdir { path },
            false => Op::Mkdir {
                path,
                mode: self.mode(),
                user,
            },
        }
    }

    fn data(&mut self) -> Op {
        let on = self.target();
        match self.rng.below(20) {
            0..=7 => {
                let len = self.len();
                // Whether a write of length 0 clears setuid is unspecified, so it never goes through a slot.
                let on = if len == 0 { Target::At(self.file()) } else { on };
                Op::Write {
                    on,
                    offset: self.offset(),
                    len,
                    fill: self.fill(),
                }
            }
            8..=10 => Op::Append {
                on,
                len: self.len().max(1),
                fill: self.fill(),
            },
            11..=16 => Op::Read {
                on,
                offset: self.offset(),
                len: self.len(),
            },
            17 | 18 => {
                let size = if self.rng.chance(50) {
                    self.len() as u64
                } else {
                    self.offset()
                };
                Op::Setattr {
                    on,
                    set: SetAttr {
                        size: Some(size),
                        ..SetAttr::default()
                    },
                }
            }
            _ => Op::Mknod {
                path: self.path(),
                node: NewNode {
                    kind: FileKind::File,
                    mode: 0o644,
                    rdev: 0,
                },
                user: 0,
            },
        }
    }

    fn holes(&mut self) -> Op {
        let on = self.target();
        let offset = self.offset();
        let len = if self.rng.chance(3) {
            0
        } else {
            self.len().max(1) as u64
        };
        let keep_size = self.rng.chance(50);
        if self.rng.chance(25) {
            return self.clone(on);
        }
        match self.rng.below(10) {
            0 | 1 => Op::Fallocate {
                on,
                mode: FallocateMode::Allocate { keep_size },
                offset,
                len,
            },
            2 | 3 => {
                let len = if self.rng.chance(15) { FAR } else { len };
                Op::Fallocate {
                    on,
                    mode: FallocateMode::PunchHole,
                    offset,
                    len,
                }
            }
            4 | 5 => Op::Fallocate {
                on,
                mode: FallocateMode::ZeroRange { keep_size },
                offset,
                len,
            },
            6 | 7 => Op::SeekData { on, offset },
            _ => Op::SeekHole { on, offset },
        }
    }

    fn clone(&mut self, on: Target) -> Op {
        // Now and then of the same file, of parts of pages, and of more than there is.
        let source = if self.rng.chance(10) { on.clone() } else { self.target() };
        let unit = if self.rng.chance(5) { 1 } else { PAGE };
        let rounded = |bytes: u64| bytes / unit * unit;
        let source_offset = if self.rng.chance(50) { 0 } else { rounded(self.offset()) };
        Op::Clone {
            source,
            source_offset,
            on,
            offset: if self.rng.chance(50) {
                source_offset
            } else {
                rounded(self.offset())
            },
            len: match self.rng.below(3) {
                // To the end of most files, and not more than one write takes.
                0 => 1 << 20,
                _ => rounded(self.len() as u64 + PAGE),
            },
        }
    }

    fn attributes(&mut self) -> Op {
        let on = self.any_target();
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
        let on = match self.rng.below(10) {
            0 => self.any_target(),
            1..=4 => Target::At(self.directory()),
            _ => self.target(),
        };
        let name = self.rng.below(7) as u8;
        let (set_on, set_name) = match &self.guess.xattrs[..] {
            [] => (on.clone(), name),
            set => self.rng.pick(set).clone(),
        };
        match self.rng.below(11) {
            0..=2 => {
                let len = *self.rng.pick(&[0, 1, 20, 100, 300, 1000, 4000, 10_000]);
                let mode = *self.rng.pick(&[XattrMode::Any, XattrMode::Any, XattrMode::Create]);
                Op::Setxattr { on, name, len, mode }
            }
            3 => Op::Setxattr {
                on: set_on,
                name: set_name,
                len: self.len() % 20_000,
                mode: XattrMode::Replace,
            },
            4 => Op::Getxattr { on, name },
            5 | 6 => Op::Getxattr {
                on: set_on,
                name: set_name,
            },
            7 => Op::Listxattr { on: set_on },
            8 | 9 => Op::Removexattr {
                on: set_on,
                name: set_name,
            },
            _ => Op::Removexattr { on, name },
        }
    }

    fn handles(&mut self) -> Op {
        let (path, slot) = (self.file(), self.slot());
        match self.rng.below(23) {
            0..=8 => {
                let mode = match self.rng.below(8) {
                    0 => OpenMode::read_only(),
                    1 => OpenMode {
                        write: true,
                        ..OpenMode::default()
                    },
                    2 => OpenMode {
                        truncate: self.rng.below(4) == 0,
                        ..OpenMode::read_write()
                    },
                    3 => OpenMode {
                        no_atime: true,
                        ..OpenMode::read_write()
                    },
                    _ => OpenMode::read_write(),
                };
                Op::Open {
                    path,
                    slot,
                    mode,
                    privileged: self.rng.below(8) != 0,
                }
            }
            9 | 10 => Op::Pin {
                path: self.known(|_| true),
                slot,
            },
            11..=13 => Op::Close { slot: self.used_slot() },
            14 | 15 => Op::Fsync { on: self.target() },
            16 => Op::Sync,
            17 => Op::Statfs,
            18 => Op::CreateNameless {
                dir: self.directory(),
                slot,
                mode: self.mode(),
                is_final: self.rng.chance(20),
            },
            19 | 20 => Op::LinkOpen {
                slot: self.guess.nameless.unwrap_or_else(|| self.used_slot()),
                to: self.fresh(),
            },
            _ => Op::Getattr {
                on: Target::Slot(self.used_slot()),
            },
        }
    }

    fn listings(&mut self) -> Op {
        let path = self.directory();
        let slot = self.rng.below(2) as u8;
        let running = self.guess.listing[slot as usize];
        match self.rng.below(10) {
            0 | 1 => Op::List { path },
            2..=5 if running => Op::ListNext {
                slot,
                count: self.rng.below(4) as usize,
            },
            6 | 7 if running => Op::ListEnd { slot },
            2..=7 => Op::ListBegin { path, slot },
            8 => Op::Parent { path },
            _ => Op::Readlink {
                path: self.known(|kind| kind == FileKind::Symlink),
            },
        }
    }
}
