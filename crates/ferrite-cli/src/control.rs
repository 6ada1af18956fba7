//! The channel between commands and the daemon that has a pool mounted: a socket, one line of JSON each way.
//!
//! A socket has two names, so that any path to the pool finds it, and so does the mount: one from the device and inode
//! numbers of the pool's file (for a DAX device: its own number), one from the number of the mount's device. A copy of
//! a pool is another file, so it has another socket.
//!
//! Invariant: a name belongs to the daemon that made it last. The daemon replaces the socket of a dead daemon in one
//! step, and removes only its own: two daemons may have one pool open read-only. A socket whose daemon is gone refuses
//! connections; commands ignore it.

use std::fs::Metadata;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrite::volume::{InfoLine, Volume, VolumeInfo};
use ferrite_fuse::{Meter, RequestCounts};
use rustix::process::{Pid, PidfdFlags};

use super::freeze_guard::FreezeGuard;
use super::mounts::{self, MountPoint};
use super::pages::pages;
use super::{FAILED, Failure};

/// How often a client gets a progress report.
const TELL_EVERY: Duration = Duration::from_millis(100);
/// Time limit for a client's request and for its reading of the reply.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(10);

/// A request to a daemon. It goes over the socket as JSON, so that paths may contain any bytes.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(crate) enum Request {
    /// The layout and state of the pool: a `VolumeInfo`.
    Info,
    /// The requests of the mount so far: a list of [`MountRequests`].
    Requests,
    /// Whether the daemon refuses changes for its whole life.
    IsReadOnly,
    /// The pages of the file with this path.
    Dump(Vec<u8>),
    /// A copy of the metadata, of a pool on devices, to this directory.
    DumpMeta(Vec<u8>),
    /// A scrub, limited to this many bytes a second; 0: no limit.
    Scrub(u64),
    /// The same, with progress lines before the reply: [`Progress`].
    ScrubTelling(u64),
    /// Make everything durable where it stays; the reply is `true`.
    Flush,
    /// Hold changes back, for at most this many seconds.
    Freeze(u64),
    /// Let changes proceed; the reply says whether they were held back.
    Thaw,
    /// Hold changes back for as long as this connection reports that it copies the pool, see [`FreezeGuard::hold`]:
    /// device and inode number of the pool's file.
    Hold,
}

/// Requests of one kind to a mount.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct MountRequests {
    /// As the kernel calls it, such as `lookup`.
    pub(crate) operation: String,
    pub(crate) errors: u64,
    pub(crate) busy_ns: u64,
    /// How many took how long, in the classes of [`ferrite_vfs::latency`].
    pub(crate) latency: Vec<u64>,
}

impl From<RequestCounts> for MountRequests {
    fn from(counts: RequestCounts) -> MountRequests {
        MountRequests {
            operation: counts.name.into(),
            errors: counts.errors,
            busy_ns: counts.busy_ns,
            latency: counts.latency,
        }
    }
}

/// Progress of a daemon: done, and total.
#[derive(serde::Serialize, serde::Deserialize)]
struct Progress {
    progress: (u64, u64),
}

/// The directory of a user's sockets, as far as is known.
struct Directory {
    path: PathBuf,
    user: u32,
}

/// The directory of this user.
fn directory() -> Directory {
    let user = rustix::process::geteuid();
    let path = match std::env::var_os("XDG_RUNTIME_DIR") {
        _ if user.is_root() => PathBuf::from("/run/ferrite"),
        Some(dir) => PathBuf::from(dir).join("ferrite"),
        None => directory_in_tmp(user.as_raw()),
    };
    let user = user.as_raw();
    Directory { path, user }
}

fn directory_in_tmp(user: u32) -> PathBuf {
    PathBuf::from(format!("/tmp/ferrite-{user}"))
}

