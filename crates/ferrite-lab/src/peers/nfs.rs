//! The peer that makes the same promise: nfs-ganesha over ext4, with stable writes and directories written before a
//! reply (`chattr +D`), on a loop device in memory, like our pool.
//!
//! Contents: [`Nfs`], the server and its file system, which end when this value is dropped, and a process that is its
//! client through libnfs (`nfs_peer.c`, built when needed).

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use crate::error::LabError;

const SOURCE: &str = include_str!("nfs_peer.c");
const PACKAGES: &str = "nfs-ganesha nfs-ganesha-vfs libnfs-dev rpcbind gcc e2fsprogs";
const IMAGE_BYTES: u64 = 512 << 20;

/// A mount of a file system on a loop device.
pub(crate) struct Ext4(PathBuf);

impl Ext4 {
    /// Its root.
    #[cfg(feature = "nvme")]
    pub(crate) fn root(&self) -> &Path {
        &self.0
    }

    /// Makes one, with an image in the directory `base`.
    pub(crate) fn new(base: &Path) -> Result<Ext4, LabError> {
        let (image, dir) = (base.join("ext4"), base.join("export"));
        std::fs::File::create(&image)?.set_len(IMAGE_BYTES)?;
        std::fs::create_dir_all(&dir)?;
        run(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image))?;
        run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&dir))?;
        let ext4 = Ext4(dir);
        let inner = ext4.0.join("d");
        std::fs::create_dir(&inner)?;
        run(Command::new("chattr").arg("+D").arg(&inner))?;
        run(Command::new("chmod").arg("777").arg(&inner))?;
        Ok(ext4)
    }
}

impl Drop for Ext4 {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// A process that ends when this value is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The server, its file system, and its client, a separate process. All end when this value is dropped.
pub struct Nfs {
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    // In this order: a client, its server, the server's portmapper, its file system.
    _client: Running,
    _server: Running,
    _portmapper: Running,
    ext4: Ext4,
}

impl Nfs {
    /// Starts server and client, with their files in the empty directory `base`. The server runs on `core`, if given;
    /// the client stays where this process is. Blocks for a second or more.
    ///
    /// # Errors
    /// The peer is not installed, or this process may not mount; the message says what to install.
    pub fn start(base: &Path, core: Option<usize>) -> Result<Nfs, LabError> {
        let program = build(base)?;
        let ext4 = Ext4::new(base)?;
        let (config, state) = (base.join("ganesha.conf"), base.join("ganesha"));
        std::fs::create_dir_all(&state)?;
        let ports = (free_port()?, free_port()?);
        std::fs::write(&config, configuration(&ext4.0, &state, ports))?;
        // If one runs already, this one ends at once.
        let portmapper = Running(spawn(Command::new("rpcbind").args(["-f", "-w"]))?);
        std::thread::sleep(Duration::from_millis(200));
        let mut server = match core {
            Some(core) => {
                let mut pinned = Command::new("taskset");
                pinned.args(["-c", &core.to_string(), "ganesha.nfsd"]);
                pinned
            }
            None => Command::new("ganesha.nfsd"),
        };
        let server = server
            .args(["-F", "-f"])
            .arg(&config)
            .arg("-L")
            .arg(state.join("log"))
            .arg("-p")
            .arg(state.join("pid"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let server = Running(server.map_err(|error| missing(&error))?);
        let url = format!(
            "nfs://127.0.0.1/export?version=3&nfsport={}&mountport={}",
            ports.0, ports.1
        );
        let begun = Instant::now();
        loop {
            let mut client = spawn(
                Command::new(&program)
                    .arg(&url)
                    .stdin(Stdio::piped())
                    .stdout(Stdio::piped()),
            )?;
            let (input, output) = (client.stdin.take(), client.stdout.take());
            let client = Running(client);
            let (Some(input), Some(output)) = (input, output) else {
                return Err(failed("the client of NFS has no input or output"));
            };
            let (mut output, mut line) = (BufReader::new(output), String::new());
            output.read_line(&mut line)?;
            if line.trim() == "ready" {
                return Ok(Nfs {
                    input,
                    output,
                    _client: client,
                    _server: server,
                    _portmapper: portmapper,
                    ext4,
                });
            }
            if begun.elapsed() > Duration::from_secs(15) {
                let log = std::fs::read_to_string(state.join("log")).unwrap_or_default();
                let last = log.lines().next_back().unwrap_or("it wrote no log");
                return Err(failed(format!("nfs-ganesha does not answer: {last}")));
            }
            std::thread::sleep(Duration::from_millis(300));
        }
    }

    /// The exported directory, as a path on the server's own host.
    pub fn local_dir(&self) -> PathBuf {
        self.ext4.0.join("d")
    }

    /// Nanoseconds of an operation, over `count` of them, with `depth` under way. `nfs_peer.c` has their names.
    ///
    /// # Errors
    /// The peer failed, and has reported why on standard error.
    pub fn measure(&mut self, operation: &str, count: u64, depth: u64) -> Result<f64, LabError> {
        writeln!(self.input, "{operation} {count} {depth}")?;
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        let total: u64 = line
            .trim()
            .parse()
            .map_err(|_| failed(format!("the client of NFS ended at {operation}")))?;
        Ok(total as f64 / count as f64)
    }
}

/// A port that is free at this moment.
fn free_port() -> Result<u16, LabError> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

fn configuration(export: &Path, state: &Path, (nfs, mount): (u16, u16)) -> String {
    let (export, state) = (export.display(), state.display());
    format!(
        "NFS_CORE_PARAM {{ Protocols = 3; NFS_Port = {nfs}; MNT_Port = {mount}; Bind_addr = 127.0.0.1;\n\
         Enable_NLM = false; Enable_RQUOTA = false; mount_path_pseudo = true; }}\n\
         NFSv4 {{ Graceless = true; RecoveryRoot = {state}; }}\n\
         EXPORT {{ Export_Id = 1; Path = {export}; Pseudo = /export; Access_Type = RW; Squash = No_Root_Squash;\n\
         Protocols = 3; Transports = TCP; SecType = sys; FSAL {{ Name = VFS; }} }}\n"
    )
}

fn failed(what: impl Into<String>) -> LabError {
    LabError::Peer(what.into())
}

fn missing(error: &std::io::Error) -> LabError {
    failed(format!("{error}; the peer needs root, and apt-get install {PACKAGES}"))
}

fn spawn(command: &mut Command) -> Result<Child, LabError> {
    command.stderr(Stdio::null()).spawn().map_err(|error| missing(&error))
}

fn run(command: &mut Command) -> Result<(), LabError> {
    let status = command
        .stdout(Stdio::null())
        .status()
        .map_err(|error| missing(&error))?;
    match status.success() {
        true => Ok(()),
        false => {
            let program = command.get_program().to_string_lossy().into_owned();
            Err(failed(format!(
                "{program} failed; the peer needs root and loop devices"
            )))
        }
    }
}

fn build(base: &Path) -> Result<PathBuf, LabError> {
    let (source, program) = (base.join("nfs_peer.c"), base.join("nfs_peer"));
    std::fs::write(&source, SOURCE)?;
    let built = Command::new("gcc")
        .args(["-O2", "-o"])
        .arg(&program)
        .arg(&source)
        .arg("-lnfs")
        .stderr(Stdio::null())
        .status();
    match built {
        Ok(status) if status.success() => Ok(program),
        Ok(_) => Err(failed(format!("no client of NFS; apt-get install {PACKAGES}"))),
        Err(error) => Err(missing(&error)),
    }
}
