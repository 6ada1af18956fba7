//! Where a pool's content is, as its file says: devices, each a table of the list `data`, or one table `data` that
//! names a pool of a Ceph cluster, or a bucket. TOML refuses both in one file.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::s3::{Compression, S3};
use super::size;

/// Where content is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DataPlace {
    /// On devices, in an order that never changes.
    Devices(Vec<Data>),
    /// In a Ceph cluster.
    Rados(Rados),
    /// In S3.
    S3(S3),
}

/// A data device, or the place of one that was removed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Data {
    /// A block device, or a file; empty if it was removed.
    #[serde(default, skip_serializing_if = "is_empty")]
    pub device: PathBuf,
    /// The pool had a device here, which nothing lies on any more. The devices behind it keep their numbers.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub removed: bool,
    /// Whether 4 KiB are written whole or not at all, also when power is lost. By default the device reports it, and no
    /// file is trusted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub whole_pages: Option<bool>,
}

impl Data {
    /// The place of a device that was removed.
    pub(crate) fn removed() -> Data {
        Data {
            removed: true,
            ..Data::default()
        }
    }
}

fn is_empty(path: &Path) -> bool {
    path.as_os_str().is_empty()
}

/// A pool of a Ceph cluster, and the namespace in it that is the volume's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rados {
    /// The pool of Ceph, which exists.
    pub pool: String,
    /// Ceph's configuration file, which names the monitors; `/etc/ceph/ceph.conf` by default.
    #[serde(default = "default_conf")]
    pub conf: PathBuf,
    /// The client of Ceph that Ferrite is; `client.ferrite` by default.
    #[serde(default = "default_client")]
    pub client: String,
    /// A file with the client's key. By default, Ceph's configuration file says where it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keyring: Option<PathBuf>,
    /// The namespace of the objects, which nothing else uses; by default, the name of the volume in the database.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

fn default_conf() -> PathBuf {
    "/etc/ceph/ceph.conf".into()
}

fn default_client() -> String {
    "client.ferrite".into()
}

/// The table `data`, with the words of all kinds.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    rados: Option<Rados>,
    s3: Option<String>,
    endpoint: Option<String>,
    region: Option<String>,
    credentials: Option<PathBuf>,
    profile: Option<String>,
    compression: Option<Compression>,
    encryption_key: Option<PathBuf>,
    #[serde(default, with = "size::optional")]
    cache: Option<u64>,
    disk_cache: Option<PathBuf>,
    #[serde(default, with = "size::optional")]
    disk_cache_size: Option<u64>,
    #[serde(default, with = "size::optional")]
    buffer: Option<u64>,
    keep_s: Option<u64>,
}

impl Table {
    fn place(self) -> Result<DataPlace, &'static str> {
        let words = [&self.s3, &self.endpoint, &self.region, &self.profile];
        let numbers = [self.cache, self.disk_cache_size, self.buffer, self.keep_s];
        let files = [&self.credentials, &self.encryption_key, &self.disk_cache];
        let is_of_s3 = words.iter().any(|word| word.is_some())
            || numbers.iter().any(Option::is_some)
            || self.compression.is_some()
            || files.iter().any(|file| file.is_some());
        match (self.rados, self.s3) {
            (Some(_), _) if is_of_s3 => Err("`[data]` has `rados`, or `s3 = ` and its words, not both"),
            (Some(rados), _) => Ok(DataPlace::Rados(rados)),
            (None, None) => Err("`[data]` needs `rados = { pool = \"NAME\" }`, or `s3 = \"s3://BUCKET/PREFIX\"`"),
            (None, Some(address)) => {
                let mut s3 = S3::at(address);
                (s3.endpoint, s3.region, s3.profile) = (self.endpoint, self.region, self.profile);
                (s3.credentials, s3.encryption_key) = (self.credentials, self.encryption_key);
                s3.compression = self.compression.unwrap_or_default();
                s3.cache = self.cache.unwrap_or(s3.cache);
                s3.disk_cache = self.disk_cache;
                s3.disk_cache_size = self.disk_cache_size.unwrap_or(s3.disk_cache_size);
                s3.buffer = self.buffer.unwrap_or(s3.buffer);
                s3.keep_s = self.keep_s.unwrap_or(s3.keep_s);
                Ok(DataPlace::S3(s3))
            }
        }
    }
}

