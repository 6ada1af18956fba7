//! Holes: seeking, punching, zeroing, reserving, and files far larger than the pool.
//!
//! Engines may treat small holes as data. The requirements of these cases on `SEEK_HOLE` and `SEEK_DATA` hold for whole
//! aligned blocks of files larger than any inline file.

use std::time::{Duration, Instant};

use ferrite_vfs::{FallocateMode, FsError, SYSTEM};

use super::{Case, Harness};
use crate::refused;
use crate::rng::pattern;

pub(super) const CASES: &[Case] = &[
    Case {
        name: "sparse/seek finds every hole and every run of data",
        run: seek,
    },
    Case {
        name: "sparse/seek at and past the end",
        run: seek_end,
    },
    Case {
        name: "sparse/punch",
        run: punch,
    },
    Case {
        name: "sparse/punch gives the space back",
        run: punch_space,
    },
    Case {
        name: "sparse/zero range",
        run: zero_range,
    },
    Case {
        name: "sparse/reserve",
        run: reserve,
    },
    Case {
        name: "sparse/ranges that make no sense",
        run: bad_ranges,
    },
    Case {
        name: "sparse/1 TiB with three blocks",
        run: terabyte,
    },
];

fn block(h: &Harness<'_>) -> u64 {
    u64::from(h.fs().statfs(SYSTEM).expect("statfs").block_bytes).max(4096)
}

fn seek(h: &Harness<'_>) {
    let b = block(h);
    let ino = h.file("f");
    let file = h.open(ino);
    for at in [2, 3, 10, 500] {
        h.write_at(ino, at * b, &pattern(at as u32, b as usize));
    }
    h.truncate(ino, 1000 * b);
    let data = |at: u64| file.seek_data(SYSTEM, at * b).map(|found| found / b);
    let hole = |at: u64| file.seek_hole(SYSTEM, at * b).map(|found| found / b);
    assert_eq!([data(0), data(2), data(3), data(4)], [Ok(2), Ok(2), Ok(3), Ok(10)]);
    assert_eq!(
        [data(11), data(500), data(501)],
        [Ok(500), Ok(500), Err(FsError::NoSuchAddress)]
    );
    assert_eq!(
        [hole(0), hole(2), hole(3), hole(4), hole(10)],
        [Ok(0), Ok(4), Ok(4), Ok(4), Ok(11)]
    );
    assert_eq!([hole(500), hole(999)], [Ok(501), Ok(999)]);
    // From within a block: the offset itself, if that is data or hole.
    assert_eq!(file.seek_data(SYSTEM, 2 * b + 7), Ok(2 * b + 7));
    assert_eq!(file.seek_hole(SYSTEM, 4 * b + 7), Ok(4 * b + 7));
    assert_eq!(file.seek_data(SYSTEM, 4 * b + 7), Ok(10 * b));
    assert_eq!(file.seek_hole(SYSTEM, 2 * b + 7), Ok(4 * b));
    h.truncate(ino, 500 * b + 10);
    assert_eq!(
        file.seek_hole(SYSTEM, 500 * b),
        Ok(500 * b + 10),
        "the end counts as a hole"
    );
}

fn seek_end(h: &Harness<'_>) {
    let ino = h.write("f", b"0123456789");
    let file = h.open(ino);
    assert_eq!((file.seek_data(SYSTEM, 3), file.seek_hole(SYSTEM, 3)), (Ok(3), Ok(10)));
    for offset in [10, 11, 1 << 40, u64::MAX] {
        assert_eq!(
            file.seek_data(SYSTEM, offset),
            Err(FsError::NoSuchAddress),
            "data at {offset}"
        );
        assert_eq!(
            file.seek_hole(SYSTEM, offset),
            Err(FsError::NoSuchAddress),
            "hole at {offset}"
        );
    }
    let empty = h.open(h.file("empty"));
    assert_eq!(empty.seek_data(SYSTEM, 0), Err(FsError::NoSuchAddress));
    assert_eq!(empty.seek_hole(SYSTEM, 0), Err(FsError::NoSuchAddress));
}

