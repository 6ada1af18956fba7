//! Content in S3, as a pool's file says it: the table `data` with the word `s3`.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::size;

/// A bucket and a prefix in it, which is the pool's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct S3 {
    /// `s3://BUCKET/PREFIX`; or `file:///DIRECTORY`, for tests and for file systems that many machines mount.
    #[serde(rename = "s3")]
    pub address: String,
    /// The URL of the service. By default the environment says it, or it is that of AWS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// The region. By default the environment says it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// A file with keys, in the form of `~/.aws/credentials`. By default that file, or the environment, has them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credentials: Option<PathBuf>,
    /// The profile in the file with keys; `default` by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// How new content is compressed.
    pub compression: Compression,
    /// The file with the secret that the content's key is encrypted with. By default content is not encrypted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encryption_key: Option<PathBuf>,
    /// Memory for content that was read or written lately.
    #[serde(with = "size")]
    pub cache: u64,
    /// A directory of this machine for content that was read lately. By default none is kept on a disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_cache: Option<PathBuf>,
    /// The space for it.
    #[serde(with = "size")]
    pub disk_cache_size: u64,
    /// Memory for content that has not been stored yet.
    #[serde(with = "size")]
    pub buffer: u64,
    /// For how many seconds the objects of deleted content are kept.
    pub keep_s: u64,
}

/// How new content is compressed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// Not at all.
    #[default]
    None,
    /// By Zstandard, where that saves something.
    Zstd,
}

/// A week: metadata that is restored from a backup of this age finds its content.
const KEEP_S: u64 = 7 * 24 * 3600;
/// Space for a directory, if its size is not said.
const DISK_CACHE_BYTES: u64 = 16 << 30;
/// Less cannot hold the blocks of a few readers.
const DISK_CACHE_BYTES_MIN: u64 = 128 << 20;
/// Less cannot hold the blocks of a few writers.
const BUFFER_BYTES_MIN: u64 = 16 << 20;
/// Ten years.
const KEEP_S_MAX: u64 = 10 * 366 * 24 * 3600;

impl S3 {
    /// Content at an address, with defaults.
    pub fn at(address: impl Into<String>) -> S3 {
        S3 {
            address: address.into(),
            endpoint: None,
            region: None,
            credentials: None,
            profile: None,
            compression: Compression::None,
            encryption_key: None,
            cache: 256 << 20,
            disk_cache: None,
            disk_cache_size: DISK_CACHE_BYTES,
            buffer: 128 << 20,
            keep_s: KEEP_S,
        }
    }

    /// For how long the objects of deleted content are kept.
    pub fn keep(&self) -> Duration {
        Duration::from_secs(self.keep_s)
    }

    pub(super) fn check(&self) -> Result<(), String> {
        #[cfg(feature = "s3")]
        self.address.parse::<ferrite_slices::Address>().map(drop)?;
        let words = [
            ("endpoint", &self.endpoint),
            ("region", &self.region),
            ("profile", &self.profile),
        ];
        if let Some((word, _)) = words.iter().find(|(_, value)| value.as_deref() == Some("")) {
            return Err(format!("`{word}` is empty; leave it out, or give it a value"));
        }
        if self
            .encryption_key
            .as_deref()
            .is_some_and(|file| file.as_os_str().is_empty())
        {
            return Err("`encryption_key` is empty; name a file that `ferrite key` has made".into());
        }
        if self.disk_cache.as_deref().is_some_and(|dir| dir.as_os_str().is_empty()) {
            return Err("`disk_cache` is empty; name a directory".into());
        }
        if self.disk_cache_size < DISK_CACHE_BYTES_MIN {
            let least = DISK_CACHE_BYTES_MIN >> 20;
            return Err(format!("`disk_cache_size` is less than {least} MiB"));
        }
        if self.buffer < BUFFER_BYTES_MIN {
            return Err(format!("`buffer` is less than {} MiB", BUFFER_BYTES_MIN >> 20));
        }
        match self.keep_s <= KEEP_S_MAX {
            true => Ok(()),
            false => Err(format!("`keep_s` is more than {KEEP_S_MAX} seconds, ten years")),
        }
    }
}

