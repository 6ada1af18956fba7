//! `statfs` is correct, and a full file system stays whole.

use ferrite_vfs::{FsError, SYSTEM, StatFs};

use super::{Case, Harness};
use crate::rng::pattern;

pub(super) const CASES: &[Case] = &[
    Case {
        name: "space/statfs is sound",
        run: sound,
    },
    Case {
        name: "space/removing gives everything back",
        run: given_back,
    },
    Case {
        name: "space/overwriting takes no more",
        run: overwrite,
    },
    Case {
        name: "space/full, emptied, full again",
        run: full,
    },
];

/// Largest file system that is filled, so that the suite stays quick.
const FILL_LIMIT_BYTES: u64 = 300 << 20;

fn settled(h: &Harness<'_>) -> StatFs {
    h.fs().sync(SYSTEM).expect("sync");
    h.fs().statfs(SYSTEM).expect("statfs")
}

fn sound(h: &Harness<'_>) {
    let s = settled(h);
    assert!(s.block_bytes.is_power_of_two() && s.block_bytes >= 512, "{s:?}");
    assert!(
        s.blocks_available > 0 && s.blocks_available <= s.blocks_free && s.blocks_free <= s.blocks,
        "{s:?}"
    );
    assert!(
        s.inodes_free > 0 && s.inodes_free < s.inodes,
        "the root takes an inode: {s:?}"
    );
    let ino = h.file("f");
    assert_eq!(settled(h).inodes_free, s.inodes_free - 1);
    let (unit, before) = (s.block_bytes as usize, settled(h).blocks_free);
    h.write_at(ino, 0, &pattern(1, 100 * unit));
    let after = settled(h);
    assert!(
        before - after.blocks_free >= 100,
        "100 blocks were written, {} taken",
        before - after.blocks_free
    );
    assert!(
        before - after.blocks_free <= 110,
        "100 blocks were written, {} taken",
        before - after.blocks_free
    );
    assert_eq!(
        (after.blocks, after.fsid, after.block_bytes),
        (s.blocks, s.fsid, s.block_bytes)
    );
    assert_eq!(h.stat("f").blocks, 100 * unit as u64 / 512);
}

fn given_back(h: &Harness<'_>) {
    h.file("warm");
    let before = settled(h);
    for round in 0..5 {
        h.mkdir("d");
        for index in 0..200 {
            h.write(
                &format!("d/{index}"),
                &pattern(index + 1, (index as usize * 131) % 9000),
            );
        }
        h.link("d/7", "d/seven");
        h.mkdir("d/sub");
        h.rename("d/8", "d/sub/8");
        h.rename("d/9", "d/10");
        h.truncate(h.ino("d/11"), 1 << 35);
        for index in 0..100 {
            h.write_at(h.ino("d/199"), index * 1000, &pattern(index as u32 + 1, 5000));
        }
        for name in h.names("d/sub") {
            h.unlink(&format!("d/sub/{name}"));
        }
        h.rmdir("d/sub");
        for name in h.names("d") {
            h.unlink(&format!("d/{name}"));
        }
        h.rmdir("d");
        let after = settled(h);
        assert_eq!(after.blocks_free, before.blocks_free, "blocks lost in round {round}");
        assert_eq!(after.inodes_free, before.inodes_free, "inodes lost in round {round}");
    }
}

fn overwrite(h: &Harness<'_>) {
    let ino = h.write("f", &pattern(1, 1 << 20));
    let before = settled(h).blocks_free;
    for round in 0..10 {
        h.write_at(ino, 0, &pattern(round + 2, 1 << 20));
        h.write_at(ino, 5000, &pattern(round + 3, 100_000));
    }
    assert_eq!(settled(h).blocks_free, before);
}

fn full(h: &Harness<'_>) {
    const PART: usize = 1 << 20;
    let start = settled(h);
    let space = start.blocks_available * u64::from(start.block_bytes);
    if space > FILL_LIMIT_BYTES {
        return h.skip(format!("{} MiB would take long to fill", space >> 20));
    }
    h.mkdir("d");
    let mut held = Vec::new();
    for round in 0..2 {
        let fill = |number: u32| pattern(number * 2 + round + 1, PART);
        let mut made = Vec::new();
        for number in 0.. {
            let path = format!("d/{round}.{number}");
            let (dir, name) = h.split(&path);
            let node = ferrite_vfs::NewNode {
                kind: ferrite_vfs::FileKind::File,
                mode: 0o644,
                rdev: 0,
            };
            let ino = match h.fs().mknod(SYSTEM, dir, name, &node) {
                Ok(attr) => attr.ino,
                Err(FsError::NoSpace(_)) => break,
                Err(error) => panic!("mknod on a file system that fills up: {error}"),
            };
            match h.open(ino).write_at(SYSTEM, 0, &fill(number)) {
                Ok(count) => assert_eq!(count, PART, "a write below the atomic bound is whole or nothing"),
                Err(FsError::NoSpace(_)) => {
                    assert_eq!(h.stat(&path).size, 0, "a failed write left something");
                    break;
                }
                Err(error) => panic!("write on a file system that fills up: {error}"),
            }
            made.push((path, fill(number)));
        }
        let now = settled(h);
        assert!(
            now.blocks_available * u64::from(now.block_bytes) < 2 * PART as u64,
            "ENOSPC too early: {now:?}"
        );
        assert!(
            (made.len() * PART) as u64 > space * 8 / 10 || round > 0,
            "only {} MiB fitted",
            made.len()
        );
        held.extend(made);
        for (path, data) in &held {
            assert!(
                h.read_at(h.ino(path), 0, PART + 1) == *data,
                "{path} is damaged on the full file system"
            );
        }
        // A reserve lets overwrites and removes succeed.
        let (path, data) = &mut held[0];
        *data = pattern(77 + round, PART);
        let ino = h.ino(path);
        for (index, part) in data.chunks(64 << 10).enumerate() {
            h.write_at(ino, (index * (64 << 10)) as u64, part);
        }
        let mut number = 0;
        held.retain(|(path, _)| {
            number += 1;
            let keep = number % 2 == 1;
            if !keep {
                h.unlink(path);
            }
            keep
        });
    }
    for (path, data) in &held {
        assert!(h.read_at(h.ino(path), 0, PART + 1) == *data, "{path}");
    }
    for name in h.names("d") {
        h.unlink(&format!("d/{name}"));
    }
    h.rmdir("d");
    let end = settled(h);
    // The root may keep a block for its entries.
    assert!(
        end.blocks_free + 1 >= start.blocks_free && end.inodes_free == start.inodes_free,
        "{start:?} {end:?}"
    );
}
