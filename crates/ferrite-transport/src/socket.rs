//! Options of this crate's sockets.

use std::io;
use std::net::TcpStream;

use rustix::net::sockopt;

/// How much a socket to the same host holds before its receiver takes data. With more, bulk data has left the CPU's
/// caches by then; the system would let it grow to 4 MiB. (The kernel doubles the given value.)
const LOCAL_SEND_BYTES: usize = 512 << 10;

/// Makes the socket send small messages at once, and large ones in portions that suit their path.
pub(crate) fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    if stream.peer_addr()?.ip().to_canonical().is_loopback() {
        sockopt::set_socket_send_buffer_size(stream, LOCAL_SEND_BYTES)?;
    }
    Ok(())
}
