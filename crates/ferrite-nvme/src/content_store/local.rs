//! Content in blob stores on devices ([`ferrite_blob`]), one for each device.
//!
//! Everything that concerns devices is here: which store takes the next blob, stores that are missing or fail, damage
//! and its repair. New blobs go round robin over the stores (RUFS, section 2.5).
//!
//! Invariants: a store keeps the number that it was given when it was added; a missing store leaves its number free. A
//! device is open in one process at a time, so a guard adds nothing: no earlier owner has it any more.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use ferrite_blob::{BlobId, BlobStore};
use ferrite_vfs::buffers::Pool;
use ferrite_vfs::{Durability, SyncMode};

use super::{Blob, BlobName, ContentStore, DataDamage, Error, Guard, Limits, Place, Result, Space, Survey, UniqueIds};

/// The data stores of a pool, in the order of their numbers. One that is missing or has failed is `None`: operations on
/// files in it fail, and no others.
#[derive(Debug)]
pub struct LocalContent {
    stores: Vec<Option<BlobStore>>,
    next: AtomicUsize,
    /// Stores that have failed to take a new file. They get no more of them while others can.
    failing: Vec<AtomicBool>,
    /// Stores that get no new files.
    draining: Vec<AtomicBool>,
    /// The numbers of stores that were removed: nothing is there, and nothing is missing.
    removed: HashSet<u16>,
}

impl LocalContent {
    /// Content in these stores.
    pub fn new(stores: Vec<Option<BlobStore>>) -> LocalContent {
        LocalContent {
            failing: stores.iter().map(|_| AtomicBool::new(false)).collect(),
            draining: stores.iter().map(|_| AtomicBool::new(false)).collect(),
            stores,
            next: AtomicUsize::new(0),
            removed: HashSet::new(),
        }
    }

    /// The same, of which these were removed from the pool.
    #[must_use]
    pub fn without(self, removed: impl IntoIterator<Item = u16>) -> LocalContent {
        LocalContent {
            removed: removed.into_iter().collect(),
            ..self
        }
    }

    /// A store that is there.
    fn store(&self, number: u16) -> Result<&BlobStore> {
        match self.stores.get(usize::from(number)) {
            Some(Some(store)) => Ok(store),
            Some(None) if self.removed.contains(&number) => {
                Err(Error::Damaged(format!("data store {number} was removed from the pool")))
            }
            Some(None) => Err(Error::Failed(format!("data store {number} is not available"))),
            None => Err(Error::Damaged(format!("there is no data store {number}"))),
        }
    }

    /// Whether it is there, takes changes, and has not failed to take a file.
    fn is_sound(&self, number: u16) -> bool {
        let has_failed = self.failing.get(usize::from(number));
        self.store(number).is_ok_and(BlobStore::is_running)
            && !has_failed.is_some_and(|failing| failing.load(Ordering::Relaxed))
    }

    fn is_draining(&self, number: u16) -> bool {
        let draining = self.draining.get(usize::from(number));
        draining.is_some_and(|draining| draining.load(Ordering::Relaxed))
    }

    fn find(&self, place: Place) -> Result<(&BlobStore, BlobId)> {
        match place.name {
            BlobName::Local(id) => Ok((self.store(place.store)?, id)),
            BlobName::Unique(_) => Err(Error::Damaged(format!("{place} cannot be on a device"))),
        }
    }
}

fn places_of(store: u16, ids: impl IntoIterator<Item = BlobId>) -> Vec<Place> {
    let place = |id| Place {
        store,
        name: BlobName::Local(id),
    };
    ids.into_iter().map(place).collect()
}

impl ContentStore for LocalContent {
    fn limits(&self) -> Limits {
        Limits {
            atomic_write_bytes: ferrite_blob::PAGE_BYTES as u64,
            block_bytes: ferrite_blob::CLUSTER_BYTES,
            durability: Durability::Power,
            is_durable_at_once: true,
            sync_mode: SyncMode::Through,
            overwrites_in_place: true,
            has_reservations: true,
            shares_content: true,
            has_unique_ids: false,
        }
    }

    fn take_over(&self, _: Guard) -> Result<()> {
        Ok(())
    }

    fn stores(&self) -> u16 {
        u16::try_from(self.stores.len()).unwrap_or(u16::MAX)
    }

    fn space(&self, store: u16) -> Result<Space> {
        if self.removed.contains(&store) {
            return Ok(Space::default());
        }
        let space = self.store(store)?.space();
        Ok(Space {
            bytes: space.clusters * ferrite_blob::CLUSTER_BYTES,
            free_bytes: space.free_bytes,
        })
    }

    fn turns(&self) -> Vec<u16> {
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        let mut turns: Vec<u16> = (0..self.stores())
            .filter(|number| !self.removed.contains(number) && !self.is_draining(*number))
            .collect();
        // Of those that are left: numbers of removed ones would give their turns to the next one.
        let count = turns.len().max(1);
        turns.rotate_left(first % count);
        turns.sort_by_key(|&number| !self.is_sound(number));
        turns
    }

    fn takes_new(&self, store: u16) -> bool {
        self.is_sound(store) && !self.is_draining(store)
    }

