//! The server's persistent state, which it must know after a kill: its secret, and the sessions that hold slots of
//! tokens or locks.
//!
//! It lies in an extended attribute of the pool's root ([`NAME`]), so it travels with the pool, and changes atomically.
//! Clients never see the attribute.
//!
//! Invariants: a number, and a session's slots, are in the attribute before the client learns of them. So a slot never
//! goes to a second session while the first may still repeat a request with it. Slots are given out with a fresh
//! number, which their tokens carry: a session may ask for its first slots long after later ones have used and freed
//! them, and the engine takes no token with a smaller number than the slot has seen.
//!
//! A session is in the attribute before it has its first lock, and is out of it before others get its locks. So after a
//! restart only sessions that had locks may claim them, and an ended session reclaims nothing that now belongs to
//! another.
//!
//! A server that has stopped writes nothing there any more, whatever its threads still do: the next one may have begun.
//!
//! Where operations are durable after a sync only, or survive only the process, a loss of power may lose operations
//! that the server has acknowledged: a written file, or the inode that a handle means. So the secret is valid there for
//! one boot of the machine, unless the server has stopped in order: after a loss of power all sessions have ended, and
//! no handle is valid.

mod shares;

use std::time::{SystemTime, UNIX_EPOCH};

use ferrite_checks::ranked::Mutex;
use ferrite_vfs::{Durability, FileSystem, FsError, ROOT_INO, SYSTEM, SpaceOf, Unsynced, XattrMode};
use rustc_hash::FxHashMap;

use super::admission::Account;
use crate::lock_order;
use ferrite_proto::fields;
use ferrite_proto::{Encode, Malformed, Reader, Wire};

/// The attribute's name.
pub(super) const NAME: &[u8] = b"trusted.ferrite.server";
/// Attributes that clients can neither see nor set.
pub(super) const HIDDEN_PREFIX: &[u8] = b"trusted.ferrite.";

const FORMAT: u32 = 3;
/// Session numbers reserved at once.
const NUMBERS: u64 = 1024;
/// Longest state. Engines allow all attributes of an inode together about 4 KiB; this leaves space for an access list.
/// It holds about 200 sessions with slots and 240 with locks.
const STATE_BYTES_MAX: usize = 3400;
const _: () = assert!(shares::HOLDERS_BYTES_MAX + 4 * shares::LOCKERS_MAX + 64 < STATE_BYTES_MAX);

/// Slots of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Holder {
    session: u64,
    /// The number that their tokens carry.
    number: u64,
    slots: Vec<u32>,
}

/// Short, for many must fit: the numbers have 32 bits, and slots are encoded as runs of at most 255.
impl Encode for Holder {
    fn put(&self, out: &mut Vec<u8>) {
        (self.session as u32, self.number as u32).put(out);
        let mut runs: Vec<(u16, u8)> = Vec::new();
        for &slot in &self.slots {
            match runs.last_mut() {
                Some((first, len)) if u32::from(*first) + u32::from(*len) == slot && *len < u8::MAX => *len += 1,
                _ => runs.push((slot as u16, 1)),
            }
        }
        (runs.len() as u8).put(out);
        runs.into_iter().for_each(|run| run.put(out));
    }
}

impl<'m> Wire<'m> for Holder {
    fn get(from: &mut Reader<'m>) -> Result<Self, Malformed> {
        let (session, number) = from.get::<(u32, u32)>()?;
        let mut slots = Vec::new();
        for _ in 0..from.get::<u8>()? {
            let (first, len) = from.get::<(u16, u8)>()?;
            slots.extend((u32::from(first)..).take(usize::from(len)));
        }
        Ok(Holder {
            session: u64::from(session),
            number: u64::from(number),
            slots,
        })
    }
}

struct Content {
    format: u32,
    secret: [u8; 16],
    /// Boot of the machine, if a loss of power may lose operations since; otherwise 0.
    boot: u64,
    /// Session numbers below it may be in use.
    reserved: u64,
    /// A session has begun since a server last stopped without any.
    has_sessions: bool,
    holders: Vec<Holder>,
    /// Sessions that have locks, or had.
    lockers: Vec<u32>,
}

fields!(Content {
    format,
    secret,
    boot,
    reserved,
    has_sessions,
    holders,
    lockers
});

/// The state of one pool.
pub(super) struct State {
    content: Mutex<lock_order::Content, Kept>,
}

