//! Mounts of pools with their content in S3, compared with mounts of JuiceFS on the same PostgreSQL and the same
//! service of S3: one where `fsync` waits for the bucket, and one where it waits for a log, against JuiceFS's
//! write-back.
//!
//! The service runs in this process, over files in memory, so both sides share the machine with it. Needs what
//! [`super::juicefs`] needs.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use ferrite_nvme::{DataPlace, S3 as S3Place, Tier, TierMode};
use ferrite_test_clusters::{Postgres, S3};
use rustix::fs::{Advice, fadvise};

use super::super::contest::timed;
use super::super::mount::Daemon;
use super::super::{Effort, Output};
use super::juicefs::{self, Mounted, Storage};
use super::{contest, make_pool, on_database};
use crate::Failure;

/// Names of the rows: those without a log, and those with one.
pub(super) const NAMES: &[&str] = &[
    "cluster_s3_create",
    "cluster_s3_fsync_4k",
    "cluster_s3_write_1m",
    "cluster_s3_read_1m",
    "cluster_s3_log_fsync_4k",
    "cluster_s3_log_write_1m",
];
const BUCKET: &str = "bucket";
/// Four times what either side keeps in memory.
const LARGE_BYTES: u64 = 256 << 20;
const CACHE_MIB: u64 = 64;
const MIB: u64 = 1 << 20;
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
    let (without, with) = NAMES.split_at(4);
    for (has_log, names) in [(false, without), (true, with)] {
        if names.iter().any(|name| out.wants(name)) {
            compare(effort, out, (database, &service, dir), has_log)?;
        }
    }
    Ok(())
}

/// The rows of one pair of mounts.
fn compare(
    effort: Effort,
    out: &mut Output,
    (database, service, dir): (&Postgres, &S3, &Path),
    has_log: bool,
) -> Result<(), Failure> {
    let name = if has_log { "logged" } else { "through" };
    let (ours, theirs) = (dir.join(format!("s3-{name}")), dir.join(format!("s3-juicefs-{name}")));
    let _our_daemon = mount_pool(database, service, dir, name, &ours)?;
    let storage = Storage::S3 {
        service,
        bucket: BUCKET,
        cache_mib: CACHE_MIB,
        has_write_back: has_log,
    };
    let _their_daemon = juicefs::mount(database, dir, &theirs, &format!("s3{name}"), &storage)?;
    let (mut mine, mut other) = (Large::on(&ours)?, Large::on(&theirs)?);
    let few = (effort.operations as u64 / 400).max(4);
    let many = (effort.operations as u64 / 100).max(4);
    type Work = fn(&Large, u64) -> Result<(), Failure>;
    let rows: &[(&str, &str, u64, Work)] = match has_log {
        false => &[
            ("cluster_s3_create", "goal at most 0.2", few, |of, n| of.small.create(n)),
            ("cluster_s3_fsync_4k", "goal at most 1", few, |of, n| of.small.fsync(n)),
            ("cluster_s3_write_1m", "goal at most 1", many, Large::write),
            ("cluster_s3_read_1m", "goal at most 1", many, Large::read),
        ],
        true => &[
            ("cluster_s3_log_fsync_4k", "goal at most 0.05", few, |of, n| {
                of.small.fsync(n)
            }),
            ("cluster_s3_log_write_1m", "goal at most 1", many, Large::write),
        ],
    };
    let against = if has_log { "JuiceFS, write-back" } else { "JuiceFS" };
    for &(name, goal, count, work) in rows {
        let ours = &mut || mine.round(count, work);
        let theirs = &mut || other.round(count, work);
        contest(effort, name, against, goal, 1).run(ours, theirs, out)?;
    }
    Ok(())
}

fn mount_pool(database: &Postgres, service: &S3, dir: &Path, name: &str, at: &Path) -> Result<Daemon, Failure> {
    let volume = format!("s3{name}");
    let config = make_pool(dir, &volume, |config| {
        on_database(config, database, &volume);
        let mut place = S3Place::at(format!("s3://{BUCKET}/ferrite/{name}"));
        place.endpoint = Some(service.endpoint());
        place.region = Some("us-east-1".into());
        place.credentials = Some(dir.join("keys"));
        place.cache = CACHE_MIB * MIB;
        config.data = DataPlace::S3(place);
        config.tier = (name == "logged").then(|| Tier {
            device: dir.join("s3.log"),
            size: Some(1 << 30),
            mirror: None,
            mode: Some(TierMode::Back),
            age_s: 30,
        });
    })?;
    let (address, at_text) = (format!("nvme:{}", config.display()), at.display().to_string());
    let arguments = ["mount", "-f", &address, &at_text];
    Daemon::start(None, &crate::ferrite()?, &arguments, at.to_owned())
}

/// A mount with files of both kinds.
struct Large {
    small: Mounted,
    file: File,
    next: u64,
}

impl Large {
    fn on(mount: &Path) -> Result<Large, Failure> {
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
        Ok(Large { small, file, next: 0 })
    }

    /// Nanoseconds of one of `count` operations.
    fn round(&mut self, count: u64, work: fn(&Large, u64) -> Result<(), Failure>) -> Result<f64, Failure> {
        let first = self.next;
        self.next += count;
        timed(count, || (first..first + count).try_for_each(|n| work(self, n)))
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
        let at = n * MIB % LARGE_BYTES;
        if at == 0 {
            fadvise(&self.file, 0, None, Advice::DontNeed)?;
        }
        Ok(self.file.read_exact_at(&mut [0; MIB as usize], at)?)
    }
}
