//! Any bytes decode without a panic, and the kernel's layouts decode correctly.

use proptest::prelude::*;

use super::*;
use crate::message::kind::{REPLY_BYTES_MAX, op_bytes, reply_bytes_max};

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn halves(halves: &[u32]) -> Vec<u8> {
    halves.iter().flat_map(|half| half.to_ne_bytes()).collect()
}

#[test]
fn layouts_are_the_kernels() {
    assert_eq!((size_of::<InHeader>(), size_of::<OutHeader>()), (40, 16));
    assert_eq!((size_of::<SetAttrIn>(), size_of::<ReadWriteIn>()), (88, 40));
    assert_eq!(
        (size_of::<LkIn>(), size_of::<FallocateIn>(), size_of::<LSeekIn>()),
        (48, 32, 24)
    );
}

#[test]
fn requests_are_understood() {
    let rename = [&b"old\0"[..], b"new\0"].concat();
    let lock = [words(&[3, 9, 10, 20]), halves(&[1, 42, 1, 0])].concat();
    let write = [
        words(&[3, 4096]),
        halves(&[4, 2]),
        words(&[9]),
        halves(&[libc::O_APPEND as u32, 0]),
    ]
    .concat();
    let wanted = Wire {
        start: 10,
        last: 20,
        kind: 1,
        pid: 42,
    };
    let cases: [(u32, Vec<u8>, &[u8], Request<'_>); 15] = [
        (1, vec![], b"name\0", Request::Lookup(b"name")),
        (
            45,
            words(&[8, u64::from(libc::RENAME_EXCHANGE)]),
            &rename,
            Request::Rename {
                name: b"old",
                to: 8,
                new: b"new",
                flags: libc::RENAME_EXCHANGE,
            },
        ),
        (
            12,
            words(&[8]),
            &rename,
            Request::Rename {
                name: b"old",
                to: 8,
                new: b"new",
                flags: 0,
            },
        ),
        (
            6,
            vec![],
            b"link\0to/there\0",
            Request::Symlink {
                name: b"link",
                target: b"to/there",
            },
        ),
        (
            16,
            write,
            b"data, and more",
            Request::Write {
                at: (3, 4096),
                how: WriteFlags::from_bits_retain(2),
                flags: libc::O_APPEND,
                data: b"data",
            },
        ),
        (
            21,
            halves(&[5, 1]),
            b"user.a\0value",
            Request::SetXattr {
                name: b"user.a",
                value: b"value",
                flags: 1,
            },
        ),
        (
            33,
            lock.clone(),
            b"",
            Request::SetLk {
                fh: 3,
                owner: 9,
                wanted,
                may_wait: true,
                is_flock: true,
            },
        ),
        (31, lock, b"", Request::GetLk { owner: 9, wanted }),
        (
            35,
            halves(&[libc::O_RDWR as u32, 0o644, 0o22, 0]),
            b"new\0",
            Request::Create {
                name: b"new",
                bits: NewBits {
                    mode: 0o644,
                    umask: 0o22,
                },
                flags: libc::O_RDWR,
            },
        ),
        (
            8,
            halves(&[libc::S_IFIFO, 7, 0o27, 0]),
            b"pipe\0",
            Request::MkNod {
                name: b"pipe",
                bits: NewBits {
                    mode: libc::S_IFIFO,
                    umask: 0o27,
                },
                rdev: 7,
            },
        ),
        (
            9,
            halves(&[0o777, 0o77]),
            b"dir\0",
            Request::MkDir {
                name: b"dir",
                bits: NewBits {
                    mode: 0o777,
                    umask: 0o77,
                },
            },
        ),
        (
            47,
            words(&[3, 4096, 7, 5, 8192, 1 << 40, 0]),
            b"",
            Request::CopyFileRange {
                from: (3, 4096),
                to: (5, 8192),
                length: 1 << 40,
            },
        ),
        (25, words(&[3, 0, 9]), b"", Request::Flush { fh: 3, owner: 9 }),
        (
            44,
            [words(&[0, 7]), halves(&[4096, 0]), words(&[0, 0])].concat(),
            b"",
            Request::ReadDirPlus {
                offset: 7,
                len_bytes: 4096,
            },
        ),
        (
            46,
            [words(&[3, u64::MAX]), halves(&[4, 0])].concat(),
            b"",
            Request::LSeek {
                fh: 3,
                offset: -1,
                whence: 4,
            },
        ),
    ];
    for (opcode, op, payload, request) in cases {
        assert_eq!(op.len(), op_bytes(opcode), "opcode {opcode}");
        assert_eq!(decode(opcode, &op, payload).as_ref(), Ok(&request), "opcode {opcode}");
        // In the memory of a ring, old bytes follow.
        let longer = [&op[..], &[0xff; 8]].concat();
        assert_eq!(
            decode(opcode, &longer, payload).as_ref(),
            Ok(&request),
            "opcode {opcode}"
        );
    }
}

#[test]
fn attributes_are_set_where_the_bits_say_so() {
    let mut op = words(&[0, 3, 4096, 0, (-100i64) as u64, 7, 0]);
    op.extend(halves(&[5, 6, 0, 0o100_644, 0, 11, 12, 0]));
    let decoded = |bits: u32| {
        let mut op = op.clone();
        op[..4].copy_from_slice(&bits.to_ne_bytes());
        match decode(opcode::SETATTR, &op, b"") {
            Ok(Request::SetAttr { fh, set }) => {
                assert_eq!(fh, (bits & valid::FH != 0).then_some(3));
                set
            }
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(decoded(0), SetAttr::default());
    let all = decoded(valid::MODE | valid::UID | valid::GID | valid::SIZE | valid::ATIME | valid::MTIME);
    let expected = SetAttr {
        mode: Some(0o100_644),
        uid: Some(11),
        gid: Some(12),
        size: Some(4096),
        // Seconds below 0 and nanoseconds above them.
        atime: Some(SetTime::To(Timestamp(-100_000_000_000 + 5))),
        mtime: Some(SetTime::To(Timestamp(7_000_000_006))),
        kill_priv: false,
    };
    assert_eq!(all, expected);
    let now = decoded(valid::FH | valid::ATIME | valid::ATIME_NOW | valid::MTIME | valid::MTIME_NOW);
    assert_eq!((now.atime, now.mtime), (Some(SetTime::Now), Some(SetTime::Now)));
}

#[test]
fn what_makes_no_sense_is_refused() {
    let refused = |opcode, op: &[u8], payload: &[u8]| decode(opcode, op, payload).err();
    assert_eq!(refused(1, &[], b"no end"), Some(Errno::EIO));
    assert_eq!(refused(6, &[], b"only one\0"), Some(Errno::EIO));
    let long = [words(&[3, 0]), halves(&[1000, 0]), words(&[0, 0])].concat();
    assert_eq!(refused(16, &long, b"short"), Some(Errno::EIO));
    assert_eq!(refused(15, &words(&[3, u64::MAX, 0, 0, 0]), b""), Some(Errno::EINVAL));
    assert_eq!(refused(21, &halves(&[6, 0]), b"a\0value"), Some(Errno::EIO));
    for unknown in [0, 26, 38, 48, 53, 4096, u32::MAX] {
        assert_eq!(refused(unknown, &[], b"x\0"), Some(Errno::ENOSYS), "{unknown}");
    }
}

proptest! {
    #[test]
    fn no_message_makes_it_panic(
        opcode in prop_oneof![0u32..64, any::<u32>()],
        op in proptest::collection::vec(any::<u8>(), 0..=128),
        payload in proptest::collection::vec(prop_oneof![Just(0u8), any::<u8>()], 0..300),
    ) {
        let decoded = decode(opcode, &op, &payload);
        if let Ok(Request::Write { data, .. } | Request::SetXattr { value: data, .. }) = decoded {
            prop_assert!(data.len() <= payload.len());
        }
        prop_assert!(reply_bytes_max(opcode, &op) >= REPLY_BYTES_MAX);
    }
}
