//! Tables of system calls, and their runner for anything that can make such calls: a mount, or the library.
//!
//! A line reads `who: call arguments = expected`. Without `who:` root calls, without `=` the call must succeed. `---
//! name` opens a case, which starts in an empty directory that everybody may write to. `changes f:mc d: | …` also says
//! which of access (a), modification (m) and change (c) times the call moves; m and c that are not named must stay.
//! `{255}` is a name of that length, `{path 4095 f}` a path to `f` of that length.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Returns once the clock of file times has moved, so that a changed time shows. On a busy virtual machine it can stand
/// still for longer than a tick.
fn wait_for_a_tick() {
    let before = clock_gettime(ClockId::RealtimeCoarse);
    while clock_gettime(ClockId::RealtimeCoarse) == before {
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub(crate) const TABLES: [(&str, &str); 5] = [
    ("errors", include_str!("errors.table")),
    ("permissions", include_str!("permissions.table")),
    ("rename", include_str!("rename.table")),
    ("attributes", include_str!("attributes.table")),
    ("data", include_str!("data.table")),
];

pub(crate) const READ_ONLY: &str = include_str!("read_only.table");

/// A user of the tables.
#[derive(Debug, Clone, Copy)]
pub(crate) struct User {
    name: &'static str,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Further groups.
    pub(crate) groups: &'static [u32],
}

const fn user(name: &'static str, uid: u32, gid: u32, groups: &'static [u32]) -> User {
    User { name, uid, gid, groups }
}

pub(crate) const ROOT: User = user("root", 0, 0, &[]);

const USERS: [User; 5] = [
    ROOT,
    user("u", 65534, 65534, &[]),
    user("v", 65533, 65533, &[]),
    // Not the user, but in the user's group: by the first group, or by a further one.
    user("g", 65532, 65534, &[]),
    user("s", 65531, 65531, &[65534]),
];

const ERRORS: [(&str, i32); 27] = [
    ("EPERM", libc::EPERM),
    ("ENOENT", libc::ENOENT),
    ("EIO", libc::EIO),
    ("ENXIO", libc::ENXIO),
    ("E2BIG", libc::E2BIG),
    ("EBADF", libc::EBADF),
    ("EACCES", libc::EACCES),
    ("EBUSY", libc::EBUSY),
    ("EEXIST", libc::EEXIST),
    ("EXDEV", libc::EXDEV),
    ("ENODEV", libc::ENODEV),
    ("ENOTDIR", libc::ENOTDIR),
    ("EISDIR", libc::EISDIR),
    ("EINVAL", libc::EINVAL),
    ("ETXTBSY", libc::ETXTBSY),
    ("EFBIG", libc::EFBIG),
    ("ENOSPC", libc::ENOSPC),
    ("EROFS", libc::EROFS),
    ("EMLINK", libc::EMLINK),
    ("ERANGE", libc::ERANGE),
    ("ENAMETOOLONG", libc::ENAMETOOLONG),
    ("ENOSYS", libc::ENOSYS),
    ("ENOTEMPTY", libc::ENOTEMPTY),
    ("ELOOP", libc::ELOOP),
    ("ENODATA", libc::ENODATA),
    ("EOPNOTSUPP", libc::EOPNOTSUPP),
    ("EOVERFLOW", libc::EOVERFLOW),
];

/// The result of a call: text ("ok" if there is nothing to report), or an error number.
pub(crate) type Answer = Result<String, i32>;

/// Access, modification and change time: seconds and nanoseconds.
pub(crate) type Times = [(i64, i64); 3];

/// The system that runs the tables. Paths are relative to `dir`, a directory of the system under test.
pub(crate) trait System {
    /// Makes one call, as `who`, with umask 0. `None` if the system lacks the call, so that the line asserts nothing.
    fn call(&self, who: &User, dir: &str, words: &[String]) -> Option<Answer>;

    /// Times of a file that is not the target of a link, `None` if it is missing.
    fn times(&self, dir: &str, path: &str) -> Option<Times>;
}

/// The results of a run.
#[derive(Debug, Default)]
pub(crate) struct Run {
    pub(crate) assertions: usize,
    /// Lines whose call the system lacks.
    pub(crate) skipped: usize,
    /// Lines that do not hold.
    pub(crate) failures: Vec<String>,
}

impl Run {
    /// Panics unless every line held, and there were at least as many assertions as there once were.
    pub(crate) fn assert_good(&self, what: &str, assertions_min: usize) {
        eprintln!("{what}: {} assertions, {} lines skipped", self.assertions, self.skipped);
        assert!(
            self.failures.is_empty(),
            "{what}: {} of {} assertions failed:\n{}",
            self.failures.len(),
            self.assertions,
            self.failures.join("\n")
        );
        assert!(
            self.assertions >= assertions_min,
            "{what}: the tables shrank to {} assertions",
            self.assertions
        );
    }
}

fn name_of(errno: i32) -> String {
    ERRORS
        .iter()
        .find(|(_, number)| *number == errno)
        .map_or_else(|| format!("errno {errno}"), |(name, _)| (*name).to_owned())
}

pub(crate) fn octal(text: &str) -> u32 {
    u32::from_str_radix(text, 8).unwrap_or_else(|_| panic!("`{text}` is no mode"))
}

pub(crate) fn number(text: &str) -> i64 {
    match text.split_once("<<") {
        Some((value, shift)) => number(value) << number(shift),
        None => text.parse().unwrap_or_else(|_| panic!("`{text}` is no number")),
    }
}

/// A time in a table's words: the argument of `utimensat`. A dot separates seconds and nanoseconds.
#[derive(Debug, Clone, Copy)]
pub(crate) enum GivenTime {
    Omit,
    Now,
    At(i64, i64),
}

pub(crate) fn given_time(text: &str) -> GivenTime {
    match text {
        "omit" => GivenTime::Omit,
        "now" => GivenTime::Now,
        _ => text
            .split_once('.')
            .map(|(seconds, nanos)| GivenTime::At(number(seconds), number(nanos)))
            .unwrap_or_else(|| panic!("`{text}` is no time")),
    }
}

/// `{255}` and `{path 4095 f}`, see above.
fn expand(line: &str) -> String {
    let mut text = String::new();
    let mut rest = line;
    while let Some((before, behind)) = rest.split_once('{') {
        let (inside, after) = behind.split_once('}').unwrap_or_else(|| panic!("no }} in {line}"));
        text.push_str(before);
        match inside.split(' ').collect::<Vec<_>>()[..] {
            ["path", len, tail] => {
                text.push('.');
                text.push_str(&"/".repeat(number(len) as usize - 1 - tail.len()));
                text.push_str(tail);
            }
            [len] => text.push_str(&"n".repeat(number(len) as usize)),
            _ => panic!("{{{inside}}} is nothing"),
        }
        rest = after;
    }
    text + rest
}

/// The error in the times after a call, if any.
fn wrong_times(path: &str, expected: &str, before: Times, after: Times) -> Option<String> {
    let moved: String = ['a', 'm', 'c']
        .into_iter()
        .zip(before.iter().zip(&after))
        .filter(|(letter, (before, after))| before != after && (*letter != 'a' || expected.contains('a')))
        .map(|(letter, _)| letter)
        .collect();
    (moved != expected).then(|| format!("times of {path}: moved `{moved}`, expected `{expected}`"))
}

/// Runs one line and counts its assertions; returns its failures.
pub(crate) fn run_line(system: &dyn System, line: &str, dir: &str, run: &mut Run) -> Vec<String> {
    let (changes, line) = match line.strip_prefix("changes ") {
        Some(rest) => rest.split_once('|').unwrap_or_else(|| panic!("no | in {line}")),
        None => ("", line),
    };
    let (line, expected) = match line.rsplit_once(" =") {
        Some((line, expected)) => (line, expected.trim()),
        None => (line, "ok"),
    };
    let line = expand(line.trim());
    let expected = expand(expected);
    let (who, line) = line.split_once(": ").unwrap_or(("root", &line));
    let user = USERS
        .iter()
        .find(|user| user.name == who)
        .unwrap_or_else(|| panic!("`{who}` is no user"));
    // One space between words, so that an empty one (`{0}`) is a word.
    let words: Vec<String> = line.split(' ').map(String::from).collect();
    let changes: Vec<(&str, &str, Option<Times>)> = changes
        .split_whitespace()
        .map(|word| word.split_once(':').unwrap())
        .map(|(path, letters)| (path, letters, system.times(dir, path)))
        .collect();
    if !changes.is_empty() {
        wait_for_a_tick();
    }
    let Some(answer) = system.call(user, dir, &words) else {
        run.skipped += 1;
        return Vec::new();
    };
    let answer = answer.unwrap_or_else(name_of);
    let mut wrong = Vec::new();
    run.assertions += 1 + changes.len();
    if answer != expected {
        let short: String = answer.chars().take(100).collect();
        wrong.push(format!("expected `{expected}`, got `{short}`"));
    }
    for (path, letters, before) in changes {
        match (before, system.times(dir, path)) {
            (Some(before), Some(after)) => wrong.extend(wrong_times(path, letters, before, after)),
            _ => wrong.push(format!("{path}: no such file to watch")),
        }
    }
    wrong
}

/// Runs a table: each case in a directory of its own below `base`, or, if it has no cases, in `base`.
pub(crate) fn run_table(system: &dyn System, (name, table): (&str, &str), base: &str, run: &mut Run) {
    let (mut case, mut dir) = ("", base.to_owned());
    for (number, line) in table.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(title) = line.strip_prefix("--- ") {
            (case, dir) = (title, format!("{base}/{name}-{number}"));
            let mkdir = ["mkdir".to_owned(), dir.clone(), "0777".to_owned()];
            assert_eq!(system.call(&ROOT, base, &mkdir), Some(Ok("ok".to_owned())), "{dir}");
            continue;
        }
        for wrong in run_line(system, line, &dir, run) {
            run.failures
                .push(format!("{name}.table:{} ({case}): {line}: {wrong}", number + 1));
        }
    }
}

/// Runs every table below `base`.
pub(crate) fn run_all(system: &dyn System, base: &str) -> Run {
    let mut run = Run::default();
    for table in TABLES {
        run_table(system, table, base, &mut run);
    }
    run
}

/// Kinds of files, and the call that makes one.
const KINDS: [(&str, &str); 7] = [
    ("file", "create {} 0644"),
    ("dir", "mkdir {} 0755"),
    ("link", "symlink nowhere {}"),
    ("fifo", "mkfifo {} 0644"),
    ("sock", "mknod {} sock 0644"),
    ("chr", "mknod {} chr 0644"),
    ("blk", "mknod {} blk 0644"),
];

/// Lines run in sequence in one directory; records failed lines with their subject.
struct Script<'a> {
    system: &'a dyn System,
    dir: String,
    about: String,
    run: Run,
}

