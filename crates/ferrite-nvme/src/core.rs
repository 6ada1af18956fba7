//! State that all operations share: the stores, numbers, the clock, steps that happen once.
//!
//! Invariant: everything that a step changes in the metadata store, and its token's outcome, is one transaction. Memory
//! follows after it has been committed, under the same locks; an operation that fails leaves both as they were.

use std::collections::HashSet;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ferrite_checks::ranked::{Mutex, RwLock};
use ferrite_meta::{MetaStore, Transaction};
use ferrite_vfs::locks::LockTable;
use ferrite_vfs::workers::Workers;
use ferrite_vfs::{
    BadArgument, Ctx, DedupToken, FsError, Ino, InodeFlags, Outcome, Result, Timestamp, Unsupported, dedup,
};

use crate::blobs::MadeBlobs;
use crate::content_store::{ContentStore, Limits, UniqueIds};
use crate::format::key;
use crate::format::node::Node;
use crate::format::pool::PoolRecord;
use crate::freeze_barrier::FreezeBarrier;
use crate::housekeeper::Housekeeper;
use crate::lock_order;
use crate::quotas::{Quotas, Reserved};
use crate::table::Table;
use crate::unfinished::Unfinished;

/// Slots for tokens.
pub(crate) const DEDUP_SLOTS: u32 = 1 << 16;
/// Inode numbers are taken from the store in lots, so that a new file costs no write for its number.
const NUMBERS_A_LOT: u64 = 4096;
/// Times are stored only if they move by more (RUFS, section 2.4).
pub(crate) const TIME_STEP: Duration = Duration::from_millis(5);
/// The counter of changes: openings in the upper bits, changes since in the lower.
pub(crate) const EPOCH_SHIFT: u32 = 40;

/// Where the time comes from.
pub(crate) type Clock = Box<dyn Fn() -> Timestamp + Send + Sync>;

/// The engine.
pub(crate) struct Core {
    pub(crate) meta: Box<dyn MetaStore>,
    pub(crate) content: Box<dyn ContentStore>,
    pub(crate) content_limits: Limits,
    /// The ids of this opening.
    pub(crate) blob_ids: UniqueIds,
    pub(crate) made_blobs: MadeBlobs,
    pub(crate) table: Table,
    pub(crate) locks: LockTable,
    /// Moves of directories alone, moves of files between directories together: no directory's parents change while
    /// another thread determines the order of two directories.
    pub(crate) renames: RwLock<lock_order::Renames, ()>,
    pub(crate) freeze_barrier: FreezeBarrier,
    pub(crate) unfinished: Unfinished,
    pub(crate) quotas: Quotas,
    /// Whether a walk of snapshots is in progress.
    pub(crate) walks_snapshots: AtomicBool,
    pub(crate) housekeeper: Housekeeper,
    /// For submitted calls that have to wait.
    pub(crate) workers: Workers,
    /// For the end of transfers that are inside the barrier: its thread never waits to enter that.
    pub(crate) finishers: Workers,
    pub(crate) pool: Mutex<lock_order::PoolRecord, PoolRecord>,
    /// The first number that has not been given to an inode.
    pub(crate) next_ino: Mutex<lock_order::NextInode, Ino>,
    pub(crate) inodes: AtomicU64,
    /// Files with content beside their nodes, and how many bytes it has.
    pub(crate) small_files: AtomicU64,
    pub(crate) small_bytes: AtomicU64,
    /// Longest content without a blob.
    pub(crate) small_bytes_max: u64,
    pub(crate) changes: AtomicU64,
    /// Names that were removed or moved. Grows between the step that did it and the end of the lock on the inode.
    pub(crate) names_lost: AtomicU64,
    /// Smaller counters of changes are reported as this value: a crash may have lost the changes that they counted.
    pub(crate) change_floor: u64,
    pub(crate) hash_key: [u8; 16],
    /// Bits of the hash of a name.
    pub(crate) hash_bits: u32,
    pub(crate) clock: Clock,
    pub(crate) now: AtomicU64,
    /// Inodes whose blobs may know more, but could not be read.
    pub(crate) behind: Mutex<lock_order::Behind, HashSet<Ino>>,
    pub(crate) is_read_only: bool,
    /// It looks at a pool that another server may own.
    pub(crate) looks: bool,
    pub(crate) is_closed: AtomicBool,
    /// Why changes have stopped.
    pub(crate) failed: Mutex<lock_order::Failure, Option<String>>,
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core").finish_non_exhaustive()
    }
}

