//! Pools on real media: making one, adding a device, opening it with all its parts.
//!
//! Each device records its pool and its place in it. So a device of another pool, or in another's place, is refused
//! before anything is written.
//!
//! Invariants: a pool is open in one process, or in several that only read. The file that describes it is locked
//! meanwhile; devices and RocksDB also have locks of their own. A device belongs to the pool because the description
//! names it: the description changes last, when the device is ready; the next opening for changes counts it in the
//! pool's record.

use std::path::Path;
use std::sync::Arc;

use ferrite_blob::device::uring::{Reactor, Uring};
use ferrite_blob::{BlobStore, FormatOptions, Identity};
use ferrite_meta::{MetaStore, ShardStatus};
use ferrite_vfs::volume::{VolumeError, VolumeErrorKind};

use crate::ceph;
use crate::config::{Config, Data};
use crate::description::{self, Description, Draft, Share};
use crate::device::{as_data, device, of_store, random, reactor};
use crate::fs::NvmeFs;
use crate::metadata::{self, METADATA_INDEX, Opening};
use crate::open::{self, Options};
use crate::refusal::{Result, invalid, of_fs, refuse};

/// How a pool on devices is made.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct MakeOptions {
    /// Size of files that do not exist yet.
    pub size_bytes: Option<u64>,
    /// Overwrite what the devices and the metadata directory hold.
    pub force: bool,
    /// Every page of data gets a checksum, which every read verifies. Devices that are added follow the pool's.
    pub data_checksum: bool,
    /// The owner of the root directory.
    pub owner: (u32, u32),
}

/// The parts of an open pool.
pub(crate) struct Parts {
    pub(crate) fs: NvmeFs,
    /// Its data stores on devices, in the order of their numbers.
    pub(crate) stores: Vec<Option<BlobStore>>,
    /// Its content in Ceph, if it is there.
    pub(crate) ceph: Option<ceph::Content>,
    pub(crate) config: Config,
    /// For a look: the server that owned the pool when it was opened.
    pub(crate) owned_by: Option<ShardStatus>,
    /// Locked as long as the pool is open.
    _description: Description,
}

/// Opens a device for a new store. A missing file is created. A device that names `ours` as its owner was prepared for
/// this before.
fn blank_device(
    data: &Data,
    reactor: &Arc<Reactor>,
    options: &MakeOptions,
    ours: Option<([u8; 16], u16)>,
) -> Result<Uring> {
    if !data.device.exists() {
        let size = options.size_bytes.ok_or_else(|| {
            let path = data.device.display();
            invalid(format!("{path}: no such device; give --size to make a file")).with_name_in_text()
        })?;
        Uring::create(&data.device, size).map_err(of_store)?;
    }
    let device = device(data, reactor, false)?;
    let found = BlobStore::identify(&device).map_err(of_store)?;
    let is_ours = |found: &Identity| ours == Some((found.pool, found.index));
    if found.is_some_and(|found| !is_ours(&found)) && !options.force {
        let path = data.device.display();
        let text = format!("{path}: already belongs to a pool of Ferrite; give --force to overwrite it");
        return Err(refuse(VolumeErrorKind::Foreign, text).with_name_in_text());
    }
    Ok(device)
}

/// Makes an empty pool as a file describes it. The contents of the devices are lost. Durable when it returns; after a
/// crash or failure in between there is no pool, and it can be made again with `force`.
///
/// # Errors
/// Devices that belong to a pool, a metadata directory that is not empty, both unless forced; errors of the media.
pub fn make(path: &Path, options: &MakeOptions) -> Result<()> {
    let description = Description::open(path, Share::Alone)?;
    prepare(&description.config()?, options)
}

/// Makes an empty pool, and then the file that describes it, which appears, or replaces another with `force`, when the
/// pool is there. Paths of devices are absolute. Durable when it returns; after a crash or failure in between the
/// description is unchanged, and the pool can be made again with `force`.
///
/// # Errors
/// As for [`make`]; the description exists, unless forced.
pub fn make_described(path: &Path, config: &Config, options: &MakeOptions) -> Result<()> {
    let text = description::checked(path, config)?;
    let old = match path.exists() {
        true if !options.force => return Err(description::exists(path)),
        true => Some(Description::open(path, Share::Alone)?),
        false => None,
    };
    let draft = Draft::begin(path)?;
    prepare(config, options)?;
    draft.place(&text, old.as_ref()).map(drop)
}

