//! Content in a Ceph cluster.
//!
//! Contents: [`RadosContent`], one owner's client, with [`RadosOptions`]; `connection` (operations, errors), `blob`,
//! `chunk_map` (which objects a blob has), `byte_ranges` (reads against overwrites), `fence` (takeover), `claim` (the
//! pool that has the namespace), `namespace` (emptying it, looking at it), `examination` (for administrators), `space`,
//! `object_name`.
//!
//! A blob is objects of one length, 4 MiB by default, in one pool and one namespace, which is the volume's. The first
//! object exists as long as the blob; its xattrs are the tail and the map of the other ones. All changes are durable on
//! every replica when they return.
//!
//! # Order of a change
//!
//! One operation on one object is atomic. A write within the first object is one operation, with the tail and the map
//! if they change. Any other write is up to three steps, each acknowledged before the next one: the map, if it does not
//! name the objects; the data of all other objects, at once; the first object's part with the tail. So a crash leaves
//! data without its tail, never the tail without its data: what lies behind the file's size is cut as in any store, and
//! an overwrite of several objects may be there in part. A write of one byte is atomic; a longer one may lie in two
//! objects. Beyond the first object a write's tail is a step of its own: after a crash times may be older than bytes.
//! Truncations and holes remove objects first; then one operation stores the map and the tail.
//!
//! # Fencing
//!
//! A change carries no epoch. Instead, [`ContentStore::take_over`] puts the instances of all earlier owners on the
//! cluster's blocklist, waits for the newest map, and returns only then (`fence`). Comparing an epoch with an xattr of
//! each object costs little (ferrite-rados has the ratio), but does not suffice: an object has the epoch of its last
//! writer, so a late write of the last owner is not older than the object, unless the new owner first rewrites every
//! object; and an object that does not exist yet has no epoch to compare. The blocklist covers all of these for a
//! commit of the monitors at each takeover after a crash, and nothing otherwise: an owner that closes takes itself out
//! of the record.
//!
//! An OSD learns of the blocklist, at the latest, from the first operation that the new owner sends it, before it
//! carries that out. So the last owner's late operation on an object takes effect before the new owner first reads or
//! writes this object, or never; the new owner cannot distinguish the former from one that took effect before the
//! takeover, since its own steps wait for each other, as those of the last owner did.
//!
//! * *A write to a blob that lives on.* The new owner looks at the first object, and then at the length of every object
//!   behind the last one that exists, before it uses the blob; any other one, before it uses its bytes.
//! * *The creation of a blob.* Its id contains the epoch, so nobody else creates it. The engine's record `X` was
//!   durable before; the new owner deletes what such records name, and this deletion reaches the object's OSD: the
//!   creation comes before it or never.
//! * *The creation of a further object.* The map in the first object named it before. If the new owner deletes or
//!   truncates the blob, it removes all objects that the map names, whether they exist or not. If it has read a map
//!   without the object, the last owner's change of the map never comes, and so neither does the object.
//!
//! So no object is left that nothing names. [`ContentStore::survey`] reports objects without their first one, and
//! [`ContentStore::mend`] removes them: they come from an administrator who removed entries of the blocklist, or the
//! first object.
//!
//! An entry of the blocklist is one instance, never an address: other volumes of the same server have other instances,
//! because each opening connects anew. A fenced owner cannot read either.
//!
//! # Unknown outcomes
//!
//! An OSD carries out one client's writes to one object in the order in which they were sent, and drops those of a
//! connection that broke (`osd_discard_disconnected_ops`). So a change that timed out precedes any later change of the
//! same object, or never happens. Reads may pass a write that waits for a replica; after the first time-out of an
//! opening, reads wait for it (`ReadOp::after_writes`). The steps of a change that were to follow are never sent. The
//! state of a blob in memory counts such a change as made where that is the safe side: the map names its objects, the
//! length includes its bytes, and the map is stored anew before anything relies on it.
//!
//! *Architecture invariant:* only this folder knows ferrite-rados.

mod blob;
mod byte_ranges;
mod chunk_map;
mod claim;
mod connection;
mod examination;
mod fence;
mod namespace;
mod object_name;
mod space;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use ferrite_checks::ranked::Mutex;
use ferrite_rados::{Client, Options, WriteOp};
use ferrite_vfs::{Durability, SyncMode};

pub use self::examination::{ClusterState, PoolState, examine};
pub use self::namespace::{Contents, RadosView};

use self::blob::{RadosBlob, SharedBlob};
use self::chunk_map::ChunkMap;
use self::connection::{Change, Connection};
use super::{Blob, BlobName, ContentStore, Error, Guard, Limits, Place, Result, Space, Survey, UniqueId, UniqueIds};

/// The locks of this folder. No other lock of the engine is taken under them.
mod lock_order {
    ferrite_checks::ranks! {
        "ferrite-nvme content in Ceph":
        /// The blobs that have handles.
        Blobs = 10;
        /// The known state of a blob.
        BlobState = 20;
        /// Ranges of a blob that are in use. A thread that waits for one holds no other lock of this list.
        ByteRanges = 30;
        /// The space of the cluster.
        KnownSpace = 40;
    }
}

