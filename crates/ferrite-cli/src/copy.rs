//! `ferrite copy`: a sound copy of a pool, mounted or not.
//!
//! A mounted pool is frozen while its file is read ([`super::freeze_guard`]), so the copy equals the state after an
//! unmount. Any other pool is read under its lock; records that a crash left in its journal are replayed into the copy.
//!
//! Invariant: under the requested name lies either a whole, durable copy or the earlier content. Until it is whole, the
//! copy has no name or, on file systems that do not support that, a temporary one that is removed when the command
//! ends.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ferrite::volume::{Address, VolumeInfo};
use ferrite_fs::{Engine, MountOptions};
use ferrite_pm::{Access, PmError, Region};
use rustix::fs::{AtFlags, CWD, SeekFrom};
use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::control::{self, Request};
use super::mounts::{self, MountPoint};
use super::progress::Bar;
use super::target::{Target, local_address, not_mounted};
use super::{FAILED, Failure, Outcome, about, complain, freeze, freeze_guard, opening, say, say_json, size};

/// Bytes read at a time.
const CHUNK_BYTES: usize = 1 << 20;
/// Zeros are left out in pieces of this size.
const PIECE_BYTES: usize = 64 << 10;
/// How often the daemon gets a sign of life.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// Copy a pool, also while it is mounted
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A mounted pool is frozen while it is read. The copy contains everything that had returned before; programs that change \
something wait, reads continue. The copy is in the state of a cleanly unmounted pool, with the uuid of the original, and \
as sparse as its content allows. Only the user who runs the daemon, or root, may copy a mounted pool. A plain cp of a \
mounted pool is usually damaged.

Examples:
  ferrite copy /mnt /backup/pool
  ferrite copy /var/lib/data.pool /backup/ --force")]
pub(crate) struct Copy {
    /// Pool, or a directory where one is mounted
    #[arg(value_parser = local_address(), value_hint = clap::ValueHint::AnyPath)]
    pool: Address,
    /// File to create, or a directory to create it in
    to: PathBuf,
    /// Replace an existing file
    #[arg(short, long)]
    force: bool,
    /// Share the blocks of the original, if the file system supports it: done at once, but later writes to either need
    /// new space
    #[arg(long)]
    reflink: bool,
    /// Show no progress
    #[arg(short, long)]
    quiet: bool,
    /// Print what was done as one line of JSON
    #[arg(long)]
    json: bool,
}

/// Reads a part of the original.
type Read<'r> = &'r dyn Fn(u64, &mut [u8]) -> Result<(), Failure>;

/// The result of a copy.
#[derive(serde::Serialize)]
struct Report {
    pool: PathBuf,
    copy: PathBuf,
    size_bytes: u64,
    /// Bytes written to the copy before the replay of the journal.
    copied_bytes: u64,
    /// How long changes were held back; null if the pool was not mounted.
    frozen_ms: Option<u64>,
    replayed_records: u64,
    /// Damage in the original, and so in the copy; checked only after a crash recovery.
    damage: Vec<String>,
}

