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
            first: content.reserved,
            inherited: content.slots.clone(),
            content,
            count: slots,
            is_lost: false,
        };
        kept.save(fs);
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

    /// There are no sessions any more, and no slots that belong to one.
    pub(super) fn no_sessions(&self, fs: &dyn FileSystem) {
        let mut kept = self.content.lock();
        if kept.content.has_sessions {
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
