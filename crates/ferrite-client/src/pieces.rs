//! Long reads, requested in pieces of which few are in flight.
//!
//! Contents: [`Link::read_in_pieces`]. With one long reply both ends keep more in flight than their caches hold, and
//! when the sockets between them are full each waits for the other repeatedly. A few short ones in sequence arrive in
//! little more than half the time.
//!
//! Invariant: a read sees one state of the file. Each piece comes with the file's version; unless those are all the
//! same, the result is discarded, and the caller reads in one request.

use std::collections::VecDeque;
use std::sync::Arc;

use ferrite_vfs::{Ctx, Result};

use super::deadline::Deadline;
use super::head;
use super::link::Link;
use super::message::{Waiter, encode};
use super::requests::Pending;
use super::up::Up;
use ferrite_proto::{FileRequest, Piece, Request};

/// Length of a piece.
const PIECE_BYTES: usize = 256 << 10;
/// Pieces in flight.
const PIECES_MAX: usize = 2;
/// Shorter reads are one request.
pub(super) const LONG_BYTES: usize = 2 * PIECE_BYTES;

/// A requested piece. Dropping it ends the wait for its reply.
struct InFlight<'l> {
    link: &'l Link,
    number: u64,
    waiter: Arc<Waiter>,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.link.requests.leave(self.number);
    }
}

impl Link {
    /// Reads at `offset` of an open file; fewer bytes than `buf` has only at its end. `None` if that did not work, for
    /// whatever reason: then the caller reads in one request.
    pub(super) fn read_in_pieces(&self, ctx: &Ctx, file: u64, offset: u64, buf: &mut [u8]) -> Result<Option<usize>> {
        let limit = Deadline::of(self.options.timeout, &ctx.waits);
        let up = self.up(&limit)?;
        if up.connection.places_data() {
            return Ok(None);
        }
        let starts = (0..).map(|index| offset.saturating_add(index * PIECE_BYTES as u64));
        let mut pieces = starts.zip(buf.chunks_mut(PIECE_BYTES)).peekable();
        let mut under_way = VecDeque::with_capacity(PIECES_MAX);
        let mut version = None;
        let mut total = 0;
        let mut is_at_end = false;
        loop {
            while under_way.len() < PIECES_MAX
                && !is_at_end
                && let Some((at, part)) = pieces.next()
            {
                let request = Request::from(FileRequest::ReadPiece {
                    file,
                    offset: at,
                    len_bytes: part.len() as u32,
                });
                let Some(in_flight) = self.ask_over(ctx, &up, &request, part.len()) else {
                    return Ok(None);
                };
                under_way.push_back((in_flight, part));
            }
            let Some((in_flight, part)) = under_way.pop_front() else {
                return Ok(Some(total));
            };
            let Some(reply) = self.wait(&up, &in_flight.waiter, in_flight.number, &limit, part)? else {
                return Ok(None);
            };
            match reply.result::<Piece>() {
                Ok(Piece { version: Some(this) }) if *version.get_or_insert(this) == this => {}
                _ => return Ok(None),
            }
            // Pieces behind the end of the file are empty in this state of it.
            total += reply.taken_bytes();
            is_at_end |= reply.taken_bytes() < part.len();
        }
    }

    fn ask_over(&self, ctx: &Ctx, up: &Arc<Up>, request: &Request<'_>, reply_bytes: usize) -> Option<InFlight<'_>> {
        let mut head = head(ctx, &self.groups);
        let waiter = Arc::new(Waiter::deferred());
        self.requests.enter(&mut head, |_| Pending::Thread(Arc::clone(&waiter)));
        let in_flight = InFlight {
            link: self,
            number: head.id,
            waiter,
        };
        if up.connection.ask(&encode(&head, request), &[], reply_bytes).is_err() {
            self.lost(up);
            return None;
        }
        Some(in_flight)
    }
}
