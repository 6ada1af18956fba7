//! The memory behind the queue pairs of one thread: packets in, copies to and from pages of bound files.
//!
//! Contents: [`FileMemory`], which an RNIC's thread passes to its `Endpoint`. A packet comes here, gets a
//! [`FileAccess`] by its key, a [`Guard`] by that, and with it the places of its pages. It leaves to
//! [`Background`] whatever would block.
//!
//! Invariants:
//!
//! * A packet takes these steps: guard, key, bounds, translation of all its pages, copy, fence, release. It has no
//!   effect if one page is not translated.
//! * Engine calls are made without a guard. Other threads make those for pages, which may take long.
//! * Each message that was given budget returns it: when it is written, abandoned, or the memory goes.

use std::sync::Arc;

use ferrite_roce::memory::{Delivery, Fault, Memory, Message, Part, RESERVE_AT, Received};
use ferrite_roce::wire::Qpn;
use ferrite_vfs::regions::{Access, REGION_PAGE_BYTES, Region};
use rustc_hash::FxHashMap;

use crate::background::Background;
use crate::faults::Wanted;
use crate::key::Rights;
use crate::permissions::{AccessCache, FileAccess, Keys};
use crate::translation::{Guard, Place};

/// Pages requested at a time.
const AHEAD_PAGES: u64 = 1_024;
/// Runs that are checked ahead of a message.
const AHEAD_RUNS: usize = 64;
/// How long a message waits for budget to be assembled.
const BUDGET_WAIT_NS: u64 = 500_000;

/// A part of a packet within a page.
#[derive(Debug, Clone, Copy)]
struct Piece {
    /// Of memory; `None`: a hole.
    page: Option<u32>,
    within: u32,
    len_bytes: u32,
}

/// Bytes of a file.
#[derive(Debug, Clone, Copy)]
struct Bytes {
    at: u64,
    len_bytes: u64,
    access: Access,
}

impl Bytes {
    fn first_page(&self) -> u64 {
        self.at / REGION_PAGE_BYTES
    }

    /// The page behind the last. The bytes are in a file, so nothing overflows.
    fn end_page(&self) -> u64 {
        (self.at + self.len_bytes).div_ceil(REGION_PAGE_BYTES)
    }

    /// Whether its first packet does the work of [`prepare`]. Most are that short, and a second lookup is a good part
    /// of such a packet's cost.
    fn is_short(&self) -> bool {
        self.len_bytes <= REGION_PAGE_BYTES
    }

    /// Pages from `page` on that are worth requesting, `self` being all of a message.
    fn wanted(&self, page: u64) -> Result<Wanted, Fault> {
        let end = self.end_page().min(page + AHEAD_PAGES);
        Ok(Wanted {
            first: number(page)?,
            end: number(end)?,
            access: self.access,
        })
    }
}

/// A page of a file, if a file can have it.
fn number(page: u64) -> Result<u32, Fault> {
    u32::try_from(page).map_err(|_| Fault::Access)
}

/// Memory of one RNIC thread. It accepts no SENDs: a user that wants them wraps it in a memory of its own. Immediate
/// data is ignored.
pub struct FileMemory {
    background: Arc<Background>,
    accesses: AccessCache,
    /// Budget that messages hold.
    held: FxHashMap<(Qpn, u64), u64>,
    pieces: Vec<Piece>,
}

impl FileMemory {
    pub(crate) fn new(keys: Arc<Keys>, background: Arc<Background>) -> FileMemory {
        FileMemory {
            background,
            accesses: AccessCache::new(keys),
            held: FxHashMap::default(),
            pieces: Vec::new(),
        }
    }

