//! In a sticky directory nobody removes another user's file, whoever is faster.
//!
//! What lives here: an engine that stops a caller between the check of a name and its use, and lets others go on
//! meanwhile.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;
use std::time::Duration;

use ferrite_vfs::memfs::MemFs;
use ferrite_vfs::{
    Attr, Cred, DirEntry, FileKind, FileSystem, FsError, Ino, NewNode, OpenFile, OpenMode, RenameMode, Result, SetAttr,
    StatFs, Vfs, XattrMode,
};

/// How long a thread is given to get into another's way. It needs moments if nothing keeps it out.
const PATIENCE: Duration = Duration::from_millis(500);

/// Who is stopped, whom he tells, and what he waits for.
type Stop = (ThreadId, Sender<()>, Receiver<()>);

/// The reference engine, but the first look of one thread at `NAME` takes as long as others need (or [`PATIENCE`]).
struct Slow {
    inner: MemFs,
    stop: Mutex<Option<Stop>>,
}

const NAME: &[u8] = b"name";

impl Slow {
    fn stop_at_use(&self, name: &[u8]) {
        let mut stop = self.stop.lock().unwrap();
        let is_mine = |(thread, ..): &mut Stop| *thread == std::thread::current().id() && name == NAME;
        let taken = stop.take_if(is_mine);
        drop(stop);
        if let Some((_, stopped, go_on)) = taken {
            stopped.send(()).unwrap();
            let _ = go_on.recv_timeout(PATIENCE);
        }
    }
}

