//! Pools whose metadata cannot be read as a whole, or comes from a dump.
//!
//! The readable part of the metadata goes to a new store ([`ferrite_meta`]), and is made consistent here, before that
//! store takes the old one's place. It does not come from one moment: one part of a change may be there and another
//! missing. So
//!
//! * a record that no file owns a blob is dropped if the blob holds something: the step that gave it to a file may be
//!   the lost one, and the next opening would delete it. A check finds it without a name, and a repair keeps it;
//! * inode numbers and counters of changes continue above all that blobs and nodes know;
//! * without the pool's record there is a new one, and names get new places, as the key of their hash is lost;
//! * without a root directory there is an empty one.
//!
//! A check and a repair of the pool do the rest. Invariant: nothing is changed on data devices.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use ferrite_blob::device::uring::Reactor;
use ferrite_blob::{BlobId, BlobStore};
use ferrite_meta::{MetaStore, RocksStore, Salvaged};
use ferrite_vfs::volume::{VolumeError, VolumeErrorKind};
use ferrite_vfs::{Ino, ROOT_INO};

use crate::config::Config;
use crate::content_store::BlobName;
use crate::core::EPOCH_SHIFT;
use crate::description::{Description, Share};
use crate::device::{self, of_store};
use crate::format::key;
use crate::format::node::Node;
use crate::format::pool::PoolRecord;
use crate::format::tail::Tail;
use crate::metadata::{self, Opening, of_meta};
use crate::names::cookie_of;
use crate::open::{HASH_BITS, empty_root};
use crate::refusal::{Result, of_fs, refuse};

/// Changes per commit.
const KEYS_A_COMMIT: usize = 1000;

/// The known state of the data devices.
struct Content {
    uuid: Option<[u8; 16]>,
    stores: u16,
    removed: Vec<u16>,
    has_devices: bool,
    /// Blobs that hold something, by store.
    full: HashMap<(u16, BlobId), Option<Tail>>,
}

/// The damage that keeps a pool's metadata from being opened or read as a whole; `None`: it is sound.
///
/// # Errors
/// Errors of anything but the metadata.
pub fn metadata_damage(path: &Path) -> Result<Option<String>> {
    let description = Description::open(path, Share::Inspect)?;
    let config = description.config()?;
    let is_damage = |error: &VolumeError| *error.kind() == VolumeErrorKind::Damaged;
    let opened = match config.metadata.postgres {
        Some(_) => metadata::open_database(&config, None),
        None => metadata::open(&config, &device::reactor(&config)?, Opening::Inspect),
    };
    let store = match opened {
        Err(error) if is_damage(&error) => return Ok(Some(error.to_string())),
        store => store?,
    };
    let place = config.metadata_place();
    let all = store.scan(&[], &[0xff; 32], &mut |_, _| std::ops::ControlFlow::Continue(()));
    let read = all.map_err(|error| of_meta(&place, &error)).and_then(|()| {
        let record = crate::open::read_record(&*store);
        record.map(drop).map_err(|error| of_fs(&place, &error))
    });
    match read {
        Err(error) if is_damage(&error) || *error.kind() == VolumeErrorKind::Foreign => Ok(Some(error.to_string())),
        read => read.map(|()| None),
    }
}

/// Replaces a pool's metadata by its readable part. A check and a repair have to follow. Durable when it returns; after
/// an error or a crash the metadata is unchanged.
///
/// # Errors
/// Errors of the media; the pool is in use.
pub fn salvage_metadata(path: &Path) -> Result<Salvaged> {
    replace(path, None)
}

/// Replaces a pool's metadata by that of a dump. A check and a repair have to follow. As durable as above.
///
/// # Errors
/// As above; the dump is another pool's, or damaged.
pub fn restore_metadata(path: &Path, dump: &Path) -> Result<Salvaged> {
    replace(path, Some(dump))
}

fn replace(path: &Path, dump: Option<&Path>) -> Result<Salvaged> {
    let description = Description::open(path, Share::Alone)?;
    let config = description.config()?;
    if config.metadata.postgres.is_some() {
        return Err(metadata::by_its_own_tools(&config));
    }
    let reactor = device::reactor(&config)?;
    let content = Content::read(&config, &reactor)?;
    let backend = metadata::backend(&config, &reactor, Opening::Mend)?;
    let mut fix = |store: &dyn MetaStore| content.fix(store, dump.is_some());
    let place = dump.map_or(config.metadata_place(), |dump| dump.display().to_string());
    let salvaged = match dump {
        Some(dump) => RocksStore::restore(backend, dump, &mut fix),
        None => RocksStore::salvage(backend, &mut fix),
    };
    salvaged.map_err(|error| of_meta(&place, &error))
}

