//! Waiting for the end of a connection without receiving from it.
//!
//! Contents: [`Wake`], with which threads interrupt a waiting one, and [`Wake::wait`]. A client's otherwise idle thread
//! learns in this way at once that its server is gone.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

/// Interrupts a thread that waits, or is about to.
#[derive(Debug)]
pub struct Wake(OwnedFd);

impl Wake {
    /// A wake that nothing has rung.
    pub fn new() -> io::Result<Wake> {
        Ok(Wake(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?))
    }

    /// Lets the waiting thread, or the next one that waits, continue.
    pub fn ring(&self) {
        // It fails only if it has been rung 2^64 times.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Blocks until it is rung, the peer of `connection` has closed it, or `limit` is over. True if the connection is
    /// closed.
    pub fn wait(&self, connection: Option<BorrowedFd<'_>>, limit: Duration) -> bool {
        let timeout = Timespec {
            tv_sec: limit.as_secs() as _,
            tv_nsec: limit.subsec_nanos() as _,
        };
        let mine = PollFd::new(&self.0, PollFlags::IN);
        let mut waited = match connection {
            Some(connection) => vec![mine, PollFd::from_borrowed_fd(connection, PollFlags::RDHUP)],
            None => vec![mine],
        };
        // An interruption is as good as a ring.
        let _ = poll(&mut waited, Some(&timeout));
        let is_closed = waited.get(1).is_some_and(|connection| {
            let ends = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
            connection.revents().intersects(ends)
        });
        drop(waited);
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.0, &mut count);
        is_closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::time::Instant;

    #[test]
    fn who_waits_goes_on_when_the_peer_closes_or_somebody_rings() {
        const LONG: Duration = Duration::from_secs(20);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (peer, _) = listener.accept().unwrap();
        let wake = Wake::new().unwrap();
        let began = Instant::now();
        assert!(!wake.wait(Some(stream.as_fd()), Duration::from_millis(10)));
        assert!(began.elapsed() >= Duration::from_millis(10));
        wake.ring();
        wake.ring();
        assert!(!wake.wait(None, LONG));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(20));
                wake.ring();
            });
            assert!(!wake.wait(Some(stream.as_fd()), LONG));
        });
        drop(peer);
        assert!(wake.wait(Some(stream.as_fd()), LONG));
        assert!(began.elapsed() < LONG / 2);
    }
}
