//! The plan of a server: where it listens, and what it exports to which clients.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ferrite::MountOptions;
use ferrite::volume::Address;
use ferrite_client::secure::{Key, is_loopback};
use ferrite_server::{ExportOptions, FabricOptions, ServerOptions};

use crate::{FAILED, Failure, USAGE};

/// The default address.
pub(super) const LISTEN: &str = "tcp://127.0.0.1:7447";
/// The default number of threads.
pub(super) const THREADS: u16 = 1;
/// The default lease.
pub(super) const LEASE_SECONDS: u64 = 30;
/// Default of the microseconds for which a thread looks for work.
pub(super) const BUSY_POLL_US: u64 = 200;
/// The default address of RDMA.
pub(super) const RDMA: &str = "127.0.0.1:4791";
/// RoCE's port.
const RDMA_PORT: u16 = 4791;
/// How long to wait for a port.
pub(super) const PORT_FREED_WITHIN: Duration = Duration::from_secs(5);

/// See the module's head.
pub(super) struct Plan {
    pub(super) listen: Vec<Listen>,
    pub(super) options: ServerOptions,
    /// Where metrics are offered.
    pub(super) metrics: Option<String>,
    /// Where the console is offered, and the file with its token.
    pub(super) console: Option<String>,
    pub(super) console_token: Option<PathBuf>,
    /// Where clients reach this server, for pools that servers hand to each other.
    pub(super) advertise: Option<String>,
    pub(super) pools: Vec<Pool>,
    /// Where RDMA is offered.
    pub(super) rdma: Vec<SocketAddr>,
}

/// A place to listen: as the user wrote it, and the addresses that it stands for.
pub(super) struct Listen {
    text: String,
    addresses: Vec<SocketAddr>,
    /// Clients may continue over a fabric.
    pub(super) fabric: Option<FabricOptions>,
}

/// A pool, and its exports.
pub(super) struct Pool {
    pub(super) address: Address,
    pub(super) options: MountOptions,
    pub(super) exports: Vec<Export>,
    /// The line of the file that says so.
    pub(super) line: Option<usize>,
}

/// An export.
pub(super) struct Export {
    pub(super) options: ExportOptions,
    /// The line of the file that says so.
    pub(super) line: Option<usize>,
}

/// A problem of a plan: the exit code, the line of its file, and the text.
#[derive(Debug)]
pub(super) struct Problem {
    pub(super) code: u8,
    pub(super) line: Option<usize>,
    pub(super) text: String,
}

impl Problem {
    pub(super) fn new(code: u8, line: Option<usize>, text: impl Into<String>) -> Problem {
        Problem {
            code,
            line,
            text: text.into(),
        }
    }
}

/// The text after the name of the file.
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, ":{line}: {}", self.text),
            None => write!(f, ": {}", self.text),
        }
    }
}

/// The key in a file.
pub(super) fn key(file: &Path) -> Result<Key, Problem> {
    Key::read(file).map_err(|error| Problem::new(FAILED, None, error.to_string()))
}

impl Plan {
    /// Exports that clients on other hosts would look for and not find, because they have no key.
    pub(super) fn unreachable(&self) -> Vec<Problem> {
        let far = |listen: &&Listen| listen.addresses.iter().any(|address| !is_loopback(address.ip()));
        let Some(far) = self.listen.iter().find(far) else {
            return Vec::new();
        };
        let exports = self.pools.iter().flat_map(|pool| &pool.exports);
        let open = exports.filter(|export| export.options.keys.is_empty());
        let problem = |export: &Export| {
            let (listen, name) = (&far.text, &export.options.name);
            let shown = match name.is_empty() {
                true => "the export".to_owned(),
                false => format!("the export `{name}`"),
            };
            let text = format!("{listen}: can be reached from other machines, but {shown} has no key");
            Problem::new(USAGE, export.line, text)
        };
        open.map(problem).collect()
    }
}

/// Reads an address of RDMA: `ADDRESS` or `ADDRESS:PORT`.
pub(super) fn rdma_address(text: &str) -> Result<SocketAddr, String> {
    if !cfg!(feature = "rdma") {
        return Err("this build has no RDMA; build it with the cargo feature `rdma`".into());
    }
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    match (text.parse::<SocketAddr>(), bare.parse::<IpAddr>()) {
        (Ok(address), _) => Ok(address),
        (_, Ok(ip)) => Ok(SocketAddr::new(ip, RDMA_PORT)),
        _ => Err("give an IP address, or one with a port: 10.0.0.1 or [fd00::1]:4791".into()),
    }
}

/// Refuses an address that others could misuse, unless the user allows it.
pub(super) fn check_rdma(address: SocketAddr, is_allowed: bool) -> Result<(), String> {
    match is_allowed || is_loopback(address.ip()) {
        true => Ok(()),
        false => Err(
            "can be reached from other machines, and RDMA is neither encrypted nor authenticated: whoever can send \
             packets in a client's name can write its files"
                .into(),
        ),
    }
}

/// How clients may continue over a fabric, from the text after the question mark.
fn fabric(option: &str) -> Result<FabricOptions, String> {
    if !cfg!(feature = "fabric") {
        return Err("this build has no fabric://; build it with the cargo feature `fabric`".into());
    }
    let mut options = FabricOptions::default();
    match option.strip_prefix("provider=") {
        Some("auto") => {}
        Some(word @ ("shm" | "verbs" | "tcp")) => options.providers = vec![word.to_owned()],
        _ => return Err(format!("`{option}`: give provider=shm, verbs, tcp or auto")),
    }
    Ok(options)
}

impl Listen {
    /// Reads an address of the form `tcp://HOST:PORT`, or `fabric://HOST:PORT?provider=NAME`; port 0 means any free
    /// port. Blocks while it looks up a name.
    pub(super) fn parse(text: &str) -> Result<Listen, String> {
        let (place, fabric) = match (text.strip_prefix("tcp://"), text.strip_prefix("fabric://")) {
            (Some(place), _) => (place, None),
            (None, Some(place)) => {
                let (place, option) = place.split_once('?').unwrap_or((place, "provider=auto"));
                (place, Some(fabric(option)?))
            }
            _ => return Err("an address to listen on begins with tcp:// or fabric://".into()),
        };
        let addresses = place
            .to_socket_addrs()
            .map_err(|error| format!("{error}; an address is tcp://HOST:PORT"))?
            .collect();
        Ok(Listen {
            text: text.to_owned(),
            addresses,
            fabric,
        })
    }

    /// Listens. Blocks for a while if the port is in use.
    pub(super) fn bind(&self) -> Result<TcpListener, Failure> {
        let start = Instant::now();
        loop {
            match TcpListener::bind(&self.addresses[..]) {
                Ok(listener) => return Ok(listener),
                // A server that was killed leaves its port in use for a moment.
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && start.elapsed() < PORT_FREED_WITHIN => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                Err(error) => {
                    let remedy = match error.kind() {
                        io::ErrorKind::AddrInUse => "; is another server running?",
                        _ => "",
                    };
                    let text = &self.text;
                    return Err(Failure::new(FAILED, format!("{text}: cannot listen: {error}{remedy}")));
                }
            }
        }
    }
}
