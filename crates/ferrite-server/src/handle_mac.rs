//! MACs of handles, which only this server can make, by which it recognizes what it has sent to a client.
//!
//! A MAC is SipHash-2-4 with the pool's secret. A forged one is right once in 2^64 tries, each of which is a request.
//! It covers the export: its name, its root inode, and its epoch. So an export's MACs become invalid once its `path`
//! leads elsewhere, or the administrator has changed its epoch.

use std::hash::Hasher;

use ferrite_vfs::{Ino, OpenMode};
use siphasher::sip::SipHasher24;

use ferrite_proto::{Node, ResumeToken};

/// The maker of MACs. An export has one.
#[derive(Clone)]
pub(super) struct HandleAuthenticator {
    keys: (u64, u64),
    /// The part that every MAC of the export covers.
    label: Vec<u8>,
}

/// An export, as its MACs cover it.
#[derive(Clone, Copy)]
pub(super) struct MacScope<'e> {
    pub(super) name: &'e str,
    pub(super) root: Ino,
    pub(super) root_generation: u32,
    pub(super) epoch: u64,
}

/// The kind of the authenticated object; no two kinds can be confused.
#[derive(Clone, Copy)]
enum Kind {
    Node = 1,
    File = 2,
    Session = 3,
}

impl HandleAuthenticator {
    pub(super) fn new(secret: [u8; 16], export: MacScope<'_>) -> HandleAuthenticator {
        let secret = u128::from_le_bytes(secret);
        let numbers = [export.root, u64::from(export.root_generation), export.epoch];
        let mut label: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        // Last: only the name has no fixed length.
        label.extend_from_slice(export.name.as_bytes());
        HandleAuthenticator {
            keys: (secret as u64, (secret >> 64) as u64),
            label,
        }
    }

    fn mac(&self, kind: Kind, numbers: [u64; 3]) -> u64 {
        let mut hasher = SipHasher24::new_with_keys(self.keys.0, self.keys.1);
        hasher.write_u8(kind as u8);
        numbers.into_iter().for_each(|number| hasher.write_u64(number));
        hasher.write(&self.label);
        hasher.finish()
    }

    pub(super) fn node(&self, ino: Ino, generation: u32) -> Node {
        Node {
            ino,
            generation,
            mac: self.mac(Kind::Node, [ino, u64::from(generation), 0]),
        }
    }

    pub(super) fn file(&self, ino: Ino, generation: u32, mode: OpenMode) -> u64 {
        // The truncation at its opening is done.
        let mode = u64::from(mode.read) | u64::from(mode.write) << 1 | u64::from(mode.no_atime) << 2;
        self.mac(Kind::File, [ino, u64::from(generation), mode])
    }

    pub(super) fn resume_token(&self, session: u64) -> ResumeToken {
        ResumeToken {
            session,
            mac: self.mac(Kind::Session, [session, 0, 0]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCOPE: MacScope<'_> = MacScope {
        name: "data",
        root: 7,
        root_generation: 3,
        epoch: 0,
    };

    #[test]
    fn every_mac_covers_all_that_an_export_is() {
        let macs = |export: MacScope<'_>| {
            let authenticator = HandleAuthenticator::new([9; 16], export);
            [
                authenticator.node(5, 6).mac,
                authenticator.file(5, 6, OpenMode::read_only()),
                authenticator.resume_token(5).mac,
            ]
        };
        let others = [
            MacScope { name: "date", ..SCOPE },
            MacScope { root: 8, ..SCOPE },
            MacScope {
                root_generation: 4,
                ..SCOPE
            },
            MacScope { epoch: 1, ..SCOPE },
        ];
        let first = macs(SCOPE);
        assert_eq!(first, macs(SCOPE));
        for other in others.map(macs) {
            assert!(first.iter().zip(&other).all(|(one, other)| one != other));
        }
    }
}
