//! An export of a server as a volume, which the program and the library open by an address.

use std::any::Any;
use std::ffi::OsString;
use std::fmt::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ferrite_transport::secure::{Encrypt, Key};

use ferrite_vfs::volume::{
    DumpedPiece, InfoLine, Progress, ScrubReport, Volume, VolumeError, VolumeErrorKind, VolumeInfo, human_bytes,
};
use ferrite_vfs::{Durability, FileSystem, FsError, Ino, SYSTEM, SyncMode, Waits};
use parking_lot::Mutex;
use thiserror::Error;

use crate::addresses::{Addresses, BadServers};
use crate::{Client, ClientOptions, ConnectError, Fabric};
use ferrite_proto::Activity;

pub use crate::addresses::PORT;

/// The location of an export and how to reach it: `tcp://HOST:PORT/EXPORT?key=FILE&encrypt=on`, or
/// `fabric://HOST:PORT/EXPORT?provider=shm`. A volume that several servers may own has all of them:
/// `tcp://HOST:PORT,HOST:PORT/EXPORT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteAddress {
    /// The servers.
    pub servers: Addresses,
    /// The export's name; may be empty.
    pub export: String,
    /// The file of its key.
    pub key: Option<PathBuf>,
    /// Whether to encrypt the traffic.
    pub encrypt: Option<Encrypt>,
    /// Whether the client caches the server's replies, under leases.
    pub cache: Option<Caching>,
    /// The client reaches it over a fabric, with this provider or, if it is empty, the best available.
    pub fabric: Option<String>,
}

/// A client's caching of replies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caching {
    /// None: each call asks the server.
    Off,
    /// Answers under leases, up to [`CACHE_BYTES`].
    Leased,
}

/// The cache limit of an export that is opened by its address.
pub const CACHE_BYTES: usize = 64 << 20;

/// How long a server may take to report its space.
const INFO_WITHIN: Duration = Duration::from_secs(2);

/// Why a text is not an address of an export.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BadAddress {
    /// It has another form.
    #[error(
        "an address of an export is tcp://HOST:PORT/EXPORT or fabric://HOST:PORT/EXPORT, without /EXPORT for a \
         server's only one"
    )]
    Form,
    /// The part with the servers is wrong.
    #[error("{0}; an address of an export is tcp://HOST:PORT/EXPORT, or tcp://HOST:PORT,HOST:PORT/EXPORT")]
    Servers(#[from] BadServers),
    /// The part after the question mark is unknown.
    #[error(
        "`{0}`: behind the question mark may stand `key=FILE`, `encrypt=on`, `off` or `auto`, and `cache=leased` or \
         `off`, with `&` between; for fabric:// also `provider=shm`, `verbs`, `tcp` or `auto`"
    )]
    Option(String),
}

/// Parses whether to encrypt: `on`, `off` or `auto`.
pub fn parse_encrypt(text: &str) -> Option<Encrypt> {
    match text {
        "on" => Some(Encrypt::On),
        "off" => Some(Encrypt::Off),
        "auto" => Some(Encrypt::Auto),
        _ => None,
    }
}

/// Parses what to cache: `leased` or `off`.
pub fn parse_caching(text: &str) -> Option<Caching> {
    match text {
        "leased" => Some(Caching::Leased),
        "off" => Some(Caching::Off),
        _ => None,
    }
}

