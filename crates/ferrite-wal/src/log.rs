//! A log in use.
//!
//! Invariants: what is below `flushed` is durable. One thread writes a group; others append to the next one meanwhile.
//! After a failure of the device nothing is appended, and nothing more is said to be durable.

use std::sync::Arc;
use std::time::Duration;

use ferrite_blob::device::{Device, Op};
use ferrite_buffers::{Buffer, Pool};
use ferrite_checks::condvar::Condvar;
use ferrite_checks::fault_injection::{Bug, is_seeded};
use ferrite_checks::ranked::{Mutex, MutexGuard};

use crate::error::{Error, Result};
use crate::format::{FRAME_BYTES, GROUP_BYTES_MAX, LEN_BYTES, PAGE, Position, RECORD_BYTES_MAX, RING_AT, SIZE_MIN};
use crate::format::{Superblock, Term, frame, padded, places};
use crate::lock_order;
use crate::memory::{pool, take};
use crate::replay;

/// Bytes of a record that are read at once.
const READ_BYTES_MAX: usize = 1 << 20;
/// How long a reader waits for a buffer that others have.
const READER_WAIT: Duration = Duration::from_secs(60);

/// How full a log is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// The space for groups.
    pub bytes: u64,
    /// The part of it that groups take, with those that will be free with the next superblock.
    pub used_bytes: u64,
    /// Groups that this process has written.
    pub groups: u64,
    /// Records in them.
    pub records: u64,
    /// Everything that was appended is durable.
    pub is_durable: bool,
}

/// The content of a device.
pub enum Opened {
    /// Zeros where a log begins: [`Wal::format`] makes one.
    Blank,
    /// A log.
    Log(Box<Wal>),
}

struct State {
    /// The group that is being filled, and how many bytes of it are.
    group: Option<Buffer>,
    fill: usize,
    /// The position of this group.
    base: u64,
    /// The end of the last durable group.
    flushed: u64,
    is_writing: bool,
    /// The head of the last durable superblock.
    durable_head: u64,
    failure: Option<String>,
    groups: u64,
    records: u64,
}

/// The part of the last superblock that the state lacks.
#[derive(Clone, Copy)]
struct Newest {
    generation: u64,
    term: Term,
}

/// A log. Any number of threads may use it. Calls block for the device.
pub struct Wal {
    device: Arc<dyn Device>,
    id: [u8; 16],
    owner: [u8; 16],
    ring_bytes: u64,
    buffers: Pool,
    /// Of those who read single records.
    readers: Pool,
    state: Mutex<lock_order::Log, State>,
    written: Condvar,
    /// The last superblock.
    newest: Mutex<lock_order::Head, Newest>,
}

fn failed(error: &ferrite_blob::Error) -> Error {
    Error::Failed(error.to_string())
}

impl Wal {
    /// Makes an empty log over the whole device. `id` is random, `owner` means something to the caller.
    ///
    /// A crash leaves a device that is blank or has the log: the second superblock is written first, and is of no use
    /// without records.
    ///
    /// # Errors
    /// [`Error::Refused`]: the device is too small. [`Error::Failed`].
    pub fn format(device: &dyn Device, id: [u8; 16], owner: [u8; 16]) -> Result<()> {
        let bytes = device.len_bytes() / PAGE * PAGE;
        if bytes < SIZE_MIN {
            return Err(Error::Refused(format!(
                "{}: it has {} MiB; a log needs {} MiB",
                device.name(),
                bytes >> 20,
                SIZE_MIN.div_ceil(1 << 20)
            )));
        }
        let buffers = pool(PAGE as usize)?;
        for generation in [1, 2] {
            let superblock = Superblock {
                id,
                owner,
                ring_bytes: bytes - RING_AT,
                generation,
                head: 0,
                term: Term::default(),
            };
            put(device, &buffers, &superblock)?;
        }
        Ok(())
    }

    /// Makes a device blank, whatever it holds. A crash leaves it as it was, or without the log that it had.
    ///
    /// # Errors
    /// [`Error::Failed`].
    pub fn erase(device: &dyn Device) -> Result<()> {
        let buffers = pool(PAGE as usize)?;
        let mut page = take(&buffers, PAGE as usize)?;
        page.fill(0);
        let blank = replay::BLANK_BYTES.min(device.len_bytes() / PAGE * PAGE);
        for offset in (0..blank).step_by(PAGE as usize) {
            let (from, durable) = (&page[..], true);
            let done = device.run(&mut [Op::Write { offset, from, durable }]);
            done.map_err(|error| failed(&error))?;
        }
        Ok(())
    }

