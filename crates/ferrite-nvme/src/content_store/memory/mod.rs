//! Content as objects in memory, for tests: the model of a store on other machines.
//!
//! A blob is a row of chunks, as objects of a fixed size are; each operation on one chunk, with the tail if it has one,
//! is atomic, and a call on several chunks is several operations, the tail with the last one. Every change carries its
//! owner's guard, and the server compares it with the newest epoch.
//!
//! Contents: [`MemoryServer`], which outlives its clients (`server`); [`MemoryContent`], one owner's client; and
//! [`Operation`] and [`Effect`], by which a test loses requests and replies, delays, repeats or refuses operations,
//! and has another owner take over.
//!
//! Invariant: a client holds the server's lock for the whole of a call, so that readers see each write whole or not at
//! all. `begins` of an overwrite runs under it.

mod server;

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use ferrite_vfs::{Durability, SyncMode};

use self::server::{Change, Object, State, Step};
pub use self::server::{Effect, Kind, MemoryServer, Operation};
use super::{Blob, BlobName, ContentStore, Error, Guard, Limits, Place, Result, Space, Survey, UniqueId, UniqueIds};

/// One owner's client of a server.
#[derive(Debug)]
pub struct MemoryContent(Arc<Client>);

#[derive(Debug)]
struct Client {
    server: Arc<MemoryServer>,
    guard: OnceLock<Guard>,
    /// The epoch of the owner that has taken over, once a change was refused for it.
    newer: AtomicU64,
}

/// A blob of a client.
#[derive(Debug)]
struct MemoryBlob {
    client: Arc<Client>,
    id: UniqueId,
}

impl MemoryContent {
    /// A client that has taken nothing over.
    pub fn new(server: &Arc<MemoryServer>) -> MemoryContent {
        MemoryContent(Arc::new(Client {
            server: Arc::clone(server),
            guard: OnceLock::new(),
            newer: AtomicU64::new(0),
        }))
    }
}

fn id_of(place: Place) -> Result<UniqueId> {
    match (place.store, place.name) {
        (0, BlobName::Unique(id)) => Ok(id),
        _ => Err(Error::Damaged(format!("{place} cannot be in memory"))),
    }
}

fn check_store(store: u16) -> Result<()> {
    match store {
        0 => Ok(()),
        _ => Err(Error::Damaged(format!("there is no data store {store}"))),
    }
}

impl Client {
    /// Sends operations, each of which is one step, until one fails.
    fn send<'c>(&self, state: &mut State, id: UniqueId, kind: Kind, steps: Vec<Step<'c>>) -> Result<()> {
        let guard = self.guard.get().copied();
        let sent = steps
            .into_iter()
            .try_for_each(|step| state.change(guard, id, kind, step));
        if let Err(Error::Fenced { epoch }) = &sent {
            self.newer.store(*epoch, Ordering::Release);
        }
        sent
    }
}

impl ContentStore for MemoryContent {
    fn limits(&self) -> Limits {
        Limits {
            // Any longer write may lie in two chunks.
            atomic_write_bytes: 1,
            block_bytes: self.0.server.chunk_bytes(),
            durability: Durability::None,
            is_durable_at_once: !self.0.server.needs_sync(),
            sync_mode: SyncMode::Through,
            overwrites_in_place: true,
            has_reservations: true,
            shares_content: false,
            has_unique_ids: true,
        }
    }

    fn take_over(&self, guard: Guard) -> Result<()> {
        self.0.server.lock().take_over(guard)?;
        self.0
            .guard
            .set(guard)
            .map_err(|_| Error::Failed("this client has taken over before; connect another".into()))
    }

    fn health(&self) -> Result<()> {
        match self.0.newer.load(Ordering::Acquire) {
            0 => Ok(()),
            epoch => Err(Error::Fenced { epoch }),
        }
    }

    fn stores(&self) -> u16 {
        1
    }

    fn space(&self, store: u16) -> Result<Space> {
        check_store(store)?;
        Ok(self.0.server.lock().space())
    }

    fn turns(&self) -> Vec<u16> {
        vec![0]
    }

    fn reserve(&self, store: u16, count: usize, ids: &UniqueIds) -> Result<Vec<Place>> {
        check_store(store)?;
        Ok(ids.places(store, count))
    }

    fn create(&self, place: Place) -> Result<Arc<dyn Blob>> {
        let id = id_of(place)?;
        let mut state = self.0.server.lock();
        self.0
            .send(&mut state, id, Kind::Create, vec![Step::of(Change::Create)])?;
        Ok(Arc::new(MemoryBlob {
            client: Arc::clone(&self.0),
            id,
        }))
    }