impl Serialize for DataPlace {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Written<'r> {
            rados: &'r Rados,
        }
        match self {
            DataPlace::Devices(devices) => devices.serialize(to),
            DataPlace::Rados(rados) => Written { rados }.serialize(to),
            DataPlace::S3(s3) => s3.serialize(to),
        }
    }
}

impl<'de> Deserialize<'de> for DataPlace {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<DataPlace, D::Error> {
        struct Places;
        impl<'de> Visitor<'de> for Places {
            type Value = DataPlace;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "`[[data]]` with `device = \"PATH\"`, or `[data]` with `rados = { pool = \"NAME\" }` or `s3 = \
                     \"s3://BUCKET/PREFIX\"`",
                )
            }

            fn visit_seq<A: SeqAccess<'de>>(self, tables: A) -> Result<DataPlace, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(tables)).map(DataPlace::Devices)
            }

            fn visit_map<A: MapAccess<'de>>(self, table: A) -> Result<DataPlace, A::Error> {
                let table = Table::deserialize(MapAccessDeserializer::new(table))?;
                table.place().map_err(serde::de::Error::custom)
            }
        }
        from.deserialize_any(Places)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::Config;

    const DATABASE: &str = "[metadata]\npostgres = 'host=a'\nvolume = 'home'\n";

    #[test]
    fn content_in_ceph_is_read_with_defaults_and_written_again() {
        let short = format!("{DATABASE}[data]\nrados = {{ pool = 'p' }}");
        let config = Config::parse(&short, Path::new("/x")).unwrap();
        let rados = config.rados().unwrap();
        assert_eq!(rados.conf, Path::new("/etc/ceph/ceph.conf"));
        assert_eq!((&*rados.client, config.namespace(rados)), ("client.ferrite", "home"));
        assert!(config.devices().is_empty());
        let long = format!(
            "{DATABASE}[data]\nrados = {{ pool = 'p', conf = 'c.conf', client = 'client.x', keyring = 'k', namespace = 'n' }}"
        );
        let config = Config::parse(&long, Path::new("/x")).unwrap();
        let rados = config.rados().unwrap();
        assert_eq!(rados.conf, Path::new("/x/c.conf"));
        assert_eq!(rados.keyring.as_deref(), Some(Path::new("/x/k")));
        assert_eq!(config.namespace(rados), "n");
        assert_eq!(Config::parse(&config.to_text(), Path::new("/y")), Ok(config));
    }

    #[test]
    fn mistakes_are_named() {
        let local = "[metadata]\ndirectory = 'm'\n";
        for (text, said) in [
            (
                format!("{local}[data]\nrados = {{ pool = 'p' }}"),
                "needs `[metadata]` with `postgres`",
            ),
            (format!("{DATABASE}[data]\ndevice = 'd'"), "unknown field `device`"),
            (
                format!("{DATABASE}[data]\nrados = {{ pool = 'p', pol = 'q' }}"),
                "unknown field `pol`",
            ),
            (
                format!("{DATABASE}[data]\nrados = {{ conf = 'c' }}"),
                "missing field `pool`",
            ),
            (
                format!("{DATABASE}[data]\nrados = {{ pool = '' }}"),
                "`pool` of `rados` is empty",
            ),
            (
                format!("{DATABASE}[data]\nrados = {{ pool = 'p', namespace = '' }}"),
                "`namespace` of `rados` is empty",
            ),
            (
                format!("{DATABASE}[[data]]\nrados = {{ pool = 'p' }}"),
                "unknown field `rados`",
            ),
            (format!("data = 7\n{DATABASE}"), "`[[data]]` with `device"),
            (
                format!("degraded = true\n{DATABASE}[data]\nrados = {{ pool = 'p' }}"),
                "`degraded`",
            ),
            (
                format!("{DATABASE}[data]\nrados = {{ pool = 'p' }}\n[[data]]\ndevice = 'd'"),
                "duplicate key",
            ),
        ] {
            let error = Config::parse(&text, Path::new("/x")).unwrap_err();
            assert!(error.contains(said), "{text}\n{error}");
        }
    }
}
