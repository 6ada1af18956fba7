//! Filebench-like mixes with the parameters of HDPM §4.3, one and two threads: against tmpfs, which makes nothing
//! durable, and against the engine without page logs. The lab has the mixes ([`ferrite_lab::mixes`]); tmpfs as a store
//! for them lives here.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use ferrite_fs::MountOptions;
use ferrite_lab::LabError;
use ferrite_lab::mixes::{Mix, Store, Whole, fill, rate};
use ferrite_measure::median;
use parking_lot::Mutex;

use super::operations::TmpfsDir;
use super::threads::SLICE;
use super::{Circumstances, Effort, Output, Row};
use crate::Failure;

/// Files of each thread.
const FILES: u32 = 1000;

struct Tmpfs {
    /// Of each thread.
    dirs: Vec<PathBuf>,
    /// For each thread: the data to write, and the buffer for reads.
    buffers: Vec<Mutex<(Vec<u8>, Vec<u8>)>>,
}

impl Tmpfs {
    fn new(dir: &Path, mix: Mix, threads: usize) -> Result<Tmpfs, Failure> {
        let dirs = (0..threads).map(|thread| {
            let dir = dir.join(format!("d{thread}"));
            std::fs::create_dir(&dir).map(|()| dir)
        });
        let len = mix.largest_bytes();
        Ok(Tmpfs {
            dirs: dirs.collect::<std::io::Result<_>>()?,
            buffers: (0..threads).map(|_| Mutex::new((vec![7; len], vec![0; len]))).collect(),
        })
    }

    fn at<T>(
        &self,
        thread: usize,
        file: u32,
        act: impl FnOnce(&Path, &mut (Vec<u8>, Vec<u8>)) -> std::io::Result<T>,
    ) -> Result<T, LabError> {
        let path = self.dirs[thread].join(format!("f{file}"));
        act(&path, &mut self.buffers[thread].lock()).map_err(|source| LabError::File { path, source })
    }
}

impl Store for Tmpfs {
    fn remove(&self, thread: usize, file: u32) -> Result<(), LabError> {
        self.at(thread, file, |path, _| std::fs::remove_file(path))
    }

    fn create(&self, thread: usize, file: u32, bytes: u64) -> Result<(), LabError> {
        self.at(thread, file, |path, (data, _)| {
            let mut file = File::create(path)?;
            file.write_all(&data[..bytes as usize])?;
            file.sync_data()
        })
    }

    fn append(&self, thread: usize, file: u32, bytes: u64) -> Result<u64, LabError> {
        self.at(thread, file, |path, (data, _)| {
            let mut file = OpenOptions::new().append(true).open(path)?;
            file.write_all(&data[..bytes as usize])?;
            file.sync_data()?;
            Ok(file.metadata()?.len())
        })
    }

    fn read(&self, thread: usize, file: u32) -> Result<(), LabError> {
        self.at(thread, file, |path, (_, buffer)| {
            File::open(path)?.read_at(buffer, 0).map(drop)
        })
    }

    fn stat(&self, thread: usize, file: u32) -> Result<(), LabError> {
        self.at(thread, file, |path, _| std::fs::symlink_metadata(path).map(drop))
    }
}

/// The rows: a mix, its threads, the row's name.
const ROWS: [(Mix, usize, &str); 4] = [
    (Mix::Varmail, 1, "varmail_1_thread"),
    (Mix::Varmail, 2, "varmail_2_threads"),
    (Mix::Webproxy, 1, "webproxy_1_thread"),
    (Mix::Webproxy, 2, "webproxy_2_threads"),
];

/// The rows' names.
pub(crate) fn names() -> Vec<&'static str> {
    ROWS.iter().map(|(_, _, name)| *name).collect()
}

/// Runs the group.
pub(crate) fn run(effort: Effort, out: &mut Output) -> Result<(), Failure> {
    for (mix, threads, name) in ROWS {
        if !out.wants(name) {
            continue;
        }
        let ours = |mount: MountOptions| Whole::new(&super::options(), &mount, mix, threads, FILES);
        let logs = ours(MountOptions::default())?;
        let copies = ours(MountOptions::default().cow_only(true))?;
        let scratch = TmpfsDir::new()?;
        let tmpfs = Tmpfs::new(&scratch.0, mix, threads)?;
        let stores: [&dyn Store; 3] = [&logs, &tmpfs, &copies];
        for store in stores {
            fill(store, mix, threads, FILES)?;
        }
        let fill_percent = logs.fill_percent()?;
        let mut ns = [Vec::new(), Vec::new(), Vec::new()];
        for round in 0..=effort.rounds as u64 {
            for (times, store) in ns.iter_mut().zip(stores) {
                let per_second = rate(store, mix, threads, FILES, SLICE, round)?;
                // The first round is a warm-up and does not count.
                if round > 0 {
                    times.push(1e9 / per_second);
                }
            }
        }
        for (index, against) in [(1, "tmpfs"), (2, "logs off")] {
            let ratios: Vec<f64> = ns[0]
                .iter()
                .zip(&ns[index])
                .map(|(ours, theirs)| ours / theirs)
                .collect();
            out.row(&Row {
                group: "mixes",
                name,
                against,
                ratio: median(&ratios),
                median_ns: median(&ns[0]),
                against_median_ns: median(&ns[index]),
                fences: 0.0,
                lines_written_back: 0.0,
                bytes_streamed: 0.0,
                medium_bytes_per_byte: None,
                contents: None,
                circumstances: Circumstances {
                    page_bytes: 2 << 20,
                    fill_percent,
                    cache: "larger than the caches",
                    threads: threads as u32,
                    placement: "any".into(),
                },
            })?;
        }
    }
    Ok(())
}
