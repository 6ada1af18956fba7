//! Attacks on pools: bytes from a fuzzer become changes to a sound pool, and the engine has to live with it.
//!
//! What lives here: one function a target ([`TARGETS`]), used by the libFuzzer programs in `fuzz_targets/` and by the test that
//! replays the corpus on a stable compiler (`crates/ferrite-fs/tests/fuzz_corpus.rs`).
//!
//! The bytes are patches of 12: area, way, length, unused, offset (4), value (4). So the fuzzer works on what matters instead
//! of on four megabytes. An attack must end without a panic, a hang or an access outside the pool; errors are fine.

use std::sync::OnceLock;

use ferrite_fs::{Engine, MkfsOptions, MountOptions, Superblock, fsck, identify, mkfs, repair};
use ferrite_pm::Region;
use ferrite_vfs::{Cred, FileKind, FileSystem, NewNode, OpenMode, ROOT_INO, RenameMode, XattrMode};

const POOL_BYTES: u64 = 4 << 20;
const PATCH_BYTES: usize = 12;
const PATCHES_MAX: usize = 64;
/// Entries of a tree that are looked at: a damaged one may have no end.
const ENTRIES_MAX: usize = 2000;
/// Blocks from the first on in which the sample has its directories, attributes and logs.
const USED_BLOCKS: u64 = 64;

/// A target: its name, and what it does with the fuzzer's bytes.
pub(crate) type Target = (&'static str, fn(&[u8]));

/// All targets.
pub(crate) const TARGETS: [Target; 5] = [
    ("pool_image", pool_image),
    ("journal_replay", journal_replay),
    ("directory_block", directory_block),
    ("page_log", page_log),
    ("fsck_repair", fsck_repair),
];

struct Sample {
    /// Unmounted.
    clean: Vec<u8>,
    /// Left as a killed process leaves it: with records to replay.
    crashed: Vec<u8>,
    superblock: Superblock,
}

fn quiet() -> MountOptions {
    MountOptions {
        cleaner: false,
        accept_power_loss: true,
        ..MountOptions::default()
    }
}

fn sample() -> &'static Sample {
    static MADE: OnceLock<Sample> = OnceLock::new();
    MADE.get_or_init(|| {
        let region = Region::anonymous(POOL_BYTES).expect("memory for a pool");
        let options = MkfsOptions {
            inodes: Some(127),
            rings: Some(2),
            seed: Some(42),
            ..MkfsOptions::default()
        };
        mkfs(&region, &options).expect("a new pool");
        let superblock = identify(&region).expect("its superblock");
        let mut empty = vec![0; POOL_BYTES as usize];
        region.read(0, &mut empty);
        let recorder = ferrite_pm::Recorder::new(empty.clone());
        let mut region = Region::from_image(&empty).expect("memory for a pool");
        region.attach_recorder(std::sync::Arc::clone(&recorder));
        let engine = Engine::mount(region, &quiet()).expect("a mount");
        fill(&engine).expect("room for a few files");
        let crashed = recorder.log().final_image();
        engine.unmount().expect("an unmount");
        Sample {
            clean: recorder.log().final_image(),
            crashed,
            superblock,
        }
    })
}

const FILE: NewNode = NewNode {
    kind: FileKind::File,
    mode: 0o644,
    rdev: 0,
};

fn fill(engine: &Engine) -> ferrite_vfs::Result<()> {
    let root = Cred::root();
    for n in 0..12u8 {
        let dir = match n % 3 {
            0 => ROOT_INO,
            _ => engine.mkdir(&root, ROOT_INO, format!("dir{n}").as_bytes(), 0o755)?.ino,
        };
        let ino = engine.mknod(&root, dir, format!("file{n}").as_bytes(), &FILE)?.ino;
        let file = engine.open(ino, OpenMode::read_write())?;
        file.write_at(0, &vec![n; usize::from(n) * 700])?;
        for at in 0..u64::from(n) {
            file.write_at(at * 333, b"a part of a page")?;
        }
        if n % 4 == 0 {
            engine.setxattr(ino, b"user.name", b"value", XattrMode::Any)?;
            engine.link(ino, ROOT_INO, format!("link{n}").as_bytes())?;
        }
    }
    engine.symlink(&root, ROOT_INO, b"symlink", b"dir1/file1")?;
    Ok(())
}

/// Applies the patches to areas of `image`, which are pool offsets and lengths.
fn patch(image: &mut [u8], areas: &[(u64, u64)], data: &[u8]) {
    for patch in data.chunks_exact(PATCH_BYTES).take(PATCHES_MAX) {
        let (start, len) = areas[usize::from(patch[0]) % areas.len()];
        let number = |at: usize| u32::from_le_bytes(patch[at..at + 4].try_into().expect("four bytes"));
        let at = (start + u64::from(number(4)) % len) as usize;
        let value = number(8).to_le_bytes();
        let end = (at + 1 + usize::from(patch[2] % 64)).min((start + len) as usize);
        match patch[1] % 4 {
            0 => image[at] ^= 1 << (patch[8] % 8),
            1 => image[at..end].fill(patch[8]),
            2 => {
                let word = at / 8 * 8;
                image[word..word + 4].copy_from_slice(&value);
            }
            // One structure over another of its kind.
            _ => {
                let from = (start + u64::from(number(8)) % len) as usize / 8 * 8;
                let len = (end - at).min(image.len() - from).min(image.len() - at / 8 * 8);
                image.copy_within(from..from + len, at / 8 * 8);
            }
        }
    }
}

fn live_with(image: &[u8]) {
    let open = || Region::from_image(image).expect("memory for a pool");
    let _ = fsck(open(), &mut |_, _, _| {});
    if let Ok(engine) = Engine::mount(open(), &quiet()) {
        let _ = walk(&engine);
        let _ = write(&engine);
        let _ = engine.unmount();
    }
}