impl Content {
    fn read(config: &Config, reactor: &Arc<Reactor>) -> Result<Content> {
        let mut content = Content {
            uuid: None,
            stores: u16::try_from(config.devices().len()).unwrap_or(u16::MAX),
            removed: config.removed().collect(),
            has_devices: config.has_devices(),
            full: HashMap::new(),
        };
        for (number, data) in config.present() {
            if !data.device.exists() && config.degraded {
                continue;
            }
            let device = device::device(data, reactor, true)?;
            let found = BlobStore::identify(&device).map_err(of_store)?;
            let Some(found) = found.filter(|found| found.index == number) else {
                let text = format!(
                    "{}: it is not the pool's data device {}",
                    data.device.display(),
                    number + 1
                );
                return Err(refuse(VolumeErrorKind::Foreign, text).with_name_in_text());
            };
            if content.uuid.is_some_and(|uuid| uuid != found.pool) {
                let text = format!("{}: it belongs to another pool than the others", data.device.display());
                return Err(refuse(VolumeErrorKind::Foreign, text).with_name_in_text());
            }
            content.uuid = Some(found.pool);
            let store = BlobStore::open(Box::new(device), true).map_err(of_store)?;
            for id in store.ids().map_err(of_store)? {
                // An unreadable one is kept, too: a repair says what it is.
                let (holds, tail) = store.blob(id).map_or((true, None), |blob| {
                    (blob.valid_len() > 0, Tail::decode(&blob.metadata()))
                });
                if holds {
                    content.full.insert((number, id), tail);
                }
            }
        }
        Ok(content)
    }

    /// Makes a copy of metadata openable.
    fn fix(&self, store: &dyn MetaStore, is_dump: bool) -> ferrite_meta::Result<()> {
        let found = store.get(key::POOL)?.and_then(|value| PoolRecord::decode(&value));
        let is_known = found.is_some();
        let mut record = found.unwrap_or_else(|| self.new_record());
        if self.uuid.is_some_and(|uuid| uuid != record.uuid) {
            let text = "it is another pool's than the data devices are";
            return Err(ferrite_meta::Error::Invalid(text.into()));
        }
        if is_dump && !is_known {
            return Err(ferrite_meta::Error::Corruption(
                "the dump has no record of a pool".into(),
            ));
        }
        if !is_known && !self.has_devices {
            let text =
                "the record of the pool is lost, and nothing else says which objects are its own; restore a copy";
            return Err(ferrite_meta::Error::Corruption(text.into()));
        }
        let (mut ino, mut change, mut has_root) = (ROOT_INO, 0, false);
        each(store, b'N', &mut |key, value| {
            let number = key::ino_of(key).unwrap_or(0);
            ino = ino.max(number);
            let node = Node::decode(value);
            has_root |= number == ROOT_INO && node.as_ref().is_some_and(Node::is_dir);
            change = change.max(node.map_or(0, |node| node.change));
        })?;
        for tail in self.full.values().flatten() {
            ino = ino.max(tail.ino.min(INO_MAX));
            change = change.max(tail.change);
        }
        record.next_ino = record.next_ino.max(ino + 1);
        record.epoch = record.epoch.max((change >> EPOCH_SHIFT).min(EPOCH_MAX)) + 1;
        record.trusted_since = record.epoch + 1;
        record.is_clean = false;
        // A dump from before a device was removed does not know of that.
        record.removed.extend_from_slice(&self.removed);
        record.removed.sort_unstable();
        record.removed.dedup();
        let mut changes = self.records_to_drop(store)?;
        if !is_dump {
            changes.extend(slices_to_keep(store)?);
        }
        // Behind those: a copy of a database that was in use has rows of several moments, too.
        changes.extend(names_of_slices(store)?);
        if !is_known {
            changes.extend(rehashed(store, &record)?);
        }
        if !has_root {
            changes.push((key::node(ROOT_INO).to_vec(), Some(empty_root(0, 0).encode())));
        }
        changes.push((key::POOL.to_vec(), Some(record.encode())));
        apply(store, &changes)
    }

