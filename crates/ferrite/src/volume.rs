//! Opening a volume by its address, which determines the engine.
//!
//! Contents: [`Address`], and the list of engines that addresses name. A new engine is one more line in it.
//!
//! Invariant: a scheme is one of the words in the list, followed by a colon. Everything else is the path of a pool,
//! whatever colons it has, so that a name with a colon needs no quoting; only `WORD://` is refused, because no user
//! means a path by it. `./pm:x` is a file whose name begins like an address.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

pub use ferrite_vfs::volume::{
    Candidacy, DumpedPiece, InfoLine, Ownership, Progress, ScrubReport, Tenancy, Volume, VolumeError, VolumeErrorKind,
    VolumeInfo,
};

use crate::options::{Place, VolumeOptions};
use crate::pool;

type Open = fn(&Path, &VolumeOptions) -> Result<Arc<dyn Volume>, VolumeError>;

/// The opener of one scheme's addresses.
struct Opener {
    scheme: &'static str,
    /// An address of it, for messages.
    example: &'static str,
    /// The cargo feature that adds it.
    feature: &'static str,
    /// `None` if this build lacks the engine.
    open: Option<Open>,
}

/// The scheme of servers.
const TCP: &str = "tcp";
/// The scheme of servers over libfabric.
const FABRIC: &str = "fabric";
/// The scheme of pools on devices.
const NVME: &str = "nvme";

/// Opens the pool at a path.
fn open_pool(path: &Path, options: &VolumeOptions) -> Result<Arc<dyn Volume>, VolumeError> {
    pool::open(path, &options.of_pool())
}

/// Connects to an export.
#[cfg(feature = "net")]
fn open_remote(address: &Path, options: &VolumeOptions) -> Result<Arc<dyn Volume>, VolumeError> {
    let text = address.to_string_lossy();
    Ok(Arc::new(options.client.connect(&text, options.is_read_only())?))
}

/// Opens the pool that a file describes.
#[cfg(feature = "nvme")]
fn open_nvme(path: &Path, options: &VolumeOptions) -> Result<Arc<dyn Volume>, VolumeError> {
    Ok(Arc::new(ferrite_nvme::NvmeVolume::open(path, of_nvme(options))?))
}

#[cfg(feature = "nvme")]
fn of_nvme(options: &VolumeOptions) -> ferrite_nvme::Options {
    let mut wanted = ferrite_nvme::Options::default();
    wanted.read_only = options.is_read_only();
    // A caller that accepts the losses of a power failure only looks.
    wanted.inspect = wanted.read_only && options.pool.accept_power_loss;
    wanted.keep_orphans = options.pool.keep_orphans;
    wanted
}

/// All schemes; the first one is that of paths without a scheme.
const OPENERS: &[Opener] = &[
    Opener {
        scheme: "pm",
        example: "`pm:PATH`, a path alone",
        feature: "",
        open: Some(open_pool),
    },
    Opener {
        scheme: NVME,
        example: "`nvme:POOL.toml`",
        feature: "nvme",
        #[cfg(feature = "nvme")]
        open: Some(open_nvme),
        #[cfg(not(feature = "nvme"))]
        open: None,
    },
    Opener {
        scheme: FABRIC,
        example: "`fabric://HOST:PORT/EXPORT`",
        feature: "fabric",
        #[cfg(feature = "fabric")]
        open: Some(open_remote),
        #[cfg(not(feature = "fabric"))]
        open: None,
    },
    Opener {
        scheme: TCP,
        example: "`tcp://HOST:PORT/EXPORT`",
        feature: "net",
        #[cfg(feature = "net")]
        open: Some(open_remote),
        #[cfg(not(feature = "net"))]
        open: None,
    },
];

/// Why a text is not an address of a volume that this build can open.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// No engine has this scheme.
    #[error(
        "`{scheme}` is not a scheme of Ferrite; {}; the path of a file of this name begins with `./`",
        opens()
    )]
    Unknown {
        /// The word before the colon.
        scheme: String,
    },
    /// This build lacks the engine.
    #[error(
        "this build has no engine for `{scheme}` (cargo feature `{feature}`); {}; the path of a file of this name \
        begins with `./`",
        opens()
    )]
    NotBuilt {
        /// The word before the colon.
        scheme: &'static str,
        /// The cargo feature that adds it.
        feature: &'static str,
    },
    /// Nothing follows the scheme.
    #[error("a path must follow the colon")]
    Empty,
    /// It is the address of a server, and lacks something.
    #[error("{why}")]
    Remote {
        /// The form of an address of a server, and the mistake.
        why: String,
    },
}

