//! The order in which a thread takes a store's locks; debug builds check it ([`ferrite_checks::ranked`]).
//!
//! Contents: a rank for each lock. A thread that holds a lock waits only for those further down. The locks of devices
//! are below all of these.

ferrite_checks::ranks! {
    "ferrite-blob":
    /// Held while slots are added.
    Growing = 10;
    /// Damage that has not been mended: held while blobs are rewritten to mend it.
    Damaged = 20;
    /// A blob's metadata. Its holder allocates, and writes to the device.
    Blob = 30;
    /// The list of loaded blobs.
    Loaded = 40;
    /// Free space.
    Free = 50;
    /// The superblock: held while it is written.
    Superblock = 60;
    /// The areas of slots.
    Areas = 70;
    /// Turns on the pages of a blob. The lock covers a walk of lists; a turn itself is no lock.
    Ranges = 80;
    /// Where a thread that waits for its turn finds it.
    Turn = 90;
    /// The ring of whole pages that are about to be written in place.
    Ring = 100;
    /// A leaf of checksums, by its number; held while it is read or written.
    Leaf = 110;
    /// The list of leaves.
    Leaves = 120;
    /// Changes of checksums that no flush has covered.
    Unflushed = 130;
    /// Why changes have stopped.
    Stopped = 140;
}
