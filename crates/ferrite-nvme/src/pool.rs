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
use ferrite_vfs::{FsError, SpaceOf};

use crate::ceph;
use crate::config::{Config, Data};
use crate::content_store::LocalContent;
use crate::description::{self, Description, Draft, Share};
use crate::device::{as_data, device, of_store, random, reactor};
use crate::format::pool::PoolRecord;
use crate::fs::NvmeFs;
use crate::metadata::{self, METADATA_INDEX, Opening};
use crate::open::{self, Options};
use crate::refusal::{self, Result, invalid, of_fs, refuse};
use crate::s3;

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
    /// Its content in S3, if it is there.
    pub(crate) s3: Option<s3::Content>,
    pub(crate) config: Config,
    /// For a look: the server that owned the pool when it was opened.
    pub(crate) owned_by: Option<ShardStatus>,
    /// Locked as long as the pool is open.
    description: Description,
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
        check_options_elsewhere(config, options)?;
        return ceph::make(config, rados, options.force, options.owner);
    }
    if let Some(s3) = config.s3() {
        check_options_elsewhere(config, options)?;
        return s3::make(config, s3, options.force, options.owner);
    }
    if config.present().count() < config.devices().len() {
        let text = "`removed` is for devices that a pool had; leave them out of a new one";
        return Err(invalid(text.into()));
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

/// Refuses options that have no meaning for content in Ceph or S3.
fn check_options_elsewhere(config: &Config, options: &MakeOptions) -> Result<()> {
    let why = match (options.size_bytes, options.data_checksum, config.s3()) {
        (Some(_), _, None) => "--size is for files and devices; a quota of the pool of Ceph limits content there",
        (Some(_), _, Some(_)) => "--size is for files and devices; `ferrite quota` limits content in S3",
        (None, true, None) => "--data-checksum is for devices; the OSDs of Ceph keep checksums of their own",
        (None, true, Some(_)) => "--data-checksum is for devices; content in S3 always has checksums",
        (None, false, _) => return Ok(()),
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
    if !config.has_devices() {
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

/// Removes a device from a pool that is closed: its content moves to the others, and then the description has it no
/// more, and keeps its place free. `show` gets the bytes moved so far and in all. Returns how many files were moved.
/// Durable when it returns; after a crash or failure in between the pool is whole, with a part of the content moved,
/// and the device can be removed again.
///
/// # Errors
/// It is no device of the pool, its last one, or not available; the others have no space for its content; content that
/// cannot be read, whose file is named; errors of the media.
pub fn remove(path: &Path, device: &Path, show: &mut dyn FnMut(u64, u64)) -> Result<u64> {
    let path = &std::path::absolute(path).map_err(|error| refusal::medium(path, error))?;
    let number = number_of(path, device)?;
    let parts = open_with(path, Options::default(), true)?;
    let index = usize::from(number);
    let described = parts.description.config()?;
    let is_named = |data: &Data| same_device(&data.device, device);
    // A removal that was cut off at its end has to change the description alone.
    let is_removed = parts.config.devices().get(index).is_none_or(|data| data.removed);
    let is_there = parts.stores.get(index).is_some_and(Option::is_some);
    let refusal = match () {
        () if !described.devices().get(index).is_some_and(is_named) => Some("the pool's file was changed meanwhile"),
        () if is_removed => None,
        () if parts.config.present().count() == 1 => Some("it is the pool's last data device; add another one first"),
        () if !is_there => Some("it is not available, so nothing can be moved off it"),
        () => None,
    };
    let text = parts.description.without_device(&described, index);
    let moved = match is_removed || refusal.is_some() || text.is_err() {
        true => Ok(0),
        false => parts.fs.0.evacuate(number, show),
    };
    let closed = parts.fs.close();
    if let Some(why) = refusal {
        return Err(invalid(format!("{}: {why}", device.display())).with_name_in_text());
    }
    let text = text?;
    let moved = moved.and_then(|moved| closed.map(|()| moved));
    let moved = moved.map_err(|error| match error {
        FsError::NoSpace(SpaceOf::Blocks) => {
            let text = format!("{}: the other devices have no space for its content", device.display());
            refuse(VolumeErrorKind::Medium, text).with_name_in_text()
        }
        error => of_fs(&path.display().to_string(), &error),
    })?;
    // The pool is still locked.
    parts.description.check_unchanged()?;
    Draft::begin(path)?.place(&text, Some(&parts.description))?;
    Ok(moved)
}

/// The number of a data device of a pool, which is not opened for that.
///
/// # Errors
/// The pool has no such device.
pub fn number_of(path: &Path, device: &Path) -> Result<u16> {
    let path = &std::path::absolute(path).map_err(|error| refusal::medium(path, error))?;
    let config = Description::open(path, Share::Inspect)?.config()?;
    let found = config.present().find(|(_, data)| same_device(&data.device, device));
    found.map(|(number, _)| number).ok_or_else(|| {
        let text = format!("{}: it is no data device of this pool", device.display());
        invalid(text).with_name_in_text()
    })
}

/// Whether data in a pool has checksums: one of its devices says so.
fn has_checksums(config: &Config, reactor: &Arc<Reactor>, pool: [u8; 16]) -> bool {
    config.present().any(|(_, data)| {
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
    open_with(path, options, false)
}

/// The same. If `alone`, servers that stand by for a pool in a database keep it from being opened.
fn open_with(path: &Path, options: Options, alone: bool) -> Result<Parts> {
    let opening = match (options.read_only, options.look) {
        (true, true) => Opening::Look,
        (true, false) => Opening::Inspect,
        (false, _) => Opening::Use,
    };
    let mut description = Description::open(path, Share::Inspect)?;
    let mut config = description.config()?;
    // A database knows who owns the pool; standbys read the same file.
    if !options.read_only && (alone || config.metadata.postgres.is_none()) {
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
    let (fs, ceph, s3) = match (config.rados(), config.s3()) {
        (Some(rados), _) => {
            let (fs, content) = ceph::open(&config, rados, options)?;
            (fs, Some(content), None)
        }
        (None, Some(s3)) => {
            let (fs, content) = s3::open(&config, s3, opening, options)?;
            (fs, None, Some(content))
        }
        (None, None) => return open_on_devices(path, (config, description), opening, options),
    };
    Ok(Parts {
        fs,
        stores: Vec::new(),
        ceph,
        s3,
        config,
        owned_by: None,
        description,
    })
}

/// Opens a pool whose content is on devices.
fn open_on_devices(
    path: &Path,
    (config, description): (Config, Description),
    opening: Opening,
    options: Options,
) -> Result<Parts> {
    let reactor = reactor(&config)?;
    let store = metadata::open_as(&config, &reactor, opening, options.owner.as_ref())?;
    let record = open::read_record(&*store).map_err(|error| of_fs(&config.metadata_place(), &error))?;
    let (has, named) = (usize::from(record.stores), config.devices().len());
    if named < has {
        return Err(too_few(path, has, named));
    }
    let config = without_removed(path, config, &record)?;
    let mut stores = Vec::new();
    for (index, data) in config.devices().iter().enumerate() {
        if data.removed {
            stores.push(None);
            continue;
        }
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
    let content = LocalContent::new(stores.clone()).without(config.removed());
    let fs = open::assemble_with(store, Box::new(content), options)
        .map_err(|error| of_fs(&path.display().to_string(), &error))?;
    Ok(Parts {
        fs,
        stores,
        ceph: None,
        s3: None,
        config,
        owned_by: None,
        description,
    })
}

/// The configuration without the devices that were removed, as the metadata knows them: a removal that was cut off, or
/// another copy of the file, may still name them.
fn without_removed(path: &Path, config: Config, record: &PoolRecord) -> Result<Config> {
    let unknown = config.removed().find(|number| !record.removed.contains(number));
    match unknown {
        None => Ok(config.without(&record.removed)),
        Some(number) => {
            let text = format!(
                "{}: it says that data device number {} was removed, and the pool still has it; `ferrite resize \
                 --remove` takes a device out of a pool, and `degraded = true` opens one without a missing device",
                path.display(),
                number + 1
            );
            Err(invalid(text).with_name_in_text())
        }
    }
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
        s3: None,
        config,
        owned_by: Some(owner),
        description,
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
