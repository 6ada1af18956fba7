//! Which parts of an area are free: a buddy allocator.
//!
//! Invariant: a part of order n has 2^n pages and begins at a multiple of that. Of two buddies, at most one is free on
//! its own: if both are, they are one part of the next order.

use std::collections::BTreeSet;

/// The largest order: 4 MiB of 4 KiB pages.
const ORDER_MAX: u32 = 10;

/// The free parts, by order and first page.
pub(crate) struct Buddy {
    free: [BTreeSet<u32>; ORDER_MAX as usize + 1],
    free_pages: u32,
}

impl Buddy {
    /// `pages` pages, a multiple of the largest part, all free.
    pub(crate) fn new(pages: u32) -> Buddy {
        let mut free: [BTreeSet<u32>; ORDER_MAX as usize + 1] = Default::default();
        free[ORDER_MAX as usize] = (0..pages).step_by(1 << ORDER_MAX).collect();
        Buddy {
            free,
            free_pages: pages,
        }
    }

    pub(crate) fn free_pages(&self) -> u32 {
        self.free_pages
    }

    /// Takes the first part of an order, splitting the smallest larger one if no part of the order is free.
    pub(crate) fn take(&mut self, order: u32) -> Option<u32> {
        let found = (order..=ORDER_MAX).find(|&order| !self.free[order as usize].is_empty())?;
        let page = self.free[found as usize].pop_first()?;
        for half in (order..found).rev() {
            self.free[half as usize].insert(page + (1 << half));
        }
        self.free_pages -= 1 << order;
        Some(page)
    }

    /// Frees a part that was taken.
    pub(crate) fn give_back(&mut self, page: u32, order: u32) {
        self.free_pages += 1 << order;
        let (mut page, mut order) = (page, order);
        while order < ORDER_MAX && self.free[order as usize].remove(&(page ^ (1 << order))) {
            page &= !(1 << order);
            order += 1;
        }
        self.free[order as usize].insert(page);
    }
}
