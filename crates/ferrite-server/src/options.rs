//! Options of a server: [`ServerOptions`].

use std::sync::Arc;
use std::time::Duration;

use ferrite_transport::connection::BUSY_POLL;
use ferrite_transport::reactor::FabricOptions;

use super::admission::Bounds;
use super::rdma::Rdma;

/// How to run a server.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ServerOptions {
    /// Threads that serve connections.
    pub threads: usize,
    /// How long such a thread polls for work before it sleeps. Zero: it sleeps at once.
    pub busy_poll: Duration,
    /// Threads for engines that may wait for a device.
    pub workers: usize,
    /// A session without a sign of life for so long ends.
    pub lease: Duration,
    /// How long a change waits for a client that does not return its lease, at most. Zero: clients get no leases, and
    /// cache nothing.
    pub cache_term: Duration,
    /// Memory for data in flight.
    pub buffers_bytes: usize,
    /// Lets clients move to a fabric. A build without the feature `fabric` refuses that.
    pub fabric: Option<FabricOptions>,
    /// The adapter by which clients may write and read files.
    pub rdma: Option<Arc<dyn Rdma>>,
    /// Bounds on clients' use of it.
    pub bounds: Bounds,
}

impl Default for ServerOptions {
    fn default() -> Self {
        ServerOptions {
            threads: 1,
            busy_poll: BUSY_POLL,
            workers: 16,
            lease: Duration::from_secs(30),
            cache_term: Duration::from_secs(5),
            buffers_bytes: 64 << 20,
            fabric: None,
            rdma: None,
            bounds: Bounds::default(),
        }
    }
}

impl ServerOptions {
    /// Sets [`Self::threads`].
    #[must_use]
    pub fn threads(self, threads: usize) -> Self {
        ServerOptions { threads, ..self }
    }

    /// Sets [`Self::lease`].
    #[must_use]
    pub fn lease(self, lease: Duration) -> Self {
        ServerOptions { lease, ..self }
    }

    /// Sets [`Self::cache_term`].
    #[must_use]
    pub fn cache_term(self, cache_term: Duration) -> Self {
        ServerOptions { cache_term, ..self }
    }

    /// Sets [`Self::busy_poll`].
    #[must_use]
    pub fn busy_poll(self, busy_poll: Duration) -> Self {
        ServerOptions { busy_poll, ..self }
    }

    /// Sets [`Self::rdma`].
    #[must_use]
    pub fn rdma(self, rdma: Option<Arc<dyn Rdma>>) -> Self {
        ServerOptions { rdma, ..self }
    }

    /// Sets [`Self::fabric`].
    #[must_use]
    pub fn fabric(self, fabric: Option<FabricOptions>) -> Self {
        ServerOptions { fabric, ..self }
    }

    /// Sets [`Self::bounds`].
    #[must_use]
    pub fn bounds(self, bounds: Bounds) -> Self {
        ServerOptions { bounds, ..self }
    }
}