impl RemoteAddress {
    /// Parses an address.
    pub fn parse(text: &str) -> Result<RemoteAddress, BadAddress> {
        let (rest, is_fabric) = match (text.strip_prefix("tcp://"), text.strip_prefix("fabric://")) {
            (Some(rest), _) => (rest, false),
            (None, Some(rest)) => (rest, true),
            _ => return Err(BadAddress::Form),
        };
        let mut fabric = is_fabric.then(String::new);
        let (rest, options) = rest.split_once('?').unwrap_or((rest, ""));
        let (mut key, mut encrypt, mut cache) = (None, None, None);
        for option in options.split('&').filter(|option| !option.is_empty()) {
            let bad = || BadAddress::Option(option.to_owned());
            match option.split_once('=').ok_or_else(bad)? {
                ("key", file) if !file.is_empty() && key.is_none() => {
                    key = Some(decoded(file).ok_or_else(bad)?);
                }
                ("encrypt", word) if encrypt.is_none() => encrypt = Some(parse_encrypt(word).ok_or_else(bad)?),
                ("cache", word) if cache.is_none() => cache = Some(parse_caching(word).ok_or_else(bad)?),
                ("provider", "auto") if is_fabric => fabric = Some(String::new()),
                ("provider", word @ ("shm" | "verbs" | "tcp")) if is_fabric => fabric = Some(word.to_owned()),
                _ => return Err(bad()),
            }
        }
        let (servers, export) = rest.split_once('/').unwrap_or((rest, ""));
        if servers.is_empty() {
            return Err(BadAddress::Form);
        }
        Ok(RemoteAddress {
            servers: servers.parse()?,
            export: export.trim_end_matches('/').to_owned(),
            key,
            encrypt,
            cache,
            fabric,
        })
    }

    /// The address `text` with a key and settings of encryption and caching, where it does not give them itself.
    ///
    /// # Errors
    /// If it is not an address, or already gives one of them.
    pub fn with(
        text: &str,
        key: Option<&Path>,
        encrypt: Option<&str>,
        cache: Option<&str>,
    ) -> Result<String, BadAddress> {
        let mut text = text.to_owned();
        let mut add = |option: String| {
            text.push(if text.contains('?') { '&' } else { '?' });
            text.push_str(&option);
        };
        key.into_iter().for_each(|key| add(format!("key={}", encoded(key))));
        encrypt.into_iter().for_each(|word| add(format!("encrypt={word}")));
        cache.into_iter().for_each(|word| add(format!("cache={word}")));
        RemoteAddress::parse(&text).map(|_| text)
    }
}

/// A path in which bytes may be written as `%` and two hexadecimal digits.
fn decoded(text: &str) -> Option<PathBuf> {
    let (mut bytes, mut rest) = (Vec::new(), text.bytes());
    while let Some(byte) = rest.next() {
        let digit = |digit: Option<u8>| char::from(digit?).to_digit(16);
        bytes.push(match byte {
            b'%' => u8::try_from(digit(rest.next())? << 4 | digit(rest.next())?).ok()?,
            byte => byte,
        });
    }
    Some(OsString::from_vec(bytes).into())
}

/// A path in the form that [`decoded`] reads.
fn encoded(path: &Path) -> String {
    let mut text = String::new();
    for &byte in path.as_os_str().as_bytes() {
        match byte {
            b'/' | b'.' | b'-' | b'_' | b'~' => text.push(char::from(byte)),
            byte if byte.is_ascii_alphanumeric() => text.push(char::from(byte)),
            // Writing to a text does not fail.
            byte => drop(write!(text, "%{byte:02X}")),
        }
    }
    text
}

/// An opened export.
pub struct RemoteVolume {
    address: String,
    client: Mutex<Option<Arc<Client>>>,
    fs: Arc<Client>,
}

impl RemoteVolume {
    /// Connects to the export at an address, with the key whose file it names, if any. Blocks.
    pub fn open(address: &str, options: &ClientOptions) -> Result<RemoteVolume, VolumeError> {
        let parsed =
            RemoteAddress::parse(address).map_err(|error| VolumeError::new(VolumeErrorKind::Invalid, error))?;
        let mut options = options.clone();
        if let Some(file) = &parsed.key {
            let key = Key::read(file).map_err(|error| VolumeError::new(VolumeErrorKind::Medium, error))?;
            options = options.key(Some(key));
        }
        if let Some(encrypt) = parsed.encrypt {
            options = options.encrypt(encrypt);
        }
        if let Some(cache) = parsed.cache {
            options = options.cache_bytes((cache == Caching::Leased).then_some(CACHE_BYTES));
        }
        if let Some(provider) = parsed.fabric {
            options = options.fabric(Some(Fabric {
                provider: (!provider.is_empty()).then_some(provider),
                ..Fabric::default()
            }));
        }
        let client = Client::connect(&parsed.servers.to_string(), &parsed.export, &options).map_err(|error| {
            let kind = match error {
                ConnectError::Foreign { .. } => VolumeErrorKind::Foreign,
                _ => VolumeErrorKind::Medium,
            };
            VolumeError::new(kind, error)
        })?;
        let client = Arc::new(client);
        Ok(RemoteVolume {
            address: address.to_owned(),
            fs: Arc::clone(&client),
            client: Mutex::new(Some(client)),
        })
    }

