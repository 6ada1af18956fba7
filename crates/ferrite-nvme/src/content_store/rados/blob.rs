//! A blob: objects of one length, of which the first has the tail and the map.
//!
//! Contents: [`RadosBlob`], a handle, and [`SharedBlob`], which all handles of a blob share.
//!
//! Invariants:
//! * A chunk exists only if the map in the first object names it: the map is durable before the chunk is created, and a
//!   chunk is removed before the map forgets it. The first object is removed last.
//! * The map in memory names whatever exists or may come. `stored` is the map in the first object, if that is known.
//! * `valid_len` rises before a write is sent, and falls after a truncation was acknowledged.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use ferrite_checks::ranked::Mutex;
use ferrite_rados::{Error as RadosError, WriteOp};

use super::byte_ranges::ByteRanges;
use super::chunk_map::ChunkMap;
use super::connection::{Change, Connection, DEPTH};
use super::{lock_order, object_name};
use crate::content_store::{Blob, Error, Result, UniqueId};

/// The xattr of the first object that has the tail.
const TAIL: &str = "tail";
/// The xattr of the first object that has the map.
const MAP: &str = "map";
/// How many chunks a search asks for at once, at most.
const SEARCH_MAX: usize = 64;

/// A blob, as long as any handle of it exists.
pub(super) struct SharedBlob {
    connection: Arc<Connection>,
    id: UniqueId,
    state: Mutex<lock_order::BlobState, State>,
    ranges: ByteRanges,
}

#[derive(Clone)]
struct State {
    map: ChunkMap,
    stored: Option<ChunkMap>,
    valid_len: u64,
    is_deleted: bool,
}

/// A handle of a blob.
pub(super) struct RadosBlob(pub(super) Arc<SharedBlob>);

/// A change of the first object.
#[derive(Default)]
struct OfFirst<'c> {
    write: Option<(u64, &'c [u8])>,
    zero: Option<Range<u64>>,
    map: Option<ChunkMap>,
    tail: Option<&'c [u8]>,
}

impl SharedBlob {
    fn new(connection: &Arc<Connection>, id: UniqueId, map: ChunkMap, valid_len: u64) -> SharedBlob {
        SharedBlob {
            connection: Arc::clone(connection),
            id,
            state: Mutex::new(State {
                stored: Some(map.clone()),
                map,
                valid_len,
                is_deleted: false,
            }),
            ranges: ByteRanges::default(),
        }
    }

    /// Makes an empty blob.
    pub(super) fn create(connection: &Arc<Connection>, id: UniqueId, chunk_bytes: u64) -> Result<SharedBlob> {
        let map = ChunkMap::new(chunk_bytes);
        let encoded = map.encode();
        let op = WriteOp::new().create_exclusive().set_xattr(MAP, &encoded);
        connection.write(id, 0, &op)?;
        Ok(SharedBlob::new(connection, id, map, 0))
    }

    /// Reads what a handle has to know.
    pub(super) fn load(connection: &Arc<Connection>, id: UniqueId) -> Result<SharedBlob> {
        let first = object_name::of_chunk(id, 0);
        let op = connection.read_op().stat().xattr(MAP);
        let reply = connection.pool.read(&first, &op, &mut []);
        let reply = reply.map_err(|error| connection.failed(error))?;
        let map = ChunkMap::decode(reply.xattr(MAP).unwrap_or_default());
        let map = map.ok_or_else(|| Error::Damaged(format!("the map of object {first} cannot be read")))?;
        // From the end of the map backwards, to the last chunk with any byte.
        let mut chunks = map.present.backwards(&(1..u64::MAX)).peekable();
        let mut valid_len = reply.size.unwrap_or(0).min(map.chunk_bytes);
        while chunks.peek().is_some() {
            let some: Vec<u64> = chunks.by_ref().take(DEPTH).collect();
            let lengths = connection.lengths(id, &some)?;
            if let Some((chunk, len)) = some.iter().zip(lengths).find(|&(_, len)| len > 0) {
                valid_len = chunk * map.chunk_bytes + len.min(map.chunk_bytes);
                break;
            }
        }
        Ok(SharedBlob::new(connection, id, map, valid_len))
    }

