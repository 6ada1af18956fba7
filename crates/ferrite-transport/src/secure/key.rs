//! Keys that a server and its clients share.

use std::fmt;
use std::path::Path;

use ferrite_secrets::{SECRET_BYTES, Secret};
use snow::params::HashChoice;
use snow::resolvers::{CryptoResolver, DefaultResolver};

pub use ferrite_secrets::KeyError;

/// Separates the name of a key from everything else that is computed from it.
const ID_CONTEXT: &[u8] = b"ferrite key id 1\0";

/// A secret that a server and its clients share.
#[derive(Clone, PartialEq, Eq)]
pub struct Key {
    secret: Secret,
    id: KeyId,
}

/// The name of a key, by which a client tells the server which of its keys it has. Computed from the key, and of no
/// help in finding it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyId(pub(super) [u8; KeyId::BYTES]);

impl KeyId {
    /// Length in bytes.
    pub const BYTES: usize = 16;
}

/// The first half of it, which is enough for people.
impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..8].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Key {
    /// Generates a new random key.
    pub fn generate() -> Result<Key, KeyError> {
        Secret::generate().map(Key::new)
    }

    fn new(secret: Secret) -> Key {
        let mut hash = [0; 64];
        if let Some(mut hasher) = DefaultResolver.resolve_hash(&HashChoice::Blake2s) {
            hasher.input(ID_CONTEXT);
            hasher.input(secret.bytes());
            hasher.result(&mut hash);
        }
        let mut id = [0; KeyId::BYTES];
        id.copy_from_slice(&hash[..KeyId::BYTES]);
        Key { secret, id: KeyId(id) }
    }

    /// Its name.
    pub fn id(&self) -> KeyId {
        self.id
    }

    pub(super) fn secret(&self) -> &[u8; SECRET_BYTES] {
        self.secret.bytes()
    }

    /// Reads the line of a key file. `None` if it is not a key.
    pub fn parse(line: &str) -> Option<Key> {
        Secret::parse(line).map(Key::new)
    }

    /// The line of this key's file, with its end.
    pub fn line(&self) -> String {
        self.secret.line().to_string()
    }

    /// Reads a key file. Blocks.
    ///
    /// # Errors
    /// If it cannot be read, is no key, or others than its owner can read or change it.
    pub fn read(path: &Path) -> Result<Key, KeyError> {
        Secret::read(path).map(Key::new)
    }

    /// Writes a new file, which only its owner can read. Blocks; the file is durable when this returns.
    ///
    /// # Errors
    /// If a file of this name exists, or it cannot be written.
    pub fn write_new(&self, path: &Path) -> Result<(), KeyError> {
        self.secret.write_new(path)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({})", self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_key_says_nothing_about_its_secret() {
        let (key, another) = (Key::generate().unwrap(), Key::generate().unwrap());
        assert!(another != key && another.id() != key.id());
        assert_eq!(Key::parse(&key.line()).unwrap().id(), key.id());
        let line = key.line();
        assert!(!line.contains(&key.id().to_string()) && !line.contains(&format!("{key:?}")));
    }
}