impl Script<'_> {
    fn line(&mut self, line: &str) {
        for wrong in run_line(self.system, line, &self.dir, &mut self.run) {
            self.run.failures.push(format!("{}: {line}: {wrong}", self.about));
        }
    }

    /// A file of a kind at `path`, owned by `owner`.
    fn make(&mut self, (_, how): (&str, &str), path: &str, owner: u32) {
        self.line(&how.replace("{}", path));
        self.line(&format!("lchown {path} {owner} {owner}"));
    }

    fn remove(&mut self, kind: &str, path: &str) {
        self.line(&format!("{} {path}", if kind == "dir" { "rmdir" } else { "unlink" }));
    }
}

/// Rights to remove, rename and replace in a sticky directory `t`: every owner of the directory, of the file in it,
/// every kind of file. `u` tries; `d` is a separate directory.
pub(crate) fn run_sticky(system: &dyn System, base: &str) -> Run {
    let (user, others) = (65534, [65534, 0, 65533]);
    let mut script = Script {
        system,
        dir: base.to_owned(),
        about: String::new(),
        run: Run::default(),
    };
    script.line("mkdir sticky 0777");
    script.dir = format!("{base}/sticky");
    script.line("u: mkdir d 0755");
    script.line("mkdir t 1777");
    for (owner, owns) in others.iter().flat_map(|owner| others.map(|owns| (*owner, owns))) {
        let may = owner == user || owns == user;
        script.line(&format!("chown t {owner} {owner}"));
        for kind in KINDS {
            let (name, _) = kind;
            script.about = format!("directory of {owner}, {name} of {owns}");
            let expected = if may { "" } else { " = EPERM" };
            let found = |there: bool| if there { name } else { "ENOENT" };

            script.make(kind, "t/f", owns);
            let remove = if name == "dir" { "rmdir" } else { "unlink" };
            script.line(&format!("u: {remove} t/f{expected}"));
            script.line(&format!("lstat t/f type = {}", found(!may)));
            if may {
                script.make(kind, "t/f", owns);
            }
            script.line(&format!("u: rename t/f t/g{expected}"));
            script.line(&format!("lstat t/g type = {}", found(may)));
            let here = if may { "t/g" } else { "t/f" };
            // A directory that moves is changed itself, by its `..`.
            let moves = may && (name != "dir" || owns == user);
            let refusal = if may && !moves { " = EACCES" } else { expected };
            script.line(&format!("u: rename {here} d/f{refusal}"));
            script.line(&format!("lstat d/f type = {}", found(moves)));
            script.line(&format!("lstat {here} type = {}", found(!moves)));
            script.remove(name, if moves { "d/f" } else { here });

            for target in KINDS.iter().filter(|(target, _)| (*target == "dir") == (name == "dir")) {
                script.make(kind, "d/f", user);
                script.make(*target, "t/f", owns);
                script.line(&format!("u: rename d/f t/f{expected}"));
                script.line(&format!("lstat t/f type = {}", if may { name } else { target.0 }));
                script.line(&format!("lstat d/f type = {}", found(!may)));
                script.remove(name, "t/f");
                if !may {
                    script.remove(name, "d/f");
                }
            }
        }
    }
    script.line("ls t =");
    script.line("ls d =");
    script.run
}
