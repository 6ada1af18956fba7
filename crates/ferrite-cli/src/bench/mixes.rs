//! Filebench-like mixes with the parameters of HDPM §4.3, one and two threads: against tmpfs, which makes nothing
//! durable, and against the engine without page logs.
//!
//! *varmail*, a turn: remove a mail; make one, write 16 KiB on average, sync; read one whole, add 16 KiB, sync; read
//! one whole. *webproxy*, a turn: remove an object, make one with 16 KiB, read five whole, add to the access log. Files
//! have 32 KiB and 64 KiB on average; there are fewer of them than in the paper, so that memory suffices.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use ferrite_fs::{Engine, MountOptions};
use ferrite_pm::Region;
use ferrite_vfs::{FileSystem, Ino, OpenMode, ROOT_INO};

use super::core::{TmpfsDir, make};
use super::random::mix;
use super::threads::rate;
use super::{Circumstances, Effort, Output, Row, median};
use crate::Failure;

/// Files of each thread.
const FILES: u64 = 1000;
/// Mean size of a write.
const WRITE_BYTES: u64 = 16 << 10;
/// A file is no longer added to beyond this; it is made anew.
const FILE_BYTES_MAX: u64 = 256 << 10;

#[derive(Debug, Clone, Copy)]
enum Mix {
    Varmail,
    Webproxy,
}

/// What the mixes do to files.
trait Store: Sync {
    fn remove(&self, thread: usize, name: &str) -> Result<(), Failure>;
    fn create(&self, thread: usize, name: &str, data: &[u8]) -> Result<(), Failure>;
    /// Adds to a file, durably where the store can; returns its size then.
    fn append(&self, thread: usize, name: &str, data: &[u8]) -> Result<u64, Failure>;
    fn read(&self, thread: usize, name: &str, buffer: &mut [u8]) -> Result<(), Failure>;
}

struct Ours {
    engine: Engine,
    dirs: Vec<Ino>,
}

impl Store for Ours {
    fn remove(&self, thread: usize, name: &str) -> Result<(), Failure> {
        Ok(self.engine.unlink(self.dirs[thread], name.as_bytes())?)
    }

    fn create(&self, thread: usize, name: &str, data: &[u8]) -> Result<(), Failure> {
        let ino = make(&self.engine, self.dirs[thread], name)?;
        self.engine.open(ino, OpenMode::read_write())?.append(data)?;
        Ok(())
    }

    fn append(&self, thread: usize, name: &str, data: &[u8]) -> Result<u64, Failure> {
        let ino = self.engine.lookup(self.dirs[thread], name.as_bytes())?.ino;
        let (offset, len) = self.engine.open(ino, OpenMode::read_write())?.append(data)?;
        Ok(offset + len as u64)
    }

    fn read(&self, thread: usize, name: &str, buffer: &mut [u8]) -> Result<(), Failure> {
        let ino = self.engine.lookup(self.dirs[thread], name.as_bytes())?.ino;
        self.engine.open(ino, OpenMode::read_write())?.read_at(0, buffer)?;
        Ok(())
    }
}

struct Tmpfs {
    dirs: Vec<PathBuf>,
}

impl Store for Tmpfs {
    fn remove(&self, thread: usize, name: &str) -> Result<(), Failure> {
        Ok(std::fs::remove_file(self.dirs[thread].join(name))?)
    }

    fn create(&self, thread: usize, name: &str, data: &[u8]) -> Result<(), Failure> {
        let mut file = File::create(self.dirs[thread].join(name))?;
        file.write_all(data)?;
        Ok(file.sync_data()?)
    }

    fn append(&self, thread: usize, name: &str, data: &[u8]) -> Result<u64, Failure> {
        let mut file = OpenOptions::new().append(true).open(self.dirs[thread].join(name))?;
        file.write_all(data)?;
        file.sync_data()?;
        Ok(file.metadata()?.len())
    }

    fn read(&self, thread: usize, name: &str, buffer: &mut [u8]) -> Result<(), Failure> {
        File::open(self.dirs[thread].join(name))?.read_at(buffer, 0)?;
        Ok(())
    }
}

