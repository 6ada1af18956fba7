//! A device that is larger than the memory it needs.

use std::collections::HashMap;

use ferrite_blob::PAGE_BYTES;
use ferrite_blob::device::{Device, Op};
use parking_lot::Mutex;

/// A device of any size that stores only the pages that were written, except for those of zeros.
pub(crate) struct Sparse {
    pub(crate) pages: Mutex<HashMap<u64, Box<[u8]>>>,
    len_bytes: u64,
}

impl Sparse {
    pub(crate) fn new(len_bytes: u64) -> Sparse {
        Sparse {
            pages: Mutex::default(),
            len_bytes,
        }
    }

    pub(crate) fn copy(&self) -> Sparse {
        Sparse {
            pages: Mutex::new(self.pages.lock().clone()),
            len_bytes: self.len_bytes,
        }
    }
}

impl Device for Sparse {
    fn name(&self) -> &str {
        "sparse"
    }

    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn writes_whole_pages(&self) -> bool {
        true
    }

    fn run(&self, batch: &mut [Op<'_>]) -> ferrite_blob::Result<()> {
        let mut pages = self.pages.lock();
        for op in batch {
            let Some(range) = op.range() else { continue };
            let first = range.start / PAGE_BYTES as u64;
            match op {
                Op::Read { into, .. } => {
                    for (page, into) in (first..).zip(into.chunks_mut(PAGE_BYTES)) {
                        match pages.get(&page) {
                            Some(bytes) => into.copy_from_slice(bytes),
                            None => into.fill(0),
                        }
                    }
                }
                Op::Write { from, .. } => {
                    for (page, from) in (first..).zip(from.chunks(PAGE_BYTES)) {
                        if from.len() == PAGE_BYTES && from.iter().all(|&byte| byte == 0) {
                            pages.remove(&page);
                            continue;
                        }
                        let kept = pages.entry(page).or_insert_with(|| vec![0; PAGE_BYTES].into());
                        // A write that was cut short ends within a page.
                        kept[..from.len()].copy_from_slice(from);
                    }
                }
                Op::Flush => {}
            }
        }
        Ok(())
    }
}
