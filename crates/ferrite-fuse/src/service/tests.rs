//! What a mount asks its engine for, as far as the kernel leaves it to the service.

use ferrite_vfs::memfs::MemFs;
use ferrite_vfs::{Cred, Start};

use super::*;

const OWNER: u32 = 1000;
const OTHER: u32 = 1001;
const TEXT: &[u8] = b"text";

/// A caller as a mount has them: its kernel has checked.
fn user(uid: u32) -> Ctx {
    Ctx::trusted(Cred::new(uid, uid)).pinning()
}

/// A service of an engine with a file of [`OWNER`] that has a text.
fn with_file(mode: u32) -> (Arc<MemFs>, Service) {
    let fs = Arc::new(MemFs::new());
    let service = Service::new(Arc::clone(&fs) as Arc<dyn FileSystem>, Freezer::default(), false);
    let (_, opened) = service
        .create(&user(OWNER), (ROOT_INO, b"f"), mode, libc::O_RDWR)
        .unwrap();
    let written = service.write(&user(OWNER), (opened.fh, 0), TEXT, WriteFlags::empty(), 0);
    assert_eq!(written, Ok(TEXT.len() as u32));
    service.release(opened.fh);
    (fs, service)
}

fn attr_of_file(fs: &MemFs) -> Attr {
    fs.resolve(SYSTEM, &Start::default(), b"f", true).unwrap()
}

/// Another client's file that came after the kernel's lookup: the kernel believes that it made it itself, so it asks
/// for no truncation.
#[test]
fn a_create_that_meets_a_file_truncates_it() {
    for (flags, size) in [
        (libc::O_WRONLY | libc::O_TRUNC, 0),
        (libc::O_RDWR | libc::O_TRUNC, 0),
        (libc::O_RDONLY | libc::O_TRUNC, 0),
        (libc::O_RDWR, TEXT.len() as u64),
    ] {
        let (fs, service) = with_file(0o6777);
        let (known, opened) = service
            .create(&user(OTHER), (ROOT_INO, b"f"), 0o644, flags | libc::O_CREAT)
            .unwrap();
        assert_eq!((known.attr.size, attr_of_file(&fs).size), (size, size), "{flags:o}");
        let mode = if size == 0 { 0o777 } else { 0o6777 };
        assert_eq!(
            attr_of_file(&fs).mode,
            mode,
            "a stranger's truncation clears setuid and setgid"
        );
        service.release(opened.fh);
    }
}

/// Nor does the kernel check a file that it believes to be its own.
#[test]
fn a_create_that_meets_a_file_needs_the_permission_to_open_it() {
    let denied = [
        (0o600, libc::O_WRONLY | libc::O_TRUNC),
        (0o600, libc::O_RDONLY),
        (0o604, libc::O_RDWR),
        (0o604, libc::O_RDONLY | libc::O_TRUNC),
        (0o602, libc::O_RDWR),
    ];
    for (mode, flags) in denied {
        let (fs, service) = with_file(mode);
        let before = attr_of_file(&fs);
        let made = service.create(&user(OTHER), (ROOT_INO, b"f"), 0o644, flags | libc::O_CREAT);
        assert_eq!(made.err(), Some(Errno::EACCES.into()), "{mode:o} {flags:o}");
        assert_eq!(attr_of_file(&fs), before);
        // Nobody has it any more: the owner's pin, and no other.
        service.unlink(&user(OWNER), ROOT_INO, b"f").unwrap();
        service.forget(before.ino, 1);
        assert_eq!(
            fs.getattr(SYSTEM, before.ino),
            Err(FsError::Stale),
            "a refusal leaves nothing behind"
        );
    }
    for (mode, flags) in [(0o602, libc::O_WRONLY), (0o604, libc::O_RDONLY)] {
        let (_, service) = with_file(mode);
        let made = service.create(&user(OTHER), (ROOT_INO, b"f"), 0o644, flags | libc::O_CREAT);
        assert!(made.is_ok(), "{mode:o} {flags:o}");
    }
}
