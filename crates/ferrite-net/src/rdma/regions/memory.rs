//! What a thread of the adapter does with bound files.
//!
//! A packet is written under one guard: key, translation, bytes, fence. If a page is not known, the guard is let go,
//! the engine is asked, and the packet begins anew. Appends, reservations and steps are the engine's.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ferrite_roce::memory::{Delivery, Fault, Memory, Message, Part, RESERVE_AT, Received};
use ferrite_roce::wire::Qpn;
use ferrite_vfs::FsError;
use ferrite_vfs::regions::{Access, REGION_PAGE_BYTES, Region};

use super::Tables;
use super::bound::{Bound, Found, Right, Table};

/// How often a packet asks for pages that others take away meanwhile, until the sender shall come again.
const FAULTS: u32 = 16;
/// After how long it shall.
const LATER_NS: u64 = 500_000;

type Outcome<T> = std::result::Result<T, Fault>;

/// A thread's way to bound files.
pub struct Reach {
    tables: Arc<Tables>,
}

/// Bytes within one page: which, from where on, and which bytes of the packet.
type Slice = (u32, u32, std::ops::Range<usize>);

/// `len` bytes from `at` on, page by page.
fn slices(at: u64, len: usize) -> impl Iterator<Item = Slice> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let place = at + done as u64;
        let within = place % REGION_PAGE_BYTES;
        let count = ((REGION_PAGE_BYTES - within) as usize).min(len - done);
        let slice = ((place / REGION_PAGE_BYTES) as u32, within as u32, done..done + count);
        done += count;
        Some(slice)
    })
}

/// What an engine's error means for a queue pair.
fn fault_of(error: &FsError) -> Fault {
    match error {
        FsError::Stale => Fault::Access,
        _ => Fault::Operational,
    }
}

impl Reach {
    pub(super) fn new(tables: Arc<Tables>) -> Reach {
        Reach { tables }
    }

    fn bound(&self, qpn: Qpn, key: u32) -> Outcome<(Arc<Bound>, u64)> {
        let session = self.tables.sessions.read().get(&qpn).copied().ok_or(Fault::Access)?;
        let bound = self.tables.keys.read().get(&key).cloned().ok_or(Fault::Access)?;
        Ok((bound, session))
    }

    /// Does something under a guard, with the key still good, and with the pages in the way that `access` needs them.
    fn guarded<T>(
        &self,
        (qpn, key): (Qpn, u32),
        (at, len): (u64, usize),
        access: Access,
        mut work: impl FnMut(&dyn Region, &Table) -> Outcome<T>,
    ) -> Outcome<T> {
        let (bound, session) = self.bound(qpn, key)?;
        let region = bound.region().ok_or(Fault::Access)?;
        for _ in 0..FAULTS {
            let missing = {
                let table = bound.guard();
                permit(&table, key, session, access)?;
                let end = at.checked_add(len as u64).ok_or(Fault::Access)?;
                if end > table.size {
                    return Err(Fault::Access);
                }
                let is_missing = |found: Found| match access {
                    Access::Read => found == Found::Unknown,
                    Access::Write => !matches!(found, Found::At(_)),
                };
                let mut pages = slices(at, len).map(|(page, ..)| page);
                bound.lookups.fetch_add(1, Ordering::Relaxed);
                match pages.find(|page| is_missing(table.find(*page))) {
                    None => return work(region, &table),
                    Some(page) => page,
                }
            };
            let last = (at + len.max(1) as u64 - 1) / REGION_PAGE_BYTES;
            let pages = (last as u32).saturating_sub(missing) + 1;
            region.fault(missing, pages, access).map_err(|error| fault_of(&error))?;
        }
        Err(Fault::NotReady { wait_ns: LATER_NS })
    }

    /// The file, for what the engine does itself: the key was good a moment ago.
    fn permitted(&self, qpn: Qpn, key: u32) -> Outcome<Arc<Bound>> {
        let (bound, session) = self.bound(qpn, key)?;
        permit(&bound.guard(), key, session, Access::Write)?;
        Ok(bound)
    }

    fn word<T>(&self, qpn: Qpn, key: u32, at: u64, change: impl Fn(&dyn Region, u32, u32) -> T) -> Outcome<T> {
        self.guarded((qpn, key), (at, 8), Access::Write, |region, table| {
            let Some((page, within, _)) = slices(at, 8).next() else {
                return Err(Fault::Access);
            };
            let Found::At(page) = table.find(page) else {
                return Err(Fault::Operational);
            };
            let found = change(region, page, within);
            region.fence().map_err(|error| fault_of(&error))?;
            Ok(found)
        })
    }
}

