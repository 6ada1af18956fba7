//! A device in memory. Every write is there at once, and gone with the process.

use parking_lot::RwLock;

use super::{Device, Op, failed};
use crate::Result;

/// A device in memory, or an image of one.
pub struct Memory {
    bytes: RwLock<Vec<u8>>,
    whole_pages: bool,
}

impl Memory {
    /// A device of zeros.
    pub fn new(len_bytes: u64) -> Memory {
        Memory::of(vec![0; len_bytes as usize])
    }

    /// A device with this content.
    pub fn of(bytes: Vec<u8>) -> Memory {
        Memory {
            bytes: RwLock::new(bytes),
            whole_pages: true,
        }
    }

    /// The same, but the device reports that it tears pages.
    #[must_use]
    pub fn tearing(self) -> Memory {
        Memory {
            whole_pages: false,
            ..self
        }
    }

    /// A copy of its content.
    pub fn image(&self) -> Vec<u8> {
        self.bytes.read().clone()
    }
}

impl Device for Memory {
    fn name(&self) -> &str {
        "memory"
    }

    fn len_bytes(&self) -> u64 {
        self.bytes.read().len() as u64
    }

    fn writes_whole_pages(&self) -> bool {
        self.whole_pages
    }

    fn run(&self, batch: &mut [Op<'_>]) -> Result<()> {
        for op in batch {
            let Some(range) = op.range() else { continue };
            if range.end > self.len_bytes() {
                return Err(failed(self, op, "behind the end"));
            }
            let range = range.start as usize..range.end as usize;
            match op {
                Op::Read { into, .. } => into.copy_from_slice(&self.bytes.read()[range]),
                Op::Write { from, .. } => self.bytes.write()[range].copy_from_slice(from),
                Op::Flush => {}
            }
        }
        Ok(())
    }
}
