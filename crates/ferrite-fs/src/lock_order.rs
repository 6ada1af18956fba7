//! The order in which a thread takes the engine's locks; debug builds check it ([`ferrite_checks::ranked`]).
//!
//! Contents: a rank for each lock. A thread that holds a lock waits only for those further down; inodes are locked in
//! ascending order of their numbers. An attempt (`try_write`) may be out of order.

ferrite_checks::ranks! {
    "ferrite-fs":
    /// Mounting, freezing and unmounting exclude each other for their whole duration.
    Threads = 10;
    /// Held while inodes are freed, each of which is locked.
    KeptOrphans = 20;
    /// The slot of a token: held for a whole operation, so that its repetition waits.
    TokenSlot = 30;
    /// Held shared by calls of adapters that change a file. A freeze waits for them, and holds nothing that they need.
    AdapterCalls = 40;
    /// Held by a move of a directory, which looks for ancestors before it locks any inode.
    Rename = 50;
    /// An inode, by its number. An operation holds its inodes until its record is applied.
    Inode = 60;
    /// The right to call an adapter, which hears of changes in the order in which the inode's lock allowed them.
    Adapter = 70;
    /// Bound files: locked for a lookup.
    BindingList = 80;
    /// Held by a record that marks shared blocks, until it has committed.
    Marking = 85;
    /// Held shared while pages are away from the lists of pages with logs, which includes merges and their records.
    CandidatesAway = 90;
    /// Held while the checkpoint moves: a thread that needs space waits here, often with inodes locked.
    Advance = 100;
    /// Held while freed resources are on their way from the rings to the free maps.
    Release = 110;
    /// A ring of the journal. Its holder waits for the medium and nothing else.
    Ring = 120;
    /// A list of pages with logs: a commit notes pages while it has the ring.
    CandidateList = 130;
    /// For threads that wait for a thaw, which they do without a ring.
    Frozen = 140;
    /// A thread's supply of log segments.
    LogPurse = 150;
    /// All log segments: refills purses.
    LogSlabs = 160;
    /// The usage that quotas count: a commit reserves it, with or without a ring.
    Quotas = 165;
    /// A shard of the cache of inodes. Its holder only tries the locks of inodes.
    CacheShard = 170;
    /// The list of stretches in which an inode may have pages.
    MappedRangeList = 180;
    /// Damage met since the mount; noted wherever it is met.
    RuntimeErrors = 190;
    /// Wakes a background thread, from anywhere.
    Signal = 200;
}
