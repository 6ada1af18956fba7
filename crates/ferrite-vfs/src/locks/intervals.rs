//! [`Intervals`]: an index of byte ranges that may overlap, searched by overlap.
//!
//! It is a treap by start and tag in which each node knows the largest end below it. Adding, removing, and
//! finding the first overlap take logarithmic time; a visit takes that and the overlaps. Used by the lock table only.
//!
//! Invariants: no two entries have the same start and tag. A node's priority is not smaller than its children's, and
//! callers cannot predict priorities, so no client can choose ranges that make the tree deep.

use std::cell::Cell;
use std::cmp::Ordering;
use std::hash::{BuildHasher, RandomState};
use std::ops::ControlFlow;

use super::ByteRange;

type Link<T> = Option<Box<Node<T>>>;

#[derive(Debug)]
struct Node<T> {
    start: u64,
    tag: T,
    end: u64,
    end_max: u64,
    priority: u64,
    left: Link<T>,
    right: Link<T>,
}

/// See the head of this module.
#[derive(Debug)]
pub(super) struct Intervals<T> {
    root: Link<T>,
}

impl<T> Default for Intervals<T> {
    fn default() -> Self {
        Intervals { root: None }
    }
}

/// A number that callers cannot foresee.
fn priority() -> u64 {
    thread_local! {
        static STATE: Cell<u64> = Cell::new(RandomState::new().hash_one(0u8) | 1);
    }
    let mut state = STATE.get();
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    STATE.set(state);
    state
}

impl<T: Ord + Copy> Node<T> {
    fn update(&mut self) {
        let below = [&self.left, &self.right].into_iter().flatten().map(|node| node.end_max);
        self.end_max = below.fold(self.end, u64::max);
    }

    fn compare(&self, start: u64, tag: T) -> Ordering {
        (self.start, self.tag).cmp(&(start, tag))
    }
}

/// The entries before this place, and those from there on.
fn split<T: Ord + Copy>(link: Link<T>, start: u64, tag: T) -> (Link<T>, Link<T>) {
    let Some(mut node) = link else { return (None, None) };
    if node.compare(start, tag) == Ordering::Less {
        let (before, after) = split(node.right.take(), start, tag);
        node.right = before;
        node.update();
        (Some(node), after)
    } else {
        let (before, after) = split(node.left.take(), start, tag);
        node.left = after;
        node.update();
        (before, Some(node))
    }
}

/// All of `before` come before those of `after`.
fn join<T: Ord + Copy>(before: Link<T>, after: Link<T>) -> Link<T> {
    match (before, after) {
        (None, link) | (link, None) => link,
        (Some(mut before), Some(mut after)) => Some(if before.priority >= after.priority {
            before.right = join(before.right.take(), Some(after));
            before.update();
            before
        } else {
            after.left = join(Some(before), after.left.take());
            after.update();
            after
        }),
    }
}

fn insert<T: Ord + Copy>(link: Link<T>, mut new: Box<Node<T>>) -> Box<Node<T>> {
    let Some(mut node) = link else { return new };
    if new.priority > node.priority {
        (new.left, new.right) = split(Some(node), new.start, new.tag);
        new.update();
        return new;
    }
    let side = match node.compare(new.start, new.tag) {
        Ordering::Less => &mut node.right,
        _ => &mut node.left,
    };
    *side = Some(insert(side.take(), new));
    node.update();
    node
}

fn remove<T: Ord + Copy>(link: Link<T>, start: u64, tag: T) -> Link<T> {
    let mut node = link?;
    match node.compare(start, tag) {
        Ordering::Equal => return join(node.left.take(), node.right.take()),
        Ordering::Less => node.right = remove(node.right.take(), start, tag),
        Ordering::Greater => node.left = remove(node.left.take(), start, tag),
    }
    node.update();
    Some(node)
}

fn visit<T: Copy, B>(
    link: &Link<T>,
    range: &ByteRange,
    each: &mut dyn FnMut(ByteRange, T) -> ControlFlow<B>,
) -> ControlFlow<B> {
    let Some(node) = link else {
        return ControlFlow::Continue(());
    };
    if node.end_max <= range.start {
        return ControlFlow::Continue(());
    }
    visit(&node.left, range, each)?;
    if node.start >= range.end {
        return ControlFlow::Continue(());
    }
    if node.end > range.start {
        let (start, end) = (node.start, node.end);
        each(ByteRange { start, end }, node.tag)?;
    }
    visit(&node.right, range, each)
}

impl<T: Ord + Copy> Intervals<T> {
    pub(super) fn insert(&mut self, range: ByteRange, tag: T) {
        let ByteRange { start, end } = range;
        let new = Box::new(Node {
            start,
            tag,
            end,
            end_max: end,
            priority: priority(),
            left: None,
            right: None,
        });
        self.root = Some(insert(self.root.take(), new));
    }

    pub(super) fn remove(&mut self, start: u64, tag: T) {
        self.root = remove(self.root.take(), start, tag);
    }

    /// Visits all entries that share a byte with `range`, by start, until `each` breaks.
    pub(super) fn visit<B>(
        &self,
        range: &ByteRange,
        mut each: impl FnMut(ByteRange, T) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        visit(&self.root, range, &mut each)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn depth<T>(link: &Link<T>) -> usize {
        link.as_ref()
            .map_or(0, |node| 1 + depth(&node.left).max(depth(&node.right)))
    }

    fn overlaps(tree: &Intervals<u64>, range: ByteRange) -> Vec<(u64, u64)> {
        let mut found = Vec::new();
        let all: ControlFlow<()> = tree.visit(&range, |range, tag| {
            found.push((range.start, tag));
            ControlFlow::Continue(())
        });
        assert!(all.is_continue());
        found
    }

    #[test]
    fn agrees_with_a_list() {
        let mut tree = Intervals::default();
        let mut list: Vec<(ByteRange, u64)> = Vec::new();
        for round in 0..20_000u64 {
            let (at, len) = (priority() % 1000, 1 + priority() % 60);
            let range = ByteRange {
                start: at,
                end: at + len,
            };
            if list.len() < 300 {
                tree.insert(range, round);
                list.push((range, round));
            } else {
                let (range, tag) = list.swap_remove(priority() as usize % list.len());
                tree.remove(range.start, tag);
            }
            let mut expected: Vec<(u64, u64)> = list
                .iter()
                .filter(|(other, _)| other.overlaps(&range))
                .map(|(other, tag)| (other.start, *tag))
                .collect();
            expected.sort_unstable();
            assert_eq!(overlaps(&tree, range), expected);
        }
    }

    #[test]
    fn rows_of_ranges_do_not_make_it_deep() {
        let mut tree = Intervals::default();
        for start in 0..16_384 {
            tree.insert(ByteRange { start, end: start + 1 }, start);
        }
        let depth = depth(&tree.root);
        assert!(depth < 80, "{depth} levels");
    }
}
