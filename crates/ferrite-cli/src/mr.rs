//! `ferrite mr`: files of a server as memory regions, for RDMA.
//!
//! Contents: the commands, and their reports. Bytes come from standard input and go to standard output, so with
//! `--json` the report of `read` is on standard error.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use clap::{Args, Subcommand};
use ferrite::MountOptions;
use ferrite::volume::{Address, Volume};
use ferrite_client::Client;
use ferrite_client::rdma::{
    Acknowledge, Extent, How, Outcome as NetOutcome, RemoteFile, RemoteOptions, ReplicatedError, ReplicatedFile,
};
use ferrite_client::volume::RemoteVolume;
use ferrite_vfs::Ino;
use ferrite_vfs::regions::Binding;
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::files::Operand;
use crate::{FAILED, Failure, Outcome, USAGE, about, complain, opening, output, replicas, say, say_json};

/// The port that clients of rdma_cm connect to: that of the server's ordinary protocol.
pub(crate) const SERVICE_PORT: u16 = ferrite_client::volume::PORT;

/// Bytes moved at a time.
const PIECE_BYTES: usize = 4 << 20;

/// Write and read files of a server by RDMA, without calls of its file system
#[derive(Debug, Args)]
#[command(after_help = "\
The server must offer RDMA (`ferrite serve POOL --rdma`), and the pool must be in memory: /dev/shm, or a DAX device. \
Elsewhere the same commands use ordinary requests, and `--json` reports the reason. No RDMA hardware is needed.

Examples:
  ferrite serve /dev/shm/pool --rdma --no-root-squash
  date | ferrite mr append tcp://127.0.0.1:7447:/log
  ferrite mr read tcp://127.0.0.1:7447:/log --json
  ferrite mr write tcp://127.0.0.1:7447:/data --offset 4096 < block
  ferrite mr list tcp://127.0.0.1:7447
  ferrite mr bind tcp://127.0.0.1:7447:/data   # for verbs programs
  date | ferrite mr append tcp://one:/log tcp://two:/log tcp://three:/log
  ferrite mr resync tcp://one:/log tcp://two:/log tcp://three:/log

Several files are replicas of one: always name all of them. docs/filemr.md describes their guarantees.

Acknowledged data is durable. docs/roce.md describes the protocol, and the guarantees of appends if a connection breaks.")]
pub(crate) struct Mr {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Bind a file, print a key for it, and keep the key valid until a signal arrives
    Bind(Bind),
    /// Show the bound files of an export, and the activity of its server's adapter
    List(List),
    /// Revoke all keys of a file, which is an ordinary file then
    Unbind(Unbind),
    /// Print a file, or a part of it
    Read(ReadFile),
    /// Write standard input to a file, which is created if it is missing
    Write(WriteFile),
    /// Append standard input to a file, which is created if it is missing
    Append(Append),
    /// Bring all replicas of a file up to date
    Resync(Resync),
}

