//! [`ClientOptions`]: how this process reaches exports of servers.
//!
//! Invariant: an option that an address gives as well is refused, so neither silently wins.

use std::path::Path;
use std::time::Duration;

use ferrite_client::secure;
use ferrite_client::volume::{RemoteAddress, RemoteVolume};
use ferrite_vfs::volume::{VolumeError, VolumeErrorKind};

use crate::error::{Error, Result};

/// The key of an export: a secret that its server and its clients share. `ferrite key FILE` makes one. `Debug` does not
/// show the secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key(secure::Key);

impl Key {
    /// Reads a key from its file. Blocks.
    ///
    /// # Errors
    /// A file that cannot be read, that other users can read, or that holds no key.
    pub fn read(path: impl AsRef<Path>) -> Result<Key> {
        let path = path.as_ref();
        secure::Key::read(path).map(Key).map_err(|error| {
            let error = VolumeError::new(VolumeErrorKind::Medium, error).with_name_in_text();
            Error::new("read the key", path, error)
        })
    }

    /// The key that the line of a file describes, for secrets that are not in files; `None` if it describes none.
    pub fn parse(line: &str) -> Option<Key> {
        secure::Key::parse(line).map(Key)
    }
}

/// Whether the traffic with a server is encrypted. It is if either end wants it. Encryption needs a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Encrypt {
    /// Unless the server is on this host.
    #[default]
    Auto,
    /// Always.
    On,
    /// Only if the server insists.
    Off,
}

/// How to reach the export of a server. The address may give the key, the encryption and the cache itself
/// (`?key=FILE&encrypt=on&cache=leased`); an option that both give is refused.
///
/// ```
/// use std::time::Duration;
///
/// let options = ferrite::ClientOptions::default()
///     .timeout(Duration::from_secs(5))
///     .encrypt(ferrite::Encrypt::On)
///     .cache_bytes(16 << 20);
/// # let _ = options;
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
#[must_use]
pub struct ClientOptions {
    timeout: Option<Duration>,
    connect_timeout: Option<Duration>,
    key: Option<Key>,
    encrypt: Option<Encrypt>,
    cache_bytes: Option<usize>,
    changes_in_flight: Option<u32>,
    busy_poll: Option<Duration>,
}

impl ClientOptions {
    /// Options that leave everything to the defaults.
    pub fn new() -> ClientOptions {
        ClientOptions::default()
    }

    /// How long a call waits for a server that is unreachable, or does not reply; then it fails with `ETIMEDOUT`, and a
    /// change may still happen. By default a call waits until the server is back.
    pub fn timeout(mut self, timeout: Duration) -> ClientOptions {
        self.timeout = Some(timeout);
        self
    }

    /// How long opening may take; by default 10 seconds.
    pub fn connect_timeout(mut self, timeout: Duration) -> ClientOptions {
        self.connect_timeout = Some(timeout);
        self
    }

    /// The key of the export. Without one, only exports that have none can be reached, and only from their host.
    pub fn key(mut self, key: Key) -> ClientOptions {
        self.key = Some(key);
        self
    }

    /// Whether to encrypt the traffic; by default [`Encrypt::Auto`].
    pub fn encrypt(mut self, encrypt: Encrypt) -> ClientOptions {
        self.encrypt = Some(encrypt);
        self
    }

    /// Caches up to so many bytes of attributes, names and data under leases, which the server recalls before it
    /// changes anything. By default nothing is cached, and each call asks the server.
    pub fn cache_bytes(mut self, bytes: usize) -> ClientOptions {
        self.cache_bytes = Some(bytes);
        self
    }

    /// How many changes may be in flight at a time; by default 64. The server may grant fewer.
    pub fn changes_in_flight(mut self, changes: u32) -> ClientOptions {
        self.changes_in_flight = Some(changes);
        self
    }

    /// How long a thread polls for its reply before it sleeps, at most, where polling pays. Zero: it sleeps at once.
    pub fn busy_poll(mut self, busy_poll: Duration) -> ClientOptions {
        self.busy_poll = Some(busy_poll);
        self
    }

    /// The names of the options that were given.
    pub(crate) fn given(&self) -> Vec<&'static str> {
        let ClientOptions {
            timeout,
            connect_timeout,
            key,
            encrypt,
            cache_bytes,
            changes_in_flight,
            busy_poll,
        } = self;
        let all = [
            ("timeout", timeout.is_some()),
            ("connect_timeout", connect_timeout.is_some()),
            ("key", key.is_some()),
            ("encrypt", encrypt.is_some()),
            ("cache_bytes", cache_bytes.is_some()),
            ("changes_in_flight", changes_in_flight.is_some()),
            ("busy_poll", busy_poll.is_some()),
        ];
        let given = all.into_iter().filter(|(_, is_given)| *is_given);
        given.map(|(name, _)| name).collect()
    }

    /// Connects to the export at an address. Blocks.
    pub(crate) fn connect(&self, address: &str, read_only: bool) -> std::result::Result<RemoteVolume, VolumeError> {
        let parsed =
            RemoteAddress::parse(address).map_err(|error| VolumeError::new(VolumeErrorKind::Invalid, error))?;
        for (name, in_both) in [
            ("key", parsed.key.is_some() && self.key.is_some()),
            ("encrypt", parsed.encrypt.is_some() && self.encrypt.is_some()),
            ("cache", parsed.cache.is_some() && self.cache_bytes.is_some()),
        ] {
            if in_both {
                let text = format!("{address}: the address gives `{name}`, and so do the options; give it once");
                return Err(VolumeError::new(VolumeErrorKind::Invalid, text).with_name_in_text());
            }
        }
        let encrypt = match self.encrypt.unwrap_or_default() {
            Encrypt::Auto => secure::Encrypt::Auto,
            Encrypt::On => secure::Encrypt::On,
            Encrypt::Off => secure::Encrypt::Off,
        };
        let mut wanted = ferrite_client::ClientOptions::default()
            .read_only(read_only)
            .timeout(self.timeout)
            .key(self.key.as_ref().map(|key| key.0.clone()))
            .encrypt(encrypt)
            .cache_bytes(self.cache_bytes);
        wanted.connect = self.connect_timeout.unwrap_or(wanted.connect);
        wanted.slots = self.changes_in_flight.unwrap_or(wanted.slots).max(1);
        wanted.busy_poll = self.busy_poll.unwrap_or(wanted.busy_poll);
        RemoteVolume::open(address, &wanted)
    }
}
