//! Pools whose content is in S3: making one, opening one, and what there is to show of it.
//!
//! The prefix belongs to the pool: an object there names it (`pool_object`). It is made last, so that nobody opens a
//! pool that is half made, and goes first when a pool is replaced. Objects have the pool's id in their names, too.
//!
//! Epochs continue above those of the metadata and of all objects: metadata that was restored from a backup does not
//! know the last ones, and ids of slices contain them. A listing of a page finds them.
//!
//! Used by `pool`, `volume` and `examination`. Builds without the cargo feature `s3` refuse such pools (`absent`).

#[cfg(feature = "s3")]
mod present {
    use std::sync::Arc;
    use std::time::Duration;

    use ferrite_blob::device::uring::Reactor;
    use ferrite_meta::MetaStore;
    use ferrite_slices::{Address, Bucket, Codec, ConnectOptions, DiskCache, SliceId};
    use ferrite_vfs::volume::{VolumeError, VolumeErrorKind};

    use crate::config::{Config, S3, Tier, TierMode};
    use crate::content_store::slices::{SLICES, folder};
    use crate::content_store::{
        Blob, Comparison, Guard, Place, SlicesContent, SlicesOptions, SlicesParts, SlicesUsage, SlicesView,
        StagedElsewhere,
    };
    use crate::format::key;
    use crate::metadata::Opening;
    use crate::open::{self, Options};
    use crate::pool_object::{NAME, PoolObject, failed, hex};
    use crate::refusal::{Result, invalid, of_fs, refuse};
    use crate::{device, metadata, tier};

    /// A volume has one shard.
    const SHARD: u64 = 0;
    /// No pool is opened so often.
    const EPOCH_MAX: u64 = 1 << 23;
    /// Owners that metadata which was restored does not know, at most.
    const EPOCHS_MAX: usize = 100_000;
    /// Names of a page.
    const PAGE_NAMES: usize = 1000;

    /// The content of an open pool, for those who show it.
    pub(crate) struct Content {
        view: SlicesView,
        /// The log that the pool has, or would have if it were opened for changes.
        log: Option<[u8; 16]>,
    }

    impl Content {
        pub(crate) fn usage(&self) -> SlicesUsage {
            self.view.usage()
        }

        /// Why content cannot be stored at the moment, if it cannot.
        pub(crate) fn damage(&self) -> Option<String> {
            self.view.failure()
        }

        /// The blobs with changes in other logs.
        pub(crate) fn staged_elsewhere(&self) -> crate::content_store::Result<Vec<StagedElsewhere>> {
            self.view.staged_elsewhere(self.log)
        }

        pub(crate) fn give_up(&self, place: Place) -> crate::content_store::Result<Arc<dyn Blob>> {
            self.view.give_up(place)
        }

        pub(crate) fn forget_staged(&self) -> crate::content_store::Result<()> {
            self.view.forget_staged()
        }

        pub(crate) fn count_names(&self, repairs: bool) -> crate::content_store::Result<u64> {
            self.view.count_names(repairs)
        }

        pub(crate) fn compare(&self, repairs: bool) -> crate::content_store::Result<Comparison> {
            self.view.compare(repairs)
        }
    }

    fn foreign(text: String) -> VolumeError {
        refuse(VolumeErrorKind::Foreign, text).with_name_in_text()
    }

    fn connect(s3: &S3) -> Result<Bucket> {
        let address: Address = s3.address.parse().map_err(|error| invalid(error).with_name_in_text())?;
        let options = ConnectOptions {
            endpoint: s3.endpoint.clone(),
            region: s3.region.clone(),
            profile: s3.profile.clone(),
            credentials: s3.credentials.clone(),
        };
        Bucket::connect(&address, &options).map_err(|error| failed(&error))
    }