/// Zeroes ranges at and off page edges by `mode` and compares with a byte vector; the size stays.
fn zeroes(h: &Harness<'_>, mode: FallocateMode) {
    const SIZE: usize = 40_000;
    for (offset, len) in [
        (0, 1),
        (0, 4096),
        (4096, 4096),
        (5000, 100),
        (4095, 2),
        (100, 20_000),
        (8192, 1 << 40),
        (39_999, 1),
        (0, 40_000),
    ] {
        let mut expected = pattern(3, SIZE);
        let ino = h.write("f", &expected);
        h.open(ino)
            .fallocate(SYSTEM, mode, offset, len)
            .unwrap_or_else(|e| panic!("{mode:?} {offset}+{len}: {e}"));
        let end = (offset + len).min(SIZE as u64) as usize;
        expected[offset as usize..end].fill(0);
        assert!(h.read_at(ino, 0, SIZE + 1) == expected, "{mode:?} {offset}+{len}");
        h.unlink("f");
    }
    let small = h.write("small", b"0123456789");
    h.open(small)
        .fallocate(SYSTEM, mode, 3, 4)
        .expect("a range of a small file");
    assert_eq!(h.read_at(small, 0, 20), b"012\x00\x00\x00\x00789");
}

fn punch(h: &Harness<'_>) {
    zeroes(h, FallocateMode::PunchHole);
    let b = block(h);
    let ino = h.write("f", &pattern(1, 20 * b as usize));
    let file = h.open(ino);
    file.fallocate(SYSTEM, FallocateMode::PunchHole, 5 * b, 3 * b)
        .expect("punch");
    assert_eq!(
        (file.seek_hole(SYSTEM, 0), file.seek_data(SYSTEM, 5 * b)),
        (Ok(5 * b), Ok(8 * b))
    );
    file.fallocate(SYSTEM, FallocateMode::PunchHole, 19 * b, 1 << 41)
        .expect("punch past the end");
    assert_eq!(file.getattr(SYSTEM).map(|attr| attr.size), Ok(20 * b));
    file.fallocate(SYSTEM, FallocateMode::PunchHole, 1 << 42, b)
        .expect("punch behind the end");
    assert_eq!(file.getattr(SYSTEM).map(|attr| attr.size), Ok(20 * b));
}

fn punch_space(h: &Harness<'_>) {
    let free = || {
        h.fs().sync(SYSTEM).expect("sync");
        h.fs().statfs(SYSTEM).expect("statfs").blocks_free
    };
    let ino = h.file("f");
    let start = free();
    let unit = u64::from(h.fs().statfs(SYSTEM).expect("statfs").block_bytes);
    h.write_at(ino, 0, &pattern(1, 64 * unit as usize));
    let used = h.stat("f").blocks * 512;
    assert!(used >= 64 * unit, "64 blocks take {used} bytes");
    assert!(free() + 64 <= start);
    h.open(ino)
        .fallocate(SYSTEM, FallocateMode::PunchHole, 0, 64 * unit)
        .expect("punch");
    assert_eq!(h.stat("f").blocks, 0);
    assert_eq!((free(), h.stat("f").size), (start, 64 * unit));
}

fn zero_range(h: &Harness<'_>) {
    let ino = h.write("f", &pattern(1, 10_000));
    let file = h.open(ino);
    file.fallocate(SYSTEM, FallocateMode::ZeroRange { keep_size: true }, 9000, 50_000)
        .expect("zero past the end");
    assert_eq!(h.stat("f").size, 10_000);
    let mut expected = pattern(1, 9000);
    expected.resize(10_000, 0);
    assert!(h.read_at(ino, 0, 20_000) == expected);
    file.fallocate(SYSTEM, FallocateMode::ZeroRange { keep_size: false }, 9500, 10_000)
        .expect("zero and grow");
    assert_eq!(h.stat("f").size, 19_500);
    expected.resize(19_500, 0);
    assert!(h.read_at(ino, 0, 20_000) == expected);
    let inside = FallocateMode::ZeroRange { keep_size: false };
    for (offset, len) in [(0, 1), (100, 5000), (4096, 4096)] {
        file.fallocate(SYSTEM, inside, offset, len).expect("zero");
        expected[offset as usize..(offset + len) as usize].fill(0);
        assert!(h.read_at(ino, 0, 20_000) == expected, "{offset}+{len}");
    }
    let small = h.write("small", b"0123456789");
    h.open(small)
        .fallocate(SYSTEM, inside, 8, 4)
        .expect("zero and grow a small file");
    assert_eq!(h.read_at(small, 0, 20), b"01234567\0\0\0\0");
}