#[cfg(all(test, feature = "s3"))]
mod tests {
    use std::path::Path;

    use super::super::Config;
    use super::Compression;

    const LOCAL: &str = "[metadata]\ndirectory = 'm'\n[data]\n";

    #[test]
    fn content_in_s3_is_read_with_defaults_and_written_again() {
        let config = Config::parse(&format!("{LOCAL}s3 = 's3://bucket/a/b'"), Path::new("/x")).unwrap();
        let s3 = config.s3().unwrap();
        assert_eq!((s3.cache, s3.buffer, s3.keep_s), (256 << 20, 128 << 20, 604_800));
        assert_eq!(config.content_place(), "s3://bucket/a/b");
        assert!(config.devices().is_empty() && config.rados().is_none());
        assert_eq!(Config::parse(&config.to_text(), Path::new("/y")), Ok(config));
        let more = "region = 'r'\nprofile = 'p'\ncredentials = 'k'\ncache = '1G'\nbuffer = '64M'\nkeep_s = 60\n\
            compression = 'zstd'\nencryption_key = 'secret'\ndisk_cache = 'c'\ndisk_cache_size = '2G'";
        let text = format!("{LOCAL}s3 = 'file:///d'\nendpoint = 'http://e'\n{more}");
        let config = Config::parse(&text, Path::new("/x")).unwrap();
        let s3 = config.s3().unwrap();
        assert_eq!((s3.cache, s3.buffer, s3.keep_s), (1 << 30, 64 << 20, 60));
        assert_eq!(s3.endpoint.as_deref(), Some("http://e"));
        assert_eq!(s3.credentials.as_deref(), Some(Path::new("/x/k")));
        assert_eq!(s3.encryption_key.as_deref(), Some(Path::new("/x/secret")));
        assert_eq!(s3.compression, Compression::Zstd);
        assert_eq!(s3.disk_cache.as_deref(), Some(Path::new("/x/c")));
        assert_eq!(s3.disk_cache_size, 2 << 30);
        assert_eq!(Config::parse(&config.to_text(), Path::new("/y")), Ok(config));
    }

    #[test]
    fn mistakes_are_named() {
        for (text, said) in [
            ("s3 = 'bucket'", "s3://BUCKET/PREFIX"),
            ("s3 = 's3://bucket'\nregoin = 'r'", "unknown field `regoin`"),
            ("s3 = 's3://bucket'\nregion = ''", "`region` is empty"),
            ("s3 = 's3://bucket'\nbuffer = '1M'", "less than 16 MiB"),
            ("s3 = 's3://bucket'\nkeep_s = 999999999999", "ten years"),
            ("region = 'r'", "`s3 = "),
            ("s3 = 's3://bucket'\ncompression = 'lz4'", "expected `none` or `zstd`"),
            ("s3 = 's3://bucket'\ndisk_cache = ''", "`disk_cache` is empty"),
            ("s3 = 's3://bucket'\ndisk_cache_size = '1M'", "less than 128 MiB"),
            ("s3 = 's3://bucket'\nencryption_key = ''", "`encryption_key` is empty"),
            ("s3 = 's3://bucket'\nrados = { pool = 'p' }", "`s3 = "),
        ] {
            let error = Config::parse(&format!("{LOCAL}{text}"), Path::new("/x")).unwrap_err();
            assert!(error.contains(said), "{text}\n{error}");
        }
        let degraded = format!("degraded = true\n{LOCAL}s3 = 's3://bucket'");
        assert!(
            Config::parse(&degraded, Path::new("/x"))
                .unwrap_err()
                .contains("`degraded`")
        );
    }
}
