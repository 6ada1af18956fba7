//! Making, opening and closing a pool whose stores are there, and recovery after a crash.
//!
//! A start after a crash reads the metadata store's records: which inodes may be behind their blobs (the newer of the
//! two is right), which blobs nothing names (they are deleted), which inodes have no name (they are freed, by the
//! housekeeper if there are entries below, or kept for a server whose clients come back). It reads only what a record
//! points to, so its time grows with the work that was under way, not with the size of the pool; but it counts the
//! inodes.
//!
//! Each repair is a transaction of its own and can be done again: a crash during a start is followed by another start.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ferrite_blob::BlobStore;
use ferrite_checks::fault_injection::{Bug, is_seeded};
use ferrite_checks::ranked::{Mutex, RwLock};
use ferrite_meta::MetaStore;
use ferrite_vfs::locks::LockTable;
use ferrite_vfs::workers::Workers;
use ferrite_vfs::{FileKind, FsError, Ino, InodeFlags, Outcome, ROOT_INO, Result};

use crate::blobs::MadeBlobs;
use crate::check::Report;
use crate::content_store::{ContentStore, Guard, LocalContent, Place, UniqueIds};
use crate::core::{Clock, Core, EPOCH_SHIFT, system_clock};
use crate::format::key;
use crate::format::node::{Content, Marks, Node};
use crate::format::pool::{self, PoolRecord};
use crate::format::tail::Tail;
use crate::freeze_barrier::FreezeBarrier;
use crate::fs::NvmeFs;
use crate::housekeeper::Housekeeper;
use crate::owner::Owner;
use crate::quotas::Quotas;
use crate::reclaim;
use crate::repair::Repaired;
use crate::small::SMALL_BYTES_MAX;
use crate::table::Table;
use crate::unfinished::Unfinished;

/// Bits of the hash that places a name; cookies stay below 2^62.
pub(crate) const HASH_BITS: u32 = 62;
/// Epochs that counters of changes have space for.
const EPOCHS: u64 = 1 << (u64::BITS - EPOCH_SHIFT);
/// Threads for submitted calls that have to wait.
const WORKERS: usize = 4;
/// Threads for the end of transfers.
const FINISHERS: usize = 1;

/// How a pool is opened.
#[non_exhaustive]
pub struct Options {
    /// Refuse every change. Nothing is recovered, so a pool that was not closed cleanly is refused.
    pub read_only: bool,
    /// With `read_only`: open it although it needs recovery. Sizes of files that were open may be older ones.
    pub inspect: bool,
    /// With `inspect`: do not own a pool whose metadata is in a database. If a server owns it, what is read may change
    /// meanwhile, and its content is not opened.
    pub look: bool,
    /// Keep the files that were open without a name when the pool's last user ended, until
    /// [`ferrite_vfs::FileSystem::drop_orphans`].
    pub keep_orphans: bool,
    /// Where the time comes from.
    pub clock: Clock,
    /// Longest content of a file that gets no blob, as long as the metadata store has space. At least 2,048 bytes. For
    /// a pool with a description, the description sets it.
    pub small_bytes_max: u64,
    /// The owner that this opening is, if the metadata store decides who owns a volume. Its epoch is larger than those
    /// of all earlier openings. `None`: the pool has one owner at a time, and counts its openings.
    pub guard: Option<Guard>,
    /// The name and the address of this process as the owner of a volume in a database. `None`: a name of its own, and
    /// the opening waits a little for an owner that is about to leave.
    pub owner: Option<ferrite_meta::Owner>,
    /// Bits of the hash of names: fewer than 62 make names collide, for tests.
    pub hash_bits: u32,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            read_only: false,
            inspect: false,
            look: false,
            keep_orphans: false,
            clock: Box::new(system_clock),
            small_bytes_max: SMALL_BYTES_MAX,
            guard: None,
            owner: None,
            hash_bits: HASH_BITS,
        }
    }
}

/// Writes an empty file system into an empty metadata store: the record of the pool, and the root, which belongs to
/// root. Durable when it returns.
///
/// # Errors
/// Errors of the store; `Exists` if it holds a file system.
pub fn format(meta: &dyn MetaStore, uuid: [u8; 16], hash_key: [u8; 16], stores: u16) -> Result<()> {
    format_for(meta, uuid, hash_key, (stores, false), (0, 0))
}

