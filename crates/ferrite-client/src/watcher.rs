//! The watcher: a background thread that looks after the connection when no other thread does.
//!
//! It connects when every caller that waits may give up, receives when only locks and completions are waited for, sends
//! pings, and finds a server that is gone. The last two are also done by threads that wait for replies, as it may do
//! itself in a completion.
//!
//! Contents: the part of [`Link`] that starts it, and its turns.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Instant;

use super::deadline::Deadline;
use super::link::Link;
use super::message::encode;
use super::protocol::{Health, Lease, Loss, Turn};
use super::up::Up;
use ferrite_proto::ImmediateRequest;

impl Link {
    /// Starts the watcher.
    pub(super) fn start_watcher(self: &Arc<Link>) -> std::io::Result<()> {
        let link = Arc::downgrade(self);
        let thread = std::thread::Builder::new().name("ferrite-watcher".into());
        let watcher = thread.spawn(move || {
            while let Some(link) = link.upgrade() {
                if !link.watch() {
                    break;
                }
            }
        })?;
        *self.watcher.thread.lock() = Some(watcher);
        Ok(())
    }

    /// Pings a silent server, and drops the connection if the server is gone. The watcher does so, and any thread that
    /// waits for a reply in vain: the watcher calls completions, and these may wait for replies.
    pub(super) fn check_health(&self, up: &Arc<Up>, lease: Lease) -> Health {
        let health = lease.health(up.silence());
        let is_usable = match health {
            Health::Heard => true,
            Health::Silent if up.is_pinged(lease.tick()) => true,
            Health::Silent => {
                let ping = encode(&self.requests.ping(), &ImmediateRequest::Ping {});
                up.connection.send(&ping, &[]).is_ok()
            }
            Health::Gone => false,
        };
        if is_usable {
            return health;
        }
        let loss = match health {
            Health::Gone => Loss::Silent,
            _ => Loss::Broken,
        };
        self.lost_by(up, loss);
        Health::Gone
    }

    /// One turn. False when the client is closed.
    fn watch(&self) -> bool {
        let turn = self.protocol.lock().turn();
        if turn == Turn::End {
            return false;
        }
        self.look_after_submitted();
        // Recalls come at any time.
        let waits = self.leases.cache.is_some() || self.requests.awaits_deferred();
        let (up, lease) = match turn {
            Turn::End => return false,
            Turn::Connect { within, rest } => {
                if self.up(&Deadline::until(Some(Instant::now() + within))).is_err() {
                    self.watcher.wake.wait(None, rest);
                }
                return true;
            }
            Turn::Watch(up, lease) => (up, lease),
        };
        let is_silent = match self.check_health(&up, lease) {
            Health::Gone => return true,
            Health::Silent => true,
            Health::Heard => false,
        };
        if waits || is_silent {
            if let Some(mut receiver) = up.receiver.try_lock_for(lease.tick()) {
                // It returns when nothing has come for a while, and then other threads have their turn.
                let _ = self.receive(&up, &mut receiver, None, &Deadline::until(None));
                drop(receiver);
                self.call_another(0);
                self.complete(&up);
            }
            return true;
        }
        if self.watcher.wake.wait(Some(up.connection.as_fd()), lease.tick()) {
            self.lost(&up);
        }
        true
    }
}
