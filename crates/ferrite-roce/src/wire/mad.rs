//! Management datagrams: 24 bytes of header, 232 of content. They go to queue pair 1.
//!
//! | bytes | field |
//! | --- | --- |
//! | 0 | version of the header: 1 |
//! | 1 | class: 7, connections |
//! | 2 | version of the class: 2 |
//! | 3 | method: 3, send |
//! | 4 to 7 | status, and class-specific: 0 |
//! | 8 to 15 | transaction: a reply has that of its request |
//! | 16, 17 | attribute: the kind of message |
//! | 18 to 23 | 0 |

use super::{Error, be16, be64, put};

/// Length of a datagram.
pub const BYTES: usize = 256;
/// Length of its header.
pub const HEADER_BYTES: usize = 24;
/// Length of its content.
pub const CONTENT_BYTES: usize = BYTES - HEADER_BYTES;

/// Versions of header and class, the class of connections, the method "send".
const KIND: [u8; 4] = [1, 7, 2, 3];

/// A view over a management datagram.
#[derive(Debug, Clone, Copy)]
pub struct Packet<'p>(&'p [u8; BYTES]);

impl<'p> Packet<'p> {
    /// A view over all of `bytes`.
    ///
    /// # Errors
    /// `Truncated`, `Length` if there are more bytes than a datagram has.
    pub fn new_checked(bytes: &'p [u8]) -> Result<Packet<'p>, Error> {
        match bytes.first_chunk() {
            Some(chunk) if bytes.len() == BYTES => Ok(Packet(chunk)),
            Some(_) => Err(Error::Length),
            None => Err(Error::Truncated),
        }
    }

    /// Which message it is.
    pub fn attribute(&self) -> u16 {
        be16(self.0, 16)
    }

    /// The transaction.
    pub fn transaction(&self) -> u64 {
        be64(self.0, 8)
    }

    /// The content behind the header.
    pub fn content(&self) -> &'p [u8] {
        &self.0[HEADER_BYTES..]
    }
}

/// The value of a header of the class of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repr {
    /// Which message it is.
    pub attribute: u16,
    /// The transaction.
    pub transaction: u64,
}

impl Repr {
    /// The value of a view.
    ///
    /// # Errors
    /// `Class`, `Version`; `Reserved` for another method than "send".
    pub fn parse(packet: &Packet<'_>) -> Result<Repr, Error> {
        let [version, class, class_version, method] = KIND;
        match packet.0[..4] {
            [given, ..] if given != version => Err(Error::Version(given)),
            [_, given, ..] if given != class => Err(Error::Class(given)),
            [_, _, given, _] if given != class_version => Err(Error::Version(given)),
            [_, _, _, given] if given != method => Err(Error::Reserved(given)),
            _ => Ok(Repr {
                attribute: packet.attribute(),
                transaction: packet.transaction(),
            }),
        }
    }

    /// Writes the header.
    pub fn emit(&self, bytes: &mut [u8; BYTES]) {
        bytes[..HEADER_BYTES].fill(0);
        put(bytes, 0, KIND);
        put(bytes, 8, self.transaction.to_be_bytes());
        put(bytes, 16, self.attribute.to_be_bytes());
    }
}
