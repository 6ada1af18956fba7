//! Quotas of users: as callers see one ([`UserQuota`]), and as engines keep them all ([`UserQuotas`]).
//!
//! A user's quota counts the inodes that the user owns, wherever in the file system they are, but in snapshots. Its
//! limits hold for whoever changes a file of the user: it is the owner who is counted.
//!
//! Engines keep them in attributes of their own of the root directory, which change in one record; a reader of the
//! attributes finds all of them or an error. Usage is kept for engines that need not count anew when they are opened.

use std::collections::BTreeMap;
use std::fmt;

use super::{QuotaLimits, QuotaUsage};
use crate::text::number;

/// Users with quotas in a file system, at most.
pub const USER_QUOTAS_MAX: usize = 10_000;

/// The first byte of each value.
const VERSION: u8 = 1;
/// Number of the user; limits of bytes and inodes; usage of both.
const ENTRY_BYTES: usize = 4 + 4 * 8;
/// Users in an attribute.
const ENTRIES_MAX: usize = 1800;
/// Longest list that a reader gets.
const LIST_BYTES_MAX: usize = 16_000;

/// The quota of a user, and how much of it is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct UserQuota {
    /// The user's number.
    pub uid: u32,
    /// The limits; 0 for none.
    pub limit_bytes: u64,
    /// See `limit_bytes`.
    pub limit_inodes: u64,
    /// How much is used.
    pub used_bytes: u64,
    /// See `used_bytes`.
    pub used_inodes: u64,
}

impl fmt::Display for UserQuota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let UserQuota {
            uid,
            used_bytes,
            used_inodes,
            ..
        } = self;
        let limits = self.limits();
        write!(
            f,
            "uid={uid} {limits} used_bytes={used_bytes} used_inodes={used_inodes}"
        )
    }
}

impl UserQuota {
    /// A quota with what is used of it.
    pub fn of(uid: u32, limits: QuotaLimits, used: QuotaUsage) -> UserQuota {
        UserQuota {
            uid,
            limit_bytes: limits.bytes,
            limit_inodes: limits.inodes,
            used_bytes: used.bytes.max(0).cast_unsigned(),
            used_inodes: used.inodes.max(0).cast_unsigned(),
        }
    }

    /// Its limits.
    pub fn limits(&self) -> QuotaLimits {
        QuotaLimits {
            bytes: self.limit_bytes,
            inodes: self.limit_inodes,
        }
    }

    /// How much is used.
    pub fn used(&self) -> QuotaUsage {
        QuotaUsage {
            bytes: self.used_bytes.cast_signed(),
            inodes: self.used_inodes.cast_signed(),
        }
    }

    /// Reads the attribute's value, or a line of a list.
    pub fn parse(text: &[u8]) -> Option<UserQuota> {
        let text = std::str::from_utf8(text).ok()?;
        Some(UserQuota {
            uid: number(text, "uid")?.try_into().ok()?,
            limit_bytes: number(text, "limit_bytes")?,
            limit_inodes: number(text, "limit_inodes")?,
            used_bytes: number(text, "used_bytes")?,
            used_inodes: number(text, "used_inodes")?,
        })
    }

    /// The first of these as a list: whole lines, as many as a reader gets.
    pub fn list(quotas: &[UserQuota]) -> Vec<u8> {
        let mut text = Vec::new();
        for line in quotas.iter().map(|quota| format!("{quota}\n")) {
            if text.len() + line.len() > LIST_BYTES_MAX {
                break;
            }
            text.extend_from_slice(line.as_bytes());
        }
        text
    }
}

/// All quotas of users, as an engine keeps them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UserQuotas(pub BTreeMap<u32, UserQuota>);

impl UserQuotas {
    /// The names of the attributes that an engine keeps begin like this; a number follows, from 0.
    pub const NAME: &[u8] = b"trusted.ferrite.user_quotas.";

    /// Whether an attribute has some of them.
    pub fn is_kept_in(name: &[u8]) -> bool {
        name.starts_with(UserQuotas::NAME)
    }

