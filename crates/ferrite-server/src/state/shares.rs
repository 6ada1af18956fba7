//! Each client's share of a pool's slots, and of the attribute that lists their holders.
//!
//! Invariant: an eighth is kept from an account that has an eighth itself. So whatever one client takes, others find
//! something, and many find a little.

use super::{Holder, Kept};
use crate::admission::Account;
use ferrite_proto::Encode;

/// Most slots of a session.
const SLOTS_MAX: usize = 64;
/// A session gets at most one part of so many of the free slots.
const SHARES: usize = 8;
/// The same when half of all slots are taken, so that more sessions get some.
const SHARES_OF_FEW: usize = 32;
/// One part of so many is kept from an account that has as much itself.
const RESERVES: usize = 8;
/// Most bytes of the attribute for holders of slots.
pub(super) const HOLDERS_BYTES_MAX: usize = 2_300;
/// Most sessions that have locks.
pub(super) const LOCKERS_MAX: usize = 240;

impl Holder {
    fn len_bytes(&self) -> usize {
        let mut bytes = Vec::new();
        self.put(&mut bytes);
        bytes.len()
    }
}

impl Kept {
    fn is_of(&self, account: Account, session: u64) -> bool {
        self.accounts.get(&session) == Some(&account)
    }

    /// How many of the free slots a session of an account gets.
    pub(super) fn share(&self, account: Account, free: usize) -> usize {
        let all = self.count as usize;
        let parts = if free * 2 < all { SHARES_OF_FEW } else { SHARES };
        let share = free.div_ceil(parts).min(SLOTS_MAX);
        let holders = self.content.holders.iter();
        let own = holders.filter(|holder| self.is_of(account, holder.session));
        let own: usize = own.map(|holder| holder.slots.len()).sum();
        share.min(free.saturating_sub((all / RESERVES).min(own + share)))
    }

    /// Whether the attribute can list all current holders of slots, the last of which is of this account.
    pub(super) fn has_space_for_holder(&self, account: Account) -> bool {
        let (mut all, mut own) = (0, 0);
        for holder in &self.content.holders {
            let len_bytes = holder.len_bytes();
            all += len_bytes;
            own += if self.is_of(account, holder.session) {
                len_bytes
            } else {
                0
            };
        }
        all + own.min(HOLDERS_BYTES_MAX / RESERVES) <= HOLDERS_BYTES_MAX
    }

    /// The same for sessions with locks.
    pub(super) fn has_space_for_locker(&self, account: Account) -> bool {
        let lockers = &self.content.lockers;
        let is_own = |session: &&u32| self.is_of(account, u64::from(**session));
        let own = lockers.iter().filter(is_own).count();
        lockers.len() + own.min(LOCKERS_MAX / RESERVES) <= LOCKERS_MAX
    }
}

#[cfg(test)]
pub(super) fn account(host: u8) -> Account {
    Account {
        key: None,
        source: ferrite_transport::source::Source::of([192, 0, 2, host].into()),
    }
}

#[cfg(test)]
mod tests {
    use ferrite_vfs::memfs::MemFs;

    use super::super::State;
    use super::*;

    /// Once 36 sessions of one client took all slots, and others had no tokens.
    #[test]
    fn no_account_takes_all_slots_or_all_of_the_attribute() {
        for count in [64, 256, 4096] {
            let fs = MemFs::new();
            let (state, _) = State::load(&fs).unwrap();
            state.content.lock().count = count;
            let mut served = 0;
            for session in 0..3000 {
                let (_, slots) = state.take_slots(&fs, session, account(1), 64);
                served += usize::from(!slots.is_empty());
                let locks = state.add_locker(&fs, session, account(1));
                if slots.is_empty() && locks.is_err() {
                    break;
                }
            }
            assert!(served >= 25, "{count} slots served {served} sessions of one account");
            for host in 2..5 {
                let session = 3000 + u64::from(host);
                let (_, slots) = state.take_slots(&fs, session, account(host), 64);
                assert!(!slots.is_empty(), "{count} slots, account {host}");
                state.add_locker(&fs, session, account(host)).unwrap();
            }
        }
    }
}
