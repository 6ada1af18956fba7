//! The time stamps that each operation moves.
//!
//! `atime` and `mtime` are set to the past first, so that a move shows whatever the clock's resolution. For `ctime`,
//! which cannot be set, the kernel's coarse clock passes it first: no engine may use a coarser one.

use std::time::{Duration, Instant};

use ferrite_vfs::{FallocateMode, FileKind, Ino, OpenMode, ROOT_INO, RenameMode, SYSTEM, SetAttr, SetTime, Timestamp};
use rustix::time::{ClockId, clock_gettime};

use super::{Case, Harness, PAST};

pub(super) const CASES: &[Case] = &[
    Case {
        name: "times/writes, truncates and holes",
        run: content,
    },
    Case {
        name: "times/reads",
        run: reads,
    },
    Case {
        name: "times/attributes",
        run: attributes,
    },
    Case {
        name: "times/parents of new and removed names",
        run: parents,
    },
    Case {
        name: "times/links and unlinks of a file",
        run: links,
    },
    Case {
        name: "times/rename",
        run: renames,
    },
    Case {
        name: "times/what moves nothing",
        run: nothing,
    },
    Case {
        name: "times/set to the nanosecond",
        run: explicit,
    },
    Case {
        name: "times/now",
        run: now,
    },
];

/// How often the clock is read. Its ticks take 1 to 10 ms.
const POLL: Duration = Duration::from_millis(1);

/// No tick of a clock takes so long.
const PASS_MAX: Duration = Duration::from_secs(30);

const NONE: [bool; 3] = [false; 3];
const CHANGE: [bool; 3] = [false, false, true];
const CONTENT: [bool; 3] = [false, true, true];

/// The time of the coarsest clock an engine may use.
fn coarse_now() -> Timestamp {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    Timestamp::new(now.tv_sec, now.tv_nsec as u32)
}

/// Blocks until that is past these times.
fn pass(times: &[Timestamp]) {
    let until = Instant::now() + PASS_MAX;
    while times.iter().any(|time| coarse_now() <= *time) {
        assert!(Instant::now() < until, "{times:?} are in the future");
        std::thread::sleep(POLL);
    }
}

/// Which of {atime, mtime, ctime} of each of `inos` the operation moves.
fn moved<const N: usize>(h: &Harness<'_>, inos: [Ino; N], op: impl FnOnce()) -> [[bool; 3]; N] {
    for ino in inos {
        h.age(ino);
    }
    let before = inos.map(|ino| h.fs().getattr(SYSTEM, ino).expect("getattr").ctime);
    pass(&before);
    op();
    let mut index = 0;
    inos.map(|ino| {
        let attr = h.fs().getattr(SYSTEM, ino).expect("getattr");
        assert!(attr.ctime >= before[index], "ctime went back");
        index += 1;
        [attr.atime != PAST, attr.mtime != PAST, attr.ctime > before[index - 1]]
    })
}

fn content(h: &Harness<'_>) {
    let ino = h.write("f", &[1; 20_000]);
    let file = h.open(ino);
    let size = |size| h.truncate(ino, size);
    assert_eq!(
        moved(h, [ino], || assert_eq!(file.write_at(SYSTEM, 0, b"x"), Ok(1))),
        [CONTENT],
        "write"
    );
    assert_eq!(
        moved(h, [ino], || assert_eq!(
            file.write_at(SYSTEM, 4096, &[2; 8192]),
            Ok(8192)
        )),
        [CONTENT],
        "whole pages"
    );
    assert_eq!(
        moved(h, [ino], || assert!(file.append(SYSTEM, b"x").is_ok())),
        [CONTENT],
        "append"
    );
    assert_eq!(moved(h, [ino], || size(10_000)), [CONTENT], "truncate");
    assert_eq!(moved(h, [ino], || size(10_000)), [CONTENT], "truncate to the same size");
    assert_eq!(moved(h, [ino], || size(1 << 30)), [CONTENT], "extend");
    let allocate = |mode, offset| file.fallocate(SYSTEM, mode, offset, 5000).expect("fallocate");
    assert_eq!(
        moved(h, [ino], || allocate(FallocateMode::PunchHole, 0)),
        [CONTENT],
        "punch"
    );
    assert_eq!(
        moved(h, [ino], || allocate(
            FallocateMode::ZeroRange { keep_size: true },
            5000
        )),
        [CONTENT],
        "zero"
    );
    assert_eq!(
        moved(h, [ino], || allocate(
            FallocateMode::Allocate { keep_size: false },
            1 << 30
        )),
        [CONTENT],
        "grow"
    );
    let to = |time| SetAttr {
        size: Some(5),
        mtime: Some(SetTime::To(Timestamp(time))),
        ..SetAttr::default()
    };
    let attr = h.set(ino, to(12_345));
    assert_eq!(attr.mtime, Timestamp(12_345), "a size with a time of its own");
    let small = h.file("small");
    assert_eq!(
        moved(h, [small], || h.write_at(small, 0, b"tiny")),
        [CONTENT],
        "write of a small file"
    );
}

