//! State shared by the threads of an adapter.

use std::sync::Arc;

use ferrite_roce::wire::{QPN_MANAGEMENT, Qpn};

use crate::command_queue::CommandQueue;
use crate::qpn::QpnAllocator;
use crate::service::Service;

/// State shared by the threads.
pub(crate) struct Shared {
    pub(crate) qpns: QpnAllocator,
    pub(crate) service: Arc<dyn Service>,
    pub(crate) command_queues: Vec<Arc<CommandQueue>>,
}

impl Shared {
    pub(crate) fn command_queue_of(&self, qpn: Qpn) -> Arc<CommandQueue> {
        Arc::clone(&self.command_queues[qpn as usize % self.command_queues.len()])
    }

    /// The queue of the thread that gets management datagrams.
    pub(crate) fn command_queue_of_manager(&self) -> Arc<CommandQueue> {
        self.command_queue_of(QPN_MANAGEMENT)
    }
}
