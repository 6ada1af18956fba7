//! The order in which a thread takes the client's locks; debug builds check it ([`ferrite_checks::ranked`]).
//!
//! Contents: a rank for each lock. A thread that holds a lock waits only for those further down.

ferrite_checks::ranks! {
    "the client":
    /// The thread that watches the connection.
    Watcher = 10;
    /// The right to receive for all who wait: held while answers are taken from the connection and passed on.
    Receiver = 20;
    /// The state machine: the connection, and what the server promised. Its holder sends nothing.
    Protocol = 30;
    /// Changes that no sync has covered.
    Unsynced = 40;
    /// Recalls on their way to the thread that carries them out.
    PassedOn = 50;
    /// Recalls that have been received.
    Recalls = 60;
    /// Submitted calls that wait for their turn: the first takes a slot under it.
    Submitted = 70;
    /// Requests under way.
    Requests = 80;
    /// Slots of the session: a request waits here for one. Requests whose slot is lost end under their own lock.
    Slots = 90;
    /// Calls that have ended, and whose completions run later.
    Completed = 110;
    /// The reply that a call waits for.
    Reply = 120;
    /// Cached attributes and names.
    Cache = 130;
    /// Groups of processes.
    Groups = 140;
    /// The inode of the export.
    Root = 150;
    /// Pinned inodes.
    Pins = 160;
    /// Inodes by number.
    Nodes = 170;
    /// Open files.
    Files = 180;
    /// Advisory locks.
    Locks = 190;
    /// Requests that are sent together.
    SendBatching = 200;
}
