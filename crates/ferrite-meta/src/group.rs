//! Group commit: transactions that are ready at about the same time are written, and synced, as one.
//!
//! Each that is ready joins the open group. Whoever completes it, writes it, and all the others sleep until that has
//! been done. Meanwhile the next group is open. When is a group complete? Threads that commit again and again come back
//! a moment after a group of theirs was written, so as many are expected as the last group had, and as joined while it
//! was written. If they do not come, the first of the group looks after it: it goes as it is when nobody has joined for
//! as long as a sync takes. So to wait in vain costs no more than that, and not again, for then fewer are expected; who
//! commits alone expects nobody, and waits for nobody.
//!
//! Without that wait groups stay small where cores are few: a sync and its changes of threads take the cores from those
//! who would join the next group, and the fewer they are, the more syncs there have to be.
//!
//! Invariants: groups are written one after another. A group is written by one of its members, once, and nobody who
//! joined it returns before that. Who joins a group holds the locks of what it changes until it has returned, so two of
//! a group never change the same key. The mutex here is held for moments, and nobody waits for anything under it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use rustix::thread::futex::{self, Flags, Timespec};

use crate::error::Result;

/// A group goes when nobody has joined for as long as the last one was written, within these bounds. The lower one is
/// what the kernel's timers can do.
const GAP_MIN: Duration = Duration::from_micros(50);
const GAP_MAX: Duration = Duration::from_millis(1);
/// A group goes after so many gaps, even if members come one by one.
const GAPS_MAX: u32 = 8;

const WAITING: u32 = 0;
const DONE: u32 = 1;

/// Those who are written together.
#[derive(Default)]
struct Group {
    /// Members sleep on it until it is [`DONE`].
    word: AtomicU32,
    /// The first member sleeps on it while the group before is written.
    turn: AtomicU32,
    result: OnceLock<Result<()>>,
}

struct State<B> {
    open: Arc<Group>,
    batch: B,
    /// Members of the open group.
    joined: u32,
    /// How many are expected to join it.
    expected: u32,
    is_writing: bool,
    gap: Duration,
    /// Not in use, so that not every group needs a new one.
    spare: Option<B>,
}

/// Where transactions join. `B` is what they change.
pub(crate) struct Groups<B>(Mutex<State<B>>);

/// Sleeps until a word is not zero, or so long.
fn sleep(word: &AtomicU32, limit: Option<Duration>) {
    let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
    if word.load(Ordering::Acquire) == WAITING {
        // Whatever wakes it, the caller looks again.
        let _ = futex::wait(word, Flags::PRIVATE, WAITING, limit.as_ref());
    }
}

fn wake(word: &AtomicU32, count: u32) {
    word.store(DONE, Ordering::Release);
    let _ = futex::wake(word, Flags::PRIVATE, count);
}

impl Group {
    fn wait(&self) -> Result<()> {
        loop {
            if let Some(result) = self.told() {
                return result;
            }
            sleep(&self.word, None);
        }
    }

    fn told(&self) -> Option<Result<()>> {
        match self.word.load(Ordering::Acquire) {
            WAITING => None,
            _ => self.result.get().cloned(),
        }
    }
}

impl<B: Default> Default for Groups<B> {
    fn default() -> Groups<B> {
        Groups(Mutex::new(State {
            open: Arc::default(),
            batch: B::default(),
            joined: 0,
            expected: 1,
            is_writing: false,
            gap: GAP_MIN,
            spare: None,
        }))
    }
}

