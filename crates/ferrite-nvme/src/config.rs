//! The file that says what a pool is made of: TOML, read whole before anything is opened.
//!
//! ```toml
//! [metadata]
//! directory = "pool.meta"       # RocksDB's files; or a device of their own: device = "/dev/nvme2n1"
//!                               # or a database: postgres = "host=db1,db2 user=ferrite dbname=ferrite"
//! cache = "64M"                 # memory for them
//! small_files = "32K"           # content of files up to this length is there, too
//!
//! [reactor]
//! busy_us = 0                   # poll for so long before sleeping
//!
//! [[data]]
//! device = "/dev/nvme0n1"       # or a file
//! whole_pages = true            # trust that 4 KiB are written whole; by default the device reports it
//! ```
//!
//! With metadata in a database, content may be in a Ceph cluster instead of devices:
//!
//! ```toml
//! [data]
//! rados = { pool = "ferrite" }  # and conf, client, keyring, namespace
//! ```
//!
//! Or it is in S3, wherever the metadata is:
//!
//! ```toml
//! [data]
//! s3 = "s3://bucket/prefix"     # and more words, which docs/s3.md has
//!
//! [tier]                        # may be absent
//! device = "/dev/nvme3n1"       # a log in front of the bucket; of a file, its size, too
//! mode = "back"                 # fsync returns when the log has it; or "through": when the bucket has it
//! age_s = 30                    # content goes to the bucket after so long
//! ```
//!
//! Relative paths start at the file's directory. Unknown words are refused: a misspelt one might be the one that
//! matters.

mod data_place;
mod s3;
mod tier;

use std::collections::HashSet;
use std::ops::RangeInclusive;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ferrite_vfs::volume::{human_bytes, unquoted};
use serde::{Deserialize, Serialize};

use crate::format::node::INLINE_BYTES_MAX;
use crate::small::SMALL_BYTES_MAX;

pub use data_place::{Data, DataPlace, Rados};
pub use s3::{Compression, S3};
pub use tier::{Tier, TierMode};

/// A pool's parts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Where names and attributes are.
    pub metadata: Metadata,
    /// How threads wait for devices.
    #[serde(default, skip_serializing_if = "ReactorConfig::is_default")]
    pub reactor: ReactorConfig,
    /// Open the pool although data devices are missing; operations on their files fail, all others work.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub degraded: bool,
    /// Where content is.
    pub data: DataPlace,
    /// The log in front of a bucket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<Tier>,
}

/// Where names and attributes are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Metadata {
    /// A directory for RocksDB's files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<PathBuf>,
    /// Instead of it: a device for them, or a file, without any file system of the kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<PathBuf>,
    /// Instead of both: a PostgreSQL database, by a connection string without a password. Other servers can take the
    /// pool over then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub postgres: Option<String>,
    /// With `postgres`: the schema that holds the pool; `ferrite` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<String>,
    /// With `postgres`: a file whose first line is the password. Only its owner may read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password_file: Option<PathBuf>,
    /// With `postgres`: a file with the certificates, in PEM, that vouch for the server; by default the system's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    /// With `postgres`: seconds after which another server may take over if this one has died; 10 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_s: Option<u64>,
    /// Memory for its cache of what it reads.
    #[serde(default = "default_cache", with = "size")]
    pub cache: u64,
    /// The content of files up to this length lies with the metadata, while there is space. Content that lies elsewhere
    /// stays there until the file is changed.
    #[serde(
        default = "default_small_files",
        with = "size",
        skip_serializing_if = "is_default_small_files"
    )]
    pub small_files: u64,
}

/// How threads wait for devices.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReactorConfig {
    /// Microseconds that a thread polls before it sleeps. Needs a dedicated core.
    #[serde(default)]
    pub busy_us: u64,
}

/// The volume of a pool whose file names none.
const VOLUME: &str = "ferrite";
/// Seconds that [`Metadata::lease_s`] may be.
const LEASE_S: RangeInclusive<u64> = 1..=3600;

fn default_cache() -> u64 {
    64 << 20
}

fn default_small_files() -> u64 {
    SMALL_BYTES_MAX
}

fn is_default_small_files(bytes: &u64) -> bool {
    *bytes == SMALL_BYTES_MAX
}

/// Lengths that [`Metadata::small_files`] may have: shorter content is in its node, and each small write would rewrite
/// longer content as a whole.
const SMALL_FILES: RangeInclusive<u64> = INLINE_BYTES_MAX as u64..=1 << 20;

/// Sizes as users write them.
mod size {
    use serde::{Deserialize, Deserializer, Serializer};

