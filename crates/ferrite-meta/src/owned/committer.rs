//! Commits that wait at the same time become one batch.
//!
//! Contents: [`Committer`]. There is no thread for it: the first commit that finds no batch under way sends one with
//! all that wait, and its thread returns when its own commit is done; then one of the others continues. So a lone
//! commit costs one request and no handover, and under load each request carries many.
//!
//! Invariants: one batch is under way at most, and batches have ascending numbers without gaps. The commits of a batch
//! have different keys, since each holds the locks of its keys until it returns. A batch whose outcome is unknown is
//! sent again with the same number; until its outcome is known, no other is sent.

use std::collections::VecDeque;
use std::sync::Arc;

use ferrite_checks::condvar::Condvar;
use ferrite_checks::ranked::Mutex;

use crate::error::{Error, Result};
use crate::lock_order;
use crate::overlay::Changes;
use crate::remote::{Batch, BatchLimits};

/// A commit that waits.
pub(super) struct Member {
    pub(super) changes: Changes,
    bytes: usize,
    outcome: Mutex<lock_order::Outcome, Option<Result<()>>>,
}

impl Member {
    fn finish(&self, outcome: Result<()>) {
        *self.outcome.lock() = Some(outcome);
    }
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Arc<Member>>,
    is_sending: bool,
}

/// See the head of this module.
#[derive(Default)]
pub(super) struct Committer {
    queue: Mutex<lock_order::CommitQueue, Queue>,
    finished: Condvar,
}

fn size_of(changes: &Changes) -> usize {
    let size = |(key, value): (&Vec<u8>, &Option<Arc<[u8]>>)| key.len() + value.as_ref().map_or(0, |value| value.len());
    changes.iter().map(size).sum()
}

/// The changes of some commits as one batch.
pub(super) fn batch_of(members: &[Arc<Member>]) -> Batch {
    let mut batch = Batch::default();
    for (key, value) in members.iter().flat_map(|member| &member.changes) {
        match value {
            Some(value) => batch.puts.push((key.clone(), value.to_vec())),
            None => batch.deletes.push(key.clone()),
        }
    }
    batch
}

impl Queue {
    /// The commits of the next batch: in their order, as many as the limits allow, and one at least.
    fn next_batch(&mut self, limits: BatchLimits) -> Vec<Arc<Member>> {
        let (mut changes, mut bytes) = (0, 0);
        let mut members = Vec::new();
        while let Some(member) = self.waiting.front() {
            changes += member.changes.len();
            bytes += member.bytes;
            if !members.is_empty() && (changes > limits.changes || bytes > limits.bytes) {
                break;
            }
            members.extend(self.waiting.pop_front());
        }
        members
    }
}

impl Committer {
    /// Commits changes, together with those that other threads commit. `send` applies the changes of some commits, all
    /// or none, and is never called by two threads at once. Blocks until the outcome is known.
    ///
    /// # Errors
    /// The changes are larger than the limits; what `send` says.
    pub(super) fn commit(
        &self,
        changes: Changes,
        limits: BatchLimits,
        send: &dyn Fn(&[Arc<Member>]) -> Result<()>,
    ) -> Result<()> {
        let bytes = size_of(&changes);
        if changes.len() > limits.changes || bytes > limits.bytes {
            let text = format!(
                "a transaction of {} changes and {bytes} bytes; the database takes {} and {}",
                changes.len(),
                limits.changes,
                limits.bytes
            );
            return Err(Error::Invalid(text));
        }
        let own = Arc::new(Member {
            changes,
            bytes,
            outcome: Mutex::default(),
        });
        let mut queue = self.queue.lock();
        queue.waiting.push_back(Arc::clone(&own));
        loop {
            if let Some(outcome) = own.outcome.lock().take() {
                // Another that waits has to go on.
                self.finished.notify_all();
                return outcome;
            }
            if queue.is_sending {
                self.finished.wait(&mut queue);
                continue;
            }
            queue.is_sending = true;
            let sending = Sending {
                committer: self,
                members: queue.next_batch(limits),
            };
            drop(queue);
            send_to_all(&sending.members, send);
            drop(sending);
            queue = self.queue.lock();
        }
    }
}

/// A batch that a thread sends. Dropping it lets the next one go, even if the thread panics: its own commits are then
/// in doubt.
struct Sending<'c> {
    committer: &'c Committer,
    members: Vec<Arc<Member>>,
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        for member in &self.members {
            let mut outcome = member.outcome.lock();
            outcome.get_or_insert_with(|| Err(Error::Unknown("the thread that sent it has panicked".into())));
        }
        self.committer.queue.lock().is_sending = false;
        self.committer.finished.notify_all();
    }
}

fn send_to_all(members: &[Arc<Member>], send: &dyn Fn(&[Arc<Member>]) -> Result<()>) {
    match send(members) {
        // Those that delete may fit.
        Err(Error::NoSpace(_)) if members.len() > 1 => {
            for member in members {
                member.finish(send(std::slice::from_ref(member)));
            }
        }
        outcome => members.iter().for_each(|member| member.finish(outcome.clone())),
    }
}
