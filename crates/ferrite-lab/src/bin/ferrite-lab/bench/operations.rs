//! Group `core`: single operations of the engine in this process, one thread, a pool in DRAM that is 80 % full.

use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use ferrite_fs::{Engine, MountOptions};
use ferrite_lab::{FILE_NODE, engine_in_memory, new_file};
use ferrite_measure::mix;
use ferrite_pm::Region;
use ferrite_vfs::{FileSystem, Ino, OpenFile, OpenMode, ROOT_INO, SYSTEM, SetAttr};

use super::{Circumstances, Duel, Effort, Output, page, whole};
use crate::Failure;

/// Names of the rows.
pub(crate) const NAMES: &[&str] = &[
    "overwrite_4k_durable",
    "read_4k_random",
    "read_4k_sequential",
    "overwrite_8b_durable",
    "append_4k_durable",
    "append_64b_durable",
    "stat",
    "readdir_1000",
    "create_unlink",
    "truncate_sparse",
];
/// Share of the pool's blocks that is in use.
pub(crate) const FILL_PERCENT: u32 = 80;
const CHUNK: usize = 2 << 20;
/// Files in the directory that is listed and searched.
const FILES: u64 = 1000;
/// Longest that the sparse file gets.
const SPARSE_BYTES: u64 = 256 << 20;

/// A pool in anonymous memory with a file of `file_bytes` in it, filled up.
pub(crate) fn pool(file_bytes: u64, files: u64, options: &MountOptions) -> Result<(Engine, Vec<Ino>), Failure> {
    let data_bytes = file_bytes * files;
    let bytes = data_bytes * 100 / u64::from(FILL_PERCENT) * 104 / 100;
    let engine = engine_in_memory(bytes, &super::options(), options)?;
    let chunk = vec![0x5a; CHUNK];
    let mut made = Vec::new();
    for number in 0..files {
        let ino = new_file(&engine, ROOT_INO, &format!("file{number}"))?;
        let file = engine.open(SYSTEM, ino, OpenMode::read_write())?;
        for offset in (0..file_bytes).step_by(CHUNK) {
            whole(file.write_at(SYSTEM, offset, &chunk)?, CHUNK)?;
        }
        made.push(ino);
    }
    let filler = engine.open(SYSTEM, new_file(&engine, ROOT_INO, "filler")?, OpenMode::read_write())?;
    let mut offset = 0;
    loop {
        let stat = engine.statfs(SYSTEM)?;
        if (stat.blocks - stat.blocks_free) * 100 >= stat.blocks * u64::from(FILL_PERCENT) {
            return Ok((engine, made));
        }
        whole(filler.write_at(SYSTEM, offset, &chunk[..4096 * 16])?, 4096 * 16)?;
        offset += 4096 * 16;
    }
}

/// A directory on tmpfs, removed when dropped.
pub(crate) struct TmpfsDir(pub(crate) PathBuf);

impl TmpfsDir {
    pub(crate) fn new() -> Result<TmpfsDir, Failure> {
        let path = PathBuf::from(format!("/dev/shm/ferrite-bench-{}", std::process::id()));
        std::fs::create_dir_all(&path)?;
        Ok(TmpfsDir(path))
    }

    /// A file without a name: its memory is freed when it is closed, however the process ends.
    pub(crate) fn file(&self, bytes: u64) -> Result<File, Failure> {
        let path = self.0.join("data");
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)?;
        std::fs::remove_file(&path)?;
        let chunk = vec![0x5a; CHUNK];
        for offset in (0..bytes).step_by(CHUNK) {
            file.write_all_at(&chunk, offset)?;
        }
        Ok(file)
    }
}

impl Drop for TmpfsDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

struct Bench<'a> {
    engine: &'a Engine,
    effort: Effort,
    out: &'a mut Output,
}

impl Bench<'_> {
    fn duel(
        &mut self,
        (name, against): (&'static str, &'static str),
        slower: usize,
        ours: super::Work<'_>,
        theirs: super::Work<'_>,
    ) -> Result<(), Failure> {
        let engine = self.engine;
        Duel {
            group: "core",
            name,
            against,
            rounds: self.effort.rounds,
            operations: self.effort.operations / slower,
            circumstances: Circumstances {
                page_bytes: 2 << 20,
                fill_percent: FILL_PERCENT,
                cache: "larger than the caches",
                threads: 1,
                placement: "any".into(),
            },
            counters: &|| engine.counters(),
            amplification: None,
        }
        .run(ours, theirs, self.out)
    }
}

