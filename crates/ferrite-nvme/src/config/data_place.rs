//! Where a pool's content is, as its file says: devices, each a table of the list `data`, or one table `data` that
//! names a pool of a Ceph cluster. TOML refuses both in one file.

use std::fmt;
use std::path::PathBuf;

use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Where content is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DataPlace {
    /// On devices, in an order that never changes.
    Devices(Vec<Data>),
    /// In a Ceph cluster.
    Rados(Rados),
}

/// A data device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Data {
    /// A block device, or a file.
    pub device: PathBuf,
    /// Whether 4 KiB are written whole or not at all, also when power is lost. By default the device reports it, and no
    /// file is trusted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub whole_pages: Option<bool>,
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

/// The table `data`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    rados: Rados,
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
        }
    }
}

impl<'de> Deserialize<'de> for DataPlace {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<DataPlace, D::Error> {
        struct Places;
        impl<'de> Visitor<'de> for Places {
            type Value = DataPlace;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("`[[data]]` with `device = \"PATH\"`, or `[data]` with `rados = { pool = \"NAME\" }`")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, tables: A) -> Result<DataPlace, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(tables)).map(DataPlace::Devices)
            }

            fn visit_map<A: MapAccess<'de>>(self, table: A) -> Result<DataPlace, A::Error> {
                let Table { rados } = Table::deserialize(MapAccessDeserializer::new(table))?;
                Ok(DataPlace::Rados(rados))
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
