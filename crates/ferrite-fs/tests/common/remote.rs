//! An adapter in the test, with a remote client that reads and writes a bound file.
//!
//! Contents: [`Checked`], which caches where pages lie and notes violations by the engine, and [`Remote`], which acts
//! as an RDMA adapter: it translates, copies and fences under a guard, and faults on translation misses.

use std::collections::BTreeMap;
use std::sync::Arc;

use ferrite_fs::Engine;
use ferrite_vfs::regions::{Access, Adapter, Binding, PageRun, Region, Regions};
use ferrite_vfs::{Attr, FsError, Ino, Result, SYSTEM};
use parking_lot::{Mutex, RwLock};

const PAGE: u64 = 4096;

#[derive(Default)]
struct Table {
    pages: BTreeMap<u32, Option<u32>>,
    size: u64,
    is_unbound: bool,
}

/// A thread that holds `table` shared has a guard for the whole file.
#[derive(Default)]
pub(crate) struct Checked {
    table: RwLock<Table>,
    wrong: Mutex<Vec<String>>,
    told: Mutex<Vec<Attr>>,
}

impl Checked {
    fn find(&self, what: String) {
        self.wrong.lock().push(what);
    }

    fn check_bound(&self, table: &Table, call: &str) {
        if table.is_unbound {
            self.find(format!("{call} after the binding has ended"));
        }
    }

    /// Panics with the engine's violations.
    pub(crate) fn check(&self, at: &str) {
        let wrong = self.wrong.lock();
        assert!(wrong.is_empty(), "{at}: {wrong:#?}");
    }

    pub(crate) fn size(&self) -> u64 {
        self.table.read().size
    }

    /// Pages whose place is known, holes included.
    pub(crate) fn known(&self) -> usize {
        self.table.read().pages.len()
    }

    pub(crate) fn is_unbound(&self) -> bool {
        self.table.read().is_unbound
    }

    /// Takes the reported attributes.
    pub(crate) fn take_attributes(&self) -> Vec<Attr> {
        std::mem::take(&mut self.told.lock())
    }
}

impl Adapter for Checked {
    fn revoke(&self, first: u32, end: u32) {
        let mut table = self.table.write();
        self.check_bound(&table, "revoke");
        table.pages.retain(|&at, _| at < first || at >= end);
    }

    fn publish(&self, runs: &[PageRun]) {
        let mut table = self.table.write();
        self.check_bound(&table, "publish");
        for run in runs {
            if run.pages == 0 {
                self.find(format!("{run:?} is empty"));
            }
            for n in 0..run.pages {
                let (at, page) = (run.at + n, run.page.map(|page| page + n));
                if let Some(&Some(before)) = table.pages.get(&at)
                    && Some(before) != page
                {
                    self.find(format!("page {at} moves from {before} to {page:?} and was not revoked"));
                }
                let other = table
                    .pages
                    .iter()
                    .find(|&(&other, &place)| other != at && page.is_some() && place == page);
                if let Some((other, _)) = other {
                    self.find(format!("page {at} lies at {page:?}, as page {other} does"));
                }
                table.pages.insert(at, page);
            }
        }
    }

    fn resize(&self, size: u64) {
        let mut table = self.table.write();
        self.check_bound(&table, "resize");
        table.size = size;
    }

    fn attributes_changed(&self, attr: &Attr) {
        self.check_bound(&self.table.read(), "attributes_changed");
        self.told.lock().push(*attr);
    }

    fn unbound(&self) {
        let mut table = self.table.write();
        self.check_bound(&table, "unbound");
        if !table.pages.is_empty() {
            self.find("the binding has ended, and not everything was revoked".into());
        }
        table.is_unbound = true;
    }
}

/// A remote client with a file.
#[derive(Clone)]
pub(crate) struct Remote {
    pub(crate) adapter: Arc<Checked>,
    pub(crate) region: Arc<dyn Region>,
}

pub(crate) const WRITABLE: Binding = Binding {
    writable: true,
    defragment: false,
    whole: false,
};

impl Remote {
    pub(crate) fn bind(engine: &Engine, ino: Ino) -> Remote {
        Remote::bind_as(engine, ino, WRITABLE).unwrap()
    }

    pub(crate) fn bind_as(engine: &Engine, ino: Ino, how: Binding) -> Result<Remote> {
        let adapter = Arc::<Checked>::default();
        let region = engine.bind(SYSTEM, ino, how, Arc::clone(&adapter) as Arc<dyn Adapter>)?;
        Ok(Remote { adapter, region })
    }

    /// Does `work` with the place of the page of `offset`, under a guard, once for each page of the range. `None` for
    /// the place: a hole, which writers never get.
    fn each_page(
        &self,
        (offset, len): (u64, usize),
        access: Access,
        mut work: impl FnMut(Option<u32>, u32, std::ops::Range<usize>),
    ) -> Result<()> {
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let within = at % PAGE;
            let part = (len - done).min((PAGE - within) as usize);
            let lblk = (at / PAGE) as u32;
            let guard = self.adapter.table.read();
            if offset + len as u64 > guard.size {
                return Err(FsError::Range);
            }
            match guard.pages.get(&lblk) {
                Some(&place) if place.is_some() || access == Access::Read => {
                    work(place, within as u32, done..done + part);
                    self.region.fence()?;
                    done += part;
                }
                _ => {
                    drop(guard);
                    self.region.fault(lblk, 1, access)?;
                }
            }
        }
        Ok(())
    }

    /// Writes, page by page; pages before a failure are written.
    pub(crate) fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.each_page((offset, data.len()), Access::Write, |place, within, range| {
            self.region.store(place.unwrap(), within, &data[range]);
        })
    }

    /// Omits the fence, as a client whose message was cut off.
    pub(crate) fn store_unfenced(&self, offset: u64, data: &[u8]) {
        let guard = self.adapter.table.read();
        let page = guard.pages[&((offset / PAGE) as u32)].unwrap();
        self.region.store(page, (offset % PAGE) as u32, data);
    }

    pub(crate) fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>> {
        let mut data = vec![0; len];
        self.each_page((offset, len), Access::Read, |place, within, range| {
            if let Some(page) = place {
                self.region.load(page, within, &mut data[range]);
            }
        })?;
        Ok(data)
    }

    /// Everything.
    pub(crate) fn read_all(&self) -> Vec<u8> {
        self.read(0, self.adapter.size() as usize).unwrap()
    }

    pub(crate) fn fetch_add(&self, offset: u64, add: u64) -> Result<u64> {
        let mut found = 0;
        self.each_page((offset, 8), Access::Write, |place, within, _| {
            found = self.region.fetch_add(place.unwrap(), within, add);
        })?;
        Ok(found)
    }

    pub(crate) fn compare_swap(&self, offset: u64, compare: u64, swap: u64) -> Result<u64> {
        let mut found = 0;
        self.each_page((offset, 8), Access::Write, |place, within, _| {
            found = self.region.compare_swap(place.unwrap(), within, compare, swap);
        })?;
        Ok(found)
    }
}