struct Kept {
    content: Content,
    next: u64,
    /// Living sessions.
    live: u64,
    /// Slots in all.
    count: u32,
    /// Numbers of an earlier run's holders that have not come back.
    inherited: Vec<u64>,
    /// Of sessions of this run that have slots or locks.
    accounts: FxHashMap<u64, Account>,
    /// The last save failed: the pool is full, or takes no attribute.
    is_lost: bool,
    /// The server has stopped.
    is_stopped: bool,
}

/// The state recovered from an earlier run.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RecoveredState {
    /// Sessions may come back.
    pub(super) has_sessions: bool,
    /// Those among them that have locks.
    pub(super) lockers: Vec<u64>,
}

impl State {
    /// Reads the state of a pool, or begins a new one.
    ///
    /// # Errors
    /// If the state was written by a later version.
    pub(super) fn load(fs: &dyn FileSystem) -> Result<(State, RecoveredState), FsError> {
        let limits = fs.limits();
        let may_lose = limits.unsynced == Unsynced::Everything || limits.durability != Durability::Power;
        State::load_in(fs, boot_id(), may_lose)
    }

    /// The same in a boot of this number; `may_lose`: whether a loss of power may lose operations.
    fn load_in(fs: &dyn FileSystem, this_boot: u64, may_lose: bool) -> Result<(State, RecoveredState), FsError> {
        let boot = if may_lose { this_boot } else { 0 };
        let stored = match fs.getxattr(SYSTEM, ROOT_INO, NAME) {
            Ok(stored) => Some(stored),
            Err(FsError::NoAttribute | FsError::NotSupported(_)) => None,
            Err(error) => return Err(error),
        };
        let count = fs.limits().dedup_slots;
        let content = match stored.as_deref().map(read).transpose()?.flatten() {
            Some(content) if content.boot == 0 || content.boot == this_boot => Content { boot, ..content },
            Some(content) => {
                tracing::warn!("power was lost while clients had sessions, which have ended");
                Content {
                    secret: ferrite_vfs::random()?,
                    boot,
                    has_sessions: false,
                    holders: Vec::new(),
                    lockers: Vec::new(),
                    ..content
                }
            }
            None => Content {
                format: FORMAT,
                secret: ferrite_vfs::random()?,
                boot,
                // An earlier state may be lost, and the engine takes no token with a smaller number than it has seen.
                reserved: SystemTime::now()
                    .duration_since(UNIX_EPOCH)
                    .map_or(1, |time| time.as_secs()),
                has_sessions: false,
                holders: Vec::new(),
                lockers: Vec::new(),
            },
        };
        let recovered = RecoveredState {
            has_sessions: content.has_sessions,
            lockers: content.lockers.iter().map(|&session| u64::from(session)).collect(),
        };
        let mut kept = Kept {
            next: content.reserved,
            live: 0,
            inherited: content.holders.iter().map(|holder| holder.number).collect(),
            accounts: FxHashMap::default(),
            content,
            count,
            is_lost: false,
            is_stopped: false,
        };
        kept.reserve(kept.next);
        if !kept.save(fs) {
            // Session numbers will come again in the next run, so this one's resume tokens must not be valid there, nor
            // an earlier run's here.
            kept.content.secret = ferrite_vfs::random()?;
        }
        let state = State {
            content: Mutex::new(kept),
        };
        Ok((state, recovered))
    }

    pub(super) fn secret(&self) -> [u8; 16] {
        self.content.lock().content.secret
    }

    /// Whether tokens are available.
    pub(super) fn has_slots(&self) -> bool {
        let kept = self.content.lock();
        kept.count > 0 && !kept.is_lost
    }

    /// A number for a new session. Durable when it returns.
    pub(super) fn new_session(&self, fs: &dyn FileSystem) -> u64 {
        let mut kept = self.content.lock();
        kept.live += 1;
        let number = kept.fresh_id();
        if number >= kept.content.reserved || !kept.content.has_sessions {
            kept.reserve(number);
            kept.content.has_sessions = true;
            kept.save(fs);
        }
        number
    }