impl<B: Default> Groups<B> {
    /// Has `join` add changes to the open group's, and returns when `write` (this caller's or that of another member)
    /// has written them. If `join` says that there are none, nothing is written. Blocks for as long as that takes.
    ///
    /// # Errors
    /// Of `join`, which has to leave the batch as it was then; of `write`, the same for all members. `write` has to
    /// leave the batch empty in any case.
    pub(crate) fn commit(
        &self,
        join: impl FnOnce(&mut B) -> Result<bool>,
        write: impl FnOnce(&mut B) -> Result<()>,
    ) -> Result<()> {
        let mut state = self.0.lock();
        if !join(&mut state.batch)? {
            return Ok(());
        }
        state.joined += 1;
        if !state.is_writing && state.joined >= state.expected {
            return self.lead(state, write);
        }
        let (group, is_first, has_turn) = (Arc::clone(&state.open), state.joined == 1, !state.is_writing);
        drop(state);
        match is_first {
            true => self.look_after(&group, has_turn, write),
            false => group.wait(),
        }
    }

    /// Waits for the group as its first member: sees to it that it is written.
    fn look_after(&self, group: &Arc<Group>, has_turn: bool, write: impl FnOnce(&mut B) -> Result<()>) -> Result<()> {
        if !has_turn {
            // Who completes a group takes it only when the one before has been written, and that wakes this one first.
            while group.turn.load(Ordering::Acquire) == WAITING {
                sleep(&group.turn, None);
            }
        }
        let (mut seen, mut gaps) = (0, 0);
        loop {
            if let Some(result) = group.told() {
                return result;
            }
            let state = self.0.lock();
            if !Arc::ptr_eq(&state.open, group) {
                drop(state);
                return group.wait();
            }
            if (gaps > 0 && state.joined == seen) || gaps >= GAPS_MAX {
                return self.lead(state, write);
            }
            seen = state.joined;
            let gap = state.gap;
            drop(state);
            gaps += 1;
            sleep(&group.word, Some(gap));
        }
    }

