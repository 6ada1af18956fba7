//! [`VolumeOptions`]: how to open the volume at an address, whatever its scheme.
//!
//! Contents: the options of all schemes in one value; their names as text, for programs that take them from users; and
//! the refusal of options without meaning for an address.
//!
//! Invariant: an option that was given has its effect, or opening fails with an error that names it.

use std::fmt::Display;

use ferrite_vfs::volume::{VolumeError, VolumeErrorKind};

#[cfg(feature = "net")]
use crate::client::{ClientOptions, Encrypt, Key};
use crate::error::{Error, Result};
use crate::pool::{AtimePolicy, Durability, MountOptions};

/// How to open the volume at an address: options for all volumes, for pools, and for exports of servers.
///
/// ```
/// use ferrite::{Fs, MountOptions, VolumeOptions};
///
/// # fn run() -> ferrite::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("data.pool");
/// # Fs::create(&path, 64 << 20)?.close()?;
/// // For any address.
/// let fs = Fs::open_volume_with(&path, VolumeOptions::new().read_only(true))?;
/// # fs.close()?;
/// // For one kind of volume; the address of another kind is refused, and the error names the option.
/// let fs = Fs::open_volume_with(&path, MountOptions::default().cleaner(false))?;
/// # fs.close()?;
/// // As text, from a file or a command line.
/// let options = VolumeOptions::parse([("read_only", "true"), ("atime", "never")])?;
/// let fs = Fs::open_volume_with(&path, options)?;
/// # fs.close()
/// # }
/// # run().unwrap();
/// ```
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct VolumeOptions {
    read_only: bool,
    pub(crate) pool: MountOptions,
    #[cfg(feature = "net")]
    pub(crate) client: ClientOptions,
}

impl VolumeOptions {
    /// Options that leave everything to the defaults.
    pub fn new() -> VolumeOptions {
        VolumeOptions::default()
    }

    /// Whether to refuse every change with `EROFS`; by default changes are allowed. Any volume can be opened so.
    pub fn read_only(mut self, read_only: bool) -> VolumeOptions {
        self.read_only = read_only;
        self
    }

    /// Options for pools in memory and in files. Pools on devices know `read_only` alone, and `accept_power_loss` with
    /// it.
    pub fn pool(mut self, options: MountOptions) -> VolumeOptions {
        self.pool = options;
        self
    }

    /// Options for exports of servers.
    #[cfg(feature = "net")]
    pub fn client(mut self, options: ClientOptions) -> VolumeOptions {
        self.client = options;
        self
    }

    /// Options by their names, as a configuration file has them: `read_only`, `atime` (`relative`, `never`, `strict`),
    /// `dir_atime`, `durability` (`strict`, `fsync`, `process`), `accept_power_loss`, `cleaner`, `clean_low_percent`
    /// and `clean_high_percent`; with the cargo feature `net` also `key` (a file, which is read now), `encrypt`
    /// (`auto`, `on`, `off`), `cache_bytes`, `timeout_ms`, `connect_timeout_ms`, `changes_in_flight` and
    /// `busy_poll_us`. Of an option that is given twice, the last value counts.
    ///
    /// # Errors
    /// An unknown name, or a value that the option cannot have: `InvalidInput`. A key that cannot be read.
    pub fn parse<N: AsRef<str>, V: AsRef<str>>(pairs: impl IntoIterator<Item = (N, V)>) -> Result<VolumeOptions> {
        let mut options = VolumeOptions::default();
        for (name, value) in pairs {
            options.set(name.as_ref(), value.as_ref())?;
        }
        Ok(options)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<()> {
        let (value, pool) = (Value { name, value }, self.pool);
        self.pool = match name {
            "read_only" => {
                self.read_only = value.is_on()?;
                pool
            }
            "atime" => pool.atime(value.one_of(&[
                ("relative", AtimePolicy::Relative),
                ("never", AtimePolicy::Never),
                ("strict", AtimePolicy::Strict),
            ])?),
            "dir_atime" => pool.dir_atime(value.is_on()?),
            "durability" => pool.durability(value.one_of(&[
                ("strict", Durability::Strict),
                ("fsync", Durability::OnSync),
                ("process", Durability::Process),
            ])?),
            "accept_power_loss" => pool.accept_power_loss(value.is_on()?),
            "cleaner" => pool.cleaner(value.is_on()?),
            "clean_low_percent" => pool.clean_low_percent(value.number()?),
            "clean_high_percent" => pool.clean_high_percent(value.number()?),
            _ => return self.set_of_client(&value),
        };
        Ok(())
    }

    #[cfg(feature = "net")]
    fn set_of_client(&mut self, value: &Value<'_>) -> Result<()> {
        use std::time::Duration;

        let client = std::mem::take(&mut self.client);
        self.client = match value.name {
            "key" => client.key(Key::read(value.value)?),
            "encrypt" => {
                client.encrypt(value.one_of(&[("auto", Encrypt::Auto), ("on", Encrypt::On), ("off", Encrypt::Off)])?)
            }
            "cache_bytes" => client.cache_bytes(value.number()?),
            "timeout_ms" => client.timeout(Duration::from_millis(value.number()?)),
            "connect_timeout_ms" => client.connect_timeout(Duration::from_millis(value.number()?)),
            "changes_in_flight" => client.changes_in_flight(value.number()?),
            "busy_poll_us" => client.busy_poll(Duration::from_micros(value.number()?)),
            _ => return Err(value.unknown()),
        };
        Ok(())
    }

    #[cfg(not(feature = "net"))]
    fn set_of_client(&mut self, value: &Value<'_>) -> Result<()> {
        Err(value.unknown())
    }

    /// Whether changes are to be refused.
    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only || self.pool.read_only
    }

