//! What this process and a directory take, for tests that nothing grows by opening, closing, crashing or idling.

use std::path::Path;

/// What a process takes of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    /// Open files.
    pub descriptors: usize,
    /// Threads.
    pub threads: usize,
    /// Resident memory that is no file's.
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

    /// It is no more than it was, but for what other tests of the same program may take, and for memory that the
    /// allocator keeps.
    ///
    /// # Panics
    /// If it is.
    pub fn is_no_more_than(self, before: Taken, what: &str) {
        let is_bounded = self.descriptors <= before.descriptors + 40
            && self.threads <= before.threads + 20
            && self.memory_bytes <= before.memory_bytes + (48 << 20);
        assert!(is_bounded, "{what}: {self:?}, and before {before:?}");
    }
}

/// How many files a directory holds, and how many bytes they have.
///
/// # Panics
/// If it cannot be read.
pub fn files_in(dir: &Path) -> (usize, u64) {
    let entries = std::fs::read_dir(dir).unwrap();
    // What is removed meanwhile has no length.
    let sizes = entries.map(|entry| entry.unwrap().metadata().map_or(0, |found| found.len()));
    sizes.fold((0, 0), |(files, bytes), size| (files + 1, bytes + size))
}
