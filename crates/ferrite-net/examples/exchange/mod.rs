//! The server's side of what perftest's programs tell each other over TCP, for the examples that stand in for one.
//!
//! Both ends say in turn, the client first: their version (16 bytes), the size of a page and of a cache line (4 bytes
//! each), their path MTU (2 bytes), and then, for each queue pair and between the parts of a test, a [`Line`]. After a
//! test of bandwidth they compare results, five numbers of 8 bytes. At the end some say "done". So it has been since
//! version 5.70 of the exchange; what is not understood ends it.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv6Addr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

/// What goes wrong.
pub(crate) type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// A line, with the zero behind it.
const LINE_BYTES: usize = 108;
/// READs under way at a time that an adapter of ours remembers.
const READS: u32 = 16;
/// Between two lines before a test there is less.
const SILENCE: Duration = Duration::from_secs(1);
/// Numbers that are compared after a test of bandwidth.
const RESULTS: usize = 5;

/// Who has queue pairs and a key for a program.
pub(crate) trait Lender {
    /// The path MTU that a program may have that would like this one: the code, 1 to 5.
    ///
    /// # Errors
    /// If there is no way.
    fn mtu(&mut self, wanted: u8) -> Result<u8>;

    /// A queue pair for a program's, and a key.
    ///
    /// # Errors
    /// If there is none.
    fn lend(&mut self, theirs: &Line, mtu: u8) -> Result<Line>;

    /// All queue pairs are lent, and the program has said nothing for a while: its test has begun, or it is slow and
    /// says something more, which nobody answers before this returns.
    fn begin(&mut self, _pairs: &[(Line, Line)]) {}

    /// The program has ended.
    fn end(&mut self, pairs: &[(Line, Line)]);
}

/// A TCP port of all addresses.
///
/// # Errors
/// If it cannot be had.
pub(crate) fn port(number: &str) -> Result<TcpListener> {
    Ok(TcpListener::bind((Ipv6Addr::UNSPECIFIED, number.parse()?))?)
}

/// Serves programs that come to a TCP port, each by a lender of its own.
///
/// # Errors
/// If the port is gone.
pub(crate) fn listen<L: Lender + Send + 'static>(listener: &TcpListener, mut lender: impl FnMut() -> L) -> Result<()> {
    println!("lending at {}", listener.local_addr()?);
    for stream in listener.incoming() {
        let (mut lender, stream) = (lender(), stream?);
        thread::spawn(move || {
            let mut pairs = Vec::new();
            match serve(stream, &mut lender, &mut pairs) {
                Ok(()) => println!("done: {} queue pairs", pairs.len()),
                Err(error) => eprintln!("the exchange ended: {error}"),
            }
            lender.end(&pairs);
        });
    }
    Ok(())
}

fn serve(mut stream: TcpStream, lender: &mut impl Lender, pairs: &mut Vec<(Line, Line)>) -> Result<()> {
    stream.set_nodelay(true)?;
    // Its version, page size and line size are ours.
    for len in [16, 4, 4] {
        let mut same = vec![0; len];
        stream.read_exact(&mut same)?;
        stream.write_all(&same)?;
    }
    let mut digits = [0; 2];
    stream.read_exact(&mut digits)?;
    let mtu = lender.mtu(digits[0].wrapping_sub(b'0'))?;
    stream.write_all(&[b'0' + mtu, 0])?;
    let mut has_begun = false;
    loop {
        // How many lines there are before a test depends on the program, so silence says that it has begun.
        if !has_begun && !pairs.is_empty() && is_silent(&stream)? {
            has_begun = true;
            lender.begin(pairs);
        }
        let mut head = [0; 8];
        match stream.read(&mut head[..1])? {
            0 => return Ok(()),
            // "done": some say so before they go.
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
                let ours = lender.lend(&theirs, mtu)?;
                pairs.push((theirs, ours));
                ours
            }
        };
        stream.write_all(&ours.emit())?;
    }
}

/// Whether nothing comes for a while.
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

/// Whether this is how a line begins, and not a number.
fn is_line(head: &[u8; 8]) -> bool {
    head[..4].iter().all(u8::is_ascii_hexdigit) && head[4] == b':'
}

/// Results of a test of bandwidth: ours are the client's.
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

/// An end of a queue pair, as it is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Line {
    /// Its number.
    pub(crate) qpn: u32,
    /// The number of its first packet.
    pub(crate) psn: u32,
    /// The key of what it lends.
    pub(crate) key: u32,
    /// Where that begins.
    pub(crate) at: u64,
    /// Where it is.
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
