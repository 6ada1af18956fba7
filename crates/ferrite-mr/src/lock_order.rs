//! The order in which a thread takes this crate's locks; debug builds check it ([`ferrite_checks::ranked`]).
//!
//! Contents: a rank for each lock. A thread that holds a lock waits only for those further down. The engine calls
//! adapters with its own locks held, so a thread that holds one of these calls it only where the reason says so.

ferrite_checks::ranks! {
    "ferrite-mr":
    /// Held while a file is bound or unbound, by the engine.
    Work = 10;
    /// All slots of files.
    Slots = 20;
    /// The bound file of a slot.
    Bound = 30;
    /// All keys.
    KeyTable = 40;
    /// Held shared during calls of the engine; a revocation waits for them.
    Calls = 50;
    /// The keys of a file.
    FileKeys = 60;
    /// The translations of a file. A guard of its pages is this lock, held shared.
    Translations = 70;
    /// Queued appends.
    Appends = 80;
    /// Faults under way.
    Faults = 90;
    /// Counters by thread.
    Meters = 100;
}