    /// Those that may be absent.
    pub(super) mod optional {
        use serde::Deserializer;

        pub(in crate::config) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
            super::deserialize(from).map(Some)
        }
    }

    pub(super) fn serialize<S: Serializer>(bytes: &u64, to: S) -> Result<S::Ok, S::Error> {
        match bytes.trailing_zeros() {
            20.. => to.serialize_str(&format!("{}M", bytes >> 20)),
            10.. => to.serialize_str(&format!("{}K", bytes >> 10)),
            _ => to.serialize_str(&bytes.to_string()),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
        let text = String::deserialize(from)?;
        ferrite_vfs::volume::parse_bytes(&text).map_err(serde::de::Error::custom)
    }
}

impl ReactorConfig {
    fn is_default(&self) -> bool {
        *self == ReactorConfig::default()
    }

    pub(crate) fn busy(&self) -> Duration {
        Duration::from_micros(self.busy_us)
    }
}

impl Config {
    /// A pool with its metadata in a directory, or on a block device.
    pub fn new(metadata: impl Into<PathBuf>, devices: impl IntoIterator<Item = PathBuf>) -> Config {
        let metadata = metadata.into();
        let is_block = std::fs::metadata(&metadata).is_ok_and(|found| found.file_type().is_block_device());
        let is_device = is_block || ferrite_blob::device::block_device_of(&metadata).is_some();
        let data = devices.into_iter().map(|device| Data {
            device,
            ..Data::default()
        });
        Config {
            metadata: Metadata {
                directory: (!is_device).then(|| metadata.clone()),
                device: is_device.then_some(metadata),
                postgres: None,
                volume: None,
                password_file: None,
                ca: None,
                lease_s: None,
                cache: default_cache(),
                small_files: default_small_files(),
            },
            reactor: ReactorConfig::default(),
            degraded: false,
            data: DataPlace::Devices(data.collect()),
            tier: None,
        }
    }

    /// Reads one from text; relative paths start at `base`.
    ///
    /// # Errors
    /// The text is not valid; the message names the line.
    pub fn parse(text: &str, base: &Path) -> Result<Config, String> {
        let mut config: Config = toml::from_str(text).map_err(|error| {
            let hint = error.span().and_then(|span| unquoted(text, span.start));
            let hint = hint.map_or_else(String::new, |hint| format!("\n{hint}"));
            format!("{}{hint}", error.to_string().trim_end())
        })?;
        config.metadata.check_place()?;
        config.check_data()?;
        let small = config.metadata.small_files;
        if !SMALL_FILES.contains(&small) {
            let (least, most) = (human_bytes(*SMALL_FILES.start()), human_bytes(*SMALL_FILES.end()));
            return Err(format!(
                "`small_files` is {}; it may be from {least} to {most}",
                human_bytes(small)
            ));
        }
        let Metadata {
            directory,
            device,
            password_file,
            ca,
            ..
        } = &mut config.metadata;
        for place in [directory, device, password_file, ca].into_iter().flatten() {
            *place = base.join(&*place);
        }
        match &mut config.data {
            DataPlace::Devices(devices) => {
                let present = devices.iter_mut().filter(|data| !data.removed);
                present.for_each(|data| data.device = base.join(&data.device));
            }
            DataPlace::Rados(rados) => {
                let files = std::iter::once(&mut rados.conf).chain(&mut rados.keyring);
                files.for_each(|file| *file = base.join(&*file));
            }
            DataPlace::S3(s3) => {
                let files = [&mut s3.credentials, &mut s3.encryption_key, &mut s3.disk_cache];
                files.into_iter().flatten().for_each(|file| *file = base.join(&*file));
            }
        }
        if let Some(tier) = &mut config.tier {
            tier.device = base.join(&tier.device);
            tier.mirror.iter_mut().for_each(|mirror| *mirror = base.join(&*mirror));
        }
        match config.device_named_twice() {
            Some(device) => Err(format!("it names {} twice; name each device once", device.display())),
            None => Ok(config),
        }
    }

    /// The data devices that are in the pool, with their numbers.
    pub fn present(&self) -> impl Iterator<Item = (u16, &Data)> {
        (0..).zip(self.devices()).filter(|(_, data)| !data.removed)
    }

    /// The numbers of the data devices that were removed.
    pub(crate) fn removed(&self) -> impl Iterator<Item = u16> {
        let removed = (0..).zip(self.devices()).filter(|(_, data)| data.removed);
        removed.map(|(number, _)| number)
    }

