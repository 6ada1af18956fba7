//! `ferrite demo`: the main use on real files, in two minutes, leaving a mount to try out.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ferrite::volume::Address;

use super::{FAILED, Failure, Outcome, info, mounts, say, size};

/// The file by which a demo knows its directory.
const MARK: &str = ".ferrite-demo";
const POOL_BYTES: u64 = 1 << 30;
const TURNS: u32 = 2000;
/// Transactions over the network.
const TRANSACTIONS: usize = 600;
/// How long the server is down.
const AWAY: Duration = Duration::from_millis(500);

/// See Ferrite at work: a pool, a mount, real programs
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Makes a pool of 1 GiB in DRAM, mounts it, puts a source tree and a database on it, and compares latencies with tmpfs; \
then serves it on a loopback address, and kills the server while a program writes a database through a mount of that \
export. An earlier demo is replaced only with --replace.")]
pub(crate) struct Demo {
    /// Directory for the pool and the mount point
    #[arg(long, default_value = "/dev/shm/ferrite-demo")]
    dir: PathBuf,
    /// Source tree to copy to the mount [default: the current directory]
    #[arg(long)]
    tree: Option<PathBuf>,
    /// Unmount and remove an earlier demo first, with all that is in its pool
    #[arg(long, conflicts_with = "stop")]
    replace: bool,
    /// Only unmount and remove the files of an earlier demo
    #[arg(long)]
    stop: bool,
}

impl Demo {
    pub(crate) fn run(self) -> Outcome {
        let (pool, mount) = (self.dir.join("pool"), self.dir.join("mnt"));
        let us = std::env::current_exe()?;
        if self.stop {
            self.remove(&us)?;
            say(format!("{}: unmounted and removed", self.dir.display()));
            return Ok(0);
        }
        if self.is_demo() && !self.replace {
            return Err(Failure::new(
                FAILED,
                format!(
                    "{dir}: an earlier demo is there; `{us} demo --replace --dir {dir}` removes it and what is in it \
                     first, `{}` only removes it",
                    self.how_to_stop(&us),
                    us = us.display(),
                    dir = self.dir.display()
                ),
            ));
        }
        // Check what exists before creating anything.
        let tree = match &self.tree {
            Some(tree) => fs::canonicalize(tree).map_err(super::about(tree))?,
            None => std::env::current_dir()?,
        };
        if self.is_demo() {
            self.remove(&us)?;
        }
        self.begin()?;
        self.show(&us, &tree, &pool, &mount).map_err(|mut failure| {
            let dir = self.dir.display();
            failure.message += &format!(
                "\nThe pool and its mount are kept in {dir} for inspection; `{}` removes them.",
                self.how_to_stop(&us)
            );
            failure
        })
    }

    /// Whether a demo made the directory.
    fn is_demo(&self) -> bool {
        self.dir.join(MARK).is_file()
    }

    /// Makes the directory. One that a demo did not make has to be empty: the demo removes the whole when it ends.
    fn begin(&self) -> Result<(), Failure> {
        fs::create_dir_all(&self.dir).map_err(super::about(&self.dir))?;
        if fs::read_dir(&self.dir)
            .map_err(super::about(&self.dir))?
            .next()
            .is_some()
        {
            return Err(self.not_ours());
        }
        let mark = self.dir.join(MARK);
        fs::write(&mark, "`ferrite demo --stop` removes this directory.\n").map_err(super::about(&mark))
    }

    fn not_ours(&self) -> Failure {
        let dir = self.dir.display();
        let text = format!("{dir}: it was not made by a demo, so its files stay; name a directory of the demo's own");
        Failure::new(FAILED, text)
    }

    /// Unmounts and removes an earlier demo.
    fn remove(&self, us: &Path) -> Result<(), Failure> {
        fs::metadata(&self.dir).map_err(super::about(&self.dir))?;
        if !self.is_demo() {
            return Err(self.not_ours());
        }
        for mount in ["mnt", REMOTE].map(|name| self.dir.join(name)) {
            if mounts::find(&mount).is_some() {
                run(Command::new(us).arg("umount").arg(mount))?;
            }
        }
        fs::remove_dir_all(&self.dir).map_err(super::about(&self.dir))
    }

