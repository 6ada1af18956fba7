//! The order in which a thread takes the engine's locks; debug builds check it ([`ferrite_checks::ranked`]).
//!
//! Contents: a rank for each lock. A thread that holds a lock waits only for those further down. The locks of
//! transactions are not in the list: the metadata store has its own.

ferrite_checks::ranks! {
    "ferrite-nvme":
    /// Held until the housekeeper's thread has ended.
    Thread = 10;
    /// Held while inodes without a name are freed.
    FreeingOrphans = 15;
    /// Held while the housekeeper stores nodes, whose inodes it only tries to lock.
    StoringNodes = 20;
    /// Held by renames between directories: which directory is above which stays true until they have locked both.
    Renames = 30;
    /// The lock of an inode whose names are used or changed; of two, [`crate::table::Turn`] says which is first.
    Directory = 40;
    /// The lock of an inode that a name or a handle leads to, by its number.
    Inode = 50;
    /// Held while a thread that shares a file stores its times.
    StoringTimes = 60;
    /// Held while blobs are deleted. An operation that finds no space waits here, with inodes locked.
    DeletingBlobs = 70;
    /// Blobs that were made in advance.
    MadeBlobs = 80;
    /// The number of the next inode. The pool's record reserves numbers under it.
    NextInode = 90;
    /// The record of the pool: held while it is stored.
    PoolRecord = 100;
    /// A content store in memory. An overwrite updates times under it.
    ContentInMemory = 105;
    /// A shard of the table of inodes. Its holder only tries the locks of inodes.
    TableShard = 110;
    /// Times and counter of an inode: locked for a copy or a change of them.
    Times = 120;
    /// The housekeeper's queue.
    WorkQueue = 130;
    /// Counts the changes inside the barrier. This lock is not the barrier, which stays shut while the media are
    /// copied.
    FreezeBarrier = 140;
    /// Inodes whose blobs may know more.
    Behind = 150;
    /// The usage that quotas count: a step reserves it.
    Quotas = 155;
    /// Why changes have stopped.
    Failure = 160;
}
