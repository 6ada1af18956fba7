//! Ceph: a monitor, one to three OSDs with BlueStore in sparse files, a pool, and a manager if asked for.
//!
//! Contents: [`Ceph`]. Daemons stay in the foreground. OSDs make their stores while the monitor starts, which saves
//! half of the time. Without a manager all I/O works, and so do commands on maps; statistics of pools, and with them
//! quotas and `df`, need one.
//!
//! Invariants: a daemon finds its own ports, except for the monitor, whose ports clients have to know. An OSD that dies
//! is marked down at once if another one lives; the last one stays "up" in the map, and its clients wait.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::command::{find, free_port, run, wait_until};
use crate::daemon::Daemon;
use crate::error::{Error, Result};
use crate::folder::Folder;

/// Longer than anything takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(180);
/// Starts of a daemon before its error counts: another process may have taken a port, and an OSD gives up if it meets
/// the monitor before that knows the cluster's first map.
const ATTEMPTS: u32 = 4;
/// Placement groups of the pool.
const GROUPS: u32 = 4;
/// Each program, and the package that has it.
const PROGRAMS: &[(&str, &str)] = &[
    ("ceph-mon", "ceph-mon"),
    ("monmaptool", "ceph-common"),
    ("ceph-osd", "ceph-osd"),
    ("ceph-authtool", "ceph-common"),
    ("ceph", "ceph-common"),
    ("rados", "ceph-common"),
];

/// Options of [`Ceph::start`].
#[derive(Debug, Clone)]
pub struct CephOptions {
    /// OSDs, 1 to 3. An object has as many replicas, and can be written while one is left.
    pub osds: u32,
    /// The size of an OSD, a sparse file, in bytes.
    pub osd_bytes: u64,
    /// The pool that is created.
    pub pool: String,
    /// Whether there is a manager. It takes 300 MB of memory and 5 s of CPU time, and the start does not wait for it.
    pub has_manager: bool,
    /// Whether clients need keys, and may do what their capabilities say (cephx). The administrator has the only key at
    /// first.
    pub has_keys: bool,
    /// Lines for `ceph.conf`, such as `("osd op num shards", "1")`.
    pub settings: Vec<(String, String)>,
}

impl Default for CephOptions {
    fn default() -> CephOptions {
        CephOptions {
            osds: 1,
            osd_bytes: 1 << 30,
            pool: "ferrite".into(),
            has_manager: false,
            has_keys: false,
            settings: Vec::new(),
        }
    }
}

/// A Ceph cluster in a temporary folder. Dropping it ends its daemons and removes the folder.
pub struct Ceph {
    // The order is that of drops: daemons first.
    osds: Vec<Mutex<Option<Daemon>>>,
    _manager: Option<Daemon>,
    monitor: Mutex<Daemon>,
    pool: String,
    start_time: Duration,
    folder: Folder,
}

impl Ceph {
    /// Starts a cluster. On return an object can be written.
    ///
    /// # Errors
    ///
    /// [`Error::Missing`] without Ceph; [`Error::Failed`] with the end of a daemon's log.
    pub fn start(options: &CephOptions) -> Result<Ceph> {
        let began = Instant::now();
        for (program, package) in PROGRAMS {
            find(program, package, &[])?;
        }
        let osds = options.osds.clamp(1, 3);
        let folder = Folder::create("ferrite-ceph-")?;
        let path = folder.path().to_owned();
        let ids: Vec<String> = (0..=osds).map(|_| uuid()).collect::<Result<_>>()?;
        let (cluster, ids) = ids.split_first().expect("at least two ids");
        // The stores need nothing of it that depends on the monitor's ports.
        write(&path, "ceph.conf", &configuration(&path, cluster, "127.0.0.1", options))?;
        let (monitor, manager) = thread::scope(|scope| {
            let stores: Vec<_> = (0..osds)
                .zip(ids)
                .map(|(osd, id)| {
                    let path = &path;
                    scope.spawn(move || make_store(path, osd, id))
                })
                .collect();
            let started = start_monitor(&path, cluster, options).and_then(|monitor| {
                let manager = match options.has_manager {
                    true => Some(start_manager(&path)?),
                    false => None,
                };
                let commands = ids.iter().map(|id| format!("osd new {id}\n"));
                let pool = format!("osd pool create {} {GROUPS} {GROUPS} replicated\n", options.pool);
                admin(&path, &[], &commands.chain([pool]).collect::<String>())?;
                Ok((monitor, manager))
            });
            for store in stores {
                store.join().expect("this thread does not panic")?;
            }
            started
        })?;
        let mut cluster = Ceph {
            osds: (0..osds).map(|_| Mutex::new(None)).collect(),
            _manager: manager,
            monitor: Mutex::new(monitor),
            pool: options.pool.clone(),
            start_time: Duration::ZERO,
            folder,
        };
        thread::scope(|scope| {
            let all = &cluster;
            let starts: Vec<_> = (0..osds).map(|osd| scope.spawn(move || all.start_osd(osd))).collect();
            let mut ends = starts
                .into_iter()
                .map(|start| start.join().expect("this thread does not panic"));
            ends.try_for_each(|end| end)
        })?;
        cluster.write_first_object()?;
        cluster.start_time = began.elapsed();
        Ok(cluster)
    }

