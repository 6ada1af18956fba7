//! Making, opening and closing stores; blobs as a whole.
//!
//! Opening reads the metadata of every slot that was ever used, in large reads, and rebuilds what is free from it. A
//! store that was not closed needs no more than that, and what its ring says.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock};

use crate::blob::Blob;
use crate::core::{Core, Damage, Free, Inner, State, newer};
use crate::device::{Device, Memory, Op};
use crate::format::{BlobId, Head, Layout, METADATA_BYTES_MAX, RingEntry, Superblock};
use crate::overlay;
use crate::page::Pages;
use crate::ring::{self, Ring};
use crate::space::Bitmap;
use crate::sums::Summed;
use crate::units::Units;
use crate::{CLUSTER_PAGES, Error, PAGE_BYTES, Result};

/// Slots that are read at once.
const SLOTS_AT_ONCE: u32 = 128;

/// What a slot begins with again after its number was lost. No slot has had so many blobs.
const INCARNATION_AFTER_DAMAGE: u32 = 1 << 31;
/// Fills a page that the device cannot read: no metadata begins like this.
const UNREADABLE: u8 = 0xff;

/// Who a new store is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FormatOptions {
    /// Its own number.
    pub store: [u8; 16],
    /// The pool it belongs to.
    pub pool: [u8; 16],
    /// Which of the pool's stores it is.
    pub index: u16,
    /// Every page of data gets a checksum, which every read verifies.
    pub checksums: bool,
    /// Blobs of less than a cluster share clusters. Programs from before that refuse such a store.
    pub shares_clusters: bool,
}

/// Who a store is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// Its own number.
    pub store: [u8; 16],
    /// The pool it belongs to.
    pub pool: [u8; 16],
    /// Which of the pool's stores it is.
    pub index: u16,
    /// The size it was made for.
    pub len_bytes: u64,
    /// It was closed in order.
    pub is_clean: bool,
    /// Its data has checksums.
    pub has_checksums: bool,
}

/// What a store has room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// Clusters.
    pub clusters: u64,
    /// Those that are free as a whole.
    pub free_clusters: u64,
    /// In what small blobs get space: a cluster, or a part of one.
    pub unit_bytes: u64,
    /// All that is free.
    pub free_bytes: u64,
    /// Blobs that it can hold; where they share clusters, before it takes room for more.
    pub blobs_max: u64,
    /// Blobs that it holds.
    pub blobs: u64,
}

/// A store. Cheap to clone; clones are the same store.
#[derive(Clone)]
pub struct BlobStore {
    pub(crate) core: Arc<Core>,
}

impl std::fmt::Debug for BlobStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("BlobStore").field(&self.core.device.name()).finish()
    }
}

/// The newer of a device's two superblocks. `None`: it holds no store.
fn superblock(device: &dyn Device) -> Result<Option<Superblock>> {
    let pages = device.len_bytes() / PAGE_BYTES as u64;
    let mut found: Option<Superblock> = None;
    let mut look = |page: u64| -> Result<Option<u64>> {
        let mut buf = Pages::zeroed(1);
        device.run(&mut [Op::Read {
            offset: page * PAGE_BYTES as u64,
            into: buf.bytes_mut(),
        }])?;
        let decoded = Superblock::decode(buf.bytes())?;
        let last = decoded
            .as_ref()
            .map(|superblock| superblock.layout.pages.saturating_sub(1));
        if let Some(superblock) = decoded
            && found
                .as_ref()
                .is_none_or(|found| found.generation < superblock.generation)
        {
            found = Some(superblock);
        }
        Ok(last)
    };
    if pages == 0 {
        return Ok(None);
    }
    // Where the second one is, the first one says, or else the size of the device. One that can be read is enough.
    let first = look(0);
    let last = first.as_ref().ok().copied().flatten();
    let second = look(last.filter(|&last| last < pages).unwrap_or(pages - 1));
    match (found, first.and(second)) {
        (None, Err(error)) | (Some(_), Err(error @ Error::Refused(_))) => Err(error),
        (found, _) => Ok(found),
    }
}