impl Copy {
    pub(crate) fn run(self) -> Outcome {
        let target = Target::new(&self.pool);
        let given = self.pool.path();
        if given.is_dir() && mounts::on(given).is_none() {
            return Err(not_mounted(given));
        }
        let pool = target.pool().to_path_buf();
        refuse_other_engines(&self.pool, &target)?;
        let to = match (self.to.is_dir(), pool.file_name()) {
            (true, Some(name)) => self.to.join(name),
            _ => self.to.clone(),
        };
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&stop))?;
        }
        check_place(&to, &pool, self.force)?;
        let copy = Unfinished::new(&to)?;
        freeze::write_out(given);
        let job = Job {
            pool: &pool,
            copy: &copy.file,
            reflink: self.reflink,
            bar: Bar::new(self.quiet || self.json),
            stop,
        };
        // A pool that is mounted read-only can be read like an unmounted one: nothing changes it.
        let (size_bytes, copied_bytes, frozen) = match (Region::open(&pool, Access::ReadOnlyPrivate), target.connect())
        {
            (Err(PmError::InUse { .. }), Some(daemon)) => {
                job.copy_mounted(daemon).map_err(|failure| failure.of(given))?
            }
            (Ok(region), _) => job.copy_locked(&region)?,
            (Err(_), _) => job.copy_locked(&opening::open(&pool, Access::ReadOnlyPrivate)?)?,
        };
        let (replayed_records, damage) = settle(&copy.file).map_err(|failure| failure.of(&pool))?;
        drop(job);
        let mode = std::fs::metadata(&pool).map_or(0o600, |found| found.mode() & 0o777);
        copy.keep(&to, mode, self.force).map_err(about(&to))?;
        let report = Report {
            pool,
            copy: to,
            size_bytes,
            copied_bytes,
            frozen_ms: frozen.map(|time| time.as_millis() as u64),
            replayed_records,
            damage,
        };
        self.tell(&report)?;
        Ok(0)
    }

    fn tell(&self, report: &Report) -> Result<(), Failure> {
        if let Some(first) = report.damage.first() {
            complain(format_args!(
                "ferrite: {}: the pool is DAMAGED ({} found, first: {first}), and so is the copy; `ferrite fsck \
                 --repair` repairs both",
                report.pool.display(),
                report.damage.len()
            ));
        }
        if self.json {
            return say_json(report);
        }
        let how = match report.frozen_ms {
            Some(ms) => format!("changes waited for {:.1} s", ms as f64 / 1000.0),
            None => format!("{} records replayed", report.replayed_records),
        };
        say(format!(
            "{}: a copy of {}: {} of {}; {how}",
            report.copy.display(),
            report.pool.display(),
            size::human(report.copied_bytes),
            size::human(report.size_bytes)
        ));
        Ok(())
    }
}

/// The engine whose pools are one file.
const COPIED: &str = "pm";

/// Refuses volumes that are not one file: pools on devices, and mounts of a server.
fn refuse_other_engines(given: &Address, target: &Target) -> Result<(), Failure> {
    // Only the daemon of a mount knows its kind. A daemon that does not answer is reported later.
    let mounted: Option<VolumeInfo> = match given.path().is_dir() {
        true => target.ask(&Request::Info).ok().flatten(),
        false => None,
    };
    let engine = mounted.as_ref().map_or(given.scheme(), |info| info.engine.as_str());
    let mend = match engine {
        COPIED => return Ok(()),
        "nvme" => {
            "is a pool on several devices, and copies are single files; copy its files from a mount (`cp -a`), or, \
             while it is frozen (`ferrite freeze`) or not mounted, all its devices together with its metadata"
        }
        _ => "is not a pool of this machine; copy it on its server, or its files from the mount",
    };
    let pool = target.pool().display();
    Err(Failure::new(FAILED, format!("{pool}: {mend}")))
}

/// Refuses places where a copy must not go.
fn check_place(to: &Path, pool: &Path, force: bool) -> Result<(), Failure> {
    let refuse = |why: &str| Err(Failure::new(FAILED, format!("{}: {why}", to.display())));
    let dir = std::fs::metadata(directory(to)).map_err(about(directory(to)))?;
    let original = std::fs::metadata(pool).map_err(about(pool))?;
    let is_ours = |mount: &MountPoint| {
        let device = format!("{}:{}", rustix::fs::major(dir.dev()), rustix::fs::minor(dir.dev()));
        let same = |found: std::fs::Metadata| (found.dev(), found.ino()) == (original.dev(), original.ino());
        mount.device == device && std::fs::metadata(&mount.pool).is_ok_and(same)
    };
    if mounts::all().iter().any(is_ours) {
        return refuse("is inside the pool to be copied, which is frozen during the copy; choose another place");
    }
    let Ok(found) = std::fs::metadata(to) else {
        return Ok(());
    };
    if (found.dev(), found.ino()) == (original.dev(), original.ino()) {
        return refuse("is the pool itself");
    }
    if !found.is_file() {
        return refuse("is not a regular file; name a file to create");
    }
    if !force {
        return refuse("is there already; give --force to replace it");
    }
    // A pool in use would lose its name, and its mount the file that other commands look for.
    match Region::open(to, Access::ReadWrite) {
        Err(PmError::InUse { by, .. }) => refuse(&format!(
            "is a pool in use by {by}, which has it open; close it there, or end that process"
        )),
        _ => Ok(()),
    }
}

fn directory(path: &Path) -> &Path {
    path.parent()
        .filter(|dir| !dir.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}

/// A copy in progress.
struct Job<'j> {
    pool: &'j Path,
    copy: &'j File,
    reflink: bool,
    bar: Bar,
    /// Set by a signal that asks us to end.
    stop: Arc<AtomicBool>,
}

