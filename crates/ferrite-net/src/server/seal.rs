//! Seals: numbers that only this server can make, with which it knows what it has said to a client.
//!
//! A seal is SipHash-2-4 with the pool's secret. A client that makes one up is right once in 2^64 tries, each of which
//! is a request.

use std::hash::Hasher;

use ferrite_vfs::{Ino, OpenMode};
use siphasher::sip::SipHasher24;

use crate::wire::{Node, Ticket};

/// What makes seals. A pool has one.
#[derive(Clone, Copy)]
pub(super) struct Sealer {
    keys: (u64, u64),
}

/// What a seal is on; no two kinds are mistaken for each other.
#[derive(Clone, Copy)]
enum Kind {
    Node = 1,
    File = 2,
    Session = 3,
}

impl Sealer {
    pub(super) fn new(secret: [u8; 16]) -> Sealer {
        let secret = u128::from_le_bytes(secret);
        Sealer {
            keys: (secret as u64, (secret >> 64) as u64),
        }
    }

    fn seal(&self, kind: Kind, export: &str, numbers: [u64; 3]) -> u64 {
        let mut hasher = SipHasher24::new_with_keys(self.keys.0, self.keys.1);
        hasher.write_u8(kind as u8);
        numbers.into_iter().for_each(|number| hasher.write_u64(number));
        hasher.write(export.as_bytes());
        hasher.finish()
    }

    pub(super) fn node(&self, export: &str, ino: Ino, generation: u32) -> Node {
        Node {
            ino,
            generation,
            seal: self.seal(Kind::Node, export, [ino, u64::from(generation), 0]),
        }
    }

    pub(super) fn file(&self, export: &str, ino: Ino, generation: u32, mode: OpenMode) -> u64 {
        // That it was truncated when it was opened is over.
        let mode = u64::from(mode.read) | u64::from(mode.write) << 1 | u64::from(mode.no_atime) << 2;
        self.seal(Kind::File, export, [ino, u64::from(generation), mode])
    }

    pub(super) fn ticket(&self, export: &str, session: u64) -> Ticket {
        Ticket {
            session,
            seal: self.seal(Kind::Session, export, [session, 0, 0]),
        }
    }
}
