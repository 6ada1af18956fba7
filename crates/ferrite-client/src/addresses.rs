//! The addresses of the servers that may serve an export.
//!
//! Contents: [`Addresses`], the list as a URL or a caller gives it.
//!
//! Invariants: a list has one address at least and [`ADDRESSES_MAX`] at most, each with a port, and none twice. A
//! client connects to these addresses only, whatever a server says.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;

use thiserror::Error;

/// The port of a server, where an address names none.
pub const PORT: u16 = 7447;

/// The most servers that one address names.
pub const ADDRESSES_MAX: usize = 16;

/// Why a text is not a list of servers.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BadServers {
    /// One of them has another form.
    #[error("`{0}` is no server: a server is HOST, HOST:PORT or [IPV6]:PORT, with a comma before the next")]
    Form(String),
    /// One of them comes twice.
    #[error("`{0}` names the same server as an earlier part of the list; name each server once")]
    Twice(String),
    /// There are too many.
    #[error("{0} servers are too many; name at most {ADDRESSES_MAX}, those that may own the volume")]
    TooMany(usize),
}

/// See the head of this module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Addresses(Vec<Arc<str>>);

impl Addresses {
    /// The addresses in the order in which they were given, each `HOST:PORT`.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Arc<str>> {
        self.0.iter()
    }

    /// The place in the list of the server that another text names; `None` if the list lacks it.
    pub(crate) fn find(&self, other: &str) -> Option<usize> {
        let other = normal(&with_port(other)?);
        self.0.iter().position(|address| normal(address) == other)
    }
}

impl FromStr for Addresses {
    type Err = BadServers;

    fn from_str(text: &str) -> Result<Addresses, BadServers> {
        let count = text.split(',').count();
        if count > ADDRESSES_MAX {
            return Err(BadServers::TooMany(count));
        }
        let mut list = Addresses(Vec::with_capacity(count));
        for part in text.split(',') {
            let address = with_port(part).ok_or_else(|| BadServers::Form(part.to_owned()))?;
            if list.find(&address).is_some() {
                return Err(BadServers::Twice(part.to_owned()));
            }
            list.0.push(address.into());
        }
        Ok(list)
    }
}

impl fmt::Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(","))
    }
}

/// The address of a server with its port; `None` if it is not an address.
fn with_port(text: &str) -> Option<String> {
    // An IPv6 address stands in brackets.
    let name_bytes = match text.strip_prefix('[') {
        Some(_) => text.find(']')? + 1,
        None => text.find(':').unwrap_or(text.len()),
    };
    let (name, port) = text.split_at(name_bytes);
    let is_odd = |c: char| c.is_whitespace() || c.is_control() || c == ',' || c == '/';
    if name.is_empty() || name == "[]" || name.contains(is_odd) {
        return None;
    }
    match port.strip_prefix(':') {
        Some(port) => port.parse::<u16>().ok().map(|_| text.to_owned()),
        None if port.is_empty() => Some(format!("{name}:{PORT}")),
        None => None,
    }
}

/// The form of an address in which two that name one server alike are equal.
fn normal(address: &str) -> String {
    match address.parse::<SocketAddr>() {
        Ok(address) => address.to_string(),
        Err(_) => {
            let (name, port) = address.rsplit_once(':').unwrap_or((address, ""));
            let port = port.parse().unwrap_or(PORT);
            format!("{}:{port}", name.trim_end_matches('.').to_ascii_lowercase())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_each_server_once_with_a_port() {
        for (text, expected) in [
            ("a:1,b:2,[::1]:3", "a:1,b:2,[::1]:3"),
            ("a,b:7448,[::1]", "a:7447,b:7448,[::1]:7447"),
            ("10.0.0.1", "10.0.0.1:7447"),
            ("a:1,a:2", "a:1,a:2"),
        ] {
            let list: Addresses = text.parse().unwrap();
            assert_eq!(list.to_string(), expected);
            assert_eq!(list.to_string().parse(), Ok(list));
        }
    }

    #[test]
    fn an_error_names_the_wrong_part() {
        let parse = |text: &str| text.parse::<Addresses>().unwrap_err();
        for (text, part) in [
            ("", ""),
            ("a,", ""),
            (",a", ""),
            ("a,:1", ":1"),
            ("a,b:x", "b:x"),
            ("a:70000,b", "a:70000"),
            ("a,::1", "::1"),
            ("a,fe80::1", "fe80::1"),
            ("[::1", "[::1"),
            ("[]:1", "[]:1"),
            ("[::1]x", "[::1]x"),
            ("a, b", " b"),
        ] {
            assert_eq!(parse(text), BadServers::Form(part.to_owned()), "{text}");
        }
        for (text, part) in [
            ("a,b,a", "a"),
            ("a,b,A:7447", "A:7447"),
            ("a:1,a.:01", "a.:01"),
            ("[::1]:1,[0:0::1]:1", "[0:0::1]:1"),
        ] {
            assert_eq!(parse(text), BadServers::Twice(part.to_owned()), "{text}");
        }
        let many: Vec<String> = (0..=ADDRESSES_MAX).map(|number| format!("host{number}")).collect();
        assert_eq!(parse(&many.join(",")), BadServers::TooMany(ADDRESSES_MAX + 1));
        assert!(many[1..].join(",").parse::<Addresses>().is_ok());
    }

    #[test]
    fn a_server_is_found_by_any_of_its_spellings() {
        let list: Addresses = "one.example,[::1]:3,10.0.0.1:7447".parse().unwrap();
        for (text, place) in [
            ("one.example:7447", Some(0)),
            ("ONE.example", Some(0)),
            ("[0::1]:3", Some(1)),
            ("10.0.0.1", Some(2)),
            ("10.0.0.1:7448", None),
            ("10.0.0.1:7447,evil", None),
            ("two.example", None),
            ("", None),
            ("::1:3", None),
        ] {
            assert_eq!(list.find(text), place, "{text}");
        }
    }
}
