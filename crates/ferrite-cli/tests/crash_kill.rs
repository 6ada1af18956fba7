//! The daemon is killed while programs are at work: changes that returned are there, and in order.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::{PAGE, TestPool, has_fuse, ok, soak};

/// The changes that one writer knows to have returned.
#[derive(Default)]
struct Returned {
    /// Lines appended to its log.
    lines: usize,
    /// Number of its last file that was created, written and renamed.
    file: Option<usize>,
    /// Number up to which its files were removed.
    removed: usize,
}

/// Appends, creates, renames and removes until something fails, because the daemon is gone. Says when a first change
/// has returned.
fn work(dir: &Path, round: usize, stop: &AtomicBool, begun: &AtomicBool) -> Returned {
    let mut returned = Returned::default();
    let mut step = || -> std::io::Result<()> {
        fs::create_dir_all(dir)?;
        let mut log = OpenOptions::new()
            .append(true)
            .create(true)
            .open(dir.join(format!("log{round}")))?;
        for n in 0.. {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            log.write_all(format!("{n:09}\n").as_bytes())?;
            returned.lines = n + 1;
            begun.store(true, Ordering::Relaxed);
            let (new, name) = (dir.join(format!("new{n}")), dir.join(format!("r{round}-{n}")));
            let mut file = File::create(&new)?;
            file.write_all(format!("content {n}").repeat(1 + n % 700).as_bytes())?;
            fs::rename(&new, &name)?;
            returned.file = Some(n);
            if n >= 20 {
                fs::remove_file(dir.join(format!("r{round}-{}", n - 20)))?;
                returned.removed = n - 19;
            }
        }
        Ok(())
    };
    let _ = step();
    returned
}

/// Waits for a first change, which a busy machine may delay by more than a round takes. A round in which none comes is
/// refused later.
fn wait_for(begun: &AtomicBool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !begun.load(Ordering::Relaxed) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn verify(dir: &Path, round: usize, returned: &Returned) {
    let log = fs::read_to_string(dir.join(format!("log{round}"))).unwrap_or_default();
    let lines: Vec<&str> = log.lines().collect();
    assert!(
        lines.len() >= returned.lines,
        "{} of {} lines",
        lines.len(),
        returned.lines
    );
    assert!(lines.len() <= returned.lines + 1);
    for (n, line) in lines.iter().enumerate() {
        // The line under way may be cut: the kernel splits a write where it crosses a page, and each part is atomic.
        let expected = format!("{n:09}");
        let whole = n < returned.lines;
        assert!(
            *line == expected || (!whole && expected.starts_with(line)),
            "line {n} is {line:?}"
        );
    }
    let last = returned.file.map_or(0, |n| n + 1);
    for n in returned.removed + 1..last {
        let content = fs::read_to_string(dir.join(format!("r{round}-{n}"))).unwrap_or_else(|e| panic!("file {n}: {e}"));
        assert_eq!(content, format!("content {n}").repeat(1 + n % 700), "file {n}");
    }
    for n in 0..returned.removed {
        assert!(!dir.join(format!("r{round}-{n}")).exists(), "file {n} was removed");
    }
}

/// Changes that can be made in sequence, and the expected state after each. The daemon is killed in one of them.
trait Load {
    /// Makes change number `n`, in `dir`.
    fn change(&self, dir: &Path, n: usize) -> std::io::Result<()>;
    /// The required state after the first `n` changes.
    fn expected(&self, n: usize) -> Tree;
    /// Whether change number `n` changes nothing.
    fn is_nothing(&self, _n: usize) -> bool {
        false
    }
}

/// The files below a directory, by path.
type Tree = BTreeMap<String, Node>;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Node {
    Dir,
    Link(String),
    File { content: Vec<u8>, links: u64 },
}

fn tree(dir: &Path, below: &str, found: &mut Tree) {
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let (path, metadata) = (entry.path(), entry.metadata().unwrap());
        let name = format!("{below}{}", entry.file_name().to_str().unwrap());
        let node = if metadata.is_dir() {
            tree(&path, &format!("{name}/"), found);
            Node::Dir
        } else if metadata.is_symlink() {
            Node::Link(fs::read_link(&path).unwrap().to_str().unwrap().into())
        } else {
            Node::File {
                content: fs::read(&path).unwrap(),
                links: metadata.nlink(),
            }
        };
        found.insert(name, node);
    }
}

