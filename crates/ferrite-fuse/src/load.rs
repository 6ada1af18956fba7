//! How busy the machine is, as far as busy polling has to know.
//!
//! Contents: [`Load`]: whether other threads want the CPUs. A thread that polls takes them away from those; and where
//! no CPU sleeps, waking a thread costs little.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// How often to look, in milliseconds; a look takes some microseconds.
const LOOK_EVERY_MS: u64 = 4;
/// Units of a thread that runs, in the average.
const UNIT: u64 = 64;

/// See the head of this module.
pub(crate) struct Load {
    cpus: u64,
    /// `/proc/loadavg`, in a container, too, that of the machine. Without it, the load counts as high.
    file: Option<File>,
    start: Instant,
    looked_ms: AtomicU64,
    /// Threads that run or could, other than those that poll: a moving average.
    average: AtomicU64,
    is_high: AtomicBool,
}

impl Load {
    /// Of a machine with so many CPUs.
    pub(crate) fn new(cpus: usize) -> Load {
        let file = File::open("/proc/loadavg").ok();
        Load {
            cpus: cpus as u64,
            start: Instant::now(),
            looked_ms: AtomicU64::new(0),
            average: AtomicU64::new(0),
            is_high: AtomicBool::new(file.is_none()),
            file,
        }
    }

    /// Whether others want all CPUs, while `pollers` threads poll.
    pub(crate) fn is_high(&self, pollers: usize) -> bool {
        let now_ms = self.start.elapsed().as_millis() as u64;
        let looked_ms = self.looked_ms.load(Ordering::Relaxed);
        let is_due = now_ms >= looked_ms + LOOK_EVERY_MS;
        let exchange = |order| self.looked_ms.compare_exchange(looked_ms, now_ms, order, order);
        if is_due && exchange(Ordering::Relaxed).is_ok() {
            let mut text = [0; 64];
            let read = self.file.as_ref().and_then(|file| file.read_at(&mut text, 0).ok());
            if let Some(running) = read.and_then(|len| running(text.get(..len)?)) {
                self.count(running.saturating_sub(pollers.max(1) as u64));
            }
        }
        self.is_high.load(Ordering::Relaxed)
    }

    /// Takes note of so many others.
    fn count(&self, others: u64) {
        let average = self.average.load(Ordering::Relaxed);
        let average = (3 * average + others * UNIT) / 4;
        self.average.store(average, Ordering::Relaxed);
        self.is_high
            .store(average * 10 >= self.cpus * UNIT * 9, Ordering::Relaxed);
    }
}

/// The number of threads that run or could, this one among them, by the text of `/proc/loadavg`.
fn running(loadavg: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(loadavg).ok()?;
    text.split(' ').nth(3)?.split('/').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_run_are_read() {
        assert_eq!(running(b"0.20 0.18 0.12 3/80 11206\n"), Some(3));
        for wrong in [&b""[..], b"0.20 0.18 0.12", b"0 0 0 x/80 1", b"\xff"] {
            assert_eq!(running(wrong), None);
        }
        assert!(running(&std::fs::read("/proc/loadavg").unwrap()).is_some_and(|running| running > 0));
    }

    #[test]
    fn the_load_is_high_while_others_want_all_cpus() {
        let load = Load::new(2);
        // A client that runs most of the time, and now and then something else.
        [1, 1, 2, 0, 1, 2, 1, 1]
            .into_iter()
            .for_each(|others| load.count(others));
        assert!(!load.is_high.load(Ordering::Relaxed));
        [2, 3, 2, 2, 3, 2, 2, 2, 2, 2]
            .into_iter()
            .for_each(|others| load.count(others));
        assert!(load.is_high.load(Ordering::Relaxed));
        [1; 4].into_iter().for_each(|others| load.count(others));
        assert!(!load.is_high.load(Ordering::Relaxed));
    }
}
