//! Blocking verbs. Long ones are split into messages, several of which are under way.

use std::collections::VecDeque;

use ferrite_roce::memory::{APPEND_AT, RESERVE_AT};
use ferrite_roce::requester::{Outcome, Request};

use super::{Initiator, Ticket};
use crate::error::Error;

/// Length of the messages into which long WRITEs and READs are split. So many READs of this size fit into the socket's
/// buffer: nothing is lost for lack of space.
const PIECE_BYTES: usize = 128 << 10;
/// Messages under way at a time.
const PIECES: usize = 8;

impl Initiator {
    /// Checks that the adapter responds, by an empty WRITE, which needs no key and reaches no memory.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn probe(&mut self) -> Result<(), Error> {
        let ticket = self.post(Request::Write {
            key: 0,
            at: 0,
            data: Vec::new(),
            immediate: None,
        })?;
        self.wait(ticket).map(drop)
    }

    /// Writes; all of it is durable when this returns. If it fails, a part may be there.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn write(&mut self, key: u32, at: u64, data: &[u8]) -> Result<(), Error> {
        self.write_in_pieces(key, at, data, PIECE_BYTES)
    }

    /// The same in messages of at most `piece_bytes`.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn write_in_pieces(&mut self, key: u32, at: u64, data: &[u8], piece_bytes: usize) -> Result<(), Error> {
        let piece_bytes = piece_bytes.clamp(1, PIECE_BYTES);
        let mut under_way = VecDeque::new();
        for (index, piece) in data.chunks(piece_bytes).enumerate() {
            if under_way.len() == PIECES {
                self.await_first(&mut under_way)?;
            }
            under_way.push_back(self.post(Request::Write {
                key,
                at: at + (index * piece_bytes) as u64,
                data: piece.to_vec(),
                immediate: None,
            })?);
        }
        while !under_way.is_empty() {
            self.await_first(&mut under_way)?;
        }
        Ok(())
    }

    /// Fills `into`. All of its bytes must exist.
    ///
    /// # Errors
    /// See [`Error`]; `Access` also behind the end.
    pub fn read(&mut self, key: u32, at: u64, into: &mut [u8]) -> Result<(), Error> {
        let mut under_way = VecDeque::new();
        let mut rest = into.chunks_mut(PIECE_BYTES).enumerate();
        loop {
            if under_way.len() < PIECES
                && let Some((index, piece)) = rest.next()
            {
                let ticket = self.post(Request::Read {
                    key,
                    at: at + (index * PIECE_BYTES) as u64,
                    len_bytes: piece.len() as u32,
                })?;
                under_way.push_back((ticket, piece));
            } else if let Some((ticket, piece)) = under_way.pop_front() {
                match self.wait(ticket)? {
                    Outcome::Read(bytes) if bytes.len() == piece.len() => piece.copy_from_slice(&bytes),
                    _ => return Err(Error::Ended),
                }
            } else {
                return Ok(());
            }
        }
    }

    /// Appends as one message, behind what others append; durable when this returns. If the connection ends first, it
    /// may be there, whole or as a prefix: a caller that must know reserves, and writes.
    ///
    /// # Errors
    /// See [`Error`]; `TooLong` beyond 2 GiB.
    pub fn append(&mut self, key: u32, data: &[u8]) -> Result<(), Error> {
        let ticket = self.post(Request::Write {
            key,
            at: APPEND_AT,
            data: data.to_vec(),
            immediate: None,
        })?;
        self.wait(ticket).map(drop)
    }

    /// Moves the end by `len_bytes`, durably, and returns where it was. The caller writes there.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn reserve(&mut self, key: u32, len_bytes: u64) -> Result<u64, Error> {
        self.fetch_add(key, RESERVE_AT, len_bytes)
    }

    /// Moves the end from `from` to `to`, durably, and returns where it was: nothing has happened if that is not
    /// `from`. `to` must not be less. It is idempotent.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn extend(&mut self, key: u32, from: u64, to: u64) -> Result<u64, Error> {
        self.compare_swap(key, RESERVE_AT, from, to)
    }

    /// Adds to the 8 bytes at `at`, a multiple of 8, and returns the previous value.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn fetch_add(&mut self, key: u32, at: u64, add: u64) -> Result<u64, Error> {
        let ticket = self.post(Request::FetchAdd { key, at, add })?;
        self.await_word(ticket)
    }

    /// Puts `swap` into the 8 bytes at `at`, a multiple of 8, if they are `compare`, and returns the previous value.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn compare_swap(&mut self, key: u32, at: u64, compare: u64, swap: u64) -> Result<u64, Error> {
        let ticket = self.post(Request::CompareSwap { key, at, compare, swap })?;
        self.await_word(ticket)
    }

    fn await_word(&mut self, ticket: Ticket) -> Result<u64, Error> {
        match self.wait(ticket)? {
            Outcome::Atomic(value) => Ok(value),
            _ => Err(Error::Ended),
        }
    }

    fn await_first(&mut self, under_way: &mut VecDeque<Ticket>) -> Result<(), Error> {
        match under_way.pop_front() {
            Some(ticket) => self.wait(ticket).map(drop),
            None => Ok(()),
        }
    }
}
