//! The daemon is killed while programs are at work: what returned is there, and in order.

mod common;

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{TestPool, has_fuse, ok, soak};

/// What one writer knows to have returned.
#[derive(Default)]
struct Returned {
    /// Lines appended to its log.
    lines: usize,
    /// Number of its last file that was created, written and renamed.
    file: Option<usize>,
    /// Number up to which its files were removed.
    removed: usize,
}

/// Appends, creates, renames and removes until something fails, because the daemon is gone.
fn work(dir: &Path, round: usize, stop: &AtomicBool) -> Returned {
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

#[test]
fn nothing_that_returned_is_lost_when_the_daemon_is_killed() {
    if !has_fuse() {
        return;
    }
    let test = TestPool::new("256M", &[]);
    let rounds = if soak() { 200 } else { 50 };
    for round in 0..rounds {
        let stop = AtomicBool::new(false);
        let daemon = test.daemon().to_string();
        let returned: Vec<Returned> = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..3)
                .map(|writer| {
                    let (dir, stop) = (test.path(&format!("w{writer}")), &stop);
                    scope.spawn(move || work(&dir, round, stop))
                })
                .collect();
            std::thread::sleep(Duration::from_millis(60 + 13 * (round as u64 % 10)));
            ok(Command::new("kill").args(["-9", &daemon]));
            stop.store(true, Ordering::Relaxed);
            writers.into_iter().map(|writer| writer.join().unwrap()).collect()
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
    }
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
            let writer = Command::new("python3")
                .args(["-c", SQLITE_WRITER])
                .arg(&db)
                .arg(mode)
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            std::thread::sleep(Duration::from_millis(500 + 77 * round));
            ok(Command::new("kill").args(["-9", &test.daemon().to_string()]));
            let printed = String::from_utf8(writer.wait_with_output().unwrap().stdout).unwrap();
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