/// The directory of this user, and for root those of every user who has a pool mounted.
fn directories() -> Vec<Directory> {
    let mut all = vec![directory()];
    if rustix::process::geteuid().is_root() {
        let mut users: Vec<u32> = mounts::all()
            .into_iter()
            .map(|mount| mount.user)
            .filter(|&user| user != 0)
            .collect();
        users.sort_unstable();
        users.dedup();
        for user in users {
            let in_run = PathBuf::from(format!("/run/user/{user}/ferrite"));
            all.extend([in_run, directory_in_tmp(user)].map(|path| Directory { path, user }));
        }
    }
    all
}

fn name_for_pool(pool: &Metadata) -> String {
    match pool.file_type().is_char_device() {
        true => format!("device-{:x}.sock", pool.rdev()),
        false => format!("pool-{:x}-{:x}.sock", pool.dev(), pool.ino()),
    }
}

fn name_for_mount(mount: &MountPoint) -> String {
    format!("mount-{}.sock", mount.device.replace(':', "-"))
}

/// Connects to the daemon that has this file mounted; `None` if none has, or the daemon does not answer us.
pub(crate) fn connect_to_pool(pool: &Metadata) -> Option<UnixStream> {
    connect(&name_for_pool(pool))
}

/// Connects to a mount's daemon.
pub(crate) fn connect_to_mount(mount: &MountPoint) -> Option<UnixStream> {
    connect(&name_for_mount(mount))
}

fn connect(name: &str) -> Option<UnixStream> {
    directories().into_iter().find_map(|directory| {
        let stream = UnixStream::connect(directory.path.join(name)).ok()?;
        // Anybody may own a directory in /tmp: only the right user's daemon may answer.
        let peer = rustix::net::sockopt::socket_peercred(&stream).ok()?;
        (peer.uid.as_raw() == directory.user).then_some(stream)
    })
}

/// The daemon as it answers, beside its volume.
#[derive(Clone)]
pub(crate) struct Daemon {
    pub(crate) freeze_guard: FreezeGuard,
    /// The path of requests to it, in words.
    pub(crate) way: Arc<str>,
    pub(crate) meter: Meter,
}

/// The daemon's end.
pub(crate) struct Server {
    names: Vec<PathBuf>,
    /// Inode number of the socket, which identifies its names.
    ino: u64,
}

impl Server {
    /// Answers for `volume`, which has the file `pool` open and is mounted as `mount`, from a separate thread until
    /// dropped. The mount works without a socket, too.
    pub(crate) fn start(
        pool: Option<&Metadata>,
        mount: Option<&MountPoint>,
        volume: Arc<dyn Volume>,
        daemon: Daemon,
    ) -> std::io::Result<Server> {
        // A remote volume has no file, and cannot be frozen; only a freeze uses the numbers.
        let file = pool.map_or((0, 0), |pool| (pool.dev(), pool.ino()));
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory().path)?;
        let new = directory().path.join(format!("new-{}.sock", std::process::id()));
        // The kernel reuses process ids; the earlier process with this one is gone.
        let _ = std::fs::remove_file(&new);
        let listener = UnixListener::bind(&new)?;
        let mut server = Server {
            ino: std::fs::symlink_metadata(&new)?.ino(),
            names: vec![new.clone()],
        };
        for name in [pool.map(name_for_pool), mount.map(name_for_mount)]
            .into_iter()
            .flatten()
        {
            let name = directory().path.join(name);
            // A rename onto another name of the same socket would have no effect; this name is new each time.
            let link = name.with_extension(format!("{}.new", std::process::id()));
            let _ = std::fs::remove_file(&link);
            std::fs::hard_link(&new, &link)?;
            std::fs::rename(&link, &name).inspect_err(|_| drop(std::fs::remove_file(&link)))?;
            server.names.push(name);
        }
        std::fs::remove_file(&new)?;
        std::thread::Builder::new().name("control".into()).spawn(move || {
            for stream in listener.incoming().flatten() {
                let (volume, daemon) = (Arc::clone(&volume), daemon.clone());
                // A scrub takes long; other clients must not wait for it.
                let answering = std::thread::Builder::new().name("control".into()).spawn(move || {
                    if let Err(error) = answer(stream, &*volume, &daemon, file) {
                        tracing::debug!(%error, "control connection");
                    }
                });
                if let Err(error) = answering {
                    tracing::debug!(%error, "cannot start a thread for a control connection");
                }
            }
        })?;
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        for name in &self.names {
            if std::fs::symlink_metadata(name).is_ok_and(|found| found.ino() == self.ino) {
                let _ = std::fs::remove_file(name);
            }
        }
    }
}

