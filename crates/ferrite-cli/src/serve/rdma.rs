//! The adapter through which clients write and read files, if this build has one.

use std::net::SocketAddr;
use std::sync::Arc;

use ferrite_server::Rdma;

use crate::Failure;

/// Starts it at these addresses; `None` without any.
#[cfg(feature = "rdma")]
pub(super) fn start(addresses: &[SocketAddr]) -> Result<Option<Arc<dyn Rdma>>, Failure> {
    use ferrite_server::rdma::{Adapter, BoundFiles};

    if addresses.is_empty() {
        return Ok(None);
    }
    let options = ferrite_rnic::Options {
        listen: addresses.to_vec(),
        service_port: Some(crate::mr::SERVICE_PORT),
        ..ferrite_rnic::Options::default()
    };
    let files = Arc::new(BoundFiles::new()?);
    // An earlier server may be about to end.
    let start = std::time::Instant::now();
    loop {
        match Adapter::start(&options, Arc::clone(&files)) {
            Ok(adapter) => return Ok(Some(Arc::new(adapter))),
            Err(error) if error.is_in_use() && start.elapsed() < super::plan::PORT_FREED_WITHIN => {
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// `None`: callers refuse addresses before this.
#[cfg(not(feature = "rdma"))]
pub(super) fn start(_addresses: &[SocketAddr]) -> Result<Option<Arc<dyn Rdma>>, Failure> {
    Ok(None)
}
