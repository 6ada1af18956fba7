//! The kernel is notified of changes that others make, and forgets its entries.

use std::path::Path;
use std::sync::Arc;

use ferrite_fuse::{FuseOptions, Rings, mount};
use ferrite_vfs::memfs::MemFs;
use ferrite_vfs::{FileSystem, NewFile, OpenFile, OpenMode, ROOT_INO, SYSTEM};

fn make(fs: &dyn FileSystem, name: &[u8], content: &[u8]) -> (u64, Arc<dyn OpenFile>) {
    let new = NewFile {
        mode: 0o644,
        open: OpenMode::read_write(),
        exclusive: true,
    };
    let made = fs.create(SYSTEM, ROOT_INO, name, &new).unwrap();
    made.file.write_at(SYSTEM, 0, content).unwrap();
    (made.attr.ino, made.file)
}

#[test]
fn what_the_kernel_caches_is_dropped_when_it_is_notified() {
    if std::env::var_os("FERRITE_SKIP_FUSE").is_some() {
        return eprintln!("skipped: FERRITE_SKIP_FUSE is set");
    }
    assert!(
        Path::new("/dev/fuse").exists(),
        "no /dev/fuse: run `modprobe fuse`, or set FERRITE_SKIP_FUSE=1"
    );
    for rings in [Rings::Off, Rings::Auto] {
        notified(rings);
    }
}

fn notified(rings: Rings) {
    let dir = tempfile::tempdir().unwrap();
    let fs: Arc<dyn FileSystem> = Arc::new(MemFs::new());
    let (ino, file) = make(&*fs, b"file", b"before");
    let options = FuseOptions {
        rings,
        ..FuseOptions::default()
    };
    let mut mounted = mount(Arc::clone(&fs), dir.path(), &options).unwrap();
    eprintln!("{rings:?}: {}", mounted.way());
    let (unmounter, notifications) = (mounted.unmounter(), mounted.notifications());
    let served = std::thread::spawn(move || mounted.serve());
    let path = dir.path().join("file");
    let content = || std::fs::read(&path).unwrap();
    let size = || std::fs::metadata(&path).unwrap().len();
    assert_eq!((content(), size()), (b"before".to_vec(), 6));
    assert!(!dir.path().join("new").exists());

    file.write_at(SYSTEM, 0, b"after, and longer").unwrap();
    make(&*fs, b"new", b"");
    // It trusts this engine, which guarantees that no one else changes anything.
    assert_eq!((content(), size()), (b"before".to_vec(), 6));
    assert!(!dir.path().join("new").exists());

    notifications.attributes_changed(ino).unwrap();
    assert_eq!(size(), 17);
    notifications.content_changed(ino, 0, 0).unwrap();
    assert_eq!(content(), b"after, and longer");
    notifications.name_changed(ROOT_INO, b"new").unwrap();
    assert!(dir.path().join("new").exists());
    notifications.attributes_changed(123_456).unwrap();

    unmounter.unmount().unwrap();
    served.join().unwrap().unwrap();
}