    /// Does something with a key that has the rights for it, and counts the outcome.
    fn with<T>(
        &mut self,
        qpn: Qpn,
        key: u32,
        allows: impl Fn(&Rights) -> bool,
        act: impl FnOnce(&Background, &mut FileAccess<'_>, &mut Vec<Piece>) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let mut access = self.accesses.find(qpn, key)?;
        let result = match allows(access.rights()) {
            true => act(&self.background, &mut access, &mut self.pieces),
            false => Err(Fault::Access),
        };
        let meter = access.meter();
        match result {
            Ok(_) => {}
            Err(Fault::NotReady { .. }) => meter.faults.add(1),
            Err(Fault::Access) => meter.refused.add(1),
            Err(Fault::Operational) => meter.failed.add(1),
        }
        result
    }

    /// Takes budget for a message that is assembled.
    fn reserve(&mut self, message: &Message) -> Result<Delivery, Fault> {
        let len_bytes = u64::from(message.len_bytes);
        if len_bytes > self.background.assembled_bytes_max() {
            return Err(Fault::Access);
        }
        if !self.background.reserve(len_bytes) {
            return Err(Fault::NotReady {
                wait_ns: BUDGET_WAIT_NS,
            });
        }
        self.held.insert((message.qpn, message.number), len_bytes);
        Ok(Delivery::Whole)
    }

    fn release(&mut self, message: &Message) {
        if let Some(len_bytes) = self.held.remove(&(message.qpn, message.number)) {
            self.background.release(len_bytes);
        }
    }
}

impl Drop for FileMemory {
    fn drop(&mut self) {
        for (_, len_bytes) in self.held.drain() {
            self.background.release(len_bytes);
        }
    }
}

/// Does something under a guard with pages that are all translated, and fences it: stored data is durable, and loaded
/// data is right. `all` is the message that `bytes` belong to.
fn with_pages<T>(
    background: &Background,
    access: &mut FileAccess<'_>,
    pieces: &mut Vec<Piece>,
    (bytes, all): (Bytes, Bytes),
    act: impl FnOnce(&dyn Region, &[Piece]) -> Result<T, Fault>,
) -> Result<T, Fault> {
    let guard = access.guard()?;
    let region = guard.region()?;
    // It has not been checked yet whether all of a short message is in the file.
    let is_first = bytes.access == Access::Write && all.is_short() && bytes.at == all.at;
    let in_file = if is_first { all } else { bytes };
    if !guard.has(in_file.at, in_file.len_bytes) {
        return Err(Fault::Access);
    }
    match translate(access, &guard, &bytes, pieces)? {
        None => {
            let done = act(region, pieces)?;
            fence(region)?;
            Ok(done)
        }
        Some(page) => {
            drop(guard);
            Err(background.fault(access.file(), all.wanted(page)?))
        }
    }
}

/// Translates all of `bytes`, or returns a page that must be requested.
fn translate(
    access: &mut FileAccess<'_>,
    guard: &Guard<'_>,
    bytes: &Bytes,
    pieces: &mut Vec<Piece>,
) -> Result<Option<u64>, Fault> {
    pieces.clear();
    let mut at = bytes.at;
    let end = bytes.at + bytes.len_bytes;
    while at < end {
        let page = at / REGION_PAGE_BYTES;
        let within = (at % REGION_PAGE_BYTES) as u32;
        let len_bytes = (REGION_PAGE_BYTES - u64::from(within)).min(end - at) as u32;
        let place = match access.place(guard, number(page)?) {
            Place::Run(placed) => Some(placed.from(number(page)?).run.page),
            Place::Hole(_) if bytes.access == Access::Read => None,
            Place::Hole(_) | Place::Unknown => return Ok(Some(page)),
        };
        pieces.push(Piece {
            page: place,
            within,
            len_bytes,
        });
        at += u64::from(len_bytes);
    }
    Ok(None)
}

/// Checks that all of a message is in the file, and requests pages that it will need.
///
/// # Errors
/// `NotReady` if its first page is one of them.
fn prepare(background: &Background, access: &mut FileAccess<'_>, all: &Bytes) -> Result<(), Fault> {
    let guard = access.guard()?;
    if !guard.has(all.at, all.len_bytes) {
        return Err(Fault::Access);
    }
    let mut page = all.first_page();
    let mut missing = None;
    for _ in 0..AHEAD_RUNS {
        if page >= all.end_page() {
            break;
        }
        page = match access.place(&guard, number(page)?) {
            Place::Run(run) => u64::from(run.end()),
            Place::Hole(run) if all.access == Access::Read => u64::from(run.end()),
            Place::Hole(_) | Place::Unknown => {
                missing = Some(page);
                break;
            }
        };
    }
    drop(guard);
    let Some(page) = missing else {
        return Ok(());
    };
    match background.fault(access.file(), all.wanted(page)?) {
        // The others may be there when their turn comes; if not, they are requested again.
        _ if page > all.first_page() => Ok(()),
        fault => Err(fault),
    }
}

/// All bytes of a message.
fn all_of(message: &Message, access: Access) -> Bytes {
    Bytes {
        at: message.at,
        len_bytes: u64::from(message.len_bytes),
        access,
    }
}

fn fence(region: &dyn Region) -> Result<(), Fault> {
    region.fence().map_err(|_| Fault::Operational)
}

fn append(access: &FileAccess<'_>, data: &[u8]) -> Result<(), Fault> {
    access.append(data)?;
    access.meter().appends.add(1);
    access.meter().bytes_appended.add(data.len() as u64);
    Ok(())
}

impl Memory for FileMemory {
    fn begin(&mut self, message: &Message) -> Result<Delivery, Fault> {
        let all = all_of(message, Access::Write);
        let is_append = message.is_append();
        let allows = |rights: &Rights| if is_append { rights.append } else { rights.write };
        let delivery = self.with(message.qpn, message.key, allows, |background, access, _| {
            let is_atomic = access.rights().atomic_writes;
            if is_append {
                return Ok(Delivery::Whole);
            }
            if !is_atomic && all.is_short() {
                return Ok(Delivery::Parts);
            }
            if !is_atomic {
                return prepare(background, access, &all).map(|()| Delivery::Parts);
            }
            let guard = access.guard()?;
            let is_short = all.len_bytes <= access.file().atomic_bytes_max();
            if is_short && guard.has(all.at, all.len_bytes) {
                Ok(Delivery::Whole)
            } else {
                Err(Fault::Access)
            }
        })?;
        match delivery {
            Delivery::Parts => Ok(Delivery::Parts),
            Delivery::Whole => self.reserve(message).inspect_err(|fault| {
                if let Ok(access) = self.accesses.find(message.qpn, message.key) {
                    match fault {
                        Fault::NotReady { .. } => access.meter().put_off.add(1),
                        _ => access.meter().refused.add(1),
                    }
                }
            }),
        }
    }

