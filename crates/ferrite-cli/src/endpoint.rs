//! HTTP for what a process reports about itself: [`Endpoint`], which answers GET requests through a [`Handler`].
//!
//! Invariants: a client can delay only other readers of the endpoint. A request has a bounded length, request and reply
//! together a bounded time, and [`CONNECTIONS_MAX`] are served at a time, each by a thread; further ones are closed.
//! Nothing can be changed through an endpoint: all other methods are refused. A reply says that no other site may frame
//! it, keep it or add scripts to it.
//!
//! Used by `serve --metrics`, `serve --console` and `ferrite exporter`.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{FAILED, Failure, USAGE};

/// Longest request.
const REQUEST_BYTES_MAX: usize = 8 << 10;
/// Request and reply take no longer, without the time of the handler.
const TIMEOUT: Duration = Duration::from_secs(5);
/// A browser opens some connections before it has anything to ask.
const CONNECTIONS_MAX: usize = 16;

/// A GET request.
pub(crate) struct Get<'r> {
    /// The path, without what follows a question mark.
    pub(crate) path: &'r str,
    query: &'r str,
    headers: &'r str,
}

/// A reply, whose type is known from its body.
pub(crate) enum Reply {
    Metrics(String),
    Json(String),
    Page(&'static str),
    Script(&'static str),
    Style(&'static str),
    /// The request cannot be satisfied: the status line, and why.
    Refused(&'static str, String),
}

/// Answers requests. It takes a bounded time.
pub(crate) type Handler = Arc<dyn Fn(&Get<'_>) -> Reply + Send + Sync>;

/// The text of now; `None` once there will be none any more. It takes a bounded time.
pub(crate) type Source = Box<dyn Fn() -> Option<String> + Send + Sync>;

/// Answers requests for `/metrics`, and refers all others there.
pub(crate) fn metrics(source: Source) -> Handler {
    Arc::new(move |get| match get.path {
        "/metrics" => match source() {
            Some(text) => Reply::Metrics(text),
            None => Reply::Refused("503 Service Unavailable", "the server is ending".into()),
        },
        _ => Reply::Refused("404 Not Found", "the metrics are at /metrics".into()),
    })
}

impl<'r> Get<'r> {
    /// The value of a header, without spaces around it.
    pub(crate) fn header(&self, name: &str) -> Option<&'r str> {
        self.headers.split("\r\n").find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    /// A parameter of the query, decoded.
    pub(crate) fn parameter(&self, name: &str) -> Option<Vec<u8>> {
        self.query.split('&').find_map(|pair| {
            let (found, value) = pair.split_once('=')?;
            (found == name).then(|| decoded(value))
        })
    }
}

/// Text with each percent sign and its two digits replaced by the byte that they stand for. A percent sign without
/// digits is itself.
fn decoded(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, behind)) = rest.split_first() {
        let pair = behind.get(..2).and_then(|pair| std::str::from_utf8(pair).ok());
        let byte = pair.and_then(|pair| u8::from_str_radix(pair, 16).ok());
        match (first, byte) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &behind[2..];
            }
            _ => {
                bytes.push(first);
                rest = behind;
            }
        }
    }
    bytes
}

/// Answers HTTP requests until it is dropped.
pub(crate) struct Endpoint {
    /// Where it listens.
    pub(crate) address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Endpoint {
    /// Listens at `HOST:PORT`, or at a port of the loopback address.
    ///
    /// # Errors
    /// The place cannot be read or listened at; the message names it as the value of `option`.
    pub(crate) fn listen(option: &str, place: &str) -> Result<TcpListener, Failure> {
        let place = match place.parse::<u16>() {
            Ok(port) => format!("127.0.0.1:{port}"),
            Err(_) => place.to_owned(),
        };
        let wrong = |error| {
            let text = format!("{option} {place}: {error}; give HOST:PORT, or a port of 127.0.0.1");
            Failure::new(USAGE, text)
        };
        let addresses: Vec<SocketAddr> = place.to_socket_addrs().map_err(wrong)?.collect();
        TcpListener::bind(&addresses[..])
            .map_err(|error| Failure::new(FAILED, format!("{option} {place}: cannot listen: {error}")))
    }

    /// Begins to answer.
    pub(crate) fn start(listener: TcpListener, handler: Handler) -> io::Result<Endpoint> {
        let address = listener.local_addr()?;
        let stop = Arc::new(AtomicBool::new(false));
        let thread = {
            let stop = Arc::clone(&stop);
            std::thread::Builder::new()
                .name("ferrite-http".into())
                .spawn(move || accept(&listener, &handler, &stop))?
        };
        Ok(Endpoint {
            address,
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // It waits for a connection.
        let woken = TcpStream::connect_timeout(&self.address, Duration::from_secs(1));
        if let (Ok(_), Some(thread)) = (woken, self.thread.take()) {
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

fn accept(listener: &TcpListener, handler: &Handler, stop: &AtomicBool) {
    let served = Arc::new(AtomicUsize::new(0));
    for stream in listener.incoming() {
        if stop.load(Ordering::Acquire) {
            return;
        }
        // Out of descriptors, perhaps; do not retry at once.
        let Ok(stream) = stream else {
            std::thread::sleep(Duration::from_millis(100));
            continue;
        };
        if served.load(Ordering::Acquire) >= CONNECTIONS_MAX {
            continue;
        }
        served.fetch_add(1, Ordering::AcqRel);
        let (handler, count) = (Arc::clone(handler), Counted(Arc::clone(&served)));
        let answer = move || {
            let _count = count;
            // The reader disconnected or timed out; ignore it.
            let _ = answer(stream, &handler);
        };
        // Without a thread, the connection is closed.
        drop(std::thread::Builder::new().name("ferrite-http".into()).spawn(answer));
    }
}

/// A connection that is served; dropping it counts it out.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Serves one connection.
fn answer(mut stream: TcpStream, handler: &Handler) -> io::Result<()> {
    let request = receive(&mut stream, Instant::now() + TIMEOUT)?;
    let request = String::from_utf8_lossy(&request);
    let (line, headers) = request.split_once("\r\n").unwrap_or_default();
    let mut words = line.split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let reply = match method {
        "GET" | "HEAD" => handler(&Get { path, query, headers }),
        _ => Reply::Refused("405 Method Not Allowed", "only GET is answered".into()),
    };
    let (status, content_type, body) = match reply {
        Reply::Metrics(text) => ("200 OK", "text/plain; version=0.0.4; charset=utf-8", text.into()),
        Reply::Json(text) => ("200 OK", "application/json", text.into()),
        Reply::Page(text) => ("200 OK", "text/html; charset=utf-8", text.into()),
        Reply::Script(text) => ("200 OK", "text/javascript; charset=utf-8", text.into()),
        Reply::Style(text) => ("200 OK", "text/css; charset=utf-8", text.into()),
        Reply::Refused(status, why) => (status, "text/plain; charset=utf-8", std::borrow::Cow::Owned(why + "\n")),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\nConnection: close\r\n\
         Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n\
         Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n\r\n",
        body.len()
    );
    let body = if method == "HEAD" { "" } else { &*body };
    let end = Instant::now() + TIMEOUT;
    send(&mut stream, [head.as_bytes(), body.as_bytes()].concat(), end)
}

/// The request, up to the end of its headers.
fn receive(stream: &mut TcpStream, end: Instant) -> io::Result<Vec<u8>> {
    let mut request = Vec::new();
    let mut piece = [0; 1024];
    while !request.windows(4).any(|part| part == b"\r\n\r\n") {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || request.len() > REQUEST_BYTES_MAX {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut piece)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => request.extend(&piece[..count]),
        }
    }
    Ok(request)
}

fn send(stream: &mut TcpStream, bytes: Vec<u8>, end: Instant) -> io::Result<()> {
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_write_timeout(Some(left))?;
        let count = stream.write(rest)?;
        rest = &rest[count..];
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_taken_apart() {
        let get = Get {
            path: "/x",
            query: "a=1&path=%2fa%20b%ff%zz%&b",
            headers: "Host: here:1\r\nauthorization:  Bearer x \r\n\r\n",
        };
        assert_eq!(get.parameter("a").unwrap(), b"1");
        assert_eq!(get.parameter("path").unwrap(), b"/a b\xff%zz%");
        assert_eq!(get.parameter("b"), None);
        assert_eq!(get.header("host"), Some("here:1"));
        assert_eq!(get.header("Authorization"), Some("Bearer x"));
        assert_eq!(get.header("cookie"), None);
    }
}
