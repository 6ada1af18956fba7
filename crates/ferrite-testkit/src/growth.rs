//! Resource usage of this process and a directory, for tests that nothing grows by opening, closing, crashing or
//! idling.

use std::path::Path;

/// Resources of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    /// Open files.
    pub descriptors: usize,
    /// Threads.
    pub threads: usize,
    /// Resident memory that belongs to no file.
    pub memory_bytes: u64,
}

impl Taken {
    /// Of this process, now.
    ///
    /// # Panics
    /// Without `/proc`.
    pub fn now() -> Taken {
        let count = |path: &str| std::fs::read_dir(path).unwrap().count();
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().unwrap();
        Taken {
            descriptors: count("/proc/self/fd"),
            threads: count("/proc/self/task"),
            memory_bytes: kib << 10,
        }
    }

    /// Asserts that it has not grown, but for the usage of other tests of the same program, and for memory that the
    /// allocator keeps.
    ///
    /// # Panics
    /// If it has grown.
    pub fn is_no_more_than(self, before: Taken, what: &str) {
        let is_bounded = self.descriptors <= before.descriptors + 40
            && self.threads <= before.threads + 20
            && self.memory_bytes <= before.memory_bytes + (48 << 20);
        assert!(is_bounded, "{what}: {self:?}, and before {before:?}");
    }
}

/// The number of files in a directory, and the sum of their bytes.
///
/// # Panics
/// If it cannot be read.
pub fn files_in(dir: &Path) -> (usize, u64) {
    let entries = std::fs::read_dir(dir).unwrap();
    // A file that is removed meanwhile counts as empty.
    let sizes = entries.map(|entry| entry.unwrap().metadata().map_or(0, |found| found.len()));
    sizes.fold((0, 0), |(files, bytes), size| (files + 1, bytes + size))
}
