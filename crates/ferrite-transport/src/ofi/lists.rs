//! The endpoints of this process over shm, and which of them know which: what libfabric 1.17 does not keep track of.
//!
//! Endpoints of one process use each other's memory in place, without the mapping of their own that other processes
//! have; libfabric would go on using it after it is unmapped, and finds it by name even after the endpoint is closed.
//! An endpoint that looks for messages and finds the first one of a peer that it has forgotten maps the peer anew, and
//! crashes if the peer is gone by then. Hence the invariants:
//! * An endpoint is closed only when no other one of this process knows it any more.
//! * A closed endpoint of this process is never introduced to another.
//! * An endpoint forgets a peer only when the peer can send nothing more, and when all that it has sent was taken
//!   ([`super::Endpoint::remove`]).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use ferrite_checks::ranked::Mutex;
use rustix::process::getpid;

use super::stale_locks::is_dead;
use super::{Closing, PeerId};
use crate::lock_order;
use crate::stale_segments;

/// One endpoint at a time in a process is opened or closed, or adds a peer: providers keep lists that all of their
/// endpoints share.
pub(super) static LISTS: Mutex<lock_order::Lists, Lists> = Mutex::new(Lists {
    open: BTreeSet::new(),
    known: BTreeMap::new(),
    closing: Vec::new(),
});

/// See the head of this module.
pub(super) struct Lists {
    /// Names of endpoints that have a user.
    open: BTreeSet<Vec<u8>>,
    /// Names of endpoints, and how many endpoints of this process know them.
    known: BTreeMap<Vec<u8>, usize>,
    closing: Vec<Closing>,
}

/// A peer over shm.
pub(super) struct ShmPeer {
    pub(super) id: PeerId,
    pub(super) name: Vec<u8>,
    /// The endpoint has no more use for it.
    pub(super) is_left: bool,
}

/// A name without the zeros at its end.
fn plain(name: &[u8]) -> &[u8] {
    let len = name.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    &name[..len]
}

impl Lists {
    pub(super) fn opened(&mut self, name: &[u8]) {
        self.open.insert(plain(name).to_vec());
    }

    /// Whether an endpoint may get to know the one with this name.
    pub(super) fn may_be_introduced(&self, name: &[u8]) -> bool {
        stale_segments::process_of(name) != Some(getpid()) || self.open.contains(plain(name))
    }

    pub(super) fn introduced(&mut self, name: &[u8]) {
        *self.known.entry(plain(name).to_vec()).or_default() += 1;
    }

    /// The opposite of [`Self::introduced`].
    pub(super) fn forget(&mut self, name: &[u8]) {
        let name = plain(name);
        if let Some(count) = self.known.get_mut(name) {
            *count -= 1;
            if *count == 0 {
                self.known.remove(name);
            }
        }
    }

    /// Whether a peer can send nothing more.
    pub(super) fn is_gone(&self, name: &[u8]) -> bool {
        match stale_segments::process_of(name) {
            Some(process) if process == getpid() => !self.open.contains(plain(name)),
            Some(process) => is_dead(process) || !has_memory(name),
            None => !has_memory(name),
        }
    }

    /// Takes over an endpoint that has no user any more.
    pub(super) fn close(&mut self, closing: Closing) {
        self.open.remove(plain(closing.name()));
        self.closing.push(closing);
    }

    /// Closes the endpoints that no other knows any more.
    pub(super) fn sweep(&mut self) {
        let known = &self.known;
        self.closing.retain(|closing| known.contains_key(plain(closing.name())));
    }

    #[cfg(test)]
    pub(super) fn are_empty(&self) -> bool {
        self.closing.is_empty()
    }
}

/// Whether there is a file of an endpoint's memory, which the endpoint removes when it is closed.
fn has_memory(name: &[u8]) -> bool {
    let name = std::str::from_utf8(plain(name)).ok();
    // The name comes from the peer, and must not lead elsewhere.
    let name = name
        .and_then(|name| name.strip_prefix("fi_shm://"))
        .filter(|name| !name.contains('/'));
    name.is_some_and(|name| Path::new(stale_segments::DIR).join(name).exists())
}
