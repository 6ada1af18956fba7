//! Devices: the media that stores read and write.
//!
//! Contents: the trait [`Device`], its operations, and the kinds of devices: a file or block device through io_uring
//! ([`uring`]), memory ([`Memory`]), and layers over any other: [`Recorder`] for images of crashes, [`Faulty`] for
//! failures, [`Slow`] for a stated latency.
//!
//! Invariants: operations of one batch are under way together and in no order; the operations of a batch that has
//! returned come before those of the next. A durable write, and everything written before a flush, survives a power
//! loss once it has returned. All offsets and lengths are multiples of a page.

mod fault;
mod memory;
mod namespace;
mod reactor;
mod record;
mod slow;
mod submitted;
pub mod uring;

use ferrite_buffers::{Buffer, Pool};

use crate::{Error, Result};

pub use fault::{Fault, Faulty, Target};
pub use memory::Memory;
pub use namespace::block_device_of;
pub use record::{Log, Logged, Recorder, lose_power};
pub use slow::Slow;

/// One operation of a batch.
#[derive(Debug)]
pub enum Op<'o> {
    /// Fills the buffer.
    Read {
        /// Where, in bytes.
        offset: u64,
        /// Into which buffer.
        into: &'o mut [u8],
    },
    /// Writes all of the buffer.
    Write {
        /// Where, in bytes.
        offset: u64,
        /// The data.
        from: &'o [u8],
        /// It survives a power loss once the batch returns.
        durable: bool,
    },
    /// Everything that was written before the batch survives a power loss once it returns.
    Flush,
}

/// A part of a [`Transfer`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Where on the device, in bytes.
    pub offset: u64,
    /// Which bytes of the buffer.
    pub bytes: std::ops::Range<usize>,
}

/// A transfer for [`Submitting::submit`].
pub struct Transfer {
    /// The buffer to read into, or to write from. All of its [`Buffer::capacity`] may be transferred, whatever its
    /// length.
    pub buffer: Buffer,
    /// From the buffer to the device, durable when `done` is called.
    pub writes: bool,
    /// Side by side in no order; at least one, none of them empty.
    pub parts: Vec<Part>,
    /// Called once, on a thread of the device. Must not block.
    pub done: Done,
}

/// Receives the buffer and the result; after an error, parts may have been transferred.
pub type Done = Box<dyn FnOnce(Buffer, Result<()>) + Send>;

/// The medium of a store.
pub trait Device: Send + Sync {
    /// Its name, for messages.
    fn name(&self) -> &str;

    /// Its size in bytes.
    fn len_bytes(&self) -> u64;

    /// Whether a page that is written in place is old or new after a power loss, never a mixture.
    fn writes_whole_pages(&self) -> bool;

    /// Carries out all operations; blocks until each has ended.
    ///
    /// # Errors
    /// [`Error::Device`] if one failed; others may have been carried out, in part or whole.
    fn run(&self, batch: &mut [Op<'_>]) -> Result<()>;

    /// Whether it has become shorter since it was opened, as a file can.
    fn is_cut_off(&self) -> bool {
        false
    }

    /// Itself, if it carries out transfers without a waiting thread.
    fn submitting(&self) -> Option<&dyn Submitting> {
        None
    }
}

/// A device that carries out transfers without a waiting thread.
pub trait Submitting {
    /// Begins a transfer and returns before it has ended. Does not block.
    fn submit(&self, transfer: Transfer);

    /// Prepares for transfers of buffers of this pool, whose memory stays in use as long as the device exists. It only
    /// makes them cheaper.
    fn know_buffers(&self, pool: &Pool);
}

impl<D: Device + ?Sized> Device for std::sync::Arc<D> {
    fn name(&self) -> &str {
        (**self).name()
    }

    fn len_bytes(&self) -> u64 {
        (**self).len_bytes()
    }

    fn writes_whole_pages(&self) -> bool {
        (**self).writes_whole_pages()
    }

    fn run(&self, batch: &mut [Op<'_>]) -> Result<()> {
        (**self).run(batch)
    }

    fn is_cut_off(&self) -> bool {
        (**self).is_cut_off()
    }

    fn submitting(&self) -> Option<&dyn Submitting> {
        (**self).submitting()
    }
}

impl Op<'_> {
    /// The bytes of the device that it concerns, if any.
    pub fn range(&self) -> Option<std::ops::Range<u64>> {
        match self {
            Op::Read { offset, into } => Some(*offset..offset + into.len() as u64),
            Op::Write { offset, from, .. } => Some(*offset..offset + from.len() as u64),
            Op::Flush => None,
        }
    }

    pub(crate) fn action(&self) -> &'static str {
        match self {
            Op::Read { .. } => "a read",
            Op::Write { .. } => "a write",
            Op::Flush => "a flush",
        }
    }
}

/// An error of a device.
pub(crate) fn failed(device: &dyn Device, op: &Op<'_>, cause: impl ToString) -> Error {
    Error::Device {
        device: device.name().to_string(),
        action: op.action(),
        cause: cause.to_string(),
    }
}