/// The addresses that this build opens, for messages.
fn opens() -> String {
    let here = OPENERS.iter().filter(|opener| opener.open.is_some());
    let mut examples: Vec<&str> = here.map(|opener| opener.example).collect();
    let last = examples.pop().unwrap_or_default();
    match examples.is_empty() {
        true => format!("it opens {last}"),
        false => format!("it opens {}, or {last}", examples.join(", ")),
    }
}

impl From<AddressError> for VolumeError {
    fn from(error: AddressError) -> Self {
        let kind = match &error {
            AddressError::NotBuilt { .. } => VolumeErrorKind::Unsupported,
            _ => VolumeErrorKind::Invalid,
        };
        VolumeError::new(kind, error)
    }
}

/// The address of a volume: `pm:PATH`, the path of a pool alone, `nvme:POOL.toml`, or `tcp://HOST:PORT/EXPORT`, with
/// commas between the servers if several may own it. This build has an engine for it.
///
/// ```
/// use ferrite::volume::Address;
///
/// let address = Address::parse("pm:/var/lib/data.pool")?;
/// assert_eq!(address, Address::parse("/var/lib/data.pool")?);
/// assert_eq!(Address::parse("nvme:/etc/drives.toml").is_ok(), cfg!(feature = "nvme"));
/// # Ok::<(), ferrite::volume::AddressError>(())
/// ```
#[derive(Clone)]
pub struct Address {
    scheme: &'static str,
    open: Open,
    place: OsString,
}

impl Address {
    /// Reads an address. Opens nothing.
    ///
    /// # Errors
    /// A scheme that Ferrite or this build does not know, or nothing after it.
    pub fn parse(text: impl AsRef<OsStr>) -> Result<Address, AddressError> {
        let text = text.as_ref();
        for &Opener {
            scheme, feature, open, ..
        } in OPENERS
        {
            let rest = text.as_bytes().strip_prefix(scheme.as_bytes());
            let Some(place) = rest.and_then(|rest| rest.strip_prefix(b":")) else {
                continue;
            };
            let open = open.ok_or(AddressError::NotBuilt { scheme, feature })?;
            if place.is_empty() {
                return Err(AddressError::Empty);
            }
            let place = match scheme {
                // The rest is not a path, and means nothing alone.
                #[cfg(feature = "net")]
                TCP | FABRIC => {
                    ferrite_client::volume::RemoteAddress::parse(&text.to_string_lossy())
                        .map_err(|error| AddressError::Remote { why: error.to_string() })?;
                    text.to_owned()
                }
                _ => OsStr::from_bytes(place).to_owned(),
            };
            return Ok(Address { scheme, open, place });
        }
        match scheme_of_url(text) {
            Some(scheme) => Err(AddressError::Unknown { scheme }),
            None => Ok(Address::of_pool(text)),
        }
    }

    /// The address of the pool at a path, whatever it looks like.
    pub fn of_pool(path: impl AsRef<OsStr>) -> Address {
        Address {
            scheme: OPENERS[0].scheme,
            open: open_pool,
            place: path.as_ref().to_owned(),
        }
    }

