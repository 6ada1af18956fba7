//! How a connection opens: who the peer is, which key both have, and whether they encrypt.
//!
//! The client sends a *preamble*. With a key it also sends the first message of the Noise handshake, whose prologue is
//! the preamble, so that no attacker can change that in transit. The server sends a *verdict* and, to a client with a
//! key, the second message. The client then sends a record without content, which only the author of the first message
//! can make; before this record the server gives the client nothing.
//!
//! Contents: [`introduce`], the client's side, which blocks; [`Responder`], the server's, which takes bytes as
//! they come.
//!
//! Invariant: a key that the server does not know and one that the client does not have look alike from outside.

use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpStream};
use std::time::{Duration, Instant};

use snow::{Builder, HandshakeState};

use super::record::{HEAD_BYTES, Opener, Sealer, TAG_BYTES, split};
use super::{AdmissionPolicy, Credentials, Key, KeyId};
use crate::error::HandshakeError;

const MAGIC: [u8; 8] = *b"\xf3errite\n";
const VERSION: u8 = 1;
const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";

/// Length of a preamble: magic, version, kind, two zeros, name of the key.
pub const PREAMBLE_BYTES: usize = 28;
/// Length of a verdict: magic, version, verdict, two zeros.
pub const VERDICT_BYTES: usize = 12;
/// Length of each of the two messages: a public key, a byte of content, and its authentication tag.
pub const MESSAGE_BYTES: usize = 32 + 1 + TAG_BYTES;
/// Length of the record that ends the handshake.
const PROOF_BYTES: usize = HEAD_BYTES + TAG_BYTES;

/// Kinds of preambles.
const PLAIN: u8 = 0;
const KEYED: u8 = 1;

/// The content of the messages: whether the client wants, and then whether both have, encryption.
const NO_ENCRYPTION: u8 = 0;
const ENCRYPTION: u8 = 1;

/// A server's decision on a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Welcome = 0,
    KeyWanted = 1,
    KeyRefused = 2,
    OtherVersion = 3,
    Full = 4,
}

/// The verdict for a client that exceeds the server's capacity, sent before it has sent anything.
pub(crate) const FULL: [u8; VERDICT_BYTES] = {
    let mut verdict = [0; VERDICT_BYTES];
    let mut at = 0;
    while at < MAGIC.len() {
        verdict[at] = MAGIC[at];
        at += 1;
    }
    verdict[8] = VERSION;
    verdict[9] = Verdict::Full as u8;
    verdict
};

fn preamble(kind: u8, id: KeyId) -> [u8; PREAMBLE_BYTES] {
    let mut preamble = [0; PREAMBLE_BYTES];
    preamble[..8].copy_from_slice(&MAGIC);
    preamble[8] = VERSION;
    preamble[9] = kind;
    preamble[12..].copy_from_slice(&id.0);
    preamble
}

pub(super) fn noise<'k>(secret: &'k [u8; 32], prologue: &'k [u8]) -> Result<Builder<'k>, snow::Error> {
    Builder::new(PATTERN.parse()?).psk(0, secret)?.prologue(prologue)
}

/// Opens a connection as a client, with the stream's timeouts as ticks, and until `deadline` at the latest. Returns the
/// sealer and the opener of its records, if both encrypt. Blocks.
///
/// # Errors
/// If the server does not admit the client, or does not prove that it has the key.
pub fn introduce(
    mut stream: &TcpStream,
    credentials: &Credentials,
    deadline: Instant,
) -> Result<Option<(Sealer, Opener)>, HandshakeError> {
    let Some(key) = &credentials.key else {
        stream.write_all(&preamble(PLAIN, KeyId([0; KeyId::BYTES])))?;
        take_verdict(stream, None, deadline)?;
        return Ok(None);
    };
    let server = stream.peer_addr()?.ip();
    let preamble = preamble(KEYED, key.id());
    let unproved = |_: snow::Error| HandshakeError::Unproved { key: key.id() };
    let mut noise = noise(key.secret(), &preamble)
        .and_then(Builder::build_initiator)
        .map_err(unproved)?;
    let wants_encryption = credentials.encrypt.wants(server);
    let mut opening = [0; PREAMBLE_BYTES + MESSAGE_BYTES];
    opening[..PREAMBLE_BYTES].copy_from_slice(&preamble);
    noise
        .write_message(&[u8::from(wants_encryption)], &mut opening[PREAMBLE_BYTES..])
        .map_err(unproved)?;
    stream.write_all(&opening)?;
    take_verdict(stream, Some(key.id()), deadline)?;
    let mut message = [0; MESSAGE_BYTES];
    read_exact(stream, &mut message, deadline)?;
    let mut content = [0; MESSAGE_BYTES];
    let said = noise.read_message(&message, &mut content).map_err(unproved)?;
    let is_encrypted = match content[..said] {
        [ENCRYPTION] => true,
        [NO_ENCRYPTION] if !wants_encryption => false,
        _ => return Err(HandshakeError::Unproved { key: key.id() }),
    };
    let (mut sealer, opener) = split(noise.into_stateless_transport_mode().map_err(unproved)?);
    let mut proof = Vec::with_capacity(PROOF_BYTES);
    sealer.seal(&[], &mut proof)?;
    stream.write_all(&proof)?;
    Ok(is_encrypted.then_some((sealer, opener)))
}

