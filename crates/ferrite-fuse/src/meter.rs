//! Counters of a mount's requests: how many of each kind, how many failed, and how long they took.
//!
//! A request counts from when its call begins until that returns; time in which it waits for a lock, for space or for
//! the end of a freeze does not. It costs two reads of the clock.

use std::array;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use ferrite_vfs::latency::Latency;

use crate::message::opcode::{self, OPCODES};

/// Requests of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RequestCounts {
    /// The kind, as `linux/fuse.h` names it, in lower case.
    pub name: &'static str,
    /// Those that were answered with an error.
    pub errors: u64,
    /// The time that all of them took.
    pub busy_ns: u64,
    /// How many took how long, in the classes of [`ferrite_vfs::latency`].
    pub latency: Vec<u64>,
}

#[derive(Debug, Default)]
struct Counts {
    errors: AtomicU64,
    latency: Latency,
}

/// The counters of a mount. Clones share them.
#[derive(Debug, Clone)]
pub struct Meter(Arc<[OnceLock<Box<Counts>>; OPCODES]>);

impl Default for Meter {
    fn default() -> Meter {
        Meter(Arc::new(array::from_fn(|_| OnceLock::new())))
    }
}

impl Meter {
    /// Counts a call for a request with this opcode.
    pub(crate) fn counted<T, E>(&self, opcode: u32, call: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let start = Instant::now();
        let result = call();
        if let Some(counts) = self.0.get(opcode as usize) {
            let counts = counts.get_or_init(Box::default);
            counts.latency.count(start.elapsed().as_nanos() as u64);
            if result.is_err() {
                counts.errors.fetch_add(1, Ordering::Relaxed);
            }
        }
        result
    }

    /// The counts of all kinds that were requested.
    pub fn requests(&self) -> Vec<RequestCounts> {
        let of = |(number, counts): (usize, &OnceLock<Box<Counts>>)| {
            let counts = counts.get()?;
            Some(RequestCounts {
                name: opcode::name_of(number as u32)?,
                errors: counts.errors.load(Ordering::Relaxed),
                busy_ns: counts.latency.busy_ns(),
                latency: counts.latency.classes(),
            })
        };
        self.0.iter().enumerate().filter_map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_kind_with_their_errors() {
        let meter = Meter::default();
        let other = meter.clone();
        assert_eq!(meter.counted(opcode::READ, || Ok::<_, ()>(3)), Ok(3));
        assert_eq!(other.counted(opcode::READ, || Err::<(), _>(7)), Err(7));
        assert_eq!(other.counted(opcode::UNLINK, || Ok::<_, ()>(())), Ok(()));
        // One that does not exist is not counted, and does no harm.
        assert_eq!(meter.counted(u32::MAX, || Ok::<_, ()>(())), Ok(()));
        let found = meter.requests();
        let short: Vec<_> = found
            .iter()
            .map(|of| (of.name, of.errors, of.latency.iter().sum::<u64>()))
            .collect();
        assert_eq!(short, [("unlink", 0, 1), ("read", 1, 2)]);
    }
}
