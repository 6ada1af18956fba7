//! The order in which a thread takes the locks of the stores in memory and over a database; debug builds check it
//! ([`ferrite_checks::ranked`]).

ferrite_checks::ranks! {
    "ferrite-meta":
    /// The renewing thread's handle and its stop flag.
    Renewer = 10;
    /// Commits that wait for a batch.
    CommitQueue = 20;
    /// The outcome of a commit that waits.
    Outcome = 25;
    /// The connection of batches.
    CommitSession = 27;
    /// Connections of reads.
    ReadSessions = 28;
    /// The cache, and the batches that reads under way must know.
    KnownPairs = 30;
    /// Why the store has stopped, and why its lease is not prolonged.
    Failure = 40;
    /// Which keys transactions have locked.
    KeyLocks = 50;
    /// Requests that the network of a test delays.
    Network = 51;
    /// The shards of a database in memory.
    Shards = 52;
    /// The clock of such a database.
    ManualClock = 54;
    /// The pairs of a store in memory.
    Committed = 60;
}
