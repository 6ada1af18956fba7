//! Making and opening the mapping of a region: files, devices, memory; the pool lock.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::creation::{PoolCreation, Space};
use crate::error::PmError;
use crate::holder;
use crate::medium::{self, Detected, Medium};

const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Attempts to find an aligned place.
const PLACE_TRIES: usize = 16;
/// How long to wait for a dying owner of the lock.
const OWNER_EXITS_WITHIN: Duration = Duration::from_secs(20);
/// How long to look for an owner that is not listed.
const OWNER_SHOWS_WITHIN: Duration = Duration::from_millis(200);

/// How a pool is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Stores reach the medium; no other process may have the pool open.
    ReadWrite,
    /// Stores go to a private copy: recovery can run, and nothing reaches the medium. On device DAX a store copies the
    /// device's whole page around it (2 MiB, or 1 GiB) into memory; elsewhere 4 KiB.
    ReadOnlyPrivate,
}

/// Uses memory again after its region has ended.
pub(crate) trait Recycler: Send + Sync {
    /// A store of `len` bytes, which may be 0, at `offset`. Before the region ends.
    fn note(&self, offset: u64, len: u64);

    /// Keeps the memory of a region that has ended for the next, or unmaps it.
    fn give_back(self: Box<Self>, mapping: MappedMemory);
}

/// A live mapping; unmapped when dropped.
pub(crate) struct MappedMemory {
    base: *mut u8,
    len: usize,
    /// The whole mapping, with the slack for alignment.
    outer: (*mut u8, usize),
    pub(crate) file: Option<File>,
    /// Process that has the lock.
    owner: u32,
    pub(crate) medium: Medium,
    pub(crate) page_bytes: u64,
    /// It is read-only: the fault handler copies chunks on the first store.
    pub(crate) is_to_be_copied: bool,
    /// Takes it when the region has ended.
    pub(crate) recycler: Option<Box<dyn Recycler>>,
}

// SAFETY: the mapping is plain memory that belongs to this value; access to its bytes is by atomics, or by copies
// whose races the callers resolve.
unsafe impl Send for MappedMemory {}
// SAFETY: as above.
unsafe impl Sync for MappedMemory {}

impl MappedMemory {
    #[inline]
    pub(crate) fn base(&self) -> *mut u8 {
        self.base
    }

    #[inline]
    pub(crate) fn len(&self) -> u64 {
        self.len as u64
    }