/// Runs the group.
pub(crate) fn run(effort: Effort, out: &mut Output) -> Result<(), Failure> {
    let bytes = effort.file_bytes;
    let (engine, made) = pool(bytes, 1, &MountOptions::default())?;
    let file = engine.open(
        SYSTEM,
        made[0],
        OpenMode {
            no_atime: true,
            ..OpenMode::read_write()
        },
    )?;
    let floor = Region::anonymous(bytes)?;
    floor.stream_zero(0, bytes);
    let tmpfs = TmpfsDir::new()?;
    let peer = tmpfs.file(bytes)?;
    let mut bench = Bench {
        engine: &engine,
        effort,
        out,
    };
    data(&mut bench, &file, &floor, &peer)?;
    // Otherwise the cleaner would run while other rows are measured.
    engine.clean(usize::MAX)?;
    appends(&mut bench, &tmpfs)?;
    engine.clean(usize::MAX)?;
    names(&mut bench, &tmpfs)?;
    sparse(&mut bench, &tmpfs)
}

/// A file set to a random length, up or down, and written to at a random place, repeatedly: few of its pages exist at
/// any time.
fn sparse(bench: &mut Bench<'_>, tmpfs: &TmpfsDir) -> Result<(), Failure> {
    let engine = bench.engine.clone();
    let file = engine.open(SYSTEM, new_file(&engine, ROOT_INO, "sparse")?, OpenMode::read_write())?;
    let peer = tmpfs.file(0)?;
    let data = [7; 100];
    let place = |n: u64| mix(n) % SPARSE_BYTES;
    let mut ours = |n: u64| {
        let size = Some(place(2 * n));
        engine.setattr(
            SYSTEM,
            file.ino(),
            &SetAttr {
                size,
                ..SetAttr::default()
            },
        )?;
        whole(file.write_at(SYSTEM, place(2 * n + 1), &data)?, data.len())
    };
    let mut theirs = |n: u64| {
        peer.set_len(place(2 * n))?;
        Ok(peer.write_all_at(&data, place(2 * n + 1))?)
    };
    bench.duel(("truncate_sparse", "tmpfs"), 10, &mut ours, &mut theirs)
}

fn data(bench: &mut Bench<'_>, file: &Arc<dyn OpenFile>, floor: &Region, peer: &File) -> Result<(), Failure> {
    let bytes = bench.effort.file_bytes;
    let block = [7; 4096];
    let mut overwrite = |n| whole(file.write_at(SYSTEM, page(n, bytes), &block)?, 4096);
    bench.duel(("overwrite_4k_durable", "floor"), 1, &mut overwrite, &mut |n| {
        floor.stream(page(n, bytes), &block);
        Ok(floor.fence()?)
    })?;
    let mut pwrite = |n| Ok(peer.write_all_at(&block, page(n, bytes))?);
    bench.duel(("overwrite_4k_durable", "tmpfs_pwrite"), 1, &mut overwrite, &mut pwrite)?;
    let (mut buffer, mut peer_buffer) = ([0; 4096], [0; 4096]);
    let mut read = |n| whole(file.read_at(SYSTEM, page(n, bytes), &mut buffer)?, 4096);
    let mut pread = |n| whole(peer.read_at(&mut peer_buffer, page(n, bytes))?, 4096);
    bench.duel(("read_4k_random", "tmpfs_pread"), 1, &mut read, &mut pread)?;
    let mut raw = |n| {
        floor.read(page(n ^ 0x5555, bytes), &mut peer_buffer);
        Ok(())
    };
    bench.duel(("read_4k_random", "raw copy"), 1, &mut read, &mut raw)?;
    let in_order = |n: u64| n * 4096 % bytes;
    let mut read = |n| whole(file.read_at(SYSTEM, in_order(n), &mut buffer)?, 4096);
    let mut pread = |n| whole(peer.read_at(&mut peer_buffer, in_order(n))?, 4096);
    bench.duel(("read_4k_sequential", "tmpfs_pread"), 1, &mut read, &mut pread)?;
    let mut overwrite = |n| whole(file.write_at(SYSTEM, page(n, bytes) + 1000, &block[..8])?, 8);
    let mut pwrite = |n| Ok(peer.write_all_at(&block[..8], page(n, bytes) + 1000)?);
    bench.duel(("overwrite_8b_durable", "tmpfs_pwrite"), 1, &mut overwrite, &mut pwrite)
}

