//! Crash images: the possible contents of a medium if everything stops at a given point.
//!
//! The model: any subset of the stores that are not yet durable survives, atomic per aligned word; a word holds its
//! durable value or one of those stored to it since, and no word is ever older than its durable value.
//!
//! A store is durable when its line was written back after it, and the thread that wrote it back (or streamed the
//! store) has fenced since. A store that no thread wrote back may reach the medium at any later time, or never.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use parking_lot::Mutex;

use crate::cpu::LINE_BYTES;
use crate::image::Image;

/// One recorded step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Words stored through the cache from `offset` on: durable only when written back and fenced.
    Store {
        /// Pool offset, 8-aligned.
        offset: u64,
        /// Values.
        words: Vec<u64>,
    },
    /// Words stored past the cache: durable when this thread fences.
    Stream {
        /// Pool offset, 8-aligned.
        offset: u64,
        /// Values.
        words: Vec<u64>,
    },
    /// A cache line was written back: its content is durable when this thread fences.
    WriteBack {
        /// Offset of the line.
        line: u64,
    },
    /// A fence.
    Fence,
    /// A sync: a fence of all threads.
    Sync,
    /// A tag from the test: that an operation returned, for instance.
    Mark(u64),
}

/// Which of the stores in flight survive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// None.
    None,
    /// All.
    All,
    /// A random subset, by this seed: some lines whole, some lost, some torn at words.
    Random(u64),
    /// Those of the nth line in flight, alone.
    OnlyLine(usize),
    /// All but those of the nth line in flight.
    AllButLine(usize),
    /// All but those of two lines.
    AllButPair(usize, usize),
    /// Those of the lines whose bits are set: the nth bit for the nth line in flight.
    Lines(u64),
}

/// A finished recording.
#[derive(Debug, Clone)]
pub struct Log {
    pub(crate) initial: Image,
    pub(crate) events: Vec<(usize, Event)>,
}

impl Log {
    pub(crate) fn new(initial: Image, events: Vec<(usize, Event)>) -> Self {
        Log { initial, events }
    }

    /// Number of crash points: one right before each fence or sync takes effect, and one at the end.
    pub fn crash_points(&self) -> usize {
        let is_point = |event: &Event| matches!(event, Event::Fence | Event::Sync);
        self.events.iter().filter(|(_, event)| is_point(event)).count() + 1
    }

    /// The content of the region when the recording ended, unfenced stores included.
    pub fn final_image(&self) -> Vec<u8> {
        let mut image = self.initial.to_vec();
        for (_, event) in &self.events {
            if let Event::Store { offset, words } | Event::Stream { offset, words } = event {
                for (index, &value) in words.iter().enumerate() {
                    put(&mut image, offset + index as u64 * 8, value);
                }
            }
        }
        image
    }

    /// Steps through the crash points in order.
    pub fn cursor(&self) -> ImageCursor<'_> {
        let mut cursor = ImageCursor {
            log: self,
            next: 0,
            point: 0,
            fingerprint: mix_bytes(&self.initial),
            image: self.initial.clone(),
            flying: BTreeMap::new(),
            ready: HashMap::new(),
            marks: Vec::new(),
        };
        cursor.run_to_fence();
        cursor
    }
}

struct Version {
    value: u64,
    /// Threads whose next fence makes it durable.
    ready_for: BTreeSet<usize>,
}

/// Stands at one crash point; builds images there without copying the pool for each.
pub struct ImageCursor<'a> {
    log: &'a Log,
    next: usize,
    point: usize,
    /// The durable content.
    image: Image,
    /// For `image`: the exclusive or of a hash of each word and its place, so that each change can be applied to it.
    fingerprint: u64,
    /// Words in flight: the values stored since the durable one, oldest first.
    flying: BTreeMap<u64, Vec<Version>>,
    /// Words that a thread's next fence concerns.
    ready: HashMap<usize, BTreeSet<u64>>,
    marks: Vec<u64>,
}

