//! The locks of this crate, in the order in which a thread takes them.

ferrite_checks::ranks! {
    "ferrite-wal":
    /// The newest superblock: one thread writes the next.
    Head = 10;
    /// The state of a log.
    Log = 20;
    /// The far device of a mirror.
    Far = 30;
}