    /// Makes an empty pool. With `force`, what a pool has there is lost. A crash in between leaves a prefix without a
    /// pool, in which one can be made with `force`. The root directory belongs to `owner`.
    ///
    /// # Errors
    /// The prefix or the metadata belongs to a pool, unless forced; it holds something else; errors of both.
    pub(crate) fn make(config: &Config, s3: &S3, force: bool, owner: (u32, u32)) -> Result<()> {
        let bucket = connect(s3)?;
        let object = PoolObject::new(device::random(), s3)?;
        let reactor = device::reactor(config)?;
        check_vacant(&bucket, force)?;
        match force {
            true => replace(config, &reactor, &bucket)?,
            false => metadata::clear(config, false)?,
        }
        let (uuid, place) = (object.pool, config.metadata_place());
        if let Some(tier) = &config.tier {
            tier::make(tier, &reactor, uuid, force)?;
        }
        let store = metadata::open(config, &reactor, Opening::New)?;
        open::format_for(&*store, uuid, device::random(), (1, true), owner).map_err(|error| of_fs(&place, &error))?;
        let of_meta = |error| metadata::of_meta(&place, &error);
        if let Some(content_key) = object.key() {
            let mut txn = store.begin();
            let put = txn.put(key::CONTENT_KEY, content_key);
            put.and_then(|()| txn.commit()).map_err(of_meta)?;
        }
        store.sync().map_err(of_meta)?;
        // Last: without it, nobody opens the pool.
        object.store(&bucket)?;
        store.close().map_err(of_meta)
    }

    /// Removes what the pool of this metadata has there, and then the metadata. The pool has no owner until both are
    /// gone. The content of another pool stays: it may be in use.
    fn replace(config: &Config, reactor: &Arc<Reactor>, bucket: &Bucket) -> Result<()> {
        let old = match &config.metadata.postgres {
            Some(_) => metadata::existing_database(config)?,
            None => metadata::open(config, reactor, Opening::Use).ok(),
        };
        let ours = old.as_ref().and_then(|store| open::read_record(&**store).ok());
        let ours = ours.map(|record| record.uuid);
        match PoolObject::read(bucket)? {
            Some(there) if Some(there.pool) != ours => {
                return Err(foreign(format!(
                    "{}: it belongs to a pool that {} does not know, and that may be in use; remove the object {NAME} \
                     there if it is not, or name another prefix",
                    bucket.place(),
                    config.metadata_place()
                )));
            }
            _ => empty(bucket)?,
        }
        drop(old);
        metadata::clear(config, true)
    }

    /// Refuses a prefix that holds something.
    fn check_vacant(bucket: &Bucket, force: bool) -> Result<()> {
        let place = bucket.place();
        let is_ours = |name: &str| name == NAME || is_slice(name);
        let found = bucket.list_now("", "", PAGE_NAMES).map_err(|error| failed(&error))?;
        if let Some(other) = found.iter().find(|object| !is_ours(&object.name)) {
            return Err(foreign(format!(
                "{place}: it holds objects of another program, such as {}; name another prefix",
                other.name
            )));
        }
        match found.is_empty() || force {
            true => Ok(()),
            false => Err(foreign(format!(
                "{place}: already belongs to a pool of Ferrite; give --force to overwrite it"
            ))),
        }
    }

    /// Whether an object is a slice of any pool.
    fn is_slice(name: &str) -> bool {
        let rest = name.strip_prefix(SLICES).and_then(|rest| rest.strip_prefix('/'));
        let parts = rest.and_then(|rest| rest.split_once('/'));
        parts.is_some_and(|(pool, id)| pool.len() == 32 && SliceId::parse(id).is_some())
    }

