//! The server: objects, the newest epoch of each shard, and the faults that a test injects.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use ferrite_checks::fault_injection::{Bug, is_seeded};
use ferrite_checks::ranked::{Mutex, MutexGuard};

use super::super::{Error, Guard, Result, Space, UniqueId};
use crate::lock_order;

/// The kind of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A blob is made.
    Create,
    /// A blob is opened.
    Open,
    /// A blob is deleted.
    Delete,
    /// Bytes, the tail or the map of holes are read.
    Read,
    /// A part of a chunk is written.
    Write,
    /// A chunk becomes shorter.
    Truncate,
    /// A part of a chunk becomes zero.
    Punch,
    /// Space is reserved.
    Reserve,
    /// Only the tail changes.
    Tail,
}

/// An operation that arrives at the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operation {
    /// The blob.
    pub id: UniqueId,
    /// Its kind.
    pub kind: Kind,
}

/// The fate of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Effect {
    /// It is done and answered.
    Done,
    /// It never arrives, and the client does not learn that.
    RequestLost,
    /// It is done, and the client does not learn that.
    ReplyLost,
    /// It is done before the next operation on the same blob, and the client does not learn that.
    Delayed,
    /// It is done and answered, and arrives once more before the next operation on the same blob.
    Repeated,
    /// It is refused without effect.
    Refused,
    /// Another owner takes over the shard just before it arrives.
    TakenOver,
}

type Intercept = Box<dyn FnMut(Operation) -> Effect + Send>;

/// Objects in memory. They last as long as this, whatever happens to clients.
pub struct MemoryServer {
    chunk_bytes: u64,
    needs_sync: bool,
    state: Mutex<lock_order::ContentInMemory, State>,
}

impl fmt::Debug for MemoryServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryServer").finish_non_exhaustive()
    }
}

/// The state of a server.
pub(super) struct State {
    /// The newest epoch of each shard.
    epochs: HashMap<u64, u64>,
    objects: BTreeMap<UniqueId, Object>,
    /// Objects as of their last sync, if the server needs any.
    synced: Option<BTreeMap<UniqueId, Object>>,
    /// All ids that any object had.
    made: HashSet<UniqueId>,
    /// Changes that have not arrived yet, in their order.
    delayed: Vec<(Option<Guard>, UniqueId, Step<'static>)>,
    capacity_bytes: u64,
    /// The part of it that objects take.
    used_bytes: u64,
    intercept: Option<Intercept>,
}

/// A blob.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Object {
    chunks: BTreeMap<u64, Chunk>,
    /// The space that all chunks take.
    allocated_bytes: u64,
    pub(super) tail: Vec<u8>,
}

/// A part of a blob.
#[derive(Debug, Clone, Default, PartialEq)]
struct Chunk {
    bytes: Vec<u8>,
    /// Bytes that it may have without needing space, or has.
    reserved_bytes: u64,
}

impl Chunk {
    fn allocated_bytes(&self) -> u64 {
        self.reserved_bytes.max(self.bytes.len() as u64)
    }
}

/// One atomic operation.
#[derive(Debug, Clone)]
pub(super) struct Step<'c> {
    change: Change<'c>,
    pub(super) tail: Option<Cow<'c, [u8]>>,
}

/// The change that an operation makes besides the tail.
#[derive(Debug, Clone)]
pub(super) enum Change<'c> {
    Nothing,
    Create,
    Delete,
    Write { chunk: u64, from: u64, data: Cow<'c, [u8]> },
    Zero { chunk: u64, from: u64, to: u64 },
    Truncate { chunk: u64, len: u64 },
    Reserve { chunk: u64, to: u64 },
}

impl Change<'_> {
    /// The chunk that it concerns.
    fn chunk(&self) -> Option<u64> {
        match self {
            Change::Nothing | Change::Create | Change::Delete => None,
            Change::Write { chunk, .. }
            | Change::Zero { chunk, .. }
            | Change::Truncate { chunk, .. }
            | Change::Reserve { chunk, .. } => Some(*chunk),
        }
    }
}