    /// The path of its `ceph.conf`. Without [`CephOptions::has_keys`] a client that reads it needs no key; in any case
    /// it may do everything as `client.admin`.
    pub fn conf(&self) -> PathBuf {
        self.folder.path().join("ceph.conf")
    }

    /// The name of its pool.
    pub fn pool(&self) -> &str {
        &self.pool
    }

    /// The number of its OSDs.
    pub fn osds(&self) -> u32 {
        u32::try_from(self.osds.len()).unwrap_or(u32::MAX)
    }

    /// How long [`start`](Self::start) took.
    pub fn start_time(&self) -> Duration {
        self.start_time
    }

    /// Runs a command of the administrator, such as `["osd", "set", "noout"]`; returns its output.
    ///
    /// # Errors
    ///
    /// [`Error::Failed`] with what the command printed.
    pub fn command(&self, arguments: &[&str]) -> Result<String> {
        admin(self.folder.path(), arguments, "")
    }

    /// Kills an OSD, as a crash would. On return it is gone.
    ///
    /// # Panics
    ///
    /// If there is no such OSD.
    pub fn kill_osd(&self, osd: u32) {
        self.end_osd(osd, Signal::KILL);
    }

    /// Stops an OSD as an administrator would: the monitor marks it down.
    ///
    /// # Panics
    ///
    /// If there is no such OSD.
    pub fn stop_osd(&self, osd: u32) {
        self.end_osd(osd, Signal::TERM);
    }

    /// Starts an OSD, or starts it again. On return the monitor says that it is up. A running one stays as it is.
    ///
    /// # Errors
    ///
    /// [`Error::Failed`] with the end of its log.
    ///
    /// # Panics
    ///
    /// If there is no such OSD.
    pub fn start_osd(&self, osd: u32) -> Result<()> {
        let mut process = self.lock(osd);
        if process.as_mut().is_some_and(|daemon| daemon.ended().is_none()) {
            return Ok(());
        }
        let path = self.folder.path();
        let log = path.join(format!("osd.{osd}.log"));
        // A new mention, not one of an earlier life.
        let boots = || {
            fs::read_to_string(&log)
                .unwrap_or_default()
                .matches("state: booting -> active")
                .count()
        };
        let before = boots();
        let started = start_daemon(path, "ceph-osd", &osd.to_string(), |daemon| {
            daemon.wait_ready(LIMIT, || boots() > before)
        });
        *process = Some(started?);
        Ok(())
    }

    /// Waits until every OSD has all changes of its placement groups, so that any one of them may serve alone.
    ///
    /// # Errors
    ///
    /// [`Error::Failed`] if that takes more than 180 s.
    pub fn wait_clean(&self) -> Result<()> {
        let pools = self.command(&["osd", "lspools"])?;
        let id = pools
            .lines()
            .find_map(|line| line.trim().strip_suffix(&format!(" {}", self.pool)));
        let id = id.unwrap_or("1");
        let is_clean = |group: u32| {
            // Without a manager, only the primary OSD of a group knows its state.
            let state = self.command(&["tell", &format!("{id}.{group:x}"), "query"]);
            state.is_ok_and(|state| state.contains("\"state\": \"active+clean\""))
        };
        match wait_until(LIMIT, || (0..GROUPS).all(is_clean)) {
            true => Ok(()),
            false => Err(Error::Failed {
                what: "Ceph".into(),
                cause: "placement groups are not clean".into(),
                log: self.command(&["status"]).unwrap_or_else(|error| error.to_string()),
            }),
        }
    }