/// Makes changes until one fails; returns how many were made. The directory must exist.
fn go_on(load: &dyn Load, dir: &Path, stop: &AtomicBool) -> usize {
    (0..)
        .take_while(|_| !stop.load(Ordering::Relaxed))
        .take_while(|&n| load.change(dir, n).is_ok())
        .count()
}

/// After `made` changes the directory must have their result, or that of the next one.
fn verify_load(load: &dyn Load, dir: &Path, made: usize) {
    let mut found = Tree::new();
    tree(dir, "", &mut found);
    if found == load.expected(made) || found == load.expected(made + 1) {
        return;
    }
    let expected = load.expected(made);
    for name in found.keys().chain(expected.keys()) {
        let (found, expected) = (found.get(name), expected.get(name));
        if let (Some(Node::File { content, .. }), Some(Node::File { content: wanted, .. })) = (found, expected) {
            let at = content.iter().zip(wanted).position(|(a, b)| a != b);
            eprintln!(
                "{name}: {} bytes, {} expected, first difference at {at:?}",
                content.len(),
                wanted.len()
            );
        } else if found != expected {
            eprintln!("{name}: {found:?}, {expected:?} expected");
        }
    }
    panic!(
        "{}: neither the state after {made} changes nor the next one",
        dir.display()
    );
}

/// Small overwrites in place of one file, which carry their number, and truncates.
struct Overwrites;

impl Overwrites {
    /// The file's name.
    const FILE: &str = "versions";
    /// Its pages, at most.
    const PAGES: usize = 4;

    fn mixed(n: usize) -> usize {
        ((n as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) as usize
    }

    /// Where change `n` truncates the file, if it does. Most of these are within a page; some make the file longer.
    fn cut(n: usize) -> Option<usize> {
        (n % 16 == 15).then(|| Self::mixed(n) % (Self::PAGES * PAGE))
    }

    /// Where change `n` writes, and what: within a page, since the kernel may split other writes.
    fn part(n: usize) -> (usize, Vec<u8>) {
        let mixed = Self::mixed(n);
        let text = format!("{n:08};").repeat(1 + mixed / 7 % 12);
        let within = mixed % (PAGE - text.len());
        ((mixed >> 13) % Self::PAGES * PAGE + within, text.into())
    }
}

impl Load for Overwrites {
    fn change(&self, dir: &Path, n: usize) -> std::io::Result<()> {
        let path = dir.join(Self::FILE);
        if n == 0 {
            return File::create(path).map(drop);
        }
        let file = OpenOptions::new().write(true).open(path)?;
        match Self::cut(n) {
            Some(len) => file.set_len(len as u64),
            None => {
                let (at, text) = Self::part(n);
                file.write_all_at(&text, at as u64)
            }
        }
    }

    fn expected(&self, n: usize) -> Tree {
        let mut content = Vec::new();
        for change in 1..n {
            match Self::cut(change) {
                Some(len) => content.resize(len, 0),
                None => {
                    let (at, text) = Self::part(change);
                    content.resize(content.len().max(at + text.len()), 0);
                    content[at..at + text.len()].copy_from_slice(&text);
                }
            }
        }
        let file = Node::File { content, links: 1 };
        (0..n.min(1)).map(|_| (Self::FILE.to_string(), file.clone())).collect()
    }
}

/// Directories made, filled with links, moved, and removed again; all files in them are one.
struct Links;

impl Links {
    /// Changes that make and fill one directory, and remove an older one.
    const STEPS: usize = 12;
    /// Age of the directory that is removed, in directories.
    const OLDER: usize = 5;
}

impl Load for Links {
    fn change(&self, dir: &Path, n: usize) -> std::io::Result<()> {
        if n == 0 {
            return File::create(dir.join("base")).map(drop);
        }
        let (k, step) = ((n - 1) / Self::STEPS, (n - 1) % Self::STEPS);
        let path = |name: String| dir.join(name);
        let (base, new) = (dir.join("base"), path(format!("new{k}")));
        let Some(old) = k.checked_sub(Self::OLDER).or((step < 7).then_some(0)) else {
            return Ok(());
        };
        match step {
            0 => fs::create_dir(new),
            1 => fs::hard_link(base, new.join("a")),
            2 => fs::hard_link(base, new.join("b")),
            3 => std::os::unix::fs::symlink("a", new.join("s")),
            4 => fs::rename(new, path(format!("d{k}"))),
            5 => fs::rename(path(format!("d{k}/b")), path(format!("b{k}"))),
            6 => fs::create_dir(path(format!("d{k}/sub"))),
            7 => fs::remove_dir(path(format!("d{old}/sub"))),
            8 => fs::remove_file(path(format!("d{old}/a"))),
            9 => fs::remove_file(path(format!("d{old}/s"))),
            10 => fs::remove_dir(path(format!("d{old}"))),
            _ => fs::remove_file(path(format!("b{old}"))),
        }
    }

