//! The process that serves a mount: opens the pool, mounts it, reports that it is ready, and closes the pool at the
//! end.
//!
//! Everything that may fail comes before the daemon reports that the mount is ready.

use std::fs::{File, Metadata, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ferrite::Durability;
use ferrite::volume::{Address, Volume};
use ferrite_vfs::trace::{TraceWriter, Traced};
use ferrite_vfs::{FileSystem, Shared};

use super::freeze_guard::FreezeGuard;
use super::mount_options::{Kind, Options, kind_of};
use super::mounts::MountPoint;
use super::target::{absolute, place};
use super::{
    FAILED, Failure, Outcome, about, complain, control, dead_mounts, log, memory, mounts, opening, signals, trace_file,
};

/// Checks for damage once a day, until the process ends.
fn scrub_daily(volume: Arc<dyn Volume>, bytes_per_second: u64) -> Result<(), Failure> {
    const DAY: Duration = Duration::from_secs(24 * 60 * 60);
    let work = move || {
        // The engine writes each finding to the log.
        while let Ok(report) = volume.scrub(Some(bytes_per_second), &mut |_, _, _| {}) {
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

/// Mounts the volume at `address` on `dir` and serves it until it is unmounted. As a daemon it says `ready` when the
/// mount answers, and detaches from the process that started it. `given` is the address as the mount shows it. Blocks
/// until the unmount.
pub(crate) fn serve(
    given: &Address,
    address: &Address,
    dir: &Path,
    log: Option<&Path>,
    is_daemon: bool,
    mut options: Options,
) -> Outcome {
    let pool = place(given)?;
    // Before the pool is read, so that the log has every finding. And before the mount, which may hide the file's
    // directory.
    match log.or(options.log.as_deref()) {
        Some(path) => log::keep_in(path)?,
        None if is_daemon => log::tell_syslog(&pool),
        None => {}
    }
    let (volume, file) = open(address, &pool, &options)?;
    warn_of_damage(&*volume, &address.at(&pool), dir);
    let kind = kind_of(address, volume.fs().limits().may_block);
    settle(&mut options, kind, &*volume, &pool)?;
    // Before the mount, which may hide the file's directory, and while relative names still mean what the user meant.
    let trace = options.trace.as_deref().map(Trace::open).transpose()?;
    let dir = absolute(dir)?;
    let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
    dead_mounts::clear_dead(&dir)?;
    let fs = trace
        .as_ref()
        .map_or_else(|| volume.fs(), |trace| trace.over(volume.fs()));
    let mut mounted = ferrite_fuse::mount(fs, &dir, &options.fuse)?;
    let unmounter = mounted.unmounter();
    let guard = FreezeGuard::new(Arc::clone(&volume), mounted.freeze_barrier());
    let mount = mounts::with_path(&dir);
    let way = mounted.way().to_string();
    let answers = control::Daemon {
        freeze_guard: guard.clone(),
        way: way.as_str().into(),
        meter: mounted.meter(),
    };
    let server = answer(file.as_ref(), mount.as_ref(), &volume, answers);
    let is_remote = address.is_remote();
    let started = signals::end_on_signal(unmounter.clone(), dir.clone(), Arc::clone(&volume), is_remote, guard)
        .and_then(|()| start_work(&volume, &mounted, is_remote, options.scrub))
        .and_then(|()| trace.as_ref().map_or(Ok(()), Trace::begin))
        .and_then(|()| if is_daemon { detach(&null) } else { Ok(()) });
    let ended = match started {
        Ok(()) => {
            tracing::info!(pool = %pool.display(), dir = %dir.display(), requests = way, "mounted");
            mounted.serve().map_err(Failure::from)
        }
        Err(failure) => {
            // Otherwise a mount would stay without a daemon.
            let _ = unmounter.unmount();
            Err(failure)
        }
    };
    drop(server);
    let ended = close(&*volume, ended, trace.as_ref());
    match &ended {
        // A daemon has no other place to report it.
        Err(failure) if is_daemon => tracing::error!("{}", failure.message),
        Err(_) => {}
        Ok(()) => tracing::info!("unmounted"),
    }
    ended.map(|()| 0)
}

/// Opens the volume; returns its file as well, if it has one.
fn open(address: &Address, pool: &Path, options: &Options) -> Result<(Arc<dyn Volume>, Option<Metadata>), Failure> {
    if address.is_remote() {
        return Ok((opening::volume(address, &options.of_engine(address))?, None));
    }
    let volume = opening::volume(&address.at(pool), &options.of_engine(address))?;
    Ok((volume, Some(std::fs::metadata(pool).map_err(about(pool))?)))
}

/// Answers commands. The mount works without, too.
fn answer(
    file: Option<&Metadata>,
    mount: Option<&MountPoint>,
    volume: &Arc<dyn Volume>,
    answers: control::Daemon,
) -> Option<control::Server> {
    let server = control::Server::start(file, mount, Arc::clone(volume), answers);
    server
        .inspect_err(|error| tracing::warn!(%error, "no control socket: `ferrite info` cannot query this daemon"))
        .ok()
}

/// Completes the options with what the volume is, and warns of those that have no effect or surprise.
///
/// # Errors
/// An option asks for what the volume cannot do.
fn settle(options: &mut Options, kind: Kind, volume: &dyn Volume, pool: &Path) -> Result<(), Failure> {
    let warnings = options.settle(kind, rustix::process::geteuid().is_root())?;
    for warning in volume.warnings().into_iter().chain(warnings) {
        complain(format_args!("ferrite: {}: {warning}", pool.display()));
    }
    if kind == Kind::Disk && !options.says_durability && !volume.is_read_only() {
        complain(format_args!(
            "ferrite: {}: on a disk file each operation waits for the disk (durability=strict); with -o \
             durability=fsync only fsync does",
            pool.display()
        ));
    }
    let wants_strict = options.says_durability && options.engine.durability == Durability::Strict;
    if wants_strict && !volume.is_read_only() && !volume.fs().limits().is_durable_at_once() {
        return Err(Failure::new(
            FAILED,
            format!(
                "{}: its operations are durable after an fsync, not at once as `durability=strict` or `sync` ask for; \
                 omit that, or have the pool served with durability=strict",
                pool.display()
            ),
        ));
    }
    options.fuse.read_only |= volume.is_read_only();
    options.fuse.source = pool.display().to_string();
    Ok(())
}

/// Starts the threads that work beside the mount.
fn start_work(
    volume: &Arc<dyn Volume>,
    mounted: &ferrite_fuse::Mounted,
    is_remote: bool,
    scrub: Option<u64>,
) -> Result<(), Failure> {
    if let Some(bytes_per_second) = scrub {
        scrub_daily(Arc::clone(volume), bytes_per_second)?;
    }
    memory::give_back(Arc::clone(volume))?;
    match is_remote {
        true => leave_server_when_gone(mounted, Arc::clone(volume)),
        false => Ok(()),
    }
}

/// The record of all changes that `-o trace=FILE` asks for.
struct Trace {
    path: PathBuf,
    file: File,
    writer: Arc<TraceWriter>,
}

impl Trace {
    fn open(path: &Path) -> Result<Trace, Failure> {
        let file = trace_file::open(path)?;
        let sink = file.try_clone()?;
        Ok(Trace {
            path: path.to_owned(),
            file,
            writer: Arc::new(TraceWriter::new(Box::new(sink))),
        })
    }

    /// The engine, whose changes are recorded.
    fn over(&self, fs: Arc<dyn FileSystem>) -> Arc<dyn FileSystem> {
        Arc::new(Traced::new(Shared(fs), Arc::clone(&self.writer)))
    }

    /// Replaces an older trace, once nothing else can fail.
    fn begin(&self) -> Result<(), Failure> {
        trace_file::empty(&self.file).map_err(about(&self.path))
    }
}

/// Ends the calls that wait for a server once the kernel has ended the connection: no program wants their answers, and
/// the daemon would stay until the server is back.
fn leave_server_when_gone(mounted: &ferrite_fuse::Mounted, volume: Arc<dyn Volume>) -> Result<(), Failure> {
    let leave = move || {
        if let Err(error) = volume.close() {
            tracing::warn!(%error, "cannot leave the server");
        }
    };
    Ok(mounted.when_gone(leave)?)
}

/// Ends a trace and closes the pool, whatever happened to the mount; returns the first error.
fn close(volume: &dyn Volume, served: Result<(), Failure>, trace: Option<&Trace>) -> Result<(), Failure> {
    // A trace that failed must not prevent a clean close of the pool.
    let recorded = trace.map_or(Ok(()), |trace| trace.writer.finish().map_err(|error| (trace, error)));
    volume.close()?;
    served?;
    recorded.map_err(|(trace, error)| {
        let path = trace.path.display();
        Failure::new(FAILED, format!("{path}: the trace is incomplete: {error}"))
    })
}

/// Warns the user who mounts a damaged pool; the log has every finding.
fn warn_of_damage(volume: &dyn Volume, pool: &Address, dir: &Path) {
    let damage = volume.damage();
    let Some(first) = damage.first() else { return };
    let count = damage.len();
    let state = match volume.is_read_only() {
        true => "mounted READ-ONLY, because it is unknown which blocks the damaged parts own",
        false => "what is damaged cannot be read, everything else works",
    };
    complain(format_args!(
        "ferrite: {pool}: the pool is DAMAGED ({count} found, first: {first}); {state}. To repair it: `ferrite umount \
         {dir}`, then `ferrite fsck --repair {pool}`",
        dir = dir.display(),
    ));
}

/// Reports to the process that started us that the mount answers, and detaches from it and its terminal.
fn detach(null: &File) -> Result<(), Failure> {
    let _ = rustix::process::setsid();
    std::env::set_current_dir("/")?;
    // It may be gone already; the mount stays.
    let mut stdout = std::io::stdout();
    let _ = writeln!(stdout, "ready").and_then(|()| stdout.flush());
    rustix::stdio::dup2_stdout(null)?;
    rustix::stdio::dup2_stderr(null)?;
    log::leave_stderr();
    Ok(())
}