    /// Stops the monitor, as a partition would, until the result is dropped: connections stay, and nobody answers.
    pub fn pause_monitor(&self) -> PausedMonitor<'_> {
        self.monitor.lock().unwrap_or_else(PoisonError::into_inner).pause();
        PausedMonitor(self)
    }

    fn end_osd(&self, osd: u32, signal: Signal) {
        if let Some(mut daemon) = self.lock(osd).take() {
            daemon.end(signal, LIMIT);
        }
    }

    fn lock(&self, osd: u32) -> MutexGuard<'_, Option<Daemon>> {
        self.osds[osd as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The daemons are up, and placement groups still have to agree on their history.
    fn write_first_object(&self) -> Result<()> {
        let conf = self.conf();
        for action in ["put", "rm"] {
            let mut rados = Command::new("rados");
            rados
                .arg("-c")
                .arg(&conf)
                .args(["-p", &self.pool, action, "first-object"]);
            if action == "put" {
                rados.arg(&conf);
            }
            run(rados.current_dir("/"), "", LIMIT)?;
        }
        Ok(())
    }
}

/// A monitor that does not answer; dropping this ends that.
#[derive(Debug)]
#[must_use]
pub struct PausedMonitor<'c>(&'c Ceph);

impl Drop for PausedMonitor<'_> {
    fn drop(&mut self) {
        let mut monitor = self.0.monitor.lock().unwrap_or_else(PoisonError::into_inner);
        monitor.signal(Signal::CONT);
    }
}

impl std::fmt::Debug for Ceph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Ceph").field(&self.folder.path()).finish()
    }
}

/// The text of `ceph.conf`.
fn configuration(folder: &Path, id: &str, monitor: &str, options: &CephOptions) -> String {
    let path = folder.display();
    let (osds, osd_bytes) = (options.osds.clamp(1, 3), options.osd_bytes);
    let auth = if options.has_keys { "cephx" } else { "none" };
    let mut own = String::new();
    for (name, value) in &options.settings {
        let _ = writeln!(own, "{name} = {value}");
    }
    format!(
        "[global]
fsid = {id}
mon initial members = a
mon host = {monitor}
public network = 127.0.0.0/8
cluster network = 127.0.0.0/8
auth cluster required = {auth}
auth service required = {auth}
auth client required = {auth}
auth allow insecure global id reclaim = false
keyring = {path}/keyring
run dir = {path}
admin socket = {path}/$name.asok
mon data = {path}/mon
mgr data = {path}/mgr
osd data = {path}/osd$id
ms bind ipv6 = false
paxos propose interval = 0.05
mon osd min down reporters = 1
mon osd down out interval = 0
mon warn on pool no redundancy = false
mon allow pool size one = true
mon data avail crit = 1
osd pool default size = {osds}
osd pool default min size = 1
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
osd class update on start = false
osd heartbeat grace = 6
osd heartbeat interval = 1
mon tick interval = 1
osd op num shards = 2
osd objectstore = bluestore
osd memory target = 939524096
bluestore block size = {osd_bytes}
bluestore cache autotune = false
bluestore cache size = 33554432
{own}[mon]
log file = {path}/$name.log
[mgr]
log file = {path}/$name.log
[osd]
log file = {path}/$name.log
"
    )
}

/// Makes the store of an OSD. It would ask the monitor for its configuration, which may not run yet, and wait for ever.
fn make_store(folder: &Path, osd: u32, id: &str) -> Result<()> {
    make_folder(&folder.join(format!("osd{osd}")))?;
    let mut make = Command::new("ceph-osd");
    make.arg("-c").arg(folder.join("ceph.conf")).args([
        "-i",
        &osd.to_string(),
        "--mkfs",
        "--no-mon-config",
        "--osd-uuid",
        id,
    ]);
    run(make.current_dir("/"), "", LIMIT).map(drop)
}

/// Makes the keys of the monitor, of the administrator and of the OSDs, which a new monitor learns from this file.
fn make_keys(keyring: &Path, options: &CephOptions) -> Result<()> {
    let mut entities = vec![("mon.".to_owned(), vec!["mon", "allow *"])];
    if options.has_keys {
        let all = vec!["mon", "allow *", "osd", "allow *", "mgr", "allow *"];
        entities.push(("client.admin".into(), all.clone()));
        entities.push(("mgr.x".into(), all));
        let osds = (0..options.osds.clamp(1, 3)).map(|osd| format!("osd.{osd}"));
        entities.extend(osds.map(|osd| (osd, vec!["mon", "allow profile osd", "osd", "allow *"])));
    }
    for (at, (entity, caps)) in entities.iter().enumerate() {
        let mut keys = Command::new("ceph-authtool");
        keys.args((at == 0).then_some("--create-keyring"));
        keys.arg(keyring).args(["--gen-key", "-n", entity]);
        for cap in caps.chunks(2) {
            keys.arg("--cap").args(cap);
        }
        run(keys.current_dir("/"), "", LIMIT)?;
    }
    Ok(())
}

