//! Impossible content with right checksums: written not by a failing medium, but by a buggy program or an attacker.
//! Mount, fsck, repair and scrub report the same.

use super::wiped::{number, repaired, tree};
use super::*;
use crate::format::inode::{INLINE_BYTES, QuotaId};
use ferrite_map::{Inum, SlotNo};
use ferrite_vfs::{QUOTA_XATTR, Quota, QuotaLimits};

/// An image with one inode changed, whose checksum fits.
fn with_inode(image: &[u8], ino: Ino, change: impl FnOnce(&mut Inode)) -> Vec<u8> {
    let region = Region::from_image(image).unwrap();
    let superblock = Superblock::find(&region).unwrap();
    let offset = superblock.inode_offset(Inum::new(ino as u32));
    let mut inode = Inode::load(&region, offset);
    change(&mut inode);
    inode.set_crc(inode.checksum(Inum::new(ino as u32)));
    for (at, word) in (offset..).step_by(8).zip(inode.words) {
        region.store(at, word);
    }
    image_of(&region)
}

/// An image after changes by an engine.
fn after(image: &[u8], change: impl FnOnce(&Engine)) -> Vec<u8> {
    let recorder = Recorder::new(image.to_vec());
    let mut region = Region::from_image(image).unwrap();
    region.attach_recorder(Arc::clone(&recorder));
    let engine = Engine::mount(region, &quiet()).unwrap();
    change(&engine);
    engine.unmount().unwrap();
    recorder.log().final_image()
}

fn limit(engine: &Engine, dir: Ino) {
    engine
        .setxattr(SYSTEM, dir, QUOTA_XATTR, b"limit_inodes=9", XattrMode::Any)
        .unwrap();
}

fn findings(image: &[u8]) -> Vec<String> {
    let report = fsck(Region::from_image(image).unwrap(), &mut |_, _, _| {}).unwrap();
    report.findings.into_iter().map(|finding| finding.what).collect()
}

fn file_of(image: &[u8], len: usize) -> (String, Ino) {
    let path = tree(image)
        .into_iter()
        .find(|(_, content)| content.len() == len)
        .unwrap()
        .0;
    let ino = number(image, &path);
    (path, ino)
}

/// No kind has this mode, no file this size: all four report it, and every read fails.
#[test]
fn an_inode_of_no_kind_is_told_by_all() {
    let sound = sample(PLAIN[0]);
    let (path, ino) = file_of(&sound, 5000);
    for (change, told) in [
        (
            (|inode| inode.set_mode_bits(0o30644)) as fn(&mut Inode),
            "impossible mode",
        ),
        (|inode| inode.set_size(u64::MAX), "impossible size"),
    ] {
        let image = with_inode(&sound, ino, change);
        let told = format!("inode {ino}: {told}");
        let tells = |findings: &[String]| findings.iter().any(|finding| finding.starts_with(&told));
        assert!(tells(&findings(&image)), "fsck: {:?}", findings(&image));
        let engine = Engine::mount(Region::from_image(&image).unwrap(), &quiet()).unwrap();
        assert!(tells(engine.damage()), "mount: {:?}", engine.damage());
        let scrubbed = engine.scrub(None).unwrap().findings;
        assert!(tells(&scrubbed), "scrub: {scrubbed:?}");
        assert!(matches!(engine.getattr(SYSTEM, ino), Err(FsError::Damaged(_))));
        let (image, report) = repaired(&image);
        assert_eq!(report.quarantined, [format!("damaged-{ino}")], "{path}");
        assert!(tree(&image).contains_key(&format!("/lost+found/damaged-{ino}")));
    }
}

/// Made a directory again: the content of its blocks is there. So are all names of the pool.
#[test]
fn a_root_that_is_a_file_becomes_a_directory() {
    for variant in PLAIN {
        let sound = sample(variant);
        let image = with_inode(&sound, ROOT_INO, |inode| {
            inode.set_mode_bits(FileKind::File.mode_bits() | 0o644);
        });
        let told = "inode 1: the root is no directory, or not its own parent";
        assert!(findings(&image).iter().any(|finding| finding == told));
        assert!(tree(&repaired(&image).0) == tree(&sound), "{variant:?}");
    }
}

