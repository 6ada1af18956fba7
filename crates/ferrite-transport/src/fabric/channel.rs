//! A connection over a fabric, as a stream of bytes each way, in messages.
//!
//! Contents: [`Channel`], which numbers messages, counts how many may be in flight, and puts arrivals in order. Frames
//! lie in the stream as they do on TCP, except for data that travels apart.
//!
//! Invariants: neither side has more than [`WINDOW`] messages in flight that the other has not taken, so that buffers
//! for them suffice, and a side sends nothing to a peer that takes nothing. A side takes no arrivals before there is
//! space for more, so that a stream without a reader stops.

use std::collections::BTreeMap;

use ferrite_buffers::{Buffer, Pool};

use super::{WINDOW, message_bytes};
use crate::FabricError;
use crate::ofi::{Endpoint, PeerId};

/// The head of each message: the number of the connection (64 bits), the number of the message (32 bits), how many
/// messages were taken since the last head that said so (16 bits), and its kind (16 bits).
pub(crate) const HEAD_BYTES: usize = 16;
/// A piece of the stream.
const STREAM: u16 = 0;
/// Nothing but credit; it has no number of its own, and needs no credit.
const CREDIT: u16 = 1;
/// Most bytes that are copied on the way to a provider.
const INJECTED_BYTES_MAX: usize = 4096;

/// See the head of this module.
#[derive(Debug)]
pub(crate) struct Channel {
    peer: PeerId,
    number: u64,
    next_out: u32,
    next_in: u32,
    /// Messages that this side may send now.
    credit: u32,
    /// Messages that were taken, and not yet returned to the peer as credit.
    taken: u32,
    /// Messages that came before their turn.
    early: BTreeMap<u32, Buffer>,
}

/// The connection that a message says it is for.
pub(crate) fn channel_of(message: &[u8]) -> Option<u64> {
    message.first_chunk().map(|number| u64::from_le_bytes(*number))
}

impl Channel {
    pub(crate) fn new(peer: PeerId, number: u64) -> Channel {
        Channel {
            peer,
            number,
            next_out: 0,
            next_in: 0,
            credit: WINDOW,
            taken: 0,
            early: BTreeMap::new(),
        }
    }