/// Makes a pool without its description.
fn prepare(config: &Config, options: &MakeOptions) -> Result<()> {
    if let Some(rados) = config.rados() {
        check_options_of_ceph(config, options)?;
        return ceph::make(config, rados, options.force, options.owner);
    }
    let reactor = reactor(config)?;
    let devices: Vec<Uring> = config
        .devices()
        .iter()
        .map(|data| blank_device(data, &reactor, options, None))
        .collect::<Result<_>>()?;
    let meta_device = match &config.metadata.device {
        Some(path) => Some(blank_device(&as_data(path), &reactor, options, None)?),
        None => None,
    };
    if let Some(device) = &meta_device {
        // RocksDB's files move about in it. Without space for one, the pool cannot be opened.
        device.allocate().map_err(of_store)?;
    }
    metadata::clear(config, options.force)?;
    let pool = random();
    let format = |device: &Uring, index: u16| {
        let options = FormatOptions {
            store: random(),
            pool,
            index,
            // The metadata store has its own.
            checksums: options.data_checksum && index != METADATA_INDEX,
            // Metadata files are long.
            shares_clusters: index != METADATA_INDEX,
        };
        BlobStore::format(device, &options).map_err(of_store)
    };
    for (index, device) in devices.iter().enumerate() {
        format(device, index as u16)?;
    }
    if let Some(device) = meta_device {
        format(&device, METADATA_INDEX)?;
    }
    let store = metadata::open(config, &reactor, Opening::New)?;
    let place = config.metadata_place();
    open::format_for(&*store, pool, random(), (devices.len() as u16, false), options.owner)
        .map_err(|error| of_fs(&place, &error))?;
    store.sync().map_err(|error| metadata::of_meta(&place, &error))?;
    store.close().map_err(|error| metadata::of_meta(&place, &error))
}

/// Refuses options that have no meaning for content in Ceph.
fn check_options_of_ceph(config: &Config, options: &MakeOptions) -> Result<()> {
    let why = match (options.size_bytes, options.data_checksum) {
        (Some(_), _) => "--size is for files and devices; a quota of the pool of Ceph limits content there",
        (None, true) => "--data-checksum is for devices; the OSDs of Ceph keep checksums of their own",
        (None, false) => return Ok(()),
    };
    Err(invalid(format!("{}: {why}", config.content_place())).with_name_in_text())
}

/// Adds a device, named by its absolute path, to a pool that is closed: the device is made ready, and then the
/// description names it. New files may lie on it from the next opening on. Durable when it returns; after a crash in
/// between the pool is unchanged, and the device can be added again.
///
/// # Errors
/// The device belongs to a pool, unless forced, or to this one already; the description names a missing device; errors
/// of the media.
pub fn add(path: &Path, device: &Path, options: &MakeOptions) -> Result<()> {
    let old = Description::open(path, Share::Alone)?;
    let config = old.config()?;
    if config.rados().is_some() {
        return Err(description::no_devices(path));
    }
    let reactor = reactor(&config)?;
    let store = metadata::open(&config, &reactor, Opening::Inspect)?;
    let record = open::read_record(&*store).map_err(|error| of_fs(&config.metadata_place(), &error))?;
    let (has, named) = (usize::from(record.stores), config.devices().len());
    let at = config
        .devices()
        .iter()
        .position(|data| same_device(&data.device, device));
    if config
        .metadata
        .device
        .as_ref()
        .is_some_and(|own| same_device(own, device))
    {
        let text = format!("{}: it holds the metadata of this pool", device.display());
        return Err(invalid(text).with_name_in_text());
    }
    let (index, is_named) = match at {
        // A user wrote it down, and it was never in use.
        Some(index) if index >= has && index + 1 == named => (index, true),
        Some(_) => {
            let text = format!("{}: it is a device of this pool already", device.display());
            return Err(invalid(text).with_name_in_text());
        }
        None if named < has => return Err(too_few(path, has, named)),
        None => (named, false),
    };
    let index = u16::try_from(index)
        .ok()
        .filter(|&index| index < METADATA_INDEX)
        .ok_or_else(|| invalid(format!("the pool has {named} data devices, and can have no more")))?;
    let blank = blank_device(&as_data(device), &reactor, options, Some((record.uuid, index)))?;
    let format = FormatOptions {
        store: random(),
        pool: record.uuid,
        index,
        checksums: options.data_checksum || has_checksums(&config, &reactor, record.uuid),
        shares_clusters: true,
    };
    BlobStore::format(&blank, &format).map_err(of_store)?;
    if is_named {
        return Ok(());
    }
    let text = old.with_device(&config, device)?;
    Draft::begin(path)?.place(&text, Some(&old)).map(drop)
}

/// Whether data in a pool has checksums: one of its devices says so.
fn has_checksums(config: &Config, reactor: &Arc<Reactor>, pool: [u8; 16]) -> bool {
    config.devices().iter().any(|data| {
        let found = device(data, reactor, true).and_then(|device| BlobStore::identify(&device).map_err(of_store));
        matches!(found, Ok(Some(found)) if found.pool == pool && found.has_checksums)
    })
}

