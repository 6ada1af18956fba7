//! Mounting and unmounting: options in, a running session out.

use std::ffi::CString;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ferrite_vfs::FileSystem;
use fuser::{Config, MountOption, Session, SessionACL, SessionUnmounter};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::StatVfsMountFlags;
use rustix::mount::{MountFlags, UnmountFlags};
use thiserror::Error;

use crate::classic::Readers;
use crate::freeze_barrier::FreezeBarrier;
use crate::meter::Meter;
use crate::notify::Notifications;
use crate::options::{FuseOptions, Rings};
use crate::service::Service;
use crate::session::Handshake;
use crate::spare::Spare;
use crate::{leased, ring};

/// The transport of a mount's requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Way {
    /// FUSE over io_uring, with so many rings: one for each possible CPU.
    Rings(usize),
    /// `/dev/fuse`, and why.
    Classic(String),
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Way::Rings(count) => write!(f, "rings (io_uring), {count}, one a CPU"),
            Way::Classic(why) => write!(f, "classic (/dev/fuse): {why}"),
        }
    }
}

/// Why a mount failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FuseError {
    /// The machine has no FUSE, or denies access to it.
    #[error("FUSE is not available ({0}); load it with `modprobe fuse`, or see `ferrite doctor`")]
    NoFuse(io::Error),
    /// The mount point is unusable.
    #[error("{path}: cannot mount there: {why}", path = path.display())]
    MountPoint {
        /// The mount point.
        path: PathBuf,
        /// The problem with it.
        why: String,
    },
    /// Rings were requested, and are unavailable.
    #[error("`rings=on`: {why}; {mend}, or mount with `rings=auto`")]
    NoRings {
        /// The cause.
        why: String,
        /// The remedy.
        mend: String,
    },
    /// The session could not start, or ended with an error.
    #[error("mount failed: {0}; see `ferrite doctor`")]
    Session(#[from] io::Error),
}

/// A mounted file system whose requests are not served yet: [`Mounted::serve`] does that.
pub struct Mounted {
    session: Session<Handshake>,
    readers: Readers,
    threads: usize,
    freeze_barrier: FreezeBarrier,
    meter: Meter,
    way: Way,
    /// The directory, if this process mounted it directly; fuser's helper undoes its own mounts.
    dir: Option<PathBuf>,
}

#[derive(Clone)]
enum Undo {
    Ours(PathBuf),
    Helper(Arc<parking_lot::Mutex<SessionUnmounter>>),
}

/// Ends a session from another thread.
#[derive(Clone)]
pub struct Unmounter(Undo);

impl Unmounter {
    /// Unmounts; requests in progress get their replies first. Fails while files are in use.
    pub fn unmount(&self) -> io::Result<()> {
        match &self.0 {
            Undo::Ours(dir) => Ok(rustix::mount::unmount(dir, UnmountFlags::empty())?),
            Undo::Helper(helper) => helper.lock().unmount(),
        }
    }