/// A pipe has no pages, and keeps its name without them.
#[test]
fn a_pipe_with_pages_loses_them() {
    for variant in PLAIN {
        let sound = sample(variant);
        let (_, ino) = file_of(&sound, 12_345);
        let image = with_inode(&sound, ino, |inode| {
            inode.set_mode_bits(FileKind::Fifo.mode_bits() | 0o644);
        });
        let told = format!("inode {ino}: special file with ");
        assert!(findings(&image).iter().any(|finding| finding.starts_with(&told)));
        let (image, report) = repaired(&image);
        assert!(
            report.mended.iter().any(|mended| mended.what.starts_with(&told)),
            "{:?}",
            report.mended
        );
        assert!(!report.after.more && findings(&image).is_empty());
    }
}

/// Only regular files in blocks are bound, and none of their pages has a log: the flag goes, and nothing else.
#[test]
fn what_cannot_be_bound_is_bound_no_more() {
    for variant in [PLAIN[0], SUMMED[0]] {
        let sound = sample(variant);
        let (before, mut logs) = (tree(&sound), 0);
        for ino in before.keys().map(|path| number(&sound, path)).chain([ROOT_INO]) {
            let image = with_inode(&sound, ino, |inode| inode.set_bound(true));
            let told = findings(&image);
            if told.is_empty() {
                // An ordinary file without logs may be.
                continue;
            }
            let is_log = |what: &String| what.ends_with("the file is bound");
            logs += usize::from(told.iter().all(is_log));
            let flag = format!("inode {ino}: bound, which only regular files in blocks can be");
            assert!(told == [flag] || told.iter().all(is_log), "{told:?}");
            let (image, report) = repaired(&image);
            assert!(report.quarantined.is_empty() && tree(&image) == before, "{report:?}");
        }
        assert!(logs > 0, "no file of the sample has a log");
    }
}

/// More content than an inode has space for: a read fails, and the part that fits is put aside.
#[test]
fn a_file_that_says_it_holds_more_than_fits_is_cut() {
    let sound = sample(PLAIN[0]);
    let (_, ino) = file_of(&sound, 40);
    let image = with_inode(&sound, ino, |inode| inode.set_size(5000));
    let told = format!("inode {ino}: has its content inside, but 0 pages and 5000 bytes");
    assert!(findings(&image).contains(&told));
    let engine = Engine::mount(Region::from_image(&image).unwrap(), &MountOptions::default()).unwrap();
    let file = engine.open(SYSTEM, ino, OpenMode::read_only());
    let read = file.and_then(|file| file.read_at(SYSTEM, 0, &mut [0; 200]));
    assert!(
        matches!(&read, Err(FsError::Damaged(at)) if at.ino == Some(ino)),
        "{read:?}"
    );
    drop(engine);
    let files = tree(&repaired(&image).0);
    assert_eq!(files[&format!("/lost+found/damaged-{ino}")].len(), INLINE_BYTES);
}

/// Two keys of HashFS for one page, with the same word: no lookup of the page shows it, its place does.
#[test]
fn a_second_key_with_the_same_word_is_told_as_one() {
    let sound = sample(PLAIN[0]);
    let region = Arc::new(Region::from_image(&sound).unwrap());
    let superblock = Superblock::find(&region).unwrap();
    let map = superblock.mapping.open(Arc::clone(&region), superblock.map_geometry());
    map.load(1, &|_| {}).unwrap();
    let keys = map.hashed_keys().unwrap();
    let (_, ino) = file_of(&sound, 20_000);
    let word = map.get(PageId::from_raw(ino as u32, 1));
    let slot = keys.slot_of(PageId::from_raw(ino as u32, 1)).unwrap();
    let free = (u64::from(slot) + 1..superblock.map_slots)
        .map(SlotNo::at)
        .find(|&other| region.load(keys.offsets(other).key) == 0)
        .unwrap();
    region.store(keys.offsets(free).key, keys.key(PageId::from_raw(ino as u32, 1)));
    region.store(keys.offsets(free).word, word.0);
    let image = image_of(&region);
    let told = format!("page 1 of inode {ino} is mapped twice");
    assert!(
        findings(&image).iter().any(|finding| finding.ends_with(&told)),
        "{:?}",
        findings(&image)
    );
    repaired(&image);
}

