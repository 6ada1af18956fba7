//! Mounts of pools with their content in S3, compared with mounts of JuiceFS on the same PostgreSQL and the same
//! service of S3: one where `fsync` waits for the bucket, and two where it waits for a log, against JuiceFS's
//! write-back: for a log on a file, and for one that a server on the same machine has as well.
//!
//! The service runs in this process, over files in memory, so both sides share the machine with it. Needs what
//! [`super::juicefs`] needs.

use std::fs::{File, OpenOptions};
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use ferrite_measure::Rng;
use ferrite_nvme::{DataPlace, S3 as S3Place, Tier, TierMode};
use ferrite_test_clusters::{Postgres, S3};
use rustix::fs::{Advice, fadvise};

use super::super::contest::timed;
use super::super::mount::Daemon;
use super::super::net::Served;
use super::super::{Effort, Output};
use super::juicefs::{self, Mounted, Storage};
use super::{contest, make_pool, on_database};
use crate::{FAILED, Failure};

use training::Training;
use tree::Trees;

mod training;
mod tree;

/// Names of the rows: those without a log, those with one, and those with one on two servers.
pub(super) const NAMES: &[&str] = &[
    "cluster_s3_create",
    "cluster_s3_fsync_4k",
    "cluster_s3_write_1m",
    "cluster_s3_read_1m",
    "cluster_s3_read_1m_warm",
    "cluster_s3_read_1m_16_threads",
    "cluster_s3_read_4k_random",
    "cluster_s3_epoch_1_worker",
    "cluster_s3_epoch_16_workers",
    "cluster_s3_epoch_16_workers_warm",
    "cluster_s3_epoch_small_files_16_workers",
    "cluster_s3_checkpoint",
    "cluster_s3_untar",
    "cluster_s3_remove_tree",
    "cluster_s3_log_fsync_4k",
    "cluster_s3_log_write_1m",
    "cluster_s3_mirror_fsync_4k",
    "cluster_s3_mirror_write_1m",
];
const BUCKET: &str = "bucket";
/// Four times what either side keeps in memory.
const LARGE_BYTES: u64 = 256 << 20;
const CACHE_MIB: u64 = 64;
const MIB: u64 = 1 << 20;
const READERS: u64 = 16;
/// Transfers of 1 MiB between two calls of `fsync`.
const WRITES_A_SYNC: u64 = 16;

/// Runs the rows that are wanted and possible.
pub(super) fn run(effort: Effort, out: &mut Output, database: &Postgres, dir: &Path) -> Result<(), Failure> {
    if !NAMES.iter().any(|name| out.wants(name)) || !juicefs::is_possible() {
        return Ok(());
    }
    let service = S3::start(BUCKET)?;
    let keys = dir.join("keys");
    std::fs::write(&keys, service.keys())?;
    let modes = [TierMode::Through, TierMode::Back, TierMode::Mirror];
    let names = [&NAMES[..14], &NAMES[14..16], &NAMES[16..]];
    for (mode, names) in modes.into_iter().zip(names) {
        if names.iter().any(|name| out.wants(name)) {
            compare(effort, out, (database, &service, dir), mode)?;
        }
    }
    Ok(())
}

/// The name of the pool whose log is in this mode; without one if `fsync` waits for the bucket.
fn name_of(mode: TierMode) -> &'static str {
    match mode {
        TierMode::Through => "through",
        TierMode::Back => "logged",
        TierMode::Mirror => "mirrored",
    }
}

