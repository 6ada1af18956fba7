//! Changes with tokens happen once, however often they are requested, crashes and remounts in between: the outcome is
//! in the record that makes the change.
//!
//! Contents: a client that sends random changes, loses replies, and retransmits; the reference engine, which gets each
//! change once, gives the expected state.

use std::sync::Arc;

use crate::common;
use crate::common::{Tree, capture, fixed, pattern};
use ferrite_fs::{Engine, MkfsOptions, MountOptions};
use ferrite_pm::{Choice, Image, Recorder, Region};
use ferrite_vfs::memfs::MemFs;
use ferrite_vfs::{
    Attr, BadArgument, Cred, Ctx, DedupToken, FallocateMode, FileKind, FileSystem, FsError, Ino, NewFile, NewNode,
    OpenMode, Position, ROOT_INO, RenameMode, Result, SYSTEM, SetAttr, Unsupported, WriteMode, Written, XattrMode,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Names in use, few enough that changes meet each other.
const NAMES: u32 = 4;
/// Slots of the client, each of which has one change in flight at a time.
const SLOTS: u32 = 3;

fn options() -> MkfsOptions {
    fixed().inodes(127).rings(2)
}

/// A change of the tree. Every name is one of `/n0` to `/n3`, or of `/n0/n0` and so on where the first is a directory.
#[derive(Debug, Clone)]
enum Change {
    Mknod(u32),
    Mkdir(u32),
    Symlink(u32),
    Create(u32, bool, bool),
    Link(u32, u32),
    Unlink(u32),
    Rmdir(u32),
    Rename(u32, u32, RenameMode),
    Write(u32, Position, usize, u32),
    Resize(u32, u64),
    Truncate(u32),
    Mode(u32, u32),
    Allocate(u32, FallocateMode, u64, u64),
    SetXattr(u32, usize, XattrMode),
    RemoveXattr(u32),
}

/// The reply to a caller, as far as engines agree: kind, mode, links and size of an inode.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Told {
    Nothing,
    Inode(FileKind, u32, u32, u64),
    Place(Written),
    Refused(FsError),
}

fn told(attr: &Attr) -> Told {
    let size = if attr.kind == FileKind::Directory { 0 } else { attr.size };
    Told::Inode(attr.kind, attr.mode, attr.nlink, size)
}

fn random_change(random: &mut StdRng) -> Change {
    let mut name = || random.random_range(0..NAMES);
    let (a, b) = (name(), name());
    let offset = random.random_range(0..20_000);
    let len = [1, 100, 4096, 9000][random.random_range(0..4)];
    let position = match random.random_range(0..3) {
        0 => Position::At(offset),
        1 => Position::At(offset / 4096 * 4096),
        _ => Position::End,
    };
    match random.random_range(0..22) {
        0 => Change::Mknod(a),
        1 | 2 => Change::Mkdir(a),
        3 => Change::Symlink(a),
        4..=6 => Change::Create(a, random.random(), random.random()),
        7 => Change::Link(a, b),
        8 | 9 => Change::Unlink(a),
        10 => Change::Rmdir(a),
        11 => Change::Rename(a, b, RenameMode::Replace),
        12 => Change::Rename(a, b, RenameMode::Exchange),
        13 => Change::Rename(a, b, RenameMode::NoReplace),
        14 | 15 => Change::Write(a, position, len, random.random()),
        16 => Change::Resize(a, offset),
        17 => Change::Truncate(a),
        18 => Change::Mode(a, random.random_range(0..0o1000)),
        19 => {
            let keep_size = random.random();
            let mode = [
                FallocateMode::PunchHole,
                FallocateMode::ZeroRange { keep_size },
                FallocateMode::Allocate { keep_size },
            ];
            Change::Allocate(a, mode[random.random_range(0..3)], offset, len as u64)
        }
        20 => {
            let mode = [XattrMode::Any, XattrMode::Create, XattrMode::Replace];
            Change::SetXattr(a, len / 10, mode[random.random_range(0..3)])
        }
        _ => Change::RemoveXattr(a),
    }
}

