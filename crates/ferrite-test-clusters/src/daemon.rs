//! Processes that die with this one.
//!
//! Contents: [`Daemon`]. The kernel sends a signal to a process when the *thread* that started it ends
//! (`PR_SET_PDEATHSIG`, prctl(2)), and each test has a thread of its own. So one thread, which lives as long as this
//! process, starts them all. `setpriv` of util-linux asks for the signal, and sheds root where a server refuses it.

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::command::{tail, wait_until};
use crate::error::{Error, Result};

/// Most time that the kernel takes to stop a process.
const STOP_LIMIT: Duration = Duration::from_secs(30);

/// Stops a process until it is sent [`Signal::CONT`]. Returns when none of its threads runs any more: until then, it
/// may still answer. Does nothing if there is no such process.
pub fn pause(pid: u32) {
    let Some(process) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
        return;
    };
    let is_stopped = |task: std::fs::DirEntry| {
        // The state follows the name, which may have any characters.
        let state = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        state
            .rsplit_once(") ")
            .is_none_or(|(_, rest)| rest.starts_with(['T', 't', 'Z', 'X']))
    };
    let all_stopped = || {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
        tasks.is_ok_and(|mut tasks| tasks.all(|task| task.is_ok_and(is_stopped)))
    };
    if kill_process(process, Signal::STOP).is_ok() {
        wait_until(STOP_LIMIT, all_stopped);
    }
}

/// A user of this machine that servers run as, if this process is root's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl User {
    /// The user for servers that refuse to run as root, or `None` if this process is not root's.
    pub(crate) fn without_privileges() -> Option<User> {
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        let find = |name: &str| {
            let mut fields = users.lines().find_map(|line| line.strip_prefix(name))?.split(':');
            let (uid, gid) = (fields.nth(1)?, fields.next()?);
            Some(User {
                uid: uid.parse().ok()?,
                gid: gid.parse().ok()?,
            })
        };
        // Every Unix has the second, which other programs use, too; so the first is better.
        Some(
            find("postgres:")
                .or_else(|| find("nobody:"))
                .unwrap_or(User { uid: 65534, gid: 65534 }),
        )
    }

    /// A command that runs `program` as this user.
    pub(crate) fn command(user: Option<User>, program: &Path) -> Command {
        let Some(User { uid, gid }) = user else {
            return Command::new(program);
        };
        let mut command = Command::new("setpriv");
        command.arg(format!("--reuid={uid}")).arg(format!("--regid={gid}"));
        command.args(["--clear-groups", "--"]).arg(program);
        command
    }
}

/// A running server. Killed when dropped.
pub(crate) struct Daemon {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Daemon {
    /// Starts `program`, which must stay in the foreground. Output is appended to `log`.
    ///
    /// `at_death` is the signal that it gets when this process ends, as `setpriv` spells it.
    pub(crate) fn start<A: AsRef<OsStr>>(
        user: Option<User>,
        at_death: &str,
        program: &Path,
        arguments: impl IntoIterator<Item = A>,
        log: PathBuf,
    ) -> Result<Daemon> {
        let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let open = || OpenOptions::new().create(true).append(true).open(&log);
        let outputs = || Ok::<_, io::Error>((open()?, open()?));
        let (output, errors) = outputs().map_err(|error| Error::io(&log, &error))?;
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", at_death]);
        if let Some(User { uid, gid }) = user {
            command
                .arg(format!("--reuid={uid}"))
                .arg(format!("--regid={gid}"))
                .arg("--clear-groups");
        }
        command.arg("--").arg(program).args(arguments);
        command
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors);
        let child = spawn(command).map_err(|error| Error::io("setpriv", &error))?;
        Ok(Daemon { name, child, log })
    }

    /// Its exit status, if it has ended.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child
            .try_wait()
            .unwrap_or_else(|_| Some(ExitStatus::from_raw(1 << 8)))
    }

    /// Sends a signal, if it still runs.
    pub(crate) fn signal(&mut self, signal: Signal) {
        if self.ended().is_none() {
            let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
            // It cannot be another process: the child is not reaped yet.
            let _ = pid.map(|pid| kill_process(pid, signal));
        }
    }

    /// Stops it until it is sent [`Signal::CONT`]; see [`pause`].
    pub(crate) fn pause(&mut self) {
        if self.ended().is_none() {
            pause(self.child.id());
        }
    }

    /// Sends a signal, and waits for the end; after `limit`, kills.
    pub(crate) fn end(&mut self, signal: Signal, limit: Duration) {
        self.signal(signal);
        if !wait_until(limit, || self.ended().is_some()) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }

    /// Waits until `is_ready` returns true.
    ///
    /// # Errors
    ///
    /// [`Error::Failed`] if the server ends before, or after `limit`.
    pub(crate) fn wait_ready(&mut self, limit: Duration, mut is_ready: impl FnMut() -> bool) -> Result<()> {
        let mut status = None;
        let in_time = wait_until(limit, || {
            status = self.ended();
            status.is_some() || is_ready()
        });
        match status {
            Some(status) => Err(self.failed(status.to_string())),
            None if in_time => Ok(()),
            None => Err(self.failed(format!("it was not ready after {} s", limit.as_secs()))),
        }
    }

    fn failed(&self, cause: String) -> Error {
        Error::Failed {
            what: self.name.clone(),
            cause,
            log: tail(&self.log),
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

type Order = (Command, Sender<io::Result<Child>>);

/// Has the one thread start a process.
fn spawn(command: Command) -> io::Result<Child> {
    static ORDERS: OnceLock<Mutex<Sender<Order>>> = OnceLock::new();
    let orders = ORDERS.get_or_init(|| {
        let (sender, orders) = channel::<Order>();
        thread::spawn(move || {
            // Its sender is static, so this loop ends with the process.
            for (mut command, reply) in orders {
                let _ = reply.send(command.spawn());
            }
        });
        Mutex::new(sender)
    });
    let (reply, started) = channel();
    let sent = orders
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .send((command, reply));
    let gone = || io::Error::other("the thread that starts processes has ended");
    sent.map_err(|_| gone())?;
    started.recv().map_err(|_| gone())?
}
