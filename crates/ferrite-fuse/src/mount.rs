//! Mounting and unmounting: options in, a running session out.

use std::ffi::CString;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ferrite_vfs::FileSystem;
use fuser::{Config, MountOption, Session, SessionACL, SessionUnmounter};
use rustix::fs::StatVfsMountFlags;
use rustix::mount::{MountFlags, UnmountFlags};
use thiserror::Error;

use crate::bridge::Bridge;
use crate::freezer::Freezer;
use crate::notify::Notifications;
use crate::vouched;

/// Options of a mount.
#[derive(Debug, Clone)]
pub struct FuseOptions {
    /// Refuse changes in the kernel.
    pub read_only: bool,
    /// Have the kernel leave access times alone.
    pub noatime: bool,
    /// Allow other users; needs root, or `user_allow_other` in `/etc/fuse.conf`.
    pub allow_other: bool,
    /// Honour setuid bits and device files on the mount (needs root).
    pub suid_dev: bool,
    /// Refuse to execute programs.
    pub noexec: bool,
    /// Threads that serve requests; 0 means one per CPU.
    pub threads: usize,
    /// Have the engine keep record locks (`fcntl`), and not the kernel: for an engine that has other users, too. Costs
    /// a request for each lock, and for each `close`.
    pub engine_locks: bool,
    /// What `df` and `/proc/mounts` show as the source.
    pub source: String,
}

impl Default for FuseOptions {
    fn default() -> Self {
        FuseOptions {
            read_only: false,
            noatime: false,
            allow_other: false,
            suid_dev: false,
            noexec: false,
            threads: 0,
            engine_locks: false,
            source: "ferrite".into(),
        }
    }
}

/// Why a mount failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FuseError {
    /// There is no FUSE on this machine, or no access to it.
    #[error("FUSE is not available ({0}); load it with `modprobe fuse`, or see `ferrite doctor`")]
    NoFuse(io::Error),
    /// The mount point is unusable.
    #[error("{path}: cannot mount there: {why}", path = path.display())]
    MountPoint {
        /// The mount point.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The session could not start, or ended with an error.
    #[error("mount failed: {0}; see `ferrite doctor`")]
    Session(#[from] io::Error),
}

/// A mounted file system whose requests are not served yet: [`Mounted::serve`] does that.
pub struct Mounted {
    session: Session<Bridge>,
    freezer: Freezer,
    /// Where we mounted it ourselves; fuser's helper undoes its own mounts.
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
    /// Unmounts; requests in progress are answered first. Fails while files are in use.
    pub fn unmount(&self) -> io::Result<()> {
        match &self.0 {
            Undo::Ours(dir) => Ok(rustix::mount::unmount(dir, UnmountFlags::empty())?),
            Undo::Helper(helper) => helper.lock().unmount(),
        }
    }

    /// Cuts the mount off from its users: what they have open fails from now on, and requests in progress are not
    /// answered. Needs root.
    pub fn cut_off(&self) -> io::Result<()> {
        match &self.0 {
            Undo::Ours(dir) => Ok(rustix::mount::unmount(dir, UnmountFlags::FORCE | UnmountFlags::DETACH)?),
            Undo::Helper(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

/// Mounts `fs` on directory `dir`. The kernel has answered when this returns.
pub fn mount(fs: Arc<dyn FileSystem>, dir: &Path, options: &FuseOptions) -> Result<Mounted, FuseError> {
    let wrong = |why: &str| FuseError::MountPoint {
        path: dir.to_path_buf(),
        why: why.into(),
    };
    let metadata = std::fs::metadata(dir).map_err(|error| match error.raw_os_error() {
        Some(libc::ENOTCONN) => wrong("a mount whose daemon died is still there; run `umount` on it first"),
        _ => wrong(&error.to_string()),
    })?;
    if !metadata.is_dir() {
        return Err(wrong("not a directory"));
    }
    let device = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/fuse")
        .map_err(FuseError::NoFuse)?;
    let freezer = Freezer::default();
    let bridge = Bridge::new(Arc::clone(&fs), freezer.clone(), options.engine_locks);
    let vouched = bridge.vouched();
    let watched = |session: &Session<Bridge>| {
        if let Some(vouched) = &vouched {
            vouched::watch(&*fs, vouched, Notifications::new(session.notifier()));
        }
    };
    if !rustix::process::geteuid().is_root() {
        drop(device);
        let session = Session::new(bridge, dir, &config(options))?;
        watched(&session);
        return Ok(Mounted {
            session,
            freezer,
            dir: None,
        });
    }
    // As root we mount directly: the helper would leave out the subtype, by which `mount` and `df` recognise us.
    let dir = std::fs::canonicalize(dir)?;
    let device = OwnedFd::from(device);
    kernel_mount(&device, &dir, options)?;
    let acl = choose_acl(options.allow_other);
    match Session::from_fd(bridge, device, acl, config(options)) {
        Ok(session) => {
            watched(&session);
            Ok(Mounted {
                session,
                freezer,
                dir: Some(dir),
            })
        }
        Err(error) => {
            let _ = rustix::mount::unmount(&dir, UnmountFlags::DETACH);
            Err(error.into())
        }
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
    flags.set(MountFlags::NOSUID | MountFlags::NODEV, !options.suid_dev);
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

/// Makes the kernel refuse changes to what is mounted on `dir`, or accept them again; the other flags stay. Needs root.
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

fn config(options: &FuseOptions) -> Config {
    let choose = |condition, yes, no| if condition { yes } else { no };
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::DefaultPermissions,
        MountOption::FSName(options.source.clone()),
        MountOption::Subtype("ferrite".into()),
        choose(options.read_only, MountOption::RO, MountOption::RW),
        choose(options.suid_dev, MountOption::Suid, MountOption::NoSuid),
        choose(options.suid_dev, MountOption::Dev, MountOption::NoDev),
    ];
    if options.noatime {
        config.mount_options.push(MountOption::NoAtime);
    }
    if options.noexec {
        config.mount_options.push(MountOption::NoExec);
    }
    config.acl = choose_acl(options.allow_other);
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    config.n_threads = Some(if options.threads == 0 { cpus } else { options.threads });
    // One queue for all threads: with a cloned descriptor, requests could be stuck behind a sleeping thread.
    config.clone_fd = false;
    config
}

fn choose_acl(allow_other: bool) -> SessionACL {
    if allow_other {
        SessionACL::All
    } else {
        SessionACL::Owner
    }
}

impl Mounted {
    /// Tells the kernel of changes that this mount did not make.
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

    /// Holds changes back while [`Self::serve`] runs.
    pub fn freezer(&self) -> Freezer {
        self.freezer.clone()
    }

    /// Serves requests until the file system is unmounted, by any means. Blocks.
    pub fn serve(self) -> Result<(), FuseError> {
        Ok(self.session.run()?)
    }
}