    /// Removes what a pool has there; its name first. Objects that are no slices stay, and are an error.
    fn empty(bucket: &Bucket) -> Result<()> {
        let of_bucket = |error| failed(&error);
        bucket.delete_now(vec![NAME.into()]).map_err(of_bucket)?;
        loop {
            let page = bucket.list_now(SLICES, "", PAGE_NAMES).map_err(of_bucket)?;
            if page.is_empty() {
                return Ok(());
            }
            let (slices, others): (Vec<_>, Vec<_>) = page.into_iter().partition(|object| is_slice(&object.name));
            if let Some(other) = others.first() {
                return Err(foreign(format!(
                    "{}/{} is no slice; remove it first",
                    bucket.place(),
                    other.name
                )));
            }
            let names = slices.into_iter().map(|object| object.name).collect();
            bucket.delete_now(names).map_err(of_bucket)?;
        }
    }

    /// The largest epoch of the objects of a pool, if one has an epoch above `known`.
    fn epoch_there(bucket: &Bucket, pool: [u8; 16], known: u64) -> Result<Option<u64>> {
        let folder = folder(pool);
        let mut largest = None;
        for _ in 0..EPOCHS_MAX {
            let last = SliceId {
                epoch: largest.unwrap_or(known),
                number: u64::MAX,
            };
            let page = bucket.list_now(&folder, &format!("{folder}/{last}"), 1);
            let page = page.map_err(|error| failed(&error))?;
            let Some(object) = page.first() else { return Ok(largest) };
            let id = object
                .name
                .strip_prefix(&folder)
                .and_then(|name| name.strip_prefix('/'));
            match id
                .and_then(SliceId::parse)
                .filter(|id| id.epoch > last.epoch && id.epoch < EPOCH_MAX)
            {
                Some(id) => largest = Some(id.epoch),
                None => {
                    return Err(foreign(format!(
                        "{}/{}: no owner of the pool has made it; remove it",
                        bucket.place(),
                        object.name
                    )));
                }
            }
        }
        Err(foreign(format!(
            "{}: too many owners since the metadata was copied",
            bucket.place()
        )))
    }

    /// Opens a pool: its engine, and what there is to show.
    ///
    /// # Errors
    /// Another server owns it; the prefix belongs to another pool; damage; errors of the bucket and of the metadata.
    pub(crate) fn open(
        config: &Config,
        s3: &S3,
        opening: Opening,
        options: Options,
    ) -> Result<(crate::NvmeFs, Content)> {
        let bucket = connect(s3)?;
        let reactor = device::reactor(config)?;
        // First of all: from here on no other server is the owner.
        let store = metadata::open_as(config, &reactor, opening, options.owner.as_ref())?;
        let store: Arc<dyn MetaStore> = Arc::from(store);
        let record = open::read_record(&*store).map_err(|error| of_fs(&config.metadata_place(), &error))?;
        if !record.has_unique_ids {
            let text = format!(
                "{}: the pool has its content on data devices; name them in its file, as `[[data]]`",
                config.metadata_place()
            );
            return Err(invalid(text).with_name_in_text());
        }
        let codec = codec_of(config, s3, &bucket, (&*store, record.uuid))?;
        let there = match options.read_only {
            true => None,
            false => epoch_there(&bucket, record.uuid, record.epoch)?,
        };
        let guard = Guard {
            shard: SHARD,
            epoch: record.epoch.max(there.unwrap_or(0)).saturating_add(1),
        };
        let options = Options {
            small_bytes_max: config.metadata.small_files,
            guard: Some(guard),
            ..options
        };
        let of_content = SlicesOptions {
            cache_bytes: s3.cache,
            buffer_bytes: s3.buffer,
            keep: s3.keep(),
            publish_after: publish_after(config),
            ..SlicesOptions::default()
        };
        let place = config.content_place();
        let tier = config.tier.as_ref().filter(|_| !options.read_only);
        let log = tier
            .map(|tier| tier::open(tier, &reactor, record.uuid))
            .transpose()?
            .flatten();
        let parts = SlicesParts {
            codec,
            log,
            disk: disk_of(s3, record.uuid, guard.epoch, options.read_only)?,
        };
        let content = SlicesContent::with(bucket, Arc::clone(&store), record.uuid, of_content, parts)
            .map_err(|error| of_fs(&place, &error.into()))?;
        let view = content.view();
        let there = || tier::id_there(config.tier.as_ref()?);
        let log = view.log_id().or_else(there);
        let shown = Content { view, log };
        let fs =
            open::assemble_with(Box::new(store), Box::new(content), options).map_err(|error| of_fs(&place, &error))?;
        Ok((fs, shown))
    }

