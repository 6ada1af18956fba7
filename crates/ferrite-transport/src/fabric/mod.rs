//! Messages over libfabric: what both ends share.
//!
//! Contents: the introduction, by which a connection that began as TCP moves to a fabric; descriptors of bulk data; how
//! long a waiting thread polls a fabric before it sleeps. One direction of a connection is in [`channel`], the client's
//! end in [`connection`], the server's in `reactor`.
//!
//! The TCP connection stays open. Its end ends both, because endpoints know of no connections. It also serves as a
//! bell: any byte on it wakes the other end, if that may be asleep ([`RINGS_AFTER`], [`DOZES_AFTER`]).
//!
//! Invariant: the introduction travels over the TCP connection, and so comes from the peer that owns that connection.

pub(crate) mod channel;
pub(crate) mod connection;

use std::time::Duration;

use crate::FabricError;
use crate::frame::{BODY_BYTES_MAX, DATA_BYTES_MAX, Lengths, OWN_ID as OWN, PREFIX_BYTES};
use crate::ofi::{NAME_BYTES_MAX, Provider, Remote};

/// Version of this protocol.
const VERSION: u8 = 1;
/// Messages in flight in one direction of a connection, at most.
pub(crate) const WINDOW: u32 = 24;
/// Buffers for messages of one connection: the window, and messages that only return credit.
pub(crate) const RECEIVE_DEPTH: usize = 32;
/// Longest message, unless the provider copies shorter ones faster.
const MESSAGE_BYTES: usize = 8192;
/// A sender that was silent for so long rings: the other end may be asleep.
pub(crate) const RINGS_AFTER: Duration = Duration::from_millis(5);
/// An end that has heard nothing for so long sleeps until its peer rings. Longer than [`RINGS_AFTER`].
pub(crate) const DOZES_AFTER: Duration = Duration::from_millis(50);
/// A nap of an end that has heard something recently.
pub(crate) const NAP: Duration = Duration::from_micros(50);
/// Shortest and longest sleep of an end that its peer may ring. A bell that came before its message costs as much.
const SLEEP: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// Longest message that a provider carries best.
pub(crate) fn message_bytes(inject_bytes: usize) -> usize {
    match inject_bytes {
        4096..=MESSAGE_BYTES => inject_bytes,
        _ => MESSAGE_BYTES,
    }
}

/// How long an end that has heard nothing for `silence` sleeps before it polls again. Zero: not at all.
pub(crate) fn pause(silence: Duration, busy_poll: Duration) -> Duration {
    match silence {
        _ if silence < busy_poll => Duration::ZERO,
        _ if silence < DOZES_AFTER => NAP,
        // Proportional to the silence: a message is late by a fraction of it, and an idle end costs nothing.
        _ => (silence / 4).clamp(SLEEP.0, SLEEP.1),
    }
}

/// A client's description of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Introduction {
    pub(crate) provider: Provider,
    pub(crate) region: Remote,
    pub(crate) region_bytes: u64,
    pub(crate) name: Vec<u8>,
}

/// The server's reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reply {
    Welcome { number: u64, name: Vec<u8> },
    Refused(String),
}

impl Introduction {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let provider = self.provider.name().as_bytes();
        let mut body = OWN.to_vec();
        body.push(VERSION);
        for number in [self.region.address, self.region.key, self.region_bytes] {
            body.extend(number.to_le_bytes());
        }
        body.push(provider.len() as u8);
        body.extend(provider);
        body.extend(&self.name);
        body
    }

    /// Decodes it. The error text gives the reason.
    pub(crate) fn decode(body: &[u8]) -> Result<Introduction, String> {
        let rest = body.strip_prefix(&OWN).unwrap_or_default();
        let mut reader = Reader(rest);
        let malformed = || "the introduction makes no sense".to_owned();
        let version = reader.bytes(1).ok_or_else(malformed)?[0];
        if version != VERSION {
            return Err(format!(
                "it speaks version {VERSION} of fabric://, the client version {version}"
            ));
        }
        let mut number = || reader.number();
        let (address, key, region_bytes) = (number(), number(), number());
        let provider = reader.bytes(1).and_then(|len| reader.bytes(usize::from(len[0])));
        let provider = provider.and_then(|name| Provider::named(std::str::from_utf8(name).ok()?));
        let name = reader.0;
        match (address, key, region_bytes, provider) {
            (Some(address), Some(key), Some(region_bytes), Some(provider)) if name.len() <= NAME_BYTES_MAX => {
                Ok(Introduction {
                    provider,
                    region: Remote { address, key },
                    region_bytes,
                    name: name.to_vec(),
                })
            }
            _ => Err(malformed()),
        }
    }
}

impl Reply {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut body = OWN.to_vec();
        match self {
            Reply::Welcome { number, name } => {
                body.push(1);
                body.extend(number.to_le_bytes());
                body.extend(name);
            }
            Reply::Refused(why) => {
                body.push(0);
                body.extend(why.as_bytes());
            }
        }
        body
    }

    pub(crate) fn decode(body: &[u8]) -> Result<Reply, FabricError> {
        let mut reader = Reader(body.strip_prefix(&OWN).ok_or(FabricError::Foreign)?);
        match reader.bytes(1) {
            Some([0]) => Ok(Reply::Refused(String::from_utf8_lossy(reader.0).into_owned())),
            Some([1]) => Ok(Reply::Welcome {
                number: reader.number().ok_or(FabricError::Foreign)?,
                name: reader.0.to_vec(),
            }),
            _ => Err(FabricError::Foreign),
        }
    }
}

struct Reader<'b>(&'b [u8]);