impl BlobStore {
    /// Writes an empty store to a device, whose content is lost. Durable when it returns.
    ///
    /// # Errors
    /// [`Error::Refused`] if it is too small; of the device.
    pub fn format(device: &dyn Device, options: &FormatOptions) -> Result<()> {
        let too_small = || {
            let name = device.name();
            Error::Refused(format!(
                "{name}: {} bytes are too few; a store needs 4 MiB",
                device.len_bytes()
            ))
        };
        let layout = Layout::of(
            device.len_bytes() / PAGE_BYTES as u64,
            options.checksums,
            options.shares_clusters,
        )
        .ok_or_else(too_small)?;
        let superblock = Superblock {
            store: options.store,
            pool: options.pool,
            index: options.index,
            layout,
            generation: 1,
            slots_used: 0,
            is_clean: true,
            areas: Vec::new(),
        };
        // What an earlier store left must not be taken for this one's: neither slots nor entries of the ring.
        let zeros = Pages::zeroed(CLUSTER_PAGES as usize);
        let mut at = 0;
        let end = layout.cluster(0);
        while at < end {
            let count = CLUSTER_PAGES.min(end - at) as usize;
            device.run(&mut [Op::Write {
                offset: at * PAGE_BYTES as u64,
                from: &zeros.bytes()[..count * PAGE_BYTES],
                durable: false,
            }])?;
            at += count as u64;
        }
        device.run(&mut [Op::Flush])?;
        let page = superblock.encode();
        for place in [layout.pages - 1, 0] {
            device.run(&mut [Op::Write {
                offset: place * PAGE_BYTES as u64,
                from: page.bytes(),
                durable: true,
            }])?;
        }
        Ok(())
    }

    /// Who the store on a device is; `None` if there is none.
    ///
    /// # Errors
    /// [`Error::Refused`] if it is of another version; of the device.
    pub fn identify(device: &dyn Device) -> Result<Option<Identity>> {
        Ok(superblock(device)?.map(|superblock| Identity {
            store: superblock.store,
            pool: superblock.pool,
            index: superblock.index,
            len_bytes: superblock.layout.pages * PAGE_BYTES as u64,
            is_clean: superblock.is_clean,
            has_checksums: superblock.layout.sum_pages > 0,
        }))
    }

    /// Opens the store on a device. One that was not closed is put right first, unless it is `read_only`: then nothing
    /// is written. Reads all metadata.
    ///
    /// # Errors
    /// [`Error::Refused`] if there is none, or the device has become smaller; of the device.
    pub fn open(device: Box<dyn Device>, read_only: bool) -> Result<BlobStore> {
        let refused = |text: String| Error::Refused(format!("{}: {text}", device.name()));
        let found = superblock(&*device)?.ok_or_else(|| refused("there is no data store of Ferrite".into()))?;
        let need = found.layout.pages * PAGE_BYTES as u64;
        if device.len_bytes() < need {
            let has = device.len_bytes();
            return Err(refused(format!(
                "it has {has} bytes, its store was made for {need}; is it the same device?"
            )));
        }
        let slots = found.layout.slots.saturating_add(found.layout.in_areas(&found.areas));
        let mut core = Core {
            layout: found.layout,
            areas: RwLock::new(found.areas.clone()),
            growing: Mutex::new(()),
            tangles: AtomicUsize::new(0),
            free: Mutex::new(Free {
                units: Units::new(found.layout.clusters, found.layout.units_per_cluster()),
                slots: Bitmap::new(slots),
                overflow: Bitmap::new(found.layout.overflow_pages),
                incarnations: Vec::new(),
                live: Bitmap::new(slots),
                tangled: BTreeMap::new(),
            }),
            superblock: Mutex::new(found),
            loaded: Mutex::new(HashMap::new()),
            ring: Ring::new(0),
            stopped: Mutex::new(read_only.then(|| "it is open read only".to_string())),
            damage: Mutex::default(),
            device,
            sums: None,
        };
        core.claim_areas()?;
        let damage = core.scan()?;
        *core.damage.lock() = damage;
        if !read_only {
            core.add_sums(HashSet::new());
        }
        let mut is_right = |entry: &RingEntry| {
            let head = core.read_head(entry.id.slot()).ok().flatten();
            let is_its = |head: &Head| head.id == entry.id && head.is_live && head.generation == entry.generation;
            head.as_ref().is_some_and(is_its) && !core.meets_tangle(entry)
        };
        if read_only {
            let (pending, _) = ring::pending(&*core.device, &core.layout, &mut is_right)?;
            let mended = pending.iter().map(|(page, _)| *page).collect();
            core.device = overlay::over(core.device, pending);
            core.add_sums(mended);
        } else {
            let next = ring::replay(&*core.device, &core.layout, &mut is_right)?;
            core.ring = Ring::new(next);
            core.set_clean(false)?;
        }
        Ok(BlobStore { core: Arc::new(core) })
    }