    fn open(&self, place: Place) -> Result<Arc<dyn Blob>> {
        let id = id_of(place)?;
        self.0.server.lock().read(id, Kind::Open)?;
        Ok(Arc::new(MemoryBlob {
            client: Arc::clone(&self.0),
            id,
        }))
    }

    fn delete(&self, place: Place) -> Result<()> {
        let id = id_of(place)?;
        let mut state = self.0.server.lock();
        self.0
            .send(&mut state, id, Kind::Delete, vec![Step::of(Change::Delete)])
    }

    fn survey(&self, store: u16) -> Result<Survey> {
        check_store(store)?;
        let shard = self.0.guard.get().map(|guard| guard.shard);
        let place = |id| Place {
            store,
            name: BlobName::Unique(id),
        };
        Ok(Survey {
            blobs: Some(self.0.server.lock().ids(shard).into_iter().map(place).collect()),
            ..Survey::default()
        })
    }

    fn sync(&self) -> Result<()> {
        self.0.server.lock().sync_all();
        Ok(())
    }

    fn close(&self) -> Result<()> {
        self.sync()
    }
}

impl MemoryBlob {
    /// The parts of a range, by chunk: which chunk, and from where to where in it.
    fn pieces(&self, offset: u64, end: u64) -> impl Iterator<Item = (u64, u64, u64)> {
        let chunk_bytes = self.client.server.chunk_bytes();
        (offset / chunk_bytes..end.div_ceil(chunk_bytes)).filter_map(move |chunk| {
            let begins = chunk * chunk_bytes;
            let (from, to) = (offset.max(begins) - begins, end.min(begins + chunk_bytes) - begins);
            (from < to).then_some((chunk, from, to))
        })
    }

    fn writes<'d>(&self, data: &'d [u8], offset: u64) -> Vec<Step<'d>> {
        let (chunk_bytes, end) = (self.client.server.chunk_bytes(), offset + data.len() as u64);
        self.pieces(offset, end)
            .map(|(chunk, from, to)| {
                let at = (chunk * chunk_bytes + from - offset) as usize;
                let data = Cow::Borrowed(&data[at..at + (to - from) as usize]);
                Step::of(Change::Write { chunk, from, data })
            })
            .collect()
    }

    /// Operations that reserve a range.
    fn reservations(&self, state: &State, offset: u64, len: u64) -> Result<Vec<Step<'static>>> {
        let end = offset.checked_add(len).ok_or(Error::NoSpace)?;
        if len > state.space().bytes {
            return Err(Error::NoSpace);
        }
        let reserve = |(chunk, _, to)| Step::of(Change::Reserve { chunk, to });
        Ok(self.pieces(offset, end).map(reserve).collect())
    }

    /// Operations that zero a range, and may release whole chunks.
    fn zeros(&self, state: &mut State, offset: u64, len: u64, releases: bool) -> Vec<Step<'static>> {
        let chunk_bytes = self.client.server.chunk_bytes();
        let end = offset.saturating_add(len);
        let object = state.object(self.id);
        let chunks = object.map_or(Vec::new(), |object| object.chunks_from(offset / chunk_bytes));
        let steps = chunks.into_iter().filter_map(|chunk| {
            let begins = chunk * chunk_bytes;
            let (from, to) = (
                offset.saturating_sub(begins),
                end.saturating_sub(begins).min(chunk_bytes),
            );
            match (from, to) {
                (_, 0) => None,
                (0, to) if to == chunk_bytes && releases => Some(Step::of(Change::Truncate { chunk, len: 0 })),
                (from, to) => Some(Step::of(Change::Zero { chunk, from, to })),
            }
        });
        steps.collect()
    }

    /// Sends operations, the last one with the tail.
    fn send<'c>(&self, state: &mut State, kind: Kind, mut steps: Vec<Step<'c>>, tail: Option<&'c [u8]>) -> Result<()> {
        if steps.is_empty() && tail.is_some() {
            steps.push(Step::of(Change::Nothing));
        }
        if let Some(last) = steps.last_mut() {
            last.tail = tail.map(Cow::Borrowed);
        }
        self.client.send(state, self.id, kind, steps)
    }

    fn look<T>(&self, kind: Kind, look: impl FnOnce(&Object, u64) -> T) -> Result<T> {
        let chunk_bytes = self.client.server.chunk_bytes();
        let mut state = self.client.server.lock();
        state.read(self.id, kind).map(|object| look(object, chunk_bytes))
    }
}