fn take_verdict(stream: &TcpStream, key: Option<KeyId>, deadline: Instant) -> Result<(), HandshakeError> {
    let mut verdict = [0; VERDICT_BYTES];
    read_exact(stream, &mut verdict, deadline)?;
    if verdict[..8] != MAGIC {
        return Err(HandshakeError::Foreign);
    }
    match (verdict[9], key) {
        (said, _) if said == Verdict::OtherVersion as u8 || verdict[8] != VERSION => {
            Err(HandshakeError::OtherVersion {
                theirs: verdict[8],
                ours: VERSION,
            })
        }
        (said, _) if said == Verdict::Welcome as u8 => Ok(()),
        (said, _) if said == Verdict::Full as u8 => Err(HandshakeError::Full),
        (said, Some(key)) if said == Verdict::KeyRefused as u8 => Err(HandshakeError::KeyRefused { key }),
        (said, None) if said == Verdict::KeyWanted as u8 => Err(HandshakeError::KeyWanted),
        _ => Err(HandshakeError::Foreign),
    }
}

fn read_exact(mut stream: &TcpStream, mut buf: &mut [u8], deadline: Instant) -> Result<(), HandshakeError> {
    let began = Instant::now();
    while !buf.is_empty() {
        match stream.read(buf) {
            Ok(0) => return Err(HandshakeError::Closed),
            Ok(count) => buf = &mut buf[count..],
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted => {}
                io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => return Err(HandshakeError::Closed),
                _ => return Err(error.into()),
            },
        }
        // Also while bytes arrive: a server that trickles must not hold the client past its deadline.
        if !buf.is_empty() && Instant::now() >= deadline {
            return Err(HandshakeError::Silent(began.elapsed().max(Duration::from_millis(1))));
        }
    }
    Ok(())
}

/// An admitted client.
pub struct Admitted {
    /// The key that it has proved to have; `None` if it has none.
    pub key: Option<KeyId>,
    /// The sealer and the opener of its records, if both encrypt.
    pub records: Option<(Sealer, Opener)>,
}

/// The state of the handshake after some bytes.
pub enum Progress {
    /// More bytes have to come.
    More,
    /// The handshake has succeeded.
    Admitted(Box<Admitted>),
    /// The handshake has failed: the client gets the reply, and nothing else.
    Refused,
    /// The bytes are no preamble, so there is no reply.
    Foreign,
}

enum Phase {
    Preamble,
    /// The first message of a client, with the name of the key that it claims.
    Message,
    /// The record that ends the handshake.
    Proof(Box<Established>),
    Over,
}

struct Established {
    key: KeyId,
    sealer: Sealer,
    opener: Opener,
    is_encrypted: bool,
}

/// The server's side of a handshake. Takes the bytes of the client as they come, and none that follow the handshake.
pub struct Responder {
    got: [u8; PREAMBLE_BYTES + MESSAGE_BYTES],
    filled: usize,
    needed: usize,
    phase: Phase,
}

impl Default for Responder {
    fn default() -> Self {
        Responder {
            got: [0; PREAMBLE_BYTES + MESSAGE_BYTES],
            filled: 0,
            needed: PREAMBLE_BYTES,
            phase: Phase::Preamble,
        }
    }
}

