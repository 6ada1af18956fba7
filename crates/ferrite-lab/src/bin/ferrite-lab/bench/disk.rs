//! A pool in a file on a disk, mounted, against the file system that holds the file: the cost of durability for
//! programs, in both modes that keep it over a loss of power (`durability=strict` and `durability=fsync`), and past the
//! kernel's cache of the mount (`direct_io`).
//!
//! The pool is made with `extent`, which keeps consecutive data of a file together, as a disk likes it. The benchmark
//! first writes zeros to all of it, a state that pools reach on their own as programs use them.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use ferrite_pm::{Counters, Medium, Region};

use super::mount::{Daemon, is_root};
use super::{Circumstances, Duel, Effort, Output, page};
use crate::{FAILED, Failure};

/// Names of the rows.
pub(crate) const NAMES: &[&str] = &[
    "file_fsync",
    "overwrite_fsync",
    "sqlite_commit",
    "300m_fsync",
    "strict_file_fsync",
    "strict_overwrite_fsync",
    "strict_sqlite_commit",
    "strict_300m_fsync",
    "direct_io_file_fsync",
    "direct_io_overwrite_fsync",
    "direct_io_sqlite_commit",
    "direct_io_300m_fsync",
];
const POOL_BYTES: u64 = 2 << 30;
const FILE_BYTES: u64 = 1 << 20;
const LARGE_MIB: u64 = 300;

/// Runs the group.
pub(crate) fn run(effort: Effort, out: &mut Output) -> Result<(), Failure> {
    if !is_root() {
        return Err(Failure::new(FAILED, "the disk group needs root, to mount"));
    }
    let base = tempfile::Builder::new().prefix("ferrite-bench-").tempdir()?;
    let probe = Region::create(&base.path().join("probe"), 1 << 20)?;
    if probe.medium() != Medium::File {
        let dir = base.path().display();
        return Err(Failure::new(
            FAILED,
            format!("the disk group needs a directory on a disk, and {dir} is not; set TMPDIR to one that is"),
        ));
    }
    drop(probe);
    for (options, names) in [
        ("durability=fsync", &NAMES[..4]),
        ("durability=strict", &NAMES[4..8]),
        ("durability=fsync,direct_io", &NAMES[8..]),
    ] {
        if names.iter().any(|name| out.wants(name)) {
            mounted(effort, out, base.path(), options, names)?;
        }
    }
    Ok(())
}

fn mounted(
    effort: Effort,
    out: &mut Output,
    base: &Path,
    options: &str,
    names: &[&'static str],
) -> Result<(), Failure> {
    let us = crate::ferrite()?;
    let (pool, ours, theirs) = (base.join("pool"), base.join("ferrite"), base.join("peer"));
    let made = Command::new(&us)
        .args([
            "mkfs",
            "--force",
            "--mapping",
            "extent",
            "--write-zeros",
            "--size",
            &POOL_BYTES.to_string(),
        ])
        .arg(&pool)
        .stdout(Stdio::null())
        .status()?;
    if !made.success() {
        return Err(Failure::new(FAILED, "no pool for the benchmark"));
    }
    std::fs::create_dir_all(&theirs)?;
    let text = |path: &Path| path.display().to_string();
    let options = format!("noatime,{options}");
    let arguments = ["mount", "-f", "-o", &options, &text(&pool), &text(&ours)];
    let _daemon = Daemon::start(None, &us, &arguments, ours.clone())?;
    let operations = (effort.operations / 40).max(50);
    let mut duel = |name, slower: usize, ours: super::Work<'_>, theirs: super::Work<'_>| {
        Duel {
            group: "disk",
            name,
            against: "its file system",
            rounds: effort.rounds.min(7),
            operations: (operations / slower).max(1),
            circumstances: Circumstances {
                page_bytes: 4096,
                fill_percent: 30,
                cache: "kernel's",
                threads: 1,
                placement: "any".into(),
            },
            counters: &Counters::default,
            amplification: None,
        }
        .run(ours, theirs, out)
    };
    duel(names[0], 1, &mut |n| new_file(&ours, n), &mut |n| new_file(&theirs, n))?;
    let files = [overwritten(&ours)?, overwritten(&theirs)?];
    duel(names[1], 1, &mut |n| overwrite(&files[0], n), &mut |n| {
        overwrite(&files[1], n)
    })?;
    match (Sqlite::start(&ours), Sqlite::start(&theirs)) {
        (Ok(mut one), Ok(mut other)) => {
            duel(names[2], 2, &mut |_| one.commit(), &mut |_| other.commit())?;
        }
        _ => super::complain(format_args!("ferrite: {} left out: it needs sqlite3", names[2])),
    }
    duel(names[3], operations, &mut |_| large(&ours), &mut |_| large(&theirs))
}

/// A new file of one page, durable; now and then earlier files are removed.
fn new_file(dir: &Path, n: u64) -> Result<(), Failure> {
    let mut file = File::create(dir.join(format!("new{}", n % 500)))?;
    file.write_all(&[7; 4096])?;
    Ok(file.sync_all()?)
}

fn overwritten(dir: &Path) -> Result<File, Failure> {
    let options = OpenOptions::new().write(true).create(true).truncate(true).clone();
    let mut file = options.open(dir.join("overwritten"))?;
    file.write_all(&vec![1; FILE_BYTES as usize])?;
    file.sync_all()?;
    Ok(file)
}

fn overwrite(file: &File, n: u64) -> Result<(), Failure> {
    file.write_all_at(&[9; 4096], page(n, FILE_BYTES))?;
    Ok(file.sync_data()?)
}

fn large(dir: &Path) -> Result<(), Failure> {
    let mut file = File::create(dir.join("large"))?;
    let chunk = vec![5; 1 << 20];
    for _ in 0..LARGE_MIB {
        file.write_all(&chunk)?;
    }
    Ok(file.sync_all()?)
}

/// A database in which each statement is a transaction.
struct Sqlite {
    child: Child,
    statements: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Sqlite {
    fn start(dir: &Path) -> Result<Sqlite, Failure> {
        let mut child = Command::new("sqlite3")
            .arg(dir.join("database"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let lost = || Failure::new(FAILED, "sqlite3 ended");
        let statements = child.stdin.take().ok_or_else(lost)?;
        let answers = BufReader::new(child.stdout.take().ok_or_else(lost)?);
        let mut sqlite = Sqlite {
            child,
            statements,
            answers,
        };
        sqlite.ask("create table if not exists t(a integer primary key, b text);")?;
        Ok(sqlite)
    }

    fn ask(&mut self, statement: &str) -> Result<(), Failure> {
        writeln!(self.statements, "{statement} select 'done';")?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        match line.trim() {
            "done" => Ok(()),
            other => Err(Failure::new(FAILED, format!("sqlite3 said {other:?}"))),
        }
    }

    fn commit(&mut self) -> Result<(), Failure> {
        self.ask("insert into t(b) values(hex(zeroblob(50)));")
    }
}

impl Drop for Sqlite {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