impl Blob for MemoryBlob {
    fn tail(&self) -> Result<Vec<u8>> {
        self.look(Kind::Read, |object, _| object.tail.clone())
    }

    fn allocated_bytes(&self) -> u64 {
        let mut state = self.client.server.lock();
        state.object(self.id).map_or(0, Object::allocated_bytes)
    }

    fn valid_len(&self) -> u64 {
        let chunk_bytes = self.client.server.chunk_bytes();
        let mut state = self.client.server.lock();
        state.object(self.id).map_or(0, |object| object.valid_len(chunk_bytes))
    }

    fn next_data(&self, offset: u64) -> Result<Option<u64>> {
        self.look(Kind::Read, |object, chunk_bytes| object.next_data(offset, chunk_bytes))
    }

    fn next_hole(&self, offset: u64) -> Result<u64> {
        self.look(Kind::Read, |object, chunk_bytes| object.next_hole(offset, chunk_bytes))
    }

    fn read_at(&self, into: &mut [u8], offset: u64) -> Result<()> {
        let pieces = self.pieces(offset, offset.saturating_add(into.len() as u64));
        self.look(Kind::Read, |object, chunk_bytes| {
            for (chunk, from, to) in pieces {
                let at = (chunk * chunk_bytes + from - offset) as usize;
                object.copy(chunk, from, &mut into[at..at + (to - from) as usize]);
            }
        })
    }

    fn write_at(&self, data: &[u8], offset: u64, tail: Option<&[u8]>) -> Result<()> {
        offset.checked_add(data.len() as u64).ok_or(Error::NoSpace)?;
        let mut state = self.client.server.lock();
        let steps = self.writes(data, offset);
        state.check_space(self.id, &steps)?;
        self.send(&mut state, Kind::Write, steps, tail)
    }

    fn overwrite_at(&self, data: &[u8], offset: u64, begins: &mut dyn FnMut()) -> Result<bool> {
        let end = offset.checked_add(data.len() as u64).ok_or(Error::NoSpace)?;
        let chunk_bytes = self.client.server.chunk_bytes();
        let mut state = self.client.server.lock();
        let object = state.object(self.id).ok_or(Error::NotFound)?;
        if object.next_hole(offset, chunk_bytes) < end {
            return Ok(false);
        }
        begins();
        self.send(&mut state, Kind::Write, self.writes(data, offset), None)?;
        Ok(true)
    }

    fn set_tail(&self, tail: &[u8]) -> Result<()> {
        let mut state = self.client.server.lock();
        self.send(&mut state, Kind::Tail, Vec::new(), Some(tail))
    }

    fn reserve(&self, offset: u64, len: u64, tail: Option<&[u8]>) -> Result<()> {
        let mut state = self.client.server.lock();
        let steps = self.reservations(&state, offset, len)?;
        state.check_space(self.id, &steps)?;
        self.send(&mut state, Kind::Reserve, steps, tail)
    }

    fn truncate(&self, len: u64, tail: Option<&[u8]>) -> Result<()> {
        let chunk_bytes = self.client.server.chunk_bytes();
        let mut state = self.client.server.lock();
        let chunks = state
            .object(self.id)
            .map_or(Vec::new(), |object| object.chunks_from(len / chunk_bytes));
        // From the end, so that the blob is shorter after each of them, and has no new hole.
        let steps = chunks.into_iter().rev().map(|chunk| {
            let len = len.saturating_sub(chunk * chunk_bytes);
            Step::of(Change::Truncate { chunk, len })
        });
        self.send(&mut state, Kind::Truncate, steps.collect(), tail)
    }

    fn punch(&self, offset: u64, len: u64, tail: Option<&[u8]>) -> Result<()> {
        let mut state = self.client.server.lock();
        let steps = self.zeros(&mut state, offset, len, true);
        self.send(&mut state, Kind::Punch, steps, tail)
    }

    fn zero(&self, offset: u64, len: u64, tail: Option<&[u8]>) -> Result<()> {
        let mut state = self.client.server.lock();
        let mut steps = self.reservations(&state, offset, len)?;
        state.check_space(self.id, &steps)?;
        steps.extend(self.zeros(&mut state, offset, len, false));
        self.send(&mut state, Kind::Punch, steps, tail)
    }

    fn sync(&self) -> Result<()> {
        self.client.server.lock().sync(self.id);
        Ok(())
    }

    fn is_synced(&self) -> bool {
        self.client.server.lock().is_synced(self.id)
    }
}
