//! A walk of a radix tree by runs: leaves are compared a line at a time.
//!
//! Contents: [`FileMap::for_runs`](crate::FileMap::for_runs) for [`Radix`], the only user. Nothing here writes.

use std::sync::atomic::{AtomicU64, Ordering};

use ferrite_pm::LINE_BYTES;

use super::{GROUP_WORDS, GROUPS, LBLK_END, Link, NODE_WORDS, Radix, slot_of};
use crate::gather::{Gather, Visit};
use crate::{Inum, PageRange};

/// Words of a cache line.
const LINE_WORDS: usize = LINE_BYTES as usize / 8;

/// A node, and the first page that it stands for.
#[derive(Clone, Copy)]
struct Node {
    link: Link,
    base: u64,
}

struct Walk<'w> {
    map: &'w Radix,
    range: PageRange,
    /// Nodes that may still be entered: there can be no more, so neither damage nor changes make a walk endless.
    left: u32,
    gather: Gather<'w>,
}

/// Visits the pages of a range, in order.
pub(super) fn walk(map: &Radix, ino: Inum, range: PageRange, visit: Visit<'_>) {
    let Some(link) = map.root(ino) else { return };
    let mut walk = Walk {
        map,
        range,
        left: map.geometry.blocks,
        gather: Gather::new(ino, map.geometry.words, visit),
    };
    if walk.node(Node { link, base: 0 }, None) {
        walk.gather.end();
    }
}

impl<'w> Walk<'w> {
    /// The words of a node that stand for pages of the range.
    fn wanted(&self, Node { link, base }: Node) -> std::ops::Range<usize> {
        let span = link.span();
        let from = (self.range.first.saturating_sub(base) / span).min(NODE_WORDS as u64);
        let to = self.range.end.min(LBLK_END).saturating_sub(base).div_ceil(span);
        from as usize..to.min(NODE_WORDS as u64) as usize
    }

    /// Walks the subtree of a node; false if the visitor wants no more. `next` is the node to walk after it.
    fn node(&mut self, node: Node, next: Option<Link>) -> bool {
        if self.left == 0 {
            return true;
        }
        self.left -= 1;
        let map = self.map;
        let words = map.region.words(node.link.word_offset(0), NODE_WORDS);
        match node.link.height {
            1 => self.leaf(node, words, next),
            _ => self.inner(node, words),
        }
    }

    fn inner(&mut self, node: Node, words: &[AtomicU64]) -> bool {
        let map = self.map;
        let child = |index: usize| map.child(words.get(index)?.load(Ordering::Acquire), node.link.height - 1);
        let wanted = self.wanted(node);
        let children: Vec<(usize, Link)> = wanted.filter_map(|index| Some((index, child(index)?))).collect();
        (0..).zip(&children).all(|(number, &(index, link))| {
            let base = node.base + index as u64 * node.link.span();
            let next = children.get(number + 1).map(|(_, link)| *link);
            self.node(Node { link, base }, next)
        })
    }

    fn leaf(&mut self, node: Node, words: &[AtomicU64], next: Option<Link>) -> bool {
        let wanted = self.wanted(node);
        let is_used = |group: usize| node.link.groups & 1 << group != 0;
        for group in 0..GROUPS as usize {
            let lines = (group * GROUP_WORDS..(group + 1) * GROUP_WORDS).step_by(LINE_WORDS);
            // Leaves lie anywhere, so the machine does not know which one comes next.
            for start in next.iter().flat_map(|_| lines.clone()) {
                next.iter()
                    .for_each(|next| self.map.region.prefetch(next.word_offset(start)));
            }
            for start in lines.filter(|_| is_used(group)) {
                let (from, to) = (start.max(wanted.start), (start + LINE_WORDS).min(wanted.end));
                if from >= to {
                    continue;
                }
                let mut line = [0; LINE_WORDS];
                for (word, stored) in line.iter_mut().zip(&words[from..to]) {
                    *word = stored.load(Ordering::Acquire);
                }
                let (at, slot) = (node.base + from as u64, slot_of(node.link, from));
                let goes_on = match to - from {
                    // A separate case, because its length is constant.
                    LINE_WORDS => self.gather.take(at, &line, slot),
                    count => self.gather.take(at, &line[..count], slot),
                };
                if !goes_on {
                    return false;
                }
            }
        }
        true
    }
}
