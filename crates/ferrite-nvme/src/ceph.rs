//! Pools whose content is in a Ceph cluster: making one, opening one, and what there is to show of it.
//!
//! The order keeps owners apart. The metadata is taken first, so that no other server owns the pool; then the engine
//! stores an epoch there, puts earlier owners on Ceph's blocklist, and only then recovers. A namespace names the pool
//! that it belongs to, so a pool never touches the objects of another.
//!
//! Epochs continue above those of the metadata and of the namespace: a database that was restored from a backup does
//! not know the last ones, and ids of blobs contain them.
//!
//! Used by `pool`, `volume` and `examination`. Builds without the cargo feature `rados` refuse such pools (`absent`).

#[cfg(feature = "rados")]
mod present {
    use ferrite_vfs::volume::{VolumeError, VolumeErrorKind};

    use crate::config::{Config, Rados};
    use crate::content_store::{
        ContentStore, Contents, Error, Guard, RadosContent, RadosOptions, RadosUsage, RadosView,
    };
    use crate::open::{self, Options};
    use crate::refusal::{Result, invalid, of_fs, refuse};
    use crate::{device, metadata};

    /// A volume has one shard.
    const SHARD: u64 = 0;

    /// The content of an open pool, for those who show it.
    pub(crate) struct Content {
        view: RadosView,
    }

    impl Content {
        pub(crate) fn usage(&self) -> Option<RadosUsage> {
            self.view.usage()
        }

        /// The known reason why it cannot be used, if there is one.
        pub(crate) fn damage(&self) -> Option<String> {
            self.view.health().err().map(|error| error.to_string())
        }
    }

    fn failed(place: &str, error: &Error) -> VolumeError {
        let kind = match error {
            Error::Damaged(_) => VolumeErrorKind::Damaged,
            Error::Fenced { .. } => VolumeErrorKind::InUse {
                by: "another server".into(),
                process: None,
            },
            _ => VolumeErrorKind::Medium,
        };
        let text = match error.to_string() {
            // Errors of the cluster name their place.
            text if text.contains("Ceph") => text,
            text => format!("{place}: {text}"),
        };
        refuse(kind, text).with_name_in_text()
    }

    /// The words of the pool's file, for the cluster.
    pub(crate) fn options(config: &Config, rados: &Rados) -> RadosOptions {
        let mut options = RadosOptions::new(&rados.conf, &rados.pool, config.namespace(rados));
        options.client.clone_from(&rados.client);
        options.keyring.clone_from(&rados.keyring);
        options
    }

    fn connect(config: &Config, rados: &Rados) -> Result<RadosContent> {
        let options = options(config, rados);
        RadosContent::connect(&options).map_err(|error| failed(&config.content_place(), &error))
    }

    /// Makes an empty pool. The objects of the namespace are lost. A crash in between leaves a namespace without a
    /// pool, in which one can be made with `force`. The root directory belongs to `owner`.
    ///
    /// # Errors
    /// The namespace or the volume belongs to a pool, unless forced; it is in use; errors of the cluster and of the
    /// database.
    pub(crate) fn make(config: &Config, rados: &Rados, force: bool, owner: (u32, u32)) -> Result<()> {
        let place = config.content_place();
        let in_ceph = |error| failed(&place, &error);
        let content = connect(config, rados)?;
        let found = content.contents(SHARD, true).map_err(in_ceph)?;
        check_vacant(config, &found, force)?;
        // A pool that is replaced has no owner until its content is gone.
        let old = match force {
            true => metadata::existing_database(config)?,
            false => {
                metadata::clear(config, false)?;
                None
            }
        };
        let of_old = old.as_ref().and_then(|store| open::read_record(&**store).ok());
        check_owner(config, &found, of_old.map(|record| record.uuid))?;
        let epoch = found.epoch.saturating_add(1);
        let taken = content.take_over(Guard { shard: SHARD, epoch });
        taken.and_then(|()| content.empty()).map_err(in_ceph)?;
        drop(old);
        if force {
            metadata::clear(config, true)?;
        }
        let store = metadata::open_database(config, None)?;
        let (uuid, in_database) = (device::random(), config.metadata_place());
        let kind = (content.stores(), content.limits().has_unique_ids);
        open::format_for(&*store, uuid, device::random(), kind, owner).map_err(|error| of_fs(&in_database, &error))?;
        let of_meta = |error| metadata::of_meta(&in_database, &error);
        store.sync().map_err(of_meta)?;
        // Last: without it, nobody opens the pool.
        content.give_to(uuid).and_then(|()| content.close()).map_err(in_ceph)?;
        store.close().map_err(of_meta)
    }

