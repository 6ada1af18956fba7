//! RUFS figures 7, 9, 11, 12 and 13: a file system over the network.
//!
//! Contents: the test bed that the five share, with a server of this engine on a loopback address, a client of it, and,
//! where installed, the NFS server that makes the same promise; figures 11 to 13, which read and write. `registered`
//! has figure 7, `metadata` figure 9; `server` those of the NVMe engine alone.
//!
//! The paper's network is InfiniBand of 56 Gb/s, its medium NVMe behind SPDK. Here both are this machine's memory and
//! the kernel's TCP. The comparison with NFS over ext4 and the cost of a synchronous promise transfer; no claim about
//! the speed of a network relative to a disk does.

mod metadata;
mod registered;
mod server;

use std::fs::{File, OpenOptions};
use std::net::TcpListener;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrite_buffers::{Buffer, Pool};
use ferrite_client::{Client, ClientOptions};
use ferrite_fs::{Engine, MkfsOptions, MountOptions};
use ferrite_server::{ExportOptions, Server, ServerOptions};
use ferrite_vfs::{FileSystem, NewFile, OpenFile, OpenMode, ROOT_INO, SYSTEM};
use rustix::fs::OFlags;

use super::{Figure, Judge, bars, panel_of};
use crate::data::{FigureData, Panel, Verdict, point};
use crate::engine::engine_in_memory;
use crate::error::LabError;
use crate::peers::{FILE_BYTES, Many, Nfs, page};
use crate::plan::Plan;
use crate::progress::Progress;

pub(super) use metadata::FIGURE as METADATA;
pub(super) use registered::FIGURE as REGISTERED;
pub(super) use server::{BACKENDS, DEVICES, SERVER_LARGE, SERVER_LATENCY, SERVER_SMALL, lacking};

const REMOTE: &str = "ferrite over TCP";
const ENGINE: &str = "ferrite's engine alone";
const NFS: &str = "NFS + ext4";
const EXT4_SYNC: &str = "ext4, O_SYNC";
const EXT4_DIRECT: &str = "ext4, O_DIRECT";
const READ: &str = "read";
const WRITE: &str = "write";
const LATENCY_PANEL: &str = "4 KiB at random places, one at a time";
const READ_PANEL: &str = "4 KiB random reads";
const WRITE_PANEL: &str = "4 KiB random writes";
const LARGE_PANEL: &str = "4 MiB in order";
const SMALL_BYTES: usize = 4096;
const LARGE_BYTES: usize = 4 << 20;
const DEPTHS: [u64; 4] = [1, 4, 8, 16];
/// Required ratios for "26 % of the time" and "far less", on a network that is the kernel's own.
const READ_TIMES: f64 = 2.0;
const WRITE_TIMES: f64 = 3.0;
const LIKELY: &str = "waking a thread on the other core costs more here than the work that is compared, for us as for \
    NFS; and NFS reads from its server's page cache, over a disk that is memory: it waits for no device, as the \
    paper's did.";

pub(super) const LATENCY: Figure = Figure {
    id: "rufs-11",
    title: "Latency of 4 KiB: the engine alone and over the network, with ext4 and NFS",
    claim: "RUFS over the network reads in 26 % of the time of NFS + ext4 and writes in far less; its server alone reads \
    in 20 % of ext4's time, writes slightly faster than O_DIRECT, and O_SYNC takes nearly 60 times as long.",
    on_fresh_pools: false,
    applies_media: false,
    steps: |_| 2,
    run: run_latency,
    check: check_latency,
};

pub(super) const SMALL: Figure = Figure {
    id: "rufs-12",
    title: "Throughput of 4 KiB with more and more requests under way",
    claim: "RUFS reads more than 3 times as much as NFS + ext4 and writes more than 8 times as much.",
    on_fresh_pools: false,
    applies_media: false,
    steps: |_| 2 * DEPTHS.len() as u64,
    run: run_small,
    check: check_small,
};

pub(super) const LARGE: Figure = Figure {
    id: "rufs-13",
    title: "Throughput of 4 MiB, in order",
    claim: "RUFS moves at least 40 % more than NFS + ext4, and as much as its server alone: the network is no \
    bottleneck.",
    on_fresh_pools: false,
    applies_media: false,
    steps: |_| 2,
    run: run_large,
    check: check_large,
};

/// An engine in memory, with a server and a client of it.
struct Remote {
    // In this order: the client, its server, and the engine that is served.
    client: Client,
    _server: Server,
    engine: Engine,
}

