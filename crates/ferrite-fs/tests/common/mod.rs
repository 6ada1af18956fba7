//! Helpers of the engine's tests: pools in memory, and trees that can be compared.
#![allow(dead_code, reason = "each test binary uses its part")]

pub(crate) mod bound;
pub(crate) mod remote;

use std::collections::BTreeMap;

use ferrite_fs::{Engine, Mapping, MkfsOptions, MountOptions, fsck, mkfs, number_thread};
use ferrite_pm::{Image, Region};
use ferrite_vfs::{FileKind, FileSystem, Ino, NewNode, OpenMode, ROOT_INO, SYSTEM};

/// One file of a tree, without what may differ between equal ones: numbers and times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) kind: FileKind,
    pub(crate) mode: u32,
    pub(crate) owner: (u32, u32),
    pub(crate) nlink: u32,
    pub(crate) content: Vec<u8>,
    pub(crate) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// A whole tree by path.
pub(crate) type Tree = BTreeMap<String, Node>;

/// Reads everything.
pub(crate) fn capture(fs: &dyn FileSystem) -> Tree {
    let mut tree = Tree::new();
    walk(fs, ROOT_INO, String::new(), &mut tree);
    tree
}

fn walk(fs: &dyn FileSystem, ino: Ino, path: String, tree: &mut Tree) {
    let attr = fs
        .getattr(SYSTEM, ino)
        .unwrap_or_else(|error| panic!("{path}: {error}"));
    let content = match attr.kind {
        FileKind::File => {
            let mut content = vec![0; attr.size as usize];
            let file = fs
                .open(
                    SYSTEM,
                    ino,
                    OpenMode {
                        no_atime: true,
                        ..OpenMode::read_only()
                    },
                )
                .unwrap();
            let count = file
                .read_at(SYSTEM, 0, &mut content)
                .unwrap_or_else(|error| panic!("{path}: {error}"));
            assert_eq!(count, content.len(), "{path}: short read");
            content
        }
        FileKind::Symlink => fs
            .readlink(SYSTEM, ino)
            .unwrap_or_else(|error| panic!("{path}: {error}")),
        _ => Vec::new(),
    };
    let names = fs
        .listxattr(SYSTEM, ino)
        .unwrap_or_else(|error| panic!("{path}: {error}"));
    let xattrs = names
        .into_iter()
        .map(|name| (name.clone(), fs.getxattr(SYSTEM, ino, &name).unwrap()))
        .collect();
    let node = Node {
        kind: attr.kind,
        mode: attr.mode,
        owner: (attr.uid, attr.gid),
        nlink: attr.nlink,
        content,
        xattrs,
    };
    tree.insert(path.clone(), node);
    if attr.kind == FileKind::Directory {
        let mut entries = Vec::new();
        fs.readdir(SYSTEM, ino, 0, &mut |entry| {
            entries.push((entry.name.to_vec(), entry.ino));
            true
        })
        .unwrap_or_else(|error| panic!("{path}: {error}"));
        for (name, child) in entries {
            let found = fs
                .lookup(SYSTEM, ino, &name)
                .unwrap_or_else(|error| panic!("{path}: {error}"));
            assert_eq!(found.ino, child, "{path}: listing and lookup differ");
            walk(fs, child, format!("{path}/{}", String::from_utf8_lossy(&name)), tree);
        }
    }
}

/// The bytes of a region.
pub(crate) fn image_of(region: &Region) -> Vec<u8> {
    let mut image = vec![0; region.len() as usize];
    region.read(0, &mut image);
    image
}

/// An empty pool of `size_bytes`, as bytes.
pub(crate) fn empty_pool(size_bytes: u64, options: &MkfsOptions) -> Vec<u8> {
    let region = Region::anonymous(size_bytes).unwrap();
    mkfs(&region, options).unwrap();
    image_of(&region)
}

/// The mapping that tests make their pools with: the one in `FERRITE_MAPPING`, else the default. So every test can be
/// run on each.
pub(crate) fn mapping() -> Mapping {
    std::env::var("FERRITE_MAPPING").map_or(Mapping::default(), |name| {
        Mapping::from_name(&name).unwrap_or_else(|| panic!("FERRITE_MAPPING: no mapping is called {name}"))
    })
}

/// Default options, except for that mapping.
pub(crate) fn options() -> MkfsOptions {
    MkfsOptions::default().mapping(mapping())
}

/// Options whose outcome does not depend on chance.
pub(crate) fn fixed() -> MkfsOptions {
    options().seed(42)
}

/// Mounts a pool in memory.
pub(crate) fn mount(image: &[u8]) -> Engine {
    mount_region(Region::from_image(image).unwrap())
}

/// The same, without copying the pool.
pub(crate) fn mount_image(image: &Image) -> Engine {
    mount_region(Region::of_image(image).unwrap())
}

fn mount_region(region: Region) -> Engine {
    Engine::mount(region, &MountOptions::default().cleaner(false)).unwrap()
}

/// Checks a pool in memory; panics with the findings.
pub(crate) fn check(image: &[u8]) {
    check_region(Region::from_image(image).unwrap());
}

/// The same, without copying the pool.
pub(crate) fn check_image(image: &Image) {
    check_region(Region::of_image(image).unwrap());
}

fn check_region(region: Region) {
    let report = fsck(region, &mut |_, _, _| {}).unwrap();
    assert!(report.findings.is_empty(), "fsck: {:#?}", report.findings);
}

/// Does `work` in a thread of this number, and so in the ring of that number.
pub(crate) fn on_ring<T: Send>(ring: u64, work: impl FnOnce() -> T + Send) -> T {
    let numbered = || {
        number_thread(ring);
        work()
    };
    std::thread::scope(|scope| scope.spawn(numbered).join().unwrap())
}

/// Makes a file.
pub(crate) fn make(fs: &dyn FileSystem, dir: Ino, name: &str) -> Ino {
    let node = NewNode {
        kind: FileKind::File,
        mode: 0o644,
        rdev: 0,
    };
    fs.mknod(SYSTEM, dir, name.as_bytes(), &node).unwrap().ino
}

/// For reading and, unless damage has made the pool read-only, for writing.
pub(crate) fn widest_mode(engine: &Engine) -> OpenMode {
    match engine.is_read_only() {
        true => OpenMode::read_only(),
        false => OpenMode::read_write(),
    }
}

/// Writes to a file by number.
pub(crate) fn write(fs: &dyn FileSystem, ino: Ino, offset: u64, data: &[u8]) {
    assert_eq!(
        fs.open(SYSTEM, ino, OpenMode::read_write())
            .unwrap()
            .write_at(SYSTEM, offset, data)
            .unwrap(),
        data.len()
    );
}

/// Bytes that name their place and version, so that a mix of old and new shows.
pub(crate) fn pattern(len: usize, version: u8) -> Vec<u8> {
    (0..len)
        .map(|index| (index as u8).wrapping_mul(31).wrapping_add((index >> 8) as u8) ^ version)
        .collect()
}
