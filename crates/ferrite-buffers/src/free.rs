//! The free parts of an area, and the queue of waiting callers.
//!
//! Contents: [`Free`]: pages that are handed out one at a time, on top of the allocator of larger parts (`buddy`); and
//! the order of the waiting callers.
//!
//! Invariants: a part is in `pages`, in `buddy`, or taken. Pages in `pages` are borrowed from `buddy`, and go back to
//! it before a larger part is refused. Waiting callers are served in order of arrival: many small requests cannot
//! starve a large one.

use std::collections::VecDeque;

use crate::buddy::Buddy;

/// Pages that are taken from the allocator at a time: 256 KiB.
const RUN_ORDER: u32 = 6;
/// With more free pages than that, a page goes back to the allocator.
const PAGES_MAX: usize = 2 << RUN_ORDER;

/// See the head of this module.
pub(crate) struct Free {
    buddy: Buddy,
    /// Free single pages; the most recently used, which is in a cache, on top.
    pages: Vec<u32>,
    /// Waiting callers, the first in front.
    waiting: VecDeque<u64>,
    next_ticket: u64,
}

impl Free {
    pub(crate) fn new(pages: u32) -> Free {
        Free {
            buddy: Buddy::new(pages),
            pages: Vec::new(),
            waiting: VecDeque::new(),
            next_ticket: 0,
        }
    }

    pub(crate) fn free_pages(&self) -> u32 {
        self.buddy.free_pages() + self.pages.len() as u32
    }

    pub(crate) fn take(&mut self, order: u32) -> Option<u32> {
        if order == 0 {
            return self.take_page();
        }
        self.buddy.take(order).or_else(|| {
            self.return_pages(0);
            self.buddy.take(order)
        })
    }

    fn take_page(&mut self) -> Option<u32> {
        if self.pages.is_empty() {
            match self.buddy.take(RUN_ORDER) {
                Some(first) => self.pages.extend((first..first + (1 << RUN_ORDER)).rev()),
                None => return self.buddy.take(0),
            }
        }
        self.pages.pop()
    }

    pub(crate) fn give_back(&mut self, page: u32, order: u32) {
        if order > 0 {
            return self.buddy.give_back(page, order);
        }
        self.pages.push(page);
        if self.pages.len() > PAGES_MAX {
            self.return_pages(PAGES_MAX / 2);
        }
    }

    /// Returns all but so many single pages to the allocator, the least recently used first.
    fn return_pages(&mut self, left: usize) {
        let count = self.pages.len().saturating_sub(left);
        for page in self.pages.drain(..count) {
            self.buddy.give_back(page, 0);
        }
    }

    /// The number of waiting callers.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Joins the end of the queue.
    pub(crate) fn queue(&mut self) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.waiting.push_back(ticket);
        ticket
    }

    pub(crate) fn is_first(&self, ticket: u64) -> bool {
        self.waiting.front() == Some(&ticket)
    }

    /// Leaves the queue, from any position.
    pub(crate) fn leave(&mut self, ticket: u64) {
        self.waiting.retain(|&waiting| waiting != ticket);
    }
}
