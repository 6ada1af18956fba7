//! Recordings of a program that forgets some of its fences and write-backs.
//!
//! Contents: [`Log::without`], which leaves them out of a log, and [`Step`], by which a test names them: by the regions
//! that a thread wrote before and after. The program itself has no such mistakes, and needs no code for them.

use std::collections::HashMap;
use std::ops::Range;

use crate::cpu::LINE_BYTES;
use crate::crash::{Event, Log};

/// A recorded event among the other events of its thread. Marks are not among them.
#[derive(Clone, Copy)]
pub struct Step<'l> {
    index: &'l Index<'l>,
    at: usize,
}

struct Index<'l> {
    events: &'l [(usize, Event)],
    /// By thread: the places of its events.
    of_thread: HashMap<usize, Vec<usize>>,
    /// By place: how many events of the same thread come before.
    nth: Vec<usize>,
    /// By line: the places of the events that store to it through the cache, or write it back.
    of_line: HashMap<u64, Vec<usize>>,
}

impl<'l> Index<'l> {
    fn of(events: &'l [(usize, Event)]) -> Index<'l> {
        let mut index = Index {
            events,
            of_thread: HashMap::new(),
            nth: vec![0; events.len()],
            of_line: HashMap::new(),
        };
        for (at, (thread, event)) in events.iter().enumerate() {
            let own = index.of_thread.entry(*thread).or_default();
            index.nth[at] = own.len();
            if !matches!(event, Event::Mark(_)) {
                own.push(at);
            }
            let touched = match event {
                Event::Store { offset, words } => *offset..offset + words.len() as u64 * 8,
                Event::WriteBack { line } => *line..line + LINE_BYTES,
                Event::Stream { .. } | Event::Fence | Event::Sync | Event::Mark(_) => continue,
            };
            for line in touched.start / LINE_BYTES..touched.end.div_ceil(LINE_BYTES) {
                index.of_line.entry(line * LINE_BYTES).or_default().push(at);
            }
        }
        index
    }
}

impl<'l> Step<'l> {
    /// The event.
    pub fn event(&self) -> &'l Event {
        &self.index.events[self.at].1
    }

    fn own(&self) -> (&'l [usize], usize) {
        let own = &self.index.of_thread[&self.index.events[self.at].0];
        (own, self.index.nth[self.at])
    }

    /// The earlier events of its thread, latest first.
    pub fn before(&self) -> impl Iterator<Item = Step<'l>> + use<'l> {
        let (index, (own, nth)) = (self.index, self.own());
        own[..nth].iter().rev().map(move |&at| Step { index, at })
    }

    /// The later events of its thread.
    pub fn after(&self) -> impl Iterator<Item = Step<'l>> + use<'l> {
        let (index, (own, nth)) = (self.index, self.own());
        own[nth + 1..].iter().map(move |&at| Step { index, at })
    }

    /// The earlier events of its thread since the last fence, latest first: those that a fence here would complete.
    pub fn since_fence(&self) -> impl Iterator<Item = Step<'l>> + use<'l> {
        self.before().take_while(|step| !step.is_fence())
    }

    /// The earlier events of all threads that store to a line through the cache, or write it back, latest first.
    pub fn before_at(&self, line: u64) -> impl Iterator<Item = Step<'l>> + use<'l> {
        let index = self.index;
        let all = index.of_line.get(&line).map_or(&[][..], |all| all);
        let earlier = &all[..all.partition_point(|&at| at < self.at)];
        earlier.iter().rev().map(move |&at| Step { index, at })
    }

    /// Whether it is a fence or a sync.
    pub fn is_fence(&self) -> bool {
        matches!(self.event(), Event::Fence | Event::Sync)
    }

    /// Whether it is a stream that begins in `region`.
    pub fn streams_to(&self, region: &Range<u64>) -> bool {
        matches!(self.event(), Event::Stream { offset, .. } if region.contains(offset))
    }

    /// Whether it stores to a word of `region` through the cache.
    pub fn stores_to(&self, region: &Range<u64>) -> bool {
        match self.event() {
            Event::Store { offset, words } => *offset < region.end && offset + words.len() as u64 * 8 > region.start,
            _ => false,
        }
    }