macro_rules! passed_on {
    ($($name:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {$(
        fn $name(&self, $($arg: $type),*) -> $result {
            self.inner.$name($($arg),*)
        }
    )*};
}

impl FileSystem for Slow {
    fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Attr> {
        let found = self.inner.lookup(parent, name);
        self.stop_at_use(name);
        found
    }

    passed_on! {
        statfs() -> Result<StatFs>;
        parent(dir: Ino) -> Result<Ino>;
        getattr(ino: Ino) -> Result<Attr>;
        setattr(ino: Ino, set: &SetAttr) -> Result<Attr>;
        pin(ino: Ino, generation: u32) -> Result<()>;
        unpin(ino: Ino, count: u64) -> ();
        readlink(ino: Ino) -> Result<Vec<u8>>;
        mknod(cred: &Cred, parent: Ino, name: &[u8], node: &NewNode) -> Result<Attr>;
        mkdir(cred: &Cred, parent: Ino, name: &[u8], mode: u32) -> Result<Attr>;
        symlink(cred: &Cred, parent: Ino, name: &[u8], target: &[u8]) -> Result<Attr>;
        link(ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr>;
        unlink(parent: Ino, name: &[u8]) -> Result<()>;
        rmdir(parent: Ino, name: &[u8]) -> Result<()>;
        rename(parent: Ino, name: &[u8], new_parent: Ino, new_name: &[u8], mode: RenameMode) -> Result<()>;
        readdir(dir: Ino, cookie: u64, sink: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<()>;
        open(ino: Ino, mode: OpenMode) -> Result<Arc<dyn OpenFile>>;
        getxattr(ino: Ino, name: &[u8]) -> Result<Vec<u8>>;
        setxattr(ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()>;
        listxattr(ino: Ino) -> Result<Vec<Vec<u8>>>;
        removexattr(ino: Ino, name: &[u8]) -> Result<()>;
        sync() -> Result<()>;
    }
}

struct World {
    fs: Arc<Slow>,
    alice: Vfs,
    bob: Vfs,
}

const FILE: NewNode = NewNode {
    kind: FileKind::File,
    mode: 0o644,
    rdev: 0,
};

/// A directory `/tmp` with this mode, and `name` in it, made by `make` as Alice.
fn world(mode: u32, make: impl Fn(&Vfs)) -> World {
    let fs = Arc::new(Slow {
        inner: MemFs::new(),
        stop: Mutex::new(None),
    });
    let root = Vfs::new(fs.clone(), Cred::root());
    root.mkdir(b"/tmp", 0o777).unwrap();
    let set = SetAttr {
        mode: Some(mode),
        ..SetAttr::default()
    };
    root.setattr(b"/tmp", &set, true).unwrap();
    let (alice, bob) = (root.as_user(Cred::new(1000, 1000)), root.as_user(Cred::new(1001, 1001)));
    make(&alice);
    World { fs, alice, bob }
}

/// Has Alice do `first`, stopped between check and use, and meanwhile `second` and then Bob `third`.
fn race<T: Send>(
    world: &World,
    first: impl FnOnce(&Vfs) -> T + Send,
    second: impl FnOnce(&Vfs) + Send,
    third: impl FnOnce(&Vfs) + Send,
) -> T {
    let (stopped, is_stopped) = channel();
    let (go_on, may_go_on) = channel();
    std::thread::scope(|scope| {
        let first = scope.spawn(move || {
            *world.fs.stop.lock().unwrap() = Some((std::thread::current().id(), stopped, may_go_on));
            first(&world.alice)
        });
        is_stopped.recv().unwrap();
        second(&world.alice);
        third(&world.bob);
        let _ = go_on.send(());
        first.join().unwrap()
    })
}

fn owner(vfs: &Vfs) -> Result<u32> {
    vfs.stat(b"/tmp/name", false).map(|attr| attr.uid)
}

fn make_file(vfs: &Vfs) {
    vfs.mknod(b"/tmp/name", &FILE).unwrap();
}

fn make_dir(vfs: &Vfs) {
    vfs.mkdir(b"/tmp/name", 0o755).unwrap();
}

#[test]
fn a_file_is_not_removed_in_the_place_of_another() {
    let w = world(0o1777, make_file);
    let removed = race(
        &w,
        |alice| alice.unlink(b"/tmp/name"),
        |alice| drop(alice.unlink(b"/tmp/name")),
        make_file,
    );
    assert_eq!((removed, owner(&w.bob)), (Ok(()), Ok(1001)), "Bob's file is there");
}

#[test]
fn a_directory_is_not_removed_in_the_place_of_another() {
    let w = world(0o1777, make_dir);
    let removed = race(
        &w,
        |alice| alice.rmdir(b"/tmp/name"),
        |alice| drop(alice.rename(b"/tmp/name", b"/tmp/away", RenameMode::Replace)),
        make_dir,
    );
    assert_eq!((removed, owner(&w.bob)), (Ok(()), Ok(1001)), "Bob's directory is there");
}

#[test]
fn a_file_is_not_moved_or_replaced_in_the_place_of_another() {
    type Rename = fn(&Vfs) -> Result<()>;
    let away: Rename = |alice| alice.rename(b"/tmp/name", b"/tmp/away", RenameMode::Replace);
    let over: Rename = |alice| alice.rename(b"/tmp/other", b"/tmp/name", RenameMode::Replace);
    for rename in [away, over] {
        let w = world(0o1777, |alice| {
            make_file(alice);
            alice.mknod(b"/tmp/other", &FILE).unwrap();
        });
        let mut made = Err(FsError::NotFound);
        let renamed = race(
            &w,
            rename,
            |alice| drop(alice.unlink(b"/tmp/name")),
            |bob| made = bob.mknod(b"/tmp/name", &FILE),
        );
        assert_eq!(renamed, Ok(()));
        // What Bob was told that he has made is his, and where he made it.
        let ino = |path: &[u8]| w.bob.stat(path, false).map(|attr| attr.ino);
        match made {
            Ok(made) => assert_eq!(ino(b"/tmp/name"), Ok(made.ino)),
            Err(error) => assert_eq!(error, FsError::Exists),
        }
    }
}

#[test]
fn other_directories_keep_nobody_waiting() {
    let w = world(0o777, make_file);
    let start = std::time::Instant::now();
    let removed = race(
        &w,
        |alice| alice.unlink(b"/tmp/name"),
        |alice| alice.unlink(b"/tmp/name").unwrap(),
        |_| {},
    );
    assert_eq!(removed, Err(FsError::NotFound));
    assert!(start.elapsed() < PATIENCE, "it waited");
}
