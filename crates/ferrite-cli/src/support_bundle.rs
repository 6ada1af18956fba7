//! `ferrite support-bundle`: what a report of a bug needs, as one text that its sender can read first.
//!
//! Most sections are this program's own reports, each from a process of its own: what hangs or fails costs the report
//! that section, and the section says why.
//!
//! Invariants: nothing is changed. Every section is bounded in time and length. Passwords, keys and tokens are left out
//! ([`without_secrets`]), wherever a text comes from.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use ferrite::volume::Address;
use regex_lite::Regex;

use super::target::address;
use super::{Failure, Outcome, about, mounts, output, say};

/// How long a section may take.
const SECTION_WAIT: Duration = Duration::from_secs(20);
/// The longest text of a section; of longer ones the end is kept.
const SECTION_BYTES_MAX: u64 = 256 << 10;
/// Mounts with sections of their own, at most.
const MOUNTS_MAX: usize = 16;
const SERVER_CONFIG: &str = "/etc/ferrite/server.toml";

/// Collect what a bug report needs, without secrets
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The report is one text: read it before you send it. It has the versions, the machine, `ferrite doctor`, the mounts and \
their `ferrite info`, the processes, and the configuration and log that are named. It has names of pools, exports, hosts \
and clients; lines of a log may name files. It has no content of files, and no passwords, keys and tokens.

Examples:
  ferrite support-bundle
  ferrite support-bundle tcp://127.0.0.1:7447 --log /var/log/ferrite.log")]
pub(crate) struct SupportBundle {
    /// Pools and exports that the report is about, besides the mounts
    #[arg(value_parser = address(), value_hint = clap::ValueHint::AnyPath)]
    pools: Vec<Address>,
    /// Configuration of a server [default: /etc/ferrite/server.toml if there is one]
    #[arg(long, value_name = "FILE")]
    config: Vec<PathBuf>,
    /// A log, of which the end is taken; by default the journal of the unit `ferrite`
    #[arg(long, value_name = "FILE")]
    log: Vec<PathBuf>,
    /// The report; `-` prints it [default: ferrite-support-DATE.txt in the working directory]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl SupportBundle {
    pub(crate) fn run(self) -> Outcome {
        let text = without_secrets(&self.text()?);
        let path = match &self.output {
            Some(path) if path.as_os_str() == "-" => {
                output::write(text.as_bytes());
                return Ok(0);
            }
            Some(path) => path.clone(),
            None => format!("ferrite-support-{}.txt", jiff::Zoned::now().strftime("%Y%m%d-%H%M%S")).into(),
        };
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .map_err(about(&path))?;
        file.write_all(text.as_bytes()).map_err(about(&path))?;
        say(format_args!("{}: read it before you send it", path.display()));
        Ok(0)
    }

    fn text(&self) -> Result<String, Failure> {
        let us = std::env::current_exe()?;
        let mut report = Report::default();
        report.add("versions", &versions());
        report.add("machine", &machine());
        report.add_run(Command::new(&us).arg("doctor"));
        report.add("mounts", &lines_with("/proc/self/mountinfo", " fuse.ferrite "));
        report.add_run(Command::new(&us).arg("df"));
        for mount in mounts::reachable(mounts::all()).iter().rev().take(MOUNTS_MAX) {
            report.add_run(Command::new(&us).arg("info").arg(&mount.dir));
        }
        for pool in &self.pools {
            let name = pool.to_string();
            match pool.is_remote() {
                true => report.add_run(Command::new(&us).args(["top", "--once", &name])),
                false => report.add_run(Command::new(&us).args(["info", &name])),
            }
            if pool.scheme() == "nvme" {
                report.add_file(pool.path());
                report.add_run(Command::new(&us).args(["doctor", &name]));
            }
        }
        report.add("processes", &processes());
        for config in &self.config {
            report.add_file(config);
        }
        if self.config.is_empty() && Path::new(SERVER_CONFIG).exists() {
            report.add_file(Path::new(SERVER_CONFIG));
        }
        for log in &self.log {
            report.add_file(log);
        }
        if self.log.is_empty() {
            report.add_run(Command::new("journalctl").args(["--unit=ferrite", "--no-pager", "--lines=500"]));
        }
        Ok(report.text)
    }
}

