//! Reads and writes with buffers of a pool, by engines that have nothing better than to block.

use std::sync::mpsc::channel;

use ferrite_vfs::buffers::Pool;
use ferrite_vfs::memfs::MemFs;
use ferrite_vfs::{FileKind, FileSystem, FsError, NewNode, OpenMode, Position, ROOT_INO, SYSTEM, Written};

#[test]
fn buffers_come_back_with_what_was_done() {
    let fs = MemFs::new();
    let node = NewNode {
        kind: FileKind::File,
        mode: 0o644,
        rdev: 0,
    };
    let ino = fs.mknod(SYSTEM, ROOT_INO, b"f", &node).unwrap().ino;
    let file = fs.open(SYSTEM, ino, OpenMode::read_write()).unwrap();
    let pool = Pool::new(1 << 20).unwrap();
    let free = pool.free_bytes();
    let (told, tells) = channel();
    for (position, place) in [(Position::At(3), 3), (Position::End, 8)] {
        let mut buffer = pool.take(5).unwrap();
        buffer.copy_from_slice(b"hello");
        let told = told.clone();
        file.submit_write(
            SYSTEM,
            position.into(),
            buffer,
            Box::new(move |buffer, written| told.send((buffer.to_vec(), written)).unwrap()),
        );
        assert_eq!(tells.recv().unwrap(), (b"hello".to_vec(), Ok(Written::new(place, 5))));
    }
    let (told, tells) = channel();
    let read = |offset, len| {
        let told = told.clone();
        let buffer = pool.take(len).unwrap();
        file.submit_read(
            SYSTEM,
            offset,
            buffer,
            Box::new(move |buffer, read| told.send((buffer, read)).unwrap()),
        );
        tells.recv().unwrap()
    };
    let (buffer, count) = read(2, 100);
    assert_eq!((&buffer[..11], count), (&b"\0hellohello"[..], Ok(11)));
    assert_eq!(buffer.len(), 100);
    assert_eq!(read(13, 4).1, Ok(0));
    drop(buffer);
    assert_eq!(pool.free_bytes(), free, "every buffer came back");
    let closed = fs.open(SYSTEM, ino, OpenMode::default()).unwrap();
    let (told, tells) = channel();
    let buffer = pool.take(1).unwrap();
    closed.submit_read(SYSTEM, 0, buffer, Box::new(move |_, read| told.send(read).unwrap()));
    assert_eq!(tells.recv().unwrap(), Err(FsError::BadHandle));
}