/// A change under way: a transaction, and the token it carries.
pub(crate) struct Step<'c> {
    core: &'c Core,
    pub(crate) txn: Box<dyn Transaction + 'c>,
    token: Option<DedupToken>,
    /// It must not change what stays as it is in snapshots.
    guards_snapshots: bool,
    changes_snapshot: bool,
    /// The inode that only gets more: content at its end, or entries.
    adds_to: Option<Ino>,
    /// It may change inodes whatever their flags are.
    ignores_flags: bool,
    changes_flagged: bool,
    /// Whether quotas limit it.
    pub(crate) is_limited: bool,
    pub(crate) reserved: Reserved<'c>,
}

impl<'c> Step<'c> {
    pub(crate) fn core(&self) -> &'c Core {
        self.core
    }

    /// Whether its outcome has to be kept.
    pub(crate) fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// Puts a node. Every change of a file or a directory puts a node or guards it, so no caller changes a snapshot.
    pub(crate) fn put_node(&mut self, ino: Ino, node: &Node) -> Result<()> {
        self.guard(ino, node);
        Ok(self.txn.put(&key::node(ino), &node.encode())?)
    }

    /// The step changes an inode that has this node now. If that stays as it is, the commit is refused.
    #[inline]
    pub(crate) fn guard(&mut self, ino: Ino, node: &Node) {
        self.changes_snapshot |= node.is_kept_as_is();
        let is_open = node.flags == InodeFlags::NONE || self.ignores_flags;
        let only_adds = || self.adds_to == Some(ino) && !node.flags.is_immutable;
        self.changes_flagged |= !is_open && node.flags.check_change().is_err() && !only_adds();
    }

    /// The inode that the step changes only gets more by it, which a flag may let it.
    pub(crate) fn adds_to(&mut self, ino: Ino) {
        self.adds_to = Some(ino);
    }

    /// The step changes what flags do not protect.
    pub(crate) fn ignore_flags(&mut self) {
        self.ignores_flags = true;
    }

    /// It makes or removes a snapshot, or changes state that a service keeps about one.
    pub(crate) fn may_change_snapshots(&mut self) {
        self.guards_snapshots = false;
    }

    fn check_guard(&self) -> Result<()> {
        match () {
            () if self.guards_snapshots && self.changes_snapshot => Err(FsError::ReadOnly),
            () if self.changes_flagged => Err(FsError::NotPermitted),
            () => Ok(()),
        }
    }

    /// Refuses now what [`Self::commit`] would refuse for lack of space; the commit then no longer refuses it. For
    /// changes that have effects before the commit.
    pub(crate) fn admit(&mut self) -> Result<()> {
        self.check_guard()?;
        Ok(self.txn.admit()?)
    }

    /// Makes it durable, with its outcome. `ReadOnly` if it would change a snapshot, `NotPermitted` if flags forbid it.
    pub(crate) fn commit(mut self, outcome: impl FnOnce() -> Outcome) -> Result<()> {
        self.check_guard()?;
        if let Some(token) = self.token {
            self.core.put_outcome(&mut *self.txn, token, &outcome())?;
        }
        self.txn.commit().map_err(|error| self.core.commit_failed(error))?;
        if !self.reserved.0.is_empty() {
            // A check that counts meanwhile knows.
            self.core.next_change();
            self.reserved.keep();
        }
        Ok(())
    }
}

impl Core {
    /// Calls `visit` with each key of a kind and its value.
    pub(crate) fn each(&self, kind: u8, mut visit: impl FnMut(&[u8], &[u8])) -> Result<()> {
        let (from, to) = key::all_of(kind);
        Ok(self.meta.scan(&from, &to, &mut |key, value| {
            visit(key, value);
            ControlFlow::Continue(())
        })?)
    }