    fn expected(&self, n: usize) -> Tree {
        let mut tree = Tree::new();
        let file = Node::File {
            content: Vec::new(),
            links: 0,
        };
        for change in 0..n {
            if change == 0 {
                tree.insert("base".into(), file.clone());
                continue;
            }
            let (k, step) = ((change - 1) / Self::STEPS, (change - 1) % Self::STEPS);
            match (step, k.checked_sub(Self::OLDER)) {
                (0, _) => drop(tree.insert(format!("new{k}"), Node::Dir)),
                (1, _) => drop(tree.insert(format!("new{k}/a"), file.clone())),
                (2, _) => drop(tree.insert(format!("new{k}/b"), file.clone())),
                (3, _) => drop(tree.insert(format!("new{k}/s"), Node::Link("a".into()))),
                (4, _) => {
                    for below in ["", "/a", "/b", "/s"] {
                        let node = tree.remove(&format!("new{k}{below}")).unwrap();
                        tree.insert(format!("d{k}{below}"), node);
                    }
                }
                (5, _) => {
                    let node = tree.remove(&format!("d{k}/b")).unwrap();
                    tree.insert(format!("b{k}"), node);
                }
                (6, _) => drop(tree.insert(format!("d{k}/sub"), Node::Dir)),
                (_, None) => {}
                (step, Some(old)) => {
                    let gone = match step {
                        7 => format!("d{old}/sub"),
                        8 => format!("d{old}/a"),
                        9 => format!("d{old}/s"),
                        10 => format!("d{old}"),
                        _ => format!("b{old}"),
                    };
                    assert!(tree.remove(&gone).is_some(), "{gone}");
                }
            }
        }
        let all = tree.values().filter(|node| matches!(node, Node::File { .. })).count() as u64;
        for node in tree.values_mut() {
            if let Node::File { links, .. } = node {
                *links = all;
            }
        }
        tree
    }