/// Starts the monitor, and writes where it is.
fn start_monitor(folder: &Path, id: &str, options: &CephOptions) -> Result<Daemon> {
    let keyring = folder.join("keyring");
    make_keys(&keyring, options)?;
    let mut attempt = 0;
    loop {
        attempt += 1;
        // Ports that are free now may not be in a moment; then with others.
        let address = format!("[v2:127.0.0.1:{},v1:127.0.0.1:{}]", free_port()?, free_port()?);
        write(folder, "ceph.conf", &configuration(folder, id, &address, options))?;
        let _ = fs::remove_dir_all(folder.join("mon"));
        make_folder(&folder.join("mon"))?;
        let (map, conf) = (folder.join("monmap"), folder.join("ceph.conf"));
        let mut create = Command::new("monmaptool");
        create.args(["--create", "--clobber", "--addv", "a", &address, "--fsid", id]);
        run(create.arg(&map).current_dir("/"), "", LIMIT)?;
        let mut make = Command::new("ceph-mon");
        make.arg("-c")
            .arg(conf)
            .args(["-i", "a", "--mkfs", "--monmap"])
            .arg(map);
        run(make.arg("--keyring").arg(&keyring).current_dir("/"), "", LIMIT)?;
        let started = start_daemon(folder, "ceph-mon", "a", |daemon| {
            daemon.wait_ready(LIMIT, || admin(folder, &["mon", "stat"], "").is_ok())
        });
        match started {
            Ok(monitor) => return Ok(monitor),
            Err(error) if attempt == ATTEMPTS => return Err(error),
            Err(_) => {}
        }
    }
}

/// Starts the manager, and does not wait for it.
fn start_manager(folder: &Path) -> Result<Daemon> {
    find("ceph-mgr", "ceph-mgr", &[])?;
    make_folder(&folder.join("mgr"))?;
    start_daemon(folder, "ceph-mgr", "x", |_| Ok(()))
}

/// Starts a daemon until `wait` is content with it.
fn start_daemon(
    folder: &Path,
    program: &'static str,
    id: &str,
    mut wait: impl FnMut(&mut Daemon) -> Result<()>,
) -> Result<Daemon> {
    let path = find(program, program, &[])?;
    let conf = folder.join("ceph.conf").display().to_string();
    let log = folder.join(format!("{program}.{id}.output"));
    let mut attempt = 0;
    loop {
        attempt += 1;
        let mut daemon = Daemon::start(None, "KILL", &path, ["-f", "-c", &conf, "-i", id], log.clone())?;
        match wait(&mut daemon) {
            Ok(()) => return Ok(daemon),
            Err(error) if attempt == ATTEMPTS => return Err(error),
            Err(_) => drop(daemon),
        }
        thread::sleep(Duration::from_millis(500));
    }
}

/// Runs `ceph` with arguments, or with commands, one a line: starting its interpreter takes half a second.
fn admin(folder: &Path, arguments: &[&str], commands: &str) -> Result<String> {
    let mut ceph = Command::new("ceph");
    ceph.arg("-c")
        .arg(folder.join("ceph.conf"))
        .args(["--connect-timeout", "60"]);
    run(ceph.args(arguments).current_dir("/"), commands, LIMIT)
}

fn uuid() -> Result<String> {
    let path = "/proc/sys/kernel/random/uuid";
    let id = fs::read_to_string(path).map_err(|error| Error::io(path, &error))?;
    Ok(id.trim().to_owned())
}

fn write(folder: &Path, name: &str, text: &str) -> Result<()> {
    let path = folder.join(name);
    // Renamed into place: others read it meanwhile.
    let part = folder.join(format!("{name}.part"));
    let written = fs::write(&part, text).and_then(|()| fs::rename(&part, &path));
    written.map_err(|error| Error::io(path, &error))
}

fn make_folder(path: &Path) -> Result<()> {
    fs::create_dir_all(path).map_err(|error| Error::io(path, &error))
}