fn same_device(one: &Path, other: &Path) -> bool {
    one == other
        || std::fs::canonicalize(one).is_ok_and(|one| std::fs::canonicalize(other).is_ok_and(|other| one == other))
}

fn too_few(path: &Path, has: usize, named: usize) -> VolumeError {
    let text = format!(
        "{}: the pool has {has} data devices, the file names {named}; name all of them, in their order",
        path.display()
    );
    invalid(text).with_name_in_text()
}

/// Opens a pool with all its parts.
///
/// # Errors
/// Parts that are missing, in use, another pool's or in another's place; damage; errors of the media.
pub(crate) fn open(path: &Path, options: Options) -> Result<Parts> {
    let opening = match (options.read_only, options.look) {
        (true, true) => Opening::Look,
        (true, false) => Opening::Inspect,
        (false, _) => Opening::Use,
    };
    let mut description = Description::open(path, Share::Inspect)?;
    let mut config = description.config()?;
    // A database knows who owns the pool; standbys read the same file.
    if !options.read_only && config.metadata.postgres.is_none() {
        drop(description);
        description = Description::open(path, Share::Alone)?;
        config = description.config()?;
    }
    if opening == Opening::Look && config.metadata.postgres.is_some() {
        let store = metadata::view_database(&config)?;
        if let Some(owner) = store.statistics().shard.filter(ShardStatus::is_owned) {
            return look_at_owned(path, store, (config, description), owner, options);
        }
    }
    if let Some(rados) = config.rados() {
        let (fs, content) = ceph::open(&config, rados, options)?;
        return Ok(Parts {
            fs,
            stores: Vec::new(),
            ceph: Some(content),
            config,
            owned_by: None,
            _description: description,
        });
    }
    let reactor = reactor(&config)?;
    let store = metadata::open_as(&config, &reactor, opening, options.owner.as_ref())?;
    let record = open::read_record(&*store).map_err(|error| of_fs(&config.metadata_place(), &error))?;
    let (has, named) = (usize::from(record.stores), config.devices().len());
    if named < has {
        return Err(too_few(path, has, named));
    }
    let mut stores = Vec::new();
    for (index, data) in config.devices().iter().enumerate() {
        match data_store(data, &reactor, record.uuid, index, options.read_only) {
            Ok(store) => stores.push(Some(store)),
            Err(error) if index < has && config.degraded && *error.kind() != VolumeErrorKind::Foreign => {
                tracing::warn!(%error, "a data device is left out: its files fail");
                stores.push(None);
            }
            Err(error) => return Err(error),
        }
    }
    let options = Options {
        small_bytes_max: config.metadata.small_files,
        ..options
    };
    let fs =
        open::assemble(store, stores.clone(), options).map_err(|error| of_fs(&path.display().to_string(), &error))?;
    Ok(Parts {
        fs,
        stores,
        ceph: None,
        config,
        owned_by: None,
        _description: description,
    })
}

/// Looks at a pool that a server owns: at its metadata alone. The owner changes the content, and may have it locked.
fn look_at_owned(
    path: &Path,
    store: Box<dyn MetaStore>,
    (config, description): (Config, Description),
    owner: ShardStatus,
    options: Options,
) -> Result<Parts> {
    let record = open::read_record(&*store).map_err(|error| of_fs(&config.metadata_place(), &error))?;
    let stores = vec![None; usize::from(record.stores)];
    let fs =
        open::assemble(store, stores.clone(), options).map_err(|error| of_fs(&path.display().to_string(), &error))?;
    Ok(Parts {
        fs,
        stores,
        ceph: None,
        config,
        owned_by: Some(owner),
        _description: description,
    })
}

fn data_store(data: &Data, reactor: &Arc<Reactor>, pool: [u8; 16], index: usize, read_only: bool) -> Result<BlobStore> {
    let path = data.device.display();
    let foreign = |text: String| refuse(VolumeErrorKind::Foreign, text).with_name_in_text();
    if !data.device.exists() {
        let text = format!("{path}: the device is missing; `degraded = true` in the pool's file opens it without");
        return Err(refuse(VolumeErrorKind::Medium, text).with_name_in_text());
    }
    let device = device(data, reactor, read_only)?;
    let found = BlobStore::identify(&device).map_err(of_store)?;
    let found = found.ok_or_else(|| {
        foreign(format!(
            "{path}: it holds no data of Ferrite; is it the right device? A new one is added with `ferrite mkfs --add`"
        ))
    })?;
    if found.pool != pool {
        return Err(foreign(format!(
            "{path}: it belongs to another pool; is it the right device?"
        )));
    }
    if usize::from(found.index) != index {
        let is = found.index + 1;
        let text = format!(
            "{path}: it is the pool's data device number {is}, and named as number {}",
            index + 1
        );
        return Err(foreign(text));
    }
    BlobStore::open(Box::new(device), read_only).map_err(of_store)
}