fn answer(mut stream: UnixStream, volume: &dyn Volume, daemon: &Daemon, file: (u64, u64)) -> std::io::Result<()> {
    stream.set_read_timeout(Some(CLIENT_TIMEOUT))?;
    stream.set_write_timeout(Some(CLIENT_TIMEOUT))?;
    let mut request = String::new();
    BufReader::new(stream.try_clone()?).read_line(&mut request)?;
    if let Ok(Request::Hold) = serde_json::from_str(&request) {
        return daemon.freeze_guard.hold(stream, file);
    }
    if let Ok(Request::ScrubTelling(limit)) = serde_json::from_str(&request) {
        return scrub_telling(stream, volume, limit);
    }
    let reply =
        reply(&request, volume, daemon).unwrap_or_else(|failure| serde_json::json!({ "error": failure.message }));
    writeln!(stream, "{reply}")
}

fn reply(request: &str, volume: &dyn Volume, daemon: &Daemon) -> Result<serde_json::Value, Failure> {
    let freeze_guard = &daemon.freeze_guard;
    let request = serde_json::from_str(request)
        .map_err(|error| Failure::new(FAILED, format!("the daemon does not know this request ({error})")))?;
    Ok(match request {
        Request::Info => serde_json::to_value(with_way(volume.info()?, &daemon.way)?)?,
        Request::Requests => {
            let requests = daemon.meter.requests().into_iter().map(MountRequests::from);
            serde_json::to_value(requests.collect::<Vec<_>>())?
        }
        Request::IsReadOnly => serde_json::to_value(volume.is_read_only())?,
        Request::Dump(path) => serde_json::to_value(pages(volume, &path)?)?,
        #[cfg(feature = "nvme")]
        Request::DumpMeta(to) => {
            use std::os::unix::ffi::OsStringExt;
            super::nvme::dump_metadata(volume, &PathBuf::from(std::ffi::OsString::from_vec(to)))?.into()
        }
        #[cfg(not(feature = "nvme"))]
        Request::DumpMeta(_) => return Err(Failure::new(FAILED, "this build has no pools on devices")),
        Request::Scrub(limit) => serde_json::to_value(volume.scrub(Some(limit), &mut |_, _, _| {})?)?,
        Request::Flush => {
            volume
                .fs()
                .sync(ferrite_vfs::SYSTEM)
                .map_err(|error| Failure::new(FAILED, error.to_string()))?;
            true.into()
        }
        Request::Freeze(seconds) => {
            serde_json::to_value(freeze_guard.freeze_for(Duration::from_secs(seconds)).map(|()| true)?)?
        }
        Request::Thaw if freeze_guard.thaw(None)? => true.into(),
        Request::Thaw => return Err(Failure::new(FAILED, "it is not frozen")),
        // Answered by the thread that has the connection.
        Request::Hold | Request::ScrubTelling(_) => false.into(),
    })
}

/// The volume's own information, plus the path of requests to it.
fn with_way(mut info: VolumeInfo, way: &str) -> Result<VolumeInfo, Failure> {
    info.lines.push(InfoLine {
        name: "requests".into(),
        value: way.into(),
    });
    // An object of at least one member; edited as text to keep the engine's order.
    if let Some(members) = info.json.trim_end().strip_suffix('}') {
        info.json = format!("{members},\"requests\":{}}}", serde_json::to_string(way)?);
    }
    Ok(info)
}

