//! Completions of lock requests that are settled, called when the table is unlocked.
//!
//! Invariant: completions of one thread run one after the other, never within each other.

use std::cell::RefCell;
use std::collections::VecDeque;

use super::LockDone;
use crate::Result;

/// A completion and its argument.
type Outcome = (LockDone, Result<()>);

/// Requests that are settled and whose completions have not been called.
#[derive(Default)]
#[must_use]
pub(super) struct Settled(Vec<Outcome>);

thread_local! {
    /// Requests settled by the completion that runs on this thread, if one does.
    static NEXT: RefCell<Option<VecDeque<Outcome>>> = const { RefCell::new(None) };
}

impl Settled {
    pub(super) fn push(&mut self, done: LockDone, outcome: Result<()>) {
        self.0.push((done, outcome));
    }

    /// Calls the completions; the table must be unlocked. Within a completion it leaves them to the caller of that one,
    /// so that a long chain of requests, each granted by the one before, needs no deep stack.
    pub(super) fn call(self) {
        /// Ends the chain even if a completion panics.
        struct Row;
        impl Drop for Row {
            fn drop(&mut self) {
                NEXT.set(None);
            }
        }
        if self.0.is_empty() {
            return;
        }
        let nested = NEXT.with_borrow_mut(|next| match next {
            Some(row) => {
                row.extend(self.0);
                true
            }
            None => {
                *next = Some(self.0.into());
                false
            }
        });
        if nested {
            return;
        }
        let _row = Row;
        while let Some((done, outcome)) = NEXT.with_borrow_mut(|next| next.as_mut().and_then(VecDeque::pop_front)) {
            done(outcome);
        }
    }
}
