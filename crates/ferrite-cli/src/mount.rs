//! `ferrite mount`: start a daemon that serves a pool, and return when the mount answers.
//!
//! The daemon is this program again, started with a hidden flag: it mounts, says `ready` on its standard output, lets
//! go of the terminal and serves. Whatever goes wrong before that, it says on the standard error it shares with us, and
//! its exit code is ours.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use ferrite_fs::{AtimePolicy, Engine, MountOptions};
use ferrite_fuse::FuseOptions;
use ferrite_pm::Access;
use ferrite_vfs::FileSystem;
use ferrite_vfs::trace::{Recorder, Traced};

use super::control::{self, Request};
use super::frost::Frost;
use super::target::{Target, not_mounted};
use super::{FAILED, Failure, Outcome, USAGE, about, complain, dead, log, memory, mounts, opening, scrub, signals};

/// Mount a pool on a directory
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Options for -o:
  ro                   refuse changes; a crashed pool is recovered in memory, nothing is written
  remount,ro           refuse changes on an existing mount; remount,rw: allow them again
  noatime, strictatime never, or always, update access times [default: as relatime]; reads from
                       the kernel's cache never do
  nodiratime           do not update access times of directories
  allow_other          allow access by other users [default for root]
  nosuid, nodev        ignore setuid bits and device files [default unless root]
  noexec               do not execute programs
  durability=process   on a disk file: faster, but survives only killed processes, not power losses
  accept_power_loss    mount although the machine went down in that mode
  clean_low=N          fold page logs when less than N % of the space is free [default: 5]
  clean_high=N         until N % is free [default: 10]
  fold_reads=N         a read that walks N entries of a page's log folds it; 0: never [default: 4]
  cleaner=off          fold page logs only on writes and reads, and when space runs out
  logs=off             copy a page for every unaligned write instead of logging it
  scrub=MIB            verify all checksums once a day, reading MIB MiB a second; findings go to
                       the log and to `ferrite info`
  log=FILE             as --log
  threads=N            serve requests with N threads [default: one per CPU]
  trace=FILE           record which parts of which files are written (no names, no content);
                       replaces an existing trace
  nofail               a missing pool is not an error

Also accepted, as /etc/fstab may have them: defaults, _netdev, noauto, user, owner, group, sync, dirsync, lazytime, \
discard, user_xattr, x-*

In /etc/fstab:
  /var/lib/data.pool  /data  ferrite  noatime  0 0")]
pub(crate) struct Mount {
    /// Pool to mount
    pool: PathBuf,
    /// Directory to mount it on
    dir: PathBuf,
    /// Mount options, separated by commas
    #[arg(short, value_delimiter = ',', value_name = "OPTIONS")]
    options: Vec<String>,
    /// Stay in the foreground
    #[arg(short, long)]
    foreground: bool,
    /// Append the log to this file [default: a daemon logs to syslog]
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Tolerate options that are not known, as mount(8) asks for
    #[arg(short, hide = true)]
    sloppy: bool,
    /// Do everything but mount, as mount(8) asks for
    #[arg(short = 'N', hide = true)]
    fake: bool,
    /// Do not write /etc/mtab; nobody does any more
    #[arg(short = 'n', hide = true)]
    no_mtab: bool,
    /// This is the daemon
    #[arg(long, hide = true)]
    daemon: bool,
}

struct Options {
    /// Change what is mounted already.
    remount: bool,
    /// A pool that is not there is no failure.
    nofail: bool,
    engine: MountOptions,
    fuse: FuseOptions,
    /// Bytes a second of a scrub once a day.
    scrub: Option<u64>,
    /// Where writes are recorded.
    trace: Option<PathBuf>,
    /// Where the log goes.
    log: Option<PathBuf>,
}

