//! The end of a session, started by the client.
//!
//! Contents: [`Link::close`], in as many steps as a server has ways to be silent.
//!
//! Invariant: it ends within [`GOODBYE`] and [`WATCHER`], whatever the server does. A mount's daemon that has to exit
//! waits for this.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use ferrite_vfs::FsError;

use super::link::Link;
use super::message::{Reply, encode};
use super::own_head;
use super::up::Up;
use ferrite_proto::ImmediateRequest;

/// How long a server may take to learn that the session ends.
const GOODBYE: Duration = Duration::from_millis(800);
/// How long the watcher may take to end.
const WATCHER: Duration = Duration::from_millis(200);
/// How long another thread may hold the receiver.
const RECEIVER: Duration = Duration::from_millis(200);

impl Link {
    /// Ends the session. All threads that wait for a reply learn that it is over.
    pub(super) fn close(&self) {
        let up = {
            let mut protocol = self.protocol.lock();
            self.changed.notify_all();
            protocol.close()
        };
        if let Some(cache) = &self.leases.cache {
            // The server takes the goodbye as the end of all leases.
            cache.disconnected();
        }
        if let Some(up) = up {
            self.say_goodbye(&up);
            // Also ends a send that the server does not take.
            up.connection.close();
        }
        self.leases.recall_queue.end();
        self.fail_pending();
        self.watcher.wake.ring();
        let watcher = self.watcher.thread.lock().take();
        if let Some(watcher) = watcher
            && watcher.thread().id() != std::thread::current().id()
        {
            let ends = Instant::now() + WATCHER;
            while !watcher.is_finished() && Instant::now() < ends {
                std::thread::sleep(Duration::from_millis(1));
            }
            // A watcher that is connecting to a silent server ends without help. A panic was reported when it happened.
            if watcher.is_finished() {
                let _ = watcher.join();
            }
        }
    }

    /// Asks the server to end the session at once. If that does not arrive, the session ends with its lease.
    fn say_goodbye(&self, up: &Arc<Up>) {
        let goodbye = encode(&own_head(self.fresh_id()), &ImmediateRequest::Goodbye {});
        let (done, is_done) = channel();
        let up = Arc::clone(up);
        // The connection may be full of data that the server does not take.
        let speaking = std::thread::Builder::new()
            .name("ferrite-goodbye".into())
            .spawn(move || {
                let _ = up.connection.send(&goodbye, &[]);
                // The server answers it by ending the connection.
                if let Some(mut receiver) = up.receiver.try_lock_for(RECEIVER) {
                    for _ in 0..4 {
                        if !matches!(Reply::receive(&mut receiver), Ok(Some(_))) {
                            break;
                        }
                    }
                }
                // No thread listens any more if it took too long.
                let _ = done.send(());
            });
        if speaking.is_ok() {
            let _ = is_done.recv_timeout(GOODBYE);
        }
    }

    fn fail_pending(&self) {
        self.requests.fail();
        for unsent in self.deferred_sends.take(None) {
            unsent.fail(FsError::Disconnected);
        }
        self.call_completions();
    }
}
