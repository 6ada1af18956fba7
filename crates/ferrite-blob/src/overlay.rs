//! A device as it would be after a replay of the ring, for a store that is opened read-only.
//!
//! Invariant: nothing is written, whatever the request. Used by `store` only.

use std::collections::HashMap;

use crate::device::{Device, Op, failed};
use crate::ring::Pending;
use crate::{PAGE_BYTES, Result};

struct Overlay {
    below: Box<dyn Device>,
    pages: HashMap<u64, Box<[u8]>>,
}

/// A device with these pages in front of its own; the last one counts.
pub(crate) fn over(below: Box<dyn Device>, pages: Pending) -> Box<dyn Device> {
    match pages.is_empty() {
        true => below,
        false => Box::new(Overlay {
            below,
            pages: pages.into_iter().collect(),
        }),
    }
}

impl Device for Overlay {
    fn name(&self) -> &str {
        self.below.name()
    }

    fn len_bytes(&self) -> u64 {
        self.below.len_bytes()
    }

    fn writes_whole_pages(&self) -> bool {
        self.below.writes_whole_pages()
    }

    fn run(&self, batch: &mut [Op<'_>]) -> Result<()> {
        if let Some(op) = batch.iter().find(|op| matches!(op, Op::Write { .. })) {
            return Err(failed(self, op, "it is open for looking only"));
        }
        self.below.run(batch)?;
        for op in batch {
            let Op::Read { offset, into } = op else { continue };
            let mut done = 0;
            while done < into.len() {
                let at = *offset + done as u64;
                let within = (at % PAGE_BYTES as u64) as usize;
                let len = (PAGE_BYTES - within).min(into.len() - done);
                if let Some(page) = self.pages.get(&(at / PAGE_BYTES as u64)) {
                    into[done..done + len].copy_from_slice(&page[within..within + len]);
                }
                done += len;
            }
        }
        Ok(())
    }
}