    /// Deletes all objects, the first one last, and has every handle find that.
    pub(super) fn delete(&self) -> Result<()> {
        let map = self.existing()?.map;
        let removes = map.present.backwards(&(1..u64::MAX)).map(|chunk| Change {
            chunk,
            op: WriteOp::new().remove(),
            may_be_missing: true,
        });
        self.connection
            .write_all(self.id, removes)
            .map_err(|(_, error)| error)?;
        self.connection.write(self.id, 0, &WriteOp::new().remove())?;
        self.update(|state| {
            (state.is_deleted, state.valid_len) = (true, 0);
            state.map = ChunkMap::new(state.map.chunk_bytes);
        });
        Ok(())
    }

    /// Whether [`Self::delete`] has returned.
    pub(super) fn is_deleted(&self) -> bool {
        self.state.lock().is_deleted
    }

    /// Changes the known state, and counts the space.
    fn update<T>(&self, update: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock();
        let before = state.map.allocated_bytes(state.valid_len);
        let done = update(&mut state);
        let after = state.map.allocated_bytes(state.valid_len);
        drop(state);
        self.connection.space.changed(before, after);
        done
    }

    /// The known state, if the blob exists.
    fn existing(&self) -> Result<State> {
        let state = self.state.lock();
        match state.is_deleted {
            true => Err(Error::NotFound),
            false => Ok(state.clone()),
        }
    }

    /// Changes the first object, in one step.
    fn change_first(&self, change: OfFirst<'_>) -> Result<()> {
        let encoded = change.map.as_ref().map(ChunkMap::encode);
        let mut op = WriteOp::new().assert_exists();
        if let Some(zero) = &change.zero {
            op = op.zero(zero.start, zero.end - zero.start);
        }
        if let Some((offset, data)) = change.write {
            op = op.write(offset, data);
        }
        if let Some(encoded) = &encoded {
            op = op.set_xattr(MAP, encoded);
            // Until it is acknowledged, either map may be there.
            self.state.lock().stored = None;
        }
        if let Some(tail) = change.tail {
            op = op.set_xattr(TAIL, tail);
        }
        self.connection.write(self.id, 0, &op)?;
        if let Some(map) = change.map {
            self.update(|state| {
                state.stored = Some(map.clone());
                state.map = map;
            });
        }
        Ok(())
    }

    /// Prepares a write: the map names its chunks. Returns the map, if it has yet to go with the first chunk.
    fn grow(&self, bytes: &Range<u64>) -> Result<Option<ChunkMap>> {
        let state = self.existing()?;
        let chunks = state.map.chunks(bytes);
        let is_named = state
            .stored
            .as_ref()
            .is_some_and(|stored| stored.present.contains(&chunks));
        let mut map = state.map;
        map.grow(chunks.clone());
        self.update(|state| {
            // A write that fails may have created them, or may do so later.
            state.map.present.insert(chunks.clone());
            state.valid_len = state.valid_len.max(bytes.end);
        });
        match (is_named, chunks == (0..1)) {
            (true, _) => Ok(None),
            (false, true) => Ok(Some(map)),
            (false, false) => {
                self.change_first(OfFirst {
                    map: Some(map),
                    ..OfFirst::default()
                })?;
                Ok(None)
            }
        }
    }

