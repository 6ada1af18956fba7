//! Which clusters, slots and overflow pages are free: bitmaps in memory, rebuilt when the store is opened. Parts of
//! clusters are in `units`.
//!
//! Invariant: space that metadata on the device names is never free here, and space is given back only when no metadata
//! on the device names it.

/// A set of numbers from 0 up, of which the used ones have a bit.
#[derive(Debug, Clone)]
pub(crate) struct Bitmap {
    words: Vec<u64>,
    len: u32,
    used: u32,
    /// Where the last search ended.
    cursor: u32,
}

impl Bitmap {
    pub(crate) fn new(len: u32) -> Bitmap {
        Bitmap {
            words: vec![0; (len as usize).div_ceil(64)],
            len,
            used: 0,
            cursor: 0,
        }
    }

    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// Adds free numbers.
    pub(crate) fn grow(&mut self, len: u32) {
        self.len = self.len.max(len);
        self.words.resize((self.len as usize).div_ceil(64), 0);
    }

    pub(crate) fn free(&self) -> u32 {
        self.len - self.used
    }

    pub(crate) fn is_used(&self, number: u32) -> bool {
        number < self.len && self.words[number as usize / 64] >> (number % 64) & 1 == 1
    }

    /// Marks one as used; `false` if it was used, or does not exist.
    pub(crate) fn set(&mut self, number: u32) -> bool {
        if number >= self.len || self.is_used(number) {
            return false;
        }
        self.words[number as usize / 64] |= 1 << (number % 64);
        self.used += 1;
        true
    }

    pub(crate) fn clear(&mut self, number: u32) {
        if self.is_used(number) {
            self.words[number as usize / 64] &= !(1 << (number % 64));
            self.used -= 1;
        }
    }

    /// The first free number from `from` on, around the end.
    fn next_free(&self, from: u32) -> Option<u32> {
        if self.used == self.len {
            return None;
        }
        let words = self.words.len();
        let first = from as usize / 64;
        for turn in 0..=words {
            let at = (first + turn) % words;
            let mut free = !self.words[at];
            if turn == 0 {
                free &= u64::MAX << (from % 64);
            }
            let number = (at * 64) as u32 + free.trailing_zeros();
            if free != 0 && number < self.len {
                return Some(number);
            }
        }
        None
    }

    /// The first number from `from` on that is free, or used; the end if none is.
    fn next(&self, from: u32, is_used: bool) -> u32 {
        let first = from as usize / 64;
        for (at, &word) in self.words.iter().enumerate().skip(first) {
            let mut found = if is_used { word } else { !word };
            if at == first {
                found &= u64::MAX << (from % 64);
            }
            if found != 0 {
                return ((at * 64) as u32 + found.trailing_zeros()).min(self.len);
            }
        }
        self.len
    }

    /// The most free numbers in a row: the first, and how many.
    pub(crate) fn longest_run(&self) -> Option<(u32, u32)> {
        let (mut best, mut at) = ((0, 0), self.next(0, false));
        while at < self.len {
            let end = self.next(at, true);
            if end - at > best.1 {
                best = (at, end - at);
            }
            at = self.next(end, false);
        }
        (best.1 > 0).then_some(best)
    }

    /// Takes the lowest free number.
    pub(crate) fn take_lowest(&mut self) -> Option<u32> {
        let number = self.next_free(0)?;
        self.set(number);
        Some(number)
    }

    /// Takes up to `count` numbers in a row: those behind `goal`, if they are free, otherwise the next free ones.
    /// Returns the first and how many; `None` if nothing is free.
    pub(crate) fn take_run(&mut self, goal: Option<u32>, count: u32) -> Option<(u32, u32)> {
        let wanted = goal.filter(|&goal| goal < self.len && !self.is_used(goal));
        let first = match wanted {
            Some(goal) => goal,
            None => self.next_free(self.cursor.min(self.len - 1))?,
        };
        let mut taken = 0;
        while taken < count && self.set(first + taken) {
            taken += 1;
        }
        self.cursor = first + taken;
        Some((first, taken))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_it_is_given_once() {
        for len in [1, 63, 64, 65, 200] {
            let mut map = Bitmap::new(len);
            let mut seen = vec![false; len as usize];
            while let Some((first, count)) = map.take_run(None, 7) {
                for number in first..first + count {
                    assert!(!std::mem::replace(&mut seen[number as usize], true));
                }
            }
            assert!(seen.iter().all(|&seen| seen) && map.free() == 0 && map.take_lowest().is_none());
            map.clear(len / 2);
            assert_eq!((map.take_lowest(), map.free()), (Some(len / 2), 0));
        }
    }

    #[test]
    fn the_longest_run_is_found() {
        for len in [1, 63, 64, 65, 300] {
            let mut map = Bitmap::new(len);
            assert_eq!(map.longest_run(), Some((0, len)));
            let mut state = 3_u64;
            while map.free() > 0 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695);
                map.set((state >> 33) as u32 % len);
                let run = |from: u32| (from..len).take_while(|&number| !map.is_used(number)).count() as u32;
                let longest = (0..len).map(run).max().unwrap_or(0);
                let first = (0..len).find(|&from| run(from) == longest);
                assert_eq!(
                    map.longest_run(),
                    first.filter(|_| longest > 0).map(|first| (first, longest))
                );
            }
        }
    }

    #[test]
    fn a_goal_is_taken_if_it_is_free() {
        let mut map = Bitmap::new(100);
        assert_eq!(map.take_run(Some(40), 10), Some((40, 10)));
        assert_eq!(map.take_run(Some(40), 10), Some((50, 10)), "behind the last");
        assert!(map.set(65));
        assert_eq!(map.take_run(Some(60), 10), Some((60, 5)), "up to the next that is used");
        assert_eq!(map.take_run(Some(1000), 1), Some((66, 1)));
    }
}