/// The same, for content that [`assemble_with`] takes.
///
/// # Errors
/// As of [`format()`].
pub fn format_with(meta: &dyn MetaStore, uuid: [u8; 16], hash_key: [u8; 16], content: &dyn ContentStore) -> Result<()> {
    let content = (content.stores(), content.limits().has_unique_ids);
    format_for(meta, uuid, hash_key, content, (0, 0))
}

/// The same, with the number of data stores, whether their blobs have unique ids, and an owner of the root.
pub(crate) fn format_for(
    meta: &dyn MetaStore,
    uuid: [u8; 16],
    hash_key: [u8; 16],
    (stores, has_unique_ids): (u16, bool),
    (uid, gid): (u32, u32),
) -> Result<()> {
    if meta.get(key::POOL)?.is_some() {
        return Err(FsError::Exists);
    }
    let root = empty_root(uid, gid);
    let record = PoolRecord {
        uuid,
        hash_key,
        stores,
        epoch: 0,
        trusted_since: 0,
        next_ino: ROOT_INO + 1,
        inodes: 1,
        small_files: 0,
        small_bytes: 0,
        is_clean: true,
        has_unique_ids,
        removed: Vec::new(),
    };
    let mut txn = meta.begin();
    txn.put(&key::node(ROOT_INO), &root.encode())?;
    txn.put(key::POOL, &record.encode())?;
    Ok(txn.commit()?)
}

/// A root directory with nothing in it.
pub(crate) fn empty_root(uid: u32, gid: u32) -> Node {
    let now = system_clock();
    Node {
        kind: FileKind::Directory,
        mode: 0o755,
        nlink: 2,
        uid,
        gid,
        rdev: 0,
        size: 0,
        allocated_bytes: 0,
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
        change: 1,
        parent: ROOT_INO,
        has_xattrs: false,
        is_nameless: false,
        marks: Marks::default(),
        quota: 0,
        flags: InodeFlags::NONE,
        content: Content::Inline(Vec::new()),
    }
}

/// Opens the file system in these stores; a data store that cannot be used is `None`, and its files fail. Stores beyond
/// those that it had are new, and it uses them from now on.
///
/// # Errors
/// `NotFound` if there is no file system; `Damaged` if its record is, or is of another version; `ReadOnly` if it needs
/// recovery and must not be changed; errors of the stores.
pub fn assemble(meta: Box<dyn MetaStore>, stores: Vec<Option<BlobStore>>, options: Options) -> Result<NvmeFs> {
    assemble_with(meta, Box::new(LocalContent::new(stores)), options)
}

/// Opens the file system in a metadata store and any content store.
///
/// # Errors
/// As of [`assemble`]; `Damaged` if the content is of another kind, or `options` have an epoch that an earlier opening
/// had; `Io` if another server has taken over.
pub fn assemble_with(meta: Box<dyn MetaStore>, content: Box<dyn ContentStore>, options: Options) -> Result<NvmeFs> {
    let mut record = read_record(&*meta)?;
    let (stores, content_limits) = (content.stores(), content.limits());
    check_content(
        &record,
        stores,
        (!options.look).then_some(content_limits.has_unique_ids),
    )?;
    if options.read_only && !options.inspect && !record.is_clean {
        return Err(FsError::ReadOnly);
    }
    // Stores that were added since the last opening are counted with the record that this one writes.
    record.stores = stores;
    let guard = guard_of(&record, options.guard)?;
    let epoch = guard.epoch;
    let was_clean = record.is_clean;
    let opened = PoolRecord {
        epoch,
        trusted_since: if was_clean { record.trusted_since } else { epoch },
        is_clean: false,
        ..record.clone()
    };
    let (workers, finishers) = (workers(WORKERS)?, workers(FINISHERS)?);
    let core = Arc::new(Core {
        meta,
        content,
        content_limits,
        blob_ids: UniqueIds::new(guard),
        made_blobs: MadeBlobs::new(stores),
        table: Table::new(),
        locks: LockTable::default(),
        renames: RwLock::new(()),
        freeze_barrier: FreezeBarrier::default(),
        housekeeper: Housekeeper::default(),
        workers,
        finishers,
        unfinished: Unfinished::new(),
        quotas: Quotas::default(),
        walks_snapshots: AtomicBool::new(false),
        next_ino: Mutex::new(record.next_ino),
        inodes: AtomicU64::new(record.inodes),
        small_files: AtomicU64::new(record.small_files),
        small_bytes: AtomicU64::new(record.small_bytes),
        small_bytes_max: options.small_bytes_max,
        changes: AtomicU64::new(epoch << EPOCH_SHIFT),
        names_lost: AtomicU64::new(0),
        change_floor: opened.trusted_since << EPOCH_SHIFT,
        hash_key: record.hash_key,
        hash_bits: options.hash_bits,
        clock: options.clock,
        now: AtomicU64::new(0),
        behind: Mutex::default(),
        is_read_only: options.read_only,
        looks: options.look,
        is_closed: AtomicBool::new(false),
        failed: Mutex::new(None),
        pool: Mutex::new(record),
    });
    if !options.read_only {
        core.begin(opened, guard, was_clean)?;
        if !options.keep_orphans {
            core.free_orphans()?;
        }
        reclaim::start(&core).map_err(|error| FsError::Io(format!("no thread for housekeeping: {error}")))?;
    } else if !core.is_owned_elsewhere() {
        core.load_quotas(core.keeps_counts(was_clean)?)?;
    }
    core.count_for_look(was_clean)?;
    Ok(NvmeFs(Owner::of(core)))
}