impl Job<'_> {
    /// Copies the pool while `daemon` holds back its changes. Returns its size, the bytes written, and how long that
    /// took.
    fn copy_mounted(&self, daemon: UnixStream) -> Result<(u64, u64, Option<Duration>), Failure> {
        let source = File::open(self.pool).map_err(about(self.pool))?;
        let mut hold = Hold::begin(daemon)?;
        let metadata = source.metadata()?;
        if !metadata.is_file() {
            return Err(Failure::new(
                FAILED,
                "a mounted device cannot be copied; unmount it first, or copy the files",
            ));
        }
        if hold.file != (metadata.dev(), metadata.ino()) {
            return Err(Failure::new(
                FAILED,
                format!(
                    "the file of the mounted pool was renamed or replaced and is no longer {}; give its current name",
                    self.pool.display()
                ),
            ));
        }
        let copied = self.copy_file(&source, metadata.len(), &mut || hold.tell())?;
        Ok((metadata.len(), copied, Some(hold.end()?)))
    }

    /// Copies a pool that is not mounted for writing, and keeps others from mounting it so meanwhile.
    fn copy_locked(&self, region: &Region) -> Result<(u64, u64, Option<Duration>), Failure> {
        let superblock = ferrite_fs::identify(region).map_err(about(self.pool))?;
        let source = File::open(self.pool).map_err(about(self.pool))?;
        let metadata = source.metadata()?;
        let (len, copied) = match metadata.is_file() {
            true => (metadata.len(), self.copy_file(&source, metadata.len(), &mut || Ok(()))?),
            // Devices cannot be read with `read`.
            false => {
                let len = superblock.size_bytes;
                self.copy.set_len(len)?;
                let read = |at: u64, part: &mut [u8]| {
                    region.read(at, part);
                    Ok(region.check()?)
                };
                (len, self.copy_bytes(0, len, len, &mut || Ok(()), &read)?)
            }
        };
        match ferrite_fs::may_be_live_copy(region) {
            // Not this command.
            true => complain(format_args!(
                "ferrite: {}: {}",
                self.pool.display(),
                ferrite_fs::MAYBE_COPIED
            )),
            false => ferrite_fs::disown(&Region::open(&through_proc(self.copy), Access::ReadWrite)?)?,
        }
        Ok((len, copied, None))
    }

    fn copy_file(
        &self,
        source: &File,
        len: u64,
        tell: &mut dyn FnMut() -> Result<(), Failure>,
    ) -> Result<u64, Failure> {
        if self.reflink {
            return match rustix::fs::ioctl_ficlone(self.copy, source) {
                Ok(()) => Ok(0),
                Err(error) => Err(Failure::new(
                    FAILED,
                    format!("the file systems of pool and copy cannot share blocks ({error}); omit --reflink"),
                )),
            };
        }
        self.copy.set_len(len)?;
        let read = |at: u64, part: &mut [u8]| Ok(source.read_exact_at(part, at)?);
        let (mut at, mut copied) = (0, 0);
        while at < len {
            // If the file system does not report holes, everything is data.
            at = match rustix::fs::seek(source, SeekFrom::Data(at)) {
                Ok(data) => data,
                Err(Errno::NXIO) => break,
                Err(_) => at,
            };
            let end = rustix::fs::seek(source, SeekFrom::Hole(at)).unwrap_or(len).min(len);
            copied += self.copy_bytes(at, end, len, tell, &read)?;
            at = end;
        }
        Ok(copied)
    }

    /// Copies `first..end` of a pool of `len` bytes except for zeros; returns the number of bytes written.
    fn copy_bytes(
        &self,
        first: u64,
        end: u64,
        len: u64,
        tell: &mut dyn FnMut() -> Result<(), Failure>,
        read: Read<'_>,
    ) -> Result<u64, Failure> {
        let mut buffer = vec![0; CHUNK_BYTES];
        let (mut at, mut copied) = (first, 0);
        while at < end {
            if self.stop.load(Ordering::Relaxed) {
                return Err(Failure::new(FAILED, "interrupted; no copy was made"));
            }
            let part = &mut buffer[..(end - at).min(CHUNK_BYTES as u64) as usize];
            read(at, part)?;
            for piece in part.chunks(PIECE_BYTES) {
                if piece.iter().any(|&byte| byte != 0) {
                    self.copy.write_all_at(piece, at)?;
                    copied += piece.len() as u64;
                }
                at += piece.len() as u64;
            }
            tell()?;
            self.bar.show("copying", at, len);
        }
        Ok(copied)
    }
}