    /// Up to `count` free slots for a session, and the number that their tokens carry. Durable when it returns. No
    /// session gets more than a part of the free slots, so that later ones get some, too.
    pub(super) fn take_slots(
        &self,
        fs: &dyn FileSystem,
        session: u64,
        account: Account,
        count: usize,
    ) -> (u64, Vec<u32>) {
        let mut kept = self.content.lock();
        let mut is_free = vec![true; kept.count as usize];
        for &slot in kept.content.holders.iter().flat_map(|holder| &holder.slots) {
            if let Some(is_free) = is_free.get_mut(slot as usize) {
                *is_free = false;
            }
        }
        let free: Vec<u32> = (0..kept.count).filter(|&slot| is_free[slot as usize]).collect();
        let share = kept.share(account, free.len()).min(count);
        let number = kept.fresh_id();
        // Tokens have half a word for it.
        if share == 0 || number > u64::from(u32::MAX) {
            return (0, Vec::new());
        }
        let slots = free[..share].to_vec();
        kept.content.holders.push(Holder {
            session,
            number,
            slots: slots.clone(),
        });
        let before = kept.accounts.insert(session, account);
        kept.reserve(number);
        if !kept.has_space_for_holder(account) || !kept.save(fs) {
            kept.content.holders.pop();
            if before.is_none() {
                kept.accounts.remove(&session);
            }
            return (0, Vec::new());
        }
        (number, slots)
    }

    /// Returns the slots that a session had in an earlier run to it.
    pub(super) fn claim_slots(&self, session: u64, account: Account) -> (u64, Vec<u32>) {
        let mut kept = self.content.lock();
        let kept = &mut *kept;
        for holder in &kept.content.holders {
            let place = kept.inherited.iter().position(|&number| number == holder.number);
            if let Some(place) = place
                && holder.session == session
            {
                kept.inherited.swap_remove(place);
                kept.accounts.insert(session, account);
                return (holder.number, holder.slots.clone());
            }
        }
        (0, Vec::new())
    }

    /// Frees slots that were taken for a session which had ended by then, or that a session does not use. Durable when
    /// it returns.
    pub(super) fn free_slots(&self, fs: &dyn FileSystem, numbers: &[u64]) {
        let mut kept = self.content.lock();
        let count = kept.content.holders.len();
        kept.content.holders.retain(|holder| !numbers.contains(&holder.number));
        if kept.content.holders.len() < count {
            kept.save(fs);
        }
    }

    /// Frees the slots of earlier runs whose sessions did not come back, and forgets which of them had locks.
    pub(super) fn free_inherited(&self, fs: &dyn FileSystem, lockers: &[u64]) {
        let mut kept = self.content.lock();
        let inherited = std::mem::take(&mut kept.inherited);
        if inherited.is_empty() && lockers.is_empty() {
            return;
        }
        let content = &mut kept.content;
        content.holders.retain(|holder| !inherited.contains(&holder.number));
        content
            .lockers
            .retain(|&session| !lockers.contains(&u64::from(session)));
        kept.save(fs);
    }

    /// Records a session that is about to get its first lock. Durable when it returns.
    ///
    /// # Errors
    /// If too many have locks.
    pub(super) fn add_locker(&self, fs: &dyn FileSystem, session: u64, account: Account) -> Result<(), FsError> {
        let mut kept = self.content.lock();
        // As for slots: a truncated number would be another session's.
        let short = u32::try_from(session).map_err(|_| FsError::NoSpace(SpaceOf::RecordLocks))?;
        if kept.content.lockers.contains(&short) {
            return Ok(());
        }
        kept.content.lockers.push(short);
        let before = kept.accounts.insert(session, account);
        if !kept.has_space_for_locker(account) {
            kept.content.lockers.pop();
            if before.is_none() {
                kept.accounts.remove(&session);
            }
            return Err(FsError::NoSpace(SpaceOf::RecordLocks));
        }
        // If the save fails, no session claims locks after a restart, and they are lost then, as the warning said.
        kept.save(fs);
        Ok(())
    }

    /// Forgets a session that was about to get its first lock and has ended instead.
    pub(super) fn forget_locker(&self, fs: &dyn FileSystem, session: u64) {
        let mut kept = self.content.lock();
        let count = kept.content.lockers.len();
        kept.content.lockers.retain(|&locker| u64::from(locker) != session);
        if kept.content.lockers.len() < count {
            kept.save(fs);
        }
    }

    /// Counts a session of an earlier run that has come back.
    pub(super) fn session_is_back(&self, fs: &dyn FileSystem) {
        let mut kept = self.content.lock();
        kept.live += 1;
        // The grace period may end at this moment.
        if !kept.content.has_sessions {
            kept.content.has_sessions = true;
            kept.save(fs);
        }
    }