    pub(crate) fn peer(&self) -> PeerId {
        self.peer
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Sends the beginning of the pieces as one message. Returns how many bytes were sent; 0 if sending is impossible
    /// now.
    pub(crate) fn send(
        &mut self,
        endpoint: &mut Endpoint,
        pool: &Pool,
        pieces: &[&[u8]],
    ) -> Result<usize, FabricError> {
        if self.credit == 0 {
            return Ok(0);
        }
        let sent = self.post(endpoint, pool, STREAM, pieces)?;
        if sent > 0 {
            self.credit -= 1;
            self.next_out = self.next_out.wrapping_add(1);
        }
        Ok(sent)
    }

    /// Returns credit to the peer, if it is worth a message of its own. False if credit is due and cannot be sent now:
    /// unless the caller retries, the peer waits for ever.
    pub(crate) fn return_credit(&mut self, endpoint: &mut Endpoint, pool: &Pool) -> Result<bool, FabricError> {
        if self.taken >= WINDOW / 2 {
            self.post(endpoint, pool, CREDIT, &[])?;
        }
        Ok(self.taken < WINDOW / 2)
    }

    fn post(
        &mut self,
        endpoint: &mut Endpoint,
        pool: &Pool,
        kind: u16,
        pieces: &[&[u8]],
    ) -> Result<usize, FabricError> {
        let most = message_bytes(endpoint.inject_bytes()) - HEAD_BYTES;
        let copied = endpoint.inject_bytes().min(INJECTED_BYTES_MAX);
        let mut len = most.min(pieces.iter().map(|piece| piece.len()).sum());
        let buffer = match HEAD_BYTES + len > copied {
            true => pool.take(HEAD_BYTES + len),
            false => None,
        };
        if buffer.is_none() {
            // Waiting for a buffer could deadlock on the very data that this sends: a short message goes without.
            len = len.min(copied.saturating_sub(HEAD_BYTES));
        }
        let total = HEAD_BYTES + len;
        let head = self.head(kind);
        let fill = |buf: &mut [u8]| {
            buf[..HEAD_BYTES].copy_from_slice(&head);
            let mut rest = &mut buf[HEAD_BYTES..];
            for piece in pieces {
                let count = piece.len().min(rest.len());
                rest[..count].copy_from_slice(&piece[..count]);
                rest = &mut rest[count..];
            }
        };
        let is_sent = match buffer {
            Some(mut buffer) => {
                fill(&mut buffer);
                endpoint.send(self.peer, buffer, self.number)?.is_none()
            }
            None if total > copied => false,
            None => {
                let mut buf = [0; INJECTED_BYTES_MAX];
                fill(&mut buf[..total]);
                endpoint.inject(self.peer, &buf[..total])?
            }
        };
        if !is_sent {
            return Ok(0);
        }
        self.taken = 0;
        Ok(len)
    }

    fn head(&self, kind: u16) -> [u8; HEAD_BYTES] {
        let mut head = [0; HEAD_BYTES];
        head[..8].copy_from_slice(&self.number.to_le_bytes());
        head[8..12].copy_from_slice(&self.next_out.to_le_bytes());
        head[12..14].copy_from_slice(&(self.taken as u16).to_le_bytes());
        head[14..].copy_from_slice(&kind.to_le_bytes());
        head
    }

    /// Takes a message of this connection, and passes on the pieces of the stream whose turn it is, and all buffers
    /// that are free again.
    ///
    /// # Errors
    /// If no valid peer sends such a message.
    pub(crate) fn accept(
        &mut self,
        message: Buffer,
        mut take: impl FnMut(&[u8]),
        mut free: impl FnMut(Buffer),
    ) -> Result<(), FabricError> {
        let Some((head, _)) = message.split_first_chunk::<HEAD_BYTES>() else {
            free(message);
            return Err(FabricError::Foreign);
        };
        let &[.., a, b, c, d, e, f, g, h] = head;
        let sequence = u32::from_le_bytes([a, b, c, d]);
        self.credit += u32::from(u16::from_le_bytes([e, f]));
        let kind = u16::from_le_bytes([g, h]);
        let is_early = sequence.wrapping_sub(self.next_in);
        if self.credit > WINDOW || kind > CREDIT || (kind == STREAM && is_early >= WINDOW) {
            free(message);
            return Err(FabricError::Foreign);
        }
        if kind == CREDIT {
            free(message);
            return Ok(());
        }
        if is_early > 0 {
            if let Some(double) = self.early.insert(sequence, message) {
                free(double);
                return Err(FabricError::Foreign);
            }
            return Ok(());
        }
        let mut next = Some(message);
        while let Some(message) = next {
            take(&message[HEAD_BYTES..]);
            free(message);
            self.next_in = self.next_in.wrapping_add(1);
            next = self.early.remove(&self.next_in);
        }
        Ok(())
    }

    /// Messages that came before their turn, and will never have it.
    pub(crate) fn take_early(&mut self) -> impl Iterator<Item = Buffer> + use<> {
        std::mem::take(&mut self.early).into_values()
    }

    /// Counts so many more messages as taken.
    pub(crate) fn took(&mut self, messages: u32) {
        self.taken += messages;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ofi::{Provider, Reach};

    /// Data that waits to be sent may occupy the whole pool: it leaves without another buffer.
    #[test]
    fn messages_go_without_a_buffer() {
        if !Provider::Tcp.is_there() {
            eprintln!("skipped: libfabric has no provider tcp here");
            return;
        }
        let (pool, theirs) = (Pool::new(1).expect("memory"), Pool::new(1).expect("memory"));
        let open = |pool| Endpoint::open(Provider::Tcp, Some("127.0.0.1"), 8, pool, Reach::Local).expect("tcp");
        let (mut here, mut there) = (open(&pool), open(&theirs));
        let peer = here.insert(&there.name().expect("a name")).expect("known");
        let mut channel = Channel::new(peer, 7);
        let _all: Vec<Buffer> = std::iter::from_fn(|| pool.take(1)).collect();
        let began = std::time::Instant::now();
        let sent = loop {
            // The first poll makes a connection, in which both sides take part.
            here.poll(&mut Vec::new()).expect("polled");
            there.poll(&mut Vec::new()).expect("polled");
            match channel.send(&mut here, &pool, &[&[1; 9000]]).expect("sent") {
                0 => assert!(began.elapsed().as_secs() < 20, "it waits for a buffer"),
                sent => break sent,
            }
        };
        assert!((1..9000).contains(&sent), "{sent}");
    }

    /// A provider that is busy, or still finding the way to a peer, takes nothing: the side owes its peer the credit
    /// until it is sent.
    #[test]
    fn credit_that_could_not_be_returned_is_still_owed() {
        if !Provider::Shm.is_there() {
            eprintln!("skipped: libfabric has no provider shm here");
            return;
        }
        let pool = Pool::new(1 << 20).expect("memory");
        let open = || Endpoint::open(Provider::Shm, None, 8, &pool, Reach::Local).expect("shm");
        let (mut here, mut there) = (open(), open());
        let peer = here.insert(&there.name().expect("a name")).expect("known");
        there.insert(&here.name().expect("a name")).expect("known");
        let mut channel = Channel::new(peer, 7);
        channel.took(WINDOW / 2 - 1);
        assert!(
            channel.return_credit(&mut here, &pool).expect("sent"),
            "not worth a message"
        );
        channel.took(1);
        // The first send finds that the other side does not know this one yet.
        assert!(
            !channel.return_credit(&mut here, &pool).expect("tried"),
            "the provider took it at once"
        );
        let is_sent = (0..1000).any(|_| {
            here.poll(&mut Vec::new()).expect("polled");
            there.poll(&mut Vec::new()).expect("polled");
            channel.return_credit(&mut here, &pool).expect("tried")
        });
        assert!(is_sent);
    }
}
