//! Requests over a socket in place of the device: each gets its reply, and a wrong one does no harm.

use std::time::Duration;

use ferrite_vfs::memfs::MemFs;
use ferrite_vfs::{FileKind, FileSystem, NewNode, ROOT_INO, SYSTEM};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::*;
use crate::freeze_barrier::FreezeBarrier;
use crate::options::FuseOptions;

const USER: u32 = 1000;

/// A mount with two threads, of a file system with a file `f`, and the kernel's end of its device.
struct Kernel {
    device: OwnedFd,
    freeze_barrier: FreezeBarrier,
    ino: u64,
    readers: Option<std::thread::JoinHandle<io::Result<()>>>,
}

impl Kernel {
    fn new(options: &FuseOptions, only: Option<u32>) -> Kernel {
        let fs = MemFs::new();
        let new = NewNode {
            kind: FileKind::File,
            mode: 0o666,
            rdev: 0,
        };
        let ino = fs.mknod(SYSTEM, ROOT_INO, b"f", &new).unwrap().ino;
        let freeze_barrier = FreezeBarrier::default();
        let service = Arc::new(Service::new(Arc::new(fs), freeze_barrier.clone(), options));
        let kind = SocketType::SEQPACKET;
        let (device, other) = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
        let readers = Readers::new(service, other, only, false);
        Kernel {
            device,
            freeze_barrier,
            ino,
            readers: Some(std::thread::spawn(move || readers.run(2))),
        }
    }

    fn send(&self, opcode: u32, unique: u64, ino: u64, rest: &[u8]) {
        let header = InHeader {
            len_bytes: (size_of::<InHeader>() + rest.len()) as u32,
            opcode,
            unique,
            ino,
            uid: USER,
            gid: USER,
            pid: std::process::id(),
            padding: 0,
        };
        rustix::io::write(&self.device, &[header.as_bytes(), rest].concat()).unwrap();
    }

    /// The next reply: its request, its error, and its payload.
    fn reply(&self) -> (u64, i32, Vec<u8>) {
        let mut reply = vec![0; 1 << 16];
        let len = rustix::io::read(&self.device, &mut reply[..]).unwrap();
        let half = |at: usize| i32::from_ne_bytes(reply[at..at + 4].try_into().unwrap());
        assert_eq!(half(0) as usize, len);
        let unique = u64::from_ne_bytes(reply[8..16].try_into().unwrap());
        (unique, half(4), reply[16..len].to_vec())
    }

    fn has_reply(&self, within: Duration) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut polled = [PollFd::new(&self.device, PollFlags::IN)];
        let within = Timespec {
            tv_sec: 0,
            tv_nsec: within.as_nanos() as i64,
        };
        poll(&mut polled, Some(&within)).unwrap() > 0
    }

    fn ask(&self, opcode: u32, unique: u64, ino: u64, rest: &[u8]) -> (i32, Vec<u8>) {
        self.send(opcode, unique, ino, rest);
        let (of, error, payload) = self.reply();
        assert_eq!(of, unique);
        (error, payload)
    }

    /// The number of an open file.
    fn open(&self) -> u64 {
        let (error, payload) = self.ask(opcode::OPEN, 3, self.ino, &halves(&[libc::O_RDWR as u32, 0]));
        assert_eq!(error, 0);
        u64::from_ne_bytes(payload[..8].try_into().unwrap())
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        rustix::net::shutdown(&self.device, rustix::net::Shutdown::Write).unwrap();
        let ended = self.readers.take().unwrap().join();
        assert!(std::thread::panicking() || ended.is_ok_and(|ended| ended.is_ok()));
    }
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn halves(halves: &[u32]) -> Vec<u8> {
    halves.iter().flat_map(|half| half.to_ne_bytes()).collect()
}

fn write(fh: u64, offset: u64, data: &[u8]) -> Vec<u8> {
    let (size, owner, flags) = (halves(&[data.len() as u32, 0]), words(&[0]), halves(&[0, 0]));
    [&words(&[fh, offset]), &size, &owner, &flags, data].concat()
}

fn read(fh: u64, offset: u64, len_bytes: u32) -> Vec<u8> {
    [
        words(&[fh, offset]),
        halves(&[len_bytes, 0]),
        words(&[0]),
        halves(&[0, 0]),
    ]
    .concat()
}

