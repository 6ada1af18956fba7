//! Making, opening and closing stores; blobs as a whole.
//!
//! Opening reads the metadata of every slot that was ever used, in large reads, and rebuilds what is free from it. A
//! store that was not closed needs only that, and its ring.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use ferrite_checks::ranked::{ArcRwLock, Mutex, RwLock};
use ferrite_vfs::volume::human_bytes;

use crate::blob::Blob;
use crate::core::{Core, Free, Inner, NO_SLOT, State};
use crate::device::{Device, Memory, Op};
use crate::format::{BlobId, Head, Layout, METADATA_BYTES_MAX, RingEntry, Superblock};
use crate::overlay;
use crate::page::Pages;
use crate::ring::{self, Ring};
use crate::shared_units::SharedUnits;
use crate::space::Bitmap;
use crate::sums::Summed;
use crate::superblocks;
use crate::units::Units;
use crate::{CLUSTER_PAGES, Error, PAGE_BYTES, Result};

/// The incarnation at which a slot restarts after its number was lost. No slot has had so many blobs.
pub(crate) const INCARNATION_AFTER_DAMAGE: u32 = 1 << 31;

/// The identity and options of a new store.
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
    /// Blobs of less than a cluster share clusters. Earlier programs refuse such a store.
    pub shares_clusters: bool,
}

/// The identity of a store.
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
    /// It was closed cleanly.
    pub is_clean: bool,
    /// Its data has checksums.
    pub has_checksums: bool,
}

/// The capacity of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// Clusters.
    pub clusters: u64,
    /// Clusters that are free as a whole.
    pub free_clusters: u64,
    /// The unit of space of small blobs: a cluster, or a part of one.
    pub unit_bytes: u64,
    /// All free bytes.
    pub free_bytes: u64,
    /// Blobs that it can hold; where they share clusters, before it takes space for more.
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

