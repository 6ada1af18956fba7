//! Calls through the cache, and the handling of recalls.
//!
//! A party that relies on the client's replies (a kernel) may have to wait for requests of this client before it can
//! give them up. So a thread that serves nothing else asks it, and then answers the recall.

use std::sync::mpsc::Receiver;
use std::sync::{Arc, Weak};
use std::time::Duration;

use ferrite_transport::FabricError;
use ferrite_vfs::{Attr, CacheLeases, Ctx, FsError, Ino, RecallHandler, Result};

use super::Client;
use super::cache::{Cache, Changed};
use super::link::Link;
use super::message::Reply;
use super::protocol::Repeats;
use super::recall_queue::{RECALLS_MAX, Recall};
use super::untrusted::{RecallNotice, of_inode};
use ferrite_proto::{ImmediateRequest, Node, Request};

/// Recalls that one message answers.
const RECALLS_AT_ONCE: usize = 4096;

/// Revokes what recalls name, in order. If that fails, the recall is not answered, and its lease expires.
fn pass_recalls(link: &Weak<Link>, recalls: &Receiver<Recall>, handler: &RecallHandler) {
    for Recall { number, ino } in recalls {
        if handler(ino) {
            let Some(link) = link.upgrade() else {
                return;
            };
            link.leases.recalls.lock().push(number);
            link.reply_to_recalls();
        }
    }
}

impl CacheLeases for Client {
    fn attr(&self, attr: &Attr) -> Duration {
        self.validity(|cache| cache.validity(attr))
    }

    fn name(&self, dir: Ino, name: &[u8], found: Option<Ino>) -> Duration {
        self.validity(|cache| cache.name_validity(dir, name, found))
    }

    fn watch(&self, watcher: RecallHandler) {
        let link = Arc::downgrade(&self.link);
        let started = self.link.leases.recall_queue.begin(|recalls| {
            let thread = std::thread::Builder::new().name("ferrite-recalls".into());
            thread.spawn(move || pass_recalls(&link, &recalls, &watcher)).map(drop)
        });
        if let Err(error) = started {
            tracing::warn!("nothing is kept, for want of a thread: {error}");
        }
    }
}

impl Client {
    fn validity(&self, how_long: impl FnOnce(&Cache) -> Duration) -> Duration {
        match &self.link.leases.cache {
            Some(cache) if self.link.leases.recall_queue.is_on() => how_long(cache),
            _ => Duration::ZERO,
        }
    }
}

/// Whether a failed change may still take effect, because the client does not know what the server does with it.
pub(super) fn may_take_effect_later(reply: &Result<Reply>) -> bool {
    matches!(reply, Err(FsError::TimedOut | FsError::Disconnected))
}

impl Link {
    /// Makes a change that affects the cache, as [`Self::call`] does.
    pub(super) fn change(&self, ctx: &Ctx, request: &Request<'_>, changed: Changed, data: &[u8]) -> Result<Reply> {
        let changing = self.leases.cache.as_ref().map(|cache| cache.change(changed));
        let reply = self.call(ctx, request, Repeats::WithToken, data, &mut []);
        if may_take_effect_later(&reply) {
            std::mem::forget(changing);
        }
        reply
    }

    /// Attributes of an inode, from the cache or by `ask`, whose reply the cache keeps.
    pub(super) fn attr(&self, node: Node, ask: impl FnOnce() -> Result<Reply>) -> Result<Attr> {
        let Some(cache) = &self.leases.cache else {
            return of_inode(ask()?.result()?, node.ino);
        };
        if let Some(attr) = cache.attr(node) {
            return Ok(attr);
        }
        let start = cache.ask();
        let reply = ask()?;
        let attr = of_inode(reply.result()?, node.ino)?;
        if reply.is_leased() {
            cache.keep_attr(&start, &attr);
        }
        Ok(attr)
    }

    /// Notes that the server has answered a read, which may have moved an access time.
    pub(super) fn was_read(&self, ino: Ino) {
        if let Some(cache) = &self.leases.cache {
            cache.was_read(ino);
        }
    }

    /// Handles a recall, which the server sends in place of a reply.
    ///
    /// # Errors
    /// If it recalls more than a client could ever have to answer at a time; with the connection all leases end.
    pub(super) fn note_recall(&self, reply: &Reply) -> std::result::Result<(), FabricError> {
        if let (Some(cache), Ok(RecallNotice((recall, ino)))) = (&self.leases.cache, reply.result()) {
            cache.recall(ino);
            let is_passed = self.leases.recall_queue.pass_on(Recall { number: recall, ino });
            let mut recalls = self.leases.recalls.lock();
            match is_passed {
                Some(true) => {}
                Some(false) if recalls.len() < RECALLS_MAX => recalls.push(recall),
                _ => return Err(FabricError::Foreign),
            }
        }
        Ok(())
    }

    pub(super) fn reply_to_recalls(&self) {
        if self.leases.cache.is_some() {
            let recalls = std::mem::take(&mut *self.leases.recalls.lock());
            // One message does not hold all.
            for recalls in recalls.chunks(RECALLS_AT_ONCE) {
                let recalls = recalls.to_vec();
                self.post(ImmediateRequest::Recalled { recalls });
            }
        }
    }
}