    fn drain(&self, store: u16) {
        if let Some(draining) = self.draining.get(usize::from(store)) {
            draining.store(true, Ordering::Relaxed);
        }
    }

    fn note_failure(&self, store: u16) {
        if let Some(failing) = self.failing.get(usize::from(store)) {
            failing.store(true, Ordering::Relaxed);
        }
    }

    fn reserve(&self, store: u16, count: usize, _: &UniqueIds) -> Result<Vec<Place>> {
        Ok(places_of(store, self.store(store)?.reserve_some(count)?))
    }

    fn give_back(&self, places: &[Place]) {
        for &place in places {
            if let Ok((store, id)) = self.find(place) {
                store.give_back(&[id]);
            }
        }
    }

    fn create(&self, place: Place) -> Result<Arc<dyn Blob>> {
        let (store, id) = self.find(place)?;
        Ok(Arc::new(store.create(id, &[])?))
    }

    fn open(&self, place: Place) -> Result<Arc<dyn Blob>> {
        let (store, id) = self.find(place)?;
        Ok(Arc::new(store.blob(id)?))
    }

    fn delete(&self, place: Place) -> Result<()> {
        let (store, id) = self.find(place)?;
        Ok(store.delete(id)?)
    }

    fn survey(&self, number: u16) -> Result<Survey> {
        if self.removed.contains(&number) {
            return Ok(Survey {
                blobs: Some(Vec::new()),
                ..Survey::default()
            });
        }
        let store = self.store(number)?;
        Ok(Survey {
            blobs: Some(places_of(number, store.ids()?)),
            tangled: places_of(number, store.tangled()),
            older: places_of(number, store.older()),
            damage: store.damage(),
        })
    }

    fn has_checksums(&self, store: u16) -> bool {
        self.store(store).is_ok_and(BlobStore::has_checksums)
    }

    fn is_older(&self, place: Place) -> bool {
        self.find(place).is_ok_and(|(store, id)| store.older().contains(&id))
    }

    fn accept_older(&self, place: Place) -> Result<bool> {
        let (store, id) = self.find(place)?;
        let is_older = store.older().contains(&id);
        if is_older {
            store.accept_older(id)?;
        }
        Ok(is_older)
    }

    fn untangle(&self, place: Place) -> Result<()> {
        let (store, id) = self.find(place)?;
        Ok(store.untangle(id)?)
    }

    fn mend(&self, store: u16) -> Result<()> {
        Ok(self.store(store)?.mend().map(drop)?)
    }

    fn know_buffers(&self, pool: &Pool) {
        self.stores.iter().flatten().for_each(|store| store.know_buffers(pool));
    }

    fn close(&self) -> Result<()> {
        let closed: Vec<_> = self
            .stores
            .iter()
            .flatten()
            .map(|store| store.clone().close())
            .collect();
        Ok(closed.into_iter().collect::<ferrite_blob::Result<()>>()?)
    }
}

impl Blob for ferrite_blob::Blob {
    fn local(&self) -> Option<&ferrite_blob::Blob> {
        Some(self)
    }

    fn tail(&self) -> Result<Vec<u8>> {
        Ok(self.metadata())
    }

    fn allocated_bytes(&self) -> u64 {
        self.allocated_bytes()
    }

    fn valid_len(&self) -> u64 {
        self.valid_len()
    }

    fn next_data(&self, offset: u64) -> Result<Option<u64>> {
        Ok(self.next_data(offset))
    }

    fn next_hole(&self, offset: u64) -> Result<u64> {
        Ok(self.next_hole(offset))
    }

    fn read_at(&self, into: &mut [u8], offset: u64) -> Result<()> {
        Ok(self.read_at(into, offset)?)
    }

    fn write_at(&self, data: &[u8], offset: u64, tail: Option<&[u8]>) -> Result<()> {
        Ok(self.write_at(data, offset, tail)?)
    }

    fn overwrite_at(&self, data: &[u8], offset: u64, begins: &mut dyn FnMut()) -> Result<bool> {
        Ok(self.overwrite_at(data, offset, begins)?)
    }

    fn share_from(&self, from: &dyn Blob, end: u64) -> Result<bool> {
        match from.local() {
            Some(from) => Ok(self.share_from(from, end)?),
            None => Ok(false),
        }
    }

    fn set_tail(&self, tail: &[u8]) -> Result<()> {
        Ok(self.set_metadata(tail)?)
    }

    fn reserve(&self, offset: u64, len: u64, tail: Option<&[u8]>) -> Result<()> {
        Ok(self.reserve(offset, len, tail)?)
    }

    fn truncate(&self, len: u64, tail: Option<&[u8]>) -> Result<()> {
        Ok(self.truncate(len, tail)?)
    }

    fn punch(&self, offset: u64, len: u64, tail: Option<&[u8]>) -> Result<()> {
        Ok(self.punch(offset, len, tail)?)
    }

    fn zero(&self, offset: u64, len: u64, tail: Option<&[u8]>) -> Result<()> {
        Ok(self.zero(offset, len, tail)?)
    }

    fn damaged(&self, offset: u64, len: u64) -> Result<DataDamage> {
        Ok(self.damaged(offset, len)?)
    }

    fn accept(&self, bytes: Range<u64>) -> Result<()> {
        Ok(self.accept(bytes)?)
    }
}