    /// A store in memory with at least this many clusters.
    pub fn memory(clusters: u64) -> BlobStore {
        let len_bytes = (clusters + 4 + clusters / 32) << 20;
        let device = Memory::new(len_bytes);
        let options = FormatOptions {
            store: [0; 16],
            pool: [0; 16],
            index: 0,
            checksums: false,
            shares_clusters: false,
        };
        let made = BlobStore::format(&device, &options).and_then(|()| BlobStore::open(Box::new(device), false));
        match made {
            Ok(store) => store,
            Err(error) => unreachable!("a device in memory does not fail: {error}"),
        }
    }

    /// Whether it takes changes: it is neither closed, nor read only, nor has it stopped after a failure.
    pub fn is_running(&self) -> bool {
        self.core.check_running().is_ok()
    }

    /// What was found damaged when it was opened and has not been mended, one line each.
    pub fn damage(&self) -> Vec<String> {
        self.core
            .damage
            .lock()
            .iter()
            .map(|damage| damage.what.clone())
            .collect()
    }

    /// Writes slots anew of which a page is damaged: with the metadata that could be read, or as one that holds no
    /// blob. Returns what was mended. Durable when it returns.
    ///
    /// # Errors
    /// Of the device.
    pub fn mend(&self) -> Result<Vec<String>> {
        let mut mended = Vec::new();
        let mut damage = self.core.damage.lock();
        while let Some(at) = damage.iter().position(|damage| damage.is_mendable) {
            let slot = damage[at].slot;
            let live = {
                let free = self.core.free.lock();
                let incarnation = free.incarnations.get(slot as usize).copied().unwrap_or(0);
                free.live.is_used(slot).then(|| BlobId::of(slot, incarnation))
            };
            let (id, inner) = match live {
                Some(id) => (id, self.core.load(id)?),
                // Nobody has a number of it that is larger.
                None => {
                    let id = BlobId::of(slot, INCARNATION_AFTER_DAMAGE);
                    (id, Arc::new(Inner::empty(id, 0)))
                }
            };
            let mut state = inner.state.write();
            // Both pages.
            for _ in 0..2 {
                self.core.store(id, &mut state, false)?;
            }
            if live.is_none() {
                let mut free = self.core.free.lock();
                free.incarnations[slot as usize] = INCARNATION_AFTER_DAMAGE;
                free.slots.clear(slot);
            }
            mended.push(damage.swap_remove(at).what);
            damage.retain(|damage| damage.slot != slot || !damage.is_mendable);
        }
        Ok(mended)
    }

    /// Deletes a blob of which not all metadata can be read. Its clusters are free when the store is opened again.
    fn delete_damaged(&self, id: BlobId, why: Error) -> Result<()> {
        let head = self
            .core
            .read_head(id.slot())?
            .filter(|head| head.id == id)
            .ok_or(why)?;
        self.core.check_running()?;
        let inner = Inner::empty(id, head.generation);
        let mut state = inner.state.write();
        state.overflow = head.overflow;
        self.core.store(id, &mut state, true)?;
        self.core.damage.lock().retain(|damage| damage.slot != id.slot());
        let mut free = self.core.free.lock();
        free.live.clear(id.slot());
        free.slots.clear(id.slot());
        Ok(())
    }