    /// Has the devices with these numbers be removed.
    pub(crate) fn without(mut self, numbers: &[u16]) -> Config {
        if let DataPlace::Devices(devices) = &mut self.data {
            for (number, data) in (0..).zip(devices) {
                if numbers.contains(&number) {
                    *data = Data::removed();
                }
            }
        }
        self
    }

    /// The data devices, and the places of those that were removed; none if content is elsewhere.
    pub fn devices(&self) -> &[Data] {
        match &self.data {
            DataPlace::Devices(devices) => devices,
            DataPlace::Rados(_) | DataPlace::S3(_) => &[],
        }
    }

    /// The pool of Ceph that has the content, if one has.
    pub fn rados(&self) -> Option<&Rados> {
        match &self.data {
            DataPlace::Devices(_) | DataPlace::S3(_) => None,
            DataPlace::Rados(rados) => Some(rados),
        }
    }

    /// The bucket that has the content, if one has.
    pub fn s3(&self) -> Option<&S3> {
        match &self.data {
            DataPlace::Devices(_) | DataPlace::Rados(_) => None,
            DataPlace::S3(s3) => Some(s3),
        }
    }

    /// Whether content is on data devices.
    pub fn has_devices(&self) -> bool {
        matches!(self.data, DataPlace::Devices(_))
    }

    /// The namespace of the pool's objects.
    pub fn namespace<'c>(&'c self, rados: &'c Rados) -> &'c str {
        rados.namespace.as_deref().unwrap_or(self.metadata.volume())
    }

    /// That content has a place which fits that of the metadata.
    fn check_data(&self) -> Result<(), String> {
        if self.degraded && !self.has_devices() {
            return Err("`degraded` has a meaning with data devices only".into());
        }
        match (&self.tier, self.s3()) {
            (Some(_), None) => return Err("`[tier]` has a meaning with content in S3 only".into()),
            (Some(tier), Some(_)) => tier.check()?,
            (None, _) => {}
        }
        if let Some(s3) = self.s3() {
            return s3.check();
        }
        let Some(rados) = self.rados() else {
            let is_half = |data: &Data| data.removed != data.device.as_os_str().is_empty();
            return match self.present().next() {
                None => Err("it names no data device; add `[[data]]` with `device = \"PATH\"`".into()),
                Some(_) if self.devices().iter().any(is_half) => {
                    Err("each `[[data]]` needs a `device`, or `removed = true` and none".into())
                }
                Some(_) => Ok(()),
            };
        };
        if self.metadata.postgres.is_none() {
            return Err(
                "`rados` needs `[metadata]` with `postgres`: a new owner keeps earlier ones from the content by \
                        an epoch that a database gives to one owner alone, and metadata on this machine cannot do that"
                    .into(),
            );
        }
        let names = [
            ("pool", &*rados.pool),
            ("client", &*rados.client),
            ("namespace", self.namespace(rados)),
        ];
        match names.iter().find(|(_, name)| name.is_empty()) {
            Some((word, _)) => Err(format!("`{word}` of `rados` is empty")),
            None => Ok(()),
        }
    }

    /// A device that has two places in the pool, by whatever names. A mirror is not looked at, whose server may be
    /// away; its lock keeps it from being the device as well.
    fn device_named_twice(&self) -> Option<&Path> {
        let devices = self
            .metadata
            .device
            .iter()
            .chain(self.tier.as_ref().map(|tier| &tier.device))
            .chain(self.present().map(|(_, data)| &data.device));
        let devices: Vec<&PathBuf> = devices.collect();
        let mut before = HashSet::new();
        let is_again = |device: &&&PathBuf| {
            let place = std::fs::canonicalize(device).unwrap_or_else(|_| device.to_path_buf());
            !before.insert(place)
        };
        devices.iter().find(is_again).map(|device| device.as_path())
    }

    /// Where the metadata is, for messages: a path, or a volume of a database.
    pub fn metadata_place(&self) -> String {
        match (&self.metadata.postgres, self.metadata.path()) {
            (Some(_), _) => format!("PostgreSQL, volume {}", self.metadata.volume()),
            (None, Some(path)) => path.display().to_string(),
            (None, None) => String::new(),
        }
    }

    /// Where content in Ceph or S3 is, for messages.
    pub fn content_place(&self) -> String {
        match &self.data {
            DataPlace::Devices(_) => "data devices".into(),
            DataPlace::Rados(rados) => format!("Ceph pool {}, namespace {}", rados.pool, self.namespace(rados)),
            DataPlace::S3(s3) => s3.address.clone(),
        }
    }

    /// As text, for [`Self::parse`].
    pub fn to_text(&self) -> String {
        toml::to_string(self).unwrap_or_default()
    }
}

