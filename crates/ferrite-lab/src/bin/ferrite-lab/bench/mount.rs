//! A mount compared with libfuse's `passthrough_ll` over tmpfs: same kernel, same requests, another daemon.
//!
//! Waking a thread on another core costs more than any of the work here, so every benchmark runs twice: client and
//! daemon on one core, and on two (docs/benchmarks.md). This group uses classic mounts; `rings` compares a mount on
//! rings with them.

mod rings;

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ferrite_pm::Counters;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::operations::TmpfsDir;
use super::{Circumstances, Duel, Effort, Output, page, whole};
use crate::{FAILED, Failure};

/// Names of the rows.
pub(crate) const NAMES: &[&str] = &[
    "write_4k",
    "read_4k",
    "create",
    "stat",
    "lookup_absent",
    rings::NAMES[0],
    rings::NAMES[1],
    rings::NAMES[2],
    rings::NAMES[3],
    rings::NAMES[4],
    rings::NAMES[5],
    rings::NAMES[6],
];
const FILE_BYTES: u64 = 64 << 20;
const POOL_BYTES: u64 = 256 << 20;
/// Where Debian's libfuse3-dev puts the source of the peer.
const PEER_SOURCE: &str = "/usr/share/doc/libfuse3-dev/examples/passthrough_ll.c";

/// A program on one core, or on all.
pub(super) fn command(core: Option<usize>, program: &Path) -> Command {
    let Some(core) = core else {
        return Command::new(program);
    };
    let mut command = Command::new("taskset");
    command.args(["-c", &core.to_string()]).arg(program);
    command
}

/// A daemon in the foreground, and where it mounted.
pub(super) struct Daemon {
    child: Child,
    dir: PathBuf,
}