    /// Refuses a namespace that holds something.
    fn check_vacant(config: &Config, found: &Contents, force: bool) -> Result<()> {
        let place = config.content_place();
        let foreign = |text: String| Err(refuse(VolumeErrorKind::Foreign, text).with_name_in_text());
        if let Some(name) = &found.foreign {
            return foreign(format!(
                "{place}: it holds objects of another program, such as {name}; name another namespace"
            ));
        }
        match found.pool.is_some() || found.has_objects {
            true if !force => foreign(format!(
                "{place}: already belongs to a pool of Ferrite; give --force to overwrite it"
            )),
            _ => Ok(()),
        }
    }

    /// Refuses to overwrite a pool that may be open somewhere: the database knows only of the volume's own.
    fn check_owner(config: &Config, found: &Contents, old: Option<[u8; 16]>) -> Result<()> {
        if !found.has_owner || found.pool.is_none() || found.pool == old {
            return Ok(());
        }
        let by = "a server of another pool";
        let text = format!(
            "{}: {by} has it open, or was killed; close that pool, or name another namespace",
            config.content_place()
        );
        let kind = VolumeErrorKind::InUse {
            by: by.into(),
            process: None,
        };
        Err(refuse(kind, text).with_name_in_text())
    }

    /// Opens a pool: its engine, and what there is to show.
    ///
    /// # Errors
    /// Another server owns it; the namespace belongs to another pool; damage; errors of the cluster and of the
    /// database.
    pub(crate) fn open(config: &Config, rados: &Rados, options: Options) -> Result<(crate::NvmeFs, Content)> {
        let place = config.content_place();
        let store = match options.look {
            true => metadata::view_database(config)?,
            // First of all: from here on no other server is the owner.
            false => metadata::open_database(config, options.owner.as_ref())?,
        };
        let record = open::read_record(&*store).map_err(|error| of_fs(&config.metadata_place(), &error))?;
        if !record.has_unique_ids {
            let text = format!(
                "{}: the pool has its content on data devices; name them in its file, as `[[data]]`",
                config.metadata_place()
            );
            return Err(invalid(text).with_name_in_text());
        }
        let content = connect(config, rados)?;
        let found = content.contents(SHARD, false).map_err(|error| failed(&place, &error))?;
        if found.pool != Some(record.uuid) {
            let what = match found.pool {
                Some(_) => "it belongs to another pool",
                None => "it holds no content of Ferrite",
            };
            let text = format!("{place}: {what}; is it the right pool and namespace of Ceph?");
            return Err(refuse(VolumeErrorKind::Foreign, text).with_name_in_text());
        }
        let guard = Guard {
            shard: SHARD,
            epoch: record.epoch.max(found.epoch).saturating_add(1),
        };
        let options = Options {
            small_bytes_max: config.metadata.small_files,
            guard: Some(guard),
            ..options
        };
        let shown = Content { view: content.view() };
        let fs = open::assemble_with(store, Box::new(content), options).map_err(|error| of_fs(&place, &error))?;
        Ok((fs, shown))
    }
}

#[cfg(not(feature = "rados"))]
mod absent {
    use ferrite_vfs::volume::VolumeError;

    use crate::config::{Config, Rados};
    use crate::content_store::RadosUsage;
    use crate::open::Options;
    use crate::refusal::{Result, invalid};

    /// The content of an open pool, which never exists.
    pub(crate) enum Content {}

    impl Content {
        pub(crate) fn usage(&self) -> Option<RadosUsage> {
            match *self {}
        }

        pub(crate) fn damage(&self) -> Option<String> {
            match *self {}
        }
    }

    fn absent(config: &Config) -> VolumeError {
        let text = format!(
            "{}: this program was built without Ceph; build it with the feature `rados`, which needs librados-dev",
            config.content_place()
        );
        invalid(text).with_name_in_text()
    }

    pub(crate) fn make(config: &Config, _rados: &Rados, _force: bool, _owner: (u32, u32)) -> Result<()> {
        Err(absent(config))
    }

    pub(crate) fn open(config: &Config, _rados: &Rados, _options: Options) -> Result<(crate::NvmeFs, Content)> {
        Err(absent(config))
    }
}

#[cfg(not(feature = "rados"))]
pub(crate) use absent::{Content, make, open};
#[cfg(feature = "rados")]
pub(crate) use present::{Content, make, open, options};