    /// Numbers for new blobs. They are never given again in the life of the store, unless nothing was made of them and
    /// the store was not closed.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if there are no more slots; of the device.
    pub fn reserve(&self, count: usize) -> Result<Vec<BlobId>> {
        self.core.take_ids(count, count)
    }

    /// [`Self::reserve`] of up to `count`, at least one: fewer, if the store would have to take room for more slots.
    ///
    /// # Errors
    /// As of [`Self::reserve`].
    pub fn reserve_some(&self, count: usize) -> Result<Vec<BlobId>> {
        self.core.take_ids(1.min(count), count)
    }

    /// Gives back reserved numbers of which no blob was made, so that their slots can be reserved again. They never
    /// come again themselves, until the next opening.
    pub fn give_back(&self, ids: &[BlobId]) {
        let mut free = self.core.free.lock();
        for id in ids {
            let given = free.incarnations.get(id.slot() as usize).copied();
            let is_reserved = given == Some(id.incarnation()) && free.slots.is_used(id.slot());
            if is_reserved && !free.live.is_used(id.slot()) {
                free.slots.clear(id.slot());
            }
        }
    }

    /// Makes an empty blob of a reserved number. Durable when it returns.
    ///
    /// # Errors
    /// [`Error::Exists`]; [`Error::NotFound`] if the number was not reserved; of the device.
    pub fn create(&self, id: BlobId, metadata: &[u8]) -> Result<Blob> {
        if metadata.len() > METADATA_BYTES_MAX {
            return Err(Error::Refused(format!(
                "metadata of a blob has at most {METADATA_BYTES_MAX} bytes"
            )));
        }
        {
            let free = self.core.free.lock();
            let given = free.incarnations.get(id.slot() as usize).copied();
            if given != Some(id.incarnation()) || !free.slots.is_used(id.slot()) {
                return Err(Error::NotFound);
            }
            if free.live.is_used(id.slot()) {
                return Err(Error::Exists);
            }
        }
        let generation = self.core.read_head(id.slot())?.map_or(0, |head| head.generation);
        let inner = Arc::new(Inner {
            id,
            ranges: Default::default(),
            state: Arc::new(RwLock::new(State {
                generation,
                is_live: true,
                valid_len: 0,
                metadata: metadata.to_vec(),
                pieces: Default::default(),
                overflow: Vec::new(),
            })),
        });
        self.core.store(id, &mut inner.state.write(), false)?;
        let mut loaded = self.core.loaded.lock();
        self.core.keep(&mut loaded, &inner);
        self.core.free.lock().live.set(id.slot());
        Ok(Blob {
            core: Arc::clone(&self.core),
            inner,
        })
    }

    /// A blob.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Damaged`]; of the device.
    pub fn blob(&self, id: BlobId) -> Result<Blob> {
        Ok(Blob {
            core: Arc::clone(&self.core),
            inner: self.core.load(id)?,
        })
    }

    /// Deletes a blob. Durable when it returns; waits for those who are reading or writing it.
    ///
    /// # Errors
    /// [`Error::NotFound`]; of the device, and then the store stops.
    pub fn delete(&self, id: BlobId) -> Result<()> {
        let inner = match self.core.load(id) {
            Err(error @ Error::Damaged(_)) => return self.delete_damaged(id, error),
            inner => inner?,
        };
        let mut state = inner.state.write();
        if !state.is_live {
            return Err(Error::NotFound);
        }
        self.core.check_running()?;
        let freed = state.remove(0, u32::MAX);
        (state.is_live, state.valid_len) = (false, 0);
        state.metadata.clear();
        self.core.store(id, &mut state, true)?;
        self.core.give_units(&freed);
        let mut loaded = self.core.loaded.lock();
        loaded.remove(&id.slot());
        let mut free = self.core.free.lock();
        let was_tangled = self.core.end_tangle(&mut free, id.slot());
        free.live.clear(id.slot());
        free.slots.clear(id.slot());
        drop((free, loaded, state));
        if was_tangled {
            self.core.forget_tangle(id.slot());
        }
        Ok(())
    }

