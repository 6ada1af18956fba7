//! A layer that fails on demand.

use std::ops::Range;
use std::time::Duration;

use parking_lot::Mutex;

use super::{Device, Op, failed};
use crate::Result;

/// The fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The operation fails, and does nothing.
    Error,
    /// Of a write only the first half arrives, and it fails.
    Short,
    /// The operation is carried out, and fails: its result is lost.
    Late,
    /// A write goes elsewhere, this many bytes behind, and succeeds. A lie that only checksums find.
    Misdirected(u64),
    /// It takes this long, and succeeds.
    Stall(Duration),
    /// This and every later operation fails.
    Gone,
}

/// Which operations fail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Reads.
    pub reads: bool,
    /// Writes.
    pub writes: bool,
    /// Only those that touch these bytes.
    pub range: Range<u64>,
    /// How many of them succeed before.
    pub after: u64,
    /// How many fail then.
    pub count: u64,
}

impl Target {
    /// All writes from the nth on.
    pub fn writes_from(after: u64) -> Target {
        Target {
            reads: false,
            writes: true,
            range: 0..u64::MAX,
            after,
            count: u64::MAX,
        }
    }

    fn matches(&self, op: &Op<'_>) -> bool {
        let is_kind = match op {
            Op::Read { .. } => self.reads,
            Op::Write { .. } => self.writes,
            Op::Flush => false,
        };
        is_kind
            && op
                .range()
                .is_some_and(|range| range.start < self.range.end && self.range.start < range.end)
    }
}

struct Plan {
    target: Target,
    fault: Fault,
}

/// See the module's head.
pub struct Faulty<D> {
    device: D,
    plan: Mutex<Option<Plan>>,
    is_gone: Mutex<bool>,
}

impl<D: Device> Faulty<D> {
    /// A device that works until a fault is planned.
    pub fn new(device: D) -> Faulty<D> {
        Faulty {
            device,
            plan: Mutex::new(None),
            is_gone: Mutex::new(false),
        }
    }

    /// From now on, fails as planned.
    pub fn plan(&self, fault: Fault, target: Target) {
        *self.plan.lock() = Some(Plan { target, fault });
    }

    /// Works again.
    pub fn mend(&self) {
        *self.plan.lock() = None;
        *self.is_gone.lock() = false;
    }

    /// Whether every planned fault has happened.
    pub fn is_spent(&self) -> bool {
        self.plan.lock().as_ref().is_none_or(|plan| plan.target.count == 0)
    }

    /// The device below.
    pub fn device(&self) -> &D {
        &self.device
    }

    fn fault_of(&self, op: &Op<'_>) -> Option<Fault> {
        let mut plan = self.plan.lock();
        let Plan { target, fault } = plan.as_mut()?;
        if !target.matches(op) {
            return None;
        }
        if target.after > 0 {
            target.after -= 1;
            return None;
        }
        if target.count == 0 {
            return None;
        }
        target.count -= 1;
        Some(*fault)
    }
}

impl<D: Device> Device for Faulty<D> {
    fn name(&self) -> &str {
        self.device.name()
    }

    fn len_bytes(&self) -> u64 {
        self.device.len_bytes()
    }

    fn writes_whole_pages(&self) -> bool {
        self.device.writes_whole_pages()
    }

    fn run(&self, batch: &mut [Op<'_>]) -> Result<()> {
        for op in batch {
            if *self.is_gone.lock() {
                return Err(failed(self, op, "the device is gone"));
            }
            match self.fault_of(op) {
                None => {}
                Some(Fault::Error) => return Err(failed(self, op, "input/output error")),
                Some(Fault::Gone) => {
                    *self.is_gone.lock() = true;
                    return Err(failed(self, op, "the device is gone"));
                }
                Some(Fault::Stall(time)) => std::thread::sleep(time),
                Some(Fault::Late) => {
                    self.device.run(std::slice::from_mut(op))?;
                    return Err(failed(self, op, "timed out"));
                }
                Some(Fault::Short) => {
                    if let Op::Write { offset, from, durable } = op {
                        let half = Op::Write {
                            offset: *offset,
                            from: &from[..from.len() / 2],
                            durable: *durable,
                        };
                        self.device.run(&mut [half])?;
                    }
                    return Err(failed(self, op, "it was cut short"));
                }
                Some(Fault::Misdirected(by)) => {
                    if let Op::Write { offset, from, durable } = op {
                        let elsewhere = Op::Write {
                            offset: *offset + by,
                            from,
                            durable: *durable,
                        };
                        self.device.run(&mut [elsewhere])?;
                    }
                    continue;
                }
            }
            self.device.run(std::slice::from_mut(op))?;
        }
        Ok(())
    }
}
