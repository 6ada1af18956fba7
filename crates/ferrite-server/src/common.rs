//! The state that all engines of a server share: [`Common`].

use std::sync::Arc;

use ferrite_buffers::Pool;
use ferrite_transport::reactor::Turns;

use super::admission::Admission;
use super::options::ServerOptions;
use super::pending::PendingConnections;

/// The state that all engines of a server share.
pub(super) struct Common {
    pub(super) admission: Arc<Admission>,
    pub(super) pending_connections: PendingConnections,
    /// Memory for data in flight.
    pub(super) pool: Pool,
    /// How long the threads of the reactor work.
    pub(super) turns: Arc<Turns>,
    pub(super) options: ServerOptions,
}