fn lock(fh: u64, owner: u64) -> Vec<u8> {
    let range = words(&[fh, owner, 0, i64::MAX as u64]);
    [range, halves(&[libc::F_WRLCK as u32, 1, 0, 0])].concat()
}

#[test]
fn requests_get_their_replies() {
    let kernel = Kernel::new(&FuseOptions::default(), None);
    let (error, payload) = kernel.ask(opcode::LOOKUP, 1, ROOT_INO, b"f\0");
    assert_eq!(
        (error, payload.len(), payload[..8].to_vec()),
        (0, 128, words(&[kernel.ino]))
    );
    let fh = kernel.open();
    let data: Vec<u8> = (0..9000u32).map(|n| (n % 251) as u8).collect();
    assert_eq!(
        kernel.ask(opcode::WRITE, 4, kernel.ino, &write(fh, 0, &data)),
        (0, halves(&[9000, 0]))
    );
    assert_eq!(
        kernel.ask(opcode::READ, 5, kernel.ino, &read(fh, 100, 20_000)),
        (0, data[100..].to_vec())
    );
    let (error, statx) = kernel.ask(opcode::STATX, 6, kernel.ino, &[0; 24]);
    assert_eq!((error, statx.len()), (0, 288));
    assert_eq!(statx[72..80], 9000u64.to_ne_bytes(), "size");
    assert_ne!(statx[112..120], [0; 8], "birth");
    // These have no reply, so the next one is of the last request.
    kernel.send(opcode::FORGET, 7, kernel.ino, &words(&[1]));
    kernel.send(
        opcode::BATCH_FORGET,
        8,
        0,
        &[halves(&[1, 0]), words(&[kernel.ino, 0])].concat(),
    );
    kernel.send(opcode::INTERRUPT, 9, 0, &words(&[5]));
    assert_eq!(
        kernel.ask(opcode::UNLINK, 10, ROOT_INO, b"g\0"),
        (-libc::ENOENT, vec![])
    );
}

#[test]
fn what_makes_no_sense_is_refused_or_ignored() {
    let kernel = Kernel::new(&FuseOptions::default(), None);
    for wrong in [&[1u8][..], &[0; 39], &[0xff; 40], &[0xff; 4096]] {
        rustix::io::write(&kernel.device, wrong).unwrap();
    }
    assert_eq!(kernel.ask(opcode::LOOKUP, 1, ROOT_INO, b"no end"), (-libc::EIO, vec![]));
    assert_eq!(kernel.ask(opcode::WRITE, 2, kernel.ino, &[0; 39]), (-libc::EIO, vec![]));
    let huge = read(0, 0, u32::MAX);
    assert!(kernel.ask(opcode::READ, 3, kernel.ino, &huge).0 < 0);
    assert_eq!(kernel.ask(4096, 4, ROOT_INO, &[]), (-libc::ENOSYS, vec![]));
    // More references than the message has.
    kernel.send(
        opcode::BATCH_FORGET,
        5,
        0,
        &[halves(&[u32::MAX, 0]), words(&[2, 1])].concat(),
    );
    assert_eq!(kernel.ask(34, 6, ROOT_INO, &[]).0, -libc::ENOSYS);
}

#[test]
fn a_private_mount_serves_its_owner() {
    let kernel = Kernel::new(&FuseOptions::default(), Some(USER + 1));
    assert_eq!(kernel.ask(opcode::LOOKUP, 1, ROOT_INO, b"f\0"), (-libc::EACCES, vec![]));
    // The kernel sends these on its own.
    assert_eq!(kernel.ask(opcode::RELEASE, 2, kernel.ino, &[0; 24]), (0, vec![]));
}