    fn write(&mut self, message: &Message, part: &Part<'_>) -> Result<(), Fault> {
        if message.len_bytes == 0 {
            return Ok(());
        }
        let Some(at) = message.at.checked_add(u64::from(part.offset_bytes)) else {
            return Err(Fault::Access);
        };
        let all = all_of(message, Access::Write);
        let bytes = Bytes {
            at,
            len_bytes: part.data.len() as u64,
            access: Access::Write,
        };
        let allows = |rights: &Rights| rights.write && !rights.atomic_writes;
        self.with(message.qpn, message.key, allows, |background, access, pieces| {
            with_pages(background, access, pieces, (bytes, all), |region, pieces| {
                let mut data = part.data;
                for piece in pieces {
                    let (now, later) = data.split_at(piece.len_bytes as usize);
                    region.store(piece.page.ok_or(Fault::Operational)?, piece.within, now);
                    data = later;
                }
                Ok(())
            })?;
            access.meter().packets_written.add(1);
            access.meter().bytes_written.add(bytes.len_bytes);
            Ok(())
        })
    }

    fn write_whole(&mut self, message: &Message, data: &[u8], _: Option<u32>) -> Result<(), Fault> {
        let is_append = message.is_append();
        let allows = |rights: &Rights| if is_append { rights.append } else { rights.write };
        self.with(message.qpn, message.key, allows, |_, access, _| {
            if is_append {
                return append(access, data);
            }
            access.call(|region| region.write_atomic(message.at, data))?;
            access.meter().atomic_writes.add(1);
            access.meter().bytes_written.add(data.len() as u64);
            Ok(())
        })?;
        self.release(message);
        Ok(())
    }

