//! What stands behind the keys: the responder reaches all memory through [`Memory`].
//!
//! The address of a WRITE or READ is an offset in a file, the key says in which. Two addresses mean more:
//!
//! * A WRITE to [`APPEND_AT`] puts its bytes behind the end. The memory decides where, for the message as a whole.
//! * A FETCH_ADD at [`RESERVE_AT`] gives the end as it was and moves it: the caller then writes there. A COMPARE_SWAP
//!   there gives it likewise, and moves it if it is where the caller takes it to be.
//!
//! Invariants for who implements it:
//!
//! * **What a call did is durable when the call returns**, since the acknowledgement leaves next, and may cover it.
//! * The responder calls it once for each packet that arrives in its turn, and never for one that comes again. After
//!   [`Fault::NotReady`] the packet comes again, so that call must have had no effect.
//! * Parts of a message come in order and without gaps. Messages of other queue pairs may come between.

use crate::wire::Qpn;

/// The address of a WRITE that appends.
pub const APPEND_AT: u64 = 1 << 63;
/// The address of a FETCH_ADD that reserves room behind the end.
pub const RESERVE_AT: u64 = 1 << 62;

/// Why memory did not do it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Not yet. The sender tries again after the delay (RNR NAK).
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
    /// Its number among those of the queue pair: no two have the same.
    pub number: u64,
    /// The key.
    pub key: u32,
    /// The address.
    pub at: u64,
    /// Length of all of it, at least 1; 0 only for WRITEs with immediate data. Address and length do not overflow.
    pub len_bytes: u32,
}

impl Message {
    /// Whether its bytes go behind the end.
    pub fn is_append(&self) -> bool {
        self.at == APPEND_AT
    }
}

/// How a WRITE wants to be given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// Packet by packet, by [`Memory::write`].
    Parts,
    /// In one call when all of it is there, by [`Memory::write_whole`].
    Whole,
}

/// One packet of a WRITE.
#[derive(Debug, Clone, Copy)]
pub struct Part<'p> {
    /// Where in the message it begins.
    pub offset_bytes: u32,
    /// Its bytes.
    pub data: &'p [u8],
    /// Whether the message ends with it: an append can be committed.
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
    /// A key that the sender wants to be invalid.
    pub invalidate: Option<u32>,
}

/// Memory that queue pairs write and read.
pub trait Memory {
    /// A WRITE begins. An append reserves its window here. Called before anything of it is written; not for WRITEs of
    /// length zero.
    ///
    /// # Errors
    /// Any fault; the message has then not begun.
    fn begin(&mut self, message: &Message) -> Result<Delivery, Fault>;

    /// Writes one packet, durably.
    ///
    /// # Errors
    /// Any fault. After `NotReady` for the first part the message is abandoned and begins anew.
    fn write(&mut self, message: &Message, part: &Part<'_>) -> Result<(), Fault>;

    /// Writes a message that was assembled, durably.
    ///
    /// # Errors
    /// Any fault.
    fn write_whole(&mut self, message: &Message, data: &[u8], immediate: Option<u32>) -> Result<(), Fault>;

    /// The rest of a message that has begun will not come. Of an append, `arrived_bytes` may be kept, or nothing.
    fn abandon(&mut self, message: &Message, arrived_bytes: u32);

    /// Whether all of a READ is allowed; asked once before its first packet.
    ///
    /// # Errors
    /// Any fault.
    fn may_read(&mut self, message: &Message) -> Result<(), Fault>;

    /// Reads one packet's bytes. A READ that is asked for again reads again.
    ///
    /// # Errors
    /// Any fault.
    fn read(&mut self, message: &Message, offset_bytes: u32, into: &mut [u8]) -> Result<(), Fault>;

    /// Adds to the 8 bytes at `at`, a multiple of 8, durably. Gives what was there before.
    ///
    /// # Errors
    /// Any fault.
    fn fetch_add(&mut self, qpn: Qpn, key: u32, at: u64, add: u64) -> Result<u64, Fault>;

    /// Puts `swap` into the 8 bytes at `at`, a multiple of 8, if they are `compare`, durably. Gives what was there.
    ///
    /// # Errors
    /// Any fault.
    fn compare_swap(&mut self, qpn: Qpn, key: u32, at: u64, compare: u64, swap: u64) -> Result<u64, Fault>;

    /// A SEND arrived.
    ///
    /// # Errors
    /// Any fault: `NotReady` if nobody has a buffer for it.
    fn receive(&mut self, qpn: Qpn, received: &Received<'_>) -> Result<(), Fault>;
}