/// Opens a file for a trace, and leaves what is in it until [`empty`] is called. What is no trace is refused: the name
/// may be a mistake.
fn open_trace(path: &Path) -> Result<File, Failure> {
    let open = || -> std::io::Result<Option<File>> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .custom_flags(libc::O_NONBLOCK)
            .open(path)?;
        if !file.metadata()?.is_file() {
            return Ok(None);
        }
        let mut start = Vec::new();
        const MARK: &str = "ferrite-trace ";
        (&file).take(MARK.len() as u64).read_to_end(&mut start)?;
        if !start.is_empty() && start != MARK.as_bytes() {
            return Ok(None);
        }
        Ok(Some(file))
    };
    open().map_err(about(path))?.ok_or_else(|| {
        let path = path.display();
        Failure::new(
            FAILED,
            format!("{path}: exists and holds no trace; choose another name for `trace=`, or remove the file"),
        )
    })
}

/// Makes room for a new trace.
fn empty(trace: &File) -> std::io::Result<()> {
    trace.set_len(0)?;
    let mut trace = trace;
    trace.rewind()
}

/// Looks for damage once a day, until the process ends.
fn scrub_daily(engine: Engine, bytes_per_second: u64) -> Result<(), Failure> {
    const DAY: Duration = Duration::from_secs(24 * 60 * 60);
    let work = move || {
        // The engine tells each finding to the log.
        while let Ok(report) = engine.scrub(Some(bytes_per_second)) {
            tracing::info!(inodes = report.inodes, damaged = report.findings.len(), "scrub done");
            std::thread::sleep(DAY);
        }
    };
    std::thread::Builder::new()
        .name("scrub".into())
        .spawn(work)
        .map(drop)
        .map_err(|error| Failure::new(FAILED, format!("the scrub thread did not start: {error}")))
}

/// The value of an option that is a number within limits.
fn number(word: &str, value: &str, least: usize, most: usize) -> Result<usize, Failure> {
    value
        .parse()
        .ok()
        .filter(|n| (least..=most).contains(n))
        .ok_or_else(|| Failure::new(USAGE, format!("`{word}`: give a number from {least} to {most}")))
}

/// Why an option that other file systems know cannot be met here.
fn untrue(word: &str) -> Option<&'static str> {
    Some(match word {
        "acl" | "posixacl" => "access control lists are not supported; omit it",
        "nouser_xattr" => "extended attributes cannot be turned off; omit it",
        "nobarrier" | "barrier=0" => {
            "completed operations are always durable; `durability=process` trades power-loss safety for speed on \
            disk files"
        }
        "errors=continue" | "errors=panic" => "after a medium failure all changes are always refused; omit it",
        "quota" | "usrquota" | "grpquota" | "prjquota" | "uquota" | "gquota" | "pquota" => {
            "quotas are not supported; omit it"
        }
        _ => return None,
    })
}

