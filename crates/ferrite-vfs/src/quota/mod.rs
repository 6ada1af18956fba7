//! Quotas, as callers see them: extended attributes ([`QuotaAttribute`]).
//!
//! Of directory trees: [`QUOTA_XATTR`] of any inode in the tree. Reading it gives the [`Quota`] that counts the inode;
//! root sets it on a directory ([`QuotaLimits`]), and removes it. Of users: an attribute for each user (`user`), which
//! root sets on the root directory.

mod table;
mod user;

use std::fmt;

use crate::text::number;
use crate::{BadArgument, FLAGS_XATTR, FsError, Ino, Result, SNAPSHOT_XATTR, StatFs, posix};

pub use table::{
    QUOTA_LEVELS_MAX, QUOTAS_LISTED_MAX, QuotaAccount, QuotaChange, QuotaCharge, QuotaOwners, QuotaTable, QuotaUsage,
    QuotaUse,
};
pub use user::{USER_QUOTAS_MAX, UserQuota, UserQuotas};

/// The attribute of a tree's quota; see the head of this module. It is not listed.
pub const QUOTA_XATTR: &[u8] = b"ferrite.quota";

/// An attribute that is a quota. None of them is listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuotaAttribute {
    /// [`QUOTA_XATTR`]: the quota of a tree.
    Tree,
    /// `ferrite.quota.user.UID`: the quota of a user ([`UserQuota`]), who may read it, as may root. Root sets and
    /// removes it, on the root directory of the file system; reading works everywhere.
    User(u32),
    /// `ferrite.quota.users`, or `ferrite.quota.users.UID`: the quotas of users, from one on, a line each; as many as
    /// fit. Root reads it.
    Users(u32),
}

impl QuotaAttribute {
    /// The attribute with a name. Root, and the number that stands for nobody, have no quota.
    pub fn of(name: &[u8]) -> Option<QuotaAttribute> {
        let rest = name.strip_prefix(QUOTA_XATTR)?;
        let number = |digits: &[u8]| {
            let text = std::str::from_utf8(digits).ok()?;
            // One name for each user.
            let uid: u32 = text.parse().ok().filter(|uid: &u32| uid.to_string() == text)?;
            (uid != 0 && uid != u32::MAX).then_some(uid)
        };
        match rest {
            b"" => Some(QuotaAttribute::Tree),
            b".users" => Some(QuotaAttribute::Users(0)),
            _ => match rest.strip_prefix(b".user.") {
                Some(digits) => number(digits).map(QuotaAttribute::User),
                None => number(rest.strip_prefix(b".users.")?).map(QuotaAttribute::Users),
            },
        }
    }

    /// Its name.
    pub fn name(self) -> Vec<u8> {
        let more = match self {
            QuotaAttribute::Tree => String::new(),
            QuotaAttribute::User(uid) => format!(".user.{uid}"),
            QuotaAttribute::Users(0) => ".users".into(),
            QuotaAttribute::Users(from) => format!(".users.{from}"),
        };
        [QUOTA_XATTR, more.as_bytes()].concat()
    }
}

/// Longest text of limits.
const TEXT_BYTES_MAX: usize = 256;

/// The limits of a quota; 0 stands for no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QuotaLimits {
    /// Of the pages of files, directories and extended attributes.
    pub bytes: u64,
    /// Of files, directories and all else that has an inode.
    pub inodes: u64,
}

/// A quota, and how much of it is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Quota {
    /// The directory whose quota it is.
    pub root: Ino,
    /// Its limits.
    pub limits: QuotaLimits,
    /// Bytes in use, as [`QuotaLimits::bytes`] counts them. Pages that files share count for each of them.
    pub used_bytes: u64,
    /// Inodes in use, the directory itself among them.
    pub used_inodes: u64,
}

/// Checks the name of an attribute, as a front end may pass it to an engine: one that an engine keeps
/// ([`posix::check_xattr_name`]), or that of quotas, flags or snapshots, which engines without them refuse.
pub fn check_attribute_name(name: &[u8]) -> Result<()> {
    match name {
        FLAGS_XATTR | SNAPSHOT_XATTR => Ok(()),
        _ if QuotaAttribute::of(name).is_some() => Ok(()),
        _ => posix::check_xattr_name(name),
    }
}

impl fmt::Display for QuotaLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "limit_bytes={} limit_inodes={}", self.bytes, self.inodes)
    }
}