    /// The options of a pool in memory or in a file.
    pub(crate) fn of_pool(&self) -> MountOptions {
        self.pool.read_only(self.is_read_only())
    }

    /// Refuses options without meaning for `place`.
    pub(crate) fn check(&self, place: Place, address: &dyn Display) -> Result<(), VolumeError> {
        #[cfg(feature = "net")]
        let of_client = self.client.given();
        #[cfg(not(feature = "net"))]
        let of_client = Vec::new();
        let mut of_pool = self.pool.given();
        of_pool.retain(|&name| match place {
            Place::Pool => false,
            Place::Devices => match name {
                "read_only" | "keep_orphans" => false,
                "accept_power_loss" => !self.is_read_only(),
                _ => true,
            },
            Place::Server => name != "read_only",
        });
        let (foreign, place, mend) = match place {
            Place::Pool => (of_client, "a pool in this process", "omit it"),
            Place::Devices if of_pool == ["accept_power_loss"] && of_client.is_empty() => (
                of_pool,
                "a pool on devices that is opened for changes",
                "add `read_only`, or omit it",
            ),
            Place::Devices => (
                [of_pool, of_client].concat(),
                "a pool on devices, where operations are durable when they return",
                "omit it",
            ),
            Place::Server => (
                of_pool,
                "an export, of which the server decides",
                "omit it, or give it to `ferrite serve`",
            ),
        };
        if foreign.is_empty() {
            return Ok(());
        }
        let (noun, has) = match foreign.len() {
            1 => ("option", "has"),
            _ => ("options", "have"),
        };
        let mend = match foreign.len() {
            1 => mend.to_owned(),
            _ => mend.replace(" it", " them"),
        };
        let names = foreign.join("`, `");
        let text = format!("{address}: the {noun} `{names}` {has} no meaning for {place}; {mend}");
        Err(VolumeError::new(VolumeErrorKind::Invalid, text).with_name_in_text())
    }
}

/// The kinds of places where volumes are, as far as options differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Memory or a file.
    Pool,
    /// Devices.
    Devices,
    /// A server.
    Server,
}

impl From<MountOptions> for VolumeOptions {
    fn from(options: MountOptions) -> Self {
        VolumeOptions::new().pool(options)
    }
}

impl From<&MountOptions> for VolumeOptions {
    fn from(options: &MountOptions) -> Self {
        VolumeOptions::new().pool(*options)
    }
}

impl From<&VolumeOptions> for VolumeOptions {
    fn from(options: &VolumeOptions) -> Self {
        options.clone()
    }
}

#[cfg(feature = "net")]
impl From<ClientOptions> for VolumeOptions {
    fn from(options: ClientOptions) -> Self {
        VolumeOptions::new().client(options)
    }
}

/// The text of an option.
struct Value<'t> {
    name: &'t str,
    value: &'t str,
}

impl Value<'_> {
    fn error(&self, why: String) -> Error {
        let error = VolumeError::new(VolumeErrorKind::Invalid, why);
        Error::new("use the option", self.name, error)
    }

    fn unknown(&self) -> Error {
        let text = match cfg!(feature = "net") {
            true => "no volume has an option of this name; `VolumeOptions::parse` lists all",
            false => "it is no option of pools, and this build opens nothing else (cargo feature `net`)",
        };
        self.error(text.to_owned())
    }

    fn one_of<T: Copy>(&self, values: &[(&str, T)]) -> Result<T> {
        let found = values.iter().find(|(word, _)| *word == self.value);
        found.map(|&(_, value)| value).ok_or_else(|| {
            let words: Vec<&str> = values.iter().map(|&(word, _)| word).collect();
            self.error(format!(
                "`{}` is not among its values; give `{}`",
                self.value,
                words.join("` or `")
            ))
        })
    }

    fn is_on(&self) -> Result<bool> {
        self.one_of(&[("true", true), ("false", false)])
    }

    fn number<T: std::str::FromStr<Err = std::num::ParseIntError>>(&self) -> Result<T> {
        let parsed = self.value.parse();
        parsed.map_err(|error| self.error(format!("`{}` is not a number for it: {error}", self.value)))
    }
}
