//! Frames: how messages are delimited in a stream of bytes.
//!
//! A frame is the length of its body (32 bits), the length of its data (32 bits), the body and the data. Numbers are
//! little-endian.

use crate::FabricError;

/// The head of each frame.
pub const PREFIX_BYTES: usize = 8;
/// Longest body. The largest of Ferrite's own is an extended attribute with two names.
pub const BODY_BYTES_MAX: usize = 128 << 10;
/// Most data beside a body: a buffer's worth.
pub const DATA_BYTES_MAX: usize = ferrite_buffers::BUFFER_BYTES_MAX;
/// Data up to this length is taken from the bytes received with its body. More is received straight into a buffer of
/// its own.
pub const INLINE_BYTES_MAX: usize = 32 << 10;

/// The transport's own requests and replies have this number.
pub(crate) const OWN_ID: [u8; 8] = [0xff; 8];

/// The lengths of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lengths {
    /// Of the body.
    pub body_bytes: usize,
    /// Of the data.
    pub data_bytes: usize,
}

impl Lengths {
    /// The prefix of a frame with these lengths.
    pub fn encode(self) -> [u8; PREFIX_BYTES] {
        let mut prefix = [0; PREFIX_BYTES];
        prefix[..4].copy_from_slice(&(self.body_bytes as u32).to_le_bytes());
        prefix[4..].copy_from_slice(&(self.data_bytes as u32).to_le_bytes());
        prefix
    }

    /// Reads a prefix from the first bytes of `bytes`; `None` if there are too few.
    ///
    /// # Errors
    /// If the frame is longer than any may be.
    pub fn decode(bytes: &[u8]) -> Result<Option<Lengths>, FabricError> {
        let Some(&[a, b, c, d, e, f, g, h]) = bytes.first_chunk::<PREFIX_BYTES>() else {
            return Ok(None);
        };
        let lengths = Lengths {
            body_bytes: u32::from_le_bytes([a, b, c, d]) as usize,
            data_bytes: u32::from_le_bytes([e, f, g, h]) as usize,
        };
        if lengths.body_bytes > BODY_BYTES_MAX || lengths.data_bytes > DATA_BYTES_MAX {
            return Err(FabricError::TooLong {
                body_bytes: lengths.body_bytes,
                data_bytes: lengths.data_bytes,
            });
        }
        Ok(Some(lengths))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_come_back_and_huge_ones_are_refused() {
        let lengths = Lengths {
            body_bytes: BODY_BYTES_MAX,
            data_bytes: DATA_BYTES_MAX,
        };
        assert_eq!(Lengths::decode(&lengths.encode()).unwrap(), Some(lengths));
        assert_eq!(Lengths::decode(&lengths.encode()[..7]).unwrap(), None);
        for (body_bytes, data_bytes) in [(BODY_BYTES_MAX + 1, 0), (0, DATA_BYTES_MAX + 1), (!0 >> 33, !0 >> 33)] {
            let lengths = Lengths { body_bytes, data_bytes };
            assert!(Lengths::decode(&lengths.encode()).is_err(), "{lengths:?}");
        }
    }
}
