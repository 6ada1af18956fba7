//! The ids of slices, and their names.

use std::fmt;

/// The length of a block of a file: slices are not longer, and do not cross its borders.
pub const BLOCK_BYTES: u64 = 4 << 20;

/// The length of the parts of a slice that can be read alone.
pub(crate) const PART_BYTES: u32 = 64 << 10;

/// The id of a slice: the epoch of the owner that made it, and a number that this owner used once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SliceId {
    /// The owner's epoch.
    pub epoch: u64,
    /// Which of its slices this is.
    pub number: u64,
}

impl fmt::Display for SliceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}/{:016x}", self.epoch, self.number)
    }
}

impl SliceId {
    /// The id that [`fmt::Display`] wrote.
    pub fn parse(text: &str) -> Option<SliceId> {
        let (epoch, number) = text.split_once('/')?;
        let hex = |text: &str| {
            let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
            let is_number = text.len() == 16 && text.bytes().all(is_hex);
            is_number.then(|| u64::from_str_radix(text, 16).ok()).flatten()
        };
        Some(SliceId {
            epoch: hex(epoch)?,
            number: hex(number)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_as_it_was_written_and_others_are_no_ids() {
        let id = SliceId { epoch: 3, number: 70 };
        assert_eq!(SliceId::parse(&id.to_string()), Some(id));
        for text in [
            "",
            "1/2",
            "0000000000000001",
            "000000000000000G/0000000000000001",
            "+00000000000000A/0000000000000001",
        ] {
            assert_eq!(SliceId::parse(text), None, "{text}");
        }
    }
}
