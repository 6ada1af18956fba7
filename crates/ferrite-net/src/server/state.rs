//! What a server must know again after it was killed: its secret, which sessions there may have been, and which slots
//! of tokens belong to one.
//!
//! It lies in an extended attribute of the pool's root ([`NAME`]), so it travels with the pool, and changes atomically.
//! Clients never see the attribute.
//!
//! Invariants: a number, and a slot that a session has, are in the attribute before the client is told. So a slot is
//! never given to a second session while the first may still repeat a request with it. Slots are given out with a fresh
//! number, which their tokens carry: a session may ask for its first slots long after later ones have used and freed
//! them, and the engine takes no token with a smaller number than the slot has seen.

use ferrite_vfs::{FileSystem, FsError, ROOT_INO, SYSTEM, XattrMode};
use parking_lot::Mutex;

use crate::wire::codec::fields;
use crate::wire::{Reader, Wire};

/// The attribute's name.
pub(super) const NAME: &[u8] = b"trusted.ferrite.server";
/// Attributes that clients can neither see nor set.
pub(super) const HIDDEN_PREFIX: &[u8] = b"trusted.ferrite.";

const FORMAT: u32 = 1;
/// Session numbers reserved at once.
const NUMBERS: u64 = 1024;
/// Most slots of a session.
const SLOTS_MAX: usize = 64;
/// A session gets at most one part of so many of the free slots.
const SHARES: usize = 8;

struct Content {
    format: u32,
    secret: [u8; 16],
    /// Session numbers below it may be in use.
    reserved: u64,
    /// A session has begun since a server last stopped without any.
    has_sessions: bool,
    /// A bit for each slot that belongs to a session.
    slots: Vec<u64>,
}

fields!(Content {
    format,
    secret,
    reserved,
    has_sessions,
    slots
});

/// The state of one pool.
pub(super) struct State {
    content: Mutex<Kept>,
}

struct Kept {
    content: Content,
    next: u64,
    /// Sessions that live.
    live: u64,
    /// Numbers below it were given out by earlier runs.
    first: u64,
    /// Slots in all.
    count: u32,
    /// A bit for each slot that belongs to a session of an earlier run, which has not come back.
    inherited: Vec<u64>,
    /// It cannot be kept: the pool takes no attribute.
    is_lost: bool,
}

impl State {
    /// Reads the state of a pool, or begins a new one. Also returns whether sessions of an earlier run may come back.
    pub(super) fn load(fs: &dyn FileSystem) -> Result<(State, bool), FsError> {
        let stored = match fs.getxattr(SYSTEM, ROOT_INO, NAME) {
            Ok(stored) => Some(stored),
            Err(FsError::NoAttribute | FsError::NotSupported(_)) => None,
            Err(error) => return Err(error),
        };
        let stored = stored.and_then(|bytes| Reader::new(&bytes).last::<Content>().ok());
        let slots = fs.limits().once_slots;
        let mut content = match stored {
            Some(content) if content.format == FORMAT => content,
            _ => Content {
                format: FORMAT,
                secret: random()?,
                reserved: 1,
                has_sessions: false,
                slots: Vec::new(),
            },
        };
        content.slots.resize((slots as usize).div_ceil(64), 0);
        let has_sessions = content.has_sessions;
        let mut kept = Kept {
            next: content.reserved,
            live: 0,
            first: content.reserved,
            inherited: content.slots.clone(),
            content,
            count: slots,
            is_lost: false,
        };
        if !kept.save(fs) {
            // Session numbers will come again in the next run, so this one's tickets must not be good there, nor an
            // earlier run's here.
            kept.content.secret = random()?;
        }
        let state = State {
            content: Mutex::new(kept),
        };
        Ok((state, has_sessions))
    }

    pub(super) fn secret(&self) -> [u8; 16] {
        self.content.lock().content.secret
    }

    /// Whether tokens can be given out.
    pub(super) fn has_slots(&self) -> bool {
        let kept = self.content.lock();
        kept.count > 0 && !kept.is_lost
    }

    /// A number for a new session. Durable when it returns.
    pub(super) fn new_session(&self, fs: &dyn FileSystem) -> u64 {
        let mut kept = self.content.lock();
        kept.live += 1;
        let number = kept.fresh_number();
        if number >= kept.content.reserved || !kept.content.has_sessions {
            kept.reserve(number);
            kept.content.has_sessions = true;
            kept.save(fs);
        }
        number
    }

    /// Up to `count` free slots, and the number that their tokens carry. Durable when it returns. Nobody gets more than
    /// a part of what is free, so that those who come later get some, too.
    pub(super) fn take_slots(&self, fs: &dyn FileSystem, count: usize) -> (u64, Vec<u32>) {
        let mut kept = self.content.lock();
        let free: Vec<u32> = (0..kept.count)
            .filter(|&slot| !has(&kept.content.slots, slot))
            .collect();
        let share = count.min(SLOTS_MAX).min(free.len().div_ceil(SHARES));
        let taken = free[..share].to_vec();
        if taken.is_empty() {
            return (0, taken);
        }
        for &slot in &taken {
            kept.content.slots[slot as usize / 64] |= 1 << (slot % 64);
        }
        let number = kept.fresh_number();
        kept.reserve(number);
        match kept.save(fs) {
            true => (number, taken),
            false => (0, Vec::new()),
        }
    }