impl ImageCursor<'_> {
    /// Number of the crash point.
    pub fn point(&self) -> usize {
        self.point
    }

    /// Tags recorded before this point.
    pub fn marks(&self) -> &[u64] {
        &self.marks
    }

    /// Lines with stores in flight.
    pub fn lines_in_flight(&self) -> usize {
        self.lines().len()
    }

    fn lines(&self) -> Vec<u64> {
        let lines: BTreeSet<u64> = self.flying.keys().map(|offset| offset / LINE_BYTES).collect();
        lines.into_iter().collect()
    }

    /// Advances to the next crash point; false at the end.
    pub fn advance(&mut self) -> bool {
        match self.log.events.get(self.next) {
            Some((thread, Event::Fence)) => self.fence(*thread),
            Some((_, Event::Sync)) => {
                let threads: Vec<usize> = self.ready.keys().copied().collect();
                threads.into_iter().for_each(|thread| self.fence(thread));
            }
            _ => return false,
        }
        self.next += 1;
        self.point += 1;
        self.run_to_fence();
        true
    }

    fn run_to_fence(&mut self) {
        while let Some((thread, event)) = self.log.events.get(self.next) {
            match event {
                Event::Fence | Event::Sync => return,
                Event::Mark(tag) => self.marks.push(*tag),
                Event::Store { offset, words } => self.store(*offset, words, None),
                Event::Stream { offset, words } => self.store(*offset, words, Some(*thread)),
                Event::WriteBack { line } => self.write_back(*line, *thread),
            }
            self.next += 1;
        }
    }

    fn store(&mut self, offset: u64, words: &[u64], streamed_by: Option<usize>) {
        for (index, &value) in words.iter().enumerate() {
            let at = offset + index as u64 * 8;
            let ready_for = streamed_by.into_iter().collect();
            self.flying.entry(at).or_default().push(Version { value, ready_for });
            if let Some(thread) = streamed_by {
                self.ready.entry(thread).or_default().insert(at);
            }
        }
    }

    fn write_back(&mut self, line: u64, thread: usize) {
        for (&at, versions) in self.flying.range_mut(line..line + LINE_BYTES) {
            for version in versions {
                version.ready_for.insert(thread);
            }
            self.ready.entry(thread).or_default().insert(at);
        }
    }

    fn fence(&mut self, thread: usize) {
        for at in self.ready.remove(&thread).unwrap_or_default() {
            let Some(versions) = self.flying.get_mut(&at) else {
                continue;
            };
            let Some(newest) = versions.iter().rposition(|version| version.ready_for.contains(&thread)) else {
                continue;
            };
            self.fingerprint ^= word_hash(at, get(&self.image, at)) ^ word_hash(at, versions[newest].value);
            self.image.put(at, versions[newest].value);
            versions.drain(..=newest);
            if versions.is_empty() {
                self.flying.remove(&at);
            }
        }
    }

    /// Words that `choice` changes in the durable image.
    fn picks(&self, choice: Choice) -> Vec<Pick> {
        let lines = self.lines();
        let mut picks = Vec::new();
        for (&at, versions) in &self.flying {
            let line = at / LINE_BYTES;
            let number = || {
                lines
                    .binary_search(&line)
                    .expect("lines are those of the words in flight")
            };
            let whole = |kept: bool| versions.len() * usize::from(kept);
            // 0 keeps the durable value, n takes the nth version.
            let pick = match choice {
                Choice::None => 0,
                Choice::All => versions.len(),
                Choice::OnlyLine(n) => whole(number() == n),
                Choice::AllButLine(n) => whole(number() != n),
                Choice::AllButPair(n, m) => whole(number() != n && number() != m),
                Choice::Lines(mask) => whole(number() < 64 && mask >> number() & 1 != 0),
                Choice::Random(seed) => match mix(seed ^ mix(line)) % 3 {
                    0 => 0,
                    1 => versions.len(),
                    _ => (mix(seed ^ mix(at) ^ 0x5bd1) % (versions.len() as u64 + 1)) as usize,
                },
            };
            if pick > 0 {
                picks.push(Pick {
                    at,
                    value: versions[pick - 1].value,
                });
            }
        }
        picks
    }

    /// A hash of the image that `choice` leaves: equal for equal images, and computed without building the image.
    pub fn fingerprint(&self, choice: Choice) -> u64 {
        let change = |Pick { at, value }| word_hash(at, get(&self.image, at)) ^ word_hash(at, value);
        self.picks(choice)
            .into_iter()
            .map(change)
            .fold(self.fingerprint, |a, b| a ^ b)
    }

    /// Calls `f` with the image that `choice` leaves.
    pub fn with_image<T>(&mut self, choice: Choice, f: impl FnOnce(&Image) -> T) -> T {
        let picks = self.picks(choice);
        let undo = picks.iter().map(|&Pick { at, .. }| (at, get(&self.image, at)));
        let undo: Vec<_> = undo.collect();
        for Pick { at, value } in picks {
            self.image.put(at, value);
        }
        let result = f(&self.image);
        for (at, value) in undo {
            self.image.put(at, value);
        }
        result
    }
}

/// A word of the image with the value that it gets.
struct Pick {
    /// Its offset.
    at: u64,
    value: u64,
}

fn word_hash(at: u64, value: u64) -> u64 {
    mix(at ^ mix(value))
}

/// The exclusive or of all words' hashes. Takes those of zeros from an earlier image of this length, since most words
/// are zeros, and each recovery that is crashed again has an image of its own.
fn mix_bytes(image: &[u8]) -> u64 {
    const PART: [u8; 4096] = [0; 4096];
    static ALL_ZEROS: Mutex<BTreeMap<usize, u64>> = Mutex::new(BTreeMap::new());
    let zeros = || (0..image.len() as u64 / 8).fold(0, |sum, index| sum ^ word_hash(index * 8, 0));
    let mut sum = *ALL_ZEROS.lock().entry(image.len()).or_insert_with(zeros);
    for (part, bytes) in image.chunks(PART.len()).enumerate() {
        if bytes == &PART[..bytes.len()] {
            continue;
        }
        for (index, word) in bytes.chunks_exact(8).enumerate() {
            let at = (part * PART.len() + index * 8) as u64;
            let value = u64::from_le_bytes(word.try_into().expect("eight bytes"));
            sum ^= word_hash(at, 0) ^ word_hash(at, value);
        }
    }
    sum
}

