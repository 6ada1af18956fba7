//! Remembered READs and atomics, whose responses may be requested again.

use crate::memory::Message;
use crate::wire::{Opcode, Psn, atomic};

/// A remembered operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    Read(Message),
    Atomic {
        opcode: Opcode,
        request: atomic::Repr,
        original: u64,
    },
}

/// An operation that may be requested again.
#[derive(Debug, Clone, Copy)]
pub(super) struct Resource {
    pub(super) first: Psn,
    pub(super) packets: u32,
    pub(super) operation: Operation,
}
