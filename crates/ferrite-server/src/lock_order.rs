//! The order in which a thread takes the server's locks; debug builds check it ([`ferrite_checks::ranked`]).
//!
//! Contents: a rank for each lock. A thread that holds a lock waits only for those further down. No lock of a session
//! is held while the engine is called.

ferrite_checks::ranks! {
    "the server":
    /// Where a movable volume is. Nothing is waited for under it.
    Place = 5;
    /// One binding of a file begins or ends at a time, which asks the engine.
    VerbsTurn = 10;
    /// Whether the pool notes that leases are given: held while it does.
    LeasesNoted = 20;
    /// One request for more slots of a session at a time, which asks the engine.
    GettingSlots = 30;
    /// All sessions. A session is added or ended under it.
    Sessions = 40;
    /// The files that sessions have bound.
    VerbsHeld = 50;
    /// Leases; recalls are sent under it, over the session's connection.
    LeaseTable = 60;
    /// The connection of a session.
    SessionLink = 70;
    /// The state of a session.
    Session = 80;
    /// The sessions of an earlier run that may still come.
    Grace = 90;
    /// The part of the server's state that the pool keeps.
    Content = 100;
    /// Connections that have not proved anything yet.
    PendingConnections = 110;
    /// Shares of the server's capacity.
    Admission = 120;
    /// Directories below which exports end.
    Borders = 130;
    /// Inodes with changes under way.
    Lane = 140;
    /// Requests under way that an end waits for.
    CloseBarrier = 150;
    /// The address of the metrics.
    Address = 160;
}