/// The rows of one pair of mounts.
fn compare(
    effort: Effort,
    out: &mut Output,
    (database, service, dir): (&Postgres, &S3, &Path),
    mode: TierMode,
) -> Result<(), Failure> {
    let name = name_of(mode);
    let (ours, theirs) = (dir.join(format!("s3-{name}")), dir.join(format!("s3-juicefs-{name}")));
    let peer = match mode {
        TierMode::Mirror => Some(Peer::start(dir)?),
        _ => None,
    };
    let copy = peer.as_ref().map(|peer| peer.at.join("log"));
    let _our_daemon = mount_pool(database, service, dir, (mode, copy), &ours)?;
    let storage = Storage::S3 {
        service,
        bucket: BUCKET,
        cache_mib: CACHE_MIB,
        has_write_back: mode != TierMode::Through,
    };
    let _their_daemon = juicefs::mount(database, dir, &theirs, &format!("s3{name}"), &storage)?;
    let archive = tree::archive(dir)?;
    let on = |mount: &Path| Large::on(mount, Trees::on(mount, &archive)?);
    let (mut mine, mut other) = (on(&ours)?, on(&theirs)?);
    let rows = rows(effort, mode);
    let against = match mode {
        TierMode::Through => "JuiceFS",
        _ => "JuiceFS, write-back",
    };
    for (name, goal, count, work) in rows {
        if !out.wants(name) {
            continue;
        }
        if name == "cluster_s3_remove_tree" {
            // One for each round, and the first round does not count.
            let mut both = [&mine, &other].into_iter();
            both.try_for_each(|of| of.trees.extract_some(effort.rounds as u64 + 1))?;
        }
        if name.starts_with("cluster_s3_epoch") {
            [&mine, &other].into_iter().try_for_each(|of| of.training.prepare())?;
        }
        let ours = &mut || mine.round(count, work);
        let theirs = &mut || other.round(count, work);
        contest(effort, name, against, goal, 1).run(ours, theirs, out)?;
    }
    Ok(())
}

/// Another server, with a mount that the second copy of a log is on.
struct Peer {
    at: PathBuf,
    _mount: Daemon,
    _server: Served,
}

impl Peer {
    fn start(dir: &Path) -> Result<Peer, Failure> {
        let (base, at) = (dir.join("peer"), dir.join("s3-peer"));
        std::fs::create_dir_all(&base)?;
        let server = Served::pool_of(4 * LARGE_BYTES, None, &base, "tcp://127.0.0.1:0")?;
        let (address, place) = (format!("tcp://{}", server.address()?), at.display().to_string());
        let mount = Daemon::start(None, &crate::ferrite()?, &["mount", "-f", &address, &place], at.clone())?;
        Ok(Peer {
            at,
            _mount: mount,
            _server: server,
        })
    }
}

fn mount_pool(
    database: &Postgres,
    service: &S3,
    dir: &Path,
    (mode, mirror): (TierMode, Option<PathBuf>),
    at: &Path,
) -> Result<Daemon, Failure> {
    let name = name_of(mode);
    let volume = format!("s3{name}");
    let config = make_pool(dir, &volume, |config| {
        on_database(config, database, &volume);
        let mut place = S3Place::at(format!("s3://{BUCKET}/ferrite/{name}"));
        place.endpoint = Some(service.endpoint());
        place.region = Some("us-east-1".into());
        place.credentials = Some(dir.join("keys"));
        place.cache = CACHE_MIB * MIB;
        config.data = DataPlace::S3(place);
        config.tier = (mode != TierMode::Through).then(|| Tier {
            device: dir.join(format!("s3-{name}.log")),
            size: Some(2 * LARGE_BYTES),
            mirror,
            mode: Some(mode),
            age_s: 30,
        });
    })?;
    let (address, at_text) = (format!("nvme:{}", config.display()), at.display().to_string());
    let arguments = ["mount", "-f", &address, &at_text];
    Daemon::start(None, &crate::ferrite()?, &arguments, at.to_owned())
}

/// A row's name, its goal, the operations of a round, and one of these.
type Row = (&'static str, &'static str, u64, Work);

fn rows(effort: Effort, mode: TierMode) -> Vec<Row> {
    let few = (effort.operations as u64 / 400).max(4);
    let many = (effort.operations as u64 / 100).max(4);
    match mode {
        TierMode::Through => vec![
            ("cluster_s3_create", "goal at most 0.2", few, Large::create),
            ("cluster_s3_fsync_4k", "goal at most 1", few, Large::fsync),
            ("cluster_s3_write_1m", "goal at most 1", many, Large::write),
            ("cluster_s3_read_1m", "goal at most 1", many, Large::read),
            ("cluster_s3_read_1m_warm", "goal at most 0.5", many, Large::read_warm),
            (
                "cluster_s3_read_1m_16_threads",
                "goal at most 1",
                (few / 4).max(2),
                Large::read_crowd,
            ),
            ("cluster_s3_read_4k_random", "goal at most 1", few, Large::read_random),
            ("cluster_s3_epoch_1_worker", "goal at most 1", 1, |of, _| {
                of.training.read_shards(1)
            }),
            ("cluster_s3_epoch_16_workers", "goal at most 1", 1, |of, _| {
                of.training.read_shards(16)
            }),
            ("cluster_s3_epoch_16_workers_warm", "goal at most 0.5", 1, |of, _| {
                of.training.read_kept(16)
            }),
            (
                "cluster_s3_epoch_small_files_16_workers",
                "goal at most 1",
                1,
                |of, _| of.training.read_small(16),
            ),
            ("cluster_s3_checkpoint", "goal at most 1", 1, |of, n| {
                of.training.write_checkpoint(n)
            }),
            ("cluster_s3_untar", "goal at most 0.2", 1, |of, n| of.trees.extract(n)),
            ("cluster_s3_remove_tree", "goal at most 0.2", 1, |of, _| {
                of.trees.remove_one()
            }),
        ],
        TierMode::Back => vec![
            ("cluster_s3_log_fsync_4k", "goal at most 0.05", few, Large::fsync),
            ("cluster_s3_log_write_1m", "goal at most 1", many, Large::write),
        ],
        TierMode::Mirror => vec![
            ("cluster_s3_mirror_fsync_4k", "goal at most 0.05", few, Large::fsync),
            ("cluster_s3_mirror_write_1m", "goal at most 1", many, Large::write),
        ],
    }
}