    fn abandon(&mut self, message: &Message, _arrived_bytes: u32) {
        self.release(message);
    }

    fn may_read(&mut self, message: &Message) -> Result<(), Fault> {
        let all = all_of(message, Access::Read);
        self.with(
            message.qpn,
            message.key,
            |rights| rights.read,
            |background, access, _| prepare(background, access, &all),
        )
    }

    fn read(&mut self, message: &Message, offset_bytes: u32, into: &mut [u8]) -> Result<(), Fault> {
        let Some(at) = message.at.checked_add(u64::from(offset_bytes)) else {
            return Err(Fault::Access);
        };
        let all = all_of(message, Access::Read);
        let bytes = Bytes {
            at,
            len_bytes: into.len() as u64,
            access: Access::Read,
        };
        self.with(
            message.qpn,
            message.key,
            |rights| rights.read,
            |background, access, pieces| {
                with_pages(background, access, pieces, (bytes, all), |region, pieces| {
                    let mut rest = into;
                    for piece in pieces {
                        let (now, later) = rest.split_at_mut(piece.len_bytes as usize);
                        match piece.page {
                            Some(page) => region.load(page, piece.within, now),
                            None => now.fill(0),
                        }
                        rest = later;
                    }
                    Ok(())
                })?;
                access.meter().packets_read.add(1);
                access.meter().bytes_read.add(bytes.len_bytes);
                Ok(())
            },
        )
    }

    fn fetch_add(&mut self, qpn: Qpn, key: u32, at: u64, add: u64) -> Result<u64, Fault> {
        if at == RESERVE_AT {
            return self.with(
                qpn,
                key,
                |rights| rights.append,
                |_, access, _| {
                    let end = access.call(|region| region.reserve(add))?;
                    access.meter().reservations.add(1);
                    Ok(end)
                },
            );
        }
        self.atomic(qpn, key, at, |region, page, within| region.fetch_add(page, within, add))
    }

    fn compare_swap(&mut self, qpn: Qpn, key: u32, at: u64, compare: u64, swap: u64) -> Result<u64, Fault> {
        if at == RESERVE_AT {
            let allows = |rights: &Rights| rights.append && compare <= swap;
            return self.with(qpn, key, allows, |_, access, _| {
                let end = access.call(|region| region.extend(compare, swap))?;
                access.meter().reservations.add(u64::from(end == compare));
                Ok(end)
            });
        }
        self.atomic(qpn, key, at, |region, page, within| {
            region.compare_swap(page, within, compare, swap)
        })
    }

    /// Always refused.
    fn receive(&mut self, _: Qpn, _: &Received<'_>) -> Result<(), Fault> {
        Err(Fault::Access)
    }
}

impl FileMemory {
    /// Changes 8 bytes in one step.
    fn atomic(
        &mut self,
        qpn: Qpn,
        key: u32,
        at: u64,
        change: impl FnOnce(&dyn Region, u32, u32) -> u64,
    ) -> Result<u64, Fault> {
        let bytes = Bytes {
            at,
            len_bytes: 8,
            access: Access::Write,
        };
        let allows = |rights: &Rights| rights.read && rights.write && at.is_multiple_of(8);
        self.with(qpn, key, allows, |background, access, pieces| {
            let before = with_pages(background, access, pieces, (bytes, bytes), |region, pieces| {
                let piece = pieces.first().ok_or(Fault::Operational)?;
                let page = piece.page.ok_or(Fault::Operational)?;
                Ok(change(region, page, piece.within))
            })?;
            access.meter().atomics.add(1);
            Ok(before)
        })
    }
}