    /// How the objects of the pool are made and read that this metadata is of.
    fn codec_of(config: &Config, s3: &S3, bucket: &Bucket, (store, pool): (&dyn MetaStore, [u8; 16])) -> Result<Codec> {
        let place = bucket.place();
        match PoolObject::read(bucket)? {
            Some(object) if object.pool == pool => {
                let content_key = store.get(key::CONTENT_KEY);
                let of_meta = |error| metadata::of_meta(&config.metadata_place(), &error);
                object.with_key(content_key.map_err(of_meta)?).codec(bucket, s3)
            }
            Some(_) => Err(foreign(format!(
                "{place}: it belongs to another pool; is it the right prefix?"
            ))),
            None => Err(foreign(format!(
                "{place}: it holds no content of Ferrite; is it the right bucket and prefix?"
            ))),
        }
    }

    /// The disk for clean slices, which a pool has that is opened for changes.
    fn disk_of(s3: &S3, pool: [u8; 16], epoch: u64, is_read_only: bool) -> Result<Option<DiskCache>> {
        let dir = s3.disk_cache.as_deref().filter(|_| !is_read_only);
        let disk = dir.map(|dir| DiskCache::open(&dir.join(hex(&pool)), s3.disk_cache_size, epoch));
        disk.transpose().map_err(|error| failed(&error))
    }

    /// When changes are published that nobody asks for: with a log they are safe before.
    fn publish_after(config: &Config) -> Duration {
        let tier = config.tier.as_ref().filter(|tier| tier.mode() != TierMode::Through);
        tier.map_or(SlicesOptions::default().publish_after, Tier::age)
    }

    /// Looks at the bucket of a pool, and changes nothing.
    pub(crate) fn look(s3: &S3) -> Result<String> {
        let bucket = connect(s3)?;
        match PoolObject::read(&bucket)? {
            Some(object) => {
                object.codec(&bucket, s3)?;
                let encrypted = if object.is_encrypted() { ", encrypted" } else { "" };
                Ok(format!(
                    "it has pool {:032x}{encrypted}",
                    u128::from_be_bytes(object.pool)
                ))
            }
            None => Err(foreign(format!("{}: it holds no content of Ferrite", bucket.place()))),
        }
    }
}

#[cfg(not(feature = "s3"))]
mod absent {
    use ferrite_vfs::volume::VolumeError;

    use crate::config::{Config, S3};
    use crate::metadata::Opening;
    use crate::open::Options;
    use crate::refusal::{Result, invalid};

    /// The content of an open pool, which never exists.
    pub(crate) enum Content {}

    impl Content {
        pub(crate) fn damage(&self) -> Option<String> {
            match *self {}
        }
    }

    fn absent(s3: &S3) -> VolumeError {
        let text = format!(
            "{}: this program was built without S3; build it with the feature `s3`",
            s3.address
        );
        invalid(text).with_name_in_text()
    }

    pub(crate) fn make(_config: &Config, s3: &S3, _force: bool, _owner: (u32, u32)) -> Result<()> {
        Err(absent(s3))
    }

    pub(crate) fn open(
        _config: &Config,
        s3: &S3,
        _opening: Opening,
        _options: Options,
    ) -> Result<(crate::NvmeFs, Content)> {
        Err(absent(s3))
    }

    pub(crate) fn look(s3: &S3) -> Result<String> {
        Err(absent(s3))
    }
}

#[cfg(not(feature = "s3"))]
pub(crate) use absent::{Content, look, make, open};
#[cfg(feature = "s3")]
pub(crate) use present::{Content, look, make, open};
