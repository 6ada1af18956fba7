//! Records, the carriers of encrypted bytes.
//!
//! A record is the length of its ciphertext (16 bits, little-endian) and the ciphertext, which is its content and 16
//! bytes that authenticate it. The n-th record of a direction has the nonce n, which is not sent: a record that is
//! missing, repeated or out of order fails. There are 2^64 - 1 nonces, more than any connection sends, so keys are not
//! renewed within a connection; each connection has its own.
//!
//! The bytes in records are a stream: frames begin and end in them anywhere.

use std::io;
use std::sync::Arc;

use snow::StatelessTransportState;

/// Bytes of a record before its ciphertext.
pub const HEAD_BYTES: usize = 2;
/// How much longer a ciphertext is than its content.
pub const TAG_BYTES: usize = 16;
/// The longest record, with its head.
pub const RECORD_BYTES_MAX: usize = HEAD_BYTES + u16::MAX as usize;
/// The most that a record can hold.
pub const CONTENT_BYTES_MAX: usize = u16::MAX as usize - TAG_BYTES;

/// The records of a direction are not those that the peer sent.
fn broken() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "what came was changed on its way, or is not the next that the other side sent",
    )
}

/// Makes the records of one direction, in order.
pub struct Sealer {
    transport: Arc<StatelessTransportState>,
    nonce: u64,
}

/// Reads the records of the other direction, in order.
pub struct Opener {
    transport: Arc<StatelessTransportState>,
    nonce: u64,
}

/// Both directions of a connection whose handshake is done.
pub(super) fn split(transport: StatelessTransportState) -> (Sealer, Opener) {
    let transport = Arc::new(transport);
    let sealer = Sealer {
        transport: Arc::clone(&transport),
        nonce: 0,
    };
    (sealer, Opener { transport, nonce: 0 })
}

impl Sealer {
    /// Appends a record with `content` to `out`. Records must be sent in the order of these calls.
    ///
    /// # Errors
    /// If `content` is longer than [`CONTENT_BYTES_MAX`], or no nonce is left.
    pub fn seal(&mut self, content: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        if content.len() > CONTENT_BYTES_MAX {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let start = out.len();
        let cipher_bytes = content.len() + TAG_BYTES;
        out.resize(start + HEAD_BYTES + cipher_bytes, 0);
        out[start..start + HEAD_BYTES].copy_from_slice(&(cipher_bytes as u16).to_le_bytes());
        let sealed = self
            .transport
            .write_message(self.nonce, content, &mut out[start + HEAD_BYTES..]);
        // Never reused, even if the record fails.
        self.nonce += 1;
        match sealed {
            Ok(_) => Ok(()),
            Err(_) => {
                out.truncate(start);
                Err(io::Error::other("the connection has no nonce left"))
            }
        }
    }
}

impl Opener {
    /// Reads one record, head and all, into `buf`, which is large enough; returns the length of its content.
    ///
    /// # Errors
    /// If it is not the record that the peer sent next.
    pub(super) fn open_one(&mut self, record: &[u8], buf: &mut [u8]) -> io::Result<usize> {
        let ciphertext = record.get(HEAD_BYTES..).ok_or_else(broken)?;
        let opened = self.transport.read_message(self.nonce, ciphertext, buf);
        let len_bytes = opened.map_err(|_| broken())?;
        self.nonce += 1;
        Ok(len_bytes)
    }

    /// Reads those complete records at the beginning of `sealed` whose contents fit into `buf` in sequence. Returns
    /// how many bytes the records have, and their contents. Both are 0 if the first record is not complete, or does not
    /// fit.
    ///
    /// # Errors
    /// If a record is not the one that the peer sent next, or is empty, which no valid one is.
    pub fn open(&mut self, sealed: &[u8], buf: &mut [u8]) -> io::Result<(usize, usize)> {
        let (mut read, mut opened) = (0, 0);
        loop {
            match self.open_next(&sealed[read..], &mut buf[opened..])? {
                (0, _) => return Ok((read, opened)),
                (record, content) => {
                    read += record;
                    opened += content;
                }
            }
        }
    }

    /// The same with one record.
    pub fn open_next(&mut self, sealed: &[u8], buf: &mut [u8]) -> io::Result<(usize, usize)> {
        let Some(record) = first_record(sealed) else {
            return Ok((0, 0));
        };
        let len_bytes = record.len() - HEAD_BYTES;
        if len_bytes <= TAG_BYTES {
            return Err(broken());
        }
        if len_bytes - TAG_BYTES > buf.len() {
            return Ok((0, 0));
        }
        Ok((record.len(), self.open_one(record, buf)?))
    }
}

/// The record at the beginning of `sealed`, if all of it is there.
pub fn first_record(sealed: &[u8]) -> Option<&[u8]> {
    let head = sealed.first_chunk::<HEAD_BYTES>()?;
    sealed.get(..HEAD_BYTES + usize::from(u16::from_le_bytes(*head)))
}

impl std::fmt::Debug for Sealer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sealer")
            .field("nonce", &self.nonce)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Opener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Opener")
            .field("nonce", &self.nonce)
            .finish_non_exhaustive()
    }
}