    /// All blobs.
    ///
    /// # Errors
    /// None now; a store elsewhere may have some.
    pub fn ids(&self) -> Result<Vec<BlobId>> {
        let free = self.core.free.lock();
        let slots = 0..free.incarnations.len() as u32;
        let live = slots.filter(|&slot| free.live.is_used(slot));
        Ok(live
            .map(|slot| BlobId::of(slot, free.incarnations[slot as usize]))
            .collect())
    }

    /// Prepares for submitted transfers of buffers of this pool, whose memory stays taken as long as the device is
    /// there. Only makes them cheaper.
    pub fn know_buffers(&self, pool: &ferrite_buffers::Pool) {
        if let Some(device) = self.core.device.submitting() {
            device.know_buffers(pool);
        }
    }

    /// What it has room for.
    pub fn space(&self) -> Space {
        let free = self.core.free.lock();
        let unit_bytes = self.core.layout.unit_bytes();
        Space {
            clusters: self.core.layout.clusters.into(),
            free_clusters: free.units.free_clusters().into(),
            unit_bytes,
            free_bytes: free.units.free() * unit_bytes,
            blobs_max: free.live.len().into(),
            blobs: u64::from(free.live.len() - free.live.free()),
        }
    }

    /// Longest write of bytes that were there before which a crash leaves old or new.
    pub fn atomic_write_bytes(&self) -> u64 {
        PAGE_BYTES as u64
    }

    /// Marks it as closed; every later change fails. Nobody may be using it. Durable when it returns.
    ///
    /// # Errors
    /// Of the device.
    pub fn close(self) -> Result<()> {
        if self.core.stopped.lock().is_some() {
            return Ok(());
        }
        if let Some(sums) = &self.core.sums {
            sums.store_all()?;
        }
        self.core.set_clean(true)?;
        *self.core.stopped.lock() = Some("it is closed".into());
        Ok(())
    }
}

impl Core {
    /// Has all that is read and written from now on go by the checksums of data, if there are any; but for pages that
    /// the ring `mended` for a look only.
    fn add_sums(&mut self, mended: HashSet<u64>) {
        if self.layout.sum_pages == 0 {
            return;
        }
        let below = std::mem::replace(&mut self.device, Box::new(Memory::new(0)));
        let sums = Arc::new(Summed::new(below, &self.layout, mended));
        self.device = Box::new(Arc::clone(&sums));
        self.sums = Some(sums);
    }

    fn set_clean(&self, is_clean: bool) -> Result<()> {
        let mut superblock = self.superblock.lock();
        let next = Superblock {
            is_clean,
            generation: superblock.generation + 1,
            ..superblock.clone()
        };
        self.put_superblock(&next)?;
        *superblock = next;
        Ok(())
    }

    /// Both pages of some slots. Pages that the device cannot read are damaged, and come as no metadata.
    fn read_slots(&self, first: u32, count: usize, damage: &mut Vec<Damage>) -> Result<Pages> {
        let page = self.slot_page(first, 0);
        if let Ok(pages) = self.read_pages(page, count * 2) {
            return Ok(pages);
        }
        let mut pages = Pages::zeroed(count * 2);
        let mut unreadable = Vec::new();
        for (at, into) in pages.bytes_mut().chunks_mut(PAGE_BYTES).enumerate() {
            match self.read_pages(page + at as u64, 1) {
                Ok(one) => into.copy_from_slice(one.bytes()),
                Err(error) => {
                    into.fill(UNREADABLE);
                    let slot = first + at as u32 / 2;
                    let damage = Damage {
                        slot,
                        what: format!("slot {slot}: one of its pages cannot be read: {error}"),
                        is_mendable: true,
                        is_tangle: false,
                    };
                    unreadable.push((error, damage));
                }
            }
        }
        // If none can be read, it is not the slots: the device fails.
        if unreadable.len() == count * 2
            && let Some((error, _)) = unreadable.pop()
        {
            return Err(error);
        }
        damage.extend(unreadable.into_iter().map(|(_, damage)| damage));
        Ok(pages)
    }

