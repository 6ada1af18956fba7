//! Buffers of a log.

use ferrite_buffers::{Buffer, Pool};

use crate::error::{Error, Result};

pub(crate) fn take(buffers: &Pool, bytes: usize) -> Result<Buffer> {
    buffers
        .take(bytes)
        .ok_or_else(|| Error::Failed("no buffer for the log".into()))
}

/// The buffers of one log, aligned as devices want them.
pub(crate) fn pool(bytes: usize) -> Result<Pool> {
    Pool::new(bytes).ok_or_else(|| Error::Failed("no memory for a log".into()))
}
