//! Reads, writes, appends and truncates against a plain byte vector.

use ferrite_vfs::{Cred, Ctx, FallocateMode, FsError, Position, SYSTEM, SetAttr, WriteMode, Written};

use super::{Case, Harness};
use crate::refused;
use crate::rng::{Rng, pattern};

pub(super) const CASES: &[Case] = &[
    Case {
        name: "data/writes at every page edge",
        run: page_edges,
    },
    Case {
        name: "data/a file that grows byte by byte",
        run: growing,
    },
    Case {
        name: "data/random writes and truncates",
        run: random,
    },
    Case {
        name: "data/truncate shortens, and a later extension shows zeros",
        run: truncate,
    },
    Case {
        name: "data/writes of many MiB",
        run: large,
    },
    Case {
        name: "data/reads at and past the end",
        run: past_end,
    },
    Case {
        name: "data/appends",
        run: appends,
    },
    Case {
        name: "data/two handles see one file",
        run: two_handles,
    },
    Case {
        name: "data/the largest size",
        run: largest,
    },
    Case {
        name: "data/setuid and setgid cleared by a write",
        run: kill_priv,
    },
];

const PAGE: usize = 4096;

fn page_edges(h: &Harness<'_>) {
    let ino = h.file("f");
    let mut fill = 0;
    for base in [0, PAGE, 3 * PAGE] {
        for shift in [-2i64, -1, 0, 1, 2, 7, 8, 9, 2048] {
            for len in [1, 2, 3, 8, 63, 64, 65, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE + 1] {
                let Some(offset) = (base as u64).checked_add_signed(shift) else {
                    continue;
                };
                fill += 1;
                let mut expected = h.read_at(ino, 0, 8 * PAGE);
                let data = pattern(fill, len);
                let end = offset as usize + len;
                expected.resize(expected.len().max(end), 0);
                expected[offset as usize..end].copy_from_slice(&data);
                h.write_at(ino, offset, &data);
                assert!(h.read_at(ino, 0, 8 * PAGE) == expected, "{len} bytes at {offset}");
                assert_eq!(h.stat("f").size, expected.len() as u64);
            }
        }
    }
}

fn growing(h: &Harness<'_>) {
    let (ino, mut expected) = (h.file("f"), Vec::new());
    let file = h.open(ino);
    for index in 0..5000u32 {
        let byte = (index * 7 + 1) as u8;
        assert_eq!(file.append(SYSTEM, &[byte]), Ok(Written::new(u64::from(index), 1)));
        expected.push(byte);
        if index % 97 == 0 || (200..260).contains(&index) {
            assert!(h.read_at(ino, 0, 6000) == expected, "after {} bytes", index + 1);
        }
    }
    for size in (0..5000).rev().step_by(83) {
        h.truncate(ino, size);
        expected.truncate(size as usize);
        assert!(h.read_at(ino, 0, 6000) == expected, "truncated to {size} bytes");
    }
}

fn random(h: &Harness<'_>) {
    let seed = crate::seed_from_env().unwrap_or(0xda7a);
    let (mut rng, mut expected) = (Rng::new(seed), Vec::new());
    let ino = h.file("f");
    let file = h.open(ino);
    for step in 0..600 {
        let offset = rng.below(12 * PAGE as u64) as usize;
        if rng.chance(15) {
            h.truncate(ino, offset as u64);
            expected.resize(offset, 0);
        } else {
            let data = pattern(step + 1, rng.below(4 * PAGE as u64) as usize + 1);
            assert_eq!(file.write_at(SYSTEM, offset as u64, &data), Ok(data.len()));
            expected.resize(expected.len().max(offset + data.len()), 0);
            expected[offset..offset + data.len()].copy_from_slice(&data);
        }
        let from = rng.below(expected.len() as u64 + 10) as usize;
        let got = h.read_at(ino, from as u64, 3 * PAGE);
        let want = &expected[from.min(expected.len())..(from + 3 * PAGE).min(expected.len())];
        assert!(got == want, "step {step}, read at {from} (FERRITE_SEED={seed})");
    }
    assert!(h.read_at(ino, 0, 20 * PAGE) == expected, "FERRITE_SEED={seed}");
}

fn truncate(h: &Harness<'_>) {
    for cut in [0, 1, 100, 4000, 4095, 4096, 4097, 8191, 8192, 10_000] {
        let data = pattern(9, 12_000);
        let ino = h.write("f", &data);
        h.truncate(ino, cut);
        assert_eq!((h.stat("f").size, h.read_at(ino, 0, 20_000).len()), (cut, cut as usize));
        h.truncate(ino, 20_000);
        let mut expected = data[..cut as usize].to_vec();
        expected.resize(20_000, 0);
        assert!(
            h.read_at(ino, 0, 30_000) == expected,
            "truncated at {cut}, old bytes came back"
        );
        // By a write past the end, instead of a truncate.
        h.truncate(ino, cut);
        h.write_at(ino, 19_999, b"z");
        expected[19_999] = b'z';
        assert!(
            h.read_at(ino, 0, 30_000) == expected,
            "truncated at {cut}, then a write past the end"
        );
        h.unlink("f");
    }
}

