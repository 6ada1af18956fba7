//! The messages of FUSE, whatever carries them.
//!
//! | module | contents |
//! | --- | --- |
//! | `abi` | requests decoded |
//! | `kind` | what is known of a request by its opcode |
//! | `reply` | replies encoded |
//! | `opcode` | the kinds of requests, by number and name |

pub(crate) mod abi;
pub(crate) mod kind;
pub(crate) mod opcode;
pub(crate) mod reply;

use self::abi::InHeader;
use crate::service::Response;

/// Largest write request. The engine takes each as one atomic step.
pub(crate) const MAX_WRITE_BYTES: u32 = 1 << 20;

/// The parts of a request in memory.
pub(crate) struct Parts<'m> {
    /// The opcode's header.
    pub(crate) op: &'m [u8],
    /// Of the request, and then of the reply.
    pub(crate) payload: &'m mut [u8],
    /// How much of it the request uses.
    pub(crate) used: usize,
}

/// A request in the memory of its transport, and then its reply.
pub(crate) trait Exchange: Send + 'static {
    /// The header that all requests have.
    fn request(&self) -> InHeader;

    /// Everything else.
    fn parts(&mut self) -> Parts<'_>;

    /// Makes it a reply, with `outcome` bytes in the payload.
    fn respond(&mut self, outcome: Response<usize>);

    /// The same request in as little memory as it needs: it is about to wait.
    fn set_aside(self) -> Self;
}
