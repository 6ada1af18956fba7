//! Events that CPU and kernel count for a thread: mainly cache misses.
//!
//! Contents: [`EventCounter`], a kernel file (`perf_event_open`) that counts one [`CpuEvent`] of the thread that
//! opened it, in user mode. Only the lab uses it, for `ferrite-lab` and `ferrite-lab bench`.
//!
//! Invariant: a count is exact or an error. Where the kernel multiplexes counters it returns estimates, which are
//! rejected.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::marker::PhantomData;
use std::os::fd::FromRawFd;

use thiserror::Error;

/// The events that can be counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CpuEvent {
    /// Accesses that no cache could serve (the last level's misses).
    LastLevelMisses,
    /// Loads that the first-level data cache could not serve.
    L1dReadMisses,
    /// Page faults: counted by the kernel itself, so available on every machine.
    PageFaults,
}

/// An event as the kernel knows it (linux/perf_event.h).
struct Code {
    kind: u32,
    /// Its number.
    config: u64,
}

impl Code {
    fn new(kind: u32, config: u64) -> Code {
        Code { kind, config }
    }
}

impl CpuEvent {
    fn code(self) -> Code {
        const HARDWARE: u32 = 0;
        const SOFTWARE: u32 = 1;
        const CACHE: u32 = 3;
        match self {
            CpuEvent::LastLevelMisses => Code::new(HARDWARE, 3),
            // Cache 0 (L1D), operation 0 (read), result 1 (miss).
            CpuEvent::L1dReadMisses => Code::new(CACHE, 1 << 16),
            CpuEvent::PageFaults => Code::new(SOFTWARE, 2),
        }
    }
}

impl fmt::Display for CpuEvent {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(match self {
            CpuEvent::LastLevelMisses => "last-level cache misses",
            CpuEvent::L1dReadMisses => "L1D read misses",
            CpuEvent::PageFaults => "page faults",
        })
    }
}

/// Why an event is not counted.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EventError {
    /// There is no such counter.
    #[error(
        "{0} cannot be counted: the kernel has no such counter of this CPU (virtual machines often have none; try the \
         bare machine)"
    )]
    Absent(CpuEvent),
    /// The kernel does not permit it.
    #[error("{0} must not be counted here: run as root, or set /proc/sys/kernel/perf_event_paranoid to 2 or less")]
    Forbidden(CpuEvent),
    /// The counter was used for other events meanwhile.
    #[error("{0} were counted only part of the time: end other programs that use the CPU's counters, as perf")]
    Shared(CpuEvent),
    /// The operating system refused.
    #[error("{event} cannot be counted: {source}")]
    Io {
        /// Which event.
        event: CpuEvent,
        /// Why not.
        #[source]
        source: io::Error,
    },
}

impl EventError {
    fn new(event: CpuEvent, source: io::Error) -> EventError {
        match source.raw_os_error() {
            Some(libc::ENOENT | libc::ENODEV | libc::EOPNOTSUPP | libc::EINVAL | libc::ENOSYS) => {
                EventError::Absent(event)
            }
            Some(libc::EACCES | libc::EPERM) => EventError::Forbidden(event),
            _ => EventError::Io { event, source },
        }
    }
}

/// `struct perf_event_attr` in its first published size, which every kernel takes.
#[repr(C)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint_type: u32,
    config1: u64,
}

/// Neither the kernel nor a hypervisor below it is counted, so that no privilege is needed.
const EXCLUDE_KERNEL_AND_HYPERVISOR: u64 = 1 << 5 | 1 << 6;
/// Counts come with the time that the counter was enabled, and the time that it counted.
const WITH_TIMES: u64 = 1 | 2;
const CLOSE_ON_EXEC: libc::c_ulong = 8;
const THIS_THREAD: libc::pid_t = 0;
const ANY_CPU: libc::c_int = -1;
const NO_GROUP: libc::c_int = -1;