/// An operation, with its number.
type Work = fn(&Large, u64) -> Result<(), Failure>;

/// A mount with files of all kinds.
struct Large {
    small: Mounted,
    trees: Trees,
    training: Training,
    file: File,
    next: u64,
}

impl Large {
    fn on(mount: &Path, trees: Trees) -> Result<Large, Failure> {
        let small = Mounted::on(mount)?;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(mount.join("large"))?;
        for at in (0..LARGE_BYTES).step_by(MIB as usize) {
            file.write_all_at(&[1; MIB as usize], at)?;
        }
        file.sync_all()?;
        Ok(Large {
            small,
            trees,
            training: Training::on(mount)?,
            file,
            next: 0,
        })
    }

    /// Nanoseconds of one of `count` operations.
    fn round(&mut self, count: u64, work: Work) -> Result<f64, Failure> {
        let first = self.next;
        self.next += count;
        timed(count, || (first..first + count).try_for_each(|n| work(self, n)))
    }

    fn create(&self, n: u64) -> Result<(), Failure> {
        self.small.create(n)
    }

    fn fsync(&self, n: u64) -> Result<(), Failure> {
        self.small.fsync(n)
    }

    /// In order.
    fn write(&self, n: u64) -> Result<(), Failure> {
        self.file
            .write_all_at(&[n as u8; MIB as usize], n * MIB % LARGE_BYTES)?;
        match n % WRITES_A_SYNC {
            0 => Ok(self.file.sync_all()?),
            _ => Ok(()),
        }
    }

    /// In order, and not from the kernel's cache.
    fn read(&self, n: u64) -> Result<(), Failure> {
        self.read_of(LARGE_BYTES, n)
    }

    /// The same, of a part that either side's cache has room for.
    fn read_warm(&self, n: u64) -> Result<(), Failure> {
        self.read_of(CACHE_MIB * MIB / 4, n)
    }

    /// A transfer by each of some threads, which read in order, each in a part of the file.
    fn read_crowd(&self, n: u64) -> Result<(), Failure> {
        let each = LARGE_BYTES / READERS;
        let at = n * MIB % each;
        if at == 0 {
            fadvise(&self.file, 0, None, Advice::DontNeed)?;
        }
        let file = &self.file;
        std::thread::scope(|scope| {
            let read = move |reader| file.read_exact_at(&mut vec![0; MIB as usize], reader * each + at);
            let readers: Vec<_> = (0..READERS).map(|reader| scope.spawn(move || read(reader))).collect();
            for reader in readers {
                reader.join().map_err(|_| Failure::new(FAILED, "a reader panicked"))??;
            }
            Ok(())
        })
    }

    /// 4 KiB anywhere, and not from the kernel's cache.
    fn read_random(&self, n: u64) -> Result<(), Failure> {
        let page = Rng::new(n).below(LARGE_BYTES / 4096);
        fadvise(&self.file, page * 4096, NonZeroU64::new(4096), Advice::DontNeed)?;
        Ok(self.file.read_exact_at(&mut [0; 4096], page * 4096)?)
    }

    fn read_of(&self, bytes: u64, n: u64) -> Result<(), Failure> {
        let at = n * MIB % bytes;
        if at == 0 {
            fadvise(&self.file, 0, None, Advice::DontNeed)?;
        }
        Ok(self.file.read_exact_at(&mut vec![0; MIB as usize], at)?)
    }
}
