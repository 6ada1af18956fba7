//! The memory behind the keys: the responder reaches all memory through [`Memory`].
//!
//! The address of a WRITE or READ is an offset in a file, the key selects the file. Two addresses have a special
//! meaning:
//!
//! * A WRITE to [`APPEND_AT`] appends its bytes. The memory decides where, for the message as a whole.
//! * A FETCH_ADD at [`RESERVE_AT`] returns the old end and moves it: the caller then writes there. A COMPARE_SWAP there
//!   returns it likewise, and moves it if it matches the caller's expectation.
//!
//! Invariants for implementations:
//!
//! * **The effect of a call is durable when the call returns**, since the acknowledgement leaves next, and may cover
//!   it.
//! * The responder calls it once for each packet in sequence, and never for a duplicate. After [`Fault::NotReady`] the
//!   packet is resent, so that call must have had no effect.
//! * Parts of a message come in order and without gaps. Messages of other queue pairs may come between.

use crate::wire::Qpn;

/// The address of an append.
pub const APPEND_AT: u64 = 1 << 63;
/// The address of a FETCH_ADD that reserves space behind the end.
pub const RESERVE_AT: u64 = 1 << 62;

/// Why memory refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Not yet. The sender retries after the delay (RNR NAK).
    #[error("not ready for {wait_ns} ns")]
    NotReady {
        /// How long; up to 655 ms.
        wait_ns: u64,
    },
    /// The key is unknown, belongs to another queue pair, or does not allow this. Ends the connection.
    #[error("access denied")]
    Access,
    /// The memory failed. Ends the connection.
    #[error("the memory failed")]
    Operational,
}

/// A WRITE or READ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Message {
    /// The queue pair it came to.
    pub qpn: Qpn,
    /// Its number among those of the queue pair: each message has its own.
    pub number: u64,
    /// The key.
    pub key: u32,
    /// The address.
    pub at: u64,
    /// Length of all of it, at least 1; 0 only for WRITEs with immediate data. Address and length do not overflow.
    pub len_bytes: u32,
}

impl Message {
    /// Whether it appends its bytes.
    pub fn is_append(&self) -> bool {
        self.at == APPEND_AT
    }
}

/// How memory wants a WRITE delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// Packet by packet, by [`Memory::write`].
    Parts,
    /// In one call once it is complete, by [`Memory::write_whole`].
    Whole,
}

/// One packet of a WRITE.
#[derive(Debug, Clone, Copy)]
pub struct Part<'p> {
    /// Where in the message it begins.
    pub offset_bytes: u32,
    /// Its bytes.
    pub data: &'p [u8],
    /// Whether the message ends with it: an append can then be committed.
    pub is_last: bool,
    /// Immediate data, with the last part.
    pub immediate: Option<u32>,
}

/// A SEND that arrived.
#[derive(Debug, Clone, Copy)]
pub struct Received<'p> {
    /// All its bytes.
    pub data: &'p [u8],
    /// Immediate data.
    pub immediate: Option<u32>,
    /// A key that the sender invalidates.
    pub invalidate: Option<u32>,
}

/// Memory that queue pairs write and read.
pub trait Memory {
    /// A WRITE begins. An append reserves its window here. Called before any byte is written; not for WRITEs of length
    /// zero.
    ///
    /// # Errors
    /// Any fault; the message has not begun then.
    fn begin(&mut self, message: &Message) -> Result<Delivery, Fault>;

    /// Writes one packet, durably.
    ///
    /// # Errors
    /// Any fault. After `NotReady` for the first part the message is abandoned and begins again.
    fn write(&mut self, message: &Message, part: &Part<'_>) -> Result<(), Fault>;

    /// Writes an assembled message, durably.
    ///
    /// # Errors
    /// Any fault.
    fn write_whole(&mut self, message: &Message, data: &[u8], immediate: Option<u32>) -> Result<(), Fault>;

    /// The rest of a message that has begun will not come. Of an append, `arrived_bytes` may be kept, or none.
    fn abandon(&mut self, message: &Message, arrived_bytes: u32);

    /// Whether all of a READ is allowed; called once before its first packet.
    ///
    /// # Errors
    /// Any fault.
    fn may_read(&mut self, message: &Message) -> Result<(), Fault>;

    /// Reads one packet's bytes. A retransmitted READ reads again.
    ///
    /// # Errors
    /// Any fault.
    fn read(&mut self, message: &Message, offset_bytes: u32, into: &mut [u8]) -> Result<(), Fault>;

    /// Adds to the 8 bytes at `at`, a multiple of 8, durably. Returns the previous value.
    ///
    /// # Errors
    /// Any fault.
    fn fetch_add(&mut self, qpn: Qpn, key: u32, at: u64, add: u64) -> Result<u64, Fault>;

    /// Puts `swap` into the 8 bytes at `at`, a multiple of 8, if they are `compare`, durably. Returns the previous
    /// value.
    ///
    /// # Errors
    /// Any fault.
    fn compare_swap(&mut self, qpn: Qpn, key: u32, at: u64, compare: u64, swap: u64) -> Result<u64, Fault>;

    /// A SEND arrived.
    ///
    /// # Errors
    /// Any fault: `NotReady` if no buffer is available for it.
    fn receive(&mut self, qpn: Qpn, received: &Received<'_>) -> Result<(), Fault>;
}
