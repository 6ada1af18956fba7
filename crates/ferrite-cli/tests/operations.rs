//! The commands of the manual's pages, exactly as written there: each does what the page says, and prints it.
//!
//! Blocks marked `sh` are run in sequence, command by command, each page on its own. After a command the page may say
//! what it `prints` (lines in this order among others; `…` stands for anything) and what it `exits with`, 0 by default.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common;
use crate::common::{has_fuse, text};

/// A page of the manual, and the least number of its commands that are run.
struct Page {
    name: &'static str,
    text: &'static str,
    commands_min: usize,
}

macro_rules! page {
    ($name:literal, $commands_min:literal) => {
        Page {
            name: $name,
            text: include_str!(concat!("../../../docs/", $name)),
            commands_min: $commands_min,
        }
    };
}

const MOUNTING: Page = page!("mounting.md", 44);
const SERVING: Page = page!("serving.md", 9);
const DEVICES: Page = page!("devices.md", 6);
const RDMA: Page = page!("rdma-operations.md", 6);
const BACKUP: Page = page!("backup.md", 15);
const TROUBLESHOOTING: Page = page!("troubleshooting.md", 11);
#[cfg(feature = "nvme")]
const POSTGRES: Page = page!("postgres.md", 16);
#[cfg(feature = "nvme")]
const S3: Page = page!("s3.md", 35);
#[cfg(feature = "rados")]
const RADOS: Page = page!("rados.md", 12);
const PAGES: &[Page] = &[
    MOUNTING,
    SERVING,
    DEVICES,
    RDMA,
    BACKUP,
    TROUBLESHOOTING,
    #[cfg(feature = "nvme")]
    POSTGRES,
    #[cfg(feature = "nvme")]
    S3,
    #[cfg(feature = "rados")]
    RADOS,
];

/// The database that pages name.
#[cfg(feature = "nvme")]
const DATABASE: &str = "host=db1 user=ferrite dbname=ferrite";
/// The configuration of the Ceph cluster that pages name.
#[cfg(feature = "rados")]
const CEPH: &str = "/etc/ceph/ceph.conf";
/// The service of S3 that pages name, and the file with its keys.
#[cfg(feature = "nvme")]
const S3_ENDPOINT: &str = "https://s3.example.org";
#[cfg(feature = "nvme")]
const S3_KEYS: &str = "/etc/ferrite/s3.keys";

/// Blocks that are not run: for devices and services, for changes to the machine, for parts of files. No further ones
/// may hide there.
const NOT_RUN: [(&str, usize); 5] = [
    ("sh,device", 6),
    ("sh,service", if cfg!(feature = "rados") { 6 } else { 5 }),
    ("fstab", 2),
    (
        "toml",
        if cfg!(feature = "rados") {
            6
        } else if cfg!(feature = "nvme") {
            5
        } else {
            1
        },
    ),
    ("sql", if cfg!(feature = "nvme") { 1 } else { 0 }),
];

/// A command, and the claims about it.
#[derive(Debug, Default)]
struct Step {
    command: String,
    prints: Vec<String>,
    exits_with: i32,
}

/// All fenced blocks: their marks, and their lines.
fn blocks(page: &str) -> Vec<(&str, Vec<&str>)> {
    let mut blocks: Vec<(&str, Vec<&str>)> = Vec::new();
    let mut inside = false;
    for line in page.lines() {
        match line.strip_prefix("```") {
            Some(_) if inside => inside = false,
            Some(mark) => {
                inside = true;
                blocks.push((mark, Vec::new()));
            }
            None if inside => blocks.last_mut().expect("one has begun").1.push(line),
            None => {}
        }
    }
    assert!(!inside, "a block has no end");
    blocks
}

fn steps(lines: &[&str]) -> Vec<Step> {
    let mut all: Vec<Step> = Vec::new();
    for line in lines {
        let last = all.last_mut();
        if let Some(text) = line.strip_prefix("# prints: ") {
            last.expect("a command before it").prints.push(text.to_string());
        } else if let Some(code) = line.strip_prefix("# exits with ") {
            last.expect("a command before it").exits_with = code.parse().expect("a number");
        } else {
            assert!(!line.starts_with('#'), "neither a command nor a claim: {line}");
            all.push(Step {
                command: line.to_string(),
                ..Step::default()
            });
        }
    }
    all
}