fn reserve(h: &Harness<'_>) {
    let ino = h.write("f", b"start");
    let file = h.open(ino);
    let keep = FallocateMode::Allocate { keep_size: true };
    let grow = FallocateMode::Allocate { keep_size: false };
    file.fallocate(SYSTEM, keep, 0, 100_000)
        .expect("reserve behind the end");
    assert_eq!((h.stat("f").size, h.read_at(ino, 0, 100)), (5, b"start".to_vec()));
    assert!(h.stat("f").blocks * 512 >= 90_000, "reserved blocks count as used");
    file.fallocate(SYSTEM, grow, 0, 50_000).expect("reserve and grow");
    let mut expected = b"start".to_vec();
    expected.resize(50_000, 0);
    assert!(
        h.stat("f").size == 50_000 && h.read_at(ino, 0, 60_000) == expected,
        "a reserved range reads as zeros"
    );
    h.write_at(ino, 10_000, b"inside");
    expected[10_000..10_006].copy_from_slice(b"inside");
    assert!(h.read_at(ino, 0, 60_000) == expected);
    file.fallocate(SYSTEM, grow, 0, 50_000).expect("reserve what is there");
    assert!(h.read_at(ino, 0, 60_000) == expected, "reserving changes no content");
    h.truncate(ino, 10_003);
    h.truncate(ino, 100_000);
    expected.truncate(10_003);
    expected.resize(100_000, 0);
    assert!(
        h.read_at(ino, 0, 200_000) == expected,
        "a truncation in a reserved range"
    );
}

fn bad_ranges(h: &Harness<'_>) {
    let ino = h.write("f", b"content");
    let file = h.open(ino);
    for mode in [
        FallocateMode::Allocate { keep_size: false },
        FallocateMode::Allocate { keep_size: true },
        FallocateMode::PunchHole,
        FallocateMode::ZeroRange { keep_size: false },
    ] {
        refused!(file.fallocate(SYSTEM, mode, 3, 0), Invalid);
    }
    assert_eq!(h.read_at(ino, 0, 100), b"content");
}

fn terabyte(h: &Harness<'_>) {
    const SIZE: u64 = 1 << 40;
    let limit = Duration::from_secs(1);
    let timed = |what: &str, op: &mut dyn FnMut()| {
        let started = Instant::now();
        op();
        assert!(
            started.elapsed() < limit,
            "{what} of a 1 TiB file took {:?}",
            started.elapsed()
        );
    };
    let b = block(h);
    h.file("warm");
    let before = h.fs().statfs(SYSTEM).expect("statfs").blocks_free;
    let ino = h.file("f");
    let spots = [0, SIZE / 2, SIZE - b];
    for at in spots {
        h.write_at(ino, at, &pattern(1, b as usize));
    }
    assert_eq!(h.stat("f").size, SIZE);
    let file = h.open(ino);
    timed("SEEK_DATA", &mut || assert_eq!(file.seek_data(SYSTEM, b), Ok(SIZE / 2)));
    timed("SEEK_DATA", &mut || {
        assert_eq!(file.seek_data(SYSTEM, SIZE / 2 + b), Ok(SIZE - b))
    });
    timed("SEEK_HOLE", &mut || {
        assert_eq!(file.seek_hole(SYSTEM, SIZE / 2), Ok(SIZE / 2 + b))
    });
    timed("punch", &mut || {
        file.fallocate(SYSTEM, FallocateMode::PunchHole, b, SIZE - 2 * b)
            .expect("punch")
    });
    assert_eq!(file.seek_data(SYSTEM, b), Ok(SIZE - b));
    timed("truncate", &mut || h.truncate(ino, b + 1));
    assert_eq!(h.read_at(ino, 0, 2 * b as usize).len(), b as usize + 1);
    for at in spots {
        h.write_at(ino, at, &pattern(2, b as usize));
    }
    drop(file);
    timed("unlink", &mut || h.unlink("f"));
    h.fs().sync(SYSTEM).expect("sync");
    assert_eq!(h.fs().statfs(SYSTEM).expect("statfs").blocks_free, before);
}