fn workers(count: usize) -> Result<Workers> {
    let no_threads = |error| FsError::Io(format!("no threads for transfers: {error}"));
    Workers::start(count).map_err(no_threads)
}

/// Whether this is the content of the pool. A look at a pool that a server owns has none of its content, of whichever
/// kind: then `has_unique_ids` is `None`.
fn check_content(record: &PoolRecord, stores: u16, has_unique_ids: Option<bool>) -> Result<()> {
    if record.stores > stores {
        let text = format!("the pool has {} data stores, {stores} were given", record.stores);
        return Err(FsError::damaged(None, text));
    }
    if let Some(has_unique_ids) = has_unique_ids
        && record.has_unique_ids != has_unique_ids
    {
        let text = match has_unique_ids {
            true => "the pool has its content on data devices, and was given another store for it",
            false => "the pool does not have its content on data devices; name the store that has it",
        };
        return Err(FsError::damaged(None, text));
    }
    Ok(())
}

/// The owner that an opening is.
fn guard_of(record: &PoolRecord, given: Option<Guard>) -> Result<Guard> {
    let counted = Guard {
        shard: 0,
        epoch: record.epoch + 1,
    };
    let guard = given.unwrap_or(counted);
    match (counted.epoch..EPOCHS).contains(&guard.epoch) {
        true => Ok(guard),
        false => {
            let text = format!(
                "the opening has epoch {}, and the pool had {} before",
                guard.epoch, record.epoch
            );
            Err(FsError::damaged(None, text))
        }
    }
}

pub(crate) fn read_record(meta: &dyn MetaStore) -> Result<PoolRecord> {
    let value = meta.get(key::POOL)?.ok_or(FsError::NotFound)?;
    PoolRecord::decode(&value).ok_or_else(|| match PoolRecord::version_of(&value) {
        Some(version) if !pool::VERSIONS.contains(&version) => {
            let text = format!(
                "the pool has format version {version}, this program knows {}",
                pool::VERSIONS.end()
            );
            FsError::damaged(None, text)
        }
        _ => FsError::damaged(None, "the record of the pool cannot be read"),
    })
}

/// All keys of a kind.
fn keys(meta: &dyn MetaStore, kind: u8) -> Result<Vec<Vec<u8>>> {
    let (from, to) = key::all_of(kind);
    let mut keys = Vec::new();
    meta.scan(&from, &to, &mut |key, _| {
        keys.push(key.to_vec());
        ControlFlow::Continue(())
    })?;
    Ok(keys)
}

fn number(key: &[u8]) -> Result<Ino> {
    key::ino_of(key).ok_or_else(|| FsError::damaged(None, "a record whose key cannot be read"))
}

impl Core {
    /// Begins an opening for changes, which has this record: recovers the pool, and counts after a crash.
    fn begin(self: &Arc<Core>, opened: PoolRecord, guard: Guard, was_clean: bool) -> Result<()> {
        // A crash after this needs recovery, and no later opening has this epoch, which content may carry from now on.
        self.put_pool(&opened)?;
        *self.pool.lock() = opened;
        let keeps_counts = self.keeps_counts(was_clean)?;
        self.fence_and_recover(guard)?;
        if !was_clean {
            self.count_inodes()?;
        }
        self.drop_ended_quotas()?;
        self.load_quotas(keeps_counts)
    }

