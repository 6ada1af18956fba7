//! The order in which a thread takes this crate's locks; debug builds check it ([`ferrite_checks::ranked`]).
//!
//! Contents: a rank for each lock. A thread that holds a lock waits only for those further down.

ferrite_checks::ranks! {
    "ferrite-transport":
    /// The right to send on a connection: held until the frame is sent.
    Sends = 10;
    /// The queue of a connection of the server.
    Mailbox = 70;
    /// The mail that wakes a thread of the server.
    Inbox = 80;
}

#[cfg(feature = "fabric")]
ferrite_checks::ranks! {
    "ferrite-transport":
    /// The client's end of a line over libfabric.
    FabricConnection = 20;
    /// The lists that endpoints of this process share. Endpoints are opened and closed under it.
    Lists = 30;
    /// All guards.
    Watch = 40;
    /// The peers of a guard.
    Peers = 50;
    /// Since when the memory of an endpoint is locked.
    Locked = 60;
}
