//! `serve --console`: a page for administrators of a server, to look at.
//!
//! | module | contents |
//! | --- | --- |
//! | `status` | what the page shows: pools, exports, clients, latencies, recent errors |
//! | `space` | which directories of a pool take the space |
//! | `page.html`, `page.js`, `page.css` | the page, as browsers take it: no build step, nothing from elsewhere |
//!
//! Invariants: nothing can be changed here. The data, unlike the empty page, is given to readers on this machine,
//! or to those who know the token. A page of another site that a browser has open gets nothing: it cannot send the
//! token, and without one the host's name must be an address or `localhost`, so that a name that leads here is no help.
//! The page shows names as text, never as markup.
//!
//! Used by `serve`.

mod space;
mod status;

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;

use ferrite_server::Observer;

use super::endpoint::{Endpoint, Get, Handler, Reply};
use super::served::Volumes;
use super::{FAILED, Failure, USAGE, about};

/// Shorter ones could be guessed.
const TOKEN_BYTES_MIN: usize = 16;
const TOKEN_BYTES_MAX: u64 = 1024;

/// The secret that readers must send.
struct Token(Vec<u8>);

impl Token {
    /// Reads it from the first line of a file.
    ///
    /// # Errors
    /// The file cannot be read; the token is too short.
    fn read(path: &Path) -> Result<Token, Failure> {
        let file = std::fs::File::open(path).map_err(about(path))?;
        let mut text = String::new();
        std::io::Read::read_to_string(&mut std::io::Read::take(file, TOKEN_BYTES_MAX), &mut text)
            .map_err(about(path))?;
        let token = text.lines().next().unwrap_or_default().trim();
        match token.len() >= TOKEN_BYTES_MIN {
            true => Ok(Token(token.as_bytes().to_vec())),
            false => Err(Failure::new(
                FAILED,
                format!(
                    "{}: the token of the console has less than {TOKEN_BYTES_MIN} characters; make one with \
                     `openssl rand -hex 16`",
                    path.display()
                ),
            )),
        }
    }

    /// Takes the same time wherever the first difference is.
    fn is(&self, given: &[u8]) -> bool {
        let pairs = self.0.iter().zip(given);
        let differences = pairs.fold(0, |all, (a, b)| all | (a ^ b));
        self.0.len() == given.len() && differences == 0
    }
}

/// Refuses a console that other machines reach without a token.
///
/// # Errors
/// That.
fn check(address: SocketAddr, token: Option<&Token>) -> Result<(), Failure> {
    match (address.ip().to_canonical().is_loopback(), token) {
        (false, None) => Err(Failure::new(
            USAGE,
            format!(
                "--console {address}: other machines can reach it; give --console-token FILE, or an address of this \
                 machine alone, such as 127.0.0.1:7449"
            ),
        )),
        _ => Ok(()),
    }
}

/// A console that listens, and does not answer yet.
pub(crate) struct Console {
    listener: TcpListener,
    token: Option<Token>,
}

impl Console {
    /// Listens at `place`, for those who give the token in the file.
    ///
    /// # Errors
    /// The place or the token cannot be used; other machines could reach a console without a token.
    pub(crate) fn listen(place: &str, token: Option<&Path>) -> Result<Console, Failure> {
        let token = token.map(Token::read).transpose()?;
        let listener = Endpoint::listen("--console", place)?;
        check(listener.local_addr()?, token.as_ref())?;
        Ok(Console { listener, token })
    }

    /// Begins to answer.
    ///
    /// # Errors
    /// The system has no threads.
    pub(crate) fn start(self, observer: Observer, volumes: Volumes) -> io::Result<Endpoint> {
        Endpoint::start(self.listener, handler(observer, volumes, self.token))
    }
}

/// Answers for the console of a server.
fn handler(observer: Observer, volumes: Volumes, token: Option<Token>) -> Handler {
    let space = space::Space::new(volumes.clone());
    Arc::new(move |get| {
        match get.path {
            "/" => return Reply::Page(include_str!("page.html")),
            "/page.js" => return Reply::Script(include_str!("page.js")),
            "/page.css" => return Reply::Style(include_str!("page.css")),
            _ => {}
        }
        if let Err(refused) = admit(get, token.as_ref()) {
            return refused;
        }
        match get.path {
            "/status.json" => match observer.look() {
                Some(metrics) => Reply::Json(status::text(&metrics, &volumes)),
                None => Reply::Refused("503 Service Unavailable", "the server is ending".into()),
            },
            "/space.json" => space.answer(get),
            _ => Reply::Refused("404 Not Found", "the console is at /".into()),
        }
    })
}

/// Whether a reader may have the data.
fn admit(get: &Get<'_>, token: Option<&Token>) -> Result<(), Reply> {
    if let Some(token) = token {
        let given = get
            .header("authorization")
            .and_then(|value| value.strip_prefix("Bearer "));
        return match given.is_some_and(|given| token.is(given.as_bytes())) {
            true => Ok(()),
            false => Err(Reply::Refused(
                "401 Unauthorized",
                "the token is missing or wrong".into(),
            )),
        };
    }
    let host = get.header("host").unwrap_or_default();
    let is_address = host.parse::<SocketAddr>().is_ok()
        || host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok()
        || host == "localhost"
        || host
            .strip_prefix("localhost:")
            .is_some_and(|port| port.parse::<u16>().is_ok());
    match is_address {
        true => Ok(()),
        false => Err(Reply::Refused(
            "403 Forbidden",
            "ask by the address, or as localhost".into(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_compared_whole() {
        let token = Token(b"0123456789abcdef".to_vec());
        assert!(token.is(b"0123456789abcdef"));
        for wrong in [&b""[..], b"0123456789abcde", b"0123456789abcdef0", b"1123456789abcdef"] {
            assert!(!token.is(wrong));
        }
    }

    #[test]
    fn other_machines_need_a_token() {
        let token = Token(b"0123456789abcdef".to_vec());
        for far in ["10.0.0.1:1", "0.0.0.0:1", "[::]:1", "[fd00::1]:1"] {
            let far: SocketAddr = far.parse().unwrap();
            assert!(check(far, None).is_err() && check(far, Some(&token)).is_ok());
        }
        for near in ["127.0.0.1:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            assert!(check(near.parse().unwrap(), None).is_ok());
        }
    }
}
