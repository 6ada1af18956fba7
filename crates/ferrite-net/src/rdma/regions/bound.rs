//! A bound file: where its pages lie, and who may use them.
//!
//! A guard is the shared lock on the table. Who revokes takes it exclusively, so no guard is left then, and what was
//! revoked is not found any more.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use ferrite_vfs::regions::{Adapter, Binding, PageRun, Region};
use ferrite_vfs::{Attr, Ctx, FileSystem, FsError, Ino, Result, posix};
use parking_lot::{RwLock, RwLockReadGuard};

use crate::wire::BoundTold;

/// What a key allows.
pub(super) struct Right {
    pub(super) session: u64,
    pub(super) writable: bool,
    /// Each message is one step.
    pub(super) atomic: bool,
    /// Who asked for it.
    pub(super) ctx: Ctx,
}

impl Right {
    fn wanted(&self) -> posix::Access {
        posix::Access {
            read: true,
            write: self.writable,
            exec: false,
        }
    }
}

/// Where pages lie, and who may use them.
#[derive(Default)]
pub(super) struct Table {
    /// By their first pages: the page behind the last one, and where the first lies, if it does.
    runs: BTreeMap<u32, (u32, Option<u32>)>,
    pub(super) size: u64,
    pub(super) rights: HashMap<u32, Right>,
    is_over: bool,
}

/// What is known of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// It lies there.
    At(u32),
    /// It reads as zeros.
    Hole,
    /// Nothing: the engine knows.
    Unknown,
}

impl Table {
    pub(super) fn find(&self, page: u32) -> Found {
        match self.runs.range(..=page).next_back() {
            Some((&first, &(end, Some(at)))) if page < end => Found::At(at + (page - first)),
            Some((_, &(end, None))) if page < end => Found::Hole,
            _ => Found::Unknown,
        }
    }

    fn forget(&mut self, first: u32, end: u32) {
        let from = self.runs.range(..first).next_back().map_or(first, |(&at, _)| at);
        let touched: Vec<(u32, (u32, Option<u32>))> = self.runs.range(from..end).map(|(&at, &run)| (at, run)).collect();
        for (at, (run_end, page)) in touched {
            if run_end <= first {
                continue;
            }
            self.runs.remove(&at);
            if at < first {
                self.runs.insert(at, (first, page));
            }
            if run_end > end {
                self.runs.insert(end, (run_end, page.map(|page| page + (end - at))));
            }
        }
    }

    fn learn(&mut self, run: &PageRun) {
        let (mut first, mut end, mut page) = (run.at, run.at.saturating_add(run.pages), run.page);
        self.forget(first, end);
        let follows = |page: Option<u32>, pages: u32, next: Option<u32>| match (page, next) {
            (None, None) => true,
            (Some(page), Some(next)) => page + pages == next,
            _ => false,
        };
        if let Some((&at, &(before_end, before))) = self.runs.range(..first).next_back()
            && before_end == first
            && follows(before, first - at, page)
        {
            (first, page) = (at, before);
            self.runs.remove(&at);
        }
        if let Some(&(next_end, next)) = self.runs.get(&end)
            && follows(page, end - first, next)
        {
            self.runs.remove(&end);
            end = next_end;
        }
        self.runs.insert(first, (end, page));
    }
}

/// See the head of this module.
pub(super) struct Bound {
    /// Keeps the engine's place in memory its own.
    _fs: Arc<dyn FileSystem>,
    ino: Ino,
    binding: Binding,
    region: OnceLock<Arc<dyn Region>>,
    table: RwLock<Table>,
    pub(super) lookups: AtomicU64,
}

impl Bound {
    pub(super) fn new(fs: Arc<dyn FileSystem>, ino: Ino, binding: Binding) -> Bound {
        Bound {
            _fs: fs,
            ino,
            binding,
            region: OnceLock::new(),
            table: RwLock::default(),
            lookups: AtomicU64::new(0),
        }
    }

    /// Called once, before there is a key.
    pub(super) fn set_region(&self, region: Arc<dyn Region>) {
        let _ = self.region.set(region);
    }

    pub(super) fn region(&self) -> Option<&dyn Region> {
        self.region.get().map(|region| &**region)
    }

