//! A layer that takes as long as a device of a stated latency and parallelism, so that several differ from one on a
//! machine whose devices are all as fast as memory.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::{Device, Op};
use crate::Result;

/// See the module's head.
pub struct Slow<D> {
    device: D,
    latency: Duration,
    /// When each of its channels is free.
    channels: Mutex<Vec<Instant>>,
}

impl<D: Device> Slow<D> {
    /// Each operation takes `latency`, and `parallelism` of them can be under way.
    pub fn new(device: D, latency: Duration, parallelism: usize) -> Slow<D> {
        Slow {
            device,
            latency,
            channels: Mutex::new(vec![Instant::now(); parallelism.max(1)]),
        }
    }

    /// When an operation that starts now ends.
    fn end_of_next(&self) -> Instant {
        let mut channels = self.channels.lock();
        let now = Instant::now();
        let first = channels.iter_mut().min();
        let end = first.as_ref().map_or(now, |free| (**free).max(now)) + self.latency;
        if let Some(free) = first {
            *free = end;
        }
        end
    }
}

impl<D: Device> Device for Slow<D> {
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
        let end = batch.iter().map(|_| self.end_of_next()).max();
        self.device.run(batch)?;
        if let Some(end) = end {
            std::thread::sleep(end.saturating_duration_since(Instant::now()));
        }
        Ok(())
    }
}