#[test]
fn a_signal_ends_a_wait_for_a_lock() {
    let options = FuseOptions {
        engine_locks: true,
        ..FuseOptions::default()
    };
    let kernel = Kernel::new(&options, None);
    let fh = kernel.open();
    assert_eq!(kernel.ask(opcode::SETLK, 10, kernel.ino, &lock(fh, 1)), (0, vec![]));
    assert_eq!(kernel.ask(opcode::SETLK, 11, kernel.ino, &lock(fh, 2)).0, -libc::EAGAIN);
    // More than there are threads.
    (12..16).for_each(|unique| kernel.send(opcode::SETLKW, unique, kernel.ino, &lock(fh, unique)));
    assert!(!kernel.has_reply(Duration::from_millis(50)));
    kernel.send(opcode::INTERRUPT, 0, 0, &words(&[13]));
    assert_eq!(kernel.reply(), (13, -libc::EINTR, vec![]));
    // The signal before the request.
    kernel.send(opcode::INTERRUPT, 0, 0, &words(&[20]));
    assert_eq!(kernel.ask(opcode::STATFS, 17, ROOT_INO, &[]).0, 0);
    assert_eq!(
        kernel.ask(opcode::SETLKW, 20, kernel.ino, &lock(fh, 20)).0,
        -libc::EINTR
    );
    let unlock = [
        words(&[fh, 1, 0, i64::MAX as u64]),
        halves(&[libc::F_UNLCK as u32, 1, 0, 0]),
    ]
    .concat();
    kernel.send(opcode::SETLK, 21, kernel.ino, &unlock);
    let mut answered = [kernel.reply().0, kernel.reply().0];
    answered.sort_unstable();
    assert!(answered[1] == 21 && [12, 14, 15].contains(&answered[0]), "{answered:?}");
    let flush = |owner| words(&[fh, 0, owner]);
    (12..16).for_each(|owner| kernel.send(opcode::FLUSH, 30 + owner, kernel.ino, &flush(owner)));
}

#[test]
fn changes_wait_for_a_thaw_with_their_data() {
    let kernel = Kernel::new(&FuseOptions::default(), None);
    let fh = kernel.open();
    kernel.freeze_barrier.close();
    let data = vec![7; 100_000];
    for (unique, data) in [(1, &data[..]), (2, b"short")] {
        kernel.send(opcode::WRITE, unique, kernel.ino, &write(fh, 200_000 * unique, data));
    }
    assert!(!kernel.has_reply(Duration::from_millis(50)));
    assert_eq!(kernel.ask(opcode::STATFS, 3, ROOT_INO, &[]).0, 0, "others are served");
    kernel.freeze_barrier.open();
    let mut made = [kernel.reply(), kernel.reply()];
    made.sort_unstable();
    assert_eq!(made, [(1, 0, halves(&[100_000, 0])), (2, 0, halves(&[5, 0]))]);
    assert_eq!(
        kernel.ask(opcode::READ, 5, kernel.ino, &read(fh, 400_000, 100)),
        (0, b"short".to_vec())
    );
    let (error, read) = kernel.ask(opcode::READ, 6, kernel.ino, &read(fh, 200_000, 50_000));
    assert_eq!((error, read), (0, vec![7; 50_000]));
}

/// A request that waits keeps no memory of the longest one.
#[test]
fn what_waits_takes_little_memory() {
    let device = Arc::new(OwnedFd::from(std::fs::File::open("/dev/null").unwrap()));
    let request = |opcode, rest: &[u8]| {
        let mut message = Message::new(&device, MESSAGE_BYTES);
        message.touched_bytes = MESSAGE_BYTES;
        let header = InHeader {
            len_bytes: (size_of::<InHeader>() + rest.len()) as u32,
            opcode,
            unique: 7,
            ..InHeader::new_zeroed()
        };
        let bytes = [header.as_bytes(), rest].concat();
        message.memory[message.start..message.start + bytes.len()].copy_from_slice(&bytes);
        message.len_bytes = bytes.len();
        message.set_aside()
    };
    for (opcode, rest, at_most, space) in [
        (opcode::UNLINK, b"name\0".to_vec(), 1024, 288),
        (opcode::READ, read(1, 0, 8192), 10_000, 8192),
        (opcode::READ, read(1, 0, u32::MAX), 2 << 20, 1 << 20),
        (
            opcode::GETXATTR,
            [&halves(&[300, 0])[..], b"user.a\0"].concat(),
            1024,
            300,
        ),
        (opcode::WRITE, write(1, 0, &[5; 50_000]), 51_000, 288),
    ] {
        let mut message = request(opcode, &rest);
        assert!(message.memory.len() <= at_most, "{opcode}: {}", message.memory.len());
        let Parts { op, payload, used } = message.parts();
        assert_eq!([op, &payload[..used]].concat(), rest, "{opcode}");
        assert!(payload.len() >= space, "{opcode}: {}", payload.len());
        let at = payload.as_ptr() as usize;
        assert!(opcode != opcode::READ || at.is_multiple_of(LINE_BYTES), "{at:x}");
    }
}