    /// Those of `slots` that a session of an earlier run had, and none has come back for: they are the caller's now.
    /// `number` is what its tokens carry.
    pub(super) fn claim_slots(&self, number: u64, slots: &[u32]) -> Vec<u32> {
        let mut kept = self.content.lock();
        if number >= kept.first {
            return Vec::new();
        }
        let (count, inherited) = (kept.count, &mut kept.inherited);
        let mut claimed = Vec::new();
        for &slot in slots {
            if slot < count && has(inherited, slot) && claimed.len() < SLOTS_MAX {
                inherited[slot as usize / 64] &= !(1 << (slot % 64));
                claimed.push(slot);
            }
        }
        claimed
    }

    /// The slots of a session that has ended.
    pub(super) fn free_slots(&self, fs: &dyn FileSystem, slots: &[u32]) {
        let mut kept = self.content.lock();
        for &slot in slots {
            kept.content.slots[slot as usize / 64] &= !(1 << (slot % 64));
        }
        if !slots.is_empty() {
            kept.save(fs);
        }
    }

    /// Frees the slots of earlier runs that nobody came back for.
    pub(super) fn free_inherited(&self, fs: &dyn FileSystem) {
        let mut kept = self.content.lock();
        let inherited = std::mem::take(&mut kept.inherited);
        kept.inherited = vec![0; inherited.len()];
        for (word, inherited) in kept.content.slots.iter_mut().zip(&inherited) {
            *word &= !inherited;
        }
        if inherited.iter().any(|&word| word != 0) {
            kept.save(fs);
        }
    }

    /// A session of an earlier run has come back.
    pub(super) fn session_is_back(&self, fs: &dyn FileSystem) {
        let mut kept = self.content.lock();
        kept.live += 1;
        // The time of grace may end at this moment.
        if !kept.content.has_sessions {
            kept.content.has_sessions = true;
            kept.save(fs);
        }
    }

    /// A session has ended.
    pub(super) fn session_has_ended(&self) {
        self.content.lock().live -= 1;
    }

    /// Notes that a restart has no sessions to wait for, if there are none. The caller knows that none comes back.
    pub(super) fn note_end(&self, fs: &dyn FileSystem) {
        let mut kept = self.content.lock();
        if kept.content.has_sessions && kept.live == 0 {
            kept.content.has_sessions = false;
            kept.save(fs);
        }
    }
}

fn has(slots: &[u64], slot: u32) -> bool {
    slots[slot as usize / 64] >> (slot % 64) & 1 == 1
}

impl Kept {
    fn fresh_number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// Sees to it that `number` is not given out by a later run.
    fn reserve(&mut self, number: u64) {
        if number >= self.content.reserved {
            self.content.reserved = number + NUMBERS;
        }
    }

    /// False if that is impossible, which is reported once.
    fn save(&mut self, fs: &dyn FileSystem) -> bool {
        if self.is_lost {
            return false;
        }
        let mut bytes = Vec::new();
        self.content.put(&mut bytes);
        if let Err(error) = fs.setxattr(SYSTEM, ROOT_INO, NAME, &bytes, XattrMode::Any) {
            tracing::warn!(
                "the server's state cannot be kept in the pool ({error}): after a restart of the server clients lose \
                 their open files and locks, and a change whose answer is lost fails"
            );
            self.is_lost = true;
        }
        !self.is_lost
    }
}

/// Bytes that nobody can guess.
pub(super) fn random<const N: usize>() -> Result<[u8; N], FsError> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        match rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(FsError::Io(format!("the system gives no random numbers: {error}"))),
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrite_vfs::memfs::MemFs;

    /// Once the end of the last session could come in between, and hide one that had just begun from the next run.
    #[test]
    fn a_restart_waits_for_sessions_while_one_lives() {
        let fs = MemFs::new();
        let (state, has_sessions) = State::load(&fs).unwrap();
        assert!(!has_sessions);
        let first = state.new_session(&fs);
        let second = state.new_session(&fs);
        assert!(first < second);
        state.session_has_ended();
        state.note_end(&fs);
        let (again, has_sessions) = State::load(&fs).unwrap();
        assert!(has_sessions);
        again.session_is_back(&fs);
        again.note_end(&fs);
        assert!(State::load(&fs).unwrap().1);
        again.session_has_ended();
        again.note_end(&fs);
        assert!(!State::load(&fs).unwrap().1);
        assert!(again.new_session(&fs) > second);
        assert!(State::load(&fs).unwrap().1);
    }

    #[test]
    fn slots_belong_to_one_session_and_come_with_larger_numbers() {
        let fs = MemFs::new();
        let (state, _) = State::load(&fs).unwrap();
        {
            // The reference engine has no slots.
            let mut kept = state.content.lock();
            kept.count = 128;
            kept.content.slots = vec![0; 2];
            kept.inherited = vec![0b111, 0];
            kept.content.slots[0] = 0b111;
            kept.first = 5;
            kept.next = 5;
        }
        assert_eq!(state.claim_slots(5, &[0]), [], "no number of an earlier run");
        assert_eq!(state.claim_slots(4, &[0, 0, 2, 64, 500]), [0, 2]);
        assert_eq!(state.claim_slots(4, &[0, 1]), [1], "each is claimed once");
        let (number, mine) = state.take_slots(&fs, usize::MAX);
        assert!(number >= 5 && !mine.is_empty() && mine.len() <= 128 / SHARES);
        let (later, others) = state.take_slots(&fs, 3);
        assert!(later > number && others.len() == 3);
        assert!(others.iter().all(|slot| *slot > 2 && !mine.contains(slot)));
        state.free_inherited(&fs);
        state.free_slots(&fs, &mine);
        assert!(state.take_slots(&fs, 1).0 > later);
    }
}