impl<'c> Step<'c> {
    /// An operation without a tail.
    pub(super) fn of(change: Change<'c>) -> Step<'c> {
        Step { change, tail: None }
    }

    fn into_owned(self) -> Step<'static> {
        let owned = |bytes: Cow<'_, [u8]>| Cow::Owned(bytes.into_owned());
        let change = match self.change {
            Change::Write { chunk, from, data } => Change::Write {
                chunk,
                from,
                data: owned(data),
            },
            Change::Nothing => Change::Nothing,
            Change::Create => Change::Create,
            Change::Delete => Change::Delete,
            Change::Zero { chunk, from, to } => Change::Zero { chunk, from, to },
            Change::Truncate { chunk, len } => Change::Truncate { chunk, len },
            Change::Reserve { chunk, to } => Change::Reserve { chunk, to },
        };
        Step {
            change,
            tail: self.tail.map(owned),
        }
    }
}

impl MemoryServer {
    /// An empty server. A blob has chunks of `chunk_bytes`, a power of two from 4,096 on; all blobs have at most
    /// `capacity_bytes`. If it `needs_sync`, a crash loses changes that no sync made durable.
    pub fn new(chunk_bytes: u64, capacity_bytes: u64, needs_sync: bool) -> Arc<MemoryServer> {
        Arc::new(MemoryServer {
            chunk_bytes: chunk_bytes.next_power_of_two().max(4096),
            needs_sync,
            state: Mutex::new(State {
                epochs: HashMap::new(),
                objects: BTreeMap::new(),
                synced: needs_sync.then(BTreeMap::new),
                made: HashSet::new(),
                delayed: Vec::new(),
                capacity_bytes,
                used_bytes: 0,
                intercept: None,
            }),
        })
    }

    /// Decides the fate of every operation from now on. It must not use the server.
    pub fn intercept(&self, intercept: impl FnMut(Operation) -> Effect + Send + 'static) {
        self.lock().intercept = Some(Box::new(intercept));
    }

    /// Every operation is done and answered from now on.
    pub fn mend(&self) {
        self.lock().intercept = None;
    }

    /// Loses all changes that are not durable, and those that have not arrived.
    pub fn crash(&self) {
        let mut state = self.lock();
        state.delayed.clear();
        if let Some(synced) = state.synced.clone() {
            state.used_bytes = synced.values().map(Object::allocated_bytes).sum();
            state.objects = synced;
        }
    }

    /// Bytes that all blobs have.
    pub fn used_bytes(&self) -> u64 {
        self.lock().used_bytes
    }

    pub(super) fn chunk_bytes(&self) -> u64 {
        self.chunk_bytes
    }