    /// Zeroed anonymous memory.
    pub(crate) fn anonymous(len_bytes: u64) -> Result<MappedMemory, PmError> {
        let no_memory = |source: io::Error| PmError::NoMemory { len_bytes, source };
        let len = usize::try_from(len_bytes).map_err(|_| no_memory(io::ErrorKind::InvalidInput.into()))?;
        if len == 0 {
            return Err(no_memory(io::ErrorKind::InvalidInput.into()));
        }
        let outer_len = len + HUGE_PAGE_BYTES;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let outer = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                outer_len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }
        .map_err(|error| no_memory(error.into()))?;
        let base = (outer as usize).next_multiple_of(HUGE_PAGE_BYTES) as *mut u8;
        advise_huge(base, len);
        Ok(MappedMemory {
            base,
            len,
            outer: (outer.cast(), outer_len),
            file: None,
            owner: std::process::id(),
            medium: Medium::Anonymous,
            page_bytes: HUGE_PAGE_BYTES as u64,
            is_to_be_copied: false,
            recycler: None,
        })
    }

    /// Copies `bytes` to `start`. Nothing else has the memory, which is in no region.
    pub(crate) fn fill(&mut self, start: usize, bytes: &[u8]) {
        assert!(start + bytes.len() <= self.len);
        // SAFETY: inside the mapping, which is writable, and borrowed mutably.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.base.add(start), bytes.len()) };
    }

    /// Copies `bytes` to `start` in new memory. Most of an image is zeros, as the memory is; storing them would only
    /// make the kernel find memory.
    pub(crate) fn fill_new(&mut self, start: usize, bytes: &[u8]) {
        const PART: [u8; 4096] = [0; 4096];
        for (index, part) in bytes.chunks(PART.len()).enumerate() {
            if part != &PART[..part.len()] {
                self.fill(start + index * PART.len(), part);
            }
        }
    }

    /// All bytes. Nothing else has the memory, which is in no region.
    pub(crate) fn bytes(&mut self) -> &[u8] {
        // SAFETY: the whole mapping, which is readable, and borrowed mutably.
        unsafe { std::slice::from_raw_parts(self.base, self.len) }
    }

    /// Maps a locked file or device.
    pub(crate) fn of_file(path: &Path, file: File, found: &Detected, access: Access) -> Result<MappedMemory, PmError> {
        let len = found.len_bytes as usize;
        let map = |prot: ProtFlags, flags: MapFlags| map_aligned(&file, len, prot, flags, found);
        let both = ProtFlags::READ | ProtFlags::WRITE;
        let is_private = access == Access::ReadOnlyPrivate;
        let mut medium = found.medium;
        let mapped = match medium {
            // The kernel has no private mappings of device DAX, so `copies.rs` makes one of this.
            _ if is_private && found.is_device => map(ProtFlags::READ, MapFlags::SHARED),
            _ if is_private => {
                if medium == Medium::File && accepts_sync(&file) {
                    medium = Medium::Dax;
                }
                // Few of its pages are ever copied, and a pool may be larger than all memory.
                map(both, MapFlags::PRIVATE | MapFlags::NORESERVE)
            }
            Medium::File => match map(both, MapFlags::SHARED_VALIDATE | MapFlags::SYNC) {
                Ok(base) => {
                    medium = Medium::Dax;
                    Ok(base)
                }
                Err(_) => map(both, MapFlags::SHARED),
            },
            _ => map(both, MapFlags::SHARED),
        };
        let base = mapped.map_err(|error| PmError::io("map", path, error))?;
        if medium == Medium::NamedDram {
            advise_huge(base, len);
        }
        let page_bytes = found.page_bytes;
        Ok(MappedMemory {
            base,
            len,
            outer: (base, len),
            file: Some(file),
            owner: std::process::id(),
            medium,
            page_bytes,
            is_to_be_copied: is_private && found.is_device,
            recycler: None,
        })
    }

    /// The same file, mapped so that stores stay in memory. It takes the lock along. On an error nothing has changed.
    pub(crate) fn make_private(&mut self) -> Result<(), PmError> {
        let Some(file) = &self.file else { return Ok(()) };
        let found = Detected {
            medium: self.medium,
            len_bytes: self.len as u64,
            page_bytes: self.page_bytes,
            is_device: false,
        };
        let both = ProtFlags::READ | ProtFlags::WRITE;
        let base = map_aligned(file, self.len, both, MapFlags::PRIVATE | MapFlags::NORESERVE, &found)
            .map_err(|error| PmError::io("map", Path::new("the pool"), error))?;
        // SAFETY: the whole mapping of this value, to which there are no borrows: it is borrowed mutably.
        let _ = unsafe { rustix::mm::munmap(self.outer.0.cast(), self.outer.1) };
        self.base = base;
        self.outer = (base, self.len);
        Ok(())
    }

    /// Makes pages of a private mapping show the file again. The caller makes sure that no thread stores to them.
    pub(crate) fn drop_copies(&self, offset: u64, len: u64) {
        debug_assert!(offset.is_multiple_of(4096) && offset + len <= self.len().next_multiple_of(4096));
        // SAFETY: pages of our own mapping, whose bytes are read as atomic words only, and to which no thread stores
        // now: each word is then the copy's or the file's.
        let _ = unsafe {
            rustix::mm::madvise(
                self.base.add(offset as usize).cast(),
                len as usize,
                Advice::LinuxDontNeed,
            )
        };
    }

    /// Opens an existing file or device.
    pub(crate) fn open(path: &Path, access: Access) -> Result<MappedMemory, PmError> {
        let write = access == Access::ReadWrite;
        let file = OpenOptions::new()
            .read(true)
            .write(write)
            // Opening a named pipe would block.
            .custom_flags(libc::O_CLOEXEC | libc::O_NONBLOCK)
            .open(path)
            .map_err(|error| PmError::io("open", path, error))?;
        lock(path, &file, access)?;
        let found = medium::detect(path, &file)?;
        if found.len_bytes == 0 {
            return Err(PmError::Unsuitable {
                path: path.to_path_buf(),
                why: "empty; make a pool with mkfs".into(),
            });
        }
        MappedMemory::of_file(path, file, &found, access)
    }

    /// Makes a file of `len_bytes`, or takes a device that is large enough. The caller decides in the end whether it is
    /// kept.
    pub(crate) fn create(path: &Path, len_bytes: u64, space: Space) -> Result<(MappedMemory, PoolCreation), PmError> {
        let creation = PoolCreation::open(path)?;
        let file = creation.file()?;
        lock(path, &file, Access::ReadWrite)?;
        // Before anything is written to it.
        let mut found = medium::detect(path, &file)?;
        if found.medium != Medium::Dax {
            creation.allocate(len_bytes, space)?;
            found.len_bytes = len_bytes;
        }
        if found.len_bytes < len_bytes {
            let (holds_mib, needed_mib) = (found.len_bytes >> 20, len_bytes.div_ceil(1 << 20));
            let why = format!("holds {holds_mib} MiB, {needed_mib} MiB are needed");
            return Err(PmError::Unsuitable {
                path: path.to_path_buf(),
                why,
            });
        }
        Ok((MappedMemory::of_file(path, file, &found, Access::ReadWrite)?, creation))
    }
}