/// The client may disconnect: the scrub reports its findings to the log as well.
fn scrub_telling(mut stream: UnixStream, volume: &dyn Volume, limit: u64) -> std::io::Result<()> {
    let mut told = Instant::now();
    let report = volume.scrub(Some(limit), &mut |_, done, total| {
        if told.elapsed() > TELL_EVERY {
            told = Instant::now();
            let progress = Progress {
                progress: (done, total),
            };
            if let Ok(line) = serde_json::to_string(&progress) {
                let _ = writeln!(stream, "{line}");
            }
        }
    });
    let reply = match report {
        Ok(report) => serde_json::to_value(report)?,
        Err(error) => serde_json::json!({ "error": error.to_string() }),
    };
    writeln!(stream, "{reply}")
}

/// The process that serves a mount; `None` if none does, or it does not answer us.
pub(crate) fn process_of(mount: &MountPoint) -> Option<u32> {
    let stream = connect_to_mount(mount)?;
    let listener = rustix::net::sockopt::socket_peercred(&stream).ok()?;
    u32::try_from(listener.pid.as_raw_nonzero().get()).ok()
}

/// The same as a handle that becomes readable once the process has ended; `None` also if the kernel provides no handle.
pub(crate) fn daemon_of(mount: &MountPoint) -> Option<OwnedFd> {
    let process = Pid::from_raw(process_of(mount)?.try_into().ok()?)?;
    rustix::process::pidfd_open(process, PidfdFlags::empty()).ok()
}

/// Sends a request to a daemon.
pub(crate) fn ask<T: serde::de::DeserializeOwned>(
    stream: UnixStream,
    request: &Request,
    timeout: Option<Duration>,
) -> Result<T, Failure> {
    ask_telling(stream, request, timeout, &mut |_, _| {})
}

/// The same; reports the daemon's progress, done and total, to `progress`.
pub(crate) fn ask_telling<T: serde::de::DeserializeOwned>(
    mut stream: UnixStream,
    request: &Request,
    timeout: Option<Duration>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<T, Failure> {
    stream.set_read_timeout(timeout)?;
    let asked = writeln!(stream, "{}", serde_json::to_string(request)?);
    let mut lines = BufReader::new(stream);
    let mut reply = String::new();
    let mut exchange = asked.and_then(|()| lines.read_line(&mut reply));
    while let Ok(Progress {
        progress: (done, total),
    }) = serde_json::from_str(&reply)
    {
        progress(done, total);
        reply.clear();
        exchange = lines.read_line(&mut reply);
    }
    match exchange {
        Ok(_) if reply.ends_with('\n') => {}
        // The daemon ended before it had answered.
        Ok(_) => return Err(gone()),
        Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => return Err(gone()),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            return Err(Failure::new(
                FAILED,
                "its daemon does not answer; try again when it is less busy",
            ));
        }
        Err(error) => return Err(error.into()),
    }
    let reply: serde_json::Value = serde_json::from_str(&reply)?;
    match reply.get("error").and_then(serde_json::Value::as_str) {
        Some(error) => Err(Failure::new(FAILED, error)),
        None => Ok(serde_json::from_value(reply)?),
    }
}

fn gone() -> Failure {
    Failure::new(FAILED, "the pool was unmounted in the meantime; try again")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_that_ends_before_it_answers_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        let daemon = std::thread::spawn(move || {
            for text in ["", "tr", "true\n", "{\"error\":\"no\"}\n"] {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = String::new();
                BufReader::new(stream.try_clone().unwrap())
                    .read_line(&mut request)
                    .unwrap();
                stream.write_all(text.as_bytes()).unwrap();
            }
        });
        let ask = || ask::<bool>(UnixStream::connect(&socket).unwrap(), &Request::IsReadOnly, None);
        for _ in 0..2 {
            assert!(ask().unwrap_err().message.contains("unmounted in the meantime"));
        }
        assert!(ask().unwrap());
        assert_eq!(ask().unwrap_err().message, "no");
        daemon.join().unwrap();
    }
}
