//! The pairs of a shard that its owner knows.
//!
//! Contents: [`Cache`], which knows *ranges*: within one, a key that has no pair does not exist. So a file that is not
//! there is known not to be, and a directory that was made a moment ago is known to be empty.
//!
//! A range is kept as segments, which begin where a scan did and are split when they grow. Eviction drops whole
//! segments, the first that was not used since the last round (the clock algorithm).
//!
//! Invariants: segments do not overlap, and lie in the map under their first key; `bytes` is the sum of their sizes. It
//! is at most the limit after every call, except for one segment. No lock and no clock: `Owned` has both.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use crate::overlay::between;

pub(super) type Key = Vec<u8>;
pub(super) type Value = Arc<[u8]>;

/// A segment with more pairs, or more bytes, is split.
const SEGMENT_PAIRS: usize = 256;
const SEGMENT_BYTES: usize = 64 << 10;
/// Memory that a pair takes beside its bytes, and a segment beside its pairs: measured, roughly.
const PAIR_OVERHEAD: usize = 96;
const SEGMENT_OVERHEAD: usize = 256;

#[derive(Debug)]
struct Segment {
    /// The first key behind it.
    to: Key,
    pairs: BTreeMap<Key, Value>,
    bytes: usize,
    is_used: bool,
}

impl Segment {
    fn new(to: Key, pairs: BTreeMap<Key, Value>) -> Segment {
        let bytes = pairs.iter().map(|(key, value)| size_of_pair(key, value)).sum();
        Segment {
            to,
            pairs,
            bytes,
            is_used: true,
        }
    }

    fn size(&self) -> usize {
        self.bytes + SEGMENT_OVERHEAD
    }
}

fn size_of_pair(key: &[u8], value: &[u8]) -> usize {
    key.len() + value.len() + PAIR_OVERHEAD
}

/// See the head of this module.
#[derive(Debug)]
pub(super) struct Cache {
    segments: BTreeMap<Key, Segment>,
    /// First keys of segments, the next to be looked at first. Some are of segments that are gone.
    hand: VecDeque<Key>,
    bytes: usize,
    limit_bytes: usize,
}

/// The known part of a range, from its start on.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) pairs: Vec<(Key, Value)>,
    /// All before this key is known.
    pub(super) until: Key,
}