impl Drop for MappedMemory {
    fn drop(&mut self) {
        if let Some(recycler) = self.recycler.take() {
            return recycler.give_back(MappedMemory {
                base: self.base,
                len: self.len,
                outer: self.outer,
                file: self.file.take(),
                owner: self.owner,
                medium: self.medium,
                page_bytes: self.page_bytes,
                is_to_be_copied: self.is_to_be_copied,
                recycler: None,
            });
        }
        // SAFETY: the whole mapping of this value, which ends together with all borrows of it.
        let _ = unsafe { rustix::mm::munmap(self.outer.0.cast(), self.outer.1) };
        // Closing is not enough: a child that some thread has forked, and that has not reached its exec yet, has the
        // same open file. A child that never calls exec has this value, too, but must not release the lock.
        if let Some(file) = &self.file
            && self.owner == std::process::id()
        {
            let _ = rustix::fs::flock(file, FlockOperation::Unlock);
        }
    }
}

/// Whether a file is on fs-DAX: only such a file accepts `MAP_SYNC`, the kernel refuses it elsewhere.
fn accepts_sync(file: &File) -> bool {
    let flags = MapFlags::SHARED_VALIDATE | MapFlags::SYNC;
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
    let mapped = unsafe { rustix::mm::mmap(std::ptr::null_mut(), 4096, ProtFlags::READ, flags, file.as_fd(), 0) };
    match mapped {
        Ok(page) => {
            // SAFETY: the mapping just made, which no other code knows.
            let _ = unsafe { rustix::mm::munmap(page, 4096) };
            true
        }
        Err(_) => false,
    }
}

/// Maps a file on a boundary of its pages, of huge ones at least, if the kernel permits. Never at a fixed address: a
/// mapping that fails there may leave a hole in the one it was to replace, another thread's memory may get into the
/// hole, and the next call to map or unmap the place destroys it.
fn map_aligned(
    file: &File,
    len: usize,
    prot: ProtFlags,
    flags: MapFlags,
    found: &Detected,
) -> rustix::io::Result<*mut u8> {
    let align = HUGE_PAGE_BYTES.max(found.page_bytes as usize);
    let mut tries = 0;
    loop {
        let hint = free_place(len, align)?;
        // SAFETY: a new mapping at an address of the kernel's choice, which takes the hint only if the place is free,
        // touches nothing that exists.
        let mapped = unsafe { rustix::mm::mmap(hint.cast(), len, prot, flags, file.as_fd(), 0) };
        tries += 1;
        let mapped = match mapped {
            // A device can be mapped only at such a boundary, and the place was taken.
            Err(Errno::INVAL) if found.is_device && tries < PLACE_TRIES => continue,
            other => other?,
        };
        // A file elsewhere works as well, only with smaller pages.
        if (mapped as usize).is_multiple_of(align) || tries == PLACE_TRIES {
            return Ok(mapped.cast());
        }
        // SAFETY: the mapping just made, which no other code knows.
        let _ = unsafe { rustix::mm::munmap(mapped, len) };
    }
}

/// An aligned address from which `len` bytes were free a moment ago.
fn free_place(len: usize, align: usize) -> rustix::io::Result<*mut u8> {
    let outer_len = len.checked_add(align).ok_or(Errno::NOMEM)?;
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
    let outer = unsafe {
        rustix::mm::mmap_anonymous(
            std::ptr::null_mut(),
            outer_len,
            ProtFlags::empty(),
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        )
    }?;
    // SAFETY: the mapping just made, which no other code knows.
    unsafe { rustix::mm::munmap(outer, outer_len) }?;
    Ok((outer as usize).next_multiple_of(align) as *mut u8)
}

fn advise_huge(base: *mut u8, len: usize) {
    // SAFETY: advice on our own mapping; it changes no content. Refusal only costs speed.
    let _ = unsafe { rustix::mm::madvise(base.cast(), len, Advice::LinuxHugepage) };
}

/// Takes the pool lock: exclusive for writers, shared for readers.
fn lock(path: &Path, file: &File, access: Access) -> Result<(), PmError> {
    let operation = match access {
        Access::ReadWrite => FlockOperation::NonBlockingLockExclusive,
        Access::ReadOnlyPrivate => FlockOperation::NonBlockingLockShared,
    };
    let start = Instant::now();
    loop {
        match rustix::fs::flock(file, operation) {
            Ok(()) => return Ok(()),
            Err(Errno::WOULDBLOCK) => {}
            Err(error) => return Err(PmError::io("lock", path, error)),
        }
        let owner = holder::of_lock(file);
        // A killed process keeps its locks while the kernel tears it down, which takes moments for a large pool. An
        // owner that is not listed is either just releasing the lock, or was missed while the list changed.
        let timeout = if owner.is_some() {
            OWNER_EXITS_WITHIN
        } else {
            OWNER_SHOWS_WITHIN
        };
        if owner.is_none_or(holder::is_exiting) && start.elapsed() < timeout {
            std::thread::sleep(Duration::from_millis(5));
            continue;
        }
        let by = owner.map_or_else(|| "another process".into(), holder::describe);
        return Err(PmError::InUse {
            path: path.to_path_buf(),
            by,
            process: owner,
        });
    }
}