#[derive(Default)]
struct Report {
    text: String,
}

impl Report {
    fn add(&mut self, title: &str, text: &str) {
        // Writing to a text does not fail.
        let _ = writeln!(self.text, "==== {title}\n{}\n", text.trim_end());
    }

    fn add_file(&mut self, path: &Path) {
        let text = end_of(path).unwrap_or_else(|error| format!("cannot be read: {error}"));
        self.add(&format!("the file {}", path.display()), &text);
    }

    fn add_run(&mut self, command: &mut Command) {
        let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
        let program = Path::new(command.get_program()).file_name().unwrap_or_default();
        let title = format!("{} {}", program.to_string_lossy(), words.join(" "));
        let text = run(command).unwrap_or_else(|error| format!("cannot be run: {error}"));
        self.add(&title, &text);
    }
}

/// The output of a program, and how it ended unless that was well. It is killed after [`SECTION_WAIT`].
fn run(command: &mut Command) -> std::io::Result<String> {
    let mut kept = tempfile::tempfile()?;
    command
        .stdin(Stdio::null())
        .stdout(kept.try_clone()?)
        .stderr(kept.try_clone()?);
    let mut child = command.spawn()?;
    let ended = wait(&mut child)?;
    let mut text = end(&mut kept)?;
    match ended {
        Some(status) if status.success() => {}
        // Writing to a text does not fail.
        Some(status) => drop(writeln!(text, "({status})")),
        None => drop(writeln!(text, "(no answer within {} s)", SECTION_WAIT.as_secs())),
    }
    Ok(text)
}

fn wait(child: &mut Child) -> std::io::Result<Option<std::process::ExitStatus>> {
    let until = Instant::now() + SECTION_WAIT;
    while Instant::now() < until {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.kill()?;
    // A process in the kernel's hands may not end, so its end is not waited for.
    Ok(None)
}

fn end_of(path: &Path) -> std::io::Result<String> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)?;
    if !file.metadata()?.is_file() {
        return Err(std::io::Error::other("not a file"));
    }
    end(&mut { file })
}

/// The last [`SECTION_BYTES_MAX`] of a file.
fn end(file: &mut fs::File) -> std::io::Result<String> {
    let skipped = file.metadata()?.len().saturating_sub(SECTION_BYTES_MAX);
    file.seek(SeekFrom::Start(skipped))?;
    let mut bytes = Vec::new();
    file.take(SECTION_BYTES_MAX).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    Ok(match skipped {
        0 => text.into_owned(),
        skipped => format!("({skipped} bytes before)\n{text}"),
    })
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn lines_with(path: &str, word: &str) -> String {
    let text = read(path);
    let lines: Vec<&str> = text.lines().filter(|line| line.contains(word)).collect();
    lines.join("\n")
}

fn versions() -> String {
    let features = [
        ("fabric", cfg!(feature = "fabric")),
        ("rdma", cfg!(feature = "rdma")),
        ("nvme", cfg!(feature = "nvme")),
        ("rados", cfg!(feature = "rados")),
    ];
    let features: Vec<&str> = features
        .iter()
        .filter(|(_, is_on)| *is_on)
        .map(|(name, _)| *name)
        .collect();
    format!("ferrite {}\nfeatures: {}", crate::version(), features.join(" "))
}

fn machine() -> String {
    let system = rustix::system::uname();
    let word = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
    let release = read("/etc/os-release");
    let release = release
        .lines()
        .find(|line| line.starts_with("PRETTY_NAME="))
        .unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let cpu: Vec<&str> = cpu
        .lines()
        .filter(|line| line.starts_with("model name") || line.starts_with("flags"))
        .take(2)
        .collect();
    let memory = read("/proc/meminfo");
    let memory: Vec<&str> = memory.lines().take(3).collect();
    let (kernel, build, arch) = (word(system.release()), word(system.version()), word(system.machine()));
    let count = std::thread::available_parallelism().map_or(0, usize::from);
    format!(
        "{release}\nLinux {kernel} {build} {arch}\n{count} processors\n{}\n{}",
        cpu.join("\n"),
        memory.join("\n")
    )
}

/// The processes called `ferrite`: their words, memory, threads and descriptors.
fn processes() -> String {
    let mut text = String::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let path = entry.path();
        let file = |name: &str| read(&path.join(name).to_string_lossy());
        let is_process = entry.file_name().to_string_lossy().parse::<u32>().is_ok();
        if !is_process || file("comm").trim_end() != "ferrite" {
            continue;
        }
        let status = file("status");
        let kept = |line: &&str| {
            ["VmRSS", "VmHWM", "Threads", "State"]
                .iter()
                .any(|name| line.starts_with(name))
        };
        let status: Vec<String> = status
            .lines()
            .filter(kept)
            .map(|line| line.replace('\t', " "))
            .collect();
        let open = fs::read_dir(path.join("fd")).map_or_else(|error| error.to_string(), |fds| fds.count().to_string());
        let (id, words) = (
            entry.file_name().to_string_lossy().into_owned(),
            file("cmdline").replace('\0', " "),
        );
        // Writing to a text does not fail.
        let _ = writeln!(text, "{id}: {words}\n    {}, descriptors: {open}", status.join(", "));
    }
    text
}