    /// Opens the log of a device, and finds its end. The caller has the device exclusively.
    ///
    /// # Errors
    /// [`Error::Refused`]: it holds something else. [`Error::Damaged`]; [`Error::Failed`].
    pub fn open(device: Arc<dyn Device>) -> Result<Opened> {
        let buffers = pool(4 * GROUP_BYTES_MAX)?;
        let Some(superblock) = replay::superblock(&*device, &buffers)? else {
            return Ok(Opened::Blank);
        };
        let end = replay::end(&*device, &buffers, &superblock)?;
        let state = State {
            group: None,
            fill: 0,
            base: end,
            flushed: end,
            is_writing: false,
            durable_head: superblock.head,
            failure: None,
            groups: 0,
            records: 0,
        };
        Ok(Opened::Log(Box::new(Wal {
            device,
            id: superblock.id,
            owner: superblock.owner,
            ring_bytes: superblock.ring_bytes,
            buffers,
            readers: pool(4 * READ_BYTES_MAX)?,
            state: Mutex::new(state),
            written: Condvar::new(),
            newest: Mutex::new(Newest {
                generation: superblock.generation,
                term: superblock.term,
            }),
        })))
    }

    /// The id of the log that a device has, if it has one that can be read.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn id_on(device: &dyn Device) -> Result<Option<[u8; 16]>> {
        let superblock = replay::superblock(device, &pool(RING_AT as usize)?)?;
        Ok(superblock.map(|superblock| superblock.id))
    }

    /// The owner of the log that a device has; `None` if it is blank. Writes nothing.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn owner_on(device: &dyn Device) -> Result<Option<[u8; 16]>> {
        let superblock = replay::superblock(device, &pool(RING_AT as usize)?)?;
        Ok(superblock.map(|superblock| superblock.owner))
    }

    /// Its id.
    pub fn id(&self) -> [u8; 16] {
        self.id
    }

    /// The term of the last owner that has [begun](Self::begin) to append.
    pub fn term(&self) -> Term {
        self.newest.lock().term
    }

    /// An owner of this epoch begins to append. Durable when it returns.
    ///
    /// # Errors
    /// [`Error::Failed`].
    pub fn begin(&self, epoch: u64) -> Result<()> {
        let mut newest = self.newest.lock();
        let head = self.state.lock().durable_head;
        let restarts = 0;
        self.put_next(&mut newest, head, Some(Term { epoch, restarts }))
    }

    /// Begins anew behind everything that was ever appended, on devices that may lack some of it, after a failure or
    /// before an owner of this epoch has used the log. The caller needs nothing of what the log has. Returns the new
    /// term. Both superblocks say so, since one device may have others.
    ///
    /// # Errors
    /// [`Error::Failed`]: nothing is appended, as before.
    pub fn restart(&self, epoch: u64) -> Result<Term> {
        let mut newest = self.newest.lock();
        let restarts = match newest.term {
            term if term.epoch == epoch => term.restarts + 1,
            _ => 0,
        };
        let term = Term { epoch, restarts };
        let head = {
            let mut state = self.state.lock();
            if state.is_writing {
                return Err(Error::Failed(format!("{}: it is written to", self.name())));
            }
            let why = || "it begins anew".to_string();
            state.failure.get_or_insert_with(why);
            state.base + padded(state.fill)
        };
        for _ in 0..2 {
            self.put_next(&mut newest, head, Some(term))?;
        }
        let mut state = self.state.lock();
        (state.group, state.fill) = (None, 0);
        (state.base, state.flushed, state.durable_head) = (head, head, head);
        state.failure = None;
        Ok(term)
    }

    /// Writes the next superblock.
    fn put_next(&self, newest: &mut Newest, head: u64, term: Option<Term>) -> Result<()> {
        let next = Newest {
            generation: newest.generation + 1,
            term: term.unwrap_or(newest.term),
        };
        let superblock = Superblock {
            id: self.id,
            owner: self.owner,
            ring_bytes: self.ring_bytes,
            generation: next.generation,
            head,
            term: next.term,
        };
        if let Err(error) = put(&*self.device, &self.buffers, &superblock) {
            self.state.lock().failure = Some(error.to_string());
            return Err(error);
        }
        *newest = next;
        Ok(())
    }

    /// Its owner's id.
    pub fn owner(&self) -> [u8; 16] {
        self.owner
    }

    /// The name of its device.
    pub fn name(&self) -> &str {
        self.device.name()
    }

    /// How full it is.
    pub fn usage(&self) -> Usage {
        let state = self.state.lock();
        Usage {
            bytes: self.ring_bytes,
            used_bytes: state.base + padded(state.fill) - state.durable_head,
            groups: state.groups,
            records: state.records,
            is_durable: state.flushed == state.base + padded(state.fill),
        }
    }

    /// Why nothing is appended any more, if so.
    pub fn failure(&self) -> Option<String> {
        self.state.lock().failure.clone()
    }

    /// The position of the group that is being filled: everything that is appended later has it, or a larger one.
    pub fn end(&self) -> Position {
        Position::of_group(self.state.lock().base)
    }

    /// The oldest position that is kept.
    pub fn head(&self) -> Position {
        Position::of_group(self.state.lock().durable_head)
    }

    /// Appends a record that consists of these parts, and returns its position. It is durable when
    /// [`Self::sync`] has returned. Waits for the device only if a group is full.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::Failed`]: it was not appended. [`Error::Refused`]: it is too long.
    pub fn append(&self, parts: &[&[u8]]) -> Result<Position> {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        if len > RECORD_BYTES_MAX {
            return Err(Error::Refused(format!("a record of {len} bytes is too long for a log")));
        }
        let bytes = LEN_BYTES + len;
        let mut state = self.state.lock();
        while state.fill + bytes > GROUP_BYTES_MAX {
            state = self.write_group(state)?;
        }
        if let Some(why) = &state.failure {
            return Err(Error::Failed(why.clone()));
        }
        let at = match &state.group {
            Some(_) => state.fill,
            None => FRAME_BYTES,
        };
        let end = state.base + padded(at + bytes);
        if end - state.durable_head > self.ring_bytes && !is_seeded(Bug::LogRingOverrun) {
            return Err(Error::Full);
        }
        let group = match state.group.take() {
            Some(group) => group,
            // One is written and one filled at a time, and there are more.
            None => take(&self.buffers, GROUP_BYTES_MAX)?,
        };
        let group = state.group.insert(group);
        let mut from = at + LEN_BYTES;
        group[at..from].copy_from_slice(&(len as u32).to_le_bytes());
        for part in parts {
            group[from..from + part.len()].copy_from_slice(part);
            from += part.len();
        }
        state.fill = from;
        state.records += 1;
        Ok(Position {
            group: state.base,
            record: state.base + at as u64,
        })
    }

    /// Writes the group that is being filled, if it has no room for a record of so many bytes: so the next
    /// [`Self::append`] need not wait, unless others come between. A failure shows there.
    pub fn make_room(&self, bytes: usize) {
        let state = self.state.lock();
        if state.fill + LEN_BYTES + bytes > GROUP_BYTES_MAX {
            drop(self.write_group(state));
        }
    }

    /// Returns when every record that was appended before is durable.
    ///
    /// # Errors
    /// [`Error::Failed`]: some are not, or may not be.
    pub fn sync(&self) -> Result<()> {
        let mut state = self.state.lock();
        let until = state.base + padded(state.fill);
        while state.flushed < until {
            state = self.write_group(state)?;
        }
        Ok(())
    }

    /// Whether the record at this position is durable, and all before it.
    pub fn is_durable(&self, position: Position) -> bool {
        self.state.lock().flushed > position.group
    }

    /// Writes the group that is being filled, or waits for the thread that writes one. Returns after either.
    fn write_group<'w>(&'w self, mut state: Guard<'w>) -> Result<Guard<'w>> {
        if let Some(why) = &state.failure {
            return Err(Error::Failed(why.clone()));
        }
        if state.is_writing {
            self.written.wait(&mut state);
            return Ok(state);
        }
        let Some(mut group) = state.group.take() else {
            return Ok(state);
        };
        let (position, fill) = (state.base, state.fill);
        let end = position + padded(fill);
        (state.is_writing, state.base, state.fill) = (true, end, 0);
        drop(state);
        frame(self.id, position, &mut group[..fill]);
        // The rest of the last page is of an older group, and nobody's business.
        group[fill..(end - position) as usize].fill(0);
        let [(first_at, first), (rest_at, rest)] = places(self.ring_bytes, position, end - position);
        let (head, tail) = group[..(end - position) as usize].split_at(first as usize);
        let write = |offset, from| Op::Write {
            offset,
            from,
            durable: true,
        };
        let done = match rest {
            0 => self.device.run(&mut [write(first_at, head)]),
            _ => self.device.run(&mut [write(first_at, head), write(rest_at, tail)]),
        };
        let mut state = self.state.lock();
        state.is_writing = false;
        self.written.notify_all();
        if let Err(error) = done {
            let why = error.to_string();
            state.failure = Some(why.clone());
            return Err(Error::Failed(why));
        }
        state.flushed = end;
        state.groups += 1;
        Ok(state)
    }

    /// Reads bytes of a record, from `skip` on. Writes its group first, if that is not written yet. The bytes are not
    /// verified: the caller has a checksum. `false`: the space of the record was freed, and the bytes may be others.
    ///
    /// # Errors
    /// [`Error::Failed`].
    pub fn read(&self, position: Position, skip: usize, into: &mut [u8]) -> Result<bool> {
        if !self.is_durable(position) {
            self.sync()?;
        }
        let mut at = position.record + (LEN_BYTES + skip) as u64;
        for part in into.chunks_mut(READ_BYTES_MAX) {
            let from = at / PAGE * PAGE;
            let end = (at + part.len() as u64).next_multiple_of(PAGE);
            let pages = self.readers.get((end - from) as usize, READER_WAIT);
            let mut pages = pages.ok_or_else(|| Error::Failed(format!("{}: it is read too slowly", self.name())))?;
            replay::read_ring(&*self.device, self.ring_bytes, from, &mut pages)?;
            let begins = (at - from) as usize;
            part.copy_from_slice(&pages[begins..begins + part.len()]);
            at += part.len() as u64;
        }
        // Nothing is written where the record was before a head behind it is durable.
        Ok(self.state.lock().durable_head <= position.group)
    }

    /// Moves the head: groups before that of this position do not count any more. Their space is free when it returns,
    /// and not before a superblock is durable that says so.
    ///
    /// # Errors
    /// [`Error::Failed`].
    pub fn trim(&self, to: Position) -> Result<()> {
        let mut newest = self.newest.lock();
        let head = {
            let state = self.state.lock();
            if let Some(why) = &state.failure {
                return Err(Error::Failed(why.clone()));
            }
            let head = to.group.min(state.flushed);
            if head <= state.durable_head {
                return Ok(());
            }
            head
        };
        self.put_next(&mut newest, head, None)?;
        let mut state = self.state.lock();
        state.durable_head = state.durable_head.max(head);
        Ok(())
    }

    /// Reads all records from the head to the end, in order, each with its position. A record that is appended
    /// meanwhile is not among them; no space is freed.
    ///
    /// # Errors
    /// [`Error::Damaged`]; [`Error::Failed`]; those of `visit`, as [`Error::Failed`].
    pub fn replay<E: ToString>(
        &self,
        mut visit: impl FnMut(Position, &[u8]) -> std::result::Result<(), E>,
    ) -> Result<()> {
        let (head, end) = {
            let state = self.state.lock();
            (state.durable_head, state.flushed)
        };
        let superblock = Superblock {
            id: self.id,
            owner: self.owner,
            ring_bytes: self.ring_bytes,
            generation: 0,
            head,
            term: Term::default(),
        };
        replay::each_record(
            &*self.device,
            &self.buffers,
            &superblock,
            end,
            &mut |position, record| visit(position, record).map_err(|error| Error::Failed(error.to_string())),
        )
    }
}

type Guard<'w> = MutexGuard<'w, State>;

/// Writes a superblock to the place of its generation.
pub(crate) fn put(device: &dyn Device, buffers: &Pool, superblock: &Superblock) -> Result<()> {
    let mut page = take(buffers, PAGE as usize)?;
    superblock.encode(&mut page);
    let done = device.run(&mut [Op::Write {
        offset: superblock.generation % 2 * PAGE,
        from: &page,
        durable: !is_seeded(Bug::LogHeadVolatile),
    }]);
    done.map_err(|error| failed(&error))
}