impl<'b> Reader<'b> {
    fn bytes(&mut self, count: usize) -> Option<&'b [u8]> {
        let (bytes, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(bytes)
    }

    fn number(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.bytes(8)?.try_into().ok()?))
    }
}

/// An unpredictable number.
pub(crate) fn random() -> Result<u64, String> {
    let mut number = [0; 8];
    rustix::rand::getrandom(&mut number, rustix::rand::GetRandomFlags::empty()).map_err(|error| error.to_string())?;
    Ok(u64::from_le_bytes(number))
}

/// In the length of a body: data is not in the stream. In a request a descriptor follows the body; in a reply the
/// data is where the request wanted it.
const APART: u32 = 1 << 31;
/// Length of a descriptor: an offset in the client's region (64 bits), and a length (32 bits).
pub(crate) const DESCRIPTOR_BYTES: usize = 12;

/// Memory of the client. In a request with data, the place of that data; in one without, the place for data of the
/// reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Descriptor {
    pub(crate) offset: u64,
    pub(crate) len_bytes: u32,
}

impl Descriptor {
    pub(crate) fn encode(self) -> [u8; DESCRIPTOR_BYTES] {
        let mut bytes = [0; DESCRIPTOR_BYTES];
        bytes[..8].copy_from_slice(&self.offset.to_le_bytes());
        bytes[8..].copy_from_slice(&self.len_bytes.to_le_bytes());
        bytes
    }

    /// Decodes the first bytes of `bytes`, if they lie within a region of this length.
    pub(crate) fn decode(bytes: &[u8], region_bytes: u64) -> Option<Descriptor> {
        let mut reader = Reader(bytes);
        let offset = reader.number()?;
        let len_bytes = u32::from_le_bytes(reader.bytes(4)?.try_into().ok()?);
        let end = offset.checked_add(u64::from(len_bytes))?;
        (end <= region_bytes && len_bytes as usize <= DATA_BYTES_MAX).then_some(Descriptor { offset, len_bytes })
    }
}

/// The prefix of a frame on a fabric.
pub(crate) fn prefix(lengths: Lengths, is_apart: bool) -> [u8; PREFIX_BYTES] {
    let mut prefix = lengths.encode();
    if is_apart {
        prefix[3] |= (APART >> 24) as u8;
    }
    prefix
}

/// Decodes such a prefix; `None` if there are too few bytes.
pub(crate) fn lengths(bytes: &[u8]) -> Result<Option<(Lengths, bool)>, FabricError> {
    let Some(&first) = bytes.first_chunk::<PREFIX_BYTES>() else {
        return Ok(None);
    };
    let mut plain = first;
    plain[3] &= !((APART >> 24) as u8);
    debug_assert!(BODY_BYTES_MAX < APART as usize);
    Ok(Lengths::decode(&plain)?.map(|lengths| (lengths, plain != first)))
}

/// Marks the beginning of a reply whose data has arrived; the rest stays as it was.
pub(crate) fn mark_apart(head: &mut [u8]) {
    if let Ok(Some((lengths, _))) = lengths(head) {
        head[..PREFIX_BYTES].copy_from_slice(&prefix(lengths, true));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn introductions_and_replies_come_back_and_garbage_does_not() {
        let introduction = Introduction {
            provider: Provider::Shm,
            region: Remote { address: 1, key: 2 },
            region_bytes: 3,
            name: b"fi_shm://1".to_vec(),
        };
        let body = introduction.encode();
        assert_eq!(Introduction::decode(&body), Ok(introduction));
        for len in 0..OWN.len() + 1 + 24 + 4 {
            assert!(Introduction::decode(&body[..len]).is_err(), "{len}");
        }
        let mut other = body.clone();
        other[8] = 9;
        assert!(Introduction::decode(&other).unwrap_err().contains("version 9"));
        for reply in [
            Reply::Refused("no".into()),
            Reply::Welcome {
                number: 7,
                name: vec![1, 2],
            },
        ] {
            assert_eq!(Reply::decode(&reply.encode()).unwrap(), reply);
        }
        assert!(Reply::decode(&[0; 20]).is_err());
        assert!(Reply::decode(&[OWN.as_slice(), &[1, 2]].concat()).is_err());
    }

    /// A waiting end polls often at first, and hardly ever after a while: an idle server costs no CPU.
    #[test]
    fn the_longer_the_silence_the_longer_the_sleep() {
        let busy_poll = Duration::from_micros(200);
        let pause_after = |ms: u64| pause(Duration::from_micros(ms * 1000), busy_poll);
        assert_eq!(pause(Duration::from_micros(100), busy_poll), Duration::ZERO);
        assert_eq!(pause(Duration::from_micros(100), Duration::ZERO), NAP);
        assert_eq!((pause_after(1), pause_after(49)), (NAP, NAP));
        assert_eq!(pause_after(50), Duration::from_millis(20));
        assert_eq!(pause_after(1000), Duration::from_millis(250));
        assert_eq!((pause_after(4000), pause_after(1_000_000)), (SLEEP.1, SLEEP.1));
    }

    #[test]
    fn descriptors_stay_within_their_region() {
        let descriptor = Descriptor {
            offset: 4096,
            len_bytes: 100,
        };
        assert_eq!(Descriptor::decode(&descriptor.encode(), 4196), Some(descriptor));
        assert_eq!(Descriptor::decode(&descriptor.encode(), 4195), None);
        let far = Descriptor {
            offset: u64::MAX - 10,
            len_bytes: 100,
        };
        assert_eq!(Descriptor::decode(&far.encode(), u64::MAX), None);
        assert_eq!(Descriptor::decode(&descriptor.encode()[..11], u64::MAX), None);
    }
}