    /// Reads all metadata; returns what is damaged.
    fn scan(&self) -> Result<Vec<Damage>> {
        let slots = self.superblock.lock().slots_used;
        let mut damage = Vec::new();
        let mut free = self.free.lock();
        free.incarnations.resize(slots as usize, 0);
        // Of which only the older page may be left: what that names may be another's since, who then has it first.
        let mut older = Vec::new();
        let mut first = 0;
        while first < slots {
            let count = SLOTS_AT_ONCE.min(slots - first).min(self.slots_in_row(first));
            let pages = self.read_slots(first, count as usize, &mut damage)?;
            for (slot, pair) in (first..).zip(pages.bytes().chunks(2 * PAGE_BYTES)) {
                match may_be_older(pair) {
                    true => older.push((slot, pair.to_vec())),
                    false => self.scan_slot(slot, pair, &mut free, &mut damage)?,
                }
            }
            first += count;
        }
        for (slot, pair) in older {
            self.scan_slot(slot, &pair, &mut free, &mut damage)?;
        }
        self.tangles.store(free.tangled.len(), Ordering::Release);
        Ok(damage)
    }

    /// Takes what a slot's two pages name.
    fn scan_slot(&self, slot: u32, pair: &[u8], free: &mut Free, damage: &mut Vec<Damage>) -> Result<()> {
        let mut found = |is_mendable: bool, what: String| {
            damage.push(Damage {
                slot,
                what,
                is_mendable,
                is_tangle: false,
            });
        };
        for other in pair.chunks(PAGE_BYTES).filter_map(Head::decode) {
            if other.id.slot() != slot {
                let id = other.id.raw();
                found(true, format!("slot {slot} holds the metadata of blob {id:x}"));
            }
        }
        let Some(head) = newer(pair, slot) else {
            // A blob of which the first page was torn has never been; a later one would have left the other page.
            if pair.chunks(PAGE_BYTES).all(|page| page.iter().any(|&byte| byte != 0)) {
                found(true, format!("slot {slot}: its metadata cannot be read"));
                // What number it had is not known, so it is not given again.
                free.slots.set(slot);
            }
            return Ok(());
        };
        free.incarnations[slot as usize] = head.id.incarnation();
        if !head.is_live {
            return Ok(());
        }
        free.slots.set(slot);
        free.live.set(slot);
        for overflow in &head.overflow {
            if !free.overflow.set(overflow.page) {
                let id = head.id.raw();
                found(false, format!("blob {id:x} shares an overflow page with another"));
            }
        }
        let extents = match self.read_extents(&head) {
            Ok(extents) => extents,
            Err(error @ Error::Damaged(_)) => {
                found(false, error.to_string());
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let mut claimed = None;
        for extent in extents {
            if !free.units.are_free(extent.physical, extent.count) {
                let used = free.units.used_among(extent.physical, extent.count);
                claimed.get_or_insert_with(BTreeSet::new).extend(used);
            }
            free.units.claim(extent.physical, extent.count);
        }
        if let Some(claimed) = claimed {
            free.tangled.insert(slot, claimed);
            let id = head.id.raw();
            damage.push(Damage {
                slot,
                what: format!("blob {id:x} names clusters that are another's, or none"),
                is_mendable: false,
                is_tangle: true,
            });
        }
        Ok(())
    }
}

/// Whether one of a slot's pages holds something that cannot be read: a newer state, or a write that was torn.
fn may_be_older(pair: &[u8]) -> bool {
    let is_wrong = |page: &[u8]| Head::decode(page).is_none() && page.iter().any(|&byte| byte != 0);
    pair.chunks(PAGE_BYTES).any(is_wrong)
}