/// Whether a key allows this. Under a guard.
fn permit(table: &Table, key: u32, session: u64, access: Access) -> Outcome<&Right> {
    let right = table.rights.get(&key).ok_or(Fault::Access)?;
    let is_allowed = right.session == session && (right.writable || access == Access::Read);
    is_allowed.then_some(right).ok_or(Fault::Access)
}

impl Memory for Reach {
    fn begin(&mut self, message: &Message) -> Outcome<Delivery> {
        let (bound, session) = self.bound(message.qpn, message.key)?;
        let table = bound.guard();
        let right = permit(&table, message.key, session, Access::Write)?;
        if message.is_append() {
            return Ok(Delivery::Whole);
        }
        match message.at + u64::from(message.len_bytes) <= table.size {
            true if right.atomic => Ok(Delivery::Whole),
            true => Ok(Delivery::Parts),
            false => Err(Fault::Access),
        }
    }

    fn write(&mut self, message: &Message, part: &Part<'_>) -> Outcome<()> {
        if part.data.is_empty() {
            return Ok(());
        }
        let at = message.at + u64::from(part.offset_bytes);
        let range = (at, part.data.len());
        self.guarded((message.qpn, message.key), range, Access::Write, |region, table| {
            for (page, within, bytes) in slices(at, part.data.len()) {
                if let Found::At(page) = table.find(page) {
                    region.store(page, within, &part.data[bytes]);
                }
            }
            region.fence().map_err(|error| fault_of(&error))
        })
    }

    fn write_whole(&mut self, message: &Message, data: &[u8], _immediate: Option<u32>) -> Outcome<()> {
        if data.is_empty() {
            return Ok(());
        }
        let bound = self.permitted(message.qpn, message.key)?;
        let region = bound.region().ok_or(Fault::Access)?;
        let written = match message.is_append() {
            true => region.append(&[data]).map(drop),
            false => region.write_atomic(message.at, data),
        };
        written.map_err(|error| fault_of(&error))
    }

    fn abandon(&mut self, _message: &Message, _arrived_bytes: u32) {}

    fn may_read(&mut self, message: &Message) -> Outcome<()> {
        let (bound, session) = self.bound(message.qpn, message.key)?;
        let table = bound.guard();
        permit(&table, message.key, session, Access::Read)?;
        let is_within = message.at.saturating_add(message.len_bytes.into()) <= table.size;
        is_within.then_some(()).ok_or(Fault::Access)
    }

    fn read(&mut self, message: &Message, offset_bytes: u32, into: &mut [u8]) -> Outcome<()> {
        let at = message.at + u64::from(offset_bytes);
        let range = (at, into.len());
        self.guarded((message.qpn, message.key), range, Access::Read, |region, table| {
            for (page, within, bytes) in slices(at, range.1) {
                match table.find(page) {
                    Found::At(page) => region.load(page, within, &mut into[bytes]),
                    Found::Hole | Found::Unknown => into[bytes].fill(0),
                }
            }
            // Says whether what was loaded may be used.
            region.fence().map_err(|error| fault_of(&error))
        })
    }

    fn fetch_add(&mut self, qpn: Qpn, key: u32, at: u64, add: u64) -> Outcome<u64> {
        if at == RESERVE_AT {
            let bound = self.permitted(qpn, key)?;
            let region = bound.region().ok_or(Fault::Access)?;
            return region.reserve(add).map_err(|error| fault_of(&error));
        }
        self.word(qpn, key, at, |region, page, within| region.fetch_add(page, within, add))
    }

    fn compare_swap(&mut self, qpn: Qpn, key: u32, at: u64, compare: u64, swap: u64) -> Outcome<u64> {
        self.word(qpn, key, at, |region, page, within| {
            region.compare_swap(page, within, compare, swap)
        })
    }

    /// SENDs mean nothing here.
    fn receive(&mut self, _qpn: Qpn, _received: &Received<'_>) -> Outcome<()> {
        Err(Fault::Access)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_cut_at_pages() {
        let all: Vec<Slice> = slices(4_090, 4_200).collect();
        assert_eq!(all, [(0, 4_090, 0..6), (1, 0, 6..4_102), (2, 0, 4_102..4_200)]);
        assert_eq!(slices(8_192, 0).count(), 0);
        assert_eq!(slices(8_192, 4_096).collect::<Vec<_>>(), [(2, 0, 0..4_096)]);
    }
}
