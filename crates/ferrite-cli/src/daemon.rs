//! The process that serves a mount: opens the pool, mounts it, reports that it is ready, and closes the pool at the
//! end.
//!
//! Everything that may fail comes before the daemon reports that the mount is ready.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ferrite_fs::Engine;
use ferrite_pm::Access;
use ferrite_vfs::FileSystem;
use ferrite_vfs::trace::{TraceWriter, Traced};

use super::frost::Frost;
use super::mount_options::Options;
use super::target::absolute;
use super::{
    FAILED, Failure, Outcome, about, complain, control, dead, log, memory, mounts, opening, signals, trace_file,
};

/// Checks for damage once a day, until the process ends.
fn scrub_daily(engine: Engine, bytes_per_second: u64) -> Result<(), Failure> {
    const DAY: Duration = Duration::from_secs(24 * 60 * 60);
    let work = move || {
        // The engine writes each finding to the log.
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

/// Mounts `pool` on `dir` and serves it until it is unmounted. As a daemon it says `ready` when the mount answers, and
/// detaches from the process that started it. Blocks until the unmount.
pub(crate) fn serve(pool: &Path, dir: &Path, log: Option<&Path>, is_daemon: bool, mut options: Options) -> Outcome {
    let (pool, given_dir) = (absolute(pool)?, dir);
    // Before the pool is read, so that the log has every finding. And before the mount, which may hide the file's
    // directory.
    match log.or(options.log.as_deref()) {
        Some(path) => log::keep_in(path)?,
        None if is_daemon => log::tell_syslog(&pool),
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
    warn_of_damage(&engine, &pool, given_dir);
    warn_of_copy(&engine, &pool);
    options.fuse.read_only |= engine.is_read_only();
    options.fuse.source = pool.display().to_string();
    // Before the mount, which may hide the file's directory, and while relative names still mean what the user meant.
    let trace = options.trace.as_deref().map(trace_file::open).transpose()?;
    let sink = trace.as_ref().map(File::try_clone).transpose()?;
    let writer = sink.map(|sink| Arc::new(TraceWriter::new(Box::new(sink))));
    let fs: Arc<dyn FileSystem> = match &writer {
        Some(writer) => Arc::new(Traced::new(engine.clone(), Arc::clone(writer))),
        None => Arc::new(engine.clone()),
    };
    let dir = absolute(given_dir)?;
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
    // All that may fail comes before the daemon reports that the mount is ready.
    let started = signals::end_on_signal(unmounter.clone(), dir.clone(), engine.clone(), frost)
        .and_then(|()| match options.scrub {
            Some(bytes_per_second) => scrub_daily(engine.clone(), bytes_per_second),
            None => Ok(()),
        })
        .and_then(|()| memory::give_back(engine.clone()))
        .and_then(|()| match (&trace, &options.trace) {
            (Some(file), Some(path)) => trace_file::empty(file).map_err(about(path)),
            _ => Ok(()),
        })
        .and_then(|()| match is_daemon {
            true => detach(&null),
            false => Ok(()),
        });
    let ended = match started {
        Ok(()) => {
            tracing::info!(pool = %pool.display(), dir = %dir.display(), "mounted");
            mounted.serve().map_err(Failure::from)
        }
        Err(failure) => {
            // Otherwise a mount would stay without a daemon.
            let _ = unmounter.unmount();
            Err(failure)
        }
    };
    drop(server);
    let ended = close(&engine, ended, writer.as_deref(), options.trace.as_deref());
    match &ended {
        // A daemon has no other place to report it.
        Err(failure) if is_daemon => tracing::error!("{}", failure.message),
        Err(_) => {}
        Ok(()) => tracing::info!("unmounted"),
    }
    ended.map(|()| 0)
}

/// Ends a trace and closes the pool, whatever happened to the mount; returns the first error.
fn close(
    engine: &Engine,
    served: Result<(), Failure>,
    writer: Option<&TraceWriter>,
    trace: Option<&Path>,
) -> Result<(), Failure> {
    // A trace that failed must not prevent a clean close of the pool.
    let recorded = writer.map_or(Ok(()), TraceWriter::finish);
    engine.unmount()?;
    served?;
    recorded.map_err(|error| {
        let path = trace.unwrap_or(Path::new("trace"));
        Failure::new(FAILED, format!("{}: the trace is incomplete: {error}", path.display()))
    })
}

/// Warns the user who mounts a damaged pool; the log has every finding.
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

/// Warns the user who mounts what may be a copy of a mounted pool; later it is impossible to see which of its files are
/// old or mixed.
fn warn_of_copy(engine: &Engine, pool: &Path) {
    if engine.may_be_live_copy() {
        let pool = pool.display();
        complain(format_args!("ferrite: {pool}: {}", ferrite_fs::MAYBE_COPIED));
    }
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