fn name(number: u32) -> Vec<u8> {
    format!("n{number}").into_bytes()
}

fn find(fs: &dyn FileSystem, number: u32) -> Result<Ino> {
    fs.lookup(SYSTEM, ROOT_INO, &name(number)).map(|attr| attr.ino)
}

/// Requests a change. Looks up its arguments without a token, as a client would before it sends.
fn ask(fs: &dyn FileSystem, ctx: &Ctx, change: &Change) -> Told {
    let answer = || -> Result<Told> {
        let open = |number| fs.open(SYSTEM, find(fs, number)?, OpenMode::read_write());
        Ok(match *change {
            Change::Mknod(at) => {
                let node = NewNode {
                    kind: FileKind::Fifo,
                    mode: 0o640,
                    rdev: 0,
                };
                told(&fs.mknod(ctx, ROOT_INO, &name(at), &node)?)
            }
            Change::Mkdir(at) => told(&fs.mkdir(ctx, ROOT_INO, &name(at), 0o750)?),
            Change::Symlink(at) => told(&fs.symlink(ctx, ROOT_INO, &name(at), b"n0")?),
            Change::Create(at, exclusive, truncate) => {
                let new = NewFile {
                    mode: 0o644,
                    open: OpenMode {
                        truncate,
                        ..OpenMode::read_write()
                    },
                    exclusive,
                };
                let opened = fs.create(ctx, ROOT_INO, &name(at), &new)?;
                assert_eq!(opened.file.ino(), opened.attr.ino);
                told(&opened.attr)
            }
            Change::Link(from, to) => told(&fs.link(ctx, find(fs, from)?, ROOT_INO, &name(to))?),
            Change::Unlink(at) => fs.unlink(ctx, ROOT_INO, &name(at)).map(|()| Told::Nothing)?,
            Change::Rmdir(at) => fs.rmdir(ctx, ROOT_INO, &name(at)).map(|()| Told::Nothing)?,
            Change::Rename(from, to, mode) => fs
                .rename(ctx, ROOT_INO, &name(from), ROOT_INO, &name(to), mode)
                .map(|()| Told::Nothing)?,
            Change::Write(at, position, len, fill) => {
                let written = open(at)?.write(ctx, WriteMode::from(position), &pattern(len, fill as u8))?;
                Told::Place(written)
            }
            Change::Resize(at, size) => {
                let set = SetAttr {
                    size: Some(size),
                    ..SetAttr::default()
                };
                told(&open(at)?.setattr(ctx, &set)?)
            }
            Change::Truncate(at) => {
                let mode = OpenMode {
                    truncate: true,
                    ..OpenMode::read_write()
                };
                fs.open(ctx, find(fs, at)?, mode)?;
                Told::Nothing
            }
            Change::Mode(at, mode) => {
                let set = SetAttr {
                    mode: Some(mode),
                    ..SetAttr::default()
                };
                told(&fs.setattr(ctx, find(fs, at)?, &set)?)
            }
            Change::Allocate(at, mode, offset, len) => {
                open(at)?.fallocate(ctx, mode, offset, len)?;
                Told::Nothing
            }
            Change::SetXattr(at, len, mode) => {
                fs.setxattr(ctx, find(fs, at)?, b"user.x", &pattern(len, 1), mode)?;
                Told::Nothing
            }
            Change::RemoveXattr(at) => {
                fs.removexattr(ctx, find(fs, at)?, b"user.x")?;
                Told::Nothing
            }
        })
    };
    answer().unwrap_or_else(Told::Refused)
}