    /// Writes the chunks but the first, and the first, too, unless `keeps_first`; returns the part of the first then.
    fn write_chunks<'d>(
        &self,
        map: &ChunkMap,
        data: &'d [u8],
        bytes: &Range<u64>,
        (keeps_first, is_in_place): (bool, bool),
    ) -> Result<FirstPart<'d>> {
        let part = |(chunk, within): (u64, Range<u64>)| {
            let at = (chunk * map.chunk_bytes + within.start - bytes.start) as usize;
            (
                chunk,
                within.start,
                &data[at..at + (within.end - within.start) as usize],
            )
        };
        let first = map
            .pieces(bytes)
            .map(part)
            .find(|&(chunk, ..)| chunk == 0 && keeps_first);
        let others = map
            .pieces(bytes)
            .map(part)
            .filter(|&(chunk, ..)| chunk != 0 || !keeps_first);
        let changes = others.map(|(chunk, from, data)| Change {
            chunk,
            op: match chunk {
                0 => WriteOp::new().assert_exists().write(from, data),
                _ => WriteOp::new().write(from, data),
            },
            may_be_missing: false,
        });
        // Behind the end nobody sees a part.
        let written = self.connection.write_all(self.id, changes);
        written.map_err(|(made, error)| full_amid(error, made > 0 && is_in_place))?;
        Ok(first.map(|(_, from, data)| (from, data)))
    }

    /// Zeros some bytes: removes whole chunks, and cuts or zeros others. Then, in one step, the first chunk, the map
    /// and the tail. `reserves`: the bytes that are reserved then.
    fn release(&self, bytes: Range<u64>, reserves: Option<Range<u64>>, tail: Option<&[u8]>) -> Result<()> {
        let state = self.existing()?;
        let mut map = state.map.clone();
        let end = state.valid_len.max(map.reserved_len);
        let whole = map.whole_chunks(&bytes, end);
        let within = bytes.start..bytes.end.min(state.valid_len).max(bytes.start);
        let chunks = map.present.backwards(&map.chunks(&within)).filter(|&chunk| chunk > 0);
        let changes = chunks.map(|chunk| Change {
            chunk,
            op: match whole.contains(&chunk) {
                true => WriteOp::new().remove(),
                false => {
                    let begins = chunk * map.chunk_bytes;
                    let (from, to) = (
                        bytes.start.max(begins) - begins,
                        (bytes.end - begins).min(map.chunk_bytes),
                    );
                    WriteOp::new().assert_exists().zero(from, to - from)
                }
            },
            may_be_missing: true,
        });
        self.connection
            .write_all(self.id, changes)
            .map_err(|(_, error)| error)?;
        let zero = (map.present.contains(&(0..1)) && bytes.start < map.chunk_bytes && !bytes.is_empty())
            .then(|| bytes.start..bytes.end.min(map.chunk_bytes));
        map.present.remove(whole.clone());
        map.reserved.remove(whole);
        if bytes.end >= map.reserved_len {
            map.reserved_len = map.reserved_len.min(bytes.start);
        }
        if let Some(reserved) = reserves {
            map.reserved.insert(map.chunks(&reserved));
            map.reserved_len = map.reserved_len.max(reserved.end);
        }
        let is_other = state.stored.as_ref() != Some(&map);
        if is_other || zero.is_some() || tail.is_some() {
            self.change_first(OfFirst {
                zero,
                map: is_other.then_some(map),
                tail,
                write: None,
            })?;
        }
        if bytes.end >= state.valid_len {
            self.update(|state| state.valid_len = state.valid_len.min(bytes.start));
        }
        Ok(())
    }

    /// Refuses a reservation that needs more space than there is.
    fn check_space(&self, bytes: &Range<u64>) -> Result<()> {
        let state = self.existing()?;
        let mut map = state.map.clone();
        map.reserved.insert(map.chunks(bytes));
        map.reserved_len = map.reserved_len.max(bytes.end);
        let more = map
            .allocated_bytes(state.valid_len)
            .saturating_sub(state.map.allocated_bytes(state.valid_len));
        match more <= self.connection.space.get().free_bytes {
            true => Ok(()),
            false => Err(Error::NoSpace),
        }
    }
}

/// "Full" means that nothing has changed, which is not so if a part was written.
fn full_amid(error: Error, has_changed: bool) -> Error {
    match error {
        Error::NoSpace if has_changed => Error::Failed(
            "Ceph became full during a write of several objects, of which some were written; delete something, or add \
             OSDs"
                .into(),
        ),
        error => error,
    }
}

/// The part of a write that is in the first chunk.
type FirstPart<'d> = Option<(u64, &'d [u8])>;

