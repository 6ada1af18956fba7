//! A layer that records writes and flushes, and computes what a power loss could leave of them.
//!
//! Several devices may share one log: then an image of all of them comes from one moment.
//!
//! Invariant: every operation in the log has returned, in the order of the log; no other operation of these devices is
//! under way meanwhile.

use std::sync::Arc;

use parking_lot::Mutex;

use super::{Device, Op};
use crate::Result as DeviceResult;

/// An event; the log has them in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Logged {
    /// A write has returned.
    Write {
        /// Which of the devices, in the order in which they joined the log.
        device: usize,
        /// Where, in bytes.
        offset: u64,
        /// The data.
        data: Vec<u8>,
        /// It survives without a flush.
        durable: bool,
        /// Its batch: writes of one batch reach the device in any order.
        batch: u64,
    },
    /// Everything written to this device before survives.
    Flush(usize),
    /// A mark of the test.
    Mark(u64),
}

#[derive(Default)]
struct State {
    entries: Vec<Logged>,
    batches: u64,
    devices: usize,
}

/// The events of one device, or of several. Cheap to clone; clones are the same log.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<State>>);

impl Log {
    /// Adds a mark: everything that has returned before it is before it in the log.
    pub fn mark(&self, number: u64) {
        self.0.lock().entries.push(Logged::Mark(number));
    }

    /// The same, after `work`; nothing is recorded meanwhile, so it must not use the devices.
    ///
    /// # Errors
    /// The error of `work`, in which case there is no mark.
    pub fn mark_after<E>(&self, number: u64, work: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let mut state = self.0.lock();
        work()?;
        state.entries.push(Logged::Mark(number));
        Ok(())
    }

    /// The events recorded since the last call.
    pub fn take(&self) -> Vec<Logged> {
        std::mem::take(&mut self.0.lock().entries)
    }
}

/// See the module's head.
pub struct Recorder<D> {
    device: D,
    number: usize,
    log: Log,
}

impl<D: Device> Recorder<D> {
    /// Records the operations of `device` from now on.
    pub fn new(device: D) -> Recorder<D> {
        Recorder::joining(device, &Log::default())
    }

    /// The same, in a log that other devices may share.
    pub fn joining(device: D, log: &Log) -> Recorder<D> {
        let mut state = log.0.lock();
        let number = state.devices;
        state.devices += 1;
        Recorder {
            device,
            number,
            log: log.clone(),
        }
    }

    /// Its log.
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// The device below.
    pub fn device(&self) -> &D {
        &self.device
    }
}

impl<D: Device> Device for Recorder<D> {
    fn name(&self) -> &str {
        self.device.name()
    }

    fn len_bytes(&self) -> u64 {
        self.device.len_bytes()
    }

    fn writes_whole_pages(&self) -> bool {
        self.device.writes_whole_pages()
    }

    fn run(&self, batch: &mut [Op<'_>]) -> DeviceResult<()> {
        let mut state = self.log.0.lock();
        self.device.run(batch)?;
        state.batches += 1;
        let number = state.batches;
        for op in batch {
            match op {
                Op::Read { .. } => {}
                Op::Write { offset, from, durable } => state.entries.push(Logged::Write {
                    device: self.number,
                    offset: *offset,
                    data: from.to_vec(),
                    durable: *durable,
                    batch: number,
                }),
                Op::Flush => state.entries.push(Logged::Flush(self.number)),
            }
        }
        Ok(())
    }
}

/// Turns `images`, the devices when the log began, into what they may hold if power is lost after `cut` entries of it.
/// Everything that had returned and is durable is there. Of everything else, and of the next batch, `keeps` decides for
/// each piece of `grain_bytes`, the unit that a device writes whole.
pub fn lose_power(
    images: &mut [Vec<u8>],
    log: &[Logged],
    cut: usize,
    grain_bytes: usize,
    keeps: &mut dyn FnMut() -> bool,
) {
    let under_way = match log.get(cut) {
        Some(Logged::Write { batch, .. }) => Some(*batch),
        _ => None,
    };
    let mut last_flush = vec![0; images.len()];
    for (at, entry) in log[..cut.min(log.len())].iter().enumerate() {
        if let Logged::Flush(device) = entry {
            last_flush[*device] = at;
        }
    }
    for (at, entry) in log.iter().enumerate() {
        let Logged::Write {
            device,
            offset,
            data,
            durable,
            batch,
        } = entry
        else {
            continue;
        };
        let is_under_way = Some(*batch) == under_way;
        if at >= cut && !is_under_way {
            continue;
        }
        let is_safe = !is_under_way && (*durable || at < last_flush[*device]);
        for (index, part) in data.chunks(grain_bytes).enumerate() {
            if is_safe || keeps() {
                let at = *offset as usize + index * grain_bytes;
                images[*device][at..at + part.len()].copy_from_slice(part);
            }
        }
    }
}
