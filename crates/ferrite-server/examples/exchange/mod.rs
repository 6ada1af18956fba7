//! The server's side of the exchange of perftest's programs over TCP, for the examples that stand in for one.
//!
//! Both ends send in turn, the client first: their version (16 bytes), the size of a page and of a cache line (4 bytes
//! each), their path MTU (2 bytes), and then, for each queue pair and between the parts of a test, a [`Line`]. After a
//! test of bandwidth they compare results, five numbers of 8 bytes. At the end some send "done". This holds since
//! version 5.70 of the exchange; unknown messages end it.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv6Addr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

/// Any error of an example.
pub(crate) type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// A line, with the zero behind it.
const LINE_BYTES: usize = 108;
/// READs in flight that Ferrite's adapters remember.
const READS: u32 = 16;
/// The longest silence between two lines before a test.
const SILENCE: Duration = Duration::from_secs(1);
/// Numbers compared after a test of bandwidth.
const RESULTS: usize = 5;

/// A source of queue pairs and a key for a program.
pub(crate) trait Broker {
    /// The path MTU for a program that wants this one: the code, 1 to 5.
    ///
    /// # Errors
    /// If there is no path.
    fn mtu(&mut self, wanted: u8) -> Result<u8>;

    /// Connects a queue pair to the program's, and provides a key.
    ///
    /// # Errors
    /// If it has no queue pair or key left.
    fn connect(&mut self, theirs: &Line, mtu: u8) -> Result<Line>;

    /// All queue pairs are connected, and the program has been silent for a while: its test has begun, or it is slow
    /// and sends more, which waits until this returns.
    fn begin(&mut self, _pairs: &[(Line, Line)]) {}

    /// The program has ended.
    fn end(&mut self, pairs: &[(Line, Line)]);
}

/// Listens at a TCP port of all addresses.
///
/// # Errors
/// If it is unavailable.
pub(crate) fn port(number: &str) -> Result<TcpListener> {
    Ok(TcpListener::bind((Ipv6Addr::UNSPECIFIED, number.parse()?))?)
}

/// Serves programs that connect to a TCP port, each by a broker of its own.
///
/// # Errors
/// If the port is gone.
pub(crate) fn listen<L: Broker + Send + 'static>(listener: &TcpListener, mut broker: impl FnMut() -> L) -> Result<()> {
    println!("listening at {}", listener.local_addr()?);
    for stream in listener.incoming() {
        let (mut broker, stream) = (broker(), stream?);
        thread::spawn(move || {
            let mut pairs = Vec::new();
            match serve(stream, &mut broker, &mut pairs) {
                Ok(()) => println!("done: {} queue pairs", pairs.len()),
                Err(error) => eprintln!("the exchange ended: {error}"),
            }
            broker.end(&pairs);
        });
    }
    Ok(())
}

fn serve(mut stream: TcpStream, broker: &mut impl Broker, pairs: &mut Vec<(Line, Line)>) -> Result<()> {
    stream.set_nodelay(true)?;
    // The program's version, page size and line size are echoed.
    for len in [16, 4, 4] {
        let mut same = vec![0; len];
        stream.read_exact(&mut same)?;
        stream.write_all(&same)?;
    }
    let mut digits = [0; 2];
    stream.read_exact(&mut digits)?;
    let mtu = broker.mtu(digits[0].wrapping_sub(b'0'))?;
    stream.write_all(&[b'0' + mtu, 0])?;
    let mut has_begun = false;
    loop {
        // The number of lines before a test depends on the program, so silence marks its beginning.
        if !has_begun && !pairs.is_empty() && is_silent(&stream)? {
            has_begun = true;
            broker.begin(pairs);
        }
        let mut head = [0; 8];
        match stream.read(&mut head[..1])? {
            0 => return Ok(()),
            // "done": some send it before they leave.
            _ if head[0] == b'd' => return Ok(()),
            _ => stream.read_exact(&mut head[1..])?,
        }
        if !is_line(&head) {
            compare_results(&mut stream, head)?;
            continue;
        }
        let mut line = [0; LINE_BYTES];
        line[..8].copy_from_slice(&head);
        stream.read_exact(&mut line[8..])?;
        let theirs = Line::parse(&line).ok_or("a line of the exchange makes no sense")?;
        let known = pairs.iter().find(|(known, _)| known.qpn == theirs.qpn);
        let ours = match known {
            Some((_, ours)) => *ours,
            None => {
                let ours = broker.connect(&theirs, mtu)?;
                pairs.push((theirs, ours));
                ours
            }
        };
        stream.write_all(&ours.emit())?;
    }
}

/// Whether the program is silent for a while.
fn is_silent(stream: &TcpStream) -> Result<bool> {
    stream.set_read_timeout(Some(SILENCE))?;
    let peeked = stream.peek(&mut [0]);
    stream.set_read_timeout(None)?;
    match peeked {
        Ok(_) => Ok(false),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// Whether a line begins like this, and not a number.
fn is_line(head: &[u8; 8]) -> bool {
    head[..4].iter().all(u8::is_ascii_hexdigit) && head[4] == b':'
}

/// Compares the results of a test of bandwidth by echoing the client's.
fn compare_results(stream: &mut TcpStream, first: [u8; 8]) -> Result<()> {
    let mut number = first;
    for index in 0..RESULTS {
        if index > 0 {
            stream.read_exact(&mut number)?;
        }
        stream.write_all(&number)?;
    }
    Ok(())
}

/// An end of a queue pair, as it is exchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Line {
    /// Its number.
    pub(crate) qpn: u32,
    /// The number of its first packet.
    pub(crate) psn: u32,
    /// The key of the remote memory.
    pub(crate) key: u32,
    /// The address at which that begins.
    pub(crate) at: u64,
    /// The address of the host.
    pub(crate) ip: IpAddr,
}

impl Line {
    /// `LID:reads:QPN:PSN:key:address:GID, a byte each:SRQ:`, hexadecimal.
    fn parse(line: &[u8; LINE_BYTES]) -> Option<Line> {
        let text = std::str::from_utf8(line.split(|byte| *byte == 0).next()?).ok()?;
        let mut fields = text.split(':').map(|field| u64::from_str_radix(field, 16).ok());
        let mut next = || fields.next().flatten();
        let (_lid, _reads) = (next()?, next()?);
        let (qpn, psn) = (u32::try_from(next()?).ok()?, u32::try_from(next()?).ok()?);
        let (key, at) = (u32::try_from(next()?).ok()?, next()?);
        let mut gid = [0; 16];
        for byte in &mut gid {
            *byte = u8::try_from(next()?).ok()?;
        }
        let ip = IpAddr::V6(Ipv6Addr::from(gid)).to_canonical();
        Some(Line { qpn, psn, key, at, ip })
    }

    fn emit(&self) -> [u8; LINE_BYTES] {
        let gid = match self.ip {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
            IpAddr::V6(ip) => ip.octets(),
        };
        let gid: Vec<String> = gid.iter().map(|byte| format!("{byte:02x}")).collect();
        let (lid, shared_queue) = (0, 0);
        let text = format!(
            "{lid:04x}:{READS:04x}:{:06x}:{:06x}:{:08x}:{:016x}:{}:{shared_queue:08x}:",
            self.qpn,
            self.psn,
            self.key,
            self.at,
            gid.join(":")
        );
        let mut line = [0; LINE_BYTES];
        line[..text.len()].copy_from_slice(text.as_bytes());
        line
    }
}