    pub(super) fn needs_sync(&self) -> bool {
        self.needs_sync
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl State {
    pub(super) fn take_over(&mut self, guard: Guard) -> Result<()> {
        let newest = self.epochs.entry(guard.shard).or_default();
        if *newest > guard.epoch {
            return Err(Error::Fenced { epoch: *newest });
        }
        *newest = guard.epoch;
        // Changes under way arrive now, at the latest.
        self.arrive(|_| true);
        Ok(())
    }

    /// Has delayed changes arrive. No client learns what becomes of them.
    fn arrive(&mut self, concerns: impl Fn(UniqueId) -> bool) {
        let all = std::mem::take(&mut self.delayed);
        for (guard, id, step) in all {
            match concerns(id) {
                true => drop(self.apply(guard, id, step)),
                false => self.delayed.push((guard, id, step)),
            }
        }
    }

    fn effect(&mut self, id: UniqueId, kind: Kind) -> Effect {
        let operation = Operation { id, kind };
        let effect = self.intercept.as_mut().map_or(Effect::Done, |decide| decide(operation));
        if effect == Effect::TakenOver {
            *self.epochs.entry(id.shard).or_default() += 1;
        }
        effect
    }

    /// Makes a change.
    pub(super) fn change(&mut self, guard: Option<Guard>, id: UniqueId, kind: Kind, step: Step<'_>) -> Result<()> {
        self.arrive(|other| other == id);
        let unknown = || Error::Unknown("no reply within the timeout".into());
        match self.effect(id, kind) {
            Effect::Done | Effect::TakenOver => self.apply(guard, id, step),
            Effect::RequestLost => Err(unknown()),
            Effect::ReplyLost => self.apply(guard, id, step).and_then(|()| Err(unknown())),
            Effect::Delayed => {
                self.delayed.push((guard, id, step.into_owned()));
                Err(unknown())
            }
            Effect::Repeated => {
                let again = step.clone().into_owned();
                self.apply(guard, id, step)?;
                self.delayed.push((guard, id, again));
                Ok(())
            }
            Effect::Refused => Err(Error::Failed("the server refused the change".into())),
        }
    }

    fn apply(&mut self, guard: Option<Guard>, id: UniqueId, step: Step<'_>) -> Result<()> {
        let guard = guard.ok_or_else(|| Error::Failed("the content was opened for reading only".into()))?;
        let epoch = self.epochs.get(&guard.shard).copied().unwrap_or(0);
        if epoch != guard.epoch && !is_seeded(Bug::ContentOfOldEpoch) {
            return Err(Error::Fenced { epoch });
        }
        if matches!(step.change, Change::Create) {
            if !self.made.insert(id) {
                return Err(Error::Exists);
            }
            self.objects.insert(id, Object::default());
        }
        let object = self.objects.get_mut(&id).ok_or(Error::NotFound)?;
        let before = object.allocated_bytes;
        object.apply(&step);
        self.used_bytes = self.used_bytes - before + object.allocated_bytes;
        if matches!(step.change, Change::Delete) {
            self.objects.remove(&id);
        }
        // These are durable at once.
        if matches!(step.change, Change::Create | Change::Delete) {
            self.sync_object(id);
        }
        Ok(())
    }

    /// An object, to look at.
    pub(super) fn read(&mut self, id: UniqueId, kind: Kind) -> Result<&Object> {
        self.arrive(|other| other == id);
        match self.effect(id, kind) {
            Effect::Done | Effect::Repeated | Effect::TakenOver => self.objects.get(&id).ok_or(Error::NotFound),
            Effect::Refused => Err(Error::Failed("the server refused to read".into())),
            _ => Err(Error::Unknown("no reply within the timeout".into())),
        }
    }

    /// An object as its client knows it, without an operation.
    pub(super) fn object(&mut self, id: UniqueId) -> Option<&Object> {
        self.arrive(|other| other == id);
        self.objects.get(&id)
    }

    pub(super) fn ids(&mut self, shard: Option<u64>) -> Vec<UniqueId> {
        self.arrive(|_| true);
        let ids = self.objects.keys().copied();
        ids.filter(|id| shard.is_none_or(|shard| id.shard == shard)).collect()
    }

    pub(super) fn space(&self) -> Space {
        Space {
            bytes: self.capacity_bytes,
            free_bytes: self.capacity_bytes.saturating_sub(self.used_bytes),
        }
    }

    /// Whether there is space for writes of an object.
    pub(super) fn check_space(&mut self, id: UniqueId, steps: &[Step<'_>]) -> Result<()> {
        let free_bytes = self.space().free_bytes;
        let Some(object) = self.object(id) else { return Ok(()) };
        let wanted = steps.iter().map(|step| {
            let (chunk, to) = match &step.change {
                Change::Write { chunk, from, data } => (chunk, from + data.len() as u64),
                Change::Reserve { chunk, to } => (chunk, *to),
                _ => return 0,
            };
            to.saturating_sub(object.allocated_bytes_of(*chunk))
        });
        match wanted.sum::<u64>() <= free_bytes {
            true => Ok(()),
            false => Err(Error::NoSpace),
        }
    }

    fn sync_object(&mut self, id: UniqueId) {
        if let Some(synced) = &mut self.synced {
            match self.objects.get(&id) {
                Some(object) => drop(synced.insert(id, object.clone())),
                None => drop(synced.remove(&id)),
            }
        }
    }

    pub(super) fn sync(&mut self, id: UniqueId) {
        self.arrive(|other| other == id);
        self.sync_object(id);
    }

    pub(super) fn is_synced(&self, id: UniqueId) -> bool {
        let synced = self.synced.as_ref();
        synced.is_none_or(|synced| synced.get(&id) == self.objects.get(&id))
    }

    pub(super) fn sync_all(&mut self) {
        self.arrive(|_| true);
        if let Some(synced) = &mut self.synced {
            synced.clone_from(&self.objects);
        }
    }
}

impl Object {
    fn apply(&mut self, step: &Step<'_>) {
        let before = step.change.chunk().map_or(0, |chunk| self.allocated_bytes_of(chunk));
        match &step.change {
            Change::Nothing | Change::Create => {}
            Change::Delete => {
                self.chunks.clear();
                self.allocated_bytes = 0;
            }
            Change::Write { chunk, from, data } => {
                let bytes = &mut self.chunks.entry(*chunk).or_default().bytes;
                let (from, to) = (*from as usize, *from as usize + data.len());
                if bytes.len() < to {
                    bytes.resize(to, 0);
                }
                bytes[from..to].copy_from_slice(data);
            }
            Change::Zero { chunk, from, to } => {
                if let Some(Chunk { bytes, .. }) = self.chunks.get_mut(chunk) {
                    let to = bytes.len().min(*to as usize);
                    let from = to.min(*from as usize);
                    bytes[from..to].fill(0);
                }
            }
            Change::Truncate { chunk, len: 0 } => drop(self.chunks.remove(chunk)),
            Change::Truncate { chunk, len } => {
                if let Some(chunk) = self.chunks.get_mut(chunk) {
                    chunk.bytes.truncate(*len as usize);
                    chunk.reserved_bytes = chunk.reserved_bytes.min(*len);
                }
            }
            Change::Reserve { chunk, to } => {
                let chunk = self.chunks.entry(*chunk).or_default();
                chunk.reserved_bytes = chunk.reserved_bytes.max(*to);
            }
        }
        let after = step.change.chunk().map_or(0, |chunk| self.allocated_bytes_of(chunk));
        self.allocated_bytes = self.allocated_bytes - before + after;
        if let Some(tail) = &step.tail {
            self.tail = tail.to_vec();
        }
    }

    /// The chunks that it has, from a number on.
    pub(super) fn chunks_from(&self, chunk: u64) -> Vec<u64> {
        self.chunks.range(chunk..).map(|(&chunk, _)| chunk).collect()
    }

    pub(super) fn allocated_bytes(&self) -> u64 {
        self.allocated_bytes
    }

    fn allocated_bytes_of(&self, chunk: u64) -> u64 {
        self.chunks.get(&chunk).map_or(0, Chunk::allocated_bytes)
    }

    pub(super) fn valid_len(&self, chunk_bytes: u64) -> u64 {
        let last = self.chunks.iter().rev().find(|(_, chunk)| !chunk.bytes.is_empty());
        last.map_or(0, |(number, chunk)| number * chunk_bytes + chunk.bytes.len() as u64)
    }

    pub(super) fn next_data(&self, offset: u64, chunk_bytes: u64) -> Option<u64> {
        let mut chunks = self.chunks.range(offset / chunk_bytes..);
        chunks.find_map(|(number, chunk)| {
            let begins = number * chunk_bytes;
            let end = begins + chunk.bytes.len() as u64;
            (end > begins.max(offset)).then_some(begins.max(offset))
        })
    }

    pub(super) fn next_hole(&self, offset: u64, chunk_bytes: u64) -> u64 {
        let mut at = offset;
        while let Some(Chunk { bytes, .. }) = self.chunks.get(&(at / chunk_bytes)) {
            let begins = at / chunk_bytes * chunk_bytes;
            let end = begins + bytes.len() as u64;
            if end <= at {
                break;
            }
            at = end;
            if at < begins + chunk_bytes {
                break;
            }
        }
        at
    }

    pub(super) fn copy(&self, chunk: u64, from: u64, into: &mut [u8]) {
        let bytes = self.chunks.get(&chunk).map_or(&[][..], |chunk| &chunk.bytes);
        let have = bytes.get(from as usize..).unwrap_or_default();
        let count = have.len().min(into.len());
        into[..count].copy_from_slice(&have[..count]);
        into[count..].fill(0);
    }
}
