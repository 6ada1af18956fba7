//! Pools of earlier releases: each image in `golden/` must mount, be sound and match its list, for ever.
//!
//! Protects the format on the medium (docs/format.md). Never change or remove an image or its list: a change that needs
//! this to make the test pass breaks the pools of users. New ones come with
//! `cargo test -p ferrite-fs --test it golden::make_images -- --ignored`, which adds a set of them; `FERRITE_SEED`
//! chooses the seed, and the program `zstd` must be there. A set is due when the format gains something that no image
//! has yet.
//!
//! `NAME.pool.zst` is a pool, `NAME.txt` its content. Those called `dirty` were not unmounted: they have records to
//! replay, and an orphan.

mod content;
mod list;

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;

use crate::common::{check, image_of, mount};
use ferrite_fs::{Engine, Mapping, MkfsOptions, MountOptions, fsck, identify, is_clean, layout, mkfs};
use ferrite_pm::{Choice, Recorder, Region};
use ferrite_testkit::two_at_a_time;
use ruzstd::decoding::StreamingDecoder;

/// Largest image; a clone of the repository has all of them for ever.
const IMAGE_BYTES_MAX: u64 = 40 << 10;

fn folder() -> PathBuf {
    PathBuf::from("tests/golden")
}

/// The names of all images.
fn images() -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder())
        .unwrap()
        .filter_map(|entry| {
            let name = entry.unwrap().file_name().into_string().unwrap();
            name.strip_suffix(".pool.zst").map(str::to_string)
        })
        .collect();
    names.sort();
    names
}

fn unpack(name: &str) -> Vec<u8> {
    let packed = fs::File::open(folder().join(format!("{name}.pool.zst"))).unwrap();
    let mut image = Vec::new();
    StreamingDecoder::new(packed).unwrap().read_to_end(&mut image).unwrap();
    image
}

fn list_of(name: &str) -> String {
    fs::read_to_string(folder().join(format!("{name}.txt"))).unwrap()
}

/// The first lines of a list, about the pool as a whole.
fn header(image: &[u8]) -> String {
    let region = Region::from_image(image).unwrap();
    let superblock = identify(&region).unwrap();
    let report = fsck(Region::from_image(image).unwrap(), &mut |_, _, _| {}).unwrap();
    assert!(report.findings.is_empty(), "fsck: {:#?}", report.findings);
    let engine = mount(image);
    let info = engine.info();
    format!(
        "pool {} of {} bytes, {}, features {}/{}/{}, {}\n\
         entries {} orphans {} replayed {}\n\
         pages {} logged {}\n",
        info.uuid,
        superblock.size_bytes,
        superblock.mapping.name(),
        superblock.features_compat,
        superblock.features_ro_compat,
        superblock.features_incompat,
        if is_clean(&region) { "clean" } else { "dirty" },
        report.entries,
        report.orphans,
        report.replayed_records,
        info.pages,
        info.logged_pages,
    )
}

/// Compares line by line, so that a failure shows the few that differ.
fn compare(name: &str, found: &str, expected: &str) {
    let lines = |text: &str| -> BTreeSet<String> { text.lines().map(str::to_string).collect() };
    let (found, expected) = (lines(found), lines(expected));
    let missing: Vec<&String> = expected.difference(&found).collect();
    let strange: Vec<&String> = found.difference(&expected).collect();
    assert!(
        missing.is_empty() && strange.is_empty(),
        "{name}\n  should have: {missing:#?}\n  has instead: {strange:#?}"
    );
}

/// The pool after it was unmounted.
fn unmounted(image: &[u8], work: impl FnOnce(&Engine)) -> Vec<u8> {
    let recorder = Recorder::new(image.to_vec());
    let mut region = Region::from_image(image).unwrap();
    region.attach_recorder(Arc::clone(&recorder));
    let engine = Engine::mount(region, &quiet()).unwrap();
    work(&engine);
    engine.unmount().unwrap();
    durable(&recorder)
}

/// The durable image at the end of a recording.
fn durable(recorder: &Recorder) -> Vec<u8> {
    let log = recorder.log();
    let mut cursor = log.cursor();
    while cursor.advance() {}
    cursor.with_image(Choice::None, |image| image.to_vec())
}

fn quiet() -> MountOptions {
    MountOptions::default().cleaner(false)
}

#[test]
fn pools_of_earlier_days_hold_what_they_held() {
    let names = images();
    two_at_a_time(&names, |name| {
        let image = unpack(name);
        let expected = list_of(name);
        compare(name, &(header(&image) + &list::list(&mount(&image))), &expected);
    });
}

