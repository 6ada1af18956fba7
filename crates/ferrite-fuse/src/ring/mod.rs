//! FUSE over io_uring: each CPU's requests are served on that CPU.
//!
//! | module | contents |
//! | --- | --- |
//! | `mod` | [`Rings`]: all queues of a mount, from before the mount until its end |
//! | `queue` | the thread of one CPU |
//! | `entry_header` | the header of a request in shared memory |
//! | `uring` | the shared memory and the io_uring |
//!
//! The cost of a request on the classic transport is mostly that a thread on another CPU has to wake. The kernel queues
//! a request at the ring of the calling CPU, and the thread there is pinned to it.
//!
//! Decisions, with reasons:
//! * The kernel accepts rings once every possible CPU has one; until then all requests wait. So the rings are made
//!   before the mount, and if one is unavailable, the mount does not announce any to the kernel.
//! * A queue has up to [`DEPTH_MAX`] entries of [`PAYLOAD_BYTES`] at first. A thread serves one request at a time, but
//!   the kernel gives a request that found no entry to the next entry whose reply is committed, not to one that is
//!   added.
//!
//!   So where others wait for a lock or a thaw, a request must find an entry on arrival. That is 64 MiB of addresses
//!   for each CPU; memory is allocated as it is touched, and the kernel takes the entry that came back last, so most
//!   stay empty. Entries are added while some are away.
//! * If the engine may wait for a device or a network, workers call it. That costs two wake-ups, as on the classic
//!   transport.
//! * `FORGET` and `INTERRUPT` stay on `/dev/fuse`, so its readers stay, too.

mod entry_header;
mod queue;
mod uring;

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use ferrite_checks::ranked::Mutex;
use ferrite_vfs::workers::Workers;

use self::queue::{Inbox, Task};
use crate::lock_order;
use crate::message::MAX_WRITE_BYTES;
use crate::service::Service;

/// Memory of an entry for everything but headers. The kernel wants space for the largest write, for as many pages as a
/// request may have (fuser derives that from the largest write and read-ahead), and for 8 KiB.
const PAYLOAD_BYTES: usize = MAX_WRITE_BYTES as usize;
/// Initial entries of a queue, on machines with few CPUs.
const DEPTH_MAX: usize = 64;
/// And on machines with many.
const DEPTH_MIN: usize = 4;
/// Initial entries of all queues, if that is enough for [`DEPTH_MIN`] each. One takes two pages.
const ENTRIES_AT_FIRST: usize = 2048;
/// Threads for an engine that may block, at least.
const WORKERS_MIN: usize = 8;
/// The switch.
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
/// The remedy.
const MEND: &str = "as root: `echo 1 > /sys/module/fuse/parameters/enable_uring`, and for good \
    `echo options fuse enable_uring=1 > /etc/modprobe.d/fuse-uring.conf`";

/// Whether the kernel offers rings to new mounts; if not, the reason and the remedy.
///
/// # Errors
/// The reason and the remedy.
pub fn rings_offered() -> Result<(), (String, String)> {
    match std::fs::read_to_string(SWITCH) {
        Ok(value) if matches!(value.trim(), "Y" | "1") => Ok(()),
        Ok(_) => Err(("the module parameter fuse.enable_uring is off".into(), MEND.into())),
        Err(_) => Err((
            "this kernel has no FUSE over io_uring".into(),
            "it takes Linux 6.14 or later, built with CONFIG_FUSE_IO_URING; and `modprobe fuse`".into(),
        )),
    }
}

/// How many CPUs are possible, by the kernel's list of them.
fn count_cpus(list: &str) -> Option<u16> {
    let mut count = 0u16;
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
        count = count.checked_add(last.checked_sub(first)?.checked_add(1)?)?;
    }
    Some(count)
}

