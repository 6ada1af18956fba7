//! The first exchange of the kernel and the mount (`INIT`).
//!
//! Contents: [`Handshake`], which fuser calls. fuser mounts, answers `INIT` and unmounts; it serves no request, since
//! it knows too few of them.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use fuser::{Filesystem, InitFlags, KernelConfig, Request};

use crate::message::MAX_WRITE_BYTES;
use crate::ring::Rings;
use crate::service::Service;

/// Requests in the background that the kernel sends at a time.
const BACKGROUND_MAX: u16 = 64;

/// Replies to `INIT`, and ends what serves the mount when that has ended.
pub(crate) struct Handshake {
    service: Arc<Service>,
    /// The other transport, if it may be used.
    rings: Option<Arc<Rings>>,
}

impl Handshake {
    pub(crate) fn new(service: Arc<Service>, rings: Option<Arc<Rings>>) -> Handshake {
        Handshake { service, rings }
    }
}

impl Filesystem for Handshake {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let wanted = [
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
            InitFlags::FUSE_CACHE_SYMLINKS,
            InitFlags::FUSE_EXPORT_SUPPORT,
            InitFlags::FUSE_POSIX_ACL,
            // A default access control list stands in for the mask.
            InitFlags::FUSE_DONT_MASK,
            // Not `FUSE_ASYNC_DIO`: the kernel drops the pages of a direct write before and after it, but not when the
            // write ends asynchronously. Pages that a buffered reader filled meanwhile would stay, and a truncate would
            // not wait for it.
        ];
        if self.service.is_direct() {
            // Directly read files can still be mapped, on kernels that allow it. If others write, too, only
            // close-to-open consistency holds then.
            let _ = config.add_capabilities(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP);
        }
        for flag in wanted {
            // A kernel without one of them loses speed, not correctness.
            let _ = config.add_capabilities(flag);
        }
        if self.service.locks().is_some() {
            let wanted = InitFlags::FUSE_POSIX_LOCKS | InitFlags::FUSE_FLOCK_LOCKS;
            config.add_capabilities(wanted).map_err(|_| {
                io::Error::other("this kernel does not pass on locks; omit the option that has the engine keep them")
            })?;
        }
        let _ = config.set_max_write(MAX_WRITE_BYTES);
        let _ = config.set_time_granularity(Duration::from_nanos(1));
        let _ = config.set_max_background(BACKGROUND_MAX);
        if let Some(rings) = &self.rings {
            // Last: once the kernel has the flag, it sends nothing until the rings are there.
            rings.grant(config.add_capabilities(InitFlags::FUSE_OVER_IO_URING).is_ok());
        }
        Ok(())
    }

    fn destroy(&mut self) {
        if let Some(rings) = &self.rings {
            rings.end();
        }
        self.service.end();
    }
}
