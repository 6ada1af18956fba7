//! Page-sized scratch memory that is not cleared before each use: clearing 4 KiB costs as much as a small write.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

use crate::format::layout::BLOCK_BYTES;

type Page = [u8; BLOCK_BYTES as usize];

thread_local! {
    static SPARE: RefCell<Vec<Box<Page>>> = const { RefCell::new(Vec::new()) };
}

/// A page of memory with unspecified content; returns to the thread's spares when dropped.
pub(crate) struct PageBuffer(Option<Box<Page>>);

impl PageBuffer {
    pub(crate) fn take() -> PageBuffer {
        let spare = SPARE.with_borrow_mut(Vec::pop);
        PageBuffer(Some(spare.unwrap_or_else(|| Box::new([0; BLOCK_BYTES as usize]))))
    }
}

impl Drop for PageBuffer {
    fn drop(&mut self) {
        let page = self.0.take();
        // While a thread ends, its spares may already be gone.
        let _ = SPARE.try_with(|spare| spare.borrow_mut().extend(page));
    }
}

impl Deref for PageBuffer {
    type Target = Page;

    fn deref(&self) -> &Page {
        self.0.as_deref().expect("taken only when dropped")
    }
}

impl DerefMut for PageBuffer {
    fn deref_mut(&mut self) -> &mut Page {
        self.0.as_deref_mut().expect("taken only when dropped")
    }
}
