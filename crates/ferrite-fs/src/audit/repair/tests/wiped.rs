//! Damage of one thing that a repair has to see through: a wiped inode, a mark of a boot that no mount has set,
//! thousands of errors.

use super::*;
use crate::audit::boot::boot_id;
use crate::format::layout::{CONTROL_BOOT, CONTROL_STATE, STATE_IN_USE};
use crate::{FsckOptions, fsck_with, repair_with};
use ferrite_map::Inum;

/// A damaged image, repaired; it has to be sound then. Returns the report as well.
pub(super) fn repaired(image: &[u8]) -> (Vec<u8>, crate::RepairReport) {
    let (report, rewrite) = repair(Region::from_image(image).unwrap(), &mut |_, _, _| {}).unwrap();
    assert!(report.after.findings.is_empty(), "{:?}", report.after.findings);
    let region = Region::from_image(image).unwrap();
    rewrite.apply(&region).unwrap();
    let image = image_of(&region);
    let report_again = fsck(Region::from_image(&image).unwrap(), &mut |_, _, _| {}).unwrap();
    assert!(report_again.findings.is_empty(), "{:?}", report_again.findings);
    (image, report)
}

pub(super) fn tree(image: &[u8]) -> BTreeMap<String, Vec<u8>> {
    let engine = Engine::mount(Region::from_image(image).unwrap(), &quiet()).unwrap();
    walk(&engine).unwrap().0
}

fn inode_range(image: &[u8], ino: Ino) -> Range<usize> {
    let superblock = Superblock::find(&Region::from_image(image).unwrap()).unwrap();
    let at = superblock.inode_offset(Inum::new(ino as u32)) as usize;
    at..at + INODE_BYTES as usize
}

/// The inodes that paths lead to.
fn numbers<'p>(image: &[u8], paths: impl IntoIterator<Item = &'p str>) -> Vec<Ino> {
    let engine = Engine::mount(Region::from_image(image).unwrap(), &quiet()).unwrap();
    let number = |path: &str| {
        let names = path.split('/').skip(1);
        names.fold(ROOT_INO, |dir, name| {
            engine.lookup(SYSTEM, dir, name.as_bytes()).unwrap().ino
        })
    };
    paths.into_iter().map(number).collect()
}

pub(super) fn number(image: &[u8], path: &str) -> Ino {
    numbers(image, [path])[0]
}

/// Zeros, or the content of another medium.
fn wipe(image: &mut [u8], range: Range<usize>, how: u8) {
    match how {
        0 => image[range].fill(0),
        _ => StdRng::seed_from_u64(1).fill_bytes(&mut image[range]),
    }
}

#[test]
fn a_wiped_directory_keeps_all_that_its_blocks_name() {
    for variant in PLAIN.into_iter().chain(SUMMED) {
        let sound = sample(variant);
        let before = tree(&sound);
        for path in ["", "/dir0", "/dir0/dir2"] {
            for how in [0, 1] {
                let mut image = sound.clone();
                let ino = number(&sound, path);
                wipe(&mut image, inode_range(&sound, ino), how);
                let (image, report) = repaired(&image);
                let after = tree(&image);
                assert!(
                    after == before,
                    "{variant:?}, {path:?}, {how}: {:#?}\n{:?}",
                    report.mended,
                    after.keys()
                );
            }
        }
    }
}

#[test]
fn a_wiped_file_keeps_its_pages() {
    for variant in PLAIN.into_iter().chain(SUMMED) {
        let sound = sample(variant);
        let before = tree(&sound);
        let (path, content) = before.iter().find(|(_, content)| content.len() == 20_000).unwrap();
        let inos = numbers(&sound, before.keys().map(String::as_str));
        let ino = number(&sound, path);
        for how in [0, 1] {
            let mut image = sound.clone();
            wipe(&mut image, inode_range(&sound, ino), how);
            let (image, report) = repaired(&image);
            let name = format!("damaged-{ino}");
            assert!(report.quarantined.iter().eq([&name]), "{variant:?}, {how}");
            let mut after = tree(&image);
            let found = after.remove(&format!("/lost+found/{name}")).unwrap();
            assert!(found.starts_with(content), "{variant:?}, {how}: {} bytes", found.len());
            let others = before.iter().zip(&inos).filter(|&(_, &other)| other != ino);
            assert!(
                others.map(|(file, _)| file).eq(after.iter()),
                "{variant:?}, {how}: another file is harmed"
            );
        }
    }
}

