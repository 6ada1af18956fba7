//! Temporary folders that disappear with the test process, even if that is killed.
//!
//! They are in `/dev/shm` where that has space and takes direct I/O (Linux 6.6): on a busy disk, creating
//! the stores of a Ceph takes minutes. There, writes survive the end of a server, and tests need no more.
//!
//! Contents: [`Folder`]. A shell waits for the end of a pipe whose other end only this process has, and then removes
//! the folder. It is in a process group of its own, so that a signal to the tests' group does not end it.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use rustix::fs::{Mode, OFlags};

use crate::error::{Error, Result};

/// Memory as a file system.
const MEMORY: &str = "/dev/shm";
/// Bytes that it must have for that: three full OSDs are larger, but tests write little.
const MEMORY_BYTES_MIN: u64 = 2 << 30;
/// Ten seconds of attempts: a daemon that dies at the same time may still create files.
const REMOVE: &str = "read -r _; i=0; while [ $i -lt 50 ]; do rm -rf -- \"$1\" && exit; i=$((i + 1)); sleep 0.2; done";

/// A temporary folder. It disappears when this is dropped, and when this process ends in whatever way.
pub(crate) struct Folder {
    path: PathBuf,
    remover: Child,
    /// Closed to have the folder removed.
    pipe: Option<ChildStdin>,
}

impl Folder {
    /// Makes one. The name is short: it becomes part of the paths of sockets, which hold 107 bytes.
    pub(crate) fn create(prefix: &str) -> Result<Folder> {
        let make = || -> io::Result<Folder> {
            let folder = tempfile::Builder::new()
                .prefix(prefix)
                .rand_bytes(6)
                .tempdir_in(base())?;
            let mut remover = Command::new("/bin/sh");
            remover.args(["-c", REMOVE, "sh"]).arg(folder.path());
            remover
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            let mut remover = remover.current_dir("/").process_group(0).spawn()?;
            let pipe = remover.stdin.take();
            Ok(Folder {
                path: folder.keep(),
                remover,
                pipe,
            })
        };
        make().map_err(|error| Error::io(base(), &error))
    }

    /// Its path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// Where folders are made.
fn base() -> PathBuf {
    let memory = PathBuf::from(MEMORY);
    let has_space = rustix::fs::statvfs(&memory)
        .is_ok_and(|space| space.f_bavail.saturating_mul(space.f_frsize) >= MEMORY_BYTES_MIN);
    let probe = || -> io::Result<()> {
        let file = tempfile::NamedTempFile::new_in(&memory)?;
        let flags = OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC;
        rustix::fs::open(file.path(), flags, Mode::empty())?;
        Ok(())
    };
    if has_space && probe().is_ok() {
        memory
    } else {
        std::env::temp_dir()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(self.pipe.take());
        let _ = self.remover.wait();
    }
}
