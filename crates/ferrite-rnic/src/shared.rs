//! State shared by the threads of an adapter.

use std::sync::Arc;

use ferrite_roce::wire::{QPN_MANAGEMENT, Qpn};

use crate::mailbox::Mailbox;
use crate::qpn::QpnAllocator;
use crate::service::Service;

/// State shared by the threads.
pub(crate) struct Shared {
    pub(crate) qpns: QpnAllocator,
    pub(crate) service: Arc<dyn Service>,
    pub(crate) mailboxes: Vec<Arc<Mailbox>>,
}

impl Shared {
    pub(crate) fn mailbox_of(&self, qpn: Qpn) -> Arc<Mailbox> {
        Arc::clone(&self.mailboxes[qpn as usize % self.mailboxes.len()])
    }

    /// The mailbox of the thread that gets management datagrams.
    pub(crate) fn mailbox_of_manager(&self) -> Arc<Mailbox> {
        self.mailbox_of(QPN_MANAGEMENT)
    }
}