impl Remote {
    fn new() -> Result<Remote, LabError> {
        let engine = engine_in_memory(
            4 * FILE_BYTES,
            &MkfsOptions::default().seed(1),
            &MountOptions::default(),
        )?;
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?.to_string();
        let exports = vec![ExportOptions::new("").root_squash(false)];
        let served: Arc<dyn FileSystem> = Arc::new(engine.clone());
        let server = Server::start(vec![listener], vec![(served, exports)], &ServerOptions::default())?;
        let options = ClientOptions::default().timeout(Some(Duration::from_secs(20)));
        Ok(Remote {
            client: Client::connect(&address, "", &options)?,
            _server: server,
            engine,
        })
    }

    /// The file that is read and written, through the client and on the engine itself.
    fn files(&self) -> Result<[Arc<dyn OpenFile>; 2], LabError> {
        let new = NewFile {
            mode: 0o644,
            open: OpenMode::read_write(),
            exclusive: true,
        };
        let made = self.client.create(SYSTEM, ROOT_INO, b"data", &new)?;
        let chunk = vec![7; LARGE_BYTES];
        for offset in (0..FILE_BYTES).step_by(LARGE_BYTES) {
            write_whole(&*made.file, offset, &chunk)?;
        }
        let ino = self.client.lookup(SYSTEM, ROOT_INO, b"data")?.ino;
        Ok([made.file, self.engine.open(SYSTEM, ino, OpenMode::read_write())?])
    }
}

/// The NFS peer, with its directory, or the reason for its absence.
struct Peer {
    nfs: Result<Nfs, LabError>,
    _dir: tempfile::TempDir,
}

impl Peer {
    fn new() -> Result<Peer, LabError> {
        // In memory like our pool, if the system has such a place.
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())?;
        Ok(Peer {
            nfs: Nfs::start(dir.path(), None),
            _dir: dir,
        })
    }

    /// The remark about it for readers.
    fn note(&self) -> String {
        match &self.nfs {
            Ok(_) => {
                "NFS is nfs-ganesha over ext4 on a loop device in memory, with stable writes and directories that \
                      are written before an answer; its client is libnfs, one process. All share this machine's \
                      cores."
                    .into()
            }
            Err(why) => format!("NFS left out: {why}."),
        }
    }

    /// Microseconds of an operation; `None` without a peer.
    fn sample(&mut self, operation: &str, count: u64, depth: u64) -> Result<Option<f64>, LabError> {
        match &mut self.nfs {
            Ok(nfs) => Ok(Some(nfs.measure(operation, count, depth)? / 1000.0)),
            Err(_) => Ok(None),
        }
    }

    /// A file of ext4's own, on the host of the NFS server.
    fn ext4(&self, flags: OFlags) -> Result<Option<Local>, LabError> {
        let Ok(nfs) = &self.nfs else { return Ok(None) };
        Local::open(&nfs.local_dir().join("data"), flags, LARGE_BYTES).map(Some)
    }
}

/// A file of the host, with memory that `O_DIRECT` takes.
struct Local {
    file: File,
    buffer: Buffer,
}

impl Local {
    /// Opens a file or device for transfers of at most `len_max` bytes.
    fn open(path: &Path, flags: OFlags, len_max: usize) -> Result<Local, LabError> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(flags.bits().cast_signed())
            .open(path)?;
        let buffer = buffer(len_max)?;
        Ok(Local { file, buffer })
    }

    fn transfer(&mut self, is_write: bool, offset: u64, len: usize) -> Result<(), LabError> {
        let part = &mut self.buffer[..len];
        let result = match is_write {
            true => self.file.write_all_at(part, offset),
            false => self.file.read_exact_at(part, offset),
        };
        Ok(result?)
    }
}

/// Memory for one transfer, with the alignment that devices need.
fn buffer(len: usize) -> Result<Buffer, LabError> {
    let buffer = Pool::new(len).and_then(|pool| pool.take(len));
    buffer.ok_or_else(|| LabError::Peer("no memory for a buffer".into()))
}

/// Microseconds of each of `count` operations; their numbers continue over rounds.
fn timed(from: u64, count: u64, work: &mut dyn FnMut(u64) -> Result<(), LabError>) -> Result<f64, LabError> {
    let start = Instant::now();
    for number in from..from + count {
        work(number)?;
    }
    Ok(start.elapsed().as_nanos() as f64 / count as f64 / 1000.0)
}

