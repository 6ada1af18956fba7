//! The traits that every store of metadata implements.
//!
//! # What holds
//!
//! A store maps keys to values, both bytes, and keys are ordered byte by byte. A transaction sees its own changes and
//! everything that others have committed; no other transaction sees its changes before it commits, and then all of them
//! at once. So a plain `get` in a transaction may give another answer the next time.
//!
//! A key that must not change until the commit is locked first, by [`Transaction::get_for_update`]; a change locks its
//! key itself. A scan sees one moment, the one at which it began, plus the transaction's own changes. A store whose
//! pairs lie in a database shows a long scan in parts: the first has 256 pairs, later ones have more, and each is of
//! one moment that is not before that of the part before it.
//!
//! Locks are of single keys, whether they exist or not. Nothing locks a range: a caller that relies on the absence of a
//! range of keys (as `rmdir` does, on an empty directory) locks exclusively a key that all who add to the range lock
//! shared.
//!
//! # Locks and deadlock
//!
//! A transaction keeps each lock until it ends (or rolls back to a savepoint from before it). So transactions deadlock
//! if, and only if, they form a cycle in which each waits for a key that the next one has locked. None can close if all
//! callers keep three rules:
//!
//! 1. *One order.* All keys that transactions lock are in one total order, the same for all callers, and a transaction
//!    locks only keys that come behind all those it has. Suppose a cycle: each member waits for a key that comes behind
//!    all it has, one of which its predecessor waits for. So along the cycle the awaited keys grow with each step, and
//!    after one round a key is greater than itself.
//! 2. *No upgrade.* A key that may be changed is locked exclusively at once. (Two transactions that share a key, and
//!    both want it exclusively, wait for each other, though it is one key.) Locking again a key that is locked already
//!    is free, and is not a step in the order.
//! 3. *No other wait inside.* A transaction that holds locks of a store waits for nothing that a transaction waiting
//!    for locks of this store may hold: the caller's mutexes are taken before all locks, or are leaves that are
//!    released before the next call. A store keeps the rule internally: it holds none of its own mutexes while it waits
//!    for a lock of a key.
//!
//! The order need not be the order of the keys' bytes. The engine has parents before children, and unrelated nodes by
//! their numbers, with one key before all of these that every move of a directory takes; where a tree changes
//! meanwhile, so that the order changes, that first key keeps the others out.
//!
//! Mistakes break rules, so stores detect cycles all the same, and waits are bounded: [`Error::Deadlock`] and
//! [`Error::Busy`] end a transaction that would wait for ever. Neither is fatal; a test that meets one has found a
//! mistake in the caller.
//!
//! [`Error::Deadlock`]: crate::Error::Deadlock
//! [`Error::Busy`]: crate::Error::Busy

use std::ops::ControlFlow;
use std::time::Duration;

use crate::error::Result;
use crate::owned_status::OwnedStatus;
use crate::remote::ShardStatus;

/// How a key is locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lock {
    /// Others may lock it shared at the same time; none may change it.
    Shared,
    /// No other may lock or change it.
    Exclusive,
}

/// Receives the pairs of a scan, in order, until it breaks.
pub type Visit<'v> = &'v mut (dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'v);

/// An ordered map with transactions. Any number of threads may use it at once.
pub trait MetaStore: Send + Sync {
    /// Begins a transaction. Does not block.
    fn begin(&self) -> Box<dyn Transaction + '_>;

    /// The value of a key, as last committed. Waits for no lock.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>>;

    /// Passes `visit` the pairs of `from..to` in the order of their keys, as committed at the moment of the call. Waits
    /// for no lock, and holds none: `visit` may use the store.
    fn scan(&self, from: &[u8], to: &[u8], visit: Visit<'_>) -> Result<()>;

    /// Returns when all earlier commits are durable. A store with durable commits has nothing to do.
    fn sync(&self) -> Result<()>;

    /// Whether the store takes changes. Its own threads may find out that it cannot before a caller does.
    ///
    /// # Errors
    /// A fatal one: the first that stopped it.
    fn health(&self) -> Result<()> {
        Ok(())
    }

    /// Closes the store, and says whether that went well. Dropping it closes it, too.
    ///
    /// # Errors
    /// The store is as after a crash.
    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }

    /// Gives up a store that another server may have: the caller has stored everything, and makes no more calls. Has no
    /// effect the second time.
    fn give_up(&self) {}

    /// Ends the use of a store that another server may have by now: every later call fails, and nothing is sent to the
    /// database. Has no effect on a store that only this process can have.
    fn abandon(&self) {}

    /// Whether an answer that was made of what the store has said may be given. A store that another server can take
    /// over is asked last, after everything was read; others always say yes.
    ///
    /// # Errors
    /// Another server may have taken over since.
    fn may_answer(&self) -> Result<()> {
        Ok(())
    }

    /// For how long answers may still be given unless the lease is renewed; as long as the clock goes for a store that
    /// no other server can take over. Cheap, and never waits.
    fn lease_left(&self) -> Duration {
        Duration::MAX
    }

    /// How long a lease is that has just been renewed.
    fn lease_length(&self) -> Duration {
        Duration::MAX
    }

    /// Tells the store that no key of `from..to` exists or has ever been used, so that it need not look. The caller
    /// promises it, and that no other thread uses such a key before this returns.
    fn know_empty(&self, _from: &[u8], _to: &[u8]) {}

    /// Whether there is enough space for the store to hold also pairs that could lie elsewhere, without starving
    /// changes.
    fn has_space_to_spare(&self) -> bool {
        true
    }

    /// How many pairs of `from..to` are committed, and the bytes of their values, if the store can tell that without
    /// handing the pairs over; else `None`. Asked while nobody changes the range.
    ///
    /// # Errors
    /// Errors of the place.
    fn tally(&self, _from: &[u8], _to: &[u8]) -> Result<Option<(u64, u64)>> {
        Ok(None)
    }

    /// Its counters, as far as it has any. A store in a database that it does not own asks for its owner.
    fn statistics(&self) -> Statistics {
        Statistics::default()
    }
}

/// A store that several share. It is closed when the last of them drops it.
impl<S: MetaStore + ?Sized> MetaStore for std::sync::Arc<S> {
    fn begin(&self) -> Box<dyn Transaction + '_> {
        (**self).begin()
    }

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        (**self).get(key)
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: Visit<'_>) -> Result<()> {
        (**self).scan(from, to, visit)
    }

    fn sync(&self) -> Result<()> {
        (**self).sync()
    }

    fn health(&self) -> Result<()> {
        (**self).health()
    }

    fn give_up(&self) {
        (**self).give_up();
    }

    fn abandon(&self) {
        (**self).abandon();
    }

    fn may_answer(&self) -> Result<()> {
        (**self).may_answer()
    }

    fn lease_left(&self) -> Duration {
        (**self).lease_left()
    }

    fn lease_length(&self) -> Duration {
        (**self).lease_length()
    }

    fn know_empty(&self, from: &[u8], to: &[u8]) {
        (**self).know_empty(from, to);
    }

    fn has_space_to_spare(&self) -> bool {
        (**self).has_space_to_spare()
    }

    fn tally(&self, from: &[u8], to: &[u8]) -> Result<Option<(u64, u64)>> {
        (**self).tally(from, to)
    }

    fn statistics(&self) -> Statistics {
        (**self).statistics()
    }
}