/// The name table is wiped as well: then only the directory's block shows that there was a file.
#[test]
fn a_wiped_file_is_known_by_its_entry_alone() {
    let sound = sample(PLAIN[0]);
    let superblock = Superblock::find(&Region::from_image(&sound).unwrap()).unwrap();
    let before = tree(&sound);
    let (path, content) = before.iter().find(|(_, content)| content.len() == 5000).unwrap();
    let ino = number(&sound, path);
    let mut image = sound.clone();
    image[inode_range(&sound, ino)].fill(0);
    image[superblock.name_offset as usize..superblock.map_offset as usize].fill(0);
    let found = tree(&repaired(&image).0)
        .remove(&format!("/lost+found/damaged-{ino}"))
        .unwrap();
    assert!(found.starts_with(content));
}

/// The word that names the boot that uses the pool: a damaged one, and one that a power loss has left.
#[test]
fn a_mark_of_another_boot_is_told_and_cleared() {
    let set = |image: &mut [u8], offset: u64, value: u64| {
        image[offset as usize..offset as usize + 8].copy_from_slice(&value.to_le_bytes());
    };
    let sound = sample(PLAIN[0]);
    for (in_use, mark, told) in [
        (false, 0x1234, Some("marked clean")),
        (false, boot_id(), Some("marked clean")),
        (true, 0x1234, Some("the machine restarted")),
        // A killed process.
        (true, boot_id(), None),
    ] {
        let mut image = sound.clone();
        set(&mut image, CONTROL_BOOT, mark);
        if in_use {
            set(&mut image, CONTROL_STATE, STATE_IN_USE);
        }
        let report = fsck(Region::from_image(&image).unwrap(), &mut |_, _, _| {}).unwrap();
        let found: Vec<_> = report.findings.iter().map(|finding| finding.what.as_str()).collect();
        assert_eq!(found.len(), usize::from(told.is_some()), "{found:?}");
        let refused = Engine::mount(Region::from_image(&image).unwrap(), &quiet());
        assert_eq!(refused.is_err(), mark != boot_id());
        let (image, report) = repaired(&image);
        if let Some(told) = told {
            assert!(found[0].contains(told), "{found:?}");
            // Operations may be missing after a power loss: a repair must not accept that unasked.
            assert_eq!(report.mended.len(), 1);
            assert_eq!(report.mended[0].loss, in_use);
        } else {
            assert!(report.mended.is_empty());
        }
        assert!(tree(&image) == tree(&sound));
    }
}

#[test]
fn superblock_findings_say_what_is_wrong_and_give_no_advice() {
    let sound = sample(PLAIN[0]);
    let second = sound.len() - BLOCK_BYTES as usize;
    let findings = |image: &[u8]| {
        let report = fsck(Region::from_image(image).unwrap(), &mut |_, _, _| {});
        report.map(|report| {
            report
                .findings
                .iter()
                .map(|finding| finding.what.clone())
                .collect::<Vec<_>>()
        })
    };
    for (at, name) in [(0, "first"), (second, "second")] {
        for (within, wrong) in [(0, "it has no Ferrite signature"), (100, "wrong superblock checksum")] {
            let mut image = sound.clone();
            image[at + within] ^= 1;
            assert_eq!(findings(&image).unwrap(), [format!("the {name} copy: {wrong}")]);
            let engine = Engine::mount(Region::from_image(&image).unwrap(), &quiet()).unwrap();
            let told = [format!("superblock: the {name} copy: {wrong}")];
            assert_eq!(engine.info().damage, told);
            assert_eq!(engine.scrub(None).unwrap().findings, told);
            assert!(!engine.is_read_only());
            drop(engine);
            assert!(tree(&repaired(&image).0) == tree(&sound));
        }
    }
    let mut image = sound.clone();
    image[0] ^= 1;
    image[second + 100] ^= 1;
    let error = findings(&image).unwrap_err().to_string();
    assert!(
        error.contains("both copies") && error.contains("restore the pool from a copy"),
        "{error}"
    );
    image[second] ^= 1;
    let error = findings(&image).unwrap_err().to_string();
    assert!(error.starts_with("not a Ferrite pool"), "{error}");
}