/// See the module's head. Counts from when it is opened. Bound to its thread, whose events it counts.
#[derive(Debug)]
pub struct EventCounter {
    file: File,
    event: CpuEvent,
    stays: PhantomData<*const ()>,
}

impl EventCounter {
    /// Begins to count an event of this thread.
    pub fn open(event: CpuEvent) -> Result<EventCounter, EventError> {
        let Code { kind, config } = event.code();
        let attributes = Attributes {
            kind,
            size: size_of::<Attributes>() as u32,
            config,
            sample_period: 0,
            sample_type: 0,
            read_format: WITH_TIMES,
            flags: EXCLUDE_KERNEL_AND_HYPERVISOR,
            wakeup_events: 0,
            breakpoint_type: 0,
            config1: 0,
        };
        // SAFETY: the call reads as many bytes of the structure as its `size` says, all of which are initialised, and
        // keeps no pointer to it. The other arguments are numbers.
        let descriptor = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                &raw const attributes,
                THIS_THREAD,
                ANY_CPU,
                NO_GROUP,
                CLOSE_ON_EXEC,
            )
        };
        match i32::try_from(descriptor) {
            Ok(descriptor) if descriptor >= 0 => Ok(EventCounter {
                // SAFETY: the kernel has just made this descriptor for us, and no other code knows it.
                file: unsafe { File::from_raw_fd(descriptor) },
                event,
                stays: PhantomData,
            }),
            _ => Err(EventError::new(event, io::Error::last_os_error())),
        }
    }

    /// The event it counts.
    pub fn event(&self) -> CpuEvent {
        self.event
    }

    /// The number of events since it was opened.
    pub fn read(&self) -> Result<u64, EventError> {
        let mut values = [[0; 8]; 3];
        (&self.file)
            .read_exact(values.as_flattened_mut())
            .map_err(|source| EventError::Io {
                event: self.event,
                source,
            })?;
        let [count, wanted_ns, counted_ns] = values.map(u64::from_ne_bytes);
        if counted_ns < wanted_ns {
            return Err(EventError::Shared(self.event));
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Region;

    const PAGES: u64 = 300;

    /// Stores to the given number of new pages.
    fn touch() {
        let region = Region::anonymous(PAGES << 12).expect("memory");
        (0..PAGES).for_each(|page| region.store(page << 12, 1));
    }

    /// An event that every machine has, counted on the same path as cache misses.
    #[test]
    fn an_event_of_this_thread_is_counted() {
        let counter = match EventCounter::open(CpuEvent::PageFaults) {
            Ok(counter) => counter,
            Err(why @ EventError::Forbidden(_)) => return eprintln!("SKIPPED: {why}"),
            Err(why) => panic!("{why}"),
        };
        assert_eq!(counter.event(), CpuEvent::PageFaults);
        let before = counter.read().expect("it counts");
        touch();
        let ours = counter.read().expect("it counts") - before;
        // Large pages, where the kernel provides them, fault less often; the allocator may fault a few times.
        assert!((1..=PAGES + 50).contains(&ours), "{ours}");
        std::thread::spawn(touch).join().expect("no panic");
        let others = counter.read().expect("it counts") - before - ours;
        assert!(others < 50, "{others} of another thread were counted");
    }

    /// The counters of the CPU count, or report why not and what to do.
    #[test]
    fn what_cannot_be_counted_says_why() {
        for event in [CpuEvent::LastLevelMisses, CpuEvent::L1dReadMisses] {
            let counted = EventCounter::open(event).and_then(|counter| counter.read());
            if let Err(why) = counted {
                let text = why.to_string();
                assert!(text.starts_with(&event.to_string()), "{text}");
                assert!(!matches!(why, EventError::Io { .. }), "{text}");
            }
        }
        let mend = |code| EventError::new(CpuEvent::L1dReadMisses, io::Error::from_raw_os_error(code)).to_string();
        assert!(mend(libc::ENOENT).contains("no such counter"));
        assert!(mend(libc::EACCES).contains("perf_event_paranoid"));
        assert!(mend(libc::EMFILE).contains("open files"));
    }
}