fn get(image: &[u8], at: u64) -> u64 {
    u64::from_le_bytes(image[at as usize..at as usize + 8].try_into().expect("eight bytes"))
}

fn put(image: &mut [u8], at: u64, value: u64) {
    image[at as usize..at as usize + 8].copy_from_slice(&value.to_le_bytes());
}

/// A well-mixed function of a number (splitmix64).
fn mix(value: u64) -> u64 {
    let z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(events: Vec<(usize, Event)>) -> Log {
        Log::new(vec![0; 256].into(), events)
    }

    fn store(offset: u64, value: u64) -> Event {
        Event::Store {
            offset,
            words: vec![value],
        }
    }

    /// All values word `at` can have at crash point `point`.
    fn values(log: &Log, point: usize, at: u64) -> BTreeSet<u64> {
        let mut cursor = log.cursor();
        while cursor.point() < point {
            assert!(cursor.advance());
        }
        let random = (0..64).map(Choice::Random);
        [Choice::None, Choice::All]
            .into_iter()
            .chain(random)
            .map(|c| cursor.with_image(c, |i| get(i, at)))
            .collect()
    }

    #[test]
    fn a_store_is_durable_only_after_write_back_and_fence() {
        let log = log(vec![
            (0, store(64, 1)),
            (0, Event::Fence),
            (0, Event::WriteBack { line: 64 }),
            (0, Event::Fence),
            (0, Event::Fence),
        ]);
        assert_eq!(log.crash_points(), 4);
        assert_eq!(values(&log, 0, 64), [0, 1].into());
        assert_eq!(values(&log, 1, 64), [0, 1].into(), "a fence alone is not enough");
        assert_eq!(values(&log, 2, 64), [1].into());
    }

    #[test]
    fn another_threads_fence_does_not_count() {
        let log = log(vec![
            (
                0,
                Event::Stream {
                    offset: 0,
                    words: vec![7],
                },
            ),
            (1, Event::Fence),
            (0, Event::Fence),
        ]);
        assert_eq!(values(&log, 1, 0), [0, 7].into());
        assert_eq!(values(&log, 2, 0), [7].into());
    }

    #[test]
    fn a_word_never_gets_older_than_its_durable_value() {
        let log = log(vec![
            (0, store(8, 1)),
            (0, Event::WriteBack { line: 0 }),
            (0, store(8, 2)),
            (0, Event::Fence),
            (0, store(8, 3)),
        ]);
        assert_eq!(values(&log, 0, 8), [0, 1, 2].into());
        assert_eq!(
            values(&log, 1, 8),
            [1, 2, 3].into(),
            "2 and 3 are still in flight, 1 is durable"
        );
    }

    #[test]
    fn fingerprints_follow_the_image() {
        let log = log(vec![
            (0, store(0, 1)),
            (0, store(64, 2)),
            (0, store(128, 3)),
            (0, Event::WriteBack { line: 0 }),
            (0, Event::Fence),
            (0, store(0, 0)),
        ]);
        let mut cursor = log.cursor();
        loop {
            let pairs = [Choice::AllButPair(0, 1), Choice::AllButLine(2), Choice::OnlyLine(1)];
            for choice in (0..8).map(Choice::Lines).chain(pairs) {
                let expected = cursor.with_image(choice, |image| mix_bytes(image));
                assert_eq!(cursor.fingerprint(choice), expected, "{choice:?}");
            }
            if !cursor.advance() {
                break;
            }
        }
        assert_eq!(cursor.lines_in_flight(), 3);
        assert_eq!(
            cursor.with_image(Choice::Lines(0b110), |i| (get(i, 0), get(i, 64), get(i, 128))),
            (1, 2, 3)
        );
    }

    #[test]
    fn a_fingerprint_is_that_of_all_words() {
        let mut image = vec![0; 3 * 4096 + 8];
        for at in [0, 4088, 4096, 8191, 12_290] {
            image[at] = at as u8 | 1;
            let words = (0..image.len() as u64).step_by(8);
            let expected = words.fold(0, |sum, at| sum ^ word_hash(at, get(&image, at)));
            assert_eq!(mix_bytes(&image), expected);
        }
    }

    #[test]
    fn random_choices_tear_lines_at_words_and_leave_the_cursor_as_it_was() {
        let log = log(vec![(
            0,
            Event::Stream {
                offset: 0,
                words: vec![1; 8],
            },
        )]);
        let mut cursor = log.cursor();
        let torn = (0..200).any(|seed| {
            cursor.with_image(Choice::Random(seed), |image| {
                let ones = (0..8).filter(|&n| get(image, n * 8) == 1).count();
                (1..8).contains(&ones)
            })
        });
        assert!(torn);
        assert!(cursor.with_image(Choice::None, |image| image.iter().all(|&byte| byte == 0)));
    }
}