/// Writes all, in as many steps as the server splits it into: each is atomic.
fn write_whole(file: &dyn OpenFile, offset: u64, data: &[u8]) -> Result<(), LabError> {
    let mut written = 0;
    while written < data.len() {
        written += file.write_at(SYSTEM, offset + written as u64, &data[written..])?;
    }
    Ok(())
}

/// One complete read or write.
fn transfer(file: &dyn OpenFile, is_write: bool, offset: u64, data: &mut [u8]) -> Result<(), LabError> {
    if is_write {
        return write_whole(file, offset, data);
    }
    match file.read_at(SYSTEM, offset, data)? {
        count if count == data.len() => Ok(()),
        count => Err(LabError::Wrong(format!("{count} of {} bytes read", data.len()))),
    }
}

/// Rounds in which the contenders take turns; the first warms up. A contender that is absent yields nothing.
type Contender<'c> = (&'static str, &'c mut dyn FnMut(u64) -> Result<Option<f64>, LabError>);

fn contest(panel: &mut Panel, x: f64, label: &str, plan: &Plan, sides: &mut [Contender<'_>]) -> Result<(), LabError> {
    let mut samples = vec![Vec::new(); sides.len()];
    for round in 0..=u64::from(plan.rounds) {
        for ((_, side), samples) in sides.iter_mut().zip(&mut samples) {
            let sample = side(round)?;
            if round > 0 {
                samples.extend(sample);
            }
        }
    }
    for ((name, _), samples) in sides.iter().zip(&mut samples) {
        if !samples.is_empty() {
            panel.push(name, point(x, label, samples));
        }
    }
    Ok(())
}

fn kind(is_write: bool) -> &'static str {
    if is_write { WRITE } else { READ }
}

/// Operations of a round, for an operation that is `rarer` times as long.
fn count(plan: &Plan, rarer: u32) -> u64 {
    u64::from((plan.hot_operations / 100 / rarer).max(2))
}

fn run_latency(plan: &Plan, progress: &mut dyn Progress) -> Result<FigureData, LabError> {
    let panel = bars(LATENCY_PANEL, "operation", "latency", "us", true);
    each_alone(plan, progress, panel, SMALL_BYTES, &|us| us)
}

fn run_large(plan: &Plan, progress: &mut dyn Progress) -> Result<FigureData, LabError> {
    let panel = bars(LARGE_PANEL, "operation", "throughput", "MB/s", false);
    each_alone(plan, progress, panel, LARGE_BYTES, &|us| LARGE_BYTES as f64 / us)
}

/// Reads and writes of one size, one at a time, by all contenders; `value` turns an operation's microseconds into the
/// plotted value.
fn each_alone(
    plan: &Plan,
    progress: &mut dyn Progress,
    mut panel: Panel,
    len: usize,
    value: &dyn Fn(f64) -> f64,
) -> Result<FigureData, LabError> {
    let remote = Remote::new()?;
    let [far, near] = remote.files()?;
    let mut peer = Peer::new()?;
    let (mut sync, mut direct) = (peer.ext4(OFlags::SYNC)?, peer.ext4(OFlags::DIRECT)?);
    let is_small = len == SMALL_BYTES;
    let count = count(plan, if is_small { 1 } else { 50 });
    let place = |number: u64| match is_small {
        true => page(number, FILE_BYTES),
        false => number * len as u64 % FILE_BYTES,
    };
    for (index, is_write) in [false, true].into_iter().enumerate() {
        progress.step(kind(is_write));
        let operation = match (is_small, is_write) {
            (true, false) => "read_4k",
            (true, true) => "write_4k",
            (false, false) => "read_4m",
            (false, true) => "write_4m",
        };
        let (mut one, mut other) = (vec![7; len], vec![7; len]);
        let ours = |file: &dyn OpenFile, data: &mut [u8], round: u64| {
            timed(round * count, count, &mut |n| transfer(file, is_write, place(n), data)).map(|us| Some(value(us)))
        };
        let ext4 = |local: &mut Option<Local>, round: u64| {
            let Some(local) = local else { return Ok(None) };
            timed(round * count, count, &mut |n| local.transfer(is_write, place(n), len)).map(|us| Some(value(us)))
        };
        let mut sides: Vec<Contender<'_>> = Vec::new();
        let mut far_side = |round| ours(&*far, &mut one, round);
        let mut near_side = |round| ours(&*near, &mut other, round);
        let mut nfs_side = |_| Ok(peer.sample(operation, count, 1)?.map(value));
        let mut direct_side = |round| ext4(&mut direct, round);
        let mut sync_side = |round| ext4(&mut sync, round);
        sides.push((REMOTE, &mut far_side));
        sides.push((NFS, &mut nfs_side));
        sides.push((ENGINE, &mut near_side));
        sides.push((EXT4_DIRECT, &mut direct_side));
        // The flag makes no difference for reads, which would come from the kernel's cache.
        if is_write {
            sides.push((EXT4_SYNC, &mut sync_side));
        }
        contest(&mut panel, index as f64, kind(is_write), plan, &mut sides)?;
    }
    Ok(FigureData {
        panels: vec![panel],
        notes: vec![peer.note(), network_note()],
    })
}

