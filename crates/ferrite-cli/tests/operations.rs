//! The commands of `docs/operations.md`, as they stand there: each does what the text says, and prints it.
//!
//! Blocks marked `sh` are run in sequence, command by command. After a command the text may say what it `prints` (lines
//! in this order among others; `…` stands for anything) and what it `exits with`, 0 by default.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common;
use crate::common::{has_fuse, text};

const DOC: &str = include_str!("../../../docs/operations.md");
/// Blocks that are not run: for devices and services, for changes to the machine, for parts of files. No further ones
/// may hide there.
const NOT_RUN: [(&str, usize); 4] = [("sh,device", 6), ("sh,service", 4), ("fstab", 2), ("toml", 1)];
/// Least number of commands that are run.
const COMMANDS_MIN: usize = 45;

/// A command, and the claims about it.
#[derive(Debug, Default)]
struct Said {
    command: String,
    prints: Vec<String>,
    exits_with: i32,
}

/// All fenced blocks: their marks, and their lines.
fn blocks(doc: &str) -> Vec<(&str, Vec<&str>)> {
    let mut blocks: Vec<(&str, Vec<&str>)> = Vec::new();
    let mut inside = false;
    for line in doc.lines() {
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

fn commands(lines: &[&str]) -> Vec<Said> {
    let mut all: Vec<Said> = Vec::new();
    for line in lines {
        let last = all.last_mut();
        if let Some(text) = line.strip_prefix("# prints: ") {
            last.expect("behind a command").prints.push(text.to_string());
        } else if let Some(code) = line.strip_prefix("# exits with ") {
            last.expect("behind a command").exits_with = code.parse().expect("a number");
        } else {
            assert!(!line.starts_with('#'), "what does this say? {line}");
            all.push(Said {
                command: line.to_string(),
                ..Said::default()
            });
        }
    }
    all
}

/// Whether a line matches the text: its pieces between `…`, in this order, from the beginning to the end.
fn is_said(line: &str, said: &str) -> bool {
    let pieces: Vec<&str> = said.split('…').map(str::trim).collect();
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
    left.is_empty() || said.ends_with('…')
}

/// The places that the text names, in a directory of the test's own.
struct Places {
    base: tempfile::TempDir,
    program: PathBuf,
}

impl Places {
    fn new() -> Places {
        let base = tempfile::tempdir().unwrap();
        for dir in ["bin", "var", "etc", "backup", "mnt"] {
            fs::create_dir(base.path().join(dir)).unwrap();
        }
        let ferrite = fs::canonicalize(common::ferrite().get_program()).unwrap();
        std::os::unix::fs::symlink(ferrite, base.path().join("bin/ferrite")).unwrap();
        let program = base.path().join("bin");
        Places { base, program }
    }

    /// The text's names and ours.
    fn names(&self) -> [(&'static str, PathBuf); 5] {
        let own = |name: &str| self.base.path().join(name);
        let scripts = Path::new("../../scripts").canonicalize().unwrap();
        [
            ("/var/lib/ferrite", own("var")),
            ("/etc/ferrite", own("etc")),
            ("/mnt/data", own("mnt/data")),
            ("/backup", own("backup")),
            ("/usr/local/share/ferrite", scripts),
        ]
    }

    fn run(&self, command: &str) -> std::process::Output {
        let command = self.names().iter().fold(command.to_string(), |text, (theirs, ours)| {
            text.replace(theirs, ours.to_str().unwrap())
        });
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

    /// The output of a command, with the text's names.
    fn said(&self, output: &std::process::Output) -> String {
        self.names().iter().fold(text(output), |text, (theirs, ours)| {
            text.replace(ours.to_str().unwrap(), theirs)
        })
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

fn is_there(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok()
}

#[test]
fn what_the_text_says_is_so() {
    if !has_fuse() {
        return;
    }
    let places = Places::new();
    let mut run = 0;
    for (_, lines) in blocks(DOC).into_iter().filter(|(mark, _)| *mark == "sh") {
        for said in commands(&lines) {
            run += 1;
            if said.command.starts_with("file ") && !is_there("file") {
                eprintln!("skipped: there is no file(1): {}", said.command);
                continue;
            }
            let output = places.run(&said.command);
            let found = places.said(&output);
            assert_eq!(output.status.code(), Some(said.exits_with), "{}\n{found}", said.command);
            let mut lines = found.lines();
            for expected in &said.prints {
                let told = lines.any(|line| is_said(line, expected));
                assert!(told, "{}\ndoes not print: {expected}\nbut:\n{found}", said.command);
            }
        }
    }
    assert!(run >= COMMANDS_MIN, "only {run} commands were run");
}

/// Every block is run, or one of a few that cannot be.
#[test]
fn no_block_hides() {
    let blocks = blocks(DOC);
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

/// The text is readable: short paragraphs, lines that fit.
#[test]
fn the_text_is_short_winded() {
    for paragraph in DOC.split("\n\n").filter(|text| !text.starts_with(['|', '`', '#'])) {
        assert!(paragraph.split_whitespace().count() < 80, "{paragraph}");
        assert!(paragraph.lines().all(|line| line.chars().count() <= 120), "{paragraph}");
    }
}

#[test]
fn what_is_said_is_told_from_what_is_not() {
    assert!(is_said("pool: sound; 3 inodes, 0 records", "… sound; …"));
    assert!(is_said("pool: sound; 3 inodes, 0 records", "pool: … 0 records"));
    assert!(is_said("hello", "hello"));
    assert!(!is_said("hello you", "hello"));
    assert!(!is_said("pool: 2 errors", "… sound; …"));
    assert!(!is_said("a pool: sound", "pool: …"));
    let said = commands(&["true", "false", "# exits with 1", "# prints: x"]);
    assert_eq!(
        (said[0].exits_with, said[1].exits_with, said[1].prints.len()),
        (0, 1, 1)
    );
}