    /// The demonstration. The mount stays, even if something fails.
    fn show(&self, us: &Path, tree: &Path, pool: &Path, mount: &Path) -> Outcome {
        fs::create_dir_all(mount)?;
        say(format!(
            "1. A pool of {} in DRAM, mounted on {}",
            size::human(POOL_BYTES),
            mount.display()
        ));
        run(Command::new(us)
            .arg("mkfs")
            .arg(pool)
            .args(["--size", &POOL_BYTES.to_string()]))?;
        run(Command::new(us).arg("mount").arg(pool).arg(mount))?;

        say("2. A source tree on it");
        let start = Instant::now();
        let copy = mount.join("tree");
        run(Command::new("cp")
            .args(["-a", "--no-target-directory"])
            .arg(tree)
            .arg(&copy))?;
        run(Command::new("diff")
            .arg("-r")
            .arg("--no-dereference")
            .arg(tree)
            .arg(&copy))?;
        let files = String::from_utf8(output(Command::new("find").arg(&copy).args(["-type", "f"]))?)?
            .lines()
            .count();
        say(format!(
            "   {files} files copied and compared in {:.1} s",
            start.elapsed().as_secs_f64()
        ));

        say("3. A database on it");
        database(mount)?;

        say("4. The daemon is killed during writes, and the pool mounted again");
        kill_and_mount(us, pool, mount)?;

        say(
            "5. Latencies on the mount and on tmpfs, microseconds (medians; a mount costs two context switches to \
            its daemon)",
        );
        latencies(mount, &self.dir)?;

        say("6. The pool over the network: the server is killed while a database is written, and started again");
        network(us, pool, mount, &self.dir.join(REMOTE))?;

        say("7. What `ferrite info` shows");
        for line in String::from_utf8(output(Command::new(us).arg("info").arg(mount))?)?.lines() {
            say(format!("   {line}"));
        }
        say(format!("\nThe mount is kept: look around in {}.", mount.display()));
        say(format!("  {} df                          space", us.display()));
        say(format!("  {} bench {}   how fast it is", us.display(), mount.display()));
        say(format!("  {}   unmount and remove it all", self.how_to_stop(us)));
        let _ = info::gather(&Address::of_pool(mount))?;
        Ok(0)
    }

    fn how_to_stop(&self, us: &Path) -> String {
        format!("{} demo --stop --dir {}", us.display(), self.dir.display())
    }
}

fn output(command: &mut Command) -> Result<Vec<u8>, Failure> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .output()
        .map_err(|error| Failure::new(FAILED, format!("{name}: {error}")))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Failure::new(
        FAILED,
        format!("{name} failed ({}): {}", output.status, said.trim()),
    ))
}

fn run(command: &mut Command) -> Result<(), Failure> {
    output(command).map(drop)
}

/// Where the demo mounts what the server exports.
const REMOTE: &str = "remote";

/// The text written by RDMA.
const REMARK: &[u8] = b"The server's file system was not called for this.\n";

/// A server of the demo; killed when dropped.
struct Server {
    process: Child,
    /// `tcp://HOST:PORT/`.
    address: String,
}

impl Server {
    fn start(us: &Path, pool: &Path, listen: &str) -> Result<Server, Failure> {
        let process = Command::new(us)
            .arg("serve")
            .arg(pool)
            .args(["--listen", listen, "--no-root-squash"])
            .args(cfg!(feature = "rdma").then_some("--rdma=127.0.0.1:0"))
            .stdout(Stdio::piped())
            .spawn()?;
        let mut server = Server {
            process,
            address: String::new(),
        };
        let mut line = String::new();
        if let Some(said) = server.process.stdout.take() {
            BufReader::new(said).read_line(&mut line)?;
        }
        server.address = line.rsplit(' ').next().unwrap_or_default().trim().to_owned();
        match server.address.is_empty() {
            true => Err(Failure::new(FAILED, "the server did not start")),
            false => Ok(server),
        }
    }

