//! Reads without a copy: what is lent, what is copied, and that both are the file's bytes.

use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ferrite::{Borrowed, File, Fs, MkfsOptions, OpenOptions};

use crate::common::{create, on_both};

const LEN: usize = (1 << 20) + 77;

fn content() -> Vec<u8> {
    (0..LEN).map(|at| (at / 7 % 251) as u8).collect()
}

fn bytes(lent: &Borrowed<'_>) -> Vec<u8> {
    let mut whole = Vec::new();
    lent.for_each_chunk(|chunk| whole.extend_from_slice(chunk));
    whole
}

fn is_copied(file: &File, offset: u64, len: usize) -> bool {
    file.read_borrowed(offset, len, |lent| lent.is_copy()).unwrap()
}

#[test]
fn lent_or_copied_the_bytes_are_those_of_a_read() {
    on_both(|fs| {
        let mut whole = content();
        fs.write("/f", &whole).unwrap();
        // A hole, which lies nowhere.
        let writer = OpenOptions::new().write(true).open(fs, "/f").unwrap();
        writer.set_len(2 * LEN as u64).unwrap();
        whole.resize(2 * LEN, 0);
        let file = fs.open_file("/f").unwrap();
        for (offset, len) in [
            (0, usize::MAX),
            (0, 1),
            (8, 5000),
            (4096, 1 << 20),
            (13, 100),
            (LEN, 9999),
            (3 * LEN, 5),
        ] {
            let wanted = whole.get(offset..).unwrap_or_default();
            let wanted = &wanted[..wanted.len().min(len)];
            file.read_borrowed(offset as u64, len, |lent| {
                assert_eq!((lent.len(), lent.is_empty()), (wanted.len(), wanted.is_empty()));
                assert!(bytes(lent) == wanted, "{offset}, {len}");
                for skipped in [0, 1, 4095, wanted.len(), wanted.len() + 1] {
                    let mut space = [0xee; 300];
                    let count = lent.copy_to(skipped, &mut space);
                    let rest = wanted.get(skipped..).unwrap_or_default();
                    assert_eq!(count, rest.len().min(300));
                    assert!(space[..count] == rest[..count] && space[count..].iter().all(|&byte| byte == 0xee));
                }
            })
            .unwrap();
        }
        let refused = writer.read_borrowed(0, 1, |_| ()).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EBADF));
    });
}

#[test]
fn pages_of_a_pool_are_lent_and_all_else_is_copied() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let fs = create(&dir.path().join("pool"), 64 << 20);
    fs.write("/f", content()).unwrap();
    fs.write("/small", "in the inode").unwrap();
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .no_atime(true)
        .open(&fs, "/f")
        .unwrap();
    assert!(!is_copied(&file, 0, LEN) && !is_copied(&file, 8, 100));
    assert!(is_copied(&file, 13, 100), "no multiple of 8");
    file.write_at(b"unaligned", 5000).unwrap();
    assert!(
        is_copied(&file, 4096, 4096) && !is_copied(&file, 0, 4096),
        "only the page that has a log"
    );
    let small = OpenOptions::new()
        .read(true)
        .no_atime(true)
        .open(&fs, "/small")
        .unwrap();
    assert!(is_copied(&small, 0, 100));
    assert_eq!(small.read_borrowed(0, 100, bytes).unwrap(), b"in the inode");

    let options = MkfsOptions::default().data_checksum(true);
    let checked = Fs::create_with(dir.path().join("checked"), 64 << 20, &options).unwrap();
    checked.write("/f", content()).unwrap();
    assert!(
        is_copied(&checked.open_file("/f").unwrap(), 0, LEN),
        "each read verifies"
    );
    let memory = Fs::memory();
    memory.write("/f", content()).unwrap();
    assert!(is_copied(&memory.open_file("/f").unwrap(), 0, LEN));
}

#[test]
fn bytes_go_to_a_socket_from_where_they_lie() {
    on_both(|fs| {
        fs.write("/f", content()).unwrap();
        let file = OpenOptions::new().read(true).no_atime(true).open(fs, "/f").unwrap();
        let (here, mut there) = UnixStream::pair().unwrap();
        let reader = std::thread::spawn(move || {
            let mut found = Vec::new();
            there.read_to_end(&mut found).unwrap();
            found
        });
        let mut sent = 0;
        while sent < LEN {
            sent += file
                .read_borrowed(0, LEN, |lent| lent.send(here.as_fd(), sent))
                .unwrap()
                .unwrap();
        }
        let at_end = file.read_borrowed(0, LEN, |lent| lent.send(here.as_fd(), LEN));
        assert_eq!(at_end.unwrap().unwrap(), 0);
        drop(here);
        assert!(reader.join().unwrap() == content());
    });
}

/// While bytes are lent, no write changes them.
#[test]
fn writers_wait_for_the_bytes() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let fs = create(&dir.path().join("pool"), 64 << 20);
    fs.write("/f", vec![1; 1 << 20]).unwrap();
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .no_atime(true)
        .open(&fs, "/f")
        .unwrap();
    let is_written = AtomicBool::new(false);
    std::thread::scope(|scope| {
        file.read_borrowed(0, 1 << 20, |lent| {
            assert!(!lent.is_copy());
            scope.spawn(|| {
                file.write_at(&vec![2; 1 << 20], 0).unwrap();
                is_written.store(true, Ordering::SeqCst);
            });
            std::thread::sleep(Duration::from_millis(50));
            assert!(!is_written.load(Ordering::SeqCst));
            assert!(bytes(lent).iter().all(|&byte| byte == 1));
        })
        .unwrap();
    });
    assert!(is_written.into_inner());
    assert_eq!(file.read_borrowed(0, 1, bytes).unwrap(), [2]);
}