    /// Corrects the count: a session that seemed to come back was there already.
    pub(super) fn session_was_there(&self) {
        self.content.lock().live -= 1;
    }

    /// Ends a session: its slots are free, and it will not come back for its locks. Durable when it returns, so that
    /// the locks can be released then.
    pub(super) fn session_ends(&self, fs: &dyn FileSystem, session: u64) {
        let mut kept = self.content.lock();
        kept.live -= 1;
        kept.accounts.remove(&session);
        let content = &mut kept.content;
        let count = content.holders.len() + content.lockers.len();
        content.holders.retain(|holder| holder.session != session);
        content.lockers.retain(|&locker| u64::from(locker) != session);
        if content.holders.len() + content.lockers.len() < count {
            kept.save(fs);
        }
    }

    /// Records an orderly stop: no acknowledged operation can be lost any more. The last record that this makes.
    pub(super) fn note_stop(&self, fs: &dyn FileSystem) {
        let mut kept = self.content.lock();
        if kept.content.boot != 0 {
            kept.content.boot = 0;
            kept.save(fs);
        }
        kept.is_stopped = true;
    }

    /// Notes that the pool is another server's by now: this makes no more records.
    pub(super) fn note_loss(&self) {
        self.content.lock().is_stopped = true;
    }

    /// Records that a restart has no sessions to wait for, if no session lives. The caller knows that none comes back,
    /// and does not call this for each session that ends: short-lived clients would cause a write of the pool each
    /// time.
    pub(super) fn note_end(&self, fs: &dyn FileSystem) {
        let mut kept = self.content.lock();
        if kept.content.has_sessions && kept.live == 0 {
            kept.content.has_sessions = false;
            kept.save(fs);
        }
    }
}

/// Decodes the stored state; `None` if it is of an earlier version, or invalid.
fn read(stored: &[u8]) -> Result<Option<Content>, FsError> {
    let mut reader = Reader::new(stored);
    match reader.get::<u32>() {
        Ok(format) if format > FORMAT => Err(FsError::Io(format!(
            "the state of the server in the pool has format {format}, which a later version of Ferrite has written; \
             serve the pool with that version, or remove the attribute {} of its root, which ends all sessions",
            String::from_utf8_lossy(NAME)
        ))),
        Ok(FORMAT) => {
            let content = Reader::new(stored).last::<Content>().ok();
            if content.is_none() {
                tracing::warn!("the state of the server in the pool makes no sense; clients' sessions have ended");
            }
            Ok(content)
        }
        _ => {
            tracing::warn!(
                "the state of the server in the pool is of an earlier version; clients' sessions have ended"
            );
            Ok(None)
        }
    }
}

impl Kept {
    fn fresh_id(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// Ensures that a later run does not give out `number`.
    fn reserve(&mut self, number: u64) {
        if number + 1 >= self.content.reserved {
            self.content.reserved = number + NUMBERS;
        }
    }

    /// Saves the state. False if that fails, which is reported once, and retried the next time; and once the server has
    /// stopped.
    fn save(&mut self, fs: &dyn FileSystem) -> bool {
        if self.is_stopped {
            return false;
        }
        let mut bytes = Vec::new();
        self.content.put(&mut bytes);
        let was_lost = self.is_lost;
        let set = fs.setxattr(SYSTEM, ROOT_INO, NAME, &bytes, XattrMode::Any);
        // The state that a client learns of must survive a loss of power as well.
        let set = set.and_then(|()| match fs.limits().unsynced {
            Unsynced::Nothing | Unsynced::Content => Ok(()),
            Unsynced::Everything => fs.sync(SYSTEM),
        });
        self.is_lost = match set {
            Ok(()) => false,
            Err(error) => {
                if !was_lost {
                    tracing::warn!(
                        "the server's state cannot be kept in the pool ({error}): after a restart of the server clients \
                         may lose their open files and locks, and a change whose answer is lost fails"
                    );
                }
                true
            }
        };
        !self.is_lost
    }
}

/// A number of this boot of the machine, never 0.
fn boot_id() -> u64 {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = id.chars().filter(char::is_ascii_hexdigit).take(16).collect();
    u64::from_str_radix(&digits, 16).unwrap_or(0) | 1
}

#[cfg(test)]
mod tests {
    use super::shares::account;
    use super::*;
    use ferrite_vfs::memfs::MemFs;