/// Appends: a new file for each round, so that files keep one size.
fn appends(bench: &mut Bench<'_>, tmpfs: &TmpfsDir) -> Result<(), Failure> {
    let engine = bench.engine.clone();
    for (name, len) in [("append_4k_durable", 4096), ("append_64b_durable", 64)] {
        let data = vec![3; len];
        let operations = bench.effort.operations as u64 / 4;
        let file_name = |n: u64| format!("append-{}", n / operations);
        let mut ours: Option<Arc<dyn OpenFile>> = None;
        let mut theirs: Option<File> = None;
        let mut append = |n: u64| {
            if n.is_multiple_of(operations) {
                ours = None;
                let _ = engine.unlink(SYSTEM, ROOT_INO, file_name(n.saturating_sub(1)).as_bytes());
                ours = Some(engine.open(
                    SYSTEM,
                    new_file(&engine, ROOT_INO, &file_name(n))?,
                    OpenMode::read_write(),
                )?);
            }
            ours.as_ref()
                .map_or(Ok(()), |file| whole(file.append(SYSTEM, &data)?.len_bytes, len))
        };
        let mut peer_append = |n: u64| {
            if n.is_multiple_of(operations) {
                theirs = None;
                let _ = std::fs::remove_file(tmpfs.0.join(file_name(n.saturating_sub(1))));
                theirs = Some(
                    OpenOptions::new()
                        .append(true)
                        .create(true)
                        .open(tmpfs.0.join(file_name(n)))?,
                );
            }
            theirs
                .as_mut()
                .map_or(Ok(()), |file| Ok(std::io::Write::write_all(file, &data)?))
        };
        bench.duel((name, "tmpfs_append"), 4, &mut append, &mut peer_append)?;
        let last = (bench.effort.rounds as u64 + 1) * operations - 1;
        let _ = engine.unlink(SYSTEM, ROOT_INO, file_name(last).as_bytes());
        let _ = std::fs::remove_file(tmpfs.0.join(file_name(last)));
    }
    Ok(())
}

fn names(bench: &mut Bench<'_>, tmpfs: &TmpfsDir) -> Result<(), Failure> {
    let engine = bench.engine.clone();
    let dir = engine.mkdir(SYSTEM, ROOT_INO, b"dir", 0o755)?.ino;
    let peer = tmpfs.0.join("dir");
    std::fs::create_dir(&peer)?;
    let name = |n: u64| format!("entry{n}");
    for n in 0..FILES {
        new_file(&engine, dir, &name(n))?;
        File::create(peer.join(name(n)))?;
    }
    let names: Vec<String> = (0..FILES).map(name).collect();
    let paths: Vec<PathBuf> = names.iter().map(|name| peer.join(name)).collect();
    let mut stat = |n: u64| {
        let parent = engine.lookup(SYSTEM, ROOT_INO, b"dir")?.ino;
        engine.lookup(SYSTEM, parent, names[(n % FILES) as usize].as_bytes())?;
        Ok(())
    };
    let mut peer_stat = |n: u64| Ok(std::fs::symlink_metadata(&paths[(n % FILES) as usize]).map(drop)?);
    bench.duel(("stat", "tmpfs"), 1, &mut stat, &mut peer_stat)?;
    let mut readdir = |_| {
        let mut count = 0;
        engine.readdir(SYSTEM, dir, 0, &mut |_| {
            count += 1;
            true
        })?;
        whole(count, FILES as usize)
    };
    let mut peer_readdir = |_| whole(std::fs::read_dir(&peer)?.count(), FILES as usize);
    bench.duel(("readdir_1000", "tmpfs"), 200, &mut readdir, &mut peer_readdir)?;
    let turn = Cell::new(0u64);
    let mut create_unlink = |_| {
        turn.set(turn.get() + 1);
        let name = format!("new{}", turn.get() % 512);
        engine.mknod(SYSTEM, dir, name.as_bytes(), &FILE_NODE)?;
        Ok(engine.unlink(SYSTEM, dir, name.as_bytes())?)
    };
    let mut peer_create_unlink = |n: u64| {
        let path = peer.join(format!("new{}", n % 512));
        File::create(&path)?;
        Ok(std::fs::remove_file(&path)?)
    };
    bench.duel(
        ("create_unlink", "tmpfs"),
        2,
        &mut create_unlink,
        &mut peer_create_unlink,
    )
}
