//! Appends of several threads at a time, combined into one step of the engine.
//!
//! A thread that brings an append while another's is under way waits; a thread that finds no step under way takes all
//! queued appends, its own among them, and appends them in one call. So a step's fences are paid once for all.
//!
//! Invariants: an append is in one call that succeeds, or in none. Its bytes are durable before [`Appends::append`]
//! returns. Appends of one thread keep their order, since it waits for each.

use std::collections::HashMap;

use ferrite_vfs::{FsError, Result};

use crate::lock_order;
use crate::sync::{Condvar, Mutex, lock, wait};

/// Bytes per step, unless a single append is longer.
const STEP_BYTES_MAX: usize = 1 << 20;
/// Appends of one step.
const STEP_PARTS_MAX: usize = 64;

/// Queued appends.
#[derive(Debug, Default)]
pub(crate) struct Appends {
    queue: Mutex<lock_order::Appends, Queue>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    next: u64,
    waiting: Vec<(u64, Vec<u8>)>,
    /// Where each begins, or its error.
    done: HashMap<u64, Result<u64>>,
    /// A thread is appending.
    is_busy: bool,
    /// Threads that wait for a change. A notification is a system call even without a waiter.
    sleepers: usize,
}

/// Ends the turn of a thread also if the engine panics: others would wait forever.
struct Turn<'a> {
    appends: &'a Appends,
    tickets: Vec<u64>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut queue = lock(&self.appends.queue);
        queue.is_busy = false;
        for ticket in self.tickets.drain(..) {
            queue
                .done
                .insert(ticket, Err(FsError::Io("an append was interrupted".into())));
        }
        let is_awaited = queue.sleepers > 0;
        drop(queue);
        if is_awaited {
            self.appends.changed.notify_all();
        }
    }
}

impl Appends {
    /// Appends `data` by `append`, maybe with others, maybe of another thread. Returns where it begins. Blocks for as
    /// long as the engine takes for the step under way and for the steps of earlier appends.
    ///
    /// # Errors
    /// As the engine; nothing was appended then.
    pub(crate) fn append(&self, data: &[u8], append: &dyn Fn(&[&[u8]]) -> Result<u64>) -> Result<u64> {
        let mut queue = lock(&self.queue);
        if !queue.is_busy && queue.waiting.is_empty() {
            // No other append to share a step with: no copy.
            queue.is_busy = true;
            drop(queue);
            let turn = Turn {
                appends: self,
                tickets: Vec::new(),
            };
            let appended = append(&[data]);
            drop(turn);
            return appended;
        }
        let ticket = queue.next;
        queue.next += 1;
        queue.waiting.push((ticket, data.to_vec()));
        loop {
            if let Some(result) = queue.done.remove(&ticket) {
                return result;
            }
            if queue.is_busy {
                queue.sleepers += 1;
                queue = wait(&self.changed, queue);
                queue.sleepers -= 1;
                continue;
            }
            queue.is_busy = true;
            let parts = take_step(&mut queue.waiting);
            drop(queue);
            let turn = Turn {
                appends: self,
                tickets: parts.iter().map(|(ticket, _)| *ticket).collect(),
            };
            self.step(parts, turn, append);
            queue = lock(&self.queue);
        }
    }

    fn step(&self, parts: Vec<(u64, Vec<u8>)>, mut turn: Turn<'_>, append: &dyn Fn(&[&[u8]]) -> Result<u64>) {
        let all: Vec<&[u8]> = parts.iter().map(|(_, data)| &data[..]).collect();
        let mut results = Vec::new();
        match append(&all) {
            Ok(start) => {
                let mut at = start;
                for (ticket, data) in &parts {
                    results.push((*ticket, Ok(at)));
                    at += data.len() as u64;
                }
            }
            Err(error) if parts.len() == 1 => results.push((parts[0].0, Err(error))),
            // Some of them may fit where all together do not.
            Err(_) => results.extend(parts.iter().map(|(ticket, data)| (*ticket, append(&[data])))),
        }
        turn.tickets.clear();
        lock(&self.queue).done.extend(results);
    }
}

/// The first queued appends, as many as a step may have, at least one.
fn take_step(waiting: &mut Vec<(u64, Vec<u8>)>) -> Vec<(u64, Vec<u8>)> {
    let mut len_bytes = 0;
    let count = waiting.iter().take(STEP_PARTS_MAX).take_while(|(_, data)| {
        len_bytes += data.len();
        len_bytes <= STEP_BYTES_MAX
    });
    let count = count.count().max(1).min(waiting.len());
    waiting.drain(..count).collect()
}
