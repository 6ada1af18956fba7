//! Local and remote changes of a bound file, in any order: no byte is lost. `FERRITE_SEED` replays.

use crate::common::bound::{fallocate, options, pool, read, reopened, seed, soak, truncate};
use crate::common::remote::Remote;
use crate::common::{check, make, mount, pattern, write};
use ferrite_fs::{Engine, Mapping};
use ferrite_vfs::regions::{Access, Regions};
use ferrite_vfs::{FallocateMode, FileSystem, FsError, Ino, ROOT_INO, RenameMode, SYSTEM, SetAttr};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// A file whose content the test knows.
struct Known {
    ino: Ino,
    name: String,
    content: Vec<u8>,
}

impl Known {
    fn put(&mut self, offset: u64, data: &[u8]) {
        let end = offset as usize + data.len();
        if self.content.len() < end {
            self.content.resize(end, 0);
        }
        self.content[offset as usize..end].copy_from_slice(data);
    }

    /// Bytes of it, from a random place.
    fn span(&self, random: &mut StdRng, most: usize) -> Option<(u64, usize)> {
        let offset = random.random_range(0..self.content.len().max(1));
        let len = random.random_range(0..=most.min(self.content.len().saturating_sub(offset)));
        (len > 0).then_some((offset as u64, len))
    }
}

const LONGEST: usize = 150_000;

/// One random local operation.
fn local(engine: &Engine, file: &mut Known, random: &mut StdRng) -> String {
    let offset = random.random_range(0..LONGEST as u64);
    let len = match random.random_range(0..3) {
        0 => random.random_range(1..100),
        1 => random.random_range(1..9000),
        _ => random.random_range(1..60_000),
    };
    let zeros = |file: &mut Known, grows: bool| {
        let end = match grows {
            true => offset as usize + len,
            false => (offset as usize + len).min(file.content.len()),
        };
        if (offset as usize) < end {
            file.put(offset, &vec![0; end - offset as usize]);
        }
    };
    match random.random_range(0..9) {
        0..3 => {
            let data = pattern(len, random.random());
            write(engine, file.ino, offset, &data);
            file.put(offset, &data);
            format!("local write of {len} at {offset}")
        }
        3 => {
            truncate(engine, file.ino, offset);
            file.content.resize(offset as usize, 0);
            format!("truncation to {offset}")
        }
        4 => {
            fallocate(engine, file.ino, FallocateMode::PunchHole, offset, len as u64);
            zeros(file, false);
            format!("hole of {len} at {offset}")
        }
        5 => {
            let keep_size = random.random();
            fallocate(
                engine,
                file.ino,
                FallocateMode::ZeroRange { keep_size },
                offset,
                len as u64,
            );
            zeros(file, !keep_size);
            format!("zeros of {len} at {offset}, {keep_size}")
        }
        6 => {
            let keep_size = random.random();
            let end = (offset as usize + len).max(file.content.len());
            fallocate(
                engine,
                file.ino,
                FallocateMode::Allocate { keep_size },
                offset,
                len as u64,
            );
            if !keep_size {
                file.content.resize(end, 0);
            }
            format!("space for {len} at {offset}, {keep_size}")
        }
        7 => {
            let name = format!("name-{}", random.random_range(0..4));
            let (from, to) = (file.name.as_bytes(), name.as_bytes());
            engine
                .rename(SYSTEM, ROOT_INO, from, ROOT_INO, to, RenameMode::Replace)
                .unwrap();
            file.name = name;
            "rename".into()
        }
        _ => {
            let mode = random.random_range(0..0o777);
            let set = SetAttr {
                mode: Some(mode),
                ..SetAttr::default()
            };
            engine.setattr(SYSTEM, file.ino, &set).unwrap();
            format!("mode {mode:o}")
        }
    }
}