    /// Whether there is a key of a kind.
    pub(crate) fn has_any(&self, kind: u8) -> Result<bool> {
        let (from, to) = key::all_of(kind);
        let mut has = false;
        self.meta.scan(&from, &to, &mut |_, _| {
            has = true;
            ControlFlow::Break(())
        })?;
        Ok(has)
    }

    pub(crate) fn now(&self) -> Timestamp {
        let now = (self.clock)().0;
        // Time never goes back.
        let before = self.now.fetch_max(now.max(0) as u64, Ordering::AcqRel);
        Timestamp(now.max(before as i64))
    }

    /// The next value of the counter of changes.
    pub(crate) fn next_change(&self) -> u64 {
        self.changes.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Whether this is a look at a pool in a database, whose owner alone knows its counts.
    pub(crate) fn is_owned_elsewhere(&self) -> bool {
        self.looks && self.meta.statistics().shard.is_some()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Whether the engine accepts calls.
    pub(crate) fn check_open(&self) -> Result<()> {
        match self.is_closed() {
            true => Err(FsError::Io("the pool is closed".into())),
            false => Ok(()),
        }
    }

    pub(crate) fn check_writable(&self) -> Result<()> {
        self.check_open()?;
        if let Some(why) = &*self.failed.lock() {
            return Err(FsError::Io(format!("changes have stopped after a failure: {why}")));
        }
        match self.is_read_only {
            true => Err(FsError::ReadOnly),
            false => Ok(()),
        }
    }

    /// Stops changes if another owner has taken over the content. Called when something has failed.
    pub(crate) fn check_owned(&self) {
        if let Err(error) = self.content.health() {
            self.failed.lock().get_or_insert_with(|| error.to_string());
        }
    }

    /// Only the next start knows whether the change was made.
    fn commit_failed(&self, error: ferrite_meta::Error) -> FsError {
        if error.is_fatal() {
            self.failed.lock().get_or_insert_with(|| error.to_string());
        }
        error.into()
    }

    /// A change without a token, made by the engine.
    pub(crate) fn own_step(&self) -> Result<Step<'_>> {
        self.check_writable()?;
        Ok(Step {
            core: self,
            txn: self.meta.begin(),
            token: None,
            guards_snapshots: false,
            changes_snapshot: false,
            adds_to: None,
            ignores_flags: true,
            changes_flagged: false,
            is_limited: false,
            reserved: Reserved::default(),
        })
    }

    /// A change that a caller asked for. A change that has to begin again drops its step, and with it all its locks.
    pub(crate) fn step_of(&self, ctx: &Ctx) -> Step<'_> {
        Step {
            core: self,
            txn: self.meta.begin(),
            token: ctx.token,
            guards_snapshots: true,
            changes_snapshot: false,
            adds_to: None,
            ignores_flags: false,
            changes_flagged: false,
            is_limited: true,
            reserved: Reserved::default(),
        }
    }

    /// Makes a change, unless one with the same token was made: then `again` makes the answer from that change's
    /// outcome.
    pub(crate) fn change<'c, T>(
        &'c self,
        ctx: &Ctx,
        again: impl FnOnce(Outcome) -> Result<T>,
        change: impl FnOnce(Step<'c>) -> Result<T>,
    ) -> Result<T> {
        let _inside = self.freeze_barrier.enter();
        self.check_writable()?;
        if let Some(outcome) = self.outcome_of(ctx)? {
            return again(outcome);
        }
        let answer = change(self.step_of(ctx));
        self.keep_failure(ctx, &answer)?;
        answer
    }

    /// The same for a change that shuts the barrier itself, for as long as it keeps all others out. No lock is held.
    pub(crate) fn change_alone<'c, T>(
        &'c self,
        ctx: &Ctx,
        again: impl FnOnce(Outcome) -> Result<T>,
        change: impl FnOnce(Step<'c>) -> Result<T>,
    ) -> Result<T> {
        self.check_writable()?;
        if let Some(outcome) = self.outcome_of(ctx)? {
            return again(outcome);
        }
        let answer = change(self.step_of(ctx));
        let _inside = self.freeze_barrier.enter();
        self.keep_failure(ctx, &answer)?;
        answer
    }