    /// Cuts the mount off from its users: their open files fail from now on, and requests in progress get no reply.
    /// Needs root.
    pub fn cut_off(&self) -> io::Result<()> {
        match &self.0 {
            Undo::Ours(dir) => Ok(rustix::mount::unmount(dir, UnmountFlags::FORCE | UnmountFlags::DETACH)?),
            Undo::Helper(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

/// Why `auto` does not use rings.
const WAITS: &str = "requests wait for a device or a server, for which that is faster";

/// Mounts `fs` on directory `dir`. The kernel has replied when this returns.
pub fn mount(fs: Arc<dyn FileSystem>, dir: &Path, options: &FuseOptions) -> Result<Mounted, FuseError> {
    let wrong = |why: &str| FuseError::MountPoint {
        path: dir.to_path_buf(),
        why: why.into(),
    };
    let metadata = std::fs::metadata(dir).map_err(|error| match error.raw_os_error() {
        Some(libc::ENOTCONN | libc::ECONNABORTED) => {
            wrong("a mount whose daemon died is still there; run `umount` on it first")
        }
        _ => wrong(&error.to_string()),
    })?;
    if !metadata.is_dir() {
        return Err(wrong("not a directory"));
    }
    let classic = |why: String| mount_in(&fs, dir, options, Err(why));
    let offered = match options.rings {
        Rings::Off => return classic("rings=off".into()),
        Rings::Auto if fs.limits().may_block => return classic(WAITS.into()),
        Rings::Auto | Rings::On => ring::rings_offered(),
    };
    let refused = match offered {
        Err(refused) => refused,
        Ok(()) => match mount_in(&fs, dir, options, Ok(())) {
            Err(FuseError::NoRings { why, mend }) => (why, mend),
            mounted => return mounted,
        },
    };
    match (options.rings, refused) {
        (Rings::On, (why, mend)) => Err(FuseError::NoRings { why, mend }),
        (_, (why, _)) => classic(why),
    }
}

/// Mounts with rings, or without them and with the reason.
fn mount_in(
    fs: &Arc<dyn FileSystem>,
    dir: &Path,
    options: &FuseOptions,
    rings: Result<(), String>,
) -> Result<Mounted, FuseError> {
    let device = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/fuse")
        .map_err(FuseError::NoFuse)?;
    let freeze_barrier = FreezeBarrier::default();
    let service = Arc::new(Service::new(Arc::clone(fs), freeze_barrier.clone(), options));
    let (leased, meter) = (service.leased().cloned(), service.meter().clone());
    let user = rustix::process::geteuid();
    let only = (!options.allow_other).then_some(user.as_raw());
    let (rings, why) = match rings {
        Ok(()) => {
            let rings = ring::Rings::prepare(&service, options.threads, only).map_err(no_rings)?;
            (Some(rings), String::new())
        }
        Err(why) => (None, why),
    };
    let threads = service.spare().map_or(options.readers(), Spare::readers);
    let handshake = Handshake::new(Arc::clone(&service), rings.clone());
    let (session, dir) = start_session(handshake, device, dir, options)?;
    service.notify_by(Notifications::new(session.notifier()));
    let readers = Readers::new(service, session.as_fd().try_clone_to_owned()?, only, rings.is_some());
    let way = match &rings {
        None => Way::Classic(why),
        Some(rings) => {
            // They may have been switched off just now.
            let not_granted = || io::Error::other("the kernel does not take them");
            let granted = rings.is_granted().then_some(()).ok_or_else(not_granted);
            if let Err(error) = granted.and_then(|()| rings.start(session.as_fd())) {
                if let Some(dir) = &dir {
                    let _ = rustix::mount::unmount(dir, UnmountFlags::DETACH);
                }
                return Err(no_rings(error));
            }
            Way::Rings(rings.count())
        }
    };
    if let Some(leased) = &leased {
        leased::watch(&**fs, leased, Notifications::new(session.notifier()));
    }
    Ok(Mounted {
        session,
        readers,
        threads,
        freeze_barrier,
        meter,
        way,
        dir,
    })
}

fn no_rings(error: io::Error) -> FuseError {
    FuseError::NoRings {
        why: format!("io_uring cannot be used ({error})"),
        mend: "see `sysctl kernel.io_uring_disabled`, and what a container forbids".into(),
    }
}

/// Mounts, and begins to answer. Returns the directory if this process has to unmount it.
fn start_session(
    handshake: Handshake,
    device: File,
    dir: &Path,
    options: &FuseOptions,
) -> Result<(Session<Handshake>, Option<PathBuf>), FuseError> {
    let config = config(options);
    if rustix::process::geteuid().is_root() {
        // Root mounts directly: the helper would leave out the subtype, by which `mount` and `df` recognise a
        // Ferrite mount.
        let dir = std::fs::canonicalize(dir)?;
        let device = OwnedFd::from(device);
        kernel_mount(&device, &dir, options)?;
        match Session::from_fd(handshake, device, config.acl, config) {
            Ok(session) => Ok((session, Some(dir))),
            Err(error) => {
                let _ = rustix::mount::unmount(&dir, UnmountFlags::DETACH);
                Err(error.into())
            }
        }
    } else {
        drop(device);
        Ok((Session::new(handshake, dir, &config)?, None))
    }
}

fn kernel_mount(device: &OwnedFd, dir: &Path, options: &FuseOptions) -> Result<(), FuseError> {
    let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let mut data = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions",
        device.as_raw_fd(),
        owner.0,
        owner.1
    );
    if options.allow_other {
        data.push_str(",allow_other");
    }
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, options.read_only);
    flags.set(MountFlags::NOATIME, options.noatime);
    flags.set(MountFlags::NOEXEC, options.noexec);
    flags.set(MountFlags::NOSUID, !options.suid);
    flags.set(MountFlags::NODEV, !options.dev);
    let data = CString::new(data).map_err(io::Error::from)?;
    rustix::mount::mount(options.source.as_str(), dir, "fuse.ferrite", flags, data.as_c_str()).map_err(|error| {
        FuseError::MountPoint {
            path: dir.to_path_buf(),
            why: match error {
                rustix::io::Errno::PERM => {
                    "the kernel does not allow this process to mount; root needs CAP_SYS_ADMIN (in a container: \
                                            --cap-add SYS_ADMIN), see `ferrite doctor`"
                        .into()
                }
                error => error.to_string(),
            },
        }
    })
}

/// Makes the kernel refuse changes to the mount on `dir`, or accept them again; the other flags stay. Needs root.
/// Refused while files are open for writing. A pool whose daemon opened it read-only refuses changes in any case.
pub fn remount(dir: &Path, read_only: bool) -> Result<(), FuseError> {
    let wrong = |error: rustix::io::Errno| FuseError::MountPoint {
        path: dir.to_path_buf(),
        why: match error {
            rustix::io::Errno::BUSY => "files on it are open for writing; close them first".into(),
            error => error.to_string(),
        },
    };
    let now = rustix::fs::statvfs(dir).map_err(wrong)?.f_flag;
    let mut flags = MountFlags::empty();
    for (is, flag) in [
        (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
        (StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
    ] {
        flags.set(flag, now.contains(is));
    }
    flags.set(MountFlags::RDONLY, read_only);
    rustix::mount::mount_remount(dir, flags, c"").map_err(wrong)
}

/// A device name as fusermount3 takes it among its options: an address may name several servers, with commas between.
fn escaped(source: &str) -> String {
    source.replace('\\', r"\\").replace(',', r"\,")
}

fn config(options: &FuseOptions) -> Config {
    fn choose<T>(condition: bool, yes: T, no: T) -> T {
        if condition { yes } else { no }
    }
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::DefaultPermissions,
        MountOption::FSName(escaped(&options.source)),
        MountOption::Subtype("ferrite".into()),
        choose(options.read_only, MountOption::RO, MountOption::RW),
        choose(options.suid, MountOption::Suid, MountOption::NoSuid),
        choose(options.dev, MountOption::Dev, MountOption::NoDev),
    ];
    if options.noatime {
        config.mount_options.push(MountOption::NoAtime);
    }
    if options.noexec {
        config.mount_options.push(MountOption::NoExec);
    }
    config.acl = choose(options.allow_other, SessionACL::All, SessionACL::Owner);
    config
}

/// How often [`Mounted::when_gone`] checks. Each request would also wake a thread that waited for the event.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Whether the kernel has ended the connection of this descriptor.
fn is_gone(device: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(device, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&now)).is_ok() && polled[0].revents().contains(PollFlags::ERR)
}

impl Mounted {
    /// Notifies the kernel of changes that this mount did not make.
    pub fn notifications(&self) -> Notifications {
        Notifications::new(self.session.notifier())
    }

    /// A handle that can unmount while [`Self::serve`] runs.
    pub fn unmounter(&mut self) -> Unmounter {
        Unmounter(match &self.dir {
            Some(dir) => Undo::Ours(dir.clone()),
            None => Undo::Helper(Arc::new(parking_lot::Mutex::new(self.session.unmount_callable()))),
        })
    }

    /// Calls `end` when the kernel has ended the connection, for whatever reason: by an unmount, by `umount -f`, or by
    /// an administrator. No caller waits for replies any more then, but [`Self::serve`] returns only when the engine
    /// has given the pending ones.
    pub fn when_gone(&self, end: impl FnOnce() + Send + 'static) -> Result<(), FuseError> {
        let device = self.session.as_fd().try_clone_to_owned()?;
        let watching = std::thread::Builder::new().name("ferrite-gone".into());
        watching.spawn(move || {
            while !is_gone(&device) {
                std::thread::sleep(LOOK_EVERY);
            }
            end();
        })?;
        Ok(())
    }

    /// The transport of requests.
    pub fn way(&self) -> &Way {
        &self.way
    }

    /// The counters of its requests.
    pub fn meter(&self) -> Meter {
        self.meter.clone()
    }

    /// Holds changes back while [`Self::serve`] runs.
    pub fn freeze_barrier(&self) -> FreezeBarrier {
        self.freeze_barrier.clone()
    }

    /// Serves requests until the file system is unmounted, by any means. Blocks.
    pub fn serve(self) -> Result<(), FuseError> {
        Ok(self.readers.run(self.threads)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_name_is_one_option() {
        assert_eq!(escaped("tcp://a:1,b/x"), r"tcp://a:1\,b/x");
        assert_eq!(escaped(r"/pool\,1"), r"/pool\\\,1");
        assert_eq!(escaped("/pool"), "/pool");
    }
}