impl Daemon {
    /// On one core, or on all.
    pub(super) fn start(
        core: Option<usize>,
        program: &Path,
        arguments: &[&str],
        dir: PathBuf,
    ) -> Result<Daemon, Failure> {
        std::fs::create_dir_all(&dir)?;
        let child = command(core, program)
            .args(arguments)
            .stdout(Stdio::null())
            .spawn()
            .map_err(|error| Failure::new(FAILED, format!("taskset (package util-linux): {error}")))?;
        let daemon = Daemon { child, dir };
        let start = Instant::now();
        while !is_mounted(&daemon.dir) {
            if start.elapsed() > Duration::from_secs(10) {
                return Err(Failure::new(
                    FAILED,
                    format!("{} did not mount within 10 s", program.display()),
                ));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(daemon)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = Command::new("umount")
            .arg("-l")
            .arg(&self.dir)
            .stderr(Stdio::null())
            .status();
        let _ = self.child.wait();
    }
}

fn is_mounted(dir: &Path) -> bool {
    let mut text = String::new();
    let read = File::open("/proc/self/mounts").and_then(|mut file| file.read_to_string(&mut text));
    read.is_ok() && text.lines().any(|line| line.split(' ').nth(1) == dir.to_str())
}

/// Builds the peer from its source.
fn build_peer(into: &Path) -> Result<PathBuf, Failure> {
    let need = |what: &str| Failure::new(FAILED, format!("the mount group needs {what}"));
    let source = into.join("passthrough_ll.c");
    if Path::new(PEER_SOURCE).exists() {
        std::fs::copy(PEER_SOURCE, &source)?;
        let helpers = Path::new(PEER_SOURCE).with_file_name("passthrough_helpers.h");
        std::fs::copy(helpers, into.join("passthrough_helpers.h"))?;
    } else {
        return Err(need(
            "libfuse3-dev, whose example passthrough_ll is the peer: apt-get install libfuse3-dev gcc pkg-config",
        ));
    }
    let flags = Command::new("pkg-config")
        .args(["--cflags", "--libs", "fuse3"])
        .output()
        .map_err(|_| need("pkg-config"))?;
    let flags = String::from_utf8_lossy(&flags.stdout).into_owned();
    let program = into.join("passthrough_ll");
    let built = Command::new("gcc")
        .args(["-O2", "-w", "-o"])
        .arg(&program)
        .arg(&source)
        .args(flags.split_whitespace())
        .status()
        .map_err(|_| need("gcc"))?;
    if built.success() {
        Ok(program)
    } else {
        Err(need("libfuse3-dev that compiles its own example"))
    }
}

fn pin(core: usize) -> Result<(), Failure> {
    let mut cpus = CpuSet::new();
    cpus.set(core);
    Ok(sched_setaffinity(None, &cpus)?)
}

/// Whether this process may mount and pin.
pub(super) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Runs the group.
pub(crate) fn run(effort: Effort, out: &mut Output) -> Result<(), Failure> {
    if !is_root() {
        return Err(Failure::new(
            FAILED,
            "the mount group needs root, to mount and to pin both daemons alike",
        ));
    }
    let before = sched_getaffinity(None)?;
    let tmpfs = TmpfsDir::new()?;
    let peer = build_peer(&tmpfs.0)?;
    let result = [("one core", 0), ("two cores", 1)]
        .into_iter()
        .try_for_each(|(placement, daemon_core)| {
            pin(0)?;
            placed(effort, out, &tmpfs.0, &peer, placement, daemon_core)
        });
    sched_setaffinity(None, &before)?;
    result?;
    rings::run(effort, out, &tmpfs.0)
}

fn make_pool(pool: &Path) -> Result<(), Failure> {
    let made = Command::new(crate::ferrite()?)
        .args(["mkfs", "--force", "--size", &POOL_BYTES.to_string()])
        .args(["--mapping", super::options().mapping.name()])
        .arg(pool)
        .stdout(Stdio::null())
        .status()?;
    match made.success() {
        true => Ok(()),
        false => Err(Failure::new(FAILED, "no pool for the benchmark")),
    }
}

fn placed(
    effort: Effort,
    out: &mut Output,
    base: &Path,
    peer: &Path,
    placement: &str,
    daemon_core: usize,
) -> Result<(), Failure> {
    let pool = base.join("pool");
    let us = crate::ferrite()?;
    let text = |path: &Path| path.display().to_string();
    make_pool(&pool)?;
    let backing = base.join("backing");
    std::fs::create_dir_all(&backing)?;
    let (our_dir, their_dir) = (base.join("ferrite"), base.join("peer"));
    let (our_text, their_text) = (text(&our_dir), text(&their_dir));
    let our_arguments = ["mount", "-f", "-o", "noatime,rings=off", &text(&pool), &our_text];
    let _ours = Daemon::start(Some(daemon_core), &us, &our_arguments, our_dir.clone())?;
    let source = format!("source={}", backing.display());
    let their_arguments = ["-f", "-o", &source, "-o", "cache=auto", &their_text];
    let _theirs = Daemon::start(Some(daemon_core), peer, &their_arguments, their_dir.clone())?;

    let operations = (effort.operations / 10).max(400);
    let mut duel = |name, slower: usize, ours: super::Work<'_>, theirs: super::Work<'_>| {
        Duel {
            group: "mount",
            name,
            against: "passthrough_ll",
            rounds: effort.rounds,
            operations: operations / slower,
            circumstances: Circumstances {
                page_bytes: 4096,
                fill_percent: 30,
                cache: "kernel's, bypassed by O_DIRECT reads",
                threads: 1,
                placement: placement.into(),
            },
            counters: &Counters::default,
            amplification: None,
        }
        .run(ours, theirs, out)
    };
    let files = [open(&our_dir)?, open(&their_dir)?];
    let block = [9; 4096];
    let write = |file: &File, n: u64| Ok(file.write_all_at(&block, page(n, FILE_BYTES))?);
    duel("write_4k", 1, &mut |n| write(&files[0], n), &mut |n| {
        write(&files[1], n)
    })?;
    let direct = [open_direct(&our_dir)?, open_direct(&their_dir)?];
    let mut aligned = Aligned([0; 4096]);
    let mut other = Aligned([0; 4096]);
    duel(
        "read_4k",
        1,
        &mut |n| whole(direct[0].read_at(&mut aligned.0, page(n, FILE_BYTES))?, 4096),
        &mut |n| whole(direct[1].read_at(&mut other.0, page(n, FILE_BYTES))?, 4096),
    )?;
    let create = |dir: &Path, n: u64| Ok(File::create(dir.join(format!("new{n}"))).map(drop)?);
    duel("create", 4, &mut |n| create(&our_dir, n), &mut |n| {
        create(&their_dir, n)
    })?;
    let stat = |dir: &Path, n: u64| {
        let _ = std::fs::symlink_metadata(dir.join(format!("new{}", n % 400)))?;
        Ok(())
    };
    duel("stat", 1, &mut |n| stat(&our_dir, n), &mut |n| stat(&their_dir, n))?;
    // Lookups of new names reach the daemon.
    let absent = |dir: &Path, n: u64| {
        let _ = std::fs::symlink_metadata(dir.join(format!("absent{n}")));
        Ok(())
    };
    duel("lookup_absent", 2, &mut |n| absent(&our_dir, n), &mut |n| {
        absent(&their_dir, n)
    })
}

/// O_DIRECT requires aligned memory.
#[repr(align(4096))]
struct Aligned([u8; 4096]);

fn open(dir: &Path) -> Result<File, Failure> {
    make_file(&dir.join("data"), FILE_BYTES)
}

fn make_file(path: &Path, len_bytes: u64) -> Result<File, Failure> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)?;
    let chunk = vec![1; 1 << 20];
    for offset in (0..len_bytes).step_by(1 << 20) {
        file.write_all_at(&chunk, offset)?;
    }
    Ok(file)
}

fn open_direct(dir: &Path) -> Result<File, Failure> {
    Ok(OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(dir.join("data"))?)
}