    /// The outcome of an earlier change with this token, if it was made.
    fn outcome_of(&self, ctx: &Ctx) -> Result<Option<Outcome>> {
        let Some(token) = ctx.token else { return Ok(None) };
        match self.told(token)? {
            Some(Outcome::Failed(error)) => Err(error),
            other => Ok(other),
        }
    }

    /// Keeps the failure of a change with a token.
    fn keep_failure<T>(&self, ctx: &Ctx, answer: &Result<T>) -> Result<()> {
        let Err(error) = answer else { return Ok(()) };
        self.check_owned();
        if let Some(token) = ctx.token
            && dedup::keeps(error)
        {
            let mut txn = self.meta.begin();
            self.put_outcome(&mut *txn, token, &Outcome::Failed(error.clone()))?;
            txn.commit().map_err(|error| self.commit_failed(error))?;
        }
        Ok(())
    }

    /// The outcome of an earlier change with this token, if any.
    fn told(&self, token: DedupToken) -> Result<Option<Outcome>> {
        if token.seq == 0 {
            return Err(FsError::Invalid(BadArgument::NoToken));
        }
        if token.slot >= DEDUP_SLOTS {
            return Err(FsError::NotSupported(Unsupported::DedupSlot));
        }
        let Some(value) = self.meta.get(&key::slot(token.slot))? else {
            return Ok(None);
        };
        let damaged = || FsError::damaged(None, format!("the outcome of slot {} is damaged", token.slot));
        let (seq, outcome) = decode_outcome(&value).ok_or_else(damaged)?;
        match seq {
            seq if seq > token.seq => Err(FsError::Superseded),
            seq if seq == token.seq => Ok(Some(outcome)),
            _ => Ok(None),
        }
    }

    fn put_outcome(&self, txn: &mut dyn Transaction, token: DedupToken, outcome: &Outcome) -> Result<()> {
        if let Some((kind, words)) = outcome.to_words() {
            let mut value = token.seq.to_le_bytes().to_vec();
            value.push(kind);
            value.extend(words.iter().flat_map(|word| word.to_le_bytes()));
            txn.put(&key::slot(token.slot), &value)?;
        }
        Ok(())
    }

    /// A number for a new inode.
    pub(crate) fn next_ino(&self) -> Result<Ino> {
        let mut next = self.next_ino.lock();
        let mut pool = self.pool.lock();
        if *next == pool.next_ino {
            let record = PoolRecord {
                next_ino: pool.next_ino + NUMBERS_A_LOT,
                ..pool.clone()
            };
            self.put_pool(&record)?;
            // A store in a database need not be asked for what inodes that never were have.
            for (from, to) in key::all_about(pool.next_ino..record.next_ino) {
                self.meta.know_empty(&from, &to);
            }
            *pool = record;
        }
        *next += 1;
        Ok(*next - 1)
    }

    /// Stores the record of the pool.
    pub(crate) fn put_pool(&self, record: &PoolRecord) -> Result<()> {
        let mut txn = self.meta.begin();
        // A step that deletes has space reserved in a full store, which must be opened and closed, too.
        txn.delete(key::POOL)?;
        txn.put(key::POOL, &record.encode())?;
        txn.commit().map_err(|error| self.commit_failed(error))
    }
}

fn decode_outcome(value: &[u8]) -> Option<(u64, Outcome)> {
    let (seq, rest) = value.split_first_chunk()?;
    let (&kind, words) = rest.split_first()?;
    let words: Vec<u64> = words
        .chunks(8)
        .map(|word| word.try_into().ok().map(u64::from_le_bytes))
        .collect::<Option<_>>()?;
    Some((u64::from_le_bytes(*seq), Outcome::from_words(kind, &words)?))
}

/// The engine's clock, unless a test has another.
pub(crate) fn system_clock() -> Timestamp {
    let since = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default();
    Timestamp::new(since.as_secs() as i64, since.subsec_nanos())
}