    /// At first no directory is old enough to be removed.
    fn is_nothing(&self, n: usize) -> bool {
        (1..=Self::STEPS * Self::OLDER).contains(&n) && (n - 1) % Self::STEPS >= 7
    }
}

/// A change that the kill loses, or leaves half done, must show; so the loads must distinguish states.
#[test]
fn every_change_of_a_load_makes_another_state() {
    let loads: [&dyn Load; 2] = [&Overwrites, &Links];
    for load in loads {
        let dir = tempfile::tempdir().unwrap();
        let mut before = None;
        for n in 0..200 {
            load.change(dir.path(), n).unwrap();
            let mut found = Tree::new();
            tree(dir.path(), "", &mut found);
            assert!(found == load.expected(n + 1), "change {n} on another file system");
            assert_eq!(before.as_ref() == Some(&found), load.is_nothing(n), "change {n}");
            before = Some(found);
        }
    }
}

#[test]
fn nothing_that_returned_is_lost_when_the_daemon_is_killed() {
    if !has_fuse() {
        return;
    }
    let test = TestPool::new("256M", &[]);
    let rounds = if soak() { 200 } else { 50 };
    let loads: [(&str, &(dyn Load + Sync)); 2] = [("overwrites", &Overwrites), ("links", &Links)];
    let mut all_made = 0;
    for round in 0..rounds {
        let (stop, begun) = (AtomicBool::new(false), AtomicBool::new(false));
        let daemon = test.daemon().to_string();
        for (name, _) in loads {
            fs::create_dir(test.path(name)).unwrap();
        }
        let (returned, made): (Vec<Returned>, Vec<usize>) = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..3)
                .map(|writer| {
                    let (dir, stop, begun) = (test.path(&format!("w{writer}")), &stop, &begun);
                    scope.spawn(move || work(&dir, round, stop, begun))
                })
                .collect();
            let loaders: Vec<_> = loads
                .iter()
                .map(|&(name, load)| {
                    let (dir, stop) = (test.path(name), &stop);
                    scope.spawn(move || go_on(load, &dir, stop))
                })
                .collect();
            wait_for(&begun);
            std::thread::sleep(Duration::from_millis(60 + 13 * (round as u64 % 10)));
            ok(Command::new("kill").args(["-9", &daemon]));
            stop.store(true, Ordering::Relaxed);
            (
                writers.into_iter().map(|writer| writer.join().unwrap()).collect(),
                loaders.into_iter().map(|loader| loader.join().unwrap()).collect(),
            )
        });
        ok(Command::new("umount").arg("-l").arg(&test.dir));
        if round % 10 == 0 {
            test.fsck();
        }
        test.mount(&[]);
        assert!(
            returned.iter().any(|writer| writer.lines > 0),
            "round {round}: nobody did anything"
        );
        for (writer, returned) in returned.iter().enumerate() {
            let dir = test.path(&format!("w{writer}"));
            verify(&dir, round, returned);
            let _ = fs::remove_dir_all(dir);
        }
        for ((name, load), &made) in loads.iter().zip(&made) {
            let dir = test.path(name);
            verify_load(*load, &dir, made);
            fs::remove_dir_all(dir).unwrap();
            all_made += made;
        }
    }
    assert!(all_made > 20 * rounds, "{all_made} changes in {rounds} rounds");
    test.finish();
}

/// Inserts rows and prints each number after its commit returned, until the database fails.
const SQLITE_WRITER: &str = "
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute('pragma journal_mode=' + sys.argv[2])
db.execute('pragma synchronous=full')
db.execute('create table if not exists t (n integer primary key, text)')
n = db.execute('select coalesce(max(n), 0) from t').fetchone()[0]
while True:
    n += 1
    db.execute('begin')
    db.execute('insert into t values (?, ?)', (n, 'row %d ' % n * 50))
    db.execute('commit')
    print(n, flush=True)
";

const SQLITE_READER: &str = "
import sqlite3, sys
db = sqlite3.connect(sys.argv[1])
assert db.execute('pragma integrity_check').fetchone()[0] == 'ok'
rows = [r[0] for r in db.execute('select n from t order by n')]
assert rows == list(range(1, len(rows) + 1)), 'rows are missing'
print(len(rows))
";

#[test]
fn sqlite_keeps_every_committed_row() {
    if !has_fuse() {
        return;
    }
    for mode in ["wal", "delete"] {
        let test = TestPool::new("256M", &[]);
        let db = test.path("db");
        for round in 0..5 {
            let mut writer = Command::new("python3")
                .args(["-c", SQLITE_WRITER])
                .arg(&db)
                .arg(mode)
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            let mut output = BufReader::new(writer.stdout.take().unwrap());
            // However long it takes to begin on a busy machine, a row exists by then.
            let mut printed = String::new();
            output.read_line(&mut printed).unwrap();
            std::thread::sleep(Duration::from_millis(500 + 77 * round));
            ok(Command::new("kill").args(["-9", &test.daemon().to_string()]));
            output.read_to_string(&mut printed).unwrap();
            writer.wait().unwrap();
            let committed: usize = printed.lines().last().map_or(0, |line| line.parse().unwrap());
            ok(Command::new("umount").arg("-l").arg(&test.dir));
            test.mount(&[]);
            let rows: usize = ok(Command::new("python3").args(["-c", SQLITE_READER]).arg(&db))
                .trim()
                .parse()
                .unwrap();
            assert!(
                committed > 0 && rows >= committed,
                "{mode}: {rows} rows, {committed} were committed"
            );
        }
        test.finish();
    }
}