/// Whether a line matches a pattern: its pieces between `…`, in this order, from the beginning to the end.
fn matches(line: &str, pattern: &str) -> bool {
    let pieces: Vec<&str> = pattern.split('…').map(str::trim).collect();
    let (first, rest) = pieces.split_first().expect("there is always one");
    let Some(mut left) = line.trim().strip_prefix(first) else {
        return false;
    };
    for piece in rest {
        match left.find(piece) {
            Some(at) => left = &left[at + piece.len()..],
            None => return false,
        }
    }
    left.is_empty() || pattern.ends_with('…')
}

/// The places that a page names, in a temporary directory.
struct Places {
    base: tempfile::TempDir,
    program: PathBuf,
    /// Names of servers, and what stands for them.
    servers: Vec<(&'static str, String)>,
}

impl Places {
    fn new(servers: &[(&'static str, &str)]) -> Places {
        let base = tempfile::tempdir().unwrap();
        for dir in ["bin", "var", "etc", "backup", "mnt"] {
            fs::create_dir(base.path().join(dir)).unwrap();
        }
        let ferrite = fs::canonicalize(common::ferrite().get_program()).unwrap();
        std::os::unix::fs::symlink(ferrite, base.path().join("bin/ferrite")).unwrap();
        let program = base.path().join("bin");
        Places {
            base,
            program,
            servers: servers.iter().map(|&(name, place)| (name, place.to_owned())).collect(),
        }
    }

    /// The page's names, and the places that stand for them.
    fn names(&self) -> Vec<(&'static str, String)> {
        let place = |name: &str| self.base.path().join(name).to_str().unwrap().to_owned();
        let scripts = Path::new("../../scripts").canonicalize().unwrap();
        let mut names = self.servers.clone();
        names.extend([
            ("/var/lib/ferrite", place("var")),
            ("/etc/ferrite", place("etc")),
            ("/mnt/data", place("mnt/data")),
            ("/backup", place("backup")),
            ("/usr/local/share/ferrite", scripts.to_str().unwrap().to_owned()),
        ]);
        names
    }

    fn run(&self, command: &str) -> std::process::Output {
        let command = self
            .names()
            .iter()
            .fold(command.to_string(), |text, (name, place)| text.replace(name, place));
        let path = format!(
            "{}:{}",
            self.program.display(),
            std::env::var("PATH").unwrap_or_default()
        );
        Command::new("bash")
            .args(["-c", &command])
            .env("PATH", path)
            .current_dir(self.base.path())
            .output()
            .unwrap()
    }

    /// The output of a command, with the page's names.
    fn printed(&self, output: &std::process::Output) -> String {
        self.names()
            .iter()
            .fold(text(output), |text, (name, place)| text.replace(place, name))
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        let _ = Command::new("umount")
            .arg("-l")
            .arg(self.base.path().join("mnt/data"))
            .output();
    }
}

fn is_installed(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok()
}

/// Runs the blocks of a page, and checks every claim.
fn run(page: &Page) {
    run_with(page, &[]);
}

/// The same with servers.
fn run_with(page: &Page, servers: &[(&'static str, &str)]) {
    if !has_fuse() {
        return;
    }
    let places = Places::new(servers);
    let mut run = 0;
    for (_, lines) in blocks(page.text).into_iter().filter(|(mark, _)| *mark == "sh") {
        for step in steps(&lines) {
            run += 1;
            if step.command.starts_with("file ") && !is_installed("file") {
                eprintln!("skipped: there is no file(1): {}", step.command);
                continue;
            }
            let output = places.run(&step.command);
            let printed = places.printed(&output);
            assert_eq!(
                output.status.code(),
                Some(step.exits_with),
                "{}: {}\n{printed}",
                page.name,
                step.command
            );
            let mut lines = printed.lines();
            for pattern in &step.prints {
                assert!(
                    lines.any(|line| matches(line, pattern)),
                    "{}: {}\ndoes not print: {pattern}\nbut:\n{printed}",
                    page.name,
                    step.command
                );
            }
        }
    }
    let (name, least) = (page.name, page.commands_min);
    assert!(run >= least, "{name}: only {run} commands were run, not {least}");
}

#[test]
fn mounting_runs_as_written() {
    run(&MOUNTING);
}

#[test]
fn serving_runs_as_written() {
    run(&SERVING);
}

#[test]
fn devices_runs_as_written() {
    run(&DEVICES);
}

#[test]
fn rdma_runs_as_written() {
    run(&RDMA);
}

#[test]
fn backup_runs_as_written() {
    run(&BACKUP);
}

#[test]
fn troubleshooting_runs_as_written() {
    run(&TROUBLESHOOTING);
}

#[test]
#[cfg(feature = "nvme")]
fn postgres_runs_as_written() {
    use ferrite_test_clusters::{Postgres, PostgresOptions, or_skip};
    if let Some(database) = or_skip(Postgres::start(&PostgresOptions::default())) {
        run_with(&POSTGRES, &[(DATABASE, &database.primary().connection())]);
    }
}

#[test]
#[cfg(feature = "rados")]
fn rados_runs_as_written() {
    use ferrite_test_clusters::{Ceph, CephOptions, Postgres, PostgresOptions, or_skip};
    let Some(database) = or_skip(Postgres::start(&PostgresOptions::default())) else {
        return;
    };
    let Some(ceph) = or_skip(Ceph::start(&CephOptions::default())) else {
        return;
    };
    let (connection, conf) = (database.primary().connection(), ceph.conf());
    run_with(&RADOS, &[(DATABASE, &connection), (CEPH, conf.to_str().unwrap())]);
}

#[test]
#[cfg(feature = "nvme")]
fn s3_runs_as_written() {
    let service = ferrite_test_clusters::S3::start("bucket").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let keys = dir.path().join("keys");
    fs::write(&keys, service.keys()).unwrap();
    run_with(
        &S3,
        &[(S3_ENDPOINT, &service.endpoint()), (S3_KEYS, keys.to_str().unwrap())],
    );
}

/// Every block is run, or one of a few that cannot be.
#[test]
fn no_block_hides() {
    let blocks: Vec<_> = PAGES.iter().flat_map(|page| blocks(page.text)).collect();
    for (mark, count) in NOT_RUN {
        assert_eq!(
            blocks.iter().filter(|(found, _)| *found == mark).count(),
            count,
            "{mark}"
        );
    }
    for (mark, lines) in &blocks {
        assert!(
            *mark == "sh" || NOT_RUN.iter().any(|(not_run, _)| mark == not_run),
            "marked {mark:?}: {lines:?}"
        );
        assert!(!lines.is_empty());
    }
}

/// The pages are readable: short paragraphs, lines that fit.
#[test]
fn paragraphs_are_short() {
    for page in PAGES {
        for paragraph in page
            .text
            .split("\n\n")
            .filter(|text| !text.starts_with(['|', '`', '#']))
        {
            assert!(paragraph.split_whitespace().count() < 80, "{}: {paragraph}", page.name);
            assert!(
                paragraph.lines().all(|line| line.chars().count() <= 120),
                "{}: {paragraph}",
                page.name
            );
        }
    }
}

#[test]
fn patterns_match_whole_lines() {
    assert!(matches("pool: sound; 3 inodes, 0 records", "… sound; …"));
    assert!(matches("pool: sound; 3 inodes, 0 records", "pool: … 0 records"));
    assert!(matches("hello", "hello"));
    assert!(!matches("hello you", "hello"));
    assert!(!matches("pool: 2 errors", "… sound; …"));
    assert!(!matches("a pool: sound", "pool: …"));
    let steps = steps(&["true", "false", "# exits with 1", "# prints: x"]);
    assert_eq!(
        (steps[0].exits_with, steps[1].exits_with, steps[1].prints.len()),
        (0, 1, 1)
    );
}