/// A transaction. It belongs to one thread. Dropping it undoes it and releases its locks.
pub trait Transaction {
    /// The value of a key: this transaction's, or else as last committed. Takes no lock, and waits for none.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>>;

    /// Locks a key, which need not exist, and gets its value. Blocks while others have it locked.
    ///
    /// # Errors
    /// [`Error::Deadlock`](crate::Error::Deadlock), [`Error::Busy`](crate::Error::Busy) after the timeout.
    fn get_for_update(&mut self, key: &[u8], lock: Lock) -> Result<Option<Vec<u8>>>;

    /// Sets a key's value. Locks the key exclusively; errors and blocking as for [`Self::get_for_update`].
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()>;

    /// Removes a key, if it exists. Locks the key exclusively; errors and blocking as for [`Self::get_for_update`].
    fn delete(&mut self, key: &[u8]) -> Result<()>;

    /// Passes `visit` the pairs of `from..to` in the order of their keys: as committed at the moment of the call, with
    /// this transaction's own changes. Waits for no lock.
    fn scan(&self, from: &[u8], to: &[u8], visit: Visit<'_>) -> Result<()>;

    /// Sets a savepoint. Savepoints may be nested.
    fn savepoint(&mut self);

    /// Undoes all changes since the last savepoint, releases the keys that were first locked since then, and forgets
    /// the savepoint. A key that was locked shared before and exclusively since may stay exclusive.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if no savepoint is left.
    fn rollback_to_savepoint(&mut self) -> Result<()>;

    /// Refuses now what [`Self::commit`] would refuse for lack of space; the commit then no longer does. For callers
    /// whose changes have effects elsewhere before they are committed.
    ///
    /// # Errors
    /// [`Error::NoSpace`](crate::Error::NoSpace); the transaction is as before.
    fn admit(&mut self) -> Result<()> {
        Ok(())
    }

    /// Makes the changes visible, all at once, and releases the locks. They are durable when it returns, if the store
    /// was opened so. Threads that commit at the same time share the cost.
    ///
    /// # Errors
    /// After [`Error::NoSpace`](crate::Error::NoSpace) nothing was changed. After a fatal error, it is unknown whether
    /// the changes are there, all or none, when the store is opened again.
    fn commit(self: Box<Self>) -> Result<()>;
}

/// Counters of a store. A counter that it does not keep is 0.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Keys, estimated.
    pub keys_estimated: u64,
    /// Bytes on the device, without the log.
    pub stored_bytes: u64,
    /// Bytes of memory for caches, and for changes not yet stored.
    pub memory_bytes: u64,
    /// Blocks that were found in memory, since the store was opened.
    pub cache_hits: u64,
    /// Blocks that were not.
    pub cache_misses: u64,
    /// Larger blocks of files that were found in memory when a block was not.
    pub file_cache_hits: u64,
    /// Larger blocks that were read from the device.
    pub file_cache_misses: u64,
    /// Bytes written to the log, since the store was opened.
    pub log_bytes: u64,
    /// Times that the log was made durable. Fewer than commits, if threads commit at the same time.
    pub log_syncs: u64,
    /// Microseconds in which changes had to wait for background work.
    pub stall_us: u64,
    /// The owner of the volume, for stores that lie in a database.
    pub shard: Option<ShardStatus>,
    /// The work of the owner, if this store is the owner's.
    pub owned: Option<OwnedStatus>,
}