#[test]
fn pools_of_earlier_days_can_be_changed() {
    two_at_a_time(&images(), |name| {
        let image = unpack(name);
        let mut changed = String::new();
        let later = unmounted(&image, |engine| {
            content::change(engine);
            changed = list::list(engine);
        });
        check(&later);
        compare(name, &list::list(&mount(&later)), &changed);
        // Untouched files are unchanged.
        let untouched = |text: &str| -> String {
            let is_kept = |line: &&str| line.starts_with(content::UNTOUCHED);
            text.lines().filter(is_kept).collect::<Vec<_>>().join("\n")
        };
        let before = list_of(name);
        assert!(
            untouched(&before).lines().count() > 10,
            "{name}: nothing was left alone"
        );
        compare(name, &untouched(&changed), &untouched(&before));
    });
}

/// All mappings, data with checksums, and a journal that must be replayed.
#[test]
fn the_images_have_what_the_format_has() {
    let names = images();
    let has = |what: &dyn Fn(&str) -> bool| names.iter().any(|name| what(&list_of(name)));
    for mapping in Mapping::ALL {
        let name = mapping.name();
        assert!(has(&|list| list.contains(&format!(", {name}, "))), "no image of {name}");
    }
    let with_checksums = |image: &[u8]| {
        let superblock = identify(&Region::from_image(image).unwrap()).unwrap();
        superblock.features_ro_compat & layout::FEATURE_DATA_CHECKSUM != 0
    };
    assert!(
        names.iter().any(|name| with_checksums(&unpack(name))),
        "none with checksums"
    );
    for name in &names {
        let list = list_of(name);
        assert_eq!(name.contains("dirty"), list.contains(", dirty\n"), "{name}");
        let bytes = fs::metadata(folder().join(format!("{name}.pool.zst"))).unwrap().len();
        assert!(bytes <= IMAGE_BYTES_MAX, "{name}: {bytes} bytes");
        if name.contains("dirty") {
            assert!(!list.contains("orphans 0 "), "{name}: no orphan");
            // Without its journal it is another pool: its list depends on the replay.
            let mut image = unpack(name);
            let superblock = identify(&Region::from_image(&image).unwrap()).unwrap();
            let rings = superblock.ring_bytes as usize * superblock.rings as usize;
            image[superblock.journal_offset as usize..][..rings].fill(0);
            let region = Region::from_image(&image).unwrap();
            let same = fsck(region, &mut |_, _, _| {}).is_ok_and(|report| report.findings.is_empty())
                && Engine::mount(Region::from_image(&image).unwrap(), &quiet())
                    .is_ok_and(|engine| list.ends_with(&list::list(&engine)));
            assert!(!same, "{name}: nothing in it waits for replay");
        }
    }
}

/// Adds a set of images; see the head.
#[test]
#[ignore = "adds images of today's format to the repository"]
fn make_images() {
    let seed = std::env::var("FERRITE_SEED").map_or(1, |seed| seed.parse().expect("FERRITE_SEED is a number"));
    let kinds = Mapping::ALL.iter().flat_map(|&mapping| {
        let is_default = mapping == Mapping::default();
        let variants: &[&str] = if is_default {
            &["", "-checksums", "-dirty"]
        } else {
            &[""]
        };
        variants.iter().map(move |&variant| (mapping, variant))
    });
    for (mapping, variant) in kinds.chain([(Mapping::Leaf, "-dirty")]) {
        let kind = format!("{}{variant}", mapping.name());
        let number = (1..).find(|number| !folder().join(format!("{kind}-{number}.txt")).exists());
        let name = format!("{kind}-{}", number.expect("numbers do not end"));
        let options = MkfsOptions::default()
            .mapping(mapping)
            .seed(seed)
            .inodes(511)
            .names(2048)
            .rings(2)
            .data_checksum(variant == "-checksums");
        let region = Region::anonymous(layout::MIN_POOL_BYTES).unwrap();
        mkfs(&region, &options).unwrap();
        let mut image = unmounted(&image_of(&region), |engine| content::fill(engine, seed));
        if variant == "-dirty" {
            let recorder = Recorder::new(image.clone());
            let mut region = Region::from_image(&image).unwrap();
            region.attach_recorder(Arc::clone(&recorder));
            let engine = Engine::mount(region, &quiet()).unwrap();
            let _open = content::last_changes(&engine);
            image = durable(&recorder);
        }
        let list = header(&image) + &list::list(&mount(&image));
        let packed = fs::File::create_new(folder().join(format!("{name}.pool.zst"))).unwrap();
        let mut zstd = Command::new("zstd")
            .args(["-19", "--check", "-c"])
            .stdin(Stdio::piped())
            .stdout(packed)
            .spawn()
            .expect("the program zstd is installed");
        zstd.stdin.take().unwrap().write_all(&image).unwrap();
        assert!(zstd.wait().unwrap().success(), "zstd failed");
        fs::write(folder().join(format!("{name}.txt")), list).unwrap();
        eprintln!("{name} made");
    }
}