/// Names of objects in a page of a listing.
const PAGE_NAMES: usize = 1024;

/// A volume's content in a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RadosOptions {
    /// The configuration file of Ceph, which also says where the key is.
    pub conf: PathBuf,
    /// The client, such as `client.ferrite`. It needs the capabilities `allow rwx` on the pool's OSDs, and `allow r,
    /// allow command "osd blocklist"` on the monitors.
    pub client: String,
    /// A file with the client's key; `None`: the configuration says where it is.
    pub keyring: Option<PathBuf>,
    /// The pool, which exists.
    pub pool: String,
    /// The namespace: the volume's name. Nothing else uses it.
    pub namespace: String,
    /// The length of the objects of new blobs: a power of two from 4 KiB to 32 MiB. Existing blobs keep theirs.
    pub object_bytes: u64,
    /// How long operations may take.
    pub timeouts: Options,
}

impl RadosOptions {
    /// For objects of 4 MiB, as `client.admin`, with the default timeouts of ferrite-rados.
    pub fn new(conf: impl Into<PathBuf>, pool: &str, namespace: &str) -> RadosOptions {
        RadosOptions {
            conf: conf.into(),
            client: "client.admin".into(),
            keyring: None,
            pool: pool.into(),
            namespace: namespace.into(),
            object_bytes: 4 << 20,
            timeouts: Options::default(),
        }
    }
}

/// One owner's client of a cluster.
pub struct RadosContent {
    connection: Arc<Connection>,
    chunk_bytes: u64,
    /// Blobs that have handles.
    blobs: Mutex<lock_order::Blobs, HashMap<UniqueId, Weak<SharedBlob>>>,
}

impl RadosContent {
    /// Connects, as an instance of its own. Blocks up to the timeouts for connecting and for monitors.
    ///
    /// # Errors
    /// [`Error::Failed`] if an option makes no sense, or the cluster, the pool or the key is not there.
    pub fn connect(options: &RadosOptions) -> Result<RadosContent> {
        if !ChunkMap::is_length(options.object_bytes) {
            let bytes = options.object_bytes;
            return Err(Error::Failed(format!(
                "objects of {bytes} bytes: choose a power of two from 4 KiB to 32 MiB"
            )));
        }
        if options.namespace.is_empty() {
            let text = "content in Ceph needs a namespace of its own; give the volume's name";
            return Err(Error::Failed(text.into()));
        }
        let failed = |error: ferrite_rados::Error| Error::Failed(error.to_string());
        let keyring = options.keyring.as_deref();
        let client = Client::connect_with_key(&options.conf, &options.client, keyring, options.timeouts);
        let client = client.map_err(failed)?;
        let pool = client.pool_in(&options.pool, &options.namespace).map_err(failed)?;
        Ok(RadosContent {
            connection: Arc::new(Connection::new(client, pool)),
            chunk_bytes: options.object_bytes,
            blobs: Mutex::default(),
        })
    }

    /// The blob that other handles share.
    fn known(&self, id: UniqueId) -> Option<Arc<SharedBlob>> {
        let blob = self.blobs.lock().get(&id).and_then(Weak::upgrade);
        blob.filter(|blob| !blob.is_deleted())
    }

    /// Has later handles share a blob, or takes the one that another thread has made meanwhile.
    fn share(&self, id: UniqueId, blob: SharedBlob) -> Arc<SharedBlob> {
        let blob = Arc::new(blob);
        let mut blobs = self.blobs.lock();
        let other = blobs.get(&id).and_then(Weak::upgrade);
        if let Some(other) = other.filter(|other| !other.is_deleted()) {
            return other;
        }
        // Entries of closed blobs go whenever the table would grow.
        if blobs.len() == blobs.capacity() {
            blobs.retain(|_, blob| blob.strong_count() > 0);
        }
        blobs.insert(id, Arc::downgrade(&blob));
        blob
    }

    fn shared(&self, id: UniqueId) -> Result<Arc<SharedBlob>> {
        match self.known(id) {
            Some(blob) => Ok(blob),
            None => Ok(self.share(id, SharedBlob::load(&self.connection, id)?)),
        }
    }

    /// Visits all chunks of this owner's shard, page by page.
    fn each_chunk(&self, mut visit: impl FnMut(UniqueId, u64)) -> Result<()> {
        let shard = self.connection.guard.get().map(|guard| guard.shard);
        let mut next = None;
        loop {
            let page = self.connection.pool.list(next.as_ref(), PAGE_NAMES);
            let page = page.map_err(|error| self.connection.failed(error))?;
            let names = page
                .objects
                .iter()
                .filter_map(|listed| object_name::parse(&listed.object));
            for (id, chunk) in names.filter(|(id, _)| shard.is_none_or(|shard| id.shard == shard)) {
                visit(id, chunk);
            }
            match page.next {
                Some(cursor) => next = Some(cursor),
                None => return Ok(()),
            }
        }
    }

