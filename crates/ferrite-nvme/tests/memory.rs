//! The memory of a pool in use levels off: RocksDB's write buffers and block cache have bounds, and unused inodes are
//! forgotten. Alone in its program, since it measures the memory of the whole process.
#![cfg(feature = "rocksdb")]

mod common;

use common::{Backend, Memory};
use ferrite_testkit::TestEngine;
use ferrite_testkit::growth::Taken;
use ferrite_vfs::{FileKind, FileSystem, NewNode, OpenMode, ROOT_INO, SYSTEM};

/// The bound in docs/nvme.md: two write buffers, and the block cache.
const METADATA_BYTES_MAX: u64 = (2 * 32 + 64) << 20;
/// For the rest, and for what the allocator keeps.
const SLACK_BYTES: u64 = 24 << 20;

/// The work of short programs: files that come, are written, read, and go. About `mib` of log.
fn short_programs(fs: &dyn FileSystem, mib: u64, first: u64) {
    let node = NewNode {
        kind: FileKind::File,
        mode: 0o644,
        rdev: 0,
    };
    let data = vec![7; 30_000];
    for number in first..first + mib * 35 {
        let name = format!("f{number}");
        let ino = fs.mknod(SYSTEM, ROOT_INO, name.as_bytes(), &node).unwrap().ino;
        let file = fs.open(SYSTEM, ino, OpenMode::read_write()).unwrap();
        file.write_at(SYSTEM, 0, &data).unwrap();
        file.read_at(SYSTEM, 0, &mut [0; 4096]).unwrap();
        drop(file);
        if number % 2 == 0 {
            fs.unlink(SYSTEM, ROOT_INO, name.as_bytes()).unwrap();
        }
    }
}

#[test]
fn a_pool_in_use_for_long_takes_no_more_memory() {
    let mut pool = Memory::at(Backend::Directory, 1, 20, 62);
    let begins = Taken::now();
    let mut most = 0;
    let mut passes = Vec::new();
    for round in 0..12 {
        short_programs(pool.fs(), 32, round * 100_000);
        let bytes = pool.meta().statistics().memory_bytes;
        most = most.max(bytes);
        assert!(
            bytes <= METADATA_BYTES_MAX + (4 << 20),
            "round {round}: {} MiB of write buffers and caches",
            bytes >> 20
        );
        passes.push(Taken::now().memory_bytes);
    }
    assert!(most > 16 << 20, "only {most} bytes: it counts nothing");
    let grown = passes.iter().max().unwrap() - begins.memory_bytes;
    assert!(
        grown <= METADATA_BYTES_MAX + SLACK_BYTES,
        "{} MiB more than at the start: {passes:?}",
        grown >> 20
    );
    let last = *passes.last().unwrap();
    pool.close();
    assert!(last <= passes[7] + SLACK_BYTES, "it does not level off: {passes:?}");
}