    fn new_record(&self) -> PoolRecord {
        PoolRecord {
            uuid: self.uuid.unwrap_or_else(device::random),
            hash_key: device::random(),
            stores: self.stores,
            epoch: 0,
            trusted_since: 0,
            next_ino: ROOT_INO + 1,
            inodes: 0,
            small_files: 0,
            small_bytes: 0,
            is_clean: false,
            has_unique_ids: false,
            removed: Vec::new(),
        }
    }

    /// Records that no file owns a blob, of blobs that hold something.
    fn records_to_drop(&self, store: &dyn MetaStore) -> ferrite_meta::Result<Changes> {
        let mut changes = Changes::new();
        each(store, b'X', &mut |key, _| {
            let is_full = key::place_of(key).is_some_and(|place| match place.name {
                BlobName::Local(id) => self.full.contains_key(&(place.store, id)),
                BlobName::Unique(_) => false,
            });
            if is_full {
                changes.push((key.to_vec(), None));
            }
        })?;
        Ok(changes)
    }
}

/// Drops what would delete content in S3 that is in use: rows of slices and chunks are not of one moment. Objects that
/// nothing names in the end are found by a comparison with the bucket.
fn slices_to_keep(store: &dyn MetaStore) -> ferrite_meta::Result<Changes> {
    let mut changes = Changes::new();
    let mut blobs = HashSet::new();
    each(store, b'L', &mut |key, _| {
        // The place without its first byte, of the row of a chunk.
        blobs.extend(key.get(1..27).filter(|_| key.len() > 27).map(<[u8]>::to_vec));
    })?;
    each(store, b'X', &mut |key, _| {
        if blobs.contains(&key[1..]) {
            changes.push((key.to_vec(), None));
        }
    })?;
    for kind in [b'Y', b'Z'] {
        each(store, kind, &mut |key, _| {
            // Without its key, content that is encrypted is lost.
            if key != key::CONTENT_KEY && !key.starts_with(b"ZC") {
                changes.push((key.to_vec(), None));
            }
        })?;
    }
    Ok(changes)
}

/// Rows on the names of slices, as these are now: numbers, blobs that share some, and dead slices that a chunk names.
#[cfg(feature = "s3")]
fn names_of_slices(store: &dyn MetaStore) -> ferrite_meta::Result<Changes> {
    let wrong = crate::content_store::slices::names::count(store)?;
    let mut changes = wrong.changes;
    for place in wrong.unflagged {
        let own = key::blob(place);
        let row = store.get(&own)?;
        let shared = row.as_deref().and_then(crate::content_store::slices::shared_row);
        changes.extend(shared.map(|row| (own.to_vec(), Some(row))));
    }
    Ok(changes)
}

#[cfg(not(feature = "s3"))]
fn names_of_slices(_: &dyn MetaStore) -> ferrite_meta::Result<Changes> {
    Ok(Changes::new())
}

/// No inode has a larger number, and no pool was opened more often: a larger number is damage.
const INO_MAX: Ino = 1 << 62;
const EPOCH_MAX: u64 = 1 << 22;

/// Keys with what they become.
type Changes = Vec<(Vec<u8>, Option<Vec<u8>>)>;

fn each(store: &dyn MetaStore, kind: u8, visit: &mut dyn FnMut(&[u8], &[u8])) -> ferrite_meta::Result<()> {
    let (from, to) = key::all_of(kind);
    store.scan(&from, &to, &mut |key, value| {
        visit(key, value);
        std::ops::ControlFlow::Continue(())
    })
}

/// Names in their places by another hash.
fn rehashed(store: &dyn MetaStore, record: &PoolRecord) -> ferrite_meta::Result<Changes> {
    let mut changes = Changes::new();
    each(store, b'C', &mut |key, _| changes.push((key.to_vec(), None)))?;
    each(store, b'E', &mut |key, value| {
        if let Some((parent, _, name)) = key::parts_of_edge(key) {
            let cookie = cookie_of(&record.hash_key, HASH_BITS, name, 0);
            changes.push((key.to_vec(), None));
            changes.push((key::edge(parent, cookie, name), Some(value.to_vec())));
        }
    })?;
    Ok(changes)
}

fn apply(store: &dyn MetaStore, changes: &Changes) -> ferrite_meta::Result<()> {
    for some in changes.chunks(KEYS_A_COMMIT) {
        let mut txn = store.begin();
        for (key, value) in some {
            match value {
                Some(value) => txn.put(key, value)?,
                None => txn.delete(key)?,
            }
        }
        txn.commit()?;
    }
    Ok(())
}