    /// Changes that earlier owners have under way must not come after the recovery has looked.
    fn fence_and_recover(self: &Arc<Core>, guard: Guard) -> Result<()> {
        if is_seeded(Bug::RecoveryBeforeFence) {
            self.recover()?;
            return Ok(self.content.take_over(guard)?);
        }
        self.content.take_over(guard)?;
        self.recover()
    }

    /// Does the work that records list as pending: after a crash, or after a close with a file still open.
    fn recover(self: &Arc<Core>) -> Result<()> {
        for key in keys(&*self.meta, b'D')? {
            let ino = number(&key)?;
            if let Err(error) = self.catch_up(ino) {
                // Its device may be missing. Operations on the file fail, and the next start tries again.
                self.behind.lock().insert(ino);
                tracing::warn!(ino, %error, "a file could not be brought up to date with its blob");
            }
        }
        let mut places: Vec<Place> = Vec::new();
        for key in keys(&*self.meta, b'X')? {
            places.push(key::place_of(&key).ok_or_else(|| FsError::damaged(None, "a record of a blob"))?);
        }
        if !places.is_empty() {
            self.delete_blobs(&places)?;
        }
        Ok(())
    }

    /// Lets a database count, which does so where the pairs are; false if they lie elsewhere. For an opening the
    /// counts are exact: nothing changes the pool before it ends.
    fn count_in_database(&self) -> Result<bool> {
        let tally = |kind| {
            let (from, to) = key::all_of(kind);
            self.meta.tally(&from, &to)
        };
        let (Some((inodes, _)), Some((files, bytes))) = (tally(b'N')?, tally(b'S')?) else {
            return Ok(false);
        };
        self.inodes.store(inodes, Ordering::Relaxed);
        self.small_files.store(files, Ordering::Relaxed);
        self.small_bytes.store(bytes, Ordering::Relaxed);
        Ok(true)
    }

    /// Counts for a look at a pool that is in use: the record is as old as the last close.
    fn count_for_look(&self, was_clean: bool) -> Result<()> {
        match self.looks && !was_clean {
            true => self.count_in_database().map(drop),
            false => Ok(()),
        }
    }

    /// Counts inodes, and content beside them.
    pub(crate) fn count_inodes(&self) -> Result<()> {
        if self.count_in_database()? {
            return Ok(());
        }
        let mut inodes = 0;
        self.small_files.store(0, Ordering::Relaxed);
        self.small_bytes.store(0, Ordering::Relaxed);
        self.each(b'N', |_, value| {
            inodes += 1;
            self.count_small(None, Node::decode(value).map(|node| node.content).as_ref());
        })?;
        self.inodes.store(inodes, Ordering::Relaxed);
        Ok(())
    }

    /// Brings a node and its blob to the same state: that of the later change.
    fn catch_up(self: &Arc<Core>, ino: Ino) -> Result<()> {
        let mut step = self.own_step()?;
        step.txn.delete(&key::ahead(ino))?;
        if let Some(value) = self.meta.get(&key::node(ino))? {
            let damaged = || FsError::damaged(ino, "its node cannot be read");
            let mut node = Node::decode(&value).ok_or_else(damaged)?;
            // Nothing is ahead in a blob that is shared.
            if let Content::Blob(place) = node.content
                && !node.marks.is_shared
            {
                let blob = self.content.open(place)?;
                if blob.is_staged_elsewhere() {
                    // The record stays for the opening that has its changes.
                    return Err(FsError::Io("it has changes that are staged elsewhere".into()));
                }
                match Tail::decode(&blob.tail()?) {
                    Some(tail) if tail.ino == ino && tail.change > node.change => tail.update(&mut node),
                    tail => {
                        let of_node = Tail::of(ino, &node).encode();
                        let was_longer = tail.is_none_or(|tail| tail.ino != ino || tail.size > node.size);
                        match was_longer || blob.valid_len() > node.size {
                            // A crash came between a shorter size and the truncation. The part behind the end must read
                            // as zeros.
                            true => blob.truncate(node.size, Some(&of_node))?,
                            // Space behind the end stays: a program reserved it.
                            false => blob.set_tail(&of_node)?,
                        }
                    }
                }
                // The record goes with this step.
                blob.sync()?;
                node.allocated_bytes = blob.allocated_bytes();
                step.put_node(ino, &node)?;
            }
        }
        step.commit(|| Outcome::Done)
    }