impl Metadata {
    /// The directory or device, unless it is in a database.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.directory.as_deref().or(self.device.as_deref())
    }

    /// The schema of the database that holds the pool.
    pub(crate) fn volume(&self) -> &str {
        self.volume.as_deref().unwrap_or(VOLUME)
    }

    /// That it is in one place, and that the words fit that place.
    fn check_place(&self) -> Result<(), String> {
        let places = [self.directory.is_some(), self.device.is_some(), self.postgres.is_some()];
        if places.iter().filter(|&&is_named| is_named).count() != 1 {
            return Err("`[metadata]` needs a `directory` or a `device` or `postgres`, and one of them alone".into());
        }
        let words = [
            ("volume", self.volume.is_some()),
            ("password_file", self.password_file.is_some()),
            ("ca", self.ca.is_some()),
            ("lease_s", self.lease_s.is_some()),
        ];
        if self.postgres.is_none()
            && let Some((word, _)) = words.iter().find(|(_, is_given)| *is_given)
        {
            return Err(format!("`{word}` has a meaning with `postgres` only"));
        }
        match self.lease_s {
            Some(lease) if !LEASE_S.contains(&lease) => {
                let (least, most) = (LEASE_S.start(), LEASE_S.end());
                Err(format!("`lease_s` is {lease}; it may be from {least} to {most}"))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let mut config = Config::new("/m", ["/dev/a".into(), "/dev/b".into()]);
        let DataPlace::Devices(devices) = &mut config.data else {
            unreachable!("they are devices")
        };
        devices[1].whole_pages = Some(true);
        config.metadata.cache = 5 << 20;
        assert!(
            !config.to_text().contains("small_files"),
            "what is not said is the default"
        );
        for small_files in [32 << 10, 2048, 6000, 64 << 10, 1 << 20] {
            config.metadata.small_files = small_files;
            assert_eq!(Config::parse(&config.to_text(), Path::new("/x")), Ok(config.clone()));
        }
    }

    #[test]
    fn paths_start_at_the_file_and_mistakes_are_named() {
        let config = Config::parse("[metadata]\ndirectory = 'm'\n[[data]]\ndevice = 'd'", Path::new("/x")).unwrap();
        assert_eq!(config.metadata_place(), "/x/m");
        assert_eq!(config.devices()[0].device, Path::new("/x/d"));
        let database = "[metadata]\npostgres = 'host=a'\nvolume = 'home'\nca = 'ca.pem'\n[[data]]\ndevice = 'd'";
        let config = Config::parse(database, Path::new("/x")).unwrap();
        assert_eq!(config.metadata_place(), "PostgreSQL, volume home");
        assert_eq!(config.metadata.ca.as_deref(), Some(Path::new("/x/ca.pem")));
        assert_eq!(Config::parse(&config.to_text(), Path::new("/y")), Ok(config));
        for (text, said) in [
            ("[metadata]\ndirectory = 'm'", "data"),
            (
                "[metadata]\n[[data]]\ndevice = 'd'",
                "needs a `directory` or a `device`",
            ),
            ("data = []\n[metadata]\ndirectory = 'm'", "no data device"),
            (
                "[metadata]\ndirectory = 'm'\npostgres = 'host=a'\n[[data]]\ndevice = 'd'",
                "one of them alone",
            ),
            (
                "[metadata]\ndirectory = 'm'\nlease_s = 5\n[[data]]\ndevice = 'd'",
                "`lease_s` has a meaning with `postgres` only",
            ),
            (
                "[metadata]\npostgres = 'host=a'\nlease_s = 0\n[[data]]\ndevice = 'd'",
                "it may be from 1 to 3600",
            ),
            (
                "[metadata]\ndirectory = 'm'\ncash = '1M'\n[[data]]\ndevice = 'd'",
                "cash",
            ),
            (
                "[metadata]\ndirectory = 'm'\ncache = '1X'\n[[data]]\ndevice = 'd'",
                "`X` is not a size suffix",
            ),
            (
                "[metadata]\ndirectory = 'm'\nsmall_files = '1K'\n[[data]]\ndevice = 'd'",
                "`small_files` is 1.0 KiB; it may be from 2.0 KiB to 1.0 MiB",
            ),
            (
                "[metadata]\ndirectory = 'm'\nsmall_files = '1025K'\n[[data]]\ndevice = 'd'",
                "it may be from",
            ),
            ("[metadata\n", "line 1"),
        ] {
            let error = Config::parse(text, Path::new("/x")).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
    }
}