/// Reads everything; goes on after errors.
fn walk(engine: &Engine) -> ferrite_vfs::Result<()> {
    let mut pending = vec![ROOT_INO];
    let mut seen = 0;
    while let Some(dir) = pending.pop() {
        let mut children = Vec::new();
        let _ = engine.readdir(dir, 0, &mut |entry| {
            seen += 1;
            children.push((entry.name.to_vec(), entry.ino));
            seen < ENTRIES_MAX
        });
        for (name, ino) in children {
            let _ = engine.lookup(dir, &name);
            let _ = engine.listxattr(ino);
            let _ = engine.readlink(ino);
            let Ok(attr) = engine.getattr(ino) else { continue };
            if attr.kind == FileKind::Directory && seen < ENTRIES_MAX {
                pending.push(ino);
            }
            if let Ok(file) = engine.open(ino, OpenMode::read_only()) {
                let mut buffer = vec![0; 64 << 10];
                let _ = file.read_at(0, &mut buffer);
                let _ = file.seek_data(0);
                let _ = file.seek_hole(0);
                let _ = file.read_at(attr.size.saturating_sub(5000), &mut buffer);
            }
            let _ = engine.dump(ino);
        }
    }
    Ok(())
}

/// Changes a little of everything; goes on after errors.
fn write(engine: &Engine) -> ferrite_vfs::Result<()> {
    let root = Cred::root();
    let mut names = Vec::new();
    let _ = engine.readdir(ROOT_INO, 0, &mut |entry| {
        names.push((entry.name.to_vec(), entry.ino));
        names.len() < 40
    });
    for (index, (name, ino)) in names.iter().enumerate() {
        if let Ok(file) = engine.open(*ino, OpenMode::read_write()) {
            let _ = file.write_at(10, b"over");
            let _ = file.write_at(4000, &[1; 5000]);
            let _ = file.append(b"behind");
        }
        let _ = engine.setxattr(*ino, b"user.other", &[7; 100], XattrMode::Any);
        match index % 3 {
            0 => drop(engine.unlink(ROOT_INO, name)),
            1 => drop(engine.rename(ROOT_INO, name, ROOT_INO, b"renamed", RenameMode::Replace)),
            _ => drop(engine.rmdir(ROOT_INO, name)),
        }
    }
    let made = engine.mkdir(&root, ROOT_INO, b"new-dir", 0o755)?.ino;
    for n in 0..20 {
        engine.mknod(&root, made, format!("new{n}").as_bytes(), &FILE)?;
    }
    engine
        .clean(100)
        .map_err(|error| ferrite_vfs::FsError::Io(error.to_string()))?;
    Ok(())
}

fn blocks(superblock: &Superblock) -> (u64, u64) {
    (superblock.first_block * 4096, USED_BLOCKS * 4096)
}

fn everything(superblock: &Superblock) -> Vec<(u64, u64)> {
    vec![
        (0, 4096),
        (4096, 256),
        (superblock.journal_offset, 16 << 10),
        (superblock.inode_offset, superblock.inodes * 256),
        (superblock.name_offset, superblock.name_slots * 8),
        (superblock.map_offset, superblock.map_slots * 16),
        blocks(superblock),
        (POOL_BYTES - 4096, 4096),
    ]
}

/// Any structure of a pool: check, mount, walk, write.
pub(crate) fn pool_image(data: &[u8]) {
    let mut image = sample().clean.clone();
    patch(&mut image, &everything(&sample().superblock), data);
    live_with(&image);
}

/// Records and the control block of a crashed pool.
pub(crate) fn journal_replay(data: &[u8]) {
    let mut image = sample().crashed.clone();
    let superblock = &sample().superblock;
    let ring = superblock.ring_bytes.min(16 << 10);
    let second = superblock.journal_offset + superblock.ring_bytes;
    patch(
        &mut image,
        &[(superblock.journal_offset, ring), (second, ring), (4096, 256)],
        data,
    );
    live_with(&image);
}

/// Blocks of directories, and the name table that leads to them.
pub(crate) fn directory_block(data: &[u8]) {
    let mut image = sample().clean.clone();
    let superblock = &sample().superblock;
    let names = (superblock.name_offset, superblock.name_slots * 8);
    patch(&mut image, &[blocks(superblock), blocks(superblock), names], data);
    live_with(&image);
}

/// Logs, and the page words that lead to them.
pub(crate) fn page_log(data: &[u8]) {
    let mut image = sample().clean.clone();
    let superblock = &sample().superblock;
    let words = (superblock.map_offset, superblock.map_slots * 16);
    patch(&mut image, &[blocks(superblock), words], data);
    live_with(&image);
}

/// Repair of any damage: what it leaves is sound, and it does not leave anything to a second one.
pub(crate) fn fsck_repair(data: &[u8]) {
    let mut image = sample().clean.clone();
    patch(&mut image, &everything(&sample().superblock), data);
    let open = |image: &[u8]| Region::from_image(image).expect("memory for a pool");
    let Ok((report, mend)) = repair(open(&image), &mut |_, _, _| {}) else {
        return;
    };
    let region = open(&image);
    if mend.apply(&region).is_err() || !report.after.findings.is_empty() {
        return;
    }
    let mut repaired = vec![0; POOL_BYTES as usize];
    region.read(0, &mut repaired);
    let again = fsck(open(&repaired), &mut |_, _, _| {}).expect("a repaired pool is a pool");
    assert!(again.findings.is_empty(), "after the repair: {:?}", again.findings);
    live_with(&repaired);
}