fn turn(store: &dyn Store, mix_of: Mix, thread: usize, n: u64) -> Result<(), Failure> {
    let roll = |salt: u64| mix(n ^ salt << 40 ^ (thread as u64) << 56);
    let name = |salt: u64| format!("f{}", roll(salt) % FILES);
    let data = vec![n as u8; (1 + roll(9) % (2 * WRITE_BYTES)) as usize];
    let mut buffer = vec![0; 1 << 20];
    let gone = name(1);
    store.remove(thread, &gone)?;
    store.create(thread, &gone, &data)?;
    match mix_of {
        Mix::Varmail => {
            let mail = name(2);
            store.read(thread, &mail, &mut buffer)?;
            if store.append(thread, &mail, &data)? > FILE_BYTES_MAX {
                store.remove(thread, &mail)?;
                store.create(thread, &mail, &data)?;
            }
            store.read(thread, &name(3), &mut buffer)
        }
        Mix::Webproxy => {
            for salt in 2..7 {
                store.read(thread, &name(salt), &mut buffer)?;
            }
            if store.append(thread, "log", &data)? > 16 << 20 {
                store.remove(thread, "log")?;
                store.create(thread, "log", &data)?;
            }
            Ok(())
        }
    }
}

fn fill(store: &dyn Store, threads: usize, mean_bytes: u64) -> Result<(), Failure> {
    for thread in 0..threads {
        for n in 0..FILES {
            let data = vec![1; (1 + mix(n) % (2 * mean_bytes)) as usize];
            store.create(thread, &format!("f{n}"), &data)?;
        }
        store.create(thread, "log", &[])?;
    }
    Ok(())
}

fn ours(threads: usize, options: &MountOptions) -> Result<Ours, Failure> {
    let region = Region::anonymous(1 << 30)?;
    ferrite_fs::mkfs(&region, &super::options())?;
    let engine = Engine::mount(region, options)?;
    let dirs = (0..threads)
        .map(|thread| {
            let cred = ferrite_vfs::Cred::root();
            Ok(engine
                .mkdir(&cred, ROOT_INO, format!("d{thread}").as_bytes(), 0o755)?
                .ino)
        })
        .collect::<Result<_, Failure>>()?;
    Ok(Ours { engine, dirs })
}

/// What is measured: a mix, its threads, the row's name, mean size of a file in bytes.
const ROWS: [(Mix, usize, &str, u64); 4] = [
    (Mix::Varmail, 1, "varmail_1_thread", 32 << 10),
    (Mix::Varmail, 2, "varmail_2_threads", 32 << 10),
    (Mix::Webproxy, 1, "webproxy_1_thread", 64 << 10),
    (Mix::Webproxy, 2, "webproxy_2_threads", 64 << 10),
];

/// The rows' names.
pub(crate) fn names() -> Vec<&'static str> {
    ROWS.iter().map(|(_, _, name, _)| *name).collect()
}

/// Runs the group.
pub(crate) fn run(effort: Effort, out: &mut Output) -> Result<(), Failure> {
    let plain = MountOptions::default().cow_only(true);
    for (mix_of, threads, name, mean_bytes) in ROWS {
        if !out.wants(name) {
            continue;
        }
        let logs = ours(threads, &MountOptions::default())?;
        let copies = ours(threads, &plain)?;
        let scratch = TmpfsDir::new()?;
        let tmpfs = Tmpfs {
            dirs: (0..threads)
                .map(|thread| {
                    let dir = scratch.0.join(format!("d{thread}"));
                    std::fs::create_dir(&dir).map(|()| dir)
                })
                .collect::<std::io::Result<_>>()?,
        };
        let stores: [&dyn Store; 3] = [&logs, &tmpfs, &copies];
        for store in stores {
            fill(store, threads, mean_bytes)?;
        }
        let mut ns = [Vec::new(), Vec::new(), Vec::new()];
        for round in 0..=effort.rounds as u64 {
            for (times, store) in ns.iter_mut().zip(stores) {
                let work = |thread: usize, n: u64| turn(store, mix_of, thread, n ^ round << 32).is_ok();
                let per_second = rate(threads, &work);
                if round > 0 {
                    times.push(1e9 / per_second);
                }
            }
        }
        for (index, against) in [(1, "tmpfs"), (2, "logs off")] {
            let mut ratios: Vec<f64> = ns[0]
                .iter()
                .zip(&ns[index])
                .map(|(ours, theirs)| ours / theirs)
                .collect();
            out.row(&Row {
                group: "mixes",
                name,
                against,
                ratio: median(&mut ratios),
                median_ns: median(&mut ns[0].clone()),
                against_median_ns: median(&mut ns[index].clone()),
                fences: 0.0,
                lines_written_back: 0.0,
                bytes_streamed: 0.0,
                medium_bytes_per_byte: None,
                contents: None,
                circumstances: Circumstances {
                    page_bytes: 2 << 20,
                    fill_percent: 20,
                    cache: "larger than the caches",
                    threads: threads as u32,
                    placement: "any".into(),
                },
            })?;
        }
    }
    Ok(())
}
