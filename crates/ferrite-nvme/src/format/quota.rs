//! Values: the quota of a directory, under the directory's number.

use ferrite_vfs::{QuotaLimits, QuotaUsage};

use super::Reader;

const VERSION: u8 = 1;

/// A quota as its record has it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct QuotaRecord {
    pub(crate) limits: QuotaLimits,
    /// How much was used when the pool was closed: of no meaning after a crash.
    pub(crate) used: QuotaUsage,
    /// It was removed, and inodes without a name still name it.
    pub(crate) has_ended: bool,
}

impl QuotaRecord {
    pub(crate) fn of(limits: QuotaLimits, used: QuotaUsage) -> QuotaRecord {
        QuotaRecord {
            limits,
            used,
            has_ended: false,
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut value = vec![VERSION];
        let used = [self.used.bytes, self.used.inodes].map(i64::cast_unsigned);
        for number in [self.limits.bytes, self.limits.inodes].into_iter().chain(used) {
            value.extend_from_slice(&number.to_le_bytes());
        }
        value.push(u8::from(self.has_ended));
        value
    }

    /// `None`: it is damaged.
    pub(crate) fn decode(value: &[u8]) -> Option<QuotaRecord> {
        let mut from = Reader(value);
        if from.u8()? != VERSION {
            return None;
        }
        let record = QuotaRecord {
            limits: QuotaLimits {
                bytes: from.u64()?,
                inodes: from.u64()?,
            },
            used: QuotaUsage {
                bytes: from.u64()?.cast_signed(),
                inodes: from.u64()?.cast_signed(),
            },
            has_ended: from.u8()? == 1,
        };
        from.rest().is_empty().then_some(record)
    }
}