    /// Frees inodes without names that no caller has open.
    pub(crate) fn free_orphans(self: &Arc<Core>) -> Result<()> {
        for key in keys(&*self.meta, b'O')? {
            let ino = number(&key)?;
            let value = self.meta.get(&key::node(ino))?;
            if value
                .and_then(|value| Node::decode(&value))
                .is_some_and(|node| node.marks.is_orphan_tree)
            {
                // A tree may be large, and no caller waits for it.
                self.housekeeper.free_later(ino);
                continue;
            }
            // Pinning and releasing it frees it, if it has no other pin.
            match self.pin(ino) {
                Ok(_) => {}
                Err(FsError::Stale) => {
                    let mut step = self.own_step()?;
                    step.txn.delete(&key)?;
                    step.commit(|| Outcome::Done)?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    pub(crate) fn uuid_head(&self) -> [u8; 8] {
        let mut head = [0; 8];
        head.copy_from_slice(&self.pool.lock().uuid[..8]);
        head
    }

    /// Stores what memory knows, deletes what was made in advance, and marks the pool as closed. Every later call
    /// fails. Durable when it returns; has no effect the second time.
    pub(crate) fn close(self: &Arc<Core>) -> Result<()> {
        if self.is_closed() {
            return Ok(());
        }
        if !self.is_read_only {
            // The holder of changes back has given up.
            self.freeze_barrier.open();
            self.housekeeper.end();
            self.freeze_barrier.shut();
            let stored = self.store_all();
            self.is_closed.store(stored.is_ok(), Ordering::Release);
            // A thread that waits to enter finds the engine closed.
            self.freeze_barrier.open();
            stored?;
        }
        self.is_closed.store(true, Ordering::Release);
        let closed = self.content.close();
        self.meta.sync()?;
        self.meta.give_up();
        Ok(closed?)
    }

    /// Stores what memory knows, and marks the pool as closed. No change runs meanwhile.
    fn store_all(self: &Arc<Core>) -> Result<()> {
        self.reclaim()?;
        let pinned = self.all_pinned();
        self.store_nodes(&pinned)?;
        let busy: HashSet<Ino> = pinned.iter().map(|pinned| pinned.ino).collect();
        drop(pinned);
        tracing::debug!(inodes = busy.len(), "inodes stored at the end");
        self.delete_blobs(&self.made_blobs.take_all())?;
        self.content.sync()?;
        self.keep_quotas()?;
        let next_ino = self.next_ino.lock();
        let mut pool = self.pool.lock();
        let record = PoolRecord {
            next_ino: *next_ino,
            inodes: self.inodes.load(Ordering::Relaxed),
            small_files: self.small_files.load(Ordering::Relaxed),
            small_bytes: self.small_bytes.load(Ordering::Relaxed),
            is_clean: true,
            ..pool.clone()
        };
        self.put_pool(&record)?;
        *pool = record;
        Ok(())
    }
}

impl NvmeFs {
    /// Closes it cleanly. Orphans that are still open are freed at the next start.
    ///
    /// # Errors
    /// Errors of the stores.
    pub fn close(&self) -> Result<()> {
        self.0.close()
    }

    /// Checks every structure against every other. Changes made meanwhile may be reported, so the engine should be
    /// idle. Reads all metadata; changes nothing except for stores that are due anyway.
    ///
    /// # Errors
    /// Errors of the stores.
    pub fn check(&self) -> Result<Report> {
        self.0.reclaim_for_check()?;
        self.0.check()
    }

    /// The same, and reads all content that has checksums, at most so many bytes a second. `show` gets the bytes read
    /// so far and the bytes in all.
    ///
    /// # Errors
    /// Errors of the stores.
    pub fn check_with_data(&self, bytes_a_s: Option<u64>, show: &mut dyn FnMut(u64, u64)) -> Result<Report> {
        self.0.reclaim_for_check()?;
        self.0.check_with_data(bytes_a_s, show)
    }

    /// Checks everything and mends what can be mended; the engine must be idle. Durable when it returns; a crash in
    /// between leaves some of the repairs done.
    ///
    /// # Errors
    /// Errors of the stores.
    pub fn repair(&self) -> Result<Repaired> {
        self.0.reclaim_for_check()?;
        self.0.repair(false, &mut |_, _| {})
    }

    /// The same, and also gives up files whose content is damaged: they are moved to `lost+found` as they are.
    ///
    /// # Errors
    /// Errors of the stores.
    pub fn repair_with_data(&self, show: &mut dyn FnMut(u64, u64)) -> Result<Repaired> {
        self.0.reclaim_for_check()?;
        self.0.repair(true, show)
    }
}