    pub(super) fn ino(&self) -> Ino {
        self.ino
    }

    pub(super) fn binding(&self) -> Binding {
        self.binding
    }

    /// Guards all pages.
    pub(super) fn guard(&self) -> RwLockReadGuard<'_, Table> {
        self.table.read()
    }

    pub(super) fn has_ended(&self) -> bool {
        self.table.read().is_over
    }

    pub(super) fn size(&self) -> u64 {
        self.table.read().size
    }

    pub(super) fn keys(&self) -> usize {
        self.table.read().rights.len()
    }

    /// Whether a caller may have a key.
    pub(super) fn may_use(&self, ctx: &Ctx, writable: bool) -> Result<()> {
        if !ctx.check {
            return Ok(());
        }
        let wanted = posix::Access {
            read: true,
            write: writable,
            exec: false,
        };
        let region = self.region().ok_or(FsError::Stale)?;
        posix::may_access(&region.attr()?, &ctx.cred, wanted)
    }

    pub(super) fn give(&self, key: u32, right: Right) {
        self.table.write().rights.insert(key, right);
    }

    /// False if the session has no such key.
    pub(super) fn take_back(&self, key: u32, session: u64) -> bool {
        let mut table = self.table.write();
        let is_its = table.rights.get(&key).is_some_and(|right| right.session == session);
        if is_its {
            table.rights.remove(&key);
        }
        is_its
    }

    /// Ends a session's keys, and gives which they were.
    pub(super) fn end_session(&self, session: u64) -> Vec<u32> {
        let mut table = self.table.write();
        let ended = table.rights.extract_if(|_, right| right.session == session);
        ended.map(|(key, _)| key).collect()
    }

    pub(super) fn unbind(&self) -> Result<()> {
        self.table.write().rights.clear();
        self.region().map_or(Ok(()), Region::unbind)
    }

    pub(super) fn told(&self) -> BoundTold {
        let table = self.table.read();
        BoundTold {
            ino: self.ino,
            size: table.size,
            is_attached: true,
            writable: self.binding.writable,
            keys: table.rights.len() as u32,
            entries: table.runs.len() as u64,
            lookups: self.lookups.load(Ordering::Relaxed),
            hits: 0,
        }
    }
}

impl Adapter for Bound {
    fn revoke(&self, first: u32, end: u32) {
        self.table.write().forget(first, end);
    }

    fn publish(&self, runs: &[PageRun]) {
        let mut table = self.table.write();
        runs.iter().for_each(|run| table.learn(run));
    }

    fn resize(&self, size: u64) {
        self.table.write().size = size;
    }

    fn attributes_changed(&self, attr: &Attr) {
        let mut table = self.table.write();
        table
            .rights
            .retain(|_, right| !right.ctx.check || posix::may_access(attr, &right.ctx.cred, right.wanted()).is_ok());
    }

    fn unbound(&self) {
        let mut table = self.table.write();
        table.rights.clear();
        table.runs.clear();
        table.is_over = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_knows_each_page_as_it_was_last_told() {
        let mut table = Table::default();
        let mut model: Vec<Found> = vec![Found::Unknown; 64];
        let mut state = 7_u32;
        let mut random = |below: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) % below
        };
        for _ in 0..20_000 {
            let first = random(60);
            let pages = 1 + random(4);
            let end = (first + pages).min(64);
            match random(3) {
                0 => {
                    table.forget(first, end);
                    model[first as usize..end as usize].fill(Found::Unknown);
                }
                kind => {
                    // Often where the neighbours' pages go on.
                    let page = (kind == 1).then(|| first + 100 * random(2));
                    table.learn(&PageRun {
                        at: first,
                        page,
                        pages: end - first,
                    });
                    for at in first..end {
                        model[at as usize] = page.map_or(Found::Hole, |page| Found::At(page + (at - first)));
                    }
                }
            }
            for page in 0..64 {
                assert_eq!(table.find(page), model[page as usize], "page {page}: {:?}", table.runs);
            }
        }
        table.learn(&PageRun {
            at: 0,
            page: Some(500),
            pages: 64,
        });
        assert_eq!(table.runs.len(), 1);
    }
}