    /// Once the end of the last session could come in between, and hide one that had just begun from the next run.
    #[test]
    fn a_restart_waits_for_sessions_while_one_lives() {
        let fs = MemFs::new();
        let has_sessions = || State::load(&fs).unwrap().1.has_sessions;
        let (state, recovered) = State::load(&fs).unwrap();
        assert!(!recovered.has_sessions);
        let first = state.new_session(&fs);
        let second = state.new_session(&fs);
        assert!(first < second);
        state.session_ends(&fs, first);
        state.note_end(&fs);
        let (again, recovered) = State::load(&fs).unwrap();
        assert!(recovered.has_sessions);
        again.session_is_back(&fs);
        again.note_end(&fs);
        assert!(has_sessions());
        again.session_ends(&fs, second);
        again.note_end(&fs);
        assert!(!has_sessions());
        assert!(again.new_session(&fs) > second);
        assert!(has_sessions());
    }

    /// The reference engine has few slots; this simulates more.
    fn with_slots(state: &State) {
        state.content.lock().count = 128;
    }

    #[test]
    fn slots_belong_to_one_session_and_come_with_larger_numbers() {
        let fs = MemFs::new();
        let (state, _) = State::load(&fs).unwrap();
        with_slots(&state);
        let (old, ended) = (state.new_session(&fs), state.new_session(&fs));
        let (number, slots) = state.take_slots(&fs, old, account(1), 3);
        assert_eq!(slots, [0, 1, 2]);
        let (_, freed) = state.take_slots(&fs, ended, account(2), 3);
        state.session_ends(&fs, ended);

        let (state, _) = State::load(&fs).unwrap();
        with_slots(&state);
        assert_eq!(state.claim_slots(ended, account(2)), (0, vec![]), "what it had is free");
        assert_eq!(state.claim_slots(old, account(1)), (number, slots.clone()));
        assert_eq!(state.claim_slots(old, account(1)), (0, vec![]), "they are claimed once");
        let (later, mine) = state.take_slots(&fs, 1, account(1), usize::MAX);
        assert!(later > number && mine.len() <= 128 / 8 && mine.contains(&freed[0]));
        assert!(mine.iter().all(|slot| !slots.contains(slot)));

        let (state, _) = State::load(&fs).unwrap();
        with_slots(&state);
        assert_eq!(state.claim_slots(old, account(1)), (number, slots.clone()));
        state.free_inherited(&fs, &[]);
        let (last, most) = state.take_slots(&fs, 2, account(2), usize::MAX);
        assert!(last > later && most.contains(&mine[0]), "nobody came back for them");
        assert!(most.iter().all(|slot| !slots.contains(slot)));
    }

    #[test]
    fn only_sessions_that_had_locks_and_lived_are_remembered_for_them() {
        let fs = MemFs::new();
        let (state, _) = State::load(&fs).unwrap();
        let sessions: Vec<u64> = (0..4).map(|_| state.new_session(&fs)).collect();
        for session in &sessions[..3] {
            state.add_locker(&fs, *session, account(1)).unwrap();
            state.add_locker(&fs, *session, account(1)).unwrap();
        }
        state.session_ends(&fs, sessions[1]);
        // A request for a lock that saw it alive, and sees now that it has ended.
        state.add_locker(&fs, sessions[1], account(1)).unwrap();
        state.forget_locker(&fs, sessions[1]);
        let (state, recovered) = State::load(&fs).unwrap();
        assert_eq!(recovered.lockers, [sessions[0], sessions[2]]);
        state.free_inherited(&fs, &sessions[2..3]);
        assert_eq!(State::load(&fs).unwrap().1.lockers, [sessions[0]]);
    }