    /// The scheme, without the colon.
    pub fn scheme(&self) -> &'static str {
        self.scheme
    }

    /// Whether the volume is on a server, and not in a file or on a device of this machine.
    pub fn is_remote(&self) -> bool {
        [TCP, FABRIC].contains(&self.scheme)
    }

    /// The file or device where the volume is; the address itself if it is on a server.
    pub fn path(&self) -> &Path {
        Path::new(&self.place)
    }

    /// The address of the same scheme with another path.
    #[must_use]
    pub fn at(&self, path: impl AsRef<OsStr>) -> Address {
        Address {
            place: path.as_ref().to_owned(),
            ..self.clone()
        }
    }

    /// Whether it is a pool in memory or a file that no process has open, and that its last user did not mark closed:
    /// data that was not durable then may be lost. False for volumes where this is unknown: devices and servers.
    pub fn is_left_open(&self) -> bool {
        self.scheme == OPENERS[0].scheme && pool::is_left_open(self.path())
    }

    /// Whether it is the path alone of a file that describes a pool on devices, whose address begins with `nvme:`.
    /// Reads the beginning of the file.
    pub fn lacks_scheme(&self) -> bool {
        let is_path_alone =
            self.scheme == OPENERS[0].scheme && self.path().extension().is_some_and(|end| end == "toml");
        let holds_tables = || {
            let mut head = Vec::new();
            let file = std::fs::File::open(self.path()).ok().filter(is_file)?;
            file.take(DESCRIPTION_BYTES_MAX).read_to_end(&mut head).ok()?;
            let text = String::from_utf8(head).ok()?;
            Some(["[metadata]", "[[data]]"].iter().any(|table| text.contains(table)))
        };
        is_path_alone && holds_tables() == Some(true)
    }

    /// The address that was probably meant, if this is the path alone of nothing, and looks like a server:
    /// `tcp://HOST:PORT/NAME` for `HOST:PORT/NAME`, `HOST:/NAME` and `HOST:PORT`. Looks whether the path exists.
    pub fn meant_server(&self) -> Option<String> {
        let text = self.path().to_str()?;
        let (host, rest) = text.split_once(':')?;
        let (port, name) = rest.split_once('/').unwrap_or((rest, ""));
        let is_host = !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || ".-_".contains(c));
        let is_port = port.chars().all(|c| c.is_ascii_digit()) && !(port.is_empty() && rest.is_empty());
        let is_path_alone = self.scheme == OPENERS[0].scheme;
        if !is_path_alone || !is_host || !is_port || self.path().symlink_metadata().is_ok() {
            return None;
        }
        let port = if port.is_empty() { "7447" } else { port };
        Some(format!("tcp://{host}:{port}/{name}"))
    }

    /// Opens the volume, and recovers it first if it was not closed. Blocks.
    ///
    /// # Errors
    /// [`VolumeErrorKind::Invalid`] for options without meaning for this address; their names are in the text.
    pub fn open(&self, options: impl Into<VolumeOptions>) -> Result<Arc<dyn Volume>, VolumeError> {
        let options = options.into();
        if self.lacks_scheme() {
            let path = self.path().display();
            let text = format!("{path}: the file describes a pool on devices; its address is nvme:{path}");
            return Err(VolumeError::new(VolumeErrorKind::Invalid, text).with_name_in_text());
        }
        if let Some(meant) = self.meant_server() {
            let text = format!(
                "{}: there is no such file; the address of a server is {meant}",
                self.path().display()
            );
            let error = VolumeError::new(VolumeErrorKind::Medium, text).with_errno(Some(libc::ENOENT));
            return Err(error.with_name_in_text());
        }
        let place = match self.scheme {
            NVME => Place::Devices,
            TCP | FABRIC => Place::Server,
            _ => Place::Pool,
        };
        options.check(place, self)?;
        (self.open)(self.path(), &options)
    }
}

impl Address {
    /// The candidacy of a server, which clients reach at `reached_at` (`HOST:PORT`), for a volume that servers hand to
    /// each other, with the options of each opening. `None`: the volume belongs to this machine.
    ///
    /// # Errors
    /// As for [`Self::open`], as far as they show before the volume is opened.
    pub fn candidacy(
        &self,
        reached_at: &str,
        options: impl Into<VolumeOptions>,
    ) -> Result<Option<Arc<dyn Candidacy>>, VolumeError> {
        #[cfg(feature = "postgres")]
        if self.scheme == NVME {
            let options = options.into();
            options.check(Place::Devices, self)?;
            return ferrite_nvme::candidacy(self.path(), reached_at, move || of_nvme(&options));
        }
        let _ = (reached_at, options);
        Ok(None)
    }
}

/// Bytes of a file that are read to detect a description of a pool.
const DESCRIPTION_BYTES_MAX: u64 = 64 << 10;

fn is_file(file: &std::fs::File) -> bool {
    file.metadata().is_ok_and(|found| found.is_file())
}

/// In the form that commands accept: a pool in memory or in a file is its path.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.is_remote() && self.scheme != OPENERS[0].scheme {
            write!(f, "{}:", self.scheme)?;
        }
        self.path().display().fmt(f)
    }
}

impl PartialEq for Address {
    fn eq(&self, other: &Address) -> bool {
        (self.scheme, &self.place) == (other.scheme, &other.place)
    }
}

impl Eq for Address {}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{:?}", self.scheme, self.place)
    }
}