fn range(offset: u64, len: u64) -> Result<Range<u64>> {
    let end = offset.checked_add(len).filter(|&end| end <= i64::MAX as u64);
    end.map(|end| offset..end).ok_or(Error::NoSpace)
}

impl fmt::Debug for RadosBlob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RadosBlob").field(&self.0.id).finish()
    }
}

impl Blob for RadosBlob {
    fn tail(&self) -> Result<Vec<u8>> {
        self.0.existing()?;
        let connection = &self.0.connection;
        let op = connection.read_op().xattr(TAIL);
        let reply = connection.pool.read(&object_name::of_chunk(self.0.id, 0), &op, &mut []);
        let reply = reply.map_err(|error| connection.failed(error))?;
        Ok(reply.xattr(TAIL).unwrap_or_default().to_vec())
    }

    fn allocated_bytes(&self) -> u64 {
        let state = self.0.state.lock();
        state.map.allocated_bytes(state.valid_len)
    }

    fn valid_len(&self) -> u64 {
        self.0.state.lock().valid_len
    }

    fn next_data(&self, offset: u64) -> Result<Option<u64>> {
        let State { map, valid_len, .. } = self.0.existing()?;
        if offset >= valid_len {
            return Ok(None);
        }
        let chunks: Vec<Range<u64>> = map.present.within(&map.chunks(&(offset..valid_len))).collect();
        let mut chunks = chunks.into_iter().flatten();
        let mut count = 1;
        loop {
            let some: Vec<u64> = chunks.by_ref().take(count).collect();
            if some.is_empty() {
                return Ok(None);
            }
            for (chunk, len) in some.iter().zip(self.0.connection.lengths(self.0.id, &some)?) {
                let begins = chunk * map.chunk_bytes;
                if begins + len > offset && len > 0 {
                    return Ok(Some(begins.max(offset)));
                }
            }
            count = (count * 4).min(SEARCH_MAX);
        }
    }

    fn next_hole(&self, offset: u64) -> Result<u64> {
        let State { map, valid_len, .. } = self.0.existing()?;
        let (mut at, mut count) = (offset, 1);
        loop {
            let first = at / map.chunk_bytes;
            let run = map.present.within(&(first..first.saturating_add(count))).next();
            let some: Vec<u64> = run
                .filter(|run| run.start == first && at < valid_len)
                .into_iter()
                .flatten()
                .collect();
            if some.is_empty() {
                return Ok(at);
            }
            for (chunk, len) in some.iter().zip(self.0.connection.lengths(self.0.id, &some)?) {
                let end = chunk * map.chunk_bytes + len;
                if end <= at {
                    return Ok(at);
                }
                at = end;
                if len < map.chunk_bytes {
                    return Ok(at);
                }
            }
            count = (count * 4).min(SEARCH_MAX as u64);
        }
    }