    /// Writes the open group.
    fn lead(&self, mut state: MutexGuard<'_, State<B>>, write: impl FnOnce(&mut B) -> Result<()>) -> Result<()> {
        let next = state.spare.take().unwrap_or_default();
        let mut batch = std::mem::replace(&mut state.batch, next);
        let group = std::mem::take(&mut state.open);
        let count = std::mem::take(&mut state.joined);
        state.is_writing = true;
        drop(state);
        let start = Instant::now();
        let result = write(&mut batch);
        let took = start.elapsed();
        let mut state = self.0.lock();
        state.is_writing = false;
        state.expected = count + state.joined;
        state.gap = took.clamp(GAP_MIN, GAP_MAX);
        state.spare = Some(batch);
        let next = (state.joined > 0).then(|| Arc::clone(&state.open));
        drop(state);
        if let Some(next) = next {
            wake(&next.turn, 1);
        }
        if count > 1 {
            let _ = group.result.set(result.clone());
            wake(&group.word, u32::MAX >> 1);
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::thread;

    use ferrite_measure::Rng;

    use super::*;
    use crate::error::Error;

    /// What was written: each group's members, and whether that failed.
    #[derive(Default)]
    struct Log(Mutex<Vec<(Vec<u64>, bool)>>);

    impl Log {
        fn write(&self, batch: &mut Vec<u64>, fails: bool) -> Result<()> {
            let mut log = self.0.lock();
            let number = log.len();
            log.push((std::mem::take(batch), fails));
            match fails {
                true => Err(Error::Io(number.to_string())),
                false => Ok(()),
            }
        }

        fn sizes(&self) -> Vec<usize> {
            self.0.lock().iter().map(|(members, _)| members.len()).collect()
        }
    }

    fn joins(id: u64) -> impl FnOnce(&mut Vec<u64>) -> Result<bool> {
        move |batch| {
            batch.push(id);
            Ok(true)
        }
    }

    #[test]
    fn who_is_alone_waits_for_nobody() {
        let (groups, log) = (Groups::default(), Log::default());
        for id in 0..100 {
            groups.commit(joins(id), |batch| log.write(batch, false)).unwrap();
            assert_eq!(groups.0.lock().expected, 1);
        }
        assert_eq!(log.sizes(), [1; 100]);
    }

    #[test]
    fn nothing_to_write_is_not_written() {
        let groups = Groups::<Vec<u64>>::default();
        let never = |_: &mut Vec<u64>| panic!("written");
        assert_eq!(groups.commit(|_| Ok(false), never), Ok(()));
        assert_eq!(groups.commit(|_| Err(Error::Busy), never), Err(Error::Busy));
        assert_eq!(groups.0.lock().joined, 0);
    }

    /// Each is in one group, which has been written when it returns, and has the outcome of that one.
    #[test]
    fn all_are_written_once_and_hear_of_it() {
        const EACH: u64 = 400;
        let (groups, log) = (Groups::default(), Log::default());
        let given = std::env::var("FERRITE_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed: u64 = given.unwrap_or_else(|| u64::from(std::process::id()));
        eprintln!("FERRITE_SEED={seed}");
        thread::scope(|scope| {
            for thread in 0..8 {
                let (groups, log) = (&groups, &log);
                scope.spawn(move || {
                    let mut rng = Rng::new(seed ^ thread);
                    for number in 0..EACH {
                        let fails = rng.below(16) == 0;
                        if rng.below(8) == 0 {
                            thread::sleep(Duration::from_micros(rng.below(160)));
                        }
                        let id = thread * EACH + number;
                        let told = groups.commit(joins(id), |batch| log.write(batch, fails));
                        let written = log.0.lock();
                        let mut of = written
                            .iter()
                            .enumerate()
                            .filter(|(_, (members, _))| members.contains(&id));
                        let (number, (_, failed)) = of.next().expect("it was not written when it returned");
                        assert!(of.next().is_none(), "{id} was written twice (FERRITE_SEED={seed})");
                        let wanted = match failed {
                            true => Err(Error::Io(number.to_string())),
                            false => Ok(()),
                        };
                        assert_eq!(told, wanted, "{id} (FERRITE_SEED={seed})");
                    }
                });
            }
        });
        let mut count = BTreeMap::new();
        log.sizes()
            .into_iter()
            .for_each(|size| *count.entry(size).or_insert(0) += 1);
        assert!(count.len() > 1, "no groups: {count:?}");
    }

    /// Those who come back a moment after each group are in the next one.
    #[test]
    fn who_comes_again_is_waited_for() {
        const THREADS: u64 = 16;
        const EACH: u64 = 50;
        let (groups, log) = (Groups::default(), Log::default());
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let (groups, log) = (&groups, &log);
                scope.spawn(move || {
                    for number in 0..EACH {
                        let write = |batch: &mut Vec<u64>| {
                            thread::sleep(Duration::from_millis(1));
                            log.write(batch, false)
                        };
                        groups.commit(joins(thread * EACH + number), write).unwrap();
                    }
                });
            }
        });
        let sizes = log.sizes();
        assert_eq!(sizes.iter().sum::<usize>() as u64, THREADS * EACH);
        // Two groups that take turns would be twice as many.
        assert!(sizes.len() < 85, "{} groups: {sizes:?}", sizes.len());
        // And who then stays alone waits in vain once at most.
        for id in 0..2 {
            groups.commit(joins(id), |batch| log.write(batch, false)).unwrap();
        }
        assert_eq!(groups.0.lock().expected, 1);
    }

    /// A member's locks are let go when it returns: others who need them cannot join its group, and it goes without.
    #[test]
    fn who_waits_for_a_member_does_not_hold_it_up() {
        let (groups, log) = (Groups::default(), Log::default());
        let locked = Mutex::new(());
        thread::scope(|scope| {
            for thread in 0..4 {
                let (groups, log, locked) = (&groups, &log, &locked);
                scope.spawn(move || {
                    for number in 0..100 {
                        let _locked = (thread != 0).then(|| locked.lock());
                        let id = thread * 100 + number;
                        groups.commit(joins(id), |batch| log.write(batch, false)).unwrap();
                    }
                });
            }
        });
        assert_eq!(log.sizes().iter().sum::<usize>(), 400);
    }
}
