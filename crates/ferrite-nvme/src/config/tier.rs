//! The device with the log of a pool whose content is in S3, as the pool's file says it: the table `tier`.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::size;

/// A log of changes in front of the bucket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tier {
    /// A block device, or a file, of this machine.
    pub device: PathBuf,
    /// The size of the file, which is made if it does not exist.
    #[serde(
        default,
        deserialize_with = "size::optional::deserialize",
        serialize_with = "serialize_size",
        skip_serializing_if = "Option::is_none"
    )]
    pub size: Option<u64>,
    /// A second device, or a file on one, of another machine or of another failure domain, with the same log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mirror: Option<PathBuf>,
    /// When `fsync` returns; by default `mirror` with a second device, else `through`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<TierMode>,
    /// After how many seconds content that is in the log alone goes to the bucket, at the latest.
    #[serde(default = "default_age_s")]
    pub age_s: u64,
}

/// When content counts as durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TierMode {
    /// When the bucket has it. The log is emptied, and gets nothing more.
    Through,
    /// When the log has it: the loss of its device is the loss of what the bucket does not have yet.
    Back,
    /// When both copies of the log have it: one of them may be lost.
    Mirror,
}

const AGE_S: u64 = 30;
/// A day.
const AGE_S_MAX: u64 = 24 * 3600;
/// Less cannot hold the changes of a few writers between two publications.
const SIZE_MIN: u64 = 64 << 20;

fn default_age_s() -> u64 {
    AGE_S
}

fn serialize_size<S: serde::Serializer>(size: &Option<u64>, to: S) -> Result<S::Ok, S::Error> {
    size::serialize(&size.unwrap_or(0), to)
}

impl Tier {
    /// Its devices.
    pub fn devices(&self) -> impl Iterator<Item = &PathBuf> {
        std::iter::once(&self.device).chain(&self.mirror)
    }

    /// When `fsync` returns.
    pub fn mode(&self) -> TierMode {
        let default = match self.mirror {
            Some(_) => TierMode::Mirror,
            None => TierMode::Through,
        };
        self.mode.unwrap_or(default)
    }

    /// How long content may be in the log alone.
    pub fn age(&self) -> Duration {
        Duration::from_secs(self.age_s)
    }

    pub(super) fn check(&self) -> Result<(), String> {
        if self.device.as_os_str().is_empty() {
            return Err("`device` of `[tier]` is empty; name a device or a file".into());
        }
        match (self.mode(), &self.mirror) {
            (TierMode::Mirror, None) => {
                return Err("mode `mirror` of `[tier]` needs `mirror = \"PATH\"`, a second device".into());
            }
            (TierMode::Back, Some(_)) => {
                return Err("`mirror` of `[tier]` has no meaning in mode `back`; leave one of them out".into());
            }
            (_, Some(mirror)) if *mirror == self.device || mirror.as_os_str().is_empty() => {
                return Err("`mirror` of `[tier]` is no second device; name another one".into());
            }
            _ => {}
        }
        if self.size.is_some_and(|size| size < SIZE_MIN) {
            return Err(format!("`size` of `[tier]` is less than {} MiB", SIZE_MIN >> 20));
        }
        match (1..=AGE_S_MAX).contains(&self.age_s) {
            true => Ok(()),
            false => Err(format!("`age_s` is {}; it may be from 1 to {AGE_S_MAX}", self.age_s)),
        }
    }
}

#[cfg(all(test, feature = "s3"))]
mod tests {
    use std::path::Path;

    use super::super::Config;
    use super::TierMode;

    const S3: &str = "[metadata]\ndirectory = 'm'\n[data]\ns3 = 's3://bucket/a'\n[tier]\n";

    #[test]
    fn a_tier_is_read_with_defaults_and_written_again() {
        let text = format!("{S3}device = 'log'\nmode = 'back'");
        let config = Config::parse(&text, Path::new("/x")).unwrap();
        let tier = config.tier.as_ref().unwrap();
        assert_eq!((tier.device.as_path(), tier.age_s), (Path::new("/x/log"), 30));
        assert_eq!((tier.mode(), tier.size), (TierMode::Back, None));
        assert_eq!(Config::parse(&config.to_text(), Path::new("/y")), Ok(config));
        for (text, mode) in [("", TierMode::Through), ("\nmirror = 'm'", TierMode::Mirror)] {
            let config = Config::parse(&format!("{S3}device = 'log'{text}"), Path::new("/x")).unwrap();
            let tier = config.tier.as_ref().unwrap();
            assert_eq!((tier.mode(), tier.mirror.is_some()), (mode, mode == TierMode::Mirror));
            assert_eq!(Config::parse(&config.to_text(), Path::new("/y")), Ok(config));
        }
        let text = format!("{S3}device = '/dev/x'\nmode = 'through'\nsize = '1G'\nage_s = 5");
        let config = Config::parse(&text, Path::new("/x")).unwrap();
        assert_eq!(config.tier.as_ref().unwrap().size, Some(1 << 30));
        assert_eq!(Config::parse(&config.to_text(), Path::new("/y")), Ok(config));
    }

    #[test]
    fn mistakes_are_named() {
        for (text, said) in [
            ("device = 'log'\nmode = 'forward'", "unknown variant"),
            ("device = 'log'\nmode = 'mirror'", "needs `mirror = "),
            (
                "device = 'log'\nmode = 'back'\nmirror = 'm'",
                "no meaning in mode `back`",
            ),
            ("device = 'log'\nmirror = 'log'", "no second device"),
            ("device = ''\nmode = 'back'", "`device` of `[tier]` is empty"),
            ("device = 'log'\nmode = 'back'\nsize = '1M'", "less than 64 MiB"),
            ("device = 'log'\nmode = 'back'\nage_s = 0", "`age_s` is 0"),
            ("device = 'log'\nmode = 'back'\nword = 1", "word"),
        ] {
            let error = Config::parse(&format!("{S3}{text}"), Path::new("/x")).unwrap_err();
            assert!(error.contains(said), "{text}\n{error}");
        }
        let elsewhere = "[metadata]\ndirectory = 'm'\n[[data]]\ndevice = 'd'\n[tier]\ndevice = 'l'\nmode = 'back'";
        let error = Config::parse(elsewhere, Path::new("/x")).unwrap_err();
        assert!(
            error.contains("`[tier]` has a meaning with content in S3 only"),
            "{error}"
        );
    }
}