/// The word before `://`, if the text begins with one.
fn scheme_of_url(text: &OsStr) -> Option<String> {
    let text = text.as_bytes();
    let word = &text[..text.windows(3).position(|part| part == b"://")?];
    let is_word = word
        .iter()
        .all(|&byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    let is_scheme = is_word && word.first().is_some_and(u8::is_ascii_alphabetic);
    is_scheme.then(|| String::from_utf8_lossy(word).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_the_address_of_a_pool() {
        for path in [
            "/var/lib/pool",
            "pool",
            "./pm:x",
            "./a:b",
            "/x/a:b",
            "a:b",
            "pmx:/y",
            "PM:/y",
            "./tcp://h/e",
            "/x://y",
            "a b://c",
            "://c",
            "",
        ] {
            let address = Address::parse(path).unwrap();
            assert_eq!((address.scheme(), address.path()), ("pm", Path::new(path)), "{path}");
        }
        let bytes = OsStr::from_bytes(b"/x/\xff:y");
        assert_eq!(Address::parse(bytes).unwrap().path(), Path::new(bytes));
    }

    #[test]
    fn a_scheme_is_taken_off_once() {
        assert_eq!(Address::parse("pm:/x/pool").unwrap().path(), Path::new("/x/pool"));
        assert_eq!(Address::parse("pm:pm:x").unwrap().path(), Path::new("pm:x"));
        assert_eq!(Address::parse("pm:x").unwrap(), Address::of_pool("x"));
        assert_ne!(Address::of_pool("pm:x"), Address::of_pool("x"));
        let bytes = OsStr::from_bytes(b"pm:\xff");
        assert_eq!(
            Address::parse(bytes).unwrap().path(),
            Path::new(OsStr::from_bytes(b"\xff"))
        );
    }

    #[test]
    fn what_this_build_cannot_open_is_refused_by_name() {
        for (text, scheme, feature, is_built) in [
            ("nvme:/etc/drives", NVME, "nvme", cfg!(feature = "nvme")),
            ("fabric://host/export", FABRIC, "fabric", cfg!(feature = "fabric")),
            ("tcp://host/export", TCP, "net", cfg!(feature = "net")),
        ] {
            if is_built {
                assert_eq!(Address::parse(text).unwrap().scheme(), scheme);
                continue;
            }
            let error = Address::parse(text).unwrap_err();
            assert!(matches!(&error, AddressError::NotBuilt { scheme: found, .. } if *found == scheme));
            let said = error.to_string();
            for part in [
                "no engine for",
                &format!("`{scheme}` (cargo feature `{feature}`)"),
                "pm:PATH",
                "./",
            ] {
                assert!(said.contains(part), "{part} in: {said}");
            }
            assert_eq!(VolumeError::from(error).kind(), &VolumeErrorKind::Unsupported);
        }
        let error = Address::parse("nfs4+x://host/export").unwrap_err();
        let said = error.to_string();
        assert!(
            said.contains("`nfs4+x` is not a scheme") && said.contains("pm:PATH"),
            "{said}"
        );
        assert_eq!(VolumeError::from(error).kind(), &VolumeErrorKind::Invalid);
        assert_eq!(Address::parse("pm:"), Err(AddressError::Empty));
    }

    #[cfg(feature = "net")]
    #[test]
    fn a_server_is_no_file() {
        assert!(matches!(Address::parse("tcp:host"), Err(AddressError::Remote { .. })));
        let address = Address::parse("tcp://host:1/export").unwrap();
        assert!(address.is_remote() && address.scheme() == "tcp");
        assert_eq!(address.path(), Path::new("tcp://host:1/export"), "whole, for messages");
        assert!(!Address::parse("./tcp://h/e").unwrap().is_remote());
        let several = Address::parse("tcp://one,two:1/export").unwrap();
        assert_eq!(several.path(), Path::new("tcp://one,two:1/export"));
        let twice = Address::parse("tcp://one,two:1,two:1/export").unwrap_err();
        assert!(twice.to_string().contains("`two:1`"), "{twice}");
    }

    /// The text for users names each scheme that can be opened.
    #[test]
    fn messages_list_what_can_be_opened() {
        for opener in OPENERS {
            let listed = opens().contains(&format!("`{}:", opener.scheme));
            assert_eq!(listed, opener.open.is_some(), "{}", opener.scheme);
        }
    }
}