impl Cache {
    pub(super) fn new(limit_bytes: usize) -> Cache {
        Cache {
            segments: BTreeMap::new(),
            hand: VecDeque::new(),
            bytes: 0,
            limit_bytes,
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The first key of the segment that covers a key.
    fn covering(&mut self, key: &[u8]) -> Option<&mut Segment> {
        let bounds = (Bound::Unbounded, Bound::Included(key));
        let (_, segment) = self.segments.range_mut::<[u8], _>(bounds).next_back()?;
        (segment.to.as_slice() > key).then_some(segment)
    }

    /// The value of a key, or that it has none; `None` if that is not known.
    pub(super) fn get(&mut self, key: &[u8]) -> Option<Option<Value>> {
        let segment = self.covering(key)?;
        segment.is_used = true;
        Some(segment.pairs.get(key).cloned())
    }

    /// The known part of `from..to`, without a gap from its start on, up to `limit` pairs.
    pub(super) fn run(&mut self, from: &[u8], to: &[u8], limit: usize) -> Run {
        let mut run = Run {
            pairs: Vec::new(),
            until: from.to_vec(),
        };
        while run.until.as_slice() < to {
            let from = run.until.clone();
            let Some(segment) = self.covering(&from) else {
                break;
            };
            segment.is_used = true;
            let mut known = between(&segment.pairs, &from, to);
            let left = limit - run.pairs.len();
            run.pairs.extend(
                known
                    .by_ref()
                    .take(left)
                    .map(|(key, value)| (key.clone(), Arc::clone(value))),
            );
            if let Some((next, _)) = known.next() {
                run.until = next.clone();
                break;
            }
            run.until = segment.to.as_slice().min(to).to_vec();
        }
        run
    }

    /// Learns all pairs of `from..to`.
    pub(super) fn know(&mut self, from: &[u8], to: &[u8], pairs: BTreeMap<Key, Value>) {
        if from >= to {
            return;
        }
        self.forget(from, to);
        let mut rest = Segment::new(to.to_vec(), pairs);
        let mut start = from.to_vec();
        while let Some(middle) = split_at(&rest) {
            let later = rest.pairs.split_off(&middle);
            self.insert(
                std::mem::replace(&mut start, middle.clone()),
                Segment::new(middle, rest.pairs),
            );
            rest = Segment::new(rest.to, later);
        }
        self.insert(start, rest);
        self.evict();
    }

    /// Keeps in step with a change that was committed.
    pub(super) fn change(&mut self, key: &[u8], value: Option<&Value>) {
        let Some(segment) = self.covering(key) else {
            if let Some(value) = value {
                let mut behind = key.to_vec();
                behind.push(0);
                self.know(key, &behind, BTreeMap::from([(key.to_vec(), Arc::clone(value))]));
            }
            return;
        };
        let before = segment.bytes;
        if let Some(value) = value {
            segment.bytes += size_of_pair(key, value);
            if let Some(old) = segment.pairs.insert(key.to_vec(), Arc::clone(value)) {
                segment.bytes -= size_of_pair(key, &old);
            }
        } else if let Some(old) = segment.pairs.remove(key) {
            segment.bytes -= size_of_pair(key, &old);
        }
        segment.is_used = true;
        let (after, is_long) = (segment.bytes, split_at(segment).is_some());
        self.bytes = self.bytes + after - before;
        if is_long {
            self.split(key);
        }
        self.evict();
    }

    /// Splits the segment that covers a key.
    fn split(&mut self, key: &[u8]) {
        let bounds = (Bound::Unbounded, Bound::Included(key));
        let Some(from) = self
            .segments
            .range::<[u8], _>(bounds)
            .next_back()
            .map(|(from, _)| from.clone())
        else {
            return;
        };
        let Some(mut segment) = self.take(&from) else {
            return;
        };
        let half = segment.pairs.keys().nth(segment.pairs.len() / 2).cloned();
        if let Some(middle) = half.filter(|middle| *middle > from) {
            let later = Segment::new(segment.to, segment.pairs.split_off(&middle));
            segment = Segment::new(middle.clone(), segment.pairs);
            self.insert(middle, later);
        }
        self.insert(from, segment);
    }

    fn insert(&mut self, from: Key, segment: Segment) {
        self.bytes += segment.size() + from.len() + segment.to.len();
        self.hand.push_back(from.clone());
        self.segments.insert(from, segment);
    }

    fn take(&mut self, from: &[u8]) -> Option<Segment> {
        let segment = self.segments.remove(from)?;
        self.bytes -= segment.size() + from.len() + segment.to.len();
        Some(segment)
    }

    /// Forgets what is known of a range, and keeps what is known around it.
    fn forget(&mut self, from: &[u8], to: &[u8]) {
        let first = self
            .segments
            .range::<[u8], _>((Bound::Unbounded, Bound::Excluded(from)));
        let first = first.map(|(start, _)| start).next_back().cloned();
        let inner = self
            .segments
            .range::<[u8], _>((Bound::Included(from), Bound::Excluded(to)));
        let overlapping: Vec<Key> = first.into_iter().chain(inner.map(|(start, _)| start.clone())).collect();
        for start in overlapping {
            if self
                .segments
                .get(&start)
                .is_none_or(|segment| segment.to.as_slice() <= from)
            {
                continue;
            }
            let Some(mut segment) = self.take(&start) else {
                continue;
            };
            if segment.to.as_slice() > to {
                let pairs = segment.pairs.split_off(to);
                self.insert(to.to_vec(), Segment::new(segment.to, pairs));
            }
            if start.as_slice() < from {
                drop(segment.pairs.split_off(from));
                self.insert(start, Segment::new(from.to_vec(), segment.pairs));
            }
        }
    }

    fn evict(&mut self) {
        // Entries of segments that are gone must not pile up.
        if self.hand.len() > 2 * self.segments.len() + 64 {
            self.hand = self.segments.keys().cloned().collect();
        }
        while self.bytes > self.limit_bytes && self.segments.len() > 1 {
            let Some(from) = self.hand.pop_front() else {
                self.hand = self.segments.keys().cloned().collect();
                continue;
            };
            match self.segments.get_mut(&from) {
                None => {}
                Some(segment) if segment.is_used => {
                    segment.is_used = false;
                    self.hand.push_back(from);
                }
                Some(_) => drop(self.take(&from)),
            }
        }
    }
}

/// Where a segment is to be cut, if it is too long: the part before has a length that may stay.
fn split_at(segment: &Segment) -> Option<Key> {
    if segment.pairs.len() < 2 || (segment.pairs.len() <= SEGMENT_PAIRS && segment.bytes <= SEGMENT_BYTES) {
        return None;
    }
    let mut bytes = 0;
    for (index, (key, value)) in segment.pairs.iter().enumerate() {
        bytes += size_of_pair(key, value);
        if index > 0 && (index >= SEGMENT_PAIRS || bytes > SEGMENT_BYTES) {
            return Some(key.clone());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrite_measure::Rng;

    fn key(number: u64) -> Key {
        number.to_be_bytes()[6..].to_vec()
    }

    fn value(number: u64) -> Value {
        number.to_le_bytes().as_slice().into()
    }

    fn sum(cache: &Cache) -> usize {
        let size = |(from, segment): (&Key, &Segment)| segment.size() + from.len() + segment.to.len();
        cache.segments.iter().map(size).sum()
    }

    #[test]
    fn a_known_range_also_knows_which_keys_do_not_exist() {
        let mut cache = Cache::new(1 << 20);
        assert_eq!(cache.get(&key(5)), None);
        cache.know(&key(3), &key(9), BTreeMap::from([(key(5), value(1))]));
        assert_eq!(cache.get(&key(5)), Some(Some(value(1))));
        assert_eq!(cache.get(&key(4)), Some(None));
        assert_eq!(cache.get(&key(9)), None);
        assert_eq!(cache.get(&key(2)), None);
        cache.change(&key(5), None);
        assert_eq!(cache.get(&key(5)), Some(None));
        cache.change(&key(20), Some(&value(7)));
        assert_eq!(cache.get(&key(20)), Some(Some(value(7))));
        assert_eq!(cache.get(&key(21)), None);
    }

    /// Against a map of everything: what the cache says is true, its size is right, and it keeps its limit.
    #[test]
    fn what_it_knows_is_true_whatever_was_learned_changed_and_evicted() {
        let seed = std::env::var("FERRITE_SEED").map_or(1, |seed| seed.parse().unwrap());
        println!("FERRITE_SEED={seed}");
        let mut rng = Rng::new(seed);
        let mut all: BTreeMap<Key, Value> = BTreeMap::new();
        let limit = 24 << 10;
        let mut cache = Cache::new(limit);
        let mut known = 0;
        for step in 0..40_000 {
            let (one, other) = (rng.below(2000), rng.below(2000));
            let (from, to) = (key(one.min(other)), key(one.max(other)));
            match rng.below(10) {
                0 => {
                    let to = key(one + rng.below(400));
                    let pairs = between(&all, &from, &to).map(|(key, value)| (key.clone(), Arc::clone(value)));
                    let pairs = pairs.collect();
                    cache.know(&from, &to, pairs);
                }
                1..4 => {
                    let value = value(step);
                    all.insert(from.clone(), Arc::clone(&value));
                    cache.change(&from, Some(&value));
                }
                4 => {
                    all.remove(&from);
                    cache.change(&from, None);
                }
                5 => {
                    let limit = 1 + rng.below(50) as usize;
                    let run = cache.run(&from, &to, limit);
                    let there: Vec<_> = between(&all, &from, run.until.as_slice().max(&from))
                        .map(|(key, value)| (key.clone(), Arc::clone(value)))
                        .collect();
                    assert_eq!(run.pairs, there, "step {step}");
                    assert!(run.pairs.len() <= limit && run.until <= to.max(from));
                }
                _ => {
                    if let Some(found) = cache.get(&from) {
                        known += 1;
                        assert_eq!(found.as_ref(), all.get(&from), "step {step}");
                    }
                }
            }
            assert_eq!(cache.bytes, sum(&cache), "step {step}");
            assert!(cache.bytes <= limit || cache.segments.len() == 1, "step {step}");
            assert!(cache.hand.len() <= 2 * cache.segments.len() + 64, "step {step}");
        }
        assert!(known > 1000, "it hardly knew anything ({known})");
    }
}
