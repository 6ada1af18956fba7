//! PostgreSQL: a primary, and a synchronous standby if asked for.
//!
//! Contents: [`Postgres`], and [`Server`], one of its processes.
//!
//! Invariants: a server keeps its port over restarts. The primary names the standby in `synchronous_standby_names` only
//! once it streams, because a primary that names one which is away never answers a commit. The standby has no such
//! setting, so after its promotion it commits alone.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::Signal;

use crate::command::{find, free_port, run, tail, wait_until};
use crate::daemon::{Daemon, User};
use crate::error::{Error, Result};
use crate::folder::Folder;

/// Longer than anything takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(90);
/// The Debian package with the programs.
const PACKAGE: &str = "postgresql-15";
/// The superuser of the database.
const ROLE: &str = "ferrite";
/// The standby's name for the primary.
const STANDBY: &str = "standby";

/// Options of [`Postgres::start`].
#[derive(Debug, Clone, Default)]
pub struct PostgresOptions {
    /// Whether a second server follows the first, which commits nothing that the second has not made durable.
    pub has_standby: bool,
    /// Settings of both servers, such as `("fsync", "off")`.
    pub settings: Vec<(String, String)>,
}

/// PostgreSQL in a temporary folder. Dropping it ends its servers and removes the folder.
#[derive(Debug)]
pub struct Postgres {
    // The order is that of drops: servers first.
    primary: Server,
    standby: Option<Server>,
    _folder: Kept,
}

/// One server of a [`Postgres`]. All calls block until done, at most 90 s.
#[derive(Debug)]
pub struct Server {
    programs: PathBuf,
    user: Option<User>,
    name: &'static str,
    folder: PathBuf,
    port: u16,
    settings: Vec<(String, String)>,
    process: Process,
}

impl Postgres {
    /// Starts a primary, and its standby if `options` ask for one.
    ///
    /// # Errors
    ///
    /// [`Error::Missing`] without PostgreSQL; [`Error::Failed`] with the end of the server's log.
    pub fn start(options: &PostgresOptions) -> Result<Postgres> {
        let programs = programs()?;
        let user = User::without_privileges();
        let folder = Folder::create("ferrite-pg-")?;
        if let Some(user) = user {
            let owned = std::os::unix::fs::chown(folder.path(), Some(user.uid), Some(user.gid));
            owned.map_err(|error| Error::io(folder.path(), &error))?;
        }
        let server = |name| {
            Ok(Server {
                programs: programs.clone(),
                user,
                name,
                folder: folder.path().to_owned(),
                port: free_port()?,
                settings: options.settings.clone(),
                process: Process(Mutex::new(None)),
            })
        };
        let primary = server("primary")?;
        let mut initdb = User::command(user, &programs.join("initdb"));
        initdb.args(["-U", ROLE, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "-D"]);
        run(initdb.arg(primary.data()).current_dir("/"), "", LIMIT)?;
        primary.start()?;
        let standby = match options.has_standby {
            true => Some(server(STANDBY)?),
            false => None,
        };
        if let Some(standby) = &standby {
            standby.follow(&primary)?;
        }
        Ok(Postgres {
            primary,
            standby,
            _folder: Kept(folder),
        })
    }

    /// The server that was the primary at first.
    pub fn primary(&self) -> &Server {
        &self.primary
    }

    /// The server that was the standby at first.
    ///
    /// # Panics
    ///
    /// If the options did not ask for one.
    pub fn standby(&self) -> &Server {
        self.standby.as_ref().expect("the options asked for a standby")
    }

    /// A connection string that leads to the server that takes writes, whichever it is.
    pub fn connection(&self) -> String {
        let ports: Vec<String> = [Some(&self.primary), self.standby.as_ref()]
            .iter()
            .flatten()
            .map(|server| server.port.to_string())
            .collect();
        let hosts = vec!["127.0.0.1"; ports.len()].join(",");
        let ports = ports.join(",");
        format!(
            "host={hosts} port={ports} user={ROLE} dbname=postgres connect_timeout=10 target_session_attrs=read-write"
        )
    }

    /// Runs SQL by [`connection`](Self::connection); returns the rows, one a line, with `|` between columns.
    ///
    /// # Errors
    ///
    /// [`Error::Failed`] with what `psql` printed.
    pub fn sql(&self, text: &str) -> Result<String> {
        self.primary.psql(&self.connection(), text)
    }
}

impl Server {
    /// A connection string that leads to this server, whether it takes writes or not.
    pub fn connection(&self) -> String {
        let port = self.port;
        format!("host=127.0.0.1 port={port} user={ROLE} dbname=postgres connect_timeout=10")
    }

