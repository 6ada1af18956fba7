//! Attacks on pools: bytes from a fuzzer become changes to a sound pool, and the engine has to live with it.
//!
//! Contents: one function a target ([`TARGETS`]), used by the libFuzzer programs in `fuzz_targets/` and by the
//! test that replays the corpus on a stable compiler (`crates/ferrite-fs/tests/fuzz_corpus.rs`). A new target is a
//! function and a line in [`TARGETS`], a file in `fuzz_targets/`, a `[[bin]]` in `Cargo.toml`, and a corpus.
//!
//! The bytes are patches of 12: area, way (see [`patch`]), length, kind of pool (its mapping, and data checksums or
//! none; in the first patch only), offset (4), value (4). So the fuzzer works on what matters instead of on four
//! megabytes. An attack must end without a panic, a hang or an access outside the pool; errors are fine. Two ways store
//! something with a right checksum, so that what lies behind the checksum is attacked too.

use std::sync::{Arc, OnceLock};

use ferrite_fs::layout::{CONTROL_CHECKPOINT, CONTROL_OFFSET, encode_checkpoint};
use ferrite_fs::{Engine, Mapping, MkfsOptions, MountOptions, Superblock, fsck, identify, mkfs, repair};
use ferrite_pm::Region;
use ferrite_vfs::{
    FallocateMode, FileKind, FileSystem, Ino, NewNode, OpenMode, ROOT_INO, RenameMode, SYSTEM, SetAttr, XattrMode,
};

const POOL_BYTES: u64 = 4 << 20;
const PATCH_BYTES: usize = 12;
const PATCHES_MAX: usize = 64;
/// Entries of a tree that are looked at: a damaged one may have no end.
const ENTRIES_MAX: usize = 2000;
/// Entries that are changed.
const CHANGES_MAX: usize = 60;
const BLOCK_BYTES: u64 = 4096;
/// What blocks and log segments with a structure in them are known by: the signature and where it stands.
const DIRECTORY: (&[u8], usize) = (b"FdIr", 8);
const ATTRIBUTES: (&[u8], usize) = (b"FxAt", 0);
const SEGMENT: (&[u8], usize) = (b"FpLg", 8);
/// Bit of a patch's way: hit any place of the area, not only those in use.
const ANYWHERE: u8 = 0x80;

/// Byte of the first patch that says which kind of pool it is.
const KIND_AT: usize = 3;

/// Kinds of pools: each mapping, without data checksums and with them.
const KINDS: usize = 2 * Mapping::ALL.len();

/// Made once for each kind of pool.
type PerKind<T> = [OnceLock<T>; KINDS];

/// The kind of pool that an input is about.
fn kind_of(data: &[u8]) -> usize {
    usize::from(data.get(KIND_AT).copied().unwrap_or(0)) % KINDS
}

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

