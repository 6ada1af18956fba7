//! The cost of the library's operations over a network: the number of engine calls that each makes.

use std::io::Write;
use std::sync::Arc;

use ferrite::{Fs, OpenOptions};
use ferrite_testkit::network::{Conditions, Remote};
use ferrite_vfs::FileSystem;
use ferrite_vfs::memfs::MemFs;

#[test]
fn common_operations_are_one_call() {
    let engine: Arc<dyn FileSystem> = Arc::new(MemFs::new());
    let remote = Arc::new(Remote::new(engine, Conditions::calm()));
    let network = Arc::clone(remote.network());
    let fs = Fs::over(remote);
    fs.create_dir_all("/a/b/c").unwrap();
    network.take_calls();

    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&fs, "/a/b/c/f")
        .unwrap();
    assert_eq!(network.take_calls(), [("open_path", 1)].into(), "create and open");
    file.write_all(b"content").unwrap();
    assert_eq!(network.take_calls(), [("file.write", 1)].into(), "write");
    drop(file);
    assert_eq!(network.take_calls(), [("file.close", 1)].into(), "nobody waits for it");

    let file = fs.open_file("/a/b/c/f").unwrap();
    assert_eq!(network.take_calls(), [("open_path", 1)].into(), "open");
    drop(file);
    network.take_calls();

    assert_eq!(fs.metadata("/a/b/c/f").unwrap().len(), 7);
    assert_eq!(network.take_calls(), [("resolve", 1)].into(), "metadata");
}