struct Thread {
    handle: JoinHandle<()>,
    inbox: Arc<Inbox>,
    reports: Receiver<io::Result<Arc<Inbox>>>,
    device: Option<Sender<std::os::fd::OwnedFd>>,
}

/// All queues of a mount.
pub(crate) struct Rings {
    threads: Mutex<lock_order::RingThreads, Vec<Thread>>,
    count: usize,
    is_granted: AtomicBool,
}

impl Rings {
    /// Starts the threads, which make their rings.
    ///
    /// `only` is the only user allowed to send requests. `workers` threads call an engine that may block; 0 picks a
    /// suitable number.
    pub(crate) fn prepare(service: &Arc<Service>, workers: usize, only: Option<u32>) -> io::Result<Arc<Rings>> {
        let list = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
        let count = count_cpus(&list).ok_or_else(|| io::Error::other(format!("possible CPUs: {}", list.trim())))?;
        let workers = match (service.may_block(), workers) {
            // An engine on a server starts threads as needed.
            (_, _) if service.spare().is_some() => None,
            (false, _) => None,
            (true, 0) => Some(Workers::start(WORKERS_MIN.max(usize::from(count)))?),
            (true, workers) => Some(Workers::start(workers)?),
        };
        let workers = workers.map(Arc::new);
        let rings = Rings {
            threads: Mutex::default(),
            count: usize::from(count),
            is_granted: AtomicBool::new(false),
        };
        for cpu in 0..count {
            let task = Task {
                service: Arc::clone(service),
                workers: workers.clone(),
                cpu,
                only,
                depth: (ENTRIES_AT_FIRST / usize::from(count).max(1)).clamp(DEPTH_MIN, DEPTH_MAX),
            };
            let (sender, reports) = channel();
            let (give, device) = channel();
            let handle = std::thread::Builder::new()
                .name(format!("ferrite-ring-{cpu}"))
                .spawn(move || queue::run(&task, &sender, &device))?;
            // Dropping the rings made so far ends them.
            let inbox = reports
                .recv()
                .map_err(|_| io::Error::other("a ring's thread ended"))??;
            rings.threads.lock().push(Thread {
                handle,
                inbox,
                reports,
                device: Some(give),
            });
        }
        Ok(Arc::new(rings))
    }

    /// Whether the kernel accepts rings.
    pub(crate) fn grant(&self, is_granted: bool) {
        self.is_granted.store(is_granted, Ordering::Release);
    }

    pub(crate) fn is_granted(&self) -> bool {
        self.is_granted.load(Ordering::Acquire)
    }

    /// Number of rings.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Makes the kernel send requests to the rings, once `INIT` was answered on this device. They are served when this
    /// returns. After an error the mount is useless.
    pub(crate) fn start(&self, device: BorrowedFd<'_>) -> io::Result<()> {
        let mut threads = self.threads.lock();
        for thread in threads.iter_mut() {
            let device = device.try_clone_to_owned()?;
            if let Some(give) = thread.device.take() {
                let _ = give.send(device);
            }
        }
        for thread in threads.iter() {
            thread
                .reports
                .recv()
                .map_err(|_| io::Error::other("a ring's thread ended"))??;
        }
        Ok(())
    }

    /// Ends the threads, and waits for them.
    pub(crate) fn end(&self) {
        for thread in self.threads.lock().drain(..) {
            drop(thread.device);
            thread.inbox.end();
            // A panic of a thread was reported when it happened.
            let _ = thread.handle.join();
        }
    }
}

impl Drop for Rings {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::count_cpus;

    #[test]
    fn possible_cpus_are_counted() {
        for (list, count) in [("0\n", 1), ("0-1\n", 2), ("0-3,8,10-11", 7), ("0-511", 512)] {
            assert_eq!(count_cpus(list), Some(count), "{list}");
        }
        for wrong in ["", "a", "3-1", "0-65535", "1,,2"] {
            assert_eq!(count_cpus(wrong), None, "{wrong}");
        }
    }
}
