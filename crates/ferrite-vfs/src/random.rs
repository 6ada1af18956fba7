//! Numbers that nobody can guess, from the system.

use crate::{FsError, Result};

/// So many bytes from getrandom(2). Blocks only until the system has started.
///
/// # Errors
/// `EIO` from a kernel without that call.
pub fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        match rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(FsError::Io(format!("the system gives no random numbers: {error}"))),
        }
    }
    Ok(bytes)
}