    fn read_at(&self, into: &mut [u8], offset: u64) -> Result<()> {
        let bytes = offset..offset.saturating_add(into.len() as u64);
        let _shared = self.0.ranges.share(bytes.clone());
        let State { map, valid_len, .. } = self.0.existing()?;
        let there = bytes.start..bytes.end.min(valid_len).max(bytes.start);
        let pieces = map
            .pieces(&there)
            .filter(|&(chunk, _)| map.present.contains(&(chunk..chunk + 1)));
        let mut pieces = pieces.peekable();
        let (connection, id) = (&self.0.connection, self.0.id);
        let place = |chunk: u64, within: &Range<u64>| {
            let at = (chunk * map.chunk_bytes + within.start - offset) as usize;
            at..at + (within.end - within.start) as usize
        };
        // The number of bytes that a chunk has.
        let read = |chunk: u64, reply: std::result::Result<ferrite_rados::ReadReply, RadosError>| match reply {
            Ok(reply) => Ok(reply.len),
            Err(RadosError::NotFound(_)) if chunk > 0 => Ok(0),
            Err(error) => Err(connection.failed(error)),
        };
        let only = pieces.next();
        if let Some((chunk, within)) = only.clone().filter(|_| pieces.peek().is_none()) {
            let part = place(chunk, &within);
            into[..part.start].fill(0);
            into[part.end..].fill(0);
            let op = connection.read_op().read(within.start);
            let part = &mut into[part];
            let have = read(
                chunk,
                connection.pool.read(&object_name::of_chunk(id, chunk), &op, part),
            )?;
            part[have.min(within.end as usize - within.start as usize)..].fill(0);
            return Ok(());
        }
        into.fill(0);
        let mut pieces = only.into_iter().chain(pieces);
        loop {
            let sent = pieces.by_ref().take(DEPTH).map(|(chunk, within)| {
                let (op, buffer) = (
                    connection.read_op().read(within.start),
                    vec![0; (within.end - within.start) as usize],
                );
                let sent = connection
                    .pool
                    .submit_read(&object_name::of_chunk(id, chunk), &op, buffer);
                (chunk, within, sent)
            });
            let sent: Vec<_> = sent.collect();
            if sent.is_empty() {
                return Ok(());
            }
            for (chunk, within, sent) in sent {
                let (buffer, reply) = sent.map_err(|error| connection.failed(error))?.wait();
                let have = read(chunk, reply)?.min(buffer.len());
                let part = place(chunk, &within);
                into[part.start..part.start + have].copy_from_slice(&buffer[..have]);
            }
        }
    }

    fn write_at(&self, data: &[u8], offset: u64, tail: Option<&[u8]>) -> Result<()> {
        let bytes = range(offset, data.len() as u64)?;
        if bytes.is_empty() {
            return tail.map_or(Ok(()), |tail| self.set_tail(tail));
        }
        self.0.connection.check_owner()?;
        let is_in_place = bytes.start < self.0.existing()?.valid_len;
        let grown = self.0.grow(&bytes)?;
        let map = self.0.existing()?.map;
        let keeps_first = tail.is_some() || grown.is_some();
        let write = self.0.write_chunks(&map, data, &bytes, (keeps_first, is_in_place))?;
        if write.is_none() && tail.is_none() {
            return Ok(());
        }
        let first = OfFirst {
            write,
            map: grown,
            tail,
            zero: None,
        };
        let has_others = is_in_place && bytes.end > map.chunk_bytes;
        let changed = self.0.change_first(first);
        changed.map_err(|error| full_amid(error, has_others))
    }

    fn overwrite_at(&self, data: &[u8], offset: u64, begins: &mut dyn FnMut()) -> Result<bool> {
        let bytes = range(offset, data.len() as u64)?;
        let state = self.0.existing()?;
        let chunks = state.map.chunks(&bytes);
        let is_named = state.stored.is_some_and(|stored| stored.present.contains(&chunks));
        if bytes.end > state.valid_len || !is_named {
            return Ok(false);
        }
        self.0.connection.check_owner()?;
        let _alone = self.0.ranges.exclude(bytes.clone());
        begins();
        self.0.write_chunks(&state.map, data, &bytes, (false, true))?;
        Ok(true)
    }

    fn set_tail(&self, tail: &[u8]) -> Result<()> {
        self.0.existing()?;
        self.0.change_first(OfFirst {
            tail: Some(tail),
            ..OfFirst::default()
        })
    }

    fn reserve(&self, offset: u64, len: u64, tail: Option<&[u8]>) -> Result<()> {
        let bytes = range(offset, len)?;
        self.0.check_space(&bytes)?;
        self.0.release(0..0, Some(bytes), tail)
    }

    fn truncate(&self, len: u64, tail: Option<&[u8]>) -> Result<()> {
        self.0.release(len..u64::MAX, None, tail)
    }

    fn punch(&self, offset: u64, len: u64, tail: Option<&[u8]>) -> Result<()> {
        self.0.release(offset..offset.saturating_add(len), None, tail)
    }

    fn zero(&self, offset: u64, len: u64, tail: Option<&[u8]>) -> Result<()> {
        let bytes = range(offset, len)?;
        self.0.check_space(&bytes)?;
        self.0.release(bytes.clone(), Some(bytes), tail)
    }
}