fn large(h: &Harness<'_>) {
    let space = h.fs().statfs(SYSTEM).expect("statfs");
    for (len, offset) in [(2 << 20, 0), (2 << 20, 1234), ((2 << 20) - 1, 4096), (5 << 20, 77)] {
        if space.blocks_available * u64::from(space.block_bytes) < 3 * len as u64 {
            return h.skip("no space for 15 MiB");
        }
        let data = pattern(len as u32, len);
        let ino = h.write("f", b"start");
        let file = h.open(ino);
        let mut done = file.write_at(SYSTEM, offset, &data).expect("write");
        assert!(
            done == len || (len > 2 << 20 && done > 0),
            "a write of {len} bytes gave {done}"
        );
        while done < len {
            done += file
                .write_at(SYSTEM, offset + done as u64, &data[done..])
                .expect("write on");
        }
        assert!(h.read_at(ino, offset, len + 10) == data, "{len} bytes at {offset}");
        let again = pattern(1, len);
        h.write_at(ino, offset, &again[..2 << 20 >> 1]);
        assert!(h.read_at(ino, offset, 1 << 20) == again[..1 << 20]);
        assert!(h.read_at(ino, offset + (1 << 20), len) == data[1 << 20..]);
        drop(file);
        h.unlink("f");
    }
}

fn past_end(h: &Harness<'_>) {
    let ino = h.write("f", b"0123456789");
    for (offset, len, expected) in [
        (0, 0, &b""[..]),
        (5, 100, b"56789"),
        (9, 1, b"9"),
        (10, 1, b""),
        (11, 5, b""),
        (1 << 50, 5, b""),
    ] {
        assert_eq!(h.read_at(ino, offset, len), expected, "{len} bytes at {offset}");
    }
    assert_eq!(h.open(ino).read_at(SYSTEM, u64::MAX, &mut [0; 8]), Ok(0));
    assert_eq!(h.open(ino).write_at(SYSTEM, 1 << 30, b""), Ok(0));
    assert_eq!(h.stat("f").size, 10, "a write of nothing moves no end");
    let empty = h.file("empty");
    assert_eq!(h.read_at(empty, 0, 10), b"");
}

fn appends(h: &Harness<'_>) {
    let ino = h.file("f");
    let (a, b) = (h.open(ino), h.open(ino));
    let mut expected = Vec::new();
    for index in 0..400 {
        let data = pattern(index + 1, (index as usize * 37) % 5000 + 1);
        let file = if index % 2 == 0 { &a } else { &b };
        assert_eq!(
            file.append(SYSTEM, &data),
            Ok(Written::new(expected.len() as u64, data.len()))
        );
        expected.extend_from_slice(&data);
    }
    assert!(h.read_at(ino, 0, expected.len() + 1) == expected);
    h.truncate(ino, 1 << 33);
    assert_eq!(
        a.append(SYSTEM, b"far"),
        Ok(Written::new(1 << 33, 3)),
        "an append goes behind a hole"
    );
    assert_eq!(h.read_at(ino, (1 << 33) - 2, 10), b"\0\0far");
}

fn two_handles(h: &Harness<'_>) {
    let ino = h.file("f");
    let (a, b) = (h.open(ino), h.open(ino));
    for index in 0..100u32 {
        let data = pattern(index + 1, 1000);
        assert_eq!(a.write_at(SYSTEM, u64::from(index) * 500, &data), Ok(1000));
        let mut buffer = [0; 1000];
        assert_eq!(b.read_at(SYSTEM, u64::from(index) * 500, &mut buffer), Ok(1000));
        assert!(buffer[..] == data[..]);
        assert_eq!(a.getattr(SYSTEM), b.getattr(SYSTEM));
    }
}