    /// Blobs of which only further chunks exist, at most `count` chunks of them. Takes memory for all blobs' ids.
    fn orphans(&self, blobs: &HashSet<UniqueId>, count: usize) -> Result<Vec<(UniqueId, u64)>> {
        let mut orphans = Vec::new();
        self.each_chunk(|id, chunk| {
            if chunk > 0 && orphans.len() < count && !blobs.contains(&id) {
                orphans.push((id, chunk));
            }
        })?;
        let mut missing = Vec::new();
        for (id, chunk) in orphans {
            // It may have been made since the first listing.
            match SharedBlob::load(&self.connection, id) {
                Err(Error::NotFound) => missing.push((id, chunk)),
                Ok(_) | Err(Error::Damaged(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(missing)
    }

    fn ids(&self) -> Result<HashSet<UniqueId>> {
        let mut ids = HashSet::new();
        self.each_chunk(|id, chunk| {
            if chunk == 0 {
                ids.insert(id);
            }
        })?;
        Ok(ids)
    }
}

impl fmt::Debug for RadosContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RadosContent").field(&self.connection.pool).finish()
    }
}

fn id_of(place: Place) -> Result<UniqueId> {
    match (place.store, place.name) {
        (0, BlobName::Unique(id)) => Ok(id),
        _ => Err(Error::Damaged(format!("{place} cannot be in Ceph"))),
    }
}

fn check_store(store: u16) -> Result<()> {
    match store {
        0 => Ok(()),
        _ => Err(Error::Damaged(format!("there is no data store {store}"))),
    }
}

impl ContentStore for RadosContent {
    fn limits(&self) -> Limits {
        Limits {
            // Any longer write may lie in two objects.
            atomic_write_bytes: 1,
            block_bytes: self.chunk_bytes,
            durability: Durability::Power,
            is_durable_at_once: true,
            sync_mode: SyncMode::Through,
            overwrites_in_place: true,
            has_reservations: false,
            shares_content: false,
            has_unique_ids: true,
        }
    }

    fn take_over(&self, guard: Guard) -> Result<()> {
        let connection = &self.connection;
        if connection.guard.get().is_some() {
            return Err(Error::Failed(
                "this client has taken over before; connect another".into(),
            ));
        }
        fence::take_over(&connection.client, &connection.pool, guard)?;
        let taken = connection.guard.set(guard);
        taken.map_err(|_| Error::Failed("this client has taken over before; connect another".into()))
    }

    fn health(&self) -> Result<()> {
        self.connection.health()
    }

    fn stores(&self) -> u16 {
        1
    }

    fn space(&self, store: u16) -> Result<Space> {
        check_store(store)?;
        Ok(self.connection.space.get())
    }

    fn turns(&self) -> Vec<u16> {
        vec![0]
    }

    fn reserve(&self, store: u16, count: usize, ids: &UniqueIds) -> Result<Vec<Place>> {
        check_store(store)?;
        Ok(ids.places(store, count))
    }

    fn create(&self, place: Place) -> Result<Arc<dyn Blob>> {
        let id = id_of(place)?;
        let blob = SharedBlob::create(&self.connection, id, self.chunk_bytes)?;
        Ok(Arc::new(RadosBlob(self.share(id, blob))))
    }

    fn open(&self, place: Place) -> Result<Arc<dyn Blob>> {
        Ok(Arc::new(RadosBlob(self.shared(id_of(place)?)?)))
    }

    fn delete(&self, place: Place) -> Result<()> {
        let blob = self.shared(id_of(place)?)?;
        blob.delete()
    }

    fn survey(&self, store: u16) -> Result<Survey> {
        check_store(store)?;
        let ids = self.ids()?;
        let orphans = self.orphans(&ids, PAGE_NAMES)?;
        let place = |id| Place {
            store,
            name: BlobName::Unique(id),
        };
        let damage = match orphans.first() {
            None => Vec::new(),
            Some(&(id, chunk)) => {
                let (count, name) = (orphans.len(), object_name::of_chunk(id, chunk));
                vec![format!("{count} objects or more belong to no blob, such as {name}")]
            }
        };
        Ok(Survey {
            blobs: Some(ids.into_iter().map(place).collect()),
            damage,
            ..Survey::default()
        })
    }

    fn mend(&self, store: u16) -> Result<()> {
        check_store(store)?;
        let ids = self.ids()?;
        loop {
            let orphans = self.orphans(&ids, PAGE_NAMES)?;
            if orphans.is_empty() {
                return Ok(());
            }
            for (id, chunk) in orphans {
                let remove = Change {
                    chunk,
                    op: WriteOp::new().remove(),
                    may_be_missing: true,
                };
                let removed = self.connection.write_all(id, std::iter::once(remove));
                removed.map_err(|(_, error)| error)?;
            }
        }
    }

    fn close(&self) -> Result<()> {
        let connection = &self.connection;
        let Some(&guard) = connection.guard.get() else {
            return Ok(());
        };
        // With an operation under way, the next owner has to fence this one.
        if connection.is_settled()
            && connection.health().is_ok()
            && let Err(error) = fence::leave(&connection.client, &connection.pool, guard)
        {
            tracing::warn!(%error, "the next owner of the content in Ceph has to fence this one");
        }
        Ok(())
    }
}
