//! The four bytes behind some SENDs and WRITEs: immediate data, or a key to invalidate.

use super::{Error, be32, first};

/// Length of either.
pub const BYTES: usize = 4;

/// A view over the four bytes.
#[derive(Debug, Clone, Copy)]
pub struct Packet<'p>(&'p [u8; BYTES]);

impl<'p> Packet<'p> {
    /// A view over the first bytes.
    ///
    /// # Errors
    /// `Truncated`.
    pub fn new_checked(bytes: &'p [u8]) -> Result<Packet<'p>, Error> {
        first(bytes).map(Packet)
    }

    /// The immediate data, or the key.
    pub fn value(&self) -> u32 {
        be32(self.0, 0)
    }
}