fn parse(words: &[String], sloppy: bool) -> Result<Options, Failure> {
    let root = rustix::process::geteuid().is_root();
    let mut engine = MountOptions::default();
    let mut fuse = FuseOptions {
        allow_other: root,
        suid_dev: root,
        ..FuseOptions::default()
    };
    let (mut daily, mut trace, mut log) = (None, None, None);
    let (mut remount, mut nofail, mut clean_high) = (false, false, None);
    for word in words {
        match word.as_str() {
            "ro" => engine.read_only = true,
            // The last one counts: mount(8) puts what is asked for behind what the mount has.
            "rw" => engine.read_only = false,
            "remount" => remount = true,
            "noatime" => engine.atime = AtimePolicy::Never,
            "relatime" => engine.atime = AtimePolicy::Relative,
            "strictatime" => engine.atime = AtimePolicy::Strict,
            "allow_other" => fuse.allow_other = true,
            "nosuid" | "nodev" => fuse.suid_dev = false,
            "noexec" => fuse.noexec = true,
            "durability=strict" => engine.process_durability = false,
            "durability=process" => engine.process_durability = true,
            "accept_power_loss" => engine.accept_power_loss = true,
            "nofail" => nofail = true,
            "nodiratime" => engine.dir_atime = false,
            "diratime" => engine.dir_atime = true,
            // What they ask for is so anyway (a change is durable when it returns, attributes are kept, a failed medium
            // stops changes), or is for mount(8), or is a permission that is not made use of.
            "dirsync" | "user_xattr" | "noacl" | "errors=remount-ro" | "barrier" => {}
            "group" | "owner" | "lazytime" | "nolazytime" | "discard" | "nodiscard" | "silent" | "loud" => {}
            word if let Some(why) = untrue(word) => {
                return Err(Failure::new(USAGE, format!("mount option `{word}`: {why}")));
            }
            "defaults"
            | "_netdev"
            | "auto"
            | "noauto"
            | "user"
            | "nouser"
            | "users"
            | "exec"
            | "suid"
            | "dev"
            | "async"
            | "sync"
            | "atime"
            | "default_permissions"
            | "" => {}
            word if word.starts_with("x-") || word.starts_with("comment=") => {}
            // The kernel shows these of a mount, so that mount(8) gives them back at a remount.
            word if word.starts_with("user_id=") || word.starts_with("group_id=") => {}
            "cleaner=on" => engine.cleaner = true,
            "cleaner=off" => engine.cleaner = false,
            "logs=off" => engine.cow_only = true,
            "logs=on" => engine.cow_only = false,
            word => match word.split_once('=') {
                Some(("threads", value)) => fuse.threads = number(word, value, 1, 256)?,
                Some(("scrub", value)) => daily = Some(number(word, value, 1, scrub::MIB_MAX as usize)? as u64),
                Some(("clean_low", value)) => engine.clean_low_percent = number(word, value, 0, 90)? as u8,
                Some(("clean_high", value)) => clean_high = Some(number(word, value, 0, 90)? as u8),
                Some(("trace", "")) => return Err(Failure::new(USAGE, "`trace=`: give a file")),
                Some(("trace", value)) => trace = Some(PathBuf::from(value)),
                Some(("log", "")) => return Err(Failure::new(USAGE, "`log=`: give a file")),
                Some(("log", value)) => log = Some(PathBuf::from(value)),
                Some(("fold_reads", value)) => engine.fold_read_entries = number(word, value, 0, 1000)? as u32,
                _ if sloppy => {}
                _ => {
                    return Err(Failure::new(
                        USAGE,
                        format!("unknown mount option `{word}`; see `ferrite mount --help`"),
                    ));
                }
            },
        }
    }
    let low = engine.clean_low_percent;
    // One that was not asked for follows the other.
    let high = clean_high.unwrap_or(engine.clean_high_percent.max(low));
    engine.clean_high_percent = high;
    if low > high {
        return Err(Failure::new(
            USAGE,
            format!(
                "clean_low={low} is above clean_high={high}: the cleaner starts below clean_low and stops at clean_high"
            ),
        ));
    }
    fuse.read_only = engine.read_only;
    fuse.noatime = engine.atime == AtimePolicy::Never;
    Ok(Options {
        remount,
        nofail,
        engine,
        fuse,
        scrub: daily.map(scrub::bytes),
        trace,
        log,
    })
}

impl Mount {
    /// `verbose` is how much the daemon's log is to tell.
    pub(crate) fn run(self, verbose: u8) -> Outcome {
        let options = parse(&self.options, self.sloppy)?;
        if self.fake {
            return Ok(0);
        }
        if options.remount {
            self.remount(options.engine.read_only)?;
            return Ok(0);
        }
        if options.nofail && !self.daemon && is_missing(&self.pool) {
            complain(format_args!(
                "ferrite: {}: does not exist, so it is not mounted (nofail)",
                self.pool.display()
            ));
            return Ok(0);
        }
        if options.engine.atime == AtimePolicy::Strict && !self.daemon {
            complain(
                "ferrite: strictatime: reads that the kernel serves from its cache do not update access times, as on \
                any FUSE mount",
            );
        }
        if self.foreground || self.daemon {
            self.serve(options)
        } else {
            self.start_daemon(verbose)
        }
    }