    /// Where it listens.
    fn listen(&self) -> &str {
        self.address.trim_end_matches('/')
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Without warning, like every kill in the demo.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Appends to a file by RDMA, and reads it through the mount.
fn by_rdma(us: &Path, server: &Server, remote: &Path) -> Result<(), Failure> {
    let mut append = Command::new(us)
        .args(["mr", "append", "--json", &format!("{}:/rdma.txt", server.listen())])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    if let Some(mut input) = append.stdin.take() {
        input.write_all(REMARK)?;
    }
    let ended = append.wait_with_output()?;
    let found = fs::read(remote.join("rdma.txt"))?;
    if !ended.status.success() || found != REMARK {
        return Err(Failure::new(FAILED, "what was appended by RDMA is not in the file"));
    }
    say(format!(
        "   a file was written by RDMA in software, and read through the mount: {}",
        String::from_utf8_lossy(&ended.stdout).trim()
    ));
    Ok(())
}

/// Writes a database through a mount of a server that is killed meanwhile. The pool is mounted on `mount` before and
/// after.
fn network(us: &Path, pool: &Path, mount: &Path, remote: &Path) -> Result<(), Failure> {
    fs::create_dir_all(remote)?;
    run(Command::new(us).arg("umount").arg(mount))?;
    let mut server = Server::start(us, pool, "tcp://127.0.0.1:0")?;
    run(Command::new(us).arg("mount").arg(&server.address).arg(remote))?;
    say(format!(
        "   served as {}, mounted on {}",
        server.address,
        remote.display()
    ));
    let start = Instant::now();
    let mut sqlite = Command::new("sqlite3")
        .arg(remote.join("network.db"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| Failure::new(FAILED, format!("sqlite3: {error}")))?;
    let (Some(mut input), Some(said)) = (sqlite.stdin.take(), sqlite.stdout.take()) else {
        return Err(Failure::new(FAILED, "sqlite3 has no input or output"));
    };
    let mut script = String::from("pragma synchronous=full; drop table if exists t; create table t(n, v);\n");
    for n in 0..TRANSACTIONS {
        script += &format!("insert into t values({n}, hex(randomblob(200))); select 'row', {n};\n");
    }
    script += "pragma integrity_check; select 'rows', count(*), max(n) from t;\n";
    // It reads while it works, so this thread must not wait for it.
    let feeder = std::thread::spawn(move || input.write_all(script.as_bytes()));
    let mut last = String::new();
    let mut is_sound = false;
    for line in BufReader::new(said).lines() {
        last = line?;
        is_sound |= last == "ok";
        if last == format!("row|{}", TRANSACTIONS / 2) {
            let listen = server.listen().to_owned();
            drop(server);
            std::thread::sleep(AWAY);
            server = Server::start(us, pool, &listen)?;
            say(format!(
                "   killed after {} of {TRANSACTIONS} transactions, started again {:.1} s later",
                TRANSACTIONS / 2,
                AWAY.as_secs_f64()
            ));
        }
    }
    let status = sqlite.wait()?;
    let fed = feeder.join().unwrap_or_else(|_| Err(std::io::ErrorKind::Other.into()));
    let expected = format!("rows|{TRANSACTIONS}|{}", TRANSACTIONS - 1);
    if !status.success() || fed.is_err() || !is_sound || last != expected {
        return Err(Failure::new(
            FAILED,
            format!("the database is not whole: sqlite3 ended with {status} and said {last}"),
        ));
    }
    if cfg!(feature = "rdma") {
        by_rdma(us, &server, remote)?;
    }
    run(Command::new(us).arg("umount").arg(remote))?;
    drop(server);
    run(Command::new(us).arg("mount").arg(pool).arg(mount))?;
    let check = "pragma integrity_check; select count(*) from t;";
    let found = output(Command::new("sqlite3").arg(mount.join("network.db")).arg(check))?;
    if found != format!("ok\n{TRANSACTIONS}\n").as_bytes() {
        return Err(Failure::new(FAILED, "the database is not whole in the pool"));
    }
    say(format!(
        "   SQLite met no error, and all {TRANSACTIONS} rows are there, checked: {:.1} s",
        start.elapsed().as_secs_f64()
    ));
    Ok(())
}

fn database(mount: &Path) -> Result<(), Failure> {
    let db = mount.join("demo.db");
    for suffix in ["", "-wal", "-shm"] {
        let _ = fs::remove_file(format!("{}{suffix}", db.display()));
    }
    let script = "
        pragma journal_mode=wal; pragma synchronous=full;
        create table t(n integer primary key, v text);
        with recursive c(x) as (select 1 union all select x + 1 from c where x < 100000)
        insert into t select x, hex(randomblob(20)) from c;
        update t set v = v || '.' where n % 2 = 0;
        pragma integrity_check; select count(*) from t;";
    let start = Instant::now();
    let said = String::from_utf8(output(Command::new("sqlite3").arg(&db).arg(script))?)?;
    if !said.contains("ok\n100000") {
        return Err(Failure::new(FAILED, format!("sqlite3 said: {said}")));
    }
    let seconds = start.elapsed().as_secs_f64();
    say(format!(
        "   SQLite with a write-ahead log: 100000 rows written, half of them updated, checked: {seconds:.1} s"
    ));
    Ok(())
}

fn kill_and_mount(us: &Path, pool: &Path, mount: &Path) -> Result<(), Failure> {
    let mut file = File::create(mount.join("acknowledged"))?;
    let lines = 1000;
    for n in 0..lines {
        writeln!(file, "line {n}")?;
    }
    drop(file);
    run(Command::new("pkill").args([
        "-9",
        "-f",
        &format!("mount {} {} --daemon", pool.display(), mount.display()),
    ]))?;
    run(Command::new("umount").arg("-l").arg(mount))?;
    let start = Instant::now();
    run(Command::new(us).arg("mount").arg(pool).arg(mount))?;
    let recovered = start.elapsed().as_secs_f64();
    let found = fs::read_to_string(mount.join("acknowledged"))?.lines().count();
    if found != lines {
        return Err(Failure::new(
            FAILED,
            format!("only {found} of {lines} lines are there after the kill"),
        ));
    }
    say(format!(
        "   all {lines} completed writes are there; mounted again after {recovered:.2} s"
    ));
    Ok(())
}

/// Median of `TURNS` runs, in microseconds.
fn latency(mut work: impl FnMut(u32) -> std::io::Result<()>) -> std::io::Result<f64> {
    let mut times = Vec::with_capacity(TURNS as usize);
    for turn in 0..TURNS {
        let start = Instant::now();
        work(turn)?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    Ok(ferrite_measure::median(&times))
}

fn latencies(mount: &Path, dir: &Path) -> Result<(), Failure> {
    let peer = dir.join("tmpfs");
    fs::create_dir_all(&peer)?;
    let block = [7; 4096];
    say(format!("   {:<28}{:>10}{:>10}", "", "ferrite", "tmpfs"));
    let row = |name: &str, f: &dyn Fn(&Path) -> std::io::Result<f64>| -> Result<(), Failure> {
        say(format!("   {name:<28}{:>10.1}{:>10.1}", f(mount)?, f(&peer)?));
        Ok(())
    };
    let open = |dir: &Path| {
        OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(dir.join("latency"))
    };
    row("write 4 KiB", &|dir| {
        let file = open(dir)?;
        latency(|turn| file.write_all_at(&block, u64::from(turn % 256) * 4096))
    })?;
    row("write 4 KiB + fsync", &|dir| {
        let file = open(dir)?;
        latency(|turn| {
            file.write_all_at(&block, u64::from(turn % 256) * 4096)
                .and_then(|()| file.sync_data())
        })
    })?;
    row("read 4 KiB (cached)", &|dir| {
        let file = open(dir)?;
        let mut buffer = [0; 4096];
        latency(|turn| file.read_exact_at(&mut buffer, u64::from(turn % 256) * 4096))
    })?;
    row("create and remove a file", &|dir| {
        latency(|turn| {
            let path = dir.join(format!("new{turn}"));
            File::create(&path)?;
            fs::remove_file(&path)
        })
    })?;
    row("stat", &|dir| latency(|_| fs::metadata(dir.join("latency")).map(drop)))?;
    fs::remove_dir_all(&peer)?;
    Ok(())
}
