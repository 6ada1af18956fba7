//! How commands talk to the daemon that has a pool mounted: a socket, a word, one line of JSON.
//!
//! The socket's name comes from the pool's uuid, so any path to the pool finds it. Requests: `info`, `dump PATH`, and `scrub LIMIT`. A socket
//! whose daemon is gone refuses connections; it is replaced by the next daemon and ignored by commands.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ferrite_fs::{Engine, PoolInfo, Superblock, layout::BLOCK_BYTES};

use super::{FAILED, Failure, dump, scrub};

const TIMEOUT: Duration = Duration::from_secs(10);

fn directory() -> PathBuf {
    let user = rustix::process::geteuid();
    match std::env::var_os("XDG_RUNTIME_DIR") {
        _ if user.is_root() => PathBuf::from("/run/ferrite"),
        Some(dir) => PathBuf::from(dir).join("ferrite"),
        None => PathBuf::from(format!("/tmp/ferrite-{}", user.as_raw())),
    }
}

fn socket_of(uuid: u128) -> PathBuf {
    directory().join(format!("{uuid:032x}.sock"))
}

/// Uuid of a pool, read without opening it as one.
fn uuid_of(pool: &Path) -> Option<u128> {
    let file = File::open(pool).ok()?;
    let len = file.metadata().ok()?.len();
    let mut block = vec![0; BLOCK_BYTES as usize];
    [0, (len / BLOCK_BYTES).saturating_sub(1) * BLOCK_BYTES]
        .into_iter()
        .find_map(|offset| {
            file.read_exact_at(&mut block, offset).ok()?;
            Superblock::decode(&block).ok().map(|superblock| superblock.uuid)
        })
}

/// The daemon's end.
pub(crate) struct Server {
    path: PathBuf,
}

impl Server {
    /// Answers for `engine` from a thread of its own until dropped. Without a socket the mount works all the same.
    pub(crate) fn start(uuid: u128, engine: Engine) -> std::io::Result<Server> {
        let path = socket_of(uuid);
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory())?;
        // The pool's lock is ours, so whoever made this socket is gone.
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path)?;
        std::thread::Builder::new().name("control".into()).spawn(move || {
            for stream in listener.incoming().flatten() {
                let engine = engine.clone();
                // A scrub takes its time; others shall not wait for it.
                let answering = std::thread::Builder::new().name("control".into()).spawn(move || {
                    if let Err(error) = answer(stream, &engine) {
                        tracing::debug!(%error, "control connection");
                    }
                });
                if let Err(error) = answering {
                    tracing::debug!(%error, "no thread for a control connection");
                }
            }
        })?;
        Ok(Server { path })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn answer(mut stream: UnixStream, engine: &Engine) -> std::io::Result<()> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let mut request = String::new();
    BufReader::new(stream.try_clone()?).read_line(&mut request)?;
    let reply = match request.trim_end_matches('\n').split_once(' ') {
        None if request.trim() == "info" => serde_json::to_value(engine.info())?,
        Some(("dump", path)) => match dump::pages(engine, path) {
            Ok(pages) => serde_json::to_value(pages)?,
            Err(failure) => serde_json::json!({ "error": failure.message }),
        },
        Some(("scrub", limit)) => match scrub::report(engine, limit) {
            Ok(report) => serde_json::to_value(report)?,
            Err(failure) => serde_json::json!({ "error": failure.message }),
        },
        _ => serde_json::json!({ "error": format!("unknown request `{}`", request.trim()) }),
    };
    writeln!(stream, "{reply}")
}

/// Asks the daemon that has `pool` mounted about the pool; `None` if there is none.
pub(crate) fn info(pool: &Path) -> Result<Option<PoolInfo>, Failure> {
    ask(pool, "info")
}

/// Sends a request to the daemon that has `pool` mounted; `None` if there is none.
pub(crate) fn ask<T: serde::de::DeserializeOwned>(pool: &Path, request: &str) -> Result<Option<T>, Failure> {
    ask_within(pool, request, Some(TIMEOUT))
}

/// The same for what may take any time.
pub(crate) fn ask_patiently<T: serde::de::DeserializeOwned>(pool: &Path, request: &str) -> Result<Option<T>, Failure> {
    ask_within(pool, request, None)
}

fn ask_within<T: serde::de::DeserializeOwned>(
    pool: &Path,
    request: &str,
    timeout: Option<Duration>,
) -> Result<Option<T>, Failure> {
    let Some(uuid) = uuid_of(pool) else { return Ok(None) };
    let Ok(mut stream) = UnixStream::connect(socket_of(uuid)) else {
        return Ok(None);
    };
    stream.set_read_timeout(timeout)?;
    writeln!(stream, "{request}")?;
    let mut reply = String::new();
    BufReader::new(stream).read_line(&mut reply)?;
    let reply: serde_json::Value = serde_json::from_str(&reply)?;
    match reply.get("error").and_then(serde_json::Value::as_str) {
        Some(error) => Err(Failure::new(FAILED, error)),
        None => Ok(Some(serde_json::from_value(reply)?)),
    }
}
