//! Servers that hand a pool to each other, with real processes: the owner is killed, stopped and continued, asked to
//! leave, ended in order, and cut off its database, which fails over, and OSDs die, while programs work on two mounts.
//!
//! Protects: every line that a program appended is there once; no increment under a lock is lost or doubled; a retried
//! rename is done once; an owner that was stopped answers nothing when it continues; clients go on within the lease.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::{fails, ferrite, has_fuse, ok, soak};
use ferrite_client::{Client, ClientOptions, ConnectError};
#[cfg(feature = "rados")]
use ferrite_test_clusters::CephOptions;
use ferrite_test_clusters::{Ceph, Passing, Postgres, PostgresOptions, Proxy, or_skip};
use tempfile::TempDir;

/// Seconds after which another server may take the pool of one that is dead.
const LEASE_S: u64 = 2;
/// How long servers may take beyond the lease on a busy machine.
const BEYOND: Duration = Duration::from_secs(10);
/// How long clients may wait beyond the lease. The goal is 2 s, on a machine that has nothing else to do.
const CLIENTS_BEYOND: Duration = Duration::from_secs(6);
/// Between blows: clients that lost a server try each at least once a second.
const BETWEEN: Duration = Duration::from_millis(1500);

/// A program on a mount: appends lines, counts under a lock, and renames a file to and fro, until a file appears. Says
/// how often, and the longest time that one turn took.
const WORK: &str = r#"
import fcntl, os, sys, time
dir, who, stop = sys.argv[1:]
log = os.open(f"{dir}/log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
counter = os.open(f"{dir}/counter", os.O_RDWR | os.O_CREAT)
open(f"{dir}/{who}.0", "w").close()
n, longest = 0, 0.0
print("works", flush=True)
while not os.path.exists(stop):
    since = time.monotonic()
    line = f"{who} {n}\n".encode()
    assert os.write(log, line) == len(line)
    fcntl.lockf(counter, fcntl.LOCK_EX)
    value = int(os.pread(counter, 32, 0) or b"0")
    os.pwrite(counter, str(value + 1).encode(), 0)
    fcntl.lockf(counter, fcntl.LOCK_UN)
    os.rename(f"{dir}/{who}.{n % 2}", f"{dir}/{who}.{(n + 1) % 2}")
    n += 1
    longest = max(longest, time.monotonic() - since)
    time.sleep(0.002)
print(n, longest)
"#;

/// A server, as a process.
struct Server {
    process: Child,
    address: String,
    said: PathBuf,
    /// The network between it and the primary of its database.
    network: Arc<Proxy>,
}

/// A pool in a database, two servers for it, and two directories to mount it on. Dropping this removes everything.
struct Group {
    servers: Vec<Server>,
    dir: TempDir,
    database: Postgres,
    /// Where the content is; without it, on a device.
    ceph: Option<Ceph>,
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

impl Group {
    /// With its content on a device of this machine.
    fn new(options: &PostgresOptions) -> Option<Group> {
        Group::with_content(options, None)
    }

    fn with_content(options: &PostgresOptions, ceph: Option<Ceph>) -> Option<Group> {
        let database = or_skip(Postgres::start(options))?;
        let dir = tempfile::Builder::new()
            .prefix("ferrite-test-")
            .tempdir_in("/dev/shm")
            .unwrap();
        let content = match &ceph {
            None => "[[data]]\ndevice = 'a.data'".to_owned(),
            Some(ceph) => format!(
                "[data]\nrados = {{ pool = '{}', conf = '{}', client = 'client.admin' }}",
                ceph.pool(),
                ceph.conf().display()
            ),
        };
        let pool = |name: &str, connection: &str| {
            let text = format!(
                "[metadata]\npostgres = '{connection}'\nvolume = 'home'\nlease_s = {LEASE_S}\nsmall_files = '2K'\n{content}\n",
            );
            std::fs::write(dir.path().join(name), text).unwrap();
        };
        pool("pool.toml", &database.connection());
        let primary = database.primary().port().to_string();
        let network = |name: &str| {
            let proxy = Proxy::start(database.primary().port()).unwrap();
            pool(
                name,
                &database.connection().replace(&primary, &proxy.port().to_string()),
            );
            Arc::new(proxy)
        };
        let networks = ["0", "1"].map(|name| (name, network(&format!("pool{name}.toml"))));
        let mut group = Group {
            servers: Vec::new(),
            dir,
            database,
            ceph,
        };
        let size: &[&str] = if group.ceph.is_some() { &[] } else { &["--size", "64M"] };
        ok(ferrite().args(["mkfs", &group.pool()]).args(size));
        for (name, network) in networks {
            std::fs::create_dir(group.mount(name)).unwrap();
            let address = format!("127.0.0.1:{}", free_port());
            let server = group.start(name, &address, network);
            group.servers.push(server);
        }
        Some(group)
    }

    fn pool(&self) -> String {
        format!("nvme:{}", self.dir.path().join("pool.toml").display())
    }

    fn mount(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Starts a server, and waits until it serves or stands by.
    fn start(&self, name: &str, address: &str, network: Arc<Proxy>) -> Server {
        let pool = format!("nvme:{}", self.dir.path().join(format!("pool{name}.toml")).display());
        let said = self.dir.path().join(address.replace(':', "."));
        let file = std::fs::File::create(&said).unwrap();
        let process = ferrite()
            .args(["serve", &pool, "--no-root-squash", "--lease", "5"])
            .args(["--listen", &format!("tcp://{address}")])
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn()
            .unwrap();
        let server = Server {
            process,
            address: address.to_owned(),
            said,
            network,
        };
        let until = Instant::now() + Duration::from_secs(30);
        while !["serving", "standing by"]
            .iter()
            .any(|word| server.text().contains(word))
        {
            assert!(Instant::now() < until, "{}", server.text());
            std::thread::sleep(Duration::from_millis(10));
        }
        server
    }

    /// The server that owns the pool: its place in the list.
    fn owner(&self) -> usize {
        let until = Instant::now() + Duration::from_secs(LEASE_S) + BEYOND;
        loop {
            let text = "select address from home.owners where expires > clock_timestamp()";
            let address = self.database.sql(text).unwrap_or_default();
            let owner = self.servers.iter().position(|server| server.address == address.trim());
            if let Some(owner) = owner {
                return owner;
            }
            assert!(Instant::now() < until, "no server took the pool: {address}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until another server than this one owns the pool.
    fn owner_after(&self, before: usize) -> usize {
        let until = Instant::now() + Duration::from_secs(LEASE_S) + BEYOND;
        loop {
            let owner = self.owner();
            if owner != before {
                return owner;
            }
            assert!(Instant::now() < until, "{}", self.servers[before].text());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until a server serves the pool, and not only owns it.
    fn wait_until_served_by(&self, server: usize) {
        let until = Instant::now() + Duration::from_secs(LEASE_S) + BEYOND;
        while self.servers[server].connect().is_err() {
            assert!(Instant::now() < until, "{}", self.servers[server].text());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The address of the pool for clients.
    fn address(&self) -> String {
        let hosts: Vec<&str> = self.servers.iter().map(|server| &*server.address).collect();
        format!("tcp://{}/", hosts.join(","))
    }

    /// Mounts the pool on both directories, and starts a program on each.
    fn begin(&self) -> Vec<Work> {
        let stop = self.dir.path().join("stop");
        let begin = |name: &str| {
            ok(ferrite().args(["mount", &self.address()]).arg(self.mount(name)));
            let mut process = Command::new("python3")
                .args(["-c", WORK])
                .args([&self.mount(name), Path::new(name), &stop])
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            let mut said = BufReader::new(process.stdout.take().unwrap());
            said.read_line(&mut String::new()).unwrap();
            Work { process, said }
        };
        ["0", "1"].map(begin).into()
    }

    /// Ends the programs, and checks what they did. Returns the longest time that one turn of theirs took.
    fn end(&self, work: Vec<Work>) -> Duration {
        std::fs::write(self.dir.path().join("stop"), "").unwrap();
        let done: Vec<(u64, f64)> = work.into_iter().map(Work::end).collect();
        std::fs::remove_file(self.dir.path().join("stop")).unwrap();
        // By another way than theirs.
        let read =
            |name: &str| ok(ferrite().args(["cat", &format!("{}:/{name}", self.address().trim_end_matches('/'))]));
        let log = read("log");
        for (who, (turns, _)) in done.iter().enumerate() {
            let who = format!("{who} ");
            let lines: Vec<u64> = log
                .lines()
                .filter_map(|line| line.strip_prefix(&who)?.parse().ok())
                .collect();
            let wanted: Vec<u64> = (0..*turns).collect();
            assert!(
                lines == wanted,
                "of {turns} lines of {who}, {} are there: {lines:?}",
                lines.len()
            );
        }
        let turns: u64 = done.iter().map(|(turns, _)| turns).sum();
        assert_eq!(log.lines().count() as u64, turns);
        assert_eq!(
            read("counter"),
            turns.to_string(),
            "an increment was lost, or done twice"
        );
        let longest = done.iter().map(|&(_, longest)| longest).fold(0.0, f64::max);
        println!("{turns} turns, the longest took {longest:.2} s");
        for name in ["0", "1"] {
            ok(ferrite().arg("umount").arg(self.mount(name)));
        }
        Duration::from_secs_f64(longest)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for name in ["0", "1"] {
            let _ = Command::new("umount").arg("-l").arg(self.mount(name)).output();
        }
        for server in &mut self.servers {
            let _ = server.process.kill();
            let _ = server.process.wait();
        }
    }
}

/// A program that works on a mount.
struct Work {
    process: Child,
    said: BufReader<std::process::ChildStdout>,
}

impl Work {
    /// Waits for it. Returns how many turns it made, and the seconds of the longest.
    fn end(mut self) -> (u64, f64) {
        let mut line = String::new();
        self.said.read_line(&mut line).unwrap();
        let output = self.process.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let (turns, longest) = line.trim().split_once(' ').expect(&line);
        (turns.parse().unwrap(), longest.parse().unwrap())
    }
}

impl Server {
    fn text(&self) -> String {
        std::fs::read_to_string(&self.said).unwrap_or_default()
    }

    /// A session with it alone.
    fn connect(&self) -> Result<Client, ConnectError> {
        let options = ClientOptions::default().timeout(Some(Duration::from_millis(500)));
        Client::connect(&self.address, "", &options)
    }

    /// Asked alone, it must not answer as an owner.
    fn refuses(&self) {
        let Err(refused) = self.connect() else {
            panic!("{} serves what another server owns: {}", self.address, self.text());
        };
        let refused = refused.to_string();
        assert!(refused.contains("another server serves this volume"), "{refused}");
    }

    fn signal(&self, name: &str) {
        let process = self.process.id().to_string();
        ok(Command::new("kill").args([&format!("-{name}"), &process]));
    }
}

/// A mishap of the owner.
#[derive(Debug, Clone, Copy)]
enum Blow {
    /// It is killed, and starts again.
    Killed,
    /// It stands still for longer than its lease, and continues.
    Stopped,
    /// It is asked to hand over.
    Asked,
    /// It ends in order, and starts again.
    Ended,
    /// Nothing passes between it and its database, until another owns the pool.
    CutOff,
    /// Its batches reach the database, but no answer comes back, until another owns the pool.
    Deaf,
    /// An OSD of Ceph dies, and starts again.
    #[cfg(feature = "rados")]
    OsdKilled,
}

impl Group {
    fn strike(&mut self, blow: Blow) {
        let owner = self.owner();
        println!("{blow:?}: {}", self.servers[owner].address);
        match blow {
            Blow::Asked => {
                let said = ok(ferrite().args(["failover", &self.pool()]));
                assert!(said.contains("handed from"), "{said}");
                assert_ne!(self.owner(), owner);
            }
            Blow::Stopped => {
                self.servers[owner].signal("STOP");
                let next = self.owner_after(owner);
                if self.ceph.is_some() {
                    // Locks on devices would keep it out until the stopped one continues.
                    self.wait_until_served_by(next);
                }
                self.servers[owner].signal("CONT");
                self.servers[owner].refuses();
            }
            Blow::CutOff | Blow::Deaf => {
                let passing = if matches!(blow, Blow::Deaf) {
                    Passing::Requests
                } else {
                    Passing::Neither
                };
                self.servers[owner].network.set(passing);
                let next = self.owner_after(owner);
                self.wait_until_served_by(next);
                // The batches that it had sent arrive now.
                self.servers[owner].network.set(Passing::Both);
                self.servers[owner].refuses();
            }
            #[cfg(feature = "rados")]
            Blow::OsdKilled => {
                let ceph = self.ceph.as_ref().expect("a pool with an OSD");
                ceph.kill_osd(0);
                std::thread::sleep(BETWEEN);
                ceph.start_osd(0).unwrap();
            }
            Blow::Killed | Blow::Ended => {
                let network = Arc::clone(&self.servers[owner].network);
                let address = self.servers[owner].address.clone();
                self.servers[owner].signal(if matches!(blow, Blow::Killed) { "KILL" } else { "TERM" });
                let status = self.servers[owner].process.wait().unwrap();
                assert_eq!(
                    status.success(),
                    matches!(blow, Blow::Ended),
                    "{}",
                    self.servers[owner].text()
                );
                self.owner_after(owner);
                self.servers[owner] = self.start(&owner.to_string(), &address, network);
            }
        }
    }
}

#[test]
fn a_pool_survives_blows_to_its_owner() {
    let Some(mut group) = Group::new(&PostgresOptions::default()) else {
        return;
    };
    if !has_fuse() {
        return;
    }
    let blows = [
        Blow::Killed,
        Blow::CutOff,
        Blow::Stopped,
        Blow::Asked,
        Blow::Deaf,
        Blow::Ended,
    ];
    let rounds = if soak() { 20 } else { 1 };
    let work = group.begin();
    for _ in 0..rounds {
        for blow in blows {
            std::thread::sleep(BETWEEN);
            group.strike(blow);
        }
    }
    std::thread::sleep(BETWEEN);
    let longest = group.end(work);
    assert!(
        longest < Duration::from_secs(LEASE_S) + CLIENTS_BEYOND,
        "clients waited {longest:?}"
    );
    for server in &group.servers {
        server.signal("TERM");
    }
    for server in &mut group.servers {
        assert!(server.process.wait().unwrap().success(), "{}", server.text());
    }
    assert!(ok(ferrite().args(["fsck", &group.pool()])).contains("sound"));
}

/// With the content in Ceph, a successor needs nothing of the machine of an owner that stands still: it puts that one
/// on Ceph's blocklist.
#[cfg(feature = "rados")]
#[test]
fn a_pool_in_ceph_survives_blows_to_its_owner() {
    if !has_fuse() {
        return;
    }
    let Some(ceph) = or_skip(Ceph::start(&CephOptions::default())) else {
        return;
    };
    let Some(mut group) = Group::with_content(&PostgresOptions::default(), Some(ceph)) else {
        return;
    };
    let work = group.begin();
    for blow in [Blow::Stopped, Blow::OsdKilled, Blow::Killed, Blow::Asked] {
        std::thread::sleep(BETWEEN);
        group.strike(blow);
    }
    std::thread::sleep(BETWEEN);
    group.end(work);
}

#[test]
fn an_owner_outlives_the_failover_of_its_database() {
    let options = PostgresOptions {
        has_standby: true,
        ..PostgresOptions::default()
    };
    let Some(mut group) = Group::new(&options) else {
        return;
    };
    if !has_fuse() {
        return;
    }
    let work = group.begin();
    std::thread::sleep(Duration::from_millis(500));
    group.database.primary().kill();
    group.database.standby().promote().unwrap();
    std::thread::sleep(BETWEEN);
    group.strike(Blow::Killed);
    std::thread::sleep(BETWEEN);
    group.end(work);
}

#[test]
fn a_request_to_hand_over_needs_an_owner_and_another_server() {
    let Some(mut group) = Group::new(&PostgresOptions::default()) else {
        return;
    };
    let pool = group.pool();
    let owner = group.owner();
    let own = group.servers[owner].address.clone();
    let refused = fails(ferrite().args(["failover", &pool, "--to", &own]), 1);
    assert!(refused.contains("has it already"), "{refused}");
    let other = group.servers[1 - owner].address.clone();
    let said = ok(ferrite().args(["failover", &pool, "--to", &other, "--json"]));
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(
        (&said["from_address"], &said["to_address"]),
        (&own.into(), &(&*other).into())
    );
    // A server that stands by says where the owner is.
    let alone = format!("tcp://{}:/", group.servers[owner].address);
    let refused = fails(ferrite().args(["ls", &alone]), 1);
    assert!(refused.contains(&other), "{refused}");
    // Nobody takes a pool that was asked for another server, and the owner has it again then.
    group.servers[owner].signal("TERM");
    assert!(group.servers[owner].process.wait().unwrap().success());
    let refused = fails(ferrite().args(["failover", &pool, "--timeout", "1"]), 1);
    assert!(refused.contains("is one standing by?"), "{refused}");
    assert_eq!(group.owner(), 1 - owner);
    group.servers[1 - owner].signal("TERM");
    assert!(group.servers[1 - owner].process.wait().unwrap().success());
    let refused = fails(ferrite().args(["failover", &pool]), 1);
    assert!(refused.contains("no server owns it"), "{refused}");
}