#[test]
fn more_findings_than_are_kept_are_told_as_more() {
    let region = Region::anonymous(POOL_BYTES).unwrap();
    let options = MkfsOptions::default().inodes(1500);
    mkfs(&region, &options).unwrap();
    let superblock = Superblock::find(&region).unwrap();
    let engine = Engine::mount(region, &quiet()).unwrap();
    let node = NewNode {
        kind: FileKind::File,
        mode: 0o644,
        rdev: 0,
    };
    for n in 0..1200 {
        let name = format!("file-{n}");
        engine.mknod(SYSTEM, ROOT_INO, name.as_bytes(), &node).unwrap();
    }
    let mut image = image_of(&engine.core().region);
    image[superblock.name_offset as usize..superblock.map_offset as usize].fill(0);
    // The journal would bring some of it back.
    let journal = superblock.journal_offset as usize..superblock.inode_offset as usize;
    let (report, _) = repair(Region::from_image(&image).unwrap(), &mut |_, _, _| {}).unwrap();
    assert!(!report.after.more);
    image[journal].fill(0);
    let report = fsck(Region::from_image(&image).unwrap(), &mut |_, _, _| {}).unwrap();
    assert_eq!((report.findings.len(), report.more), (1000, true));
    let engine = Engine::mount(Region::from_image(&image).unwrap(), &quiet()).unwrap();
    let report = engine.scrub(None).unwrap();
    assert_eq!((report.findings.len(), report.more), (1000, true));
}

/// The checksums are gone, and the data is whole: it cannot be read until a repair that checks data has quarantined it.
#[test]
fn data_whose_checksums_were_wiped_is_put_aside_and_can_be_read() {
    let data = FsckOptions::default().data(true);
    for variant in SUMMED {
        let sound = sample(variant);
        let superblock = Superblock::find(&Region::from_image(&sound).unwrap()).unwrap();
        let before = tree(&sound);
        let check = |image: &[u8], options| {
            let report = fsck_with(Region::from_image(image).unwrap(), options, &mut |_, _, _| {});
            report.unwrap().findings
        };
        assert!(check(&sound, data).is_empty());
        let mut image = sound.clone();
        let sums = superblock.sum_offset as usize..(superblock.first_block * BLOCK_BYTES) as usize;
        wipe(&mut image, sums, 0);
        assert!(
            check(&image, FsckOptions::default()).is_empty(),
            "no data is read unasked"
        );
        let found = check(&image, data);
        let of_data = |finding: &crate::Finding| finding.phase == "data" && finding.what.contains(", bytes ");
        assert!(found.len() > 100 && found.iter().all(of_data), "{found:?}");
        let (report, rewrite) = repair_with(Region::from_image(&image).unwrap(), data, &mut |_, _, _| {}).unwrap();
        assert!(report.after.findings.is_empty(), "{:?}", report.after.findings);
        assert!(report.mended.iter().any(|mended| mended.phase == "data" && mended.loss));
        let region = Region::from_image(&image).unwrap();
        rewrite.apply(&region).unwrap();
        let image = image_of(&region);
        assert!(check(&image, data).is_empty());
        let (again, _) = repair_with(Region::from_image(&image).unwrap(), data, &mut |_, _, _| {}).unwrap();
        assert!(again.mended.is_empty(), "{:?}", again.mended);
        let after = tree(&image);
        let inos = numbers(&sound, before.keys().map(String::as_str));
        for ((path, content), ino) in before.iter().zip(inos) {
            let aside = format!("/lost+found/damaged-{ino}");
            // An inode with inline content has no page.
            let path = if content.len() > 128 { &aside } else { path };
            assert!(after.get(path) == Some(content), "{variant:?}: {path}");
        }
        let engine = Engine::mount(Region::from_image(&image).unwrap(), &quiet()).unwrap();
        assert!(
            engine.lookup(SYSTEM, ROOT_INO, b"long").is_err(),
            "a link may lead elsewhere now"
        );
        let link = number(&sound, "/long");
        let aside = engine
            .readlink(SYSTEM, number(&image, &format!("/lost+found/damaged-{link}")))
            .unwrap();
        assert_eq!(aside, [b'l'; 2000]);
    }
}
