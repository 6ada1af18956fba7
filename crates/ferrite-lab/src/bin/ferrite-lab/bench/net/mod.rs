//! A remote client compared with the raw transport: messages of the same lengths between the same cores, without any
//! work on them ([`pingpong`]); and with the client of an NFS server that promises the same ([`Nfs`]).
//!
//! At depth 16 the client has 16 requests under way, which a message of the peer cannot match; there one request is
//! compared with one exchange of messages at a time.
//!
//! Waking a thread on another core costs more than any of the work here, so every benchmark runs twice: client and
//! server on one core, and on two (docs/benchmarks.md).

mod crowd;
#[cfg(feature = "fabric")]
mod fabric;
pub(super) mod pingpong;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use ferrite_client::{Client, ClientOptions};
use ferrite_lab::peers::{FILE_BYTES, Many, Nfs, page};
use ferrite_pm::Counters;
use ferrite_vfs::{FileSystem, NewFile, OpenFile, OpenMode, ROOT_INO, RenameMode, SYSTEM};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::contest::{Contest, timed};
use super::mount::command;
use super::operations::TmpfsDir;
use super::{Circumstances, Duel, Effort, Output, whole};
use crate::{FAILED, Failure, complain};
use pingpong::PingPong;

/// Names of the rows.
pub(crate) const NAMES: &[&str] = &[
    "net_read_4k",
    "net_write_4k",
    "net_stat",
    "net_create_unlink",
    "net_read_4m",
    "net_write_4m",
    "net_read_4k_depth_16",
    "net_write_4k_depth_16",
    "net_mkdir_rmdir",
    "net_rename",
    crowd::NAME,
    "net_read_4k_shm",
    "net_write_4k_shm",
];
/// Requests under way in the rows that say so.
const DEPTH: u64 = 16;
const POOL_BYTES: u64 = 256 << 20;
const LARGE_BYTES: usize = 4 << 20;
/// Approximate bytes of a request or reply without data on the wire: frame, head, a few numbers.
const MESSAGE_BYTES: usize = 64;

/// A server process, perhaps pinned to a core; it ends when this value is dropped.
pub(super) struct Served {
    child: Child,
    /// The line in which it printed its address.
    line: String,
}

impl Served {
    fn start(core: usize, program: &Path, arguments: &[&str]) -> Result<Served, Failure> {
        Served::start_on(Some(core), program, arguments)
    }

    fn start_on(core: Option<usize>, program: &Path, arguments: &[&str]) -> Result<Served, Failure> {
        let mut child = command(core, program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| Failure::new(FAILED, format!("taskset (package util-linux): {error}")))?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        Ok(Served { child, line })
    }

    /// `ferrite serve` with a new pool.
    fn pool(core: usize, base: &Path, listen: &str) -> Result<Served, Failure> {
        Served::pool_of(POOL_BYTES, Some(core), base, listen)
    }

    /// The same of this size, on one core or on all.
    pub(super) fn pool_of(bytes: u64, core: Option<usize>, base: &Path, listen: &str) -> Result<Served, Failure> {
        let pool = base.join("pool").display().to_string();
        let program = crate::ferrite()?;
        let made = Command::new(&program)
            .args(["mkfs", "--force", "--size", &bytes.to_string()])
            .args(["--mapping", super::options().mapping.name(), &pool])
            .stdout(Stdio::null())
            .status()?;
        if !made.success() {
            return Err(Failure::new(FAILED, "no pool for the benchmark"));
        }
        Served::start_on(
            core,
            &program,
            &["serve", &pool, "--no-root-squash", "--listen", listen],
        )
    }