/// Sends the change again, by the inode that the client found first: a repeated lookup could give another result.
fn resend(fs: &dyn FileSystem, ctx: &Ctx, change: &Change, ino: Option<Ino>) -> Told {
    let Some(ino) = ino else {
        return ask(fs, ctx, change);
    };
    let open = || fs.open(SYSTEM, ino, OpenMode::read_write());
    let answer = || -> Result<Told> {
        Ok(match *change {
            Change::Link(_, to) => told(&fs.link(ctx, ino, ROOT_INO, &name(to))?),
            Change::Write(_, position, len, fill) => {
                let written = open()?.write(ctx, WriteMode::from(position), &pattern(len, fill as u8))?;
                Told::Place(written)
            }
            Change::Resize(_, size) => {
                let set = SetAttr {
                    size: Some(size),
                    ..SetAttr::default()
                };
                told(&open()?.setattr(ctx, &set)?)
            }
            Change::Truncate(_) => {
                let mode = OpenMode {
                    truncate: true,
                    ..OpenMode::read_write()
                };
                fs.open(ctx, ino, mode)?;
                Told::Nothing
            }
            Change::Mode(_, mode) => {
                let set = SetAttr {
                    mode: Some(mode),
                    ..SetAttr::default()
                };
                told(&fs.setattr(ctx, ino, &set)?)
            }
            Change::Allocate(_, mode, offset, len) => {
                open()?.fallocate(ctx, mode, offset, len)?;
                Told::Nothing
            }
            Change::SetXattr(_, len, mode) => {
                fs.setxattr(ctx, ino, b"user.x", &pattern(len, 1), mode)?;
                Told::Nothing
            }
            Change::RemoveXattr(_) => {
                fs.removexattr(ctx, ino, b"user.x")?;
                Told::Nothing
            }
            _ => ask(fs, ctx, change),
        })
    };
    answer().unwrap_or_else(Told::Refused)
}

/// A random change that can be sent, and its inode, if it is requested by inode.
fn next_change(fs: &dyn FileSystem, random: &mut StdRng) -> (Change, Option<Ino>) {
    loop {
        let change = random_change(random);
        match subject(fs, &change) {
            None => return (change, None),
            Some(Ok(ino)) => return (change, Some(ino)),
            Some(Err(_)) => {}
        }
    }
}

/// The inode of a change, if it is requested by inode.
fn subject(fs: &dyn FileSystem, change: &Change) -> Option<Result<Ino>> {
    match *change {
        Change::Link(at, _)
        | Change::Write(at, ..)
        | Change::Resize(at, _)
        | Change::Truncate(at)
        | Change::Mode(at, _)
        | Change::Allocate(at, ..)
        | Change::SetXattr(at, ..)
        | Change::RemoveXattr(at) => Some(find(fs, at)),
        _ => None,
    }
}

fn with_token(slot: u32, seq: u64) -> Ctx {
    Ctx::trusted(Cred::root()).token(DedupToken { slot, seq })
}

/// Times differ between engines; so do blocks that are allocated without being written.
fn tree(fs: &dyn FileSystem) -> Tree {
    capture(fs)
}

fn recorded(image: &[u8]) -> (Engine, Arc<Recorder>) {
    let image = Image::from(image);
    let recorder = Recorder::new(image.clone());
    let mut region = Region::of_image(&image).unwrap();
    region.attach_recorder(Arc::clone(&recorder));
    let engine = Engine::mount(region, &MountOptions::default().cleaner(false)).unwrap();
    (engine, recorder)
}

/// A change that was sent: its token, its inode, and the reply, once it has one.
#[derive(Debug, Clone)]
struct Sent {
    change: Change,
    seq: u64,
    ino: Option<Ino>,
    told: Told,
}