fn reads(h: &Harness<'_>) {
    let ino = h.write("f", &[1; 10_000]);
    assert_eq!(
        moved(h, [ino], || drop(h.read_at(ino, 100, 10))),
        [[true, false, false]],
        "read"
    );
    let mode = OpenMode {
        no_atime: true,
        ..OpenMode::read_only()
    };
    let quiet = h.fs().open(SYSTEM, ino, mode).expect("open");
    assert_eq!(
        moved(h, [ino], || assert_eq!(quiet.read_at(SYSTEM, 0, &mut [0; 10]), Ok(10))),
        [NONE],
        "read with O_NOATIME"
    );
    // A relative policy may leave it, a strict one may move it: only that it never goes back is certain.
    h.read_at(ino, 0, 1);
    let first = h.stat("f").atime;
    h.read_at(ino, 0, 1);
    assert!(h.stat("f").atime >= first);
}

fn attributes(h: &Harness<'_>) {
    for (name, kind) in [("f", FileKind::File), ("d", FileKind::Directory), ("p", FileKind::Fifo)] {
        let ino = h.node(name, kind);
        let change = |set| assert_eq!(h.set(ino, set).ino, ino);
        assert_eq!(moved(h, [ino], || h.chmod(ino, 0o640)), [CHANGE], "chmod of {kind:?}");
        let owner = SetAttr {
            uid: Some(7),
            gid: Some(8),
            ..SetAttr::default()
        };
        assert_eq!(moved(h, [ino], || change(owner)), [CHANGE], "chown of {kind:?}");
        let time = SetAttr {
            mtime: Some(SetTime::To(PAST)),
            ..SetAttr::default()
        };
        assert_eq!(moved(h, [ino], || change(time)), [CHANGE], "utimens of {kind:?}");
        if kind != FileKind::Fifo {
            let set = || {
                h.fs()
                    .setxattr(SYSTEM, ino, b"user.x", b"v", Default::default())
                    .expect("setxattr")
            };
            assert_eq!(moved(h, [ino], set), [CHANGE], "setxattr of {kind:?}");
            let remove = || h.fs().removexattr(SYSTEM, ino, b"user.x").expect("removexattr");
            assert_eq!(moved(h, [ino], remove), [CHANGE], "removexattr of {kind:?}");
        }
    }
}

fn parents(h: &Harness<'_>) {
    let dir = h.mkdir("d");
    for kind in [FileKind::File, FileKind::Directory, FileKind::Symlink, FileKind::Fifo] {
        assert_eq!(
            moved(h, [dir, ROOT_INO], || assert!(h.node("d/x", kind) != 0)),
            [CONTENT, NONE],
            "making {kind:?}"
        );
        let remove = || {
            if kind == FileKind::Directory {
                h.rmdir("d/x")
            } else {
                h.unlink("d/x")
            }
        };
        assert_eq!(moved(h, [dir, ROOT_INO], remove), [CONTENT, NONE], "removing {kind:?}");
    }
    h.file("f");
    assert_eq!(moved(h, [dir], || h.link("f", "d/l")), [CONTENT], "link");
}

fn links(h: &Harness<'_>) {
    let ino = h.file("f");
    assert_eq!(moved(h, [ino], || h.link("f", "g")), [CHANGE], "link");
    assert_eq!(
        moved(h, [ino], || h.unlink("g")),
        [CHANGE],
        "unlink of one of two names"
    );
    h.link("f", "g");
    h.file("new");
    assert_eq!(
        moved(h, [ino], || h.rename("new", "g")),
        [CHANGE],
        "a name replaced by a rename"
    );
}

fn renames(h: &Harness<'_>) {
    let (a, b) = (h.mkdir("a"), h.mkdir("b"));
    let file = h.file("a/f");
    let quiet = |stamps: [bool; 3]| [stamps[0], stamps[1]];
    let stamps = moved(h, [a, b, ROOT_INO, file], || h.rename("a/f", "b/g"));
    assert_eq!(stamps[..3], [CONTENT, CONTENT, NONE], "rename across directories");
    // POSIX leaves open whether a rename moves the ctime of the renamed file.
    assert_eq!(quiet(stamps[3]), [false; 2], "the renamed file");
    assert_eq!(
        moved(h, [b], || h.rename("b/g", "b/h")),
        [CONTENT],
        "rename in a directory"
    );
    h.file("a/x");
    let exchange = || h.try_rename("a/x", "b/h", RenameMode::Exchange).expect("exchange");
    assert_eq!(moved(h, [a, b], exchange), [CONTENT, CONTENT], "exchange");
    h.link("b/h", "b/i");
    assert_eq!(
        moved(h, [a, b, h.ino("b/h")], || h.rename("b/h", "b/i")),
        [NONE; 3],
        "rename onto the same inode"
    );
    let dir = h.mkdir("a/d");
    assert_eq!(
        quiet(moved(h, [dir], || h.rename("a/d", "b/d"))[0]),
        [false; 2],
        "the renamed directory"
    );
}