    /// Reads them from all attributes of the root directory; `None` if they are damaged, or some are missing.
    pub fn of<'a>(attributes: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> Option<UserQuotas> {
        let mut values = BTreeMap::new();
        for (name, value) in attributes {
            if let Some(index) = name.strip_prefix(UserQuotas::NAME) {
                let text = std::str::from_utf8(index).ok()?;
                values.insert(text.parse::<usize>().ok()?, value);
            }
        }
        let mut all = BTreeMap::new();
        for (expected, (index, value)) in values.into_iter().enumerate() {
            let (&VERSION, entries) = value.split_first()? else {
                return None;
            };
            let (entries, rest) = entries.as_chunks::<ENTRY_BYTES>();
            if index != expected || !rest.is_empty() {
                return None;
            }
            for entry in entries {
                let quota = read_entry(entry)?;
                let is_user = quota.uid != 0 && quota.uid != u32::MAX;
                if !is_user || all.len() == USER_QUOTAS_MAX || all.insert(quota.uid, quota).is_some() {
                    return None;
                }
            }
        }
        Some(UserQuotas(all))
    }

    /// The attributes that keep them, in place of all for which [`Self::is_kept_in`] holds.
    pub fn attributes(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let all: Vec<&UserQuota> = self.0.values().collect();
        let attribute = |(index, some): (usize, &[&UserQuota])| {
            let mut value = vec![VERSION];
            for quota in some {
                value.extend_from_slice(&quota.uid.to_le_bytes());
                for number in [
                    quota.limit_bytes,
                    quota.limit_inodes,
                    quota.used_bytes,
                    quota.used_inodes,
                ] {
                    value.extend_from_slice(&number.to_le_bytes());
                }
            }
            ([UserQuotas::NAME, index.to_string().as_bytes()].concat(), value)
        };
        all.chunks(ENTRIES_MAX).enumerate().map(attribute).collect()
    }
}

fn read_entry(entry: &[u8; ENTRY_BYTES]) -> Option<UserQuota> {
    let (uid, numbers) = entry.split_first_chunk::<4>()?;
    let mut numbers = numbers
        .as_chunks::<8>()
        .0
        .iter()
        .map(|bytes| u64::from_le_bytes(*bytes));
    Some(UserQuota {
        uid: u32::from_le_bytes(*uid),
        limit_bytes: numbers.next()?,
        limit_inodes: numbers.next()?,
        used_bytes: numbers.next()?,
        used_inodes: numbers.next()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::XATTR_SIZE_MAX;

    fn quota(uid: u32) -> UserQuota {
        UserQuota {
            uid,
            limit_bytes: u64::from(uid) << 30,
            limit_inodes: 5,
            used_bytes: 4096,
            used_inodes: 3,
        }
    }

    #[test]
    fn as_many_as_there_may_be_are_kept_and_come_back() {
        let uids = (1..=USER_QUOTAS_MAX as u32).map(|uid| (uid * 7, quota(uid * 7)));
        let all = UserQuotas(uids.collect());
        let kept = all.attributes();
        assert!(kept.iter().all(|(_, value)| value.len() <= XATTR_SIZE_MAX));
        let space: usize = kept.iter().map(|(name, value)| name.len() + value.len() + 4).sum();
        assert!(space < 512 << 10, "{space}");
        let other = (b"user.x".to_vec(), b"y".to_vec());
        let read = kept.iter().chain([&other]).map(|(name, value)| (&name[..], &value[..]));
        assert_eq!(UserQuotas::of(read), Some(all));
        assert!(UserQuotas::default().attributes().is_empty());
    }

    #[test]
    fn damage_is_seen() {
        let name = [UserQuotas::NAME, b"0"].concat();
        let good = UserQuotas([(5, quota(5))].into()).attributes().remove(0).1;
        let of = |value: &[u8]| UserQuotas::of([(&name[..], value)].into_iter());
        assert!(of(&good).is_some());
        let twice = [&good[..], &good[1..]].concat();
        let of_root = [&good[..1], &[0; 4], &good[5..]].concat();
        let of_nobody = [&good[..1], &[0xff; 4], &good[5..]].concat();
        for bad in [&[][..], &[2], &good[..good.len() - 1], &twice, &of_root, &of_nobody] {
            assert_eq!(of(bad), None, "{bad:?}");
        }
        for name in ["", "1", "x"] {
            let name = [UserQuotas::NAME, name.as_bytes()].concat();
            assert_eq!(
                UserQuotas::of([(&name[..], &good[..])].into_iter()),
                None,
                "a part is missing"
            );
        }
    }

    #[test]
    fn lists_have_whole_lines() {
        assert_eq!(UserQuota::parse(quota(9).to_string().as_bytes()), Some(quota(9)));
        let all: Vec<_> = (1..=2000).map(quota).collect();
        let text = UserQuota::list(&all);
        assert!(text.len() <= LIST_BYTES_MAX && text.ends_with(b"\n"));
        let lines: Vec<_> = text[..text.len() - 1].split(|&byte| byte == b'\n').collect();
        let read: Vec<_> = lines.iter().map(|line| UserQuota::parse(line).unwrap()).collect();
        assert_eq!(read[..], all[..read.len()]);
        assert!(read.len() > 150);
    }
}