    /// The range of the line that it writes back.
    pub fn written_back(&self) -> Option<Range<u64>> {
        match self.event() {
            Event::WriteBack { line } => Some(*line..line + LINE_BYTES),
            _ => None,
        }
    }
}

impl Log {
    /// The recording of a program that leaves out the fences, syncs and write-backs for which `is_left_out` holds.
    pub fn without(&self, is_left_out: impl Fn(&Step<'_>) -> bool) -> Log {
        let index = Index::of(&self.events);
        let step = |at| Step { index: &index, at };
        let is_kept = |at: usize| match self.events[at].1 {
            Event::Fence | Event::Sync | Event::WriteBack { .. } => !is_left_out(&step(at)),
            Event::Store { .. } | Event::Stream { .. } | Event::Mark(_) => true,
        };
        let kept = (0..self.events.len()).filter(|&at| is_kept(at));
        Log::new(self.initial.clone(), kept.map(|at| self.events[at].clone()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crash::Choice;

    fn stream(offset: u64) -> Event {
        Event::Stream { offset, words: vec![1] }
    }

    fn store(offset: u64) -> Event {
        Event::Store { offset, words: vec![1] }
    }

    /// Two threads: one streams a record and fences, the other stores a word, writes it back and fences.
    fn log() -> Log {
        let events = [
            (0, stream(0)),
            (1, store(64)),
            (1, Event::Mark(7)),
            (1, Event::WriteBack { line: 64 }),
            (0, Event::Fence),
            (1, Event::Fence),
            (0, store(128)),
        ];
        Log::new(vec![0; 256].into(), events.to_vec())
    }

    /// The words that are certainly durable in the end.
    fn durable(log: &Log) -> Vec<u64> {
        let mut cursor = log.cursor();
        while cursor.advance() {}
        cursor.with_image(Choice::None, |image| {
            (0..256).step_by(64).filter(|&at| image[at as usize] == 1).collect()
        })
    }

    #[test]
    fn a_fence_that_is_left_out_makes_nothing_durable() {
        assert_eq!(durable(&log()), [0, 64]);
        let after_record = |step: &Step<'_>| step.since_fence().any(|step| step.streams_to(&(0..64)));
        let log = log().without(|step| step.is_fence() && after_record(step));
        assert_eq!((durable(&log), log.crash_points()), (vec![64], 2));
    }

    #[test]
    fn a_write_back_that_is_left_out_makes_nothing_durable() {
        let of_word = |step: &Step<'_>| step.written_back().is_some_and(|line| line.contains(&64));
        let log = log().without(of_word);
        assert_eq!((durable(&log), log.crash_points()), (vec![0], 3));
    }

    #[test]
    fn a_step_knows_the_others_of_its_thread() {
        let log = log();
        let index = Index::of(&log.events);
        let fence = Step { index: &index, at: 5 };
        assert!(fence.is_fence() && fence.after().next().is_none());
        let before: Vec<_> = fence.before().map(|step| step.event().clone()).collect();
        assert_eq!(before, [Event::WriteBack { line: 64 }, store(64)], "marks do not count");
        let at_line: Vec<_> = fence.before_at(64).map(|step| step.event().clone()).collect();
        assert_eq!(at_line, [Event::WriteBack { line: 64 }, store(64)]);
        assert!(fence.before_at(128).next().is_none(), "it comes later");
        let record = Step { index: &index, at: 0 };
        let after: Vec<_> = record.after().map(|step| step.event().clone()).collect();
        assert_eq!(after, [Event::Fence, store(128)]);
        let last = Step { index: &index, at: 6 };
        assert!(last.stores_to(&(100..136)) && !last.stores_to(&(136..200)));
        assert_eq!(last.since_fence().count(), 0);
    }

    #[test]
    fn stores_stay_whatever_the_test_says() {
        let log = log().without(|_| true);
        assert_eq!(log.events.len(), 4);
        assert_eq!(durable(&log), [0; 0]);
    }
}