#[derive(Debug, Args)]
struct Bind {
    /// The file: tcp://HOST:PORT/EXPORT:/PATH
    #[arg(value_name = "URL", value_parser = Operand::parser_in_volume())]
    file: Operand,
    /// Allow only reading
    #[arg(long)]
    read_only: bool,
    /// First move the file's pages into runs, so that the adapter needs fewer entries for them
    #[arg(long)]
    defragment: bool,
    /// Make each message one atomic step, like a local write; slower
    #[arg(long)]
    atomic: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct List {
    /// The export: tcp://HOST:PORT/EXPORT
    #[arg(value_name = "URL")]
    export: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct Unbind {
    /// The file: tcp://HOST:PORT/EXPORT:/PATH
    #[arg(value_name = "URL", value_parser = Operand::parser_in_volume())]
    file: Operand,
}

/// The arguments of all commands that move bytes.
#[derive(Debug, Args)]
struct Moving {
    /// The file: tcp://HOST:PORT/EXPORT:/PATH; several are replicas of one
    #[arg(value_name = "URL", required = true, value_parser = Operand::parser_in_volume())]
    files: Vec<Operand>,
    /// Print a report in JSON
    #[arg(long)]
    json: bool,
    /// Do not use verbs, for comparison
    #[arg(long)]
    no_verbs: bool,
}

#[derive(Debug, Args)]
struct ReadFile {
    #[command(flatten)]
    moving: Moving,
    /// Offset of the first byte
    #[arg(long, value_name = "N", default_value_t = 0)]
    offset: u64,
    /// Maximum number of bytes
    #[arg(long, value_name = "N")]
    length: Option<u64>,
}

#[derive(Debug, Args)]
struct WriteFile {
    #[command(flatten)]
    moving: Moving,
    /// Offset of the first byte
    #[arg(long, value_name = "N", default_value_t = 0)]
    offset: u64,
    /// Maximum number of bytes of standard input
    #[arg(long, value_name = "N")]
    length: Option<u64>,
    /// Make each message one atomic step, like a local write; slower
    #[arg(long)]
    atomic: bool,
    /// Require all replicas to store the data, not only more than half
    #[arg(long)]
    all: bool,
}

#[derive(Debug, Args)]
struct Resync {
    /// The replicas: tcp://HOST:PORT/EXPORT:/PATH
    #[arg(value_name = "URL", required = true, num_args = 2.., value_parser = Operand::parser_in_volume())]
    files: Vec<Operand>,
    /// Compare the whole content of all replicas, including those known to be up to date
    #[arg(long)]
    everything: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct Append {
    #[command(flatten)]
    moving: Moving,
    /// Maximum number of bytes of standard input
    #[arg(long, value_name = "N")]
    length: Option<u64>,
    /// First reserve space, then write there: exactly once even if the connection breaks, but readers may see zeros
    #[arg(long)]
    reserve: bool,
    /// Require all replicas to store the data, not only more than half
    #[arg(long)]
    all: bool,
}

/// The report about the transfer.
#[derive(Serialize)]
struct Report {
    how: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mtu: Option<usize>,
    bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    offset: Option<u64>,
    packets: u64,
    answers: u64,
    retries: u64,
    not_ready: u64,
    reconnects: u64,
}

/// The report about a transfer to or from replicas.
#[derive(Serialize)]
struct ReplicasReport {
    how: &'static str,
    bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    offset: Option<u64>,
    replicas: Vec<replicas::ReplicaReport>,
}

#[derive(Serialize)]
struct ResyncedReport {
    name: String,
    standing: String,
    compared: u64,
    written: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

/// A key, for programs of verbs.
#[derive(Serialize)]
struct KeyReport {
    key: u32,
    size: u64,
    append_at: u64,
    reserve_at: u64,
    udp: Vec<String>,
    service_port: u16,
    pass: String,
}

#[derive(Serialize)]
struct FileReport {
    inode: u64,
    size: u64,
    attached: bool,
    writable: bool,
    keys: u32,
    entries: u64,
    lookups: u64,
    hits: u64,
}

#[derive(Serialize)]
struct ListReport {
    udp: Vec<String>,
    queue_pairs: u64,
    received: u64,
    sent: u64,
    executed: u64,
    duplicates: u64,
    not_ready: u64,
    dropped: u64,
    files: Vec<FileReport>,
}

/// An open export of a server.
struct Opened {
    volume: Arc<dyn Volume>,
    client: Arc<Client>,
}

impl Opened {
    fn export(address: &Address) -> Result<Opened, Failure> {
        let text = "only files of a server have RDMA: tcp://HOST:PORT/EXPORT:/PATH; see `ferrite serve --rdma`";
        // Check before opening: a pool would be mounted.
        if !address.is_remote() {
            return Err(Failure::new(USAGE, text));
        }
        let volume = opening::volume(address, &MountOptions::default())?;
        let client = volume.as_any().downcast_ref::<RemoteVolume>().map(RemoteVolume::client);
        let client = client.ok_or_else(|| Failure::new(USAGE, text))?;
        Ok(Opened { volume, client })
    }

    /// The export of a file, and the path in it.
    fn of(file: &Operand) -> Result<(Opened, &Path), Failure> {
        match file {
            Operand::There { address, path, .. } => Ok((Opened::export(address)?, path)),
            _ => Err(Failure::new(
                USAGE,
                "give a file of a server: tcp://HOST:PORT/EXPORT:/PATH",
            )),
        }
    }

    /// The file's inode; `makes` creates the file if absent.
    fn find(&self, path: &Path, makes: bool) -> Result<Ino, Failure> {
        replicas::find(&self.client, path, makes).map_err(about(path))
    }

    fn close(self) -> Result<(), Failure> {
        Ok(self.volume.close()?)
    }
}

impl Moving {
    fn open(&self, options: RemoteOptions, makes: bool) -> Result<(Opened, RemoteFile), Failure> {
        let (opened, path) = Opened::of(&self.files[0])?;
        let ino = opened.find(path, makes)?;
        let options = options.only_requests(self.no_verbs);
        let file = RemoteFile::open(&opened.client, &replicas::context(), ino, options)
            .map_err(|error| Failure::new(FAILED, format!("{}: {error}", path.display())))?;
        Ok((opened, file))
    }

    fn open_replicas(&self, options: RemoteOptions, all: bool) -> Result<ReplicatedFile, Failure> {
        let acknowledge = match all {
            true => Acknowledge::All,
            false => Acknowledge::Quorum,
        };
        replicas::open(&self.files, &options.only_requests(self.no_verbs), acknowledge)
    }

    /// Moves standard input to the replicas with `put`, and reports the outcome.
    fn to_replicas(
        &self,
        file: ReplicatedFile,
        length: Option<u64>,
        put: impl Fn(&ReplicatedFile, &[u8], u64) -> std::result::Result<NetOutcome, ReplicatedError>,
    ) -> Outcome {
        let (mut tally, mut first) = (replicas::Tally::default(), None);
        let moved = each_piece(length, PIECE_BYTES, |piece, done| {
            let offset = tally.note(put(&file, piece, done))?;
            first = first.or(Some(offset));
            Ok(())
        });
        if self.json {
            say_json(&ReplicasReport {
                how: "replicas",
                bytes: *moved.as_ref().unwrap_or(&0),
                offset: first,
                replicas: tally.report(&file),
            })?;
        }
        tally.complain(&file);
        moved?;
        file.close()?;
        Ok(tally.code())
    }

    /// Ends, and reports how the bytes were moved.
    fn end(
        &self,
        opened: Opened,
        file: RemoteFile,
        (bytes, offset): (u64, Option<u64>),
        tell: impl FnOnce(&Report) -> Result<(), Failure>,
    ) -> Outcome {
        file.flush()?;
        let (how, traffic) = (file.how(), file.traffic());
        file.close()?;
        opened.close()?;
        if self.json {
            let (how, why, mtu) = match how {
                How::Verbs { mtu_bytes } => ("verbs", None, Some(mtu_bytes)),
                How::Requests { why } => ("rpc", Some(why), None),
            };
            tell(&Report {
                how,
                why,
                mtu,
                bytes,
                offset,
                packets: traffic.packets.sent,
                answers: traffic.packets.received,
                retries: traffic.packets.sent_again,
                not_ready: traffic.packets.not_ready,
                reconnects: traffic.reconnects,
            })?;
        }
        Ok(0)
    }
}

/// Passes pieces of standard input to `take`, up to `length` bytes; returns the number of bytes.
fn each_piece(
    length: Option<u64>,
    piece_bytes: usize,
    mut take: impl FnMut(&[u8], u64) -> Result<(), Failure>,
) -> Result<u64, Failure> {
    let mut input = std::io::stdin().lock().take(length.unwrap_or(u64::MAX));
    let (mut buffer, mut done) = (vec![0; piece_bytes], 0);
    loop {
        let mut filled = 0;
        while filled < buffer.len() {
            match input.read(&mut buffer[filled..])? {
                0 => break,
                count => filled += count,
            }
        }
        if filled == 0 {
            return Ok(done);
        }
        take(&buffer[..filled], done)?;
        done += filled as u64;
    }
}

impl Mr {
    pub(crate) fn run(self) -> Outcome {
        match self.command {
            Command::Bind(command) => command.run(),
            Command::List(command) => command.run(),
            Command::Unbind(command) => command.run(),
            Command::Read(command) => command.run(),
            Command::Write(command) => command.run(),
            Command::Append(command) => command.run(),
            Command::Resync(command) => command.run(),
        }
    }
}

impl ReadFile {
    fn run(self) -> Outcome {
        let options = RemoteOptions::default().writable(false);
        if self.moving.files.len() > 1 {
            let file = self.moving.open_replicas(options, false)?;
            let bytes = self.print(|offset, into| Ok(file.read(offset, into)?))?;
            if self.moving.json {
                complain(serde_json::to_string(&ReplicasReport {
                    how: "replicas",
                    bytes,
                    offset: Some(self.offset),
                    replicas: Vec::new(),
                })?);
            }
            return Ok(0);
        }
        let (opened, file) = self.moving.open(options, false)?;
        let done = self.print(|offset, into| Ok(file.read(offset, into)?))?;
        self.moving.end(opened, file, (done, Some(self.offset)), |report| {
            complain(serde_json::to_string(report)?);
            Ok(())
        })
    }
}

impl ReadFile {
    /// Prints the bytes that `read` returns; returns their number.
    fn print(&self, read: impl Fn(u64, &mut [u8]) -> Result<usize, Failure>) -> Result<u64, Failure> {
        let mut rest = self.length.unwrap_or(u64::MAX);
        let (mut buffer, mut done) = (vec![0; PIECE_BYTES], 0);
        while rest > 0 {
            let len = rest.min(PIECE_BYTES as u64) as usize;
            let count = read(self.offset + done, &mut buffer[..len])?;
            if count == 0 || !output::write(&buffer[..count]) {
                break;
            }
            done += count as u64;
            rest -= count as u64;
        }
        Ok(done)
    }
}

impl WriteFile {
    fn run(self) -> Outcome {
        let options = RemoteOptions::default().atomic(self.atomic);
        if self.moving.files.len() > 1 {
            let file = self.moving.open_replicas(options, self.all)?;
            let start = self.offset;
            return self
                .moving
                .to_replicas(file, self.length, |file, piece, done| file.write(start + done, piece));
        }
        let (opened, file) = self.moving.open(options, true)?;
        let written = each_piece(self.length, PIECE_BYTES, |piece, done| {
            Ok(file.write(self.offset + done, piece)?)
        })?;
        self.moving.end(opened, file, (written, Some(self.offset)), say_json)
    }
}

impl Append {
    fn run(self) -> Outcome {
        if self.moving.files.len() > 1 {
            let file = self.moving.open_replicas(RemoteOptions::default(), self.all)?;
            return self
                .moving
                .to_replicas(file, self.length, |file, piece, _| file.append(piece));
        }
        let (opened, file) = self.moving.open(RemoteOptions::default(), true)?;
        let mut offset = None;
        let appended = each_piece(self.length, PIECE_BYTES, |piece, _| {
            match self.reserve {
                true => offset = offset.or(Some(file.append_once(piece)?)),
                false => file.append(piece)?,
            }
            Ok(())
        })?;
        self.moving.end(opened, file, (appended, offset), say_json)
    }
}

impl Resync {
    fn run(self) -> Outcome {
        let file = replicas::open(&self.files, &RemoteOptions::default(), Acknowledge::Quorum)?;
        let extent = match self.everything {
            true => Extent::Everything,
            false => Extent::Known,
        };
        let done = file.resync(extent)?;
        let states = file.status();
        let told = states.into_iter().zip(done).map(|(replica, done)| ResyncedReport {
            name: replica.name,
            standing: replica.standing.to_string(),
            compared: done.compared_bytes,
            written: done.written_bytes,
            why: done.why,
        });
        let told: Vec<ResyncedReport> = told.collect();
        let code = replicas::close(Arc::new(file))?;
        if self.json {
            say_json(&told)?;
            return Ok(code);
        }
        for replica in &told {
            say(format_args!(
                "{:<12} {}: {} bytes compared, {} written{}{}",
                replica.standing,
                replica.name,
                replica.compared,
                replica.written,
                if replica.why.is_some() { "; " } else { "" },
                replica.why.as_deref().unwrap_or_default()
            ));
        }
        Ok(code)
    }
}

impl Bind {
    fn run(self) -> Outcome {
        let (opened, path) = Opened::of(&self.file)?;
        let ino = opened.find(path, false)?;
        let binding = Binding {
            writable: !self.read_only,
            defragment: self.defragment,
            whole: false,
        };
        // Before the key exists, so that a signal from now on makes the command give it back.
        let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT, SIGHUP])?;
        let granted = opened
            .client
            .bind(&replicas::context(), ino, binding, self.atomic)
            .map_err(|error| Failure::new(FAILED, format!("{}: {error}", path.display())))?;
        let places = opened.client.rdma_places()?;
        let report = KeyReport {
            key: granted.key,
            size: granted.size,
            append_at: granted.append_at,
            reserve_at: granted.reserve_at,
            udp: places.iter().map(ToString::to_string).collect(),
            service_port: SERVICE_PORT,
            pass: granted.pass.iter().map(|byte| format!("{byte:02x}")).collect(),
        };
        if self.json {
            say_json(&report)?;
        } else {
            say(format_args!("key         {:#010x}", report.key));
            say(format_args!("size        {}", report.size));
            say(format_args!("UDP         {}", report.udp.join(", ")));
            say(format_args!(
                "append at   {:#x}, reserve at {:#x}",
                report.append_at, report.reserve_at
            ));
            say(format_args!(
                "rdma_cm     port {}, private data {}",
                report.service_port, report.pass
            ));
            say("held until this command ends (Ctrl-C)");
        }
        signals.forever().next();
        opened.client.release_key(granted.key)?;
        opened.close()?;
        Ok(0)
    }
}

impl List {
    fn run(self) -> Outcome {
        let address = Address::parse(&self.export).map_err(|error| Failure::new(USAGE, error.to_string()))?;
        let opened = Opened::export(&address)?;
        let told = opened.client.rdma_activity()?;
        opened.close()?;
        let counters = told.counters;
        let report = ListReport {
            udp: told.places.iter().map(|place| place.0.to_string()).collect(),
            queue_pairs: counters.queue_pairs,
            received: counters.received,
            sent: counters.sent,
            executed: counters.executed,
            duplicates: counters.duplicates,
            not_ready: counters.not_ready,
            dropped: counters.dropped,
            files: told
                .files
                .iter()
                .map(|file| FileReport {
                    inode: file.ino,
                    size: file.size,
                    attached: file.is_attached,
                    writable: file.writable,
                    keys: file.keys,
                    entries: file.entries,
                    lookups: file.lookups,
                    hits: file.hits,
                })
                .collect(),
        };
        if self.json {
            say_json(&report)?;
            return Ok(0);
        }
        if report.udp.is_empty() {
            say("the server offers no RDMA; see `ferrite serve --rdma`");
            return Ok(0);
        }
        say(format_args!(
            "UDP {}: {} queue pairs, {} packets in, {} out, {} carried out, {} put off, {} dropped",
            report.udp.join(", "),
            report.queue_pairs,
            report.received,
            report.sent,
            report.executed,
            report.not_ready,
            report.dropped
        ));
        say("     inode           size  keys  entries     lookups");
        for file in &report.files {
            say(format_args!(
                "{:>10} {:>14} {:>5} {:>8} {:>11}{}{}",
                file.inode,
                file.size,
                file.keys,
                file.entries,
                file.lookups,
                if file.writable { "  writable" } else { "" },
                if file.attached { "" } else { "  bound before a restart" },
            ));
        }
        Ok(0)
    }
}

impl Unbind {
    fn run(self) -> Outcome {
        let (opened, path) = Opened::of(&self.file)?;
        let ino = opened.find(path, false)?;
        opened
            .client
            .unbind(&replicas::context(), ino)
            .map_err(|error| Failure::new(FAILED, format!("{}: {error}", path.display())))?;
        opened.close()?;
        Ok(0)
    }
}