    /// The same as a URL, for programs that take no connection string.
    pub fn url(&self) -> String {
        format!("postgres://{ROLE}@127.0.0.1:{}/postgres?sslmode=disable", self.port)
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Runs SQL on this server; returns the rows, one a line, with `|` between columns.
    ///
    /// # Errors
    ///
    /// [`Error::Failed`] with what `psql` printed.
    pub fn sql(&self, text: &str) -> Result<String> {
        self.psql(&self.connection(), text)
    }

    /// Starts it, or starts it again. On return it answers queries. A running one stays as it is.
    ///
    /// # Errors
    ///
    /// [`Error::Failed`] with the end of its log.
    pub fn start(&self) -> Result<()> {
        let mut process = self.lock();
        if process.as_mut().is_some_and(|daemon| daemon.ended().is_none()) {
            return Ok(());
        }
        let mut arguments = vec!["-D".to_owned(), self.data().display().to_string()];
        let port = self.port.to_string();
        let folder = self.folder.display().to_string();
        let settings = [
            ("port", port.as_str()),
            ("listen_addresses", "127.0.0.1"),
            ("unix_socket_directories", folder.as_str()),
            ("cluster_name", self.name),
            // Not in /dev/shm, where a killed server would leave it.
            ("dynamic_shared_memory_type", "mmap"),
        ];
        let own = self
            .settings
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()));
        for (name, value) in settings.into_iter().chain(own) {
            arguments.extend(["-c".to_owned(), format!("{name}={value}")]);
        }
        // The children notice the end of the server within moments; this one releases its shared memory.
        let program = self.programs.join("postgres");
        let mut daemon = Daemon::start(self.user, "QUIT", &program, &arguments, self.log_path())?;
        // By the socket in its own folder: another server may have got the port.
        let socket = format!("host={folder} port={port} user={ROLE} dbname=postgres");
        daemon.wait_ready(LIMIT, || self.psql(&socket, "select 1").is_ok())?;
        *process = Some(daemon);
        Ok(())
    }

    /// Stops it as an administrator would: connections end, and everything is written.
    pub fn stop(&self) {
        self.end(Signal::INT);
    }

    /// Ends it at once (`SIGQUIT`, which ends its children as well): the next start recovers from the log.
    pub fn kill(&self) {
        self.end(Signal::QUIT);
    }

    /// Makes a standby the primary. On return it takes writes.
    ///
    /// # Errors
    ///
    /// [`Error::Failed`] if it is not a standby, or not a primary in time.
    pub fn promote(&self) -> Result<()> {
        let promoted = self.sql("select pg_promote(true, 60)")?;
        match promoted.trim() {
            "t" => Ok(()),
            reply => Err(self.failed(format!("pg_promote answered {reply}"))),
        }
    }

    /// The end of its log.
    pub fn log(&self) -> String {
        tail(&self.log_path())
    }

    /// Copies `primary`, starts, and has the primary wait for it with every commit.
    fn follow(&self, primary: &Server) -> Result<()> {
        let mut copy = User::command(self.user, &self.programs.join("pg_basebackup"));
        copy.args([
            "-R",
            "-X",
            "stream",
            "-c",
            "fast",
            "--no-sync",
            "-d",
            &primary.connection(),
            "-D",
        ]);
        run(copy.arg(self.data()).current_dir("/"), "", LIMIT)?;
        self.start()?;
        let state = |query: &str, wanted: &str| {
            let is_so = || primary.sql(query).is_ok_and(|state| state.trim() == wanted);
            match wait_until(LIMIT, is_so) {
                true => Ok(()),
                false => Err(self.failed(format!("`{query}` on its primary never gave `{wanted}`"))),
            }
        };
        state("select state from pg_stat_replication", "streaming")?;
        primary.sql(&format!("alter system set synchronous_standby_names = '{STANDBY}'"))?;
        primary.sql("select pg_reload_conf()")?;
        state("select sync_state from pg_stat_replication", "sync")
    }

    fn psql(&self, connection: &str, text: &str) -> Result<String> {
        let mut psql = Command::new(self.programs.join("psql"));
        psql.args([
            "-X",
            "-A",
            "-t",
            "-q",
            "-v",
            "ON_ERROR_STOP=1",
            "-d",
            connection,
            "-f",
            "-",
        ]);
        run(
            psql.current_dir("/").env("PGOPTIONS", "-c statement_timeout=60s"),
            text,
            LIMIT,
        )
    }

    fn end(&self, signal: Signal) {
        if let Some(mut daemon) = self.lock().take() {
            daemon.end(signal, LIMIT);
        }
    }

    fn data(&self) -> PathBuf {
        self.folder.join(self.name)
    }

    fn log_path(&self) -> PathBuf {
        self.folder.join(format!("{}.log", self.name))
    }

    fn lock(&self) -> MutexGuard<'_, Option<Daemon>> {
        self.process.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failed(&self, cause: String) -> Error {
        Error::Failed {
            what: format!("PostgreSQL's {}", self.name),
            cause,
            log: self.log(),
        }
    }
}

impl Drop for Server {
    /// Not by `SIGKILL` if that can be avoided: it would leave a segment of System V memory behind.
    fn drop(&mut self) {
        self.kill();
    }
}

/// A process, without its innards in debug output.
struct Process(Mutex<Option<Daemon>>);

impl std::fmt::Debug for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Process")
    }
}

/// A folder that lives as long as this.
struct Kept(Folder);

impl std::fmt::Debug for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.path().fmt(f)
    }
}

/// The folder with the programs of the newest version: Debian keeps them out of the way of its wrappers.
fn programs() -> Result<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut versions: Vec<(u32, PathBuf)> = versions
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path().join("bin"))))
        .filter(|(_, folder)| folder.join("postgres").is_file())
        .collect();
    versions.sort();
    let folders: Vec<PathBuf> = versions.pop().into_iter().map(|(_, folder)| folder).collect();
    let server = find("postgres", PACKAGE, &folders)?;
    // A link to the program would lack its neighbours.
    let server = server.canonicalize().map_err(|error| Error::io(&server, &error))?;
    let folder = server.parent().unwrap_or(Path::new("/usr/bin")).to_owned();
    for program in ["initdb", "psql", "pg_basebackup"] {
        if !folder.join(program).is_file() {
            return Err(Error::Missing {
                program,
                package: PACKAGE,
            });
        }
    }
    Ok(folder)
}