impl Responder {
    /// The place for the next bytes of the client. Not empty before the handshake is over.
    pub fn buf(&mut self) -> &mut [u8] {
        &mut self.got[self.filled..self.needed]
    }

    /// Processes `count` bytes put into the buffer. Appends the reply to the client to `out`.
    pub fn received(&mut self, count: usize, policy: &AdmissionPolicy, client: IpAddr, out: &mut Vec<u8>) -> Progress {
        self.filled += count;
        let known = self.filled.min(MAGIC.len());
        if matches!(self.phase, Phase::Preamble) && self.got[..known] != MAGIC[..known] {
            return Progress::Foreign;
        }
        if self.filled < self.needed {
            return Progress::More;
        }
        match std::mem::replace(&mut self.phase, Phase::Over) {
            Phase::Preamble if self.got[8] != VERSION => refuse(Verdict::OtherVersion, out),
            Phase::Preamble if self.got[9] == PLAIN && !policy.admits_without_key(client) => {
                refuse(Verdict::KeyWanted, out)
            }
            Phase::Preamble if self.got[9] == PLAIN => {
                say(Verdict::Welcome, out);
                Progress::Admitted(Box::new(Admitted {
                    key: None,
                    records: None,
                }))
            }
            Phase::Preamble if self.got[9] == KEYED => {
                self.needed = PREAMBLE_BYTES + MESSAGE_BYTES;
                self.phase = Phase::Message;
                Progress::More
            }
            Phase::Preamble | Phase::Over => Progress::Foreign,
            Phase::Message => match self.reply(policy, client) {
                Some((message, established)) => {
                    say(Verdict::Welcome, out);
                    out.extend_from_slice(&message);
                    (self.filled, self.needed) = (0, PROOF_BYTES);
                    self.phase = Phase::Proof(Box::new(established));
                    Progress::More
                }
                None => refuse(Verdict::KeyRefused, out),
            },
            Phase::Proof(established) => {
                let Established {
                    key,
                    sealer,
                    mut opener,
                    is_encrypted,
                } = *established;
                let length = u16::from_le_bytes([self.got[0], self.got[1]]);
                let mut content = [0; TAG_BYTES];
                if usize::from(length) != TAG_BYTES || opener.open_one(&self.got[..PROOF_BYTES], &mut content).is_err()
                {
                    return Progress::Foreign;
                }
                Progress::Admitted(Box::new(Admitted {
                    key: Some(key),
                    records: is_encrypted.then_some((sealer, opener)),
                }))
            }
        }
    }

    /// Whether the client knows the key that it names; the reply to it then.
    fn reply(&self, policy: &AdmissionPolicy, client: IpAddr) -> Option<([u8; MESSAGE_BYTES], Established)> {
        let (preamble, message) = self.got.split_at(PREAMBLE_BYTES);
        let mut id = KeyId([0; KeyId::BYTES]);
        id.0.copy_from_slice(&preamble[12..]);
        let known = policy.key(id);
        // An unknown key costs as much work as a known one, and then it fails as well.
        let secret = known.map_or(&[0; 32], |(key, _): (&Key, _)| key.secret());
        let mut noise: HandshakeState = noise(secret, preamble).ok()?.build_responder().ok()?;
        let mut wish = [0; MESSAGE_BYTES];
        let said = noise.read_message(message, &mut wish);
        let (_, encryption) = known?;
        let client_wants = match wish[..said.ok()?] {
            [NO_ENCRYPTION] => false,
            [ENCRYPTION] => true,
            _ => return None,
        };
        let is_encrypted = client_wants || encryption.wants(client);
        let mut reply = [0; MESSAGE_BYTES];
        noise.write_message(&[u8::from(is_encrypted)], &mut reply).ok()?;
        let (sealer, opener) = split(noise.into_stateless_transport_mode().ok()?);
        let established = Established {
            key: id,
            sealer,
            opener,
            is_encrypted,
        };
        Some((reply, established))
    }
}

fn say(verdict: Verdict, out: &mut Vec<u8>) {
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&[VERSION, verdict as u8, 0, 0]);
}

fn refuse(verdict: Verdict, out: &mut Vec<u8>) -> Progress {
    say(verdict, out);
    Progress::Refused
}
