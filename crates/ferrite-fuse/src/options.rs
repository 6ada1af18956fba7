//! Options of a mount.

/// Options of a mount.
#[derive(Debug, Clone)]
pub struct FuseOptions {
    /// Refuse changes in the kernel.
    pub read_only: bool,
    /// Make the kernel leave access times alone.
    pub noatime: bool,
    /// Allow other users; needs root, or `user_allow_other` in `/etc/fuse.conf`.
    pub allow_other: bool,
    /// Honour setuid and setgid bits and file capabilities (needs root).
    pub suid: bool,
    /// Honour device files (needs root).
    pub dev: bool,
    /// Refuse to execute programs.
    pub noexec: bool,
    /// Threads that serve requests of the classic transport, or call an engine that may block; 0 picks a suitable
    /// number.
    pub threads: usize,
    /// Let the engine keep record locks (`fcntl`) instead of the kernel: for an engine that has other users, too. Costs
    /// a request for each lock, and for each `close`.
    pub engine_locks: bool,
    /// Keep no data of files in the kernel: each read and write is a request. Long ones are faster, and memory holds no
    /// second copy of data that is in memory already; short reads of data read before are slower. Linux before 6.6 then
    /// refuses shared mappings (`ENODEV`).
    pub direct_io: bool,
    /// Whether each CPU's requests are served on that CPU.
    pub rings: Rings,
    /// The source that `df` and `/proc/mounts` show.
    pub source: String,
}

impl FuseOptions {
    /// How many threads read requests of the classic transport.
    pub(crate) fn readers(&self) -> usize {
        match self.threads {
            0 => std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            threads => threads,
        }
    }
}

/// Whether a mount uses FUSE over io_uring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Rings {
    /// If the kernel offers it, which an administrator has to switch on (`fuse.enable_uring`), and the engine never
    /// waits for a device or a server: waiting calls run on separate threads, and the hand-over takes longer than the
    /// classic transport.
    #[default]
    Auto,
    /// Fail the mount without it.
    On,
    /// Requests are read from `/dev/fuse`.
    Off,
}

impl Default for FuseOptions {
    fn default() -> Self {
        FuseOptions {
            read_only: false,
            noatime: false,
            allow_other: false,
            suid: false,
            dev: false,
            noexec: false,
            threads: 0,
            engine_locks: false,
            direct_io: false,
            rings: Rings::default(),
            source: "ferrite".into(),
        }
    }
}