    fn remount(&self, read_only: bool) -> Result<(), Failure> {
        let mount = mounts::on(&self.dir).ok_or_else(|| not_mounted(&self.dir))?;
        if !is_same(&absolute(&self.pool)?, &mount.pool) {
            return Err(Failure::new(
                FAILED,
                format!(
                    "{}: {} is mounted there, not {}",
                    self.dir.display(),
                    mount.pool.display(),
                    self.pool.display()
                ),
            ));
        }
        if !read_only && Target::new(&self.dir).ask(&Request::IsReadOnly)? == Some(true) {
            return Err(Failure::new(
                FAILED,
                format!(
                    "{}: the pool stays read-only until it is unmounted, because it was mounted with `ro`, is \
                    damaged or has failed (see `ferrite info`); unmount it and mount it again without `ro`",
                    self.dir.display()
                ),
            ));
        }
        Ok(ferrite_fuse::remount(&self.dir, read_only)?)
    }

    fn start_daemon(self, verbose: u8) -> Outcome {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .arg("mount")
            .arg(absolute(&self.pool)?)
            .arg(absolute(&self.dir)?)
            .arg("--daemon");
        if !self.options.is_empty() {
            command.arg("-o").arg(self.options.join(","));
        }
        if self.sloppy {
            command.arg("-s");
        }
        if let Some(log) = &self.log {
            command.arg("--log").arg(absolute(log)?);
        }
        command.args((0..verbose).map(|_| "-v"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
        let mut daemon = command.spawn()?;
        let mut line = String::new();
        if let Some(stdout) = daemon.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        if line.trim() == "ready" {
            return Ok(0);
        }
        let status = daemon.wait()?;
        // It has said why on the standard error that we share.
        let code = status
            .code()
            .and_then(|code| u8::try_from(code).ok())
            .filter(|&code| code != 0);
        match code {
            Some(code) => Ok(code),
            None => Err(Failure::new(
                FAILED,
                format!("the daemon ended before the mount was ready ({status})"),
            )),
        }
    }

    fn serve(self, mut options: Options) -> Outcome {
        let pool = absolute(&self.pool)?;
        // Before the pool is looked at, so that the log has all that is found. And before the mount, which may hide the
        // file's directory.
        match self.log.as_ref().or(options.log.as_ref()) {
            Some(path) => log::keep_in(path)?,
            None if self.daemon => log::tell_syslog(&pool),
            None => {}
        }
        let access = if options.engine.read_only {
            Access::ReadOnlyPrivate
        } else {
            Access::ReadWrite
        };
        let region = opening::open(&pool, access)?;
        let file = std::fs::metadata(&pool).map_err(about(&pool))?;
        let engine = Engine::mount(region, &options.engine).map_err(about(&pool))?;
        warn_of_damage(&engine, &pool, &self.dir);
        warn_of_copy(&engine, &pool);
        options.fuse.read_only |= engine.is_read_only();
        options.fuse.source = pool.display().to_string();
        options.fuse.durable_operations = true;
        // Before the mount, which may hide the file's directory, and while relative names still mean what the user
        // meant.
        let trace = options.trace.as_deref().map(open_trace).transpose()?;
        let sink = trace.as_ref().map(File::try_clone).transpose()?;
        let recorder = sink.map(|sink| Arc::new(Recorder::new(Box::new(sink))));
        let fs: Arc<dyn FileSystem> = match &recorder {
            Some(recorder) => Arc::new(Traced::new(engine.clone(), Arc::clone(recorder))),
            None => Arc::new(engine.clone()),
        };
        let dir = absolute(&self.dir)?;
        let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
        dead::clear_dead(&dir)?;
        let mut mounted = ferrite_fuse::mount(fs, &dir, &options.fuse)?;
        let unmounter = mounted.unmounter();
        let frost = Frost::new(engine.clone(), mounted.freezer());
        let mount = mounts::with_path(&dir);
        let server = control::Server::start(&file, mount.as_ref(), engine.clone(), frost.clone());
        if let Err(error) = &server {
            tracing::warn!(%error, "no control socket: `ferrite info` cannot query this daemon");
        }
        // All that may fail comes before anybody is told that the mount is there.
        let started = signals::end_on_signal(unmounter.clone(), dir.clone(), engine.clone(), frost)
            .and_then(|()| match options.scrub {
                Some(bytes_per_second) => scrub_daily(engine.clone(), bytes_per_second),
                None => Ok(()),
            })
            .and_then(|()| memory::give_back(engine.clone()))
            .and_then(|()| match (&trace, &options.trace) {
                (Some(file), Some(path)) => empty(file).map_err(about(path)),
                _ => Ok(()),
            })
            .and_then(|()| match self.daemon {
                true => detach(&null),
                false => Ok(()),
            });
        let ended = match started {
            Ok(()) => {
                tracing::info!(pool = %pool.display(), dir = %dir.display(), "mounted");
                mounted.serve().map_err(Failure::from)
            }
            Err(failure) => {
                // Or a mount would stay that nobody serves.
                let _ = unmounter.unmount();
                Err(failure)
            }
        };
        drop(server);
        let ended = close(&engine, ended, recorder.as_deref(), options.trace.as_deref());
        match &ended {
            // Nobody else is there to be told.
            Err(failure) if self.daemon => tracing::error!("{}", failure.message),
            Err(_) => {}
            Ok(()) => tracing::info!("unmounted"),
        }
        ended.map(|()| 0)
    }
}

/// Ends a trace and closes the pool, whatever became of the mount; tells the first error.
fn close(
    engine: &Engine,
    served: Result<(), Failure>,
    recorder: Option<&Recorder>,
    trace: Option<&Path>,
) -> Result<(), Failure> {
    // A trace that failed must not keep the pool from being closed in order.
    let recorded = recorder.map_or(Ok(()), Recorder::finish);
    engine.unmount()?;
    served?;
    recorded.map_err(|error| {
        let path = trace.unwrap_or(Path::new("trace"));
        Failure::new(FAILED, format!("{}: the trace is incomplete: {error}", path.display()))
    })
}

/// Tells whoever mounts a damaged pool; the log has every finding.
fn warn_of_damage(engine: &Engine, pool: &Path, dir: &Path) {
    let Some(first) = engine.damage().first() else { return };
    let count = engine.damage().len();
    let state = match engine.is_read_only() {
        true => "mounted READ-ONLY, because it is unknown which blocks the damaged parts own",
        false => "what is damaged cannot be read, everything else works",
    };
    complain(format_args!(
        "ferrite: {pool}: the pool is DAMAGED ({count} found, first: {first}); {state}. To repair it: `ferrite umount \
         {dir}`, then `ferrite fsck --repair {pool}`",
        pool = pool.display(),
        dir = dir.display(),
    ));
}

/// Tells whoever mounts what may be a copy of a mounted pool; nobody can see later which of its files are old or mixed.
fn warn_of_copy(engine: &Engine, pool: &Path) {
    if engine.may_be_live_copy() {
        let pool = pool.display();
        complain(format_args!("ferrite: {pool}: {}", ferrite_fs::MAYBE_COPIED));
    }
}

fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    // The pool as it is, not where a link points: but a name that other commands find again.
    std::fs::canonicalize(path)
        .or_else(|_| std::path::absolute(path))
        .map_err(about(path))
}

/// Tells whoever started us that the mount answers, and lets go of them and their terminal.
fn detach(null: &File) -> Result<(), Failure> {
    let _ = rustix::process::setsid();
    std::env::set_current_dir("/")?;
    // They may be gone already; the mount stays.
    let mut stdout = std::io::stdout();
    let _ = writeln!(stdout, "ready").and_then(|()| stdout.flush());
    rustix::stdio::dup2_stdout(null)?;
    rustix::stdio::dup2_stderr(null)?;
    log::leave_stderr();
    Ok(())
}

fn is_missing(path: &Path) -> bool {
    std::fs::metadata(path).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
}

/// Whether two names are of one pool: they are alike, or lead to the same file.
fn is_same(one: &Path, other: &Path) -> bool {
    let file = |path| std::fs::metadata(path).map(|found| (found.dev(), found.ino()));
    one == other || matches!((file(one), file(other)), (Ok(one), Ok(other)) if one == other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(',').map(String::from).collect()
    }

    #[test]
    fn fstab_options_are_accepted_and_unknown_ones_named() {
        let options = parse(&words("rw,nofail,x-systemd.automount,noatime,threads=3"), false).unwrap();
        assert_eq!(options.engine.atime, AtimePolicy::Never);
        assert_eq!(options.fuse.threads, 3);
        let common = "defaults,discard,user_xattr,noacl,group,owner,lazytime,dirsync,sync,errors=remount-ro";
        assert!(parse(&words(common), false).is_ok_and(|options| options.engine.dir_atime));
        assert!(!parse(&words("nodiratime"), false).unwrap().engine.dir_atime);
        for lie in ["acl", "nobarrier", "usrquota", "nouser_xattr", "errors=continue"] {
            for sloppy in [false, true] {
                let failure = parse(&words(lie), sloppy).err().unwrap();
                assert!(
                    failure.message.contains(lie) && failure.message.contains(": "),
                    "{}",
                    failure.message
                );
                assert!(!failure.message.contains("unknown"), "{}", failure.message);
            }
        }
        let failure = parse(&words("ro,colour=red"), false).err().unwrap();
        assert!(failure.message.contains("colour=red"));
        assert_eq!(failure.code, USAGE);
        assert!(parse(&words("threads=0"), false).is_err());
        assert!(parse(&words("colour=red"), true).is_ok(), "mount -s tolerates it");
        assert!(parse(&words("trace="), true).is_err());
        assert_eq!(
            parse(&words("log=/var/log/ferrite"), false).unwrap().log,
            Some("/var/log/ferrite".into())
        );
        assert!(parse(&words("log="), true).is_err());
        let failure = parse(&words("clean_low=20,clean_high=10"), true).err().unwrap();
        assert!(failure.message.contains("clean_low=20") && failure.message.contains("clean_high=10"));
        assert_eq!(
            parse(&words("clean_low=11"), false).unwrap().engine.clean_high_percent,
            11
        );
        assert!(parse(&words("clean_high=4"), false).is_err(), "the other one is 5");
        assert!(parse(&words("clean_low=10,clean_high=10"), false).is_ok());
        let options = parse(&words("rw,relatime,user_id=0,group_id=0,allow_other,remount,ro"), false).unwrap();
        assert!(options.remount && options.engine.read_only);
        assert!(!parse(&words("ro,remount,rw"), false).unwrap().engine.read_only);
    }

    #[test]
    fn a_trace_replaces_a_trace_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        drop(open_trace(&path).unwrap());
        std::fs::write(&path, "ferrite-trace 1\nf 7 0\n").unwrap();
        let mut trace = open_trace(&path).unwrap();
        assert_eq!(
            std::fs::read(&path).unwrap().len(),
            22,
            "it is there until the mount is"
        );
        empty(&trace).unwrap();
        trace.write_all(b"new").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        for text in ["root:x:0:0", "ferrite"] {
            std::fs::write(&path, text).unwrap();
            let failure = open_trace(&path).err().unwrap();
            assert!(failure.message.contains("holds no trace"), "{}", failure.message);
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
        assert!(open_trace(dir.path()).is_err());
    }
}