fn nothing(h: &Harness<'_>) {
    let dir = h.mkdir("d");
    let ino = h.write("d/f", b"content");
    let file = h.open(ino);
    let all = [dir, ino];
    assert_eq!(
        moved(h, all, || assert_eq!(file.write_at(SYSTEM, 3, b""), Ok(0))),
        [NONE; 2],
        "write of nothing"
    );
    assert_eq!(
        moved(h, all, || drop(h.fs().lookup(SYSTEM, dir, b"f"))),
        [NONE; 2],
        "lookup"
    );
    assert_eq!(moved(h, all, || drop(h.open(ino))), [NONE; 2], "open and close");
    assert_eq!(moved(h, all, || file.fsync(SYSTEM).expect("fsync")), [NONE; 2], "fsync");
    assert_eq!(
        moved(h, all, || assert!(file.seek_data(SYSTEM, 0).is_ok())),
        [NONE; 2],
        "seek"
    );
    assert_eq!(
        moved(h, all, || drop(h.fs().listxattr(SYSTEM, ino))),
        [NONE; 2],
        "listxattr"
    );
    assert_eq!(
        moved(h, all, || assert!(h.fs().unlink(SYSTEM, dir, b"no").is_err())),
        [NONE; 2],
        "failed unlink"
    );
    assert_eq!(
        moved(h, all, || assert!(h.fs().link(SYSTEM, ino, dir, b"f").is_err())),
        [NONE; 2],
        "failed link"
    );
    assert_eq!(
        moved(h, all, || assert!(h.fs().rmdir(SYSTEM, ROOT_INO, b"d").is_err())),
        [NONE; 2],
        "failed rmdir"
    );
    let listed = moved(h, all, || drop(h.names("d")));
    assert_eq!(listed.map(|stamps| [stamps[1], stamps[2]]), [[false; 2]; 2], "readdir");
}

fn explicit(h: &Harness<'_>) {
    for (name, kind) in [
        ("f", FileKind::File),
        ("d", FileKind::Directory),
        ("l", FileKind::Symlink),
    ] {
        let ino = h.node(name, kind);
        for time in [
            0,
            1,
            -1,
            1_234_567_890_123_456_789,
            -1_234_567_890_123_456_789,
            i64::MAX,
            i64::MIN + 1,
        ] {
            let (atime, mtime) = (Timestamp(time), Timestamp(time / 3));
            let set = SetAttr {
                atime: Some(SetTime::To(atime)),
                mtime: Some(SetTime::To(mtime)),
                ..SetAttr::default()
            };
            let given = h.set(ino, set);
            let found = h.stat(name);
            assert_eq!((given.atime, given.mtime), (atime, mtime), "{kind:?}");
            assert_eq!((found.atime, found.mtime), (atime, mtime), "{kind:?}");
        }
        let only = h.set(
            ino,
            SetAttr {
                atime: Some(SetTime::To(PAST)),
                ..SetAttr::default()
            },
        );
        assert_eq!(
            (only.atime, only.mtime),
            (PAST, Timestamp((i64::MIN + 1) / 3)),
            "one of the two"
        );
    }
}

fn now(h: &Harness<'_>) {
    let clock = || {
        let since = std::time::UNIX_EPOCH.elapsed().expect("a clock after 1970");
        Timestamp(i64::try_from(since.as_nanos()).expect("a clock before 2262"))
    };
    let start = coarse_now();
    let ino = h.file("f");
    let attr = h.stat("f");
    for time in [attr.atime, attr.mtime, attr.ctime, attr.btime] {
        assert!(start <= time && time <= clock(), "a new file's times are now");
    }
    h.age(ino);
    let set = SetAttr {
        atime: Some(SetTime::Now),
        mtime: Some(SetTime::Now),
        ..SetAttr::default()
    };
    let attr = h.set(ino, set);
    assert!(start <= attr.atime && attr.atime <= clock());
    assert_eq!(
        (attr.atime, attr.mtime),
        (attr.ctime, attr.ctime),
        "one step has one time"
    );
    assert_eq!(h.stat("f").btime, attr.btime);
}
