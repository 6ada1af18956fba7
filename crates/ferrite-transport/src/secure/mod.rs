//! Admission of clients, and encryption of their traffic.
//!
//! Contents: [`Key`], a secret that both ends have; the handshake that opens every connection ([`handshake`]), in which
//! both prove that they have it; [`AdmissionPolicy`], a server's demands on its clients; the records that carry
//! encrypted bytes ([`record`]).
//!
//! The handshake is `Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s`: two messages, and a record by which the client proves that
//! it has not merely replayed another's message. The keys of a connection are its own, and are gone when it ends: an
//! attacker who gets the secret later cannot read traffic recorded earlier.
//!
//! Invariants: a client that has a key continues only after the server has proved that it has the same; that proof
//! covers everything both agreed on, also whether they encrypt. Before its proof a connection makes the server allocate
//! nothing but [`handshake::Responder`], which is less than a KiB.

#[cfg(test)]
mod adversaries;
pub mod handshake;
mod key;
pub mod record;

use std::net::IpAddr;

pub use key::{Key, KeyError, KeyId};

/// Whether a client wants its traffic to be encrypted. It is if either end wants it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Encrypt {
    /// Unless the server is on this host.
    #[default]
    Auto,
    /// Always.
    On,
    /// Only if the server insists.
    Off,
}

impl Encrypt {
    /// Whether this client insists on it with a server at `address`.
    pub fn wants(self, address: IpAddr) -> bool {
        match self {
            Encrypt::Auto => !is_loopback(address),
            Encrypt::On => true,
            Encrypt::Off => false,
        }
    }
}

/// Whether a server insists on encryption. Later variants are stricter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Encryption {
    /// Never: clients decide.
    Offered,
    /// With clients on other hosts. Those on this host decide.
    #[default]
    Remote,
    /// With all clients.
    Always,
}

impl Encryption {
    /// Whether this server insists on it with a client at `address`.
    pub fn wants(self, address: IpAddr) -> bool {
        match self {
            Encryption::Offered => false,
            Encryption::Remote => !is_loopback(address),
            Encryption::Always => true,
        }
    }
}

/// Whether an address is one of this host's own, which no other host can have.
pub fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

/// A client's credentials.
#[derive(Debug, Clone, Default)]
pub struct Credentials {
    /// The key, if it has one. With a key, the client connects only to a server that proves to have the same.
    pub key: Option<Key>,
    /// Whether it wants encryption; needs a key.
    pub encrypt: Encrypt,
}

/// A server's demands on its clients.
#[derive(Debug, Clone, Default)]
pub struct AdmissionPolicy {
    keys: Vec<(Key, Encryption)>,
    has_open: bool,
}

impl AdmissionPolicy {
    /// `has_open`: some export can be reached without a key, from this host; with `false`, none can.
    pub fn new(has_open: bool) -> AdmissionPolicy {
        AdmissionPolicy {
            keys: Vec::new(),
            has_open,
        }
    }

    /// Admits clients that have `key`. If the key was admitted before, the stricter `encryption` counts.
    pub fn admit(&mut self, key: &Key, encryption: Encryption) {
        match self.keys.iter_mut().find(|(known, _)| known.id() == key.id()) {
            Some((_, known)) => *known = encryption.max(*known),
            None => self.keys.push((key.clone(), encryption)),
        }
    }

    /// Whether a client at `address` is admitted without a key.
    fn admits_without_key(&self, address: IpAddr) -> bool {
        self.has_open && is_loopback(address)
    }

    fn key(&self, id: KeyId) -> Option<(&Key, Encryption)> {
        let found = self.keys.iter().find(|(key, _)| key.id() == id);
        found.map(|(key, encryption)| (key, *encryption))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encryption_is_off_on_loopback_only_unless_said_otherwise() {
        let (near, far): (IpAddr, IpAddr) = ("127.0.0.2".parse().unwrap(), "192.0.2.1".parse().unwrap());
        let mapped: IpAddr = "::ffff:127.0.0.1".parse().unwrap();
        assert!(is_loopback(mapped) && is_loopback("::1".parse().unwrap()));
        assert!(!is_loopback("::".parse().unwrap()) && !is_loopback("::ffff:192.0.2.1".parse().unwrap()));
        assert!(!Encrypt::default().wants(near) && Encrypt::default().wants(far));
        assert!(!Encryption::default().wants(near) && Encryption::default().wants(far));
        assert!(Encrypt::On.wants(near) && Encryption::Always.wants(near));
        assert!(!Encrypt::Off.wants(far) && !Encryption::Offered.wants(far));
    }

    #[test]
    fn the_strictest_rule_of_a_key_counts() {
        let key = Key::generate().unwrap();
        let mut policy = AdmissionPolicy::new(false);
        policy.admit(&key, Encryption::Always);
        policy.admit(&key, Encryption::Offered);
        assert_eq!(policy.key(key.id()).map(|(_, rule)| rule), Some(Encryption::Always));
        assert!(policy.key(Key::generate().unwrap().id()).is_none());
        assert!(!policy.admits_without_key("127.0.0.1".parse().unwrap()));
        let open = AdmissionPolicy::new(true);
        assert!(open.admits_without_key("127.0.0.1".parse().unwrap()));
        assert!(!open.admits_without_key("192.0.2.1".parse().unwrap()));
    }
}