fn network_note() -> String {
    "Server and client of Ferrite are two sets of threads of one process, over TCP on the loopback interface; the pool \
     is memory without a name. Every write is durable when it returns. The paper has two hosts, InfiniBand and NVMe."
        .into()
}

fn check_latency(data: &FigureData) -> Verdict {
    let (mut judge, panel) = (Judge::default(), panel_of(data, LATENCY_PANEL));
    judge.at_least(&panel, READ, NFS, REMOTE, READ_TIMES);
    judge.at_least(&panel, WRITE, NFS, REMOTE, WRITE_TIMES);
    judge.at_least(&panel, READ, EXT4_DIRECT, ENGINE, 5.0);
    judge.at_least(&panel, WRITE, EXT4_DIRECT, ENGINE, 1.0);
    judge.at_least(&panel, WRITE, EXT4_SYNC, ENGINE, 10.0);
    judge.verdict(LIKELY)
}

fn run_small(plan: &Plan, progress: &mut dyn Progress) -> Result<FigureData, LabError> {
    let remote = Remote::new()?;
    let [far, _] = remote.files()?;
    let mut peer = Peer::new()?;
    let mut panels = [READ_PANEL, WRITE_PANEL].map(|title| Panel {
        lines: true,
        ..bars(title, "requests under way", "throughput", "MB/s", false)
    });
    let count = count(plan, 1);
    let throughput = |us: f64| SMALL_BYTES as f64 / us;
    for (panel, is_write) in panels.iter_mut().zip([false, true]) {
        for depth in DEPTHS {
            let label = depth.to_string();
            progress.step(&format!("{}, {label} under way", kind(is_write)));
            let many = Many::new(&far, FILE_BYTES, is_write, depth)?;
            let operation = if is_write { "write_4k" } else { "read_4k" };
            let mut ours = |_| {
                let start = Instant::now();
                many.run(count)?;
                Ok(Some(throughput(
                    start.elapsed().as_nanos() as f64 / count as f64 / 1000.0,
                )))
            };
            let mut theirs = |_| Ok(peer.sample(operation, count, depth)?.map(throughput));
            let mut sides: [Contender<'_>; 2] = [(REMOTE, &mut ours), (NFS, &mut theirs)];
            contest(panel, depth as f64, &label, plan, &mut sides)?;
        }
    }
    Ok(FigureData {
        panels: panels.into(),
        notes: vec![
            peer.note(),
            network_note(),
            "Requests under way on one connection stand for the paper's clients; on these cores more processes would \
             show the scheduler."
                .into(),
        ],
    })
}

fn check_small(data: &FigureData) -> Verdict {
    let mut judge = Judge::default();
    let deepest = DEPTHS[DEPTHS.len() - 1].to_string();
    for (title, times) in [(READ_PANEL, 3.0), (WRITE_PANEL, 8.0)] {
        let panel = panel_of(data, title);
        // More is better: the one that must move more comes first.
        judge.at_least(&panel, &deepest, REMOTE, NFS, times);
        judge.grows(&panel, REMOTE, "1", &deepest, 1.5);
    }
    judge.verdict(LIKELY)
}

fn check_large(data: &FigureData) -> Verdict {
    let (mut judge, panel) = (Judge::default(), panel_of(data, LARGE_PANEL));
    for operation in [READ, WRITE] {
        judge.at_least(&panel, operation, REMOTE, NFS, 1.4);
        judge.at_least(&panel, operation, ENGINE, EXT4_DIRECT, 1.0);
        judge.at_least(&panel, operation, REMOTE, ENGINE, 0.9);
    }
    judge.verdict(
        "the medium is memory here: it takes data faster than the kernel's TCP can copy it, twice, so the network is \
         what limits us, as no disk of the paper's did. NFS reads from its server's page cache, over the same TCP, and \
         waits for no disk either.",
    )
}