/// `crashes` times: some changes, then one that crashes on its way; then the last change of every slot is sent again,
/// in random order, once or more, some of them after another mount.
fn crash_and_resend(seed: u64, crashes: usize) {
    let mut random = StdRng::seed_from_u64(seed);
    let reference = MemFs::new();
    let mut image = common::empty_pool(8 << 20, &options());
    let mut last: Vec<Option<Sent>> = vec![None; SLOTS as usize];
    let mut seq = 0;
    for round in 0..crashes {
        let about = format!("seed {seed}, crash {round}");
        let (engine, recorder) = recorded(&image);
        let before = random.random_range(0..4);
        let mut first_point = 0;
        for n in 0..=before {
            let slot = random.random_range(0..SLOTS);
            let (change, ino) = next_change(&engine, &mut random);
            seq += 1;
            if n == before {
                first_point = recorder.log().crash_points() - 1;
            }
            let expected = ask(&reference, SYSTEM, &change);
            let told = ask(&engine, &with_token(slot, seq), &change);
            assert_eq!(told, expected, "{about}: {change:?}");
            last[slot as usize] = Some(Sent { change, seq, ino, told });
        }
        // It crashes in the last change, or right after it; whether the reply arrived is unknown.
        let log = recorder.log();
        let point = random.random_range(first_point..log.crash_points());
        let mut cursor = log.cursor();
        while cursor.point() < point {
            assert!(cursor.advance());
        }
        let choice = match random.random_range(0..3) {
            0 => Choice::None,
            1 => Choice::All,
            _ => Choice::Random(random.random()),
        };
        image = cursor.with_image(choice, |image| image.to_vec());
        drop(engine);

        let mut order: Vec<usize> = (0..SLOTS as usize).filter(|&slot| last[slot].is_some()).collect();
        for at in (1..order.len()).rev() {
            order.swap(at, random.random_range(0..=at));
        }
        // The one that crashed comes first: the others got their replies before it was sent.
        let newest = order
            .iter()
            .position(|&slot| last[slot].as_ref().unwrap().seq == seq)
            .unwrap();
        let (engine, recorder) = recorded(&image);
        let again = |engine: &Engine, slot: usize| {
            let sent = last[slot].as_ref().unwrap();
            let told = resend(engine, &with_token(slot as u32, sent.seq), &sent.change, sent.ino);
            // A file that was removed since cannot be opened, so nothing can be sent through it.
            let is_gone = told == Told::Refused(FsError::Stale) && sent.seq != seq;
            assert!(is_gone || told == sent.told, "{about}: {sent:?} sent again: {told:?}");
        };
        again(&engine, order[newest]);
        assert_eq!(tree(&engine), tree(&reference), "{about}");
        for _ in 0..random.random_range(0..3) {
            again(&engine, order[random.random_range(0..order.len())]);
        }
        assert_eq!(tree(&engine), tree(&reference), "{about}, after more repetitions");
        drop(engine);
        // Another process, after another crash.
        image = recorder.log().final_image();
        let engine = common::mount(&image);
        for &slot in &order {
            again(&engine, slot);
        }
        assert_eq!(tree(&engine), tree(&reference), "{about}, by another process");
        drop(engine);
        common::check(&image);
    }
}

#[test]
fn a_thousand_crashes_repeat_nothing() {
    let seeds: Vec<u64> = match std::env::var("FERRITE_SEED") {
        Ok(seed) => vec![seed.parse().expect("FERRITE_SEED is a number")],
        Err(_) => (0..40).collect(),
    };
    for seed in seeds {
        println!("FERRITE_SEED={seed}");
        crash_and_resend(seed, 25);
    }
}

/// Every kind of change, sent three times without a crash, on both engines.
#[test]
fn what_is_sent_again_is_told_again() {
    for engine in [
        &common::mount(&common::empty_pool(8 << 20, &options())) as &dyn FileSystem,
        &MemFs::new(),
    ] {
        let token = MemFs::new();
        let mut random = StdRng::seed_from_u64(1);
        for seq in 1..=3000 {
            let (change, ino) = next_change(engine, &mut random);
            let expected = ask(&token, SYSTEM, &change);
            let ctx = with_token(seq as u32 % 7, seq);
            assert_eq!(ask(engine, &ctx, &change), expected, "{seq}: {change:?}");
            for _ in 0..2 {
                assert_eq!(resend(engine, &ctx, &change, ino), expected, "{seq}: {change:?} again");
            }
        }
        assert_eq!(tree(engine), tree(&token));
    }
}