impl BlobStore {
    /// Writes an empty store to a device, whose content is lost. Durable when it returns.
    ///
    /// # Errors
    /// [`Error::Refused`] if it is too small; errors of the device.
    pub fn format(device: &dyn Device, options: &FormatOptions) -> Result<()> {
        let too_small = || {
            let name = device.name();
            Error::Refused(format!(
                "{name}: {} are too few; a store needs 4 MiB",
                human_bytes(device.len_bytes())
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
            digest: Some(0),
            has_older: false,
            has_shared: false,
            areas: Vec::new(),
        };
        // An earlier store's slots and ring entries must not pass for this one's.
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

    /// The identity of the store on a device; `None` if it has no store.
    ///
    /// # Errors
    /// [`Error::Refused`] if it is of another version; errors of the device.
    pub fn identify(device: &dyn Device) -> Result<Option<Identity>> {
        Ok(superblocks::read(device)?.newer().map(|superblock| Identity {
            store: superblock.store,
            pool: superblock.pool,
            index: superblock.index,
            len_bytes: superblock.layout.pages * PAGE_BYTES as u64,
            is_clean: superblock.is_clean,
            has_checksums: superblock.layout.sum_pages > 0,
        }))
    }

    /// Opens the store on a device. A store that was not closed is recovered first, unless it is `read_only`: then
    /// nothing is written. Reads all metadata.
    ///
    /// # Errors
    /// [`Error::Refused`] if no store is there, or the device has become smaller; errors of the device.
    pub fn open(device: Box<dyn Device>, read_only: bool) -> Result<BlobStore> {
        let refused = |text: String| Error::Refused(format!("{}: {text}", device.name()));
        let pair = superblocks::read(&*device)?;
        let copies = pair.damage();
        let found = pair
            .newer()
            .ok_or_else(|| refused("there is no data store of Ferrite".into()))?;
        let need = found.layout.pages * PAGE_BYTES as u64;
        if device.len_bytes() < need {
            let has = device.len_bytes();
            return Err(refused(format!(
                "it has {has} bytes, its store was made for {need}; is it the same device?"
            )));
        }
        let was_clean = found.is_clean;
        let closed = found.digest.filter(|_| was_clean);
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
                shared: SharedUnits::default(),
                incarnations: Vec::new(),
                live: Bitmap::new(slots),
                older: BTreeSet::new(),
                digest: 0,
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
        let torn = core.judge(closed, copies.filter(|_| read_only))?;
        if !read_only {
            core.add_sums(HashSet::new());
        }
        // After a close everything is in place. Entries left in the ring may be older, where the entry that says so is
        // damaged.
        let mut is_right = |entry: &RingEntry| {
            if was_clean {
                return false;
            }
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
            core.settle(&torn)?;
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

    /// The damage that was found at opening and has not been mended, one line each.
    pub fn damage(&self) -> Vec<String> {
        self.core
            .damage
            .lock()
            .iter()
            .map(|damage| damage.what.clone())
            .collect()
    }

    /// Rewrites slots with a damaged page: with the readable metadata, or as slots without a blob. Returns what was
    /// mended. Durable when it returns.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn mend(&self) -> Result<Vec<String>> {
        let mut mended = Vec::new();
        let mut damage = self.core.damage.lock();
        // A caller has to accept older ones first.
        let older = self.core.free.lock().older.clone();
        while let Some(at) = damage
            .iter()
            .position(|damage| damage.is_mendable && !older.contains(&damage.slot))
        {
            let slot = damage[at].slot;
            if slot == NO_SLOT {
                self.core.accept_all()?;
                mended.push(damage.swap_remove(at).what);
                continue;
            }
            let live = {
                let free = self.core.free.lock();
                let incarnation = free.incarnations.get(slot as usize).copied().unwrap_or(0);
                free.live.is_used(slot).then(|| BlobId::of(slot, incarnation))
            };
            let (id, inner) = match live {
                Some(id) => (id, self.core.load(id)?),
                // No caller has a larger number of it.
                None => {
                    let id = BlobId::of(slot, INCARNATION_AFTER_DAMAGE);
                    let before = self.core.read_head(slot)?.map_or(0, |head| head.generation);
                    (id, Arc::new(Inner::empty(id, before)))
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

    /// Deletes a blob whose metadata is partly unreadable. Its clusters are free when the store is opened again.
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
        drop(state);
        self.core.damage.lock().retain(|damage| damage.slot != id.slot());
        let mut free = self.core.free.lock();
        free.older.remove(&id.slot());
        free.live.clear(id.slot());
        free.slots.clear(id.slot());
        Ok(())
    }

    /// Numbers for new blobs. They are never allocated again in the life of the store, unless no blob was made of them
    /// and the store was not closed.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if all slots are taken; errors of the device.
    pub fn reserve(&self, count: usize) -> Result<Vec<BlobId>> {
        self.core.take_ids(count, count)
    }

    /// [`Self::reserve`] of up to `count`, at least one: fewer, if the store would have to take space for more slots.
    ///
    /// # Errors
    /// As of [`Self::reserve`].
    pub fn reserve_some(&self, count: usize) -> Result<Vec<BlobId>> {
        self.core.take_ids(1.min(count), count)
    }

    /// Gives back reserved numbers without a blob, so that their slots can be reserved again. The numbers themselves do
    /// not come again until the next opening.
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
    /// [`Error::Exists`]; [`Error::NotFound`] if the number was not reserved; errors of the device.
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
            state: ArcRwLock::new(State {
                generation,
                is_live: true,
                valid_len: 0,
                group: 0,
                metadata: metadata.to_vec(),
                pieces: Default::default(),
                overflow: Vec::new(),
            }),
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
    /// [`Error::NotFound`]; [`Error::Damaged`]; errors of the device.
    pub fn blob(&self, id: BlobId) -> Result<Blob> {
        Ok(Blob {
            core: Arc::clone(&self.core),
            inner: self.core.load(id)?,
        })
    }

    /// Deletes a blob. Durable when it returns; waits for calls that are reading or writing it.
    ///
    /// # Errors
    /// [`Error::NotFound`]; errors of the device, after which the store stops.
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

    /// Prepares for submitted transfers of buffers of this pool, whose memory stays in use as long as the device
    /// exists. It only makes them cheaper.
    pub fn know_buffers(&self, pool: &ferrite_buffers::Pool) {
        if let Some(device) = self.core.device.submitting() {
            device.know_buffers(pool);
        }
    }

    /// Its capacity.
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

    /// Longest write of existing bytes that a crash leaves old or new.
    pub fn atomic_write_bytes(&self) -> u64 {
        PAGE_BYTES as u64
    }

    /// Marks it as closed; every later change fails. No other call may be using it. Durable when it returns.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn close(self) -> Result<()> {
        if self.core.stopped.lock().is_some() {
            return Ok(());
        }
        if let Some(sums) = &self.core.sums {
            sums.store_all()?;
        }
        if self.core.ring.has_failed() {
            // Entries that could not be written in place stay in the ring, for the next opening.
            return Ok(());
        }
        self.core.set_clean(true)?;
        *self.core.stopped.lock() = Some("it is closed".into());
        Ok(())
    }
}

impl Core {
    /// Verifies all reads and writes from now on by the checksums of data, if there are any; except for pages that the
    /// ring `mended` in a read-only opening.
    fn add_sums(&mut self, mended: HashSet<u64>) {
        if self.layout.sum_pages == 0 {
            return;
        }
        let below = std::mem::replace(&mut self.device, Box::new(Memory::new(0)));
        let sums = Arc::new(Summed::new(below, &self.layout, mended));
        self.device = Box::new(Arc::clone(&sums));
        self.sums = Some(sums);
    }
}