/// One random remote operation.
fn elsewhere(remote: &Remote, file: &mut Known, random: &mut StdRng) -> String {
    let span = file.span(random, 20_000);
    match random.random_range(0..8) {
        0..3 => {
            let Some((offset, len)) = span else {
                return "nothing".into();
            };
            let data = pattern(len, random.random());
            remote.write(offset, &data).unwrap();
            file.put(offset, &data);
            format!("remote write of {len} at {offset}")
        }
        3 => {
            let Some((offset, len)) = span else {
                return "nothing".into();
            };
            let found = remote.read(offset, len).unwrap();
            assert_eq!(found, file.content[offset as usize..][..len], "{len} bytes at {offset}");
            format!("remote read of {len} at {offset}")
        }
        4 => {
            let sizes = [0, 1, 7, 500, 4096, 9000];
            let parts: Vec<Vec<u8>> = (0..random.random_range(1..4))
                .map(|_| pattern(sizes[random.random_range(0..sizes.len())], random.random()))
                .collect();
            let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            let at = remote.region.append(&parts).unwrap();
            assert_eq!(at, file.content.len() as u64);
            file.content.extend(parts.concat());
            format!("append of {} at {at}", parts.concat().len())
        }
        5 => {
            let len = random.random_range(0..9000);
            let at = remote.region.reserve(len).unwrap();
            assert_eq!(at, file.content.len() as u64);
            file.content.resize((at + len) as usize, 0);
            format!("reservation of {len} at {at}")
        }
        6 => {
            let Some((offset, len)) = span else {
                return "nothing".into();
            };
            let data = pattern(len, random.random());
            remote.region.write_atomic(offset, &data).unwrap();
            file.put(offset, &data);
            format!("atomic write of {len} at {offset}")
        }
        _ => {
            let offset = random.random_range(0..LONGEST as u64) / 8 * 8;
            if offset as usize + 8 > file.content.len() {
                return "nothing".into();
            }
            let before = u64::from_le_bytes(file.content[offset as usize..][..8].try_into().unwrap());
            let add = random.random();
            assert_eq!(remote.fetch_add(offset, add).unwrap(), before);
            let between = before.wrapping_add(add);
            assert_eq!(remote.compare_swap(offset, between ^ 1, 7).unwrap(), between);
            assert_eq!(remote.compare_swap(offset, between, !between).unwrap(), between);
            file.put(offset, &(!between).to_le_bytes());
            format!("words at {offset}")
        }
    }
}

/// Local and remote operations in random order; the file is bound, unbound, finalized, and survives crashes.
fn in_any_order(mapping: Mapping, data_checksum: bool, seed: u64, steps: usize) {
    let mut random = StdRng::seed_from_u64(seed);
    let (mut engine, mut recorder) = pool(&options(mapping, data_checksum));
    let mut file = Known {
        ino: make(&engine, ROOT_INO, "name-0"),
        name: "name-0".into(),
        content: Vec::new(),
    };
    let mut remote: Option<Remote> = None;
    for step in 0..steps {
        let chance = random.random_range(0..40);
        let at = match (chance, &remote) {
            (0, Some(bound)) => {
                bound.region.unbind().unwrap();
                assert!(bound.adapter.is_unbound());
                bound.adapter.check("unbind");
                assert_eq!(bound.region.append(&[b"x"]), Err(FsError::Stale));
                remote = None;
                "unbind".into()
            }
            (1, _) => {
                engine.freeze().unwrap();
                if let Some(remote) = &remote {
                    assert_eq!(remote.adapter.known(), 0, "a frozen pool is out of reach");
                    assert_eq!(remote.region.fault(0, 1, Access::Write), Err(FsError::Busy));
                    assert_eq!(remote.region.fault(0, 1, Access::Read), Err(FsError::Busy));
                }
                engine.thaw().unwrap();
                "freeze".into()
            }
            (2, _) => {
                // This does not test a crash's effect on unfenced bytes: the file has none.
                let image = recorder.log().final_image();
                drop(engine);
                if let Some(remote) = remote.take() {
                    assert!(remote.adapter.is_unbound());
                    remote.adapter.check("the last handle");
                }
                check(&image);
                (engine, recorder) = reopened(&image);
                if random.random() {
                    engine.finalize(SYSTEM, file.ino).unwrap();
                    assert!(engine.bound().is_empty());
                }
                "crash".into()
            }
            (_, None) if chance < 20 => {
                remote = Some(Remote::bind(&engine, file.ino));
                "bind".into()
            }
            (_, Some(remote)) if chance < 22 => elsewhere(remote, &mut file, &mut random),
            _ => local(&engine, &mut file, &mut random),
        };
        let at = format!("{mapping:?}, checksums {data_checksum}, seed {seed}, step {step}: {at}");
        if file.content.len() > 2 * LONGEST {
            truncate(&engine, file.ino, 5000);
            file.content.truncate(5000);
        }
        assert!(
            read(&engine, file.ino) == file.content,
            "{at}: a local reader finds something else"
        );
        if let Some(remote) = &remote {
            assert_eq!(remote.adapter.size(), file.content.len() as u64, "{at}");
            assert!(
                remote.read_all() == file.content,
                "{at}: somebody elsewhere finds something else"
            );
            remote.adapter.check(&at);
        }
    }
    engine.unmount().unwrap();
    if let Some(remote) = remote {
        assert!(remote.adapter.is_unbound());
        remote.adapter.check("unmount");
    }
    let image = recorder.log().final_image();
    check(&image);
    let engine = mount(&image);
    assert!(engine.bound().is_empty(), "an unmount finalizes");
    assert!(read(&engine, file.ino) == file.content);
    let scrubbed = engine.scrub(None).unwrap();
    assert!(scrubbed.findings.is_empty(), "{:?}", scrubbed.findings);
}

#[test]
fn nothing_is_lost_in_any_order() {
    let seed = seed();
    let rounds = if soak() { 50 } else { 2 };
    for round in 0..rounds {
        for &mapping in Mapping::ALL {
            for data_checksum in [false, true] {
                in_any_order(mapping, data_checksum, seed.wrapping_add(round), 150);
            }
        }
    }
}
