//! The order in which a thread takes the locks of replicated files; debug builds check it
//! ([`ferrite_checks::ranked`]).
//!
//! Contents: a rank for each lock. A thread that holds a lock waits only for those further down.

ferrite_checks::ranks! {
    "replicated files":
    /// One copy is brought up to date at a time.
    Resync = 10;
    /// The order of changes, and which copies have them.
    Order = 20;
}