    /// Where a loss of power may lose acknowledged operations, it ends sessions and handles; nothing else does.
    #[test]
    fn sessions_end_with_a_boot_that_ended_without_order() {
        let fs = MemFs::new();
        let (state, _) = State::load_in(&fs, 7, true).unwrap();
        let session = state.new_session(&fs);
        state.add_locker(&fs, session, account(session as u8)).unwrap();
        let secret = state.secret();
        let (state, recovered) = State::load_in(&fs, 7, true).unwrap();
        assert_eq!(state.secret(), secret, "the process was killed, and no more");
        assert!(recovered.has_sessions && recovered.lockers == [session]);
        let (state, _) = State::load_in(&fs, 7, false).unwrap();
        assert_eq!(state.secret(), secret, "it goes on with another durability");
        State::load_in(&fs, 7, true).unwrap().0.note_stop(&fs);
        let (state, recovered) = State::load_in(&fs, 9, true).unwrap();
        assert_eq!(state.secret(), secret, "it was stopped before the machine was");
        assert!(recovered.has_sessions);
        let (state, recovered) = State::load_in(&fs, 11, true).unwrap();
        assert_ne!(state.secret(), secret);
        assert!(!recovered.has_sessions && recovered.lockers.is_empty());
        assert!(state.new_session(&fs) > session);
    }

    /// A thread of the stopped server still works on the end of a session.
    #[test]
    fn a_server_that_has_stopped_writes_nothing() {
        let fs = MemFs::new();
        let (stopped, _) = State::load(&fs).unwrap();
        let leaves = stopped.new_session(&fs);
        stopped.add_locker(&fs, leaves, account(1)).unwrap();
        stopped.note_stop(&fs);
        let (next, recovered) = State::load(&fs).unwrap();
        assert_eq!(recovered.lockers, [leaves]);
        let session = next.new_session(&fs);
        next.add_locker(&fs, session, account(1)).unwrap();
        stopped.session_ends(&fs, leaves);
        stopped.note_end(&fs);
        assert_eq!(stopped.take_slots(&fs, leaves, account(1), 1), (0, vec![]));
        let (_, recovered) = State::load(&fs).unwrap();
        assert!(recovered.has_sessions && recovered.lockers == [leaves, session]);
    }

    /// Numbers that began anew would be smaller than those the engine has seen, and every change would be refused.
    #[test]
    fn numbers_ascend_though_the_state_is_lost_and_a_later_format_is_refused() {
        let fs = MemFs::new();
        let (state, _) = State::load(&fs).unwrap();
        let before = state.new_session(&fs);
        fs.setxattr(SYSTEM, ROOT_INO, NAME, b"nonsense", XattrMode::Any)
            .unwrap();
        std::thread::sleep(std::time::Duration::from_millis(1100));
        assert!(State::load(&fs).is_err(), "its first bytes are a large number");
        fs.setxattr(SYSTEM, ROOT_INO, NAME, &[FORMAT as u8, 0, 0, 0, 1], XattrMode::Any)
            .unwrap();
        let (state, recovered) = State::load(&fs).unwrap();
        assert!(!recovered.has_sessions && state.new_session(&fs) > before);
    }

    #[test]
    fn the_state_fits_an_attribute_whoever_holds_what() {
        let fs = MemFs::new();
        let (state, _) = State::load(&fs).unwrap();
        // As many as the largest pool has, and as if these sessions had begun.
        state.content.lock().count = 4096;
        state.content.lock().live = 2000;
        let holders = (0..2000)
            .filter(|&session| !state.take_slots(&fs, session, account(session as u8), 64).1.is_empty())
            .count();
        assert!(holders >= 90, "{holders}");
        let lockers = (0..2000)
            .filter(|&session| state.add_locker(&fs, session, account(session as u8)).is_ok())
            .count();
        assert!((200..2000).contains(&lockers), "{lockers}");
        assert!(state.has_slots(), "it was kept");
        let stored = fs.getxattr(SYSTEM, ROOT_INO, NAME).unwrap();
        assert!(stored.len() <= STATE_BYTES_MAX, "{}", stored.len());
        // Every other session ends, so that free slots are scattered.
        (0..2000)
            .step_by(2)
            .for_each(|session| state.session_ends(&fs, session));
        let more = (3000..5000)
            .filter(|&session| !state.take_slots(&fs, session, account(session as u8), 64).1.is_empty())
            .count();
        assert!(more >= 30, "{more}");
        let before = state.content.lock().content.holders.clone();
        let (again, _) = State::load(&fs).unwrap();
        assert_eq!(again.content.lock().content.holders, before);
        let slots: Vec<u32> = before.iter().flat_map(|holder| holder.slots.clone()).collect();
        let different: std::collections::BTreeSet<u32> = slots.iter().copied().collect();
        assert_eq!(different.len(), slots.len(), "a slot belongs to two");
    }
}