/// A target's name, and the pool that it makes of the fuzzer's bytes.
pub(crate) type Damage = (&'static str, fn(&[u8]) -> Vec<u8>);

/// Those of all targets. What one repairs is here lived with as it is.
pub(crate) const DAMAGES: [Damage; 5] = [
    ("pool_image", pool_of_image),
    ("journal_replay", pool_of_journal),
    ("directory_block", pool_of_directory),
    ("page_log", pool_of_log),
    ("fsck_repair", pool_of_image),
];

struct Sample {
    /// Unmounted.
    clean: Vec<u8>,
    /// Left as a killed process leaves it: with records to replay.
    crashed: Vec<u8>,
    superblock: Superblock,
}

fn quiet() -> MountOptions {
    MountOptions::default().cleaner(false).accept_power_loss(true)
}

fn sample(kind: usize) -> &'static Sample {
    static MADE: PerKind<Sample> = [const { OnceLock::new() }; KINDS];
    MADE[kind].get_or_init(|| {
        let region = Region::anonymous(POOL_BYTES).expect("memory for a pool");
        let options = MkfsOptions::default()
            .mapping(Mapping::ALL[kind % Mapping::ALL.len()])
            .data_checksum(kind >= Mapping::ALL.len())
            .inodes(127)
            .rings(2)
            .seed(42);
        mkfs(&region, &options).expect("a new pool");
        let superblock = identify(&region).expect("its superblock");
        let mut empty = vec![0; POOL_BYTES as usize];
        region.read(0, &mut empty);
        let recorder = ferrite_pm::Recorder::new(empty.clone());
        let mut region = Region::from_image(&empty).expect("memory for a pool");
        region.attach_recorder(std::sync::Arc::clone(&recorder));
        let engine = Engine::mount(region, &quiet()).expect("a mount");
        fill(&engine).expect("space for a few files");
        // A file that is open and has no name when the crash comes.
        let file = engine
            .lookup(SYSTEM, ROOT_INO, b"file9")
            .and_then(|found| engine.open(SYSTEM, found.ino, OpenMode::read_only()));
        engine.unlink(SYSTEM, ROOT_INO, b"file9").expect("a name to remove");
        let crashed = recorder.log().final_image();
        drop(file);
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

/// A tree of a little of everything.
pub(crate) fn fill(engine: &dyn FileSystem) -> ferrite_vfs::Result<()> {
    for n in 0..12u8 {
        let dir = match n % 3 {
            0 => ROOT_INO,
            _ => engine.mkdir(SYSTEM, ROOT_INO, format!("dir{n}").as_bytes(), 0o755)?.ino,
        };
        let ino = engine.mknod(SYSTEM, dir, format!("file{n}").as_bytes(), &FILE)?.ino;
        let file = engine.open(SYSTEM, ino, OpenMode::read_write())?;
        file.write_at(SYSTEM, 0, &vec![n; usize::from(n) * 700])?;
        for at in 0..u64::from(n) {
            file.write_at(SYSTEM, at * 333, b"a part of a page")?;
        }
        if n % 4 == 0 {
            engine.setxattr(SYSTEM, ino, b"user.name", b"value", XattrMode::Any)?;
            engine.link(SYSTEM, ino, ROOT_INO, format!("link{n}").as_bytes())?;
        }
    }
    engine.symlink(SYSTEM, ROOT_INO, b"symlink", b"dir1/file1")?;
    engine.symlink(SYSTEM, ROOT_INO, b"long-symlink", &[b'x'; 1000])?;
    fill_sparse(engine)?;
    // A directory block that is free again and still looks like one.
    let gone = engine.mkdir(SYSTEM, ROOT_INO, b"gone", 0o755)?.ino;
    engine.mknod(SYSTEM, gone, b"file", &FILE)?;
    engine.unlink(SYSTEM, gone, b"file")?;
    engine.mknod(SYSTEM, gone, b"file", &FILE)?;
    Ok(())
}

/// A file of few pages, far apart, so that its pages are found by walking the table; reserved pages; a log of many
/// segments.
fn fill_sparse(engine: &dyn FileSystem) -> ferrite_vfs::Result<()> {
    let ino = engine.mknod(SYSTEM, ROOT_INO, b"sparse", &FILE)?.ino;
    let file = engine.open(SYSTEM, ino, OpenMode::read_write())?;
    for page in [0, 1, 5000, 70_000, 70_001] {
        file.write_at(SYSTEM, page * BLOCK_BYTES, &[7; BLOCK_BYTES as usize])?;
    }
    for at in 0..40 {
        file.write_at(SYSTEM, at * 90, b"many parts of a page")?;
        file.write_at(SYSTEM, 5000 * BLOCK_BYTES + at * 7, &[at as u8; 100])?;
    }
    file.fallocate(
        SYSTEM,
        FallocateMode::Allocate { keep_size: true },
        80_000 * BLOCK_BYTES,
        3 * BLOCK_BYTES,
    )
}

/// A part of the pool that patches go to.
struct Area {
    start: u64,
    len: u64,
    /// Words in use.
    words: Vec<u64>,
}

impl Area {
    fn new(image: &[u8], start: u64, len: u64) -> Area {
        let in_use = |at: &u64| image[*at as usize..*at as usize + 8] != [0; 8];
        Area {
            start,
            len,
            words: (start..start + len).step_by(8).filter(in_use).collect(),
        }
    }

    /// Structures of `unit` bytes in the data blocks that bear `signature`, of which only the first `len` bytes are
    /// hit.
    fn signed(image: &[u8], superblock: &Superblock, (signature, at): (&[u8], usize), unit: u64, len: u64) -> Area {
        let (start, whole) = (superblock.first_block * BLOCK_BYTES, superblock.blocks * BLOCK_BYTES);
        let mut words = Vec::new();
        for offset in (start..start + whole).step_by(unit as usize) {
            if image[offset as usize + at..].starts_with(signature) {
                let end = (offset + len).min(start + whole);
                words.extend(Area::new(image, offset, end - offset).words);
            }
        }
        Area {
            start,
            len: whole,
            words,
        }
    }

    /// Where a patch hits.
    fn place(&self, number: u32, anywhere: bool) -> usize {
        let at = match self.words.get(number as usize % self.words.len().max(1)) {
            Some(word) if !anywhere => word + u64::from(number >> 29),
            _ => self.start + u64::from(number) % self.len,
        };
        at as usize
    }
}

/// What a target attacks: places, and whether superblock and checkpoint may be replaced by sound ones.
struct Surface {
    image: Vec<u8>,
    areas: Vec<Area>,
    fixes_checksums: bool,
}

/// The surface's image with the patches of `data` applied. Ways: flip a bit, fill, set half a word, copy from elsewhere
/// in the area, count up or down, set a word to an extreme; set a field of the superblock, set the checkpoint, both
/// with their checksums.
fn patch(surface: &Surface, data: &[u8]) -> Vec<u8> {
    let mut image = surface.image.clone();
    for patch in data.chunks_exact(PATCH_BYTES).take(PATCHES_MAX) {
        let area = &surface.areas[usize::from(patch[0]) % surface.areas.len()];
        let number = |at: usize| u32::from_le_bytes(patch[at..at + 4].try_into().expect("four bytes"));
        let (anywhere, value) = (patch[1] & ANYWHERE != 0, number(8));
        let at = area.place(number(4), anywhere);
        let word = at / 8 * 8;
        let end = (at + 1 + usize::from(patch[2] % 64)).min((area.start + area.len) as usize);
        match patch[1] % if surface.fixes_checksums { 8 } else { 6 } {
            0 => image[at] ^= 1 << (patch[8] % 8),
            1 => image[at..end].fill(patch[8]),
            2 => image[at / 4 * 4..at / 4 * 4 + 4].copy_from_slice(&value.to_le_bytes()),
            // One structure over another of its kind.
            3 => {
                let from = area.place(value, anywhere) / 8 * 8;
                let len = (end - at).next_multiple_of(8);
                let len = len.min(image.len() - from).min(image.len() - word);
                image.copy_within(from..from + len, word);
            }
            4 => image[at] = image[at].wrapping_add(patch[8] % 32).wrapping_sub(16),
            5 => {
                let extremes = [
                    0,
                    1,
                    u64::MAX,
                    u64::MAX - 1,
                    1 << 63,
                    u64::from(u32::MAX),
                    1 << 32,
                    1 << 48,
                ];
                let extreme = extremes[usize::from(patch[8]) % extremes.len()];
                image[word..word + 8].copy_from_slice(&extreme.to_le_bytes());
            }
            6 => put_superblock(&mut image, patch[2], number(4), value),
            _ => {
                let checkpoint = match patch[2] % 4 {
                    0 => u64::from(value),
                    1 => (1 << 48) - 1 - u64::from(value % 4),
                    _ => u64::from(value % 256),
                };
                image[CONTROL_CHECKPOINT as usize..][..8].copy_from_slice(&encode_checkpoint(checkpoint).to_le_bytes());
            }
        }
    }
    image
}

/// Changes one field of the superblock, in both copies, with its checksum.
fn put_superblock(image: &mut [u8], field: u8, how: u32, value: u32) {
    let Ok(mut superblock) = Superblock::decode(&image[..BLOCK_BYTES as usize]) else {
        return;
    };
    let new = |old: u64| match how % 4 {
        0 => old.wrapping_add_signed(i64::from(value as i32 % 1024)),
        1 => old.wrapping_add_signed(i64::from(value as i8) * BLOCK_BYTES as i64),
        2 => old ^ 1 << (value % 64),
        _ => u64::from(value),
    };
    match field % 16 {
        0 => superblock.rings = new(u64::from(superblock.rings)) as u32,
        1 | 2 => superblock.ring_bytes = new(superblock.ring_bytes),
        3 => superblock.journal_offset = new(superblock.journal_offset),
        4 => superblock.inode_offset = new(superblock.inode_offset),
        5 | 6 => superblock.inodes = new(superblock.inodes),
        7 => superblock.name_offset = new(superblock.name_offset),
        8 | 9 => superblock.name_slots = new(superblock.name_slots),
        10 => superblock.map_offset = new(superblock.map_offset),
        11 => superblock.first_block = new(superblock.first_block),
        12 => superblock.blocks = new(superblock.blocks),
        13 => superblock.reserve_blocks = new(superblock.reserve_blocks),
        14 => superblock.size_bytes = new(superblock.size_bytes),
        _ => superblock.seed = new(superblock.seed),
    }
    let block = superblock.encode();
    let last = image.len() - block.len();
    image[..block.len()].copy_from_slice(&block);
    image[last..].copy_from_slice(&block);
}

fn live_with(image: &[u8]) {
    let _ = fsck(Region::from_image(image).expect("memory for a pool"), &mut |_, _, _| {});
    live_behind(image, |engine| Box::new(engine));
}

/// Mounts a pool and uses it through what `front` puts before the engine.
pub(crate) fn live_behind(image: &[u8], front: impl FnOnce(Engine) -> Box<dyn FileSystem>) {
    let region = Region::from_image(image).expect("memory for a pool");
    let Ok(engine) = Engine::mount(region, &quiet()) else {
        return;
    };
    let fs = front(engine.clone());
    let entries = walk(&*fs);
    for (_, _, ino) in &entries {
        let _ = engine.dump(*ino);
    }
    let _ = (engine.scrub(None), engine.info());
    write(&*fs, &entries);
    let _ = engine.clean(100);
    // What is freed twice is often noticed only when it comes back to the free maps.
    let _ = fs.statfs(SYSTEM);
    let _ = engine.unmount();
}

/// A name: its directory, itself, its inode.
pub(crate) type Name = (Ino, Vec<u8>, Ino);

/// Reads everything; goes on after errors. Returns the names it found.
pub(crate) fn walk(engine: &dyn FileSystem) -> Vec<Name> {
    let mut pending = vec![ROOT_INO];
    let mut names = Vec::new();
    while let Some(dir) = pending.pop() {
        let first = names.len();
        let _ = engine.readdir(SYSTEM, dir, 0, &mut |entry| {
            names.push((dir, entry.name.to_vec(), entry.ino));
            names.len() < ENTRIES_MAX
        });
        for (dir, name, ino) in &names[first..] {
            let _ = engine.lookup(SYSTEM, *dir, name);
            let Ok(attr) = engine.getattr(SYSTEM, *ino) else {
                continue;
            };
            if attr.kind == FileKind::Directory && names.len() < ENTRIES_MAX {
                pending.push(*ino);
            }
            look_at(engine, *ino, attr.size);
        }
    }
    let _ = engine.statfs(SYSTEM);
    names
}

fn look_at(engine: &dyn FileSystem, ino: Ino, size: u64) {
    let _ = engine.parent(SYSTEM, ino);
    let _ = engine.readlink(SYSTEM, ino);
    for name in engine.listxattr(SYSTEM, ino).unwrap_or_default() {
        let _ = engine.getxattr(SYSTEM, ino, &name);
    }
    if let Ok(file) = engine.open(SYSTEM, ino, OpenMode::read_only()) {
        let mut buffer = vec![0; 64 << 10];
        for offset in [0, 5000 * BLOCK_BYTES, size.saturating_sub(5000)] {
            let _ = file.read_at(SYSTEM, offset, &mut buffer);
            let _ = (file.seek_data(SYSTEM, offset), file.seek_hole(SYSTEM, offset));
        }
    }
}

/// Changes a little of everything; goes on after errors.
pub(crate) fn write(engine: &dyn FileSystem, names: &[Name]) {
    for (index, (dir, name, ino)) in names.iter().take(CHANGES_MAX).enumerate() {
        if let Ok(file) = engine.open(SYSTEM, *ino, OpenMode::read_write()) {
            let _ = file.write_at(SYSTEM, 10, b"over");
            let _ = file.write_at(SYSTEM, 4000, &[1; 5000]);
            let _ = file.append(SYSTEM, b"behind");
            let _ = match index % 4 {
                0 => file.fallocate(SYSTEM, FallocateMode::PunchHole, 100, 1 << 40),
                1 => file.fallocate(SYSTEM, FallocateMode::ZeroRange { keep_size: false }, 4000, 9000),
                _ => Ok(()),
            };
        }
        let _ = engine.setxattr(SYSTEM, *ino, b"user.other", &[7; 100], XattrMode::Any);
        if index % 5 == 0 {
            let shorter = SetAttr {
                size: Some(50),
                ..SetAttr::default()
            };
            let _ = engine.setattr(SYSTEM, *ino, &shorter);
        }
        let (other, other_name, _) = &names[index * 7 % names.len()];
        let _ = match index % 4 {
            0 => engine.unlink(SYSTEM, *dir, name),
            1 => engine.rename(SYSTEM, *dir, name, ROOT_INO, b"renamed", RenameMode::Replace),
            2 => engine.rename(SYSTEM, *dir, name, *other, other_name, RenameMode::Exchange),
            _ => engine.rename(SYSTEM, *dir, name, *other, other_name, RenameMode::Replace),
        };
        let _ = engine.rmdir(SYSTEM, *dir, name);
    }
    if let Ok(made) = engine.mkdir(SYSTEM, ROOT_INO, b"new-dir", 0o755) {
        for n in 0..20 {
            let _ = engine.mknod(SYSTEM, made.ino, format!("new{n}").as_bytes(), &FILE);
        }
    }
}

fn directories(image: &[u8], superblock: &Superblock) -> Area {
    Area::signed(image, superblock, DIRECTORY, BLOCK_BYTES, BLOCK_BYTES)
}

fn segments(image: &[u8], superblock: &Superblock) -> Area {
    Area::signed(image, superblock, SEGMENT, 256, 512)
}

fn names(image: &[u8], superblock: &Superblock) -> Area {
    Area::new(image, superblock.name_offset, superblock.name_slots * 8)
}

/// The mapping's own area, and the data blocks that its nodes lie in.
fn mapping(image: &[u8], superblock: &Superblock) -> Vec<Area> {
    let area_bytes = superblock.mapping.area_bytes(superblock.map_slots);
    let region = Arc::new(Region::from_image(image).expect("memory for a pool"));
    let map = superblock.mapping.open(region, superblock.map_geometry());
    map.load(1, &|_| {}).expect("a sound mapping");
    let mut nodes = Vec::new();
    map.for_each_node(&mut |node, _| {
        nodes.extend(Area::new(image, superblock.block_offset(node), BLOCK_BYTES).words);
    });
    let mut areas = vec![Area::new(image, superblock.map_offset, area_bytes)];
    if !nodes.is_empty() {
        areas.push(Area {
            start: superblock.first_block * BLOCK_BYTES,
            len: superblock.blocks * BLOCK_BYTES,
            words: nodes,
        });
    }
    areas
}

/// All structures of the sound pool.
fn everything(data: &[u8]) -> &'static Surface {
    static MADE: PerKind<Surface> = [const { OnceLock::new() }; KINDS];
    let chosen = kind_of(data);
    MADE[chosen].get_or_init(|| {
        let Sample { clean, superblock, .. } = sample(chosen);
        let mut areas = vec![
            Area::new(clean, 0, BLOCK_BYTES),
            Area::new(clean, CONTROL_OFFSET, 256),
            Area::new(clean, superblock.journal_offset, 16 << 10),
            Area::new(clean, superblock.inode_offset, superblock.inodes * 256),
            names(clean, superblock),
            directories(clean, superblock),
            segments(clean, superblock),
            Area::signed(clean, superblock, ATTRIBUTES, BLOCK_BYTES, 64),
            Area::new(clean, POOL_BYTES - BLOCK_BYTES, BLOCK_BYTES),
        ];
        // Where the corpus has the table of a pool that has one.
        areas.splice(5..5, mapping(clean, superblock));
        if superblock.has_data_checksums() {
            let (start, end) = (superblock.sum_offset, superblock.first_block * BLOCK_BYTES);
            areas.push(Area::new(clean, start, end - start));
        }
        Surface {
            image: clean.clone(),
            areas,
            fixes_checksums: true,
        }
    })
}

/// Any structure of a pool: check, mount, walk, write.
pub(crate) fn pool_image(data: &[u8]) {
    live_with(&pool_of_image(data));
}

fn pool_of_image(data: &[u8]) -> Vec<u8> {
    patch(everything(data), data)
}

/// Records and the control block of a crashed pool.
pub(crate) fn journal_replay(data: &[u8]) {
    live_with(&pool_of_journal(data));
}

fn pool_of_journal(data: &[u8]) -> Vec<u8> {
    static MADE: PerKind<Surface> = [const { OnceLock::new() }; KINDS];
    let chosen = kind_of(data);
    let surface = MADE[chosen].get_or_init(|| {
        let Sample {
            crashed, superblock, ..
        } = sample(chosen);
        let journal = u64::from(superblock.rings) * superblock.ring_bytes;
        Surface {
            image: crashed.clone(),
            areas: vec![
                Area::new(crashed, superblock.journal_offset, journal),
                Area::new(crashed, CONTROL_OFFSET, 256),
            ],
            fixes_checksums: true,
        }
    });
    patch(surface, data)
}

/// Blocks of directories, and the name table that leads to them.
pub(crate) fn directory_block(data: &[u8]) {
    live_with(&pool_of_directory(data));
}

fn pool_of_directory(data: &[u8]) -> Vec<u8> {
    static MADE: PerKind<Surface> = [const { OnceLock::new() }; KINDS];
    let chosen = kind_of(data);
    let surface = MADE[chosen].get_or_init(|| {
        let Sample { clean, superblock, .. } = sample(chosen);
        Surface {
            image: clean.clone(),
            areas: vec![directories(clean, superblock), names(clean, superblock)],
            fixes_checksums: false,
        }
    });
    patch(surface, data)
}

/// Logs, and the page words that lead to them.
pub(crate) fn page_log(data: &[u8]) {
    live_with(&pool_of_log(data));
}

fn pool_of_log(data: &[u8]) -> Vec<u8> {
    static MADE: PerKind<Surface> = [const { OnceLock::new() }; KINDS];
    let chosen = kind_of(data);
    let surface = MADE[chosen].get_or_init(|| {
        let Sample { clean, superblock, .. } = sample(chosen);
        let mut areas = vec![segments(clean, superblock)];
        areas.extend(mapping(clean, superblock));
        Surface {
            image: clean.clone(),
            areas,
            fixes_checksums: false,
        }
    });
    patch(surface, data)
}

/// Repair of any damage: what it leaves is sound, and it does not leave anything to a second one.
pub(crate) fn fsck_repair(data: &[u8]) {
    let image = pool_of_image(data);
    let open = |image: &[u8]| Region::from_image(image).expect("memory for a pool");
    let Ok((report, rewrite)) = repair(open(&image), &mut |_, _, _| {}) else {
        return;
    };
    let region = open(&image);
    if rewrite.apply(&region).is_err() || !report.after.findings.is_empty() {
        return;
    }
    let mut repaired = vec![0; POOL_BYTES as usize];
    region.read(0, &mut repaired);
    let again = fsck(open(&repaired), &mut |_, _, _| {}).expect("a repaired pool is a pool");
    assert!(again.findings.is_empty(), "after the repair: {:?}", again.findings);
    live_with(&repaired);
}