/// A daemon that holds back the changes of its pool.
struct Hold {
    stream: BufReader<UnixStream>,
    /// Device and inode number of the pool's file.
    file: (u64, u64),
    since: Instant,
    told: Instant,
}

impl Hold {
    fn begin(daemon: UnixStream) -> Result<Hold, Failure> {
        let copy = daemon.try_clone()?;
        let file = control::ask(copy, &Request::Hold, None)?;
        let now = Instant::now();
        Ok(Hold {
            stream: BufReader::new(daemon),
            file,
            since: now,
            told: now,
        })
    }

    /// Sends a sign of life.
    fn tell(&mut self) -> Result<(), Failure> {
        if self.told.elapsed() > TELL_EVERY {
            self.told = Instant::now();
            self.say(freeze_guard::COPYING)?;
        }
        Ok(())
    }

    fn say(&mut self, word: &str) -> Result<(), Failure> {
        writeln!(self.stream.get_mut(), "{word}").map_err(|_| lost())
    }

    /// Lets changes proceed; returns how long they were held back. Fails if they proceeded earlier.
    fn end(mut self) -> Result<Duration, Failure> {
        self.say(freeze_guard::DONE)?;
        let mut held = String::new();
        self.stream.read_line(&mut held)?;
        match held.trim() {
            "true" => Ok(self.since.elapsed()),
            _ => Err(lost()),
        }
    }
}

fn lost() -> Failure {
    Failure::new(
        FAILED,
        "the pool was thawed or unmounted, or the copy made no progress for a minute; no copy was made, try again",
    )
}

/// Replays the journal in the copy, as a mount of the original would; returns the number of replayed records, and the
/// damage found.
fn settle(copy: &File) -> Result<(u64, Vec<String>), Failure> {
    let path = through_proc(copy);
    let region = Region::open(&path, Access::ReadWrite)?;
    ferrite_fs::identify(&region)?;
    if ferrite_fs::is_clean(&region) {
        return Ok((0, Vec::new()));
    }
    let engine = Engine::mount(region, &MountOptions::default())?;
    let (replayed, damage) = (engine.info().replayed_records, engine.damage().to_vec());
    engine.unmount()?;
    Ok((replayed, damage))
}

/// A file that will become the copy.
struct Unfinished {
    file: File,
    /// Its temporary name, if it must have one.
    named: Option<tempfile::TempPath>,
}

impl Unfinished {
    fn new(to: &Path) -> Result<Unfinished, Failure> {
        let unnamed = OpenOptions::new()
            .read(true)
            .write(true)
            .mode(0o600)
            .custom_flags(libc::O_TMPFILE)
            .open(directory(to));
        if let Ok(file) = unnamed {
            return Ok(Unfinished { file, named: None });
        }
        let named = tempfile::Builder::new()
            .prefix(".ferrite-copy-")
            .tempfile_in(directory(to));
        let (file, path) = named.map_err(about(directory(to)))?.into_parts();
        Ok(Unfinished {
            file,
            named: Some(path),
        })
    }

    /// Gives the copy its name, once all of it is durable.
    fn keep(self, to: &Path, mode: u32, force: bool) -> std::io::Result<()> {
        self.file.set_permissions(std::fs::Permissions::from_mode(mode))?;
        self.file.sync_all()?;
        match self.named {
            Some(named) if force => named.persist(to)?,
            Some(named) => named.persist_noclobber(to)?,
            None => link(&self.file, to, force)?,
        }
        File::open(directory(to))?.sync_all()
    }
}

/// Gives a file without a name this one.
fn link(file: &File, to: &Path, force: bool) -> std::io::Result<()> {
    let link = |name: &Path| rustix::fs::linkat(CWD, through_proc(file), CWD, name, AtFlags::SYMLINK_FOLLOW);
    match link(to) {
        Err(Errno::EXIST) if force => {}
        linked => return Ok(linked?),
    }
    // No system call links over an existing name. A separate directory, so that no other process takes the name in
    // between.
    let dir = tempfile::Builder::new()
        .prefix(".ferrite-copy-")
        .tempdir_in(directory(to))?;
    let name = dir.path().join("copy");
    link(&name)?;
    std::fs::rename(&name, to)
}

fn through_proc(file: &File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()).into()
}
