//! What is remembered of READs and atomics, whose answers may be asked for again.

use crate::memory::Message;
use crate::wire::{Opcode, Psn, atomic};

/// What a remembered operation was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    Read(Message),
    Atomic {
        opcode: Opcode,
        request: atomic::Repr,
        original: u64,
    },
}

/// An operation that may be asked for again.
#[derive(Debug, Clone, Copy)]
pub(super) struct Resource {
    pub(super) first: Psn,
    pub(super) packets: u32,
    pub(super) operation: Operation,
}