    /// The client behind it.
    pub fn client(&self) -> Arc<Client> {
        Arc::clone(&self.fs)
    }

    /// The server's counters of operations on the export, by client.
    pub fn server_activity(&self) -> Result<Activity, FsError> {
        self.fs.activity()
    }

    fn only_on_the_server<T>(&self, what: &str) -> Result<T, VolumeError> {
        Err(VolumeError::new(
            VolumeErrorKind::Unsupported,
            format!("{what} is not possible over the network; do it on the server's host"),
        ))
    }
}

fn failed(error: FsError) -> VolumeError {
    let errno = error.errno();
    VolumeError::new(VolumeErrorKind::Medium, error).with_errno(Some(errno))
}

impl Volume for RemoteVolume {
    fn fs(&self) -> Arc<dyn FileSystem> {
        Arc::clone(&self.fs) as Arc<dyn FileSystem>
    }

    fn close(&self) -> Result<(), VolumeError> {
        // A second closer, such as a signal, returns only once it is closed.
        let mut client = self.client.lock();
        if client.take().is_some() {
            self.fs.close();
        }
        Ok(())
    }

    fn info(&self) -> Result<VolumeInfo, VolumeError> {
        // The caller must not wait for a server that is unreachable, nor leave a thread behind that does.
        let ctx = SYSTEM.clone().waiting(Waits::within(INFO_WITHIN));
        let space = self.fs.statfs(&ctx).map_err(failed)?;
        let limits = self.fs.limits();
        let unit = u64::from(space.block_bytes);
        let durability = match limits.durability {
            Durability::None => "completed operations last as long as the server's process",
            Durability::Process => "completed operations survive the death of the server, not a loss of power",
            Durability::Power => "completed operations survive a loss of power",
        };
        let synced = match limits.sync_mode {
            SyncMode::Through => "",
            SyncMode::Mirror => "; fsync waits for logs on two devices, or for the bucket",
            SyncMode::Back => "; fsync waits for a log, which is lost with its device",
        };
        let durability = &format!("{durability}{synced}");
        let line = |name: &str, value: String| InfoLine {
            name: name.to_owned(),
            value,
        };
        let bytes = |blocks: u64| blocks.saturating_mul(unit);
        let (capacity_bytes, free_bytes) = (bytes(space.blocks), bytes(space.blocks_free));
        let reconnects = self.fs.reconnects();
        let encryption = match self.fs.is_encrypted() {
            Some(true) => "on",
            Some(false) => "off",
            None => "not connected",
        };
        Ok(VolumeInfo {
            engine: "tcp".to_owned(),
            medium: format!("a server, {}", self.address),
            durability: durability.to_owned(),
            size_bytes: capacity_bytes,
            capacity_bytes,
            used_bytes: capacity_bytes.saturating_sub(free_bytes),
            available_bytes: bytes(space.blocks_available),
            inodes: space.inodes,
            inodes_free: space.inodes_free,
            lines: vec![
                line("server", self.address.clone()),
                line(
                    "connected to",
                    self.fs.server().map_or("no server now".to_owned(), |it| it.to_string()),
                ),
                line("durability", durability.to_owned()),
                line("encryption", encryption.to_owned()),
                line(
                    "space",
                    format!("{} free of {}", human_bytes(free_bytes), human_bytes(capacity_bytes)),
                ),
                line("inodes", format!("{} free of {}", space.inodes_free, space.inodes)),
                line("connected again", format!("{reconnects} times")),
            ],
            json: format!("{{\"reconnects\":{reconnects}}}"),
            ..VolumeInfo::default()
        })
    }