#[test]
fn tokens_have_rules() {
    let engine = common::mount(&common::empty_pool(8 << 20, &options()));
    let slots = engine.limits().dedup_slots;
    assert!(slots >= 32, "{slots} slots");
    let make = |slot, seq, name: &[u8]| engine.mkdir(&with_token(slot, seq), ROOT_INO, name, 0o755);
    assert_eq!(make(0, 0, b"a"), Err(FsError::Invalid(BadArgument::NoToken)));
    assert_eq!(make(slots, 1, b"a"), Err(FsError::NotSupported(Unsupported::DedupSlot)));
    let made = make(slots - 1, 5, b"a").unwrap();
    assert_eq!(make(slots - 1, 5, b"a").map(|attr| attr.ino), Ok(made.ino));
    assert_eq!(make(slots - 1, 4, b"b"), Err(FsError::Superseded));
    // A token is for one change.
    assert_eq!(
        engine.unlink(&with_token(slots - 1, 5), ROOT_INO, b"a"),
        Err(FsError::Superseded)
    );
    assert!(make(slots - 1, 6, b"b").is_ok());
    // A refusal is repeated, even if the change would be possible now.
    assert_eq!(make(0, 1, b"a").unwrap_err(), FsError::Exists);
    engine.rmdir(SYSTEM, ROOT_INO, b"a").unwrap();
    assert_eq!(make(0, 1, b"a").unwrap_err(), FsError::Exists);
    assert!(make(0, 2, b"a").is_ok());
}

/// The original and its repetitions at the same time: one of them makes the change.
#[test]
fn repetitions_beside_the_original_wait() {
    let engine = common::mount(&common::empty_pool(8 << 20, &options()));
    let ino = common::make(&engine, ROOT_INO, "f");
    for seq in 1..500 {
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let file = engine.open(SYSTEM, ino, OpenMode::read_write()).unwrap();
                    let place = file.append(&with_token(1, seq), b"12345678").unwrap();
                    assert_eq!(place, Written::new((seq - 1) * 8, 8));
                });
            }
        });
    }
    assert_eq!(engine.getattr(SYSTEM, ino).unwrap().size, 499 * 8);
}

#[test]
fn a_damaged_outcome_is_found_and_forgotten() {
    let image = common::empty_pool(8 << 20, &options());
    let (engine, recorder) = recorded(&image);
    engine.mkdir(&with_token(3, 9), ROOT_INO, b"a", 0o755).unwrap();
    let superblock = ferrite_fs::Superblock::find(&Region::from_image(&image).unwrap()).unwrap();
    engine.unmount().unwrap();
    let mut image = recorder.log().final_image();
    image[superblock.dedup_offset as usize + 3 * 128 + 40] ^= 4;
    let engine = common::mount(&image);
    let again = engine.mkdir(&with_token(3, 9), ROOT_INO, b"a", 0o755);
    assert!(matches!(again, Err(FsError::Damaged(_))), "{again:?}");
    drop(engine);
    let region = || Region::from_image(&image).unwrap();
    let report = ferrite_fs::fsck(region(), &mut |_, _, _| {}).unwrap();
    let found: Vec<_> = report
        .findings
        .iter()
        .map(|finding| (finding.phase, &*finding.what))
        .collect();
    assert_eq!(found, [("outcomes", "slot 3: damaged")]);
    let (repaired, _) = ferrite_fs::repair(region(), &mut |_, _, _| {}).unwrap();
    assert!(repaired.after.findings.is_empty(), "{:?}", repaired.after.findings);
}