/// The text without what looks like a secret: keys of exports, values called password, token or secret, and passwords
/// in URLs.
fn without_secrets(text: &str) -> String {
    static SECRETS: OnceLock<[(Regex, &str); 4]> = OnceLock::new();
    let patterns = SECRETS.get_or_init(|| {
        [
            (r"ferrite-key-1:[^\s]*", "(a key)"),
            (
                r#"(?ix)\b
                    ((?:ssl|pg)?pass(?:word|wd|phrase)?|[a-z_-]*(?:token|secret)[a-z_-]*|authorization|access_key(?:_id)?)
                    ("?\s*[=:]\s*|\s+=\s+)
                    (?:"[^"\n]*"|'[^'\n]*'|bearer\s+[^\s]+|[^\s&,;"']+)"#,
                "$1$2(left out)",
            ),
            (r"([a-z][a-z0-9+.-]*://[^\s/:@]*):[^\s/@]*@", "$1:(left out)@"),
            (r"(?i)(bearer|basic)\s+[a-z0-9+/=._-]{8,}", "$1 (left out)"),
        ]
        .map(|(pattern, instead)| (Regex::new(pattern).expect("a test compiles each"), instead))
    });
    patterns.iter().fold(text.to_owned(), |text, (pattern, instead)| {
        pattern.replace_all(&text, *instead).into_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_left_out_wherever_they_stand() {
        for (text, expected) in [
            ("a ferrite-key-1:0123abcd b", "a (a key) b"),
            ("password=hunter2 dbname=x", "password=(left out) dbname=x"),
            ("password = \"two words\"\nnext = 1", "password = (left out)\nnext = 1"),
            ("PGPASSWORD='a b' psql", "PGPASSWORD=(left out) psql"),
            (
                "{\"console_token\": \"abc\", \"n\": 1}",
                "{\"console_token\": (left out), \"n\": 1}",
            ),
            ("--console-token=abc --x", "--console-token=(left out) --x"),
            ("postgres://me:hunter2@db/x", "postgres://me:(left out)@db/x"),
            ("Authorization: Bearer abcdef.ghi", "Authorization: (left out)"),
            ("secret_access_key=abc", "secret_access_key=(left out)"),
        ] {
            assert_eq!(without_secrets(text), expected);
        }
        for kept in [
            "key=data.key",
            "tcp://host:7447/data",
            "passed: 3",
            "pool /dev/shm/pool",
        ] {
            assert_eq!(without_secrets(kept), kept);
        }
    }

    #[test]
    fn a_long_file_is_taken_from_its_end_and_a_pipe_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        fs::write(&path, [&vec![b'a'; 300 << 10][..], b"end"].concat()).unwrap();
        let text = end_of(&path).unwrap();
        assert!(text.ends_with("aend") && text.starts_with('(') && text.len() < 257 << 10);
        let pipe = dir.path().join("pipe");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &pipe,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR,
            0,
        )
        .unwrap();
        assert!(end_of(&pipe).is_err());
    }

    #[test]
    fn a_program_that_does_not_end_is_ended_and_what_it_said_kept() {
        let text = run(Command::new("sh").args(["-c", "echo before; exit 3"])).unwrap();
        assert!(text.starts_with("before\n(exit status: 3)"), "{text}");
    }
}