fn largest(h: &Harness<'_>) {
    let ino = h.write("f", b"start");
    let resize = |size| {
        h.fs().setattr(
            SYSTEM,
            ino,
            &SetAttr {
                size: Some(size),
                ..SetAttr::default()
            },
        )
    };
    let (mut good, mut bad) = (1u64 << 40, u64::MAX);
    assert!(resize(good).is_ok(), "1 TiB is within the limit");
    if resize(bad).is_ok() {
        bad = u64::MAX;
        good = bad;
    }
    while bad - good > 1 {
        let middle = good + (bad - good) / 2;
        match resize(middle) {
            Ok(attr) => {
                assert_eq!(attr.size, middle);
                good = middle;
            }
            Err(FsError::FileTooBig) => bad = middle,
            Err(error) => panic!("size {middle}: {error}"),
        }
    }
    resize(good).expect("the largest size");
    assert_eq!(h.read_at(ino, 0, 5), b"start");
    let file = h.open(ino);
    assert_eq!(file.write_at(SYSTEM, good - 1, b"x"), Ok(1), "the last byte");
    assert_eq!(h.read_at(ino, good - 2, 10), b"\0x");
    if good < u64::MAX - 10 {
        refused!(file.write_at(SYSTEM, good, b"x"), FileTooBig);
        refused!(file.write_at(SYSTEM, good - 1, b"xy"), FileTooBig);
        refused!(file.append(SYSTEM, b"x"), FileTooBig);
    }
    refused!(file.write_at(SYSTEM, u64::MAX, b"xy"), FileTooBig);
    refused!(file.write_at(SYSTEM, u64::MAX - 1, b"xyz"), FileTooBig);
    for mode in [
        ferrite_vfs::FallocateMode::Allocate { keep_size: false },
        ferrite_vfs::FallocateMode::ZeroRange { keep_size: false },
    ] {
        refused!(file.fallocate(SYSTEM, mode, u64::MAX - 1, 5), FileTooBig);
    }
    assert_eq!(h.stat("f").size, good);
    resize(5).expect("cut");
    assert_eq!(h.read_at(ino, 0, 10), b"start");
}

fn kill_priv(h: &Harness<'_>) {
    kill_priv_by(h, false);
    kill_priv_by(h, true);
}

fn kill_priv_by(h: &Harness<'_>, outside_group: bool) {
    // All files here are in group 0.
    let caller = Cred::new(1000, if outside_group { 1000 } else { 0 });
    let unprivileged = &Ctx::checked(caller.clone());
    let kernel = &Ctx::trusted(caller);
    let set_by_kernel = |ino, set: &SetAttr| h.fs().setattr(kernel, ino, set).expect("setattr").mode;
    // A change by a member of the group keeps setgid if the group may not execute: there it means mandatory locking.
    let lock = if outside_group { 0 } else { 0o2000 };
    for (mode, expected) in [
        (0o6755, 0o755),
        (0o4755, 0o755),
        (0o2755, 0o755),
        (0o2644, 0o644 | lock),
        (0o6644, 0o644 | lock),
    ] {
        let ino = h.write("f", b"program");
        h.chmod(ino, mode);
        let file = h.open(ino);
        assert_eq!(file.read_at(unprivileged, 0, &mut [0; 3]), Ok(3));
        assert_eq!(h.stat("f").mode, mode, "a read clears nothing");
        h.write_at(ino, 0, b"P");
        assert_eq!(h.stat("f").mode, mode, "a privileged write clears nothing");
        assert_eq!(file.write_at(unprivileged, 0, b"p"), Ok(1));
        assert_eq!(h.stat("f").mode, expected, "write, {mode:o}");
        h.chmod(ino, mode);
        file.append(unprivileged, b"more").expect("append");
        assert_eq!(h.stat("f").mode, expected, "append, {mode:o}");
        for how in [
            FallocateMode::Allocate { keep_size: true },
            FallocateMode::Allocate { keep_size: false },
            FallocateMode::PunchHole,
            FallocateMode::ZeroRange { keep_size: false },
        ] {
            h.chmod(ino, mode);
            h.open(ino)
                .fallocate(SYSTEM, how, 0, 9000)
                .expect("privileged fallocate");
            assert_eq!(h.stat("f").mode, mode, "a privileged fallocate clears nothing");
            file.fallocate(unprivileged, how, 0, 9000).expect("fallocate");
            assert_eq!(h.stat("f").mode, expected, "{how:?}, {mode:o}");
        }
        h.chmod(ino, mode);
        let set = SetAttr {
            size: Some(2),
            kill_priv: true,
            ..SetAttr::default()
        };
        assert_eq!(set_by_kernel(ino, &set), expected, "truncate, {mode:o}");
        h.chmod(ino, mode);
        let set = SetAttr {
            uid: Some(9),
            kill_priv: true,
            ..SetAttr::default()
        };
        assert_eq!(set_by_kernel(ino, &set), expected, "chown, {mode:o}");
        h.chmod(ino, mode);
        let cut = SetAttr {
            size: Some(1),
            ..SetAttr::default()
        };
        let attr = file.setattr(unprivileged, &cut).expect("cut");
        assert_eq!((attr.mode, attr.size), (expected, 1), "ftruncate, {mode:o}");
        h.chmod(ino, mode);
        let by_flag = WriteMode {
            position: Position::At(0),
            kill_priv: true,
        };
        file.write(kernel, by_flag, b"p").expect("write");
        assert_eq!(h.stat("f").mode, expected, "write that was asked to, {mode:o}");
        drop(file);
        h.unlink("f");
    }
}