/// A directory that counts for another quota than the one above gives its files to that. Where the quota is half set or
/// half removed, that is right.
#[test]
fn a_directory_counts_for_the_quota_above() {
    let (mut dirs, mut file) = ([0; 3], 0);
    let image = after(&sample(PLAIN[0]), |engine| {
        let mkdir = |parent, name: &[u8]| engine.mkdir(SYSTEM, parent, name, 0o755).unwrap().ino;
        let dir = mkdir(ROOT_INO, b"counted");
        dirs = [dir, mkdir(ROOT_INO, b"another"), mkdir(dir, b"deep")];
        let node = NewNode {
            kind: FileKind::File,
            mode: 0o644,
            rdev: 0,
        };
        file = engine.mknod(SYSTEM, dirs[2], b"file", &node).unwrap().ino;
        // Names in two trees are no damage.
        engine.link(SYSTEM, file, ROOT_INO, b"other-name").unwrap();
        engine.link(SYSTEM, file, dirs[1], b"third-name").unwrap();
        dirs[..2].iter().for_each(|&dir| limit(engine, dir));
        engine.unlink(SYSTEM, ROOT_INO, b"other-name").unwrap();
    });
    let [_, other, deep] = dirs;
    assert_eq!(findings(&image), [""; 0]);
    let of = |ino: Ino| {
        let region = Region::from_image(&image).unwrap();
        let superblock = Superblock::find(&region).unwrap();
        Inode::load(&region, superblock.inode_offset(Inum::new(ino as u32))).quota()
    };
    let half_done = with_inode(&image, other, |inode| inode.set_quota_limits(QuotaLimits::default()));
    for to in [QuotaId::NONE, of(other)] {
        let changed = with_inode(&image, deep, |inode| inode.set_quota(to));
        let found = findings(&changed);
        let expected = format!("counts for the quota of inode {}, but its directory", to.ino());
        assert!(found.iter().any(|found| found.contains(&expected)), "{found:?}");
        let (mended, report) = repaired(&changed);
        assert!(report.quarantined.is_empty());
        assert_eq!(findings(&mended), [""; 0]);
        let engine = Engine::mount(Region::from_image(&mended).unwrap(), &quiet()).unwrap();
        let quota = Quota::parse(&engine.getxattr(SYSTEM, deep, QUOTA_XATTR).unwrap()).unwrap();
        assert_eq!(quota.root, dirs[0]);
        if to != QuotaId::NONE {
            let changed = with_inode(&half_done, deep, |inode| inode.set_quota(to));
            assert_eq!(findings(&changed), [""; 0]);
        }
    }
}

/// A directory in `lost+found` counts for no quota any more.
#[test]
fn what_is_lost_counts_for_nothing() {
    let mut dir = 0;
    let image = after(&sample(PLAIN[0]), |engine| {
        dir = engine.mkdir(SYSTEM, ROOT_INO, b"counted", 0o755).unwrap().ino;
        engine.mkdir(SYSTEM, dir, b"deep", 0o755).unwrap();
        limit(engine, dir);
    });
    let changed = with_inode(&image, dir, |inode| inode.set_mode_bits(FileKind::Fifo.mode_bits()));
    let (mended, _) = repaired(&changed);
    assert_eq!(findings(&mended), [""; 0]);
}