impl QuotaLimits {
    /// Reads `limit_bytes=N` and `limit_inodes=N`, with spaces or commas between them; one that is missing is no limit.
    ///
    /// # Errors
    /// `Invalid` for anything else.
    pub fn parse(text: &[u8]) -> Result<QuotaLimits> {
        let invalid = || FsError::Invalid(BadArgument::QuotaText);
        let text = std::str::from_utf8(text)
            .ok()
            .filter(|text| text.len() <= TEXT_BYTES_MAX);
        let text = text.ok_or_else(invalid)?.trim();
        let mut limits = QuotaLimits::default();
        for word in text.split([' ', ',']).filter(|word| !word.is_empty()) {
            let (name, value) = word.split_once('=').ok_or_else(invalid)?;
            let value = value.parse().map_err(|_| invalid())?;
            match name {
                "limit_bytes" => limits.bytes = value,
                "limit_inodes" => limits.inodes = value,
                _ => return Err(invalid()),
            }
        }
        Ok(limits)
    }
}

impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Quota {
            root,
            limits,
            used_bytes,
            used_inodes,
        } = self;
        write!(
            f,
            "root={root} {limits} used_bytes={used_bytes} used_inodes={used_inodes}"
        )
    }
}

impl Quota {
    /// Reads the attribute's value.
    pub fn parse(text: &[u8]) -> Option<Quota> {
        let text = std::str::from_utf8(text).ok()?;
        Some(Quota {
            root: number(text, "root")?,
            limits: QuotaLimits {
                bytes: number(text, "limit_bytes")?,
                inodes: number(text, "limit_inodes")?,
            },
            used_bytes: number(text, "used_bytes")?,
            used_inodes: number(text, "used_inodes")?,
        })
    }

    /// The space of a file system as far as this quota lets it be used.
    pub fn narrow(&self, space: &StatFs) -> StatFs {
        let mut narrowed = *space;
        let block_bytes = u64::from(space.block_bytes).max(1);
        if self.limits.bytes > 0 {
            let left = self.limits.bytes.saturating_sub(self.used_bytes) / block_bytes;
            narrowed.blocks = (self.limits.bytes / block_bytes).min(space.blocks);
            narrowed.blocks_free = left.min(space.blocks_free);
            narrowed.blocks_available = left.min(space.blocks_available);
        }
        if self.limits.inodes > 0 {
            narrowed.inodes = self.limits.inodes.min(space.inodes);
            narrowed.inodes_free = self
                .limits
                .inodes
                .saturating_sub(self.used_inodes)
                .min(space.inodes_free);
        }
        narrowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_quota_has_one_name() {
        for (name, attribute) in [
            (&b"ferrite.quota"[..], QuotaAttribute::Tree),
            (b"ferrite.quota.user.1000", QuotaAttribute::User(1000)),
            (b"ferrite.quota.users", QuotaAttribute::Users(0)),
            (b"ferrite.quota.users.7", QuotaAttribute::Users(7)),
        ] {
            assert_eq!(QuotaAttribute::of(name), Some(attribute));
            assert_eq!(attribute.name(), name);
        }
        for name in [
            "ferrite.quotas",
            "ferrite.quota.",
            "ferrite.quota.user",
            "ferrite.quota.user.",
            "ferrite.quota.user.0",
            "ferrite.quota.user.01",
            "ferrite.quota.user.+1",
            "ferrite.quota.user.-1",
            "ferrite.quota.user.4294967295",
            "ferrite.quota.user.4294967296",
            "ferrite.quota.users.0",
            "ferrite.quota.users.x",
        ] {
            assert_eq!(QuotaAttribute::of(name.as_bytes()), None, "{name}");
            assert!(check_attribute_name(name.as_bytes()).is_err(), "{name}");
        }
    }

    #[test]
    fn texts_come_back() {
        let quota = Quota {
            root: 7,
            limits: QuotaLimits {
                bytes: 1 << 40,
                inodes: 0,
            },
            used_bytes: 4096,
            used_inodes: 3,
        };
        assert_eq!(Quota::parse(quota.to_string().as_bytes()), Some(quota));
        let limits = QuotaLimits { bytes: 5, inodes: 6 };
        assert_eq!(QuotaLimits::parse(limits.to_string().as_bytes()), Ok(limits));
        assert_eq!(QuotaLimits::parse(b"limit_inodes=6,limit_bytes=5"), Ok(limits));
        for text in [
            &b"5"[..],
            b"limit_bytes=-1",
            b"limit_bytes=x",
            b"size=4",
            &[0xff],
            &[b' '; 300],
        ] {
            assert!(QuotaLimits::parse(text).is_err(), "{text:?}");
        }
    }
}