    /// `HOST:PORT` from the line that the process printed.
    pub(super) fn address(&self) -> Result<&str, Failure> {
        let word = self.line.split_whitespace().next_back().unwrap_or_default();
        let address = word.trim_start_matches("tcp://").trim_start_matches("fabric://");
        let address = address.trim_end_matches('/');
        match address.is_empty() {
            true => Err(Failure::new(FAILED, "the benchmark's server did not start")),
            false => Ok(address),
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn pin(core: usize) -> Result<(), Failure> {
    let mut cpus = CpuSet::new();
    cpus.set(core);
    Ok(sched_setaffinity(None, &cpus)?)
}

/// Runs the group.
pub(crate) fn run(effort: Effort, out: &mut Output) -> Result<(), Failure> {
    let before = sched_getaffinity(None)?;
    let tmpfs = TmpfsDir::new()?;
    let result = [("one core", 0), ("two cores", 1)]
        .into_iter()
        .try_for_each(|(placement, server_core)| {
            pin(0)?;
            placed(effort, out, &tmpfs.0, placement, server_core)?;
            crowd::run(effort, out, &tmpfs.0, placement, server_core)?;
            #[cfg(feature = "fabric")]
            fabric::run(effort, out, &tmpfs.0, placement, server_core)?;
            Ok(())
        });
    sched_setaffinity(None, &before)?;
    result
}

fn placed(
    effort: Effort,
    out: &mut Output,
    base: &Path,
    placement: &'static str,
    server_core: usize,
) -> Result<(), Failure> {
    let server = Served::pool(server_core, base, "tcp://127.0.0.1:0")?;
    let echo = Served::start(server_core, &std::env::current_exe()?, &["bench", "--echo"])?;
    let client = connect(server.address()?)?;
    let file = filled(&client)?;
    let mut peer = PingPong::connect(echo.address()?)?;

    let mut duel = |name, slower: usize, ours: super::Work<'_>, theirs: super::Work<'_>| {
        Duel {
            group: "net",
            name,
            against: "raw TCP",
            rounds: effort.rounds,
            operations: (effort.operations / slower).max(20),
            circumstances: circumstances(placement),
            counters: &Counters::default,
            amplification: None,
        }
        .run(ours, theirs, out)
    };
    let mut block = [9; 4096];
    duel(
        "net_read_4k",
        1,
        &mut |n| whole(file.read_at(SYSTEM, page(n, FILE_BYTES), &mut block)?, 4096),
        &mut |_| peer.exchange(MESSAGE_BYTES, MESSAGE_BYTES + 4096),
    )?;
    duel(
        "net_write_4k",
        1,
        &mut |n| whole(file.write_at(SYSTEM, page(n, FILE_BYTES), &block)?, 4096),
        &mut |_| peer.exchange(MESSAGE_BYTES + 4096, MESSAGE_BYTES),
    )?;
    duel(
        "net_stat",
        1,
        &mut |_| Ok(client.lookup(SYSTEM, ROOT_INO, b"data").map(drop)?),
        &mut |_| peer.exchange(MESSAGE_BYTES, 2 * MESSAGE_BYTES),
    )?;
    duel(
        "net_create_unlink",
        4,
        &mut |n| {
            let name = format!("new{n}");
            drop(client.create(SYSTEM, ROOT_INO, name.as_bytes(), &new_file())?);
            Ok(client.unlink(SYSTEM, ROOT_INO, name.as_bytes())?)
        },
        &mut |_| {
            peer.exchange(MESSAGE_BYTES, 3 * MESSAGE_BYTES)?;
            peer.exchange(MESSAGE_BYTES, MESSAGE_BYTES)
        },
    )?;
    let mut large = vec![7; LARGE_BYTES];
    let place = |n: u64| n * LARGE_BYTES as u64 % FILE_BYTES;
    duel(
        "net_read_4m",
        200,
        &mut |n| whole(file.read_at(SYSTEM, place(n), &mut large)?, LARGE_BYTES),
        &mut |_| peer.exchange(MESSAGE_BYTES, MESSAGE_BYTES + LARGE_BYTES),
    )?;
    duel(
        "net_write_4m",
        200,
        &mut |n| write_whole(&*file, place(n), &large),
        &mut |_| peer.exchange(MESSAGE_BYTES + LARGE_BYTES, MESSAGE_BYTES),
    )?;
    let count = effort.operations as u64;
    for (name, is_write) in [("net_read_4k_depth_16", false), ("net_write_4k_depth_16", true)] {
        let many = Many::new(&file, FILE_BYTES, is_write, DEPTH)?;
        let bytes = if is_write { (4096, 0) } else { (0, 4096) };
        let contest = Contest {
            name,
            against: "raw TCP, depth 1",
            rounds: effort.rounds,
            group: "net",
            contents: None,
            circumstances: circumstances(placement),
        };
        let ours = &mut || timed(count, || Ok(many.run(count)?));
        let theirs = &mut || {
            timed(count, || {
                (0..count).try_for_each(|_| peer.exchange(MESSAGE_BYTES + bytes.0, MESSAGE_BYTES + bytes.1))
            })
        };
        contest.run(ours, theirs, out)?;
    }
    match Nfs::start(base, Some(server_core)) {
        Ok(mut nfs) => against_nfs(effort, out, placement, &client, &file, &mut nfs),
        Err(error) => {
            complain(format_args!("ferrite: NFS left out: {error}"));
            Ok(())
        }
    }
}

/// Compares both clients; operations slower than a small read run less often.
fn against_nfs(
    effort: Effort,
    out: &mut Output,
    placement: &'static str,
    client: &Arc<Client>,
    file: &Arc<dyn OpenFile>,
    nfs: &mut Nfs,
) -> Result<(), Failure> {
    let mut contest = |name, operation: &str, rarer: usize, depth, ours: &mut dyn FnMut(u64) -> Result<(), Failure>| {
        // NFS waits for its disk, if only for one in memory.
        let count = (effort.operations / rarer / 4).max(10) as u64;
        let contest = Contest {
            name,
            against: "NFS",
            rounds: effort.rounds,
            group: "net",
            contents: None,
            circumstances: circumstances(placement),
        };
        let ours = &mut || timed(count, || ours(count));
        contest.run(ours, &mut || Ok(nfs.measure(operation, count, depth)?), out)
    };
    let mut block = [9; 4096];
    let mut next = 0;
    let mut place = move |len: u64| {
        next += 1;
        match len {
            4096 => page(next, FILE_BYTES),
            _ => next * len % FILE_BYTES,
        }
    };
    let each = |count: u64, one: &mut dyn FnMut() -> Result<(), Failure>| (0..count).try_for_each(|_| one());
    contest("net_read_4k", "read_4k", 1, 1, &mut |count| {
        each(count, &mut || {
            whole(file.read_at(SYSTEM, place(4096), &mut block)?, 4096)
        })
    })?;
    contest("net_write_4k", "write_4k", 2, 1, &mut |count| {
        each(count, &mut || whole(file.write_at(SYSTEM, place(4096), &block)?, 4096))
    })?;
    for (name, operation, rarer, is_write) in [
        ("net_read_4k_depth_16", "read_4k", 1, false),
        ("net_write_4k_depth_16", "write_4k", 2, true),
    ] {
        let many = Many::new(file, FILE_BYTES, is_write, DEPTH)?;
        contest(name, operation, rarer, DEPTH, &mut |count| Ok(many.run(count)?))?;
    }
    let mut large = vec![7; LARGE_BYTES];
    contest("net_read_4m", "read_4m", 200, 1, &mut |count| {
        each(count, &mut || {
            whole(
                file.read_at(SYSTEM, place(LARGE_BYTES as u64), &mut large)?,
                LARGE_BYTES,
            )
        })
    })?;
    let large = vec![7; LARGE_BYTES];
    contest("net_write_4m", "write_4m", 200, 1, &mut |count| {
        each(count, &mut || write_whole(&**file, place(LARGE_BYTES as u64), &large))
    })?;
    contest("net_stat", "stat", 1, 1, &mut |count| {
        each(count, &mut || Ok(client.lookup(SYSTEM, ROOT_INO, b"data").map(drop)?))
    })?;
    contest("net_create_unlink", "create_unlink", 8, 1, &mut |count| {
        each(count, &mut || {
            drop(client.create(SYSTEM, ROOT_INO, b"new", &new_file())?);
            Ok(client.unlink(SYSTEM, ROOT_INO, b"new")?)
        })
    })?;
    contest("net_mkdir_rmdir", "mkdir_rmdir", 8, 1, &mut |count| {
        each(count, &mut || {
            client.mkdir(SYSTEM, ROOT_INO, b"new", 0o755)?;
            Ok(client.rmdir(SYSTEM, ROOT_INO, b"new")?)
        })
    })?;
    drop(client.create(SYSTEM, ROOT_INO, b"here", &new_file())?);
    let mut names: [&[u8]; 2] = [b"here", b"there"];
    contest("net_rename", "rename", 8, 1, &mut |count| {
        each(count, &mut || {
            client.rename(SYSTEM, ROOT_INO, names[0], ROOT_INO, names[1], RenameMode::Replace)?;
            names.swap(0, 1);
            Ok(())
        })
    })
}

fn circumstances(placement: &str) -> Circumstances {
    Circumstances {
        page_bytes: 4096,
        fill_percent: 30,
        cache: "nothing cached by the client",
        threads: 1,
        placement: placement.into(),
    }
}

/// Writes all, in as many steps as the server splits it into: each is atomic.
fn write_whole(file: &dyn OpenFile, offset: u64, data: &[u8]) -> Result<(), Failure> {
    let mut written = 0;
    while written < data.len() {
        written += file.write_at(SYSTEM, offset + written as u64, &data[written..])?;
    }
    Ok(())
}

fn connect(address: &str) -> Result<Arc<Client>, Failure> {
    let options = ClientOptions::default().timeout(Some(Duration::from_secs(20)));
    Ok(Arc::new(Client::connect(address, "", &options)?))
}

fn new_file() -> NewFile {
    NewFile {
        mode: 0o644,
        open: OpenMode::read_write(),
        exclusive: true,
    }
}

/// A file with content.
fn filled(client: &Client) -> Result<Arc<dyn OpenFile>, Failure> {
    let file = client.create(SYSTEM, ROOT_INO, b"data", &new_file())?.file;
    let chunk = vec![1; 1 << 20];
    for offset in (0..FILE_BYTES).step_by(chunk.len()) {
        whole(file.write_at(SYSTEM, offset, &chunk)?, chunk.len())?;
    }
    Ok(file)
}