    fn damage(&self) -> Vec<String> {
        Vec::new()
    }

    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }

    fn is_read_only(&self) -> bool {
        // An unreachable server cannot tell, and changes on it do not complete either.
        self.fs.is_read_only().unwrap_or(false)
    }

    fn freeze(&self) -> Result<(), VolumeError> {
        self.only_on_the_server("freezing a pool")
    }

    fn thaw(&self) -> Result<(), VolumeError> {
        self.only_on_the_server("thawing a pool")
    }

    fn scrub(&self, _: Option<u64>, _: Progress<'_>) -> Result<ScrubReport, VolumeError> {
        self.only_on_the_server("a scrub")
    }

    fn dump(&self, _: Ino) -> Result<Vec<DumpedPiece>, VolumeError> {
        self.only_on_the_server("a look at how a file is stored")
    }

    fn activity(&self) -> u64 {
        self.fs.requests()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_host_and_may_have_port_and_export() {
        for (text, host, export) in [
            ("tcp://host:1/data", "host:1", "data"),
            ("tcp://host:1", "host:1", ""),
            ("tcp://host:1/", "host:1", ""),
            ("tcp://host/data", "host:7447", "data"),
            ("tcp://[::1]:9/a/b/", "[::1]:9", "a/b"),
            ("tcp://[::1]", "[::1]:7447", ""),
            ("tcp://a:1,b,[::1]:3/x,y/", "a:1,b:7447,[::1]:3", "x,y"),
        ] {
            let address = RemoteAddress::parse(text).unwrap();
            assert_eq!(
                (&*address.servers.to_string(), &*address.export),
                (host, export),
                "{text}"
            );
            assert_eq!((address.key, address.encrypt, address.cache), (None, None, None));
            assert_eq!(address.fabric, None);
            let fabric = RemoteAddress::parse(&text.replace("tcp://", "fabric://")).unwrap();
            assert_eq!((fabric.servers, fabric.fabric), (address.servers, Some(String::new())));
        }
        for text in [
            "tcp://",
            "tcp://:1/x",
            "tcp:host",
            "tcp://host:x/",
            "tcp://host:70000",
            "tcp://host,/x",
            "tcp://host,host:7447/x",
            "/path",
        ] {
            let parsed = RemoteAddress::parse(text);
            assert!(parsed.is_err(), "{text}: {parsed:?}");
        }
    }

    #[test]
    fn a_key_and_encryption_may_follow() {
        let address = RemoteAddress::parse("tcp://host:1,other/data?key=/etc/a,b.key&encrypt=on").unwrap();
        assert_eq!(
            (&*address.servers.to_string(), &*address.export),
            ("host:1,other:7447", "data")
        );
        assert_eq!(address.key.as_deref(), Some(Path::new("/etc/a,b.key")));
        assert_eq!(address.encrypt, Some(Encrypt::On));
        let address = RemoteAddress::parse("tcp://host?encrypt=off").unwrap();
        assert_eq!(
            (&*address.servers.to_string(), address.encrypt),
            ("host:7447", Some(Encrypt::Off))
        );
        let address = RemoteAddress::parse("tcp://host/data?cache=leased").unwrap();
        assert_eq!(address.cache, Some(Caching::Leased));
        for text in [
            "cache=on",
            "cache=off&cache=leased",
            "key=",
            "key",
            "key=a&key=b",
            "encrypt=yes",
            "encrypt=on&encrypt=off",
            "colour=red",
            "key=%zz",
            "key=%4",
        ] {
            let parsed = RemoteAddress::parse(&format!("tcp://host/data?{text}"));
            assert!(matches!(&parsed, Err(BadAddress::Option(_))), "{text}: {parsed:?}");
        }
        for path in ["/a b/ü&?%=x", "../k"] {
            let path = Path::new(path);
            let text = RemoteAddress::with("tcp://host/data", Some(path), Some("auto"), Some("off")).unwrap();
            let address = RemoteAddress::parse(&text).unwrap();
            assert_eq!(
                (address.key.as_deref(), address.encrypt, address.cache),
                (Some(path), Some(Encrypt::Auto), Some(Caching::Off))
            );
            assert!(RemoteAddress::with(&text, Some(path), None, None).is_err(), "twice");
        }
        assert_eq!(
            RemoteAddress::with("tcp://host", None, None, None).as_deref(),
            Ok("tcp://host")
        );
    }
}
