//! The order in which a thread takes a mount's locks; debug builds check it ([`ferrite_checks::ranked`]).
//!
//! Contents: a rank for each lock. A thread that holds a lock waits only for those further down.

ferrite_checks::ranks! {
    "ferrite-fuse":
    /// The threads of rings: held until they have ended.
    RingThreads = 10;
    /// Held shared while a change is carried out, whatever it locks.
    Frozen = 20;
    /// Changes that wait for a thaw.
    Deferred = 30;
    /// A shard of the open handles.
    Handles = 40;
    /// The owners of record locks, by handle.
    LockOwners = 50;
    /// Handles with locks of whole files.
    Flocked = 60;
    /// Requests for locks that wait, and interrupts.
    Waiting = 70;
    /// Names that the kernel may keep.
    Names = 80;
    /// Calls that are tried again.
    Retries = 90;
    /// Replies for the thread of a ring.
    Answered = 100;
}
