//! Bringing replicas up to date.
//!
//! A resync compares bytes: it reads a piece from a replica that holds it and from the one that may not, and writes it
//! where they differ. Servers offer no checksums.
//!
//! Invariants: writers wait for one piece at most, and continue between pieces. From its first piece on, the replica
//! also gets their writes; so the set of bytes that it lacks only shrinks. It is in again, and counts, when it lacks
//! nothing and has recorded the epoch.

use ferrite_checks::ranked::MutexGuard;

use super::outcome::{ReplicatedError, Resynced};
use super::ranges::Ranges;
use super::replica::Side;
use super::{Order, ReplicatedFile, Result, read_from};
use crate::rdma::RemoteError;

/// Bytes compared at a time.
const PIECE_BYTES: u64 = 1 << 20;

/// The extent to compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// The ranges that a replica is known to lack, by this client; everything of replicas that were left out before it
    /// came.
    Known,
    /// Everything of all replicas.
    Everything,
}

impl ReplicatedFile {
    /// Reopens replicas that were left out, and makes all replicas equal, while others write. Blocks. Returns the
    /// result for each replica.
    ///
    /// # Errors
    /// `ReadOnly`, `Superseded`. The error that keeps a replica from becoming current is in its [`Resynced`].
    pub fn resync(&self, extent: Extent) -> Result<Vec<Resynced>> {
        if !self.options.writable {
            return Err(ReplicatedError::ReadOnly);
        }
        let _one = self.resync.lock();
        self.order.lock().check_own()?;
        let mut done = vec![Resynced::default(); self.replicas.len()];
        for (index, of_replica) in done.iter_mut().enumerate() {
            let result = self.begin(index, extent);
            let result = result.and_then(|()| self.bring(index, of_replica));
            of_replica.why = result.err().map(|error| error.to_string());
        }
        Ok(done)
    }

    /// From now on the replica gets all writes.
    fn begin(&self, index: usize, extent: Extent) -> Result<()> {
        let is_in = self.order.lock().states[index].is_in;
        // Without the lock on the order: a server that is away may take long to fail.
        let found = match is_in {
            true => None,
            false => Some(self.replicas[index].ask(|side| side.open(true)).wait()?),
        };
        let mut order = self.order.lock();
        let order = &mut *order;
        let source = order.source();
        let state = &mut order.states[index];
        if extent == Extent::Everything && Some(index) != source {
            state.lacks = Ranges::everything();
        }
        let Some(found) = found else {
            return Ok(());
        };
        let name = || self.replicas[index].name.to_string();
        let mut view = order.view;
        view.epoch = match found.view {
            Some(own) if own.set != view.set => {
                let first = "the others".to_owned();
                return Err(ReplicatedError::OtherSet { name: name(), first });
            }
            Some(own) if own.ballot > view.ballot => {
                order.superseded = Some(name());
                return Err(ReplicatedError::Superseded { name: name() });
            }
            Some(own) => own.epoch,
            None => {
                state.lacks = Ranges::everything();
                (0, 0)
            }
        };
        self.replicas[index].ask(move |side| side.note(&view)).wait()?;
        state.catches_up = true;
        Ok(())
    }

    /// Brings a replica up to date, and takes it in.
    fn bring(&self, index: usize, done: &mut Resynced) -> Result<()> {
        loop {
            let mut order = self.order.lock();
            let brought = self.bring_piece(&mut order, index, done);
            // A waiting writer is next.
            MutexGuard::unlock_fair(order);
            match brought {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The next piece; true if it was the last.
    fn bring_piece(&self, order: &mut Order, index: usize, done: &mut Resynced) -> Result<bool> {
        let size = order.size;
        let state = &mut order.states[index];
        if !state.is_in && !state.catches_up {
            // It failed to take a write.
            let why = state.why.clone().unwrap_or_default();
            return Err(ReplicatedError::NoSource { why });
        }
        if state.lacks.overlaps(size, u64::MAX) {
            // Its bytes behind the end of the others go first: a later write beyond the end implies zeros in the gap.
            let cut = move |side: &mut Side| {
                let file = side.file()?;
                if file.size()? > size {
                    file.set_size(size)?;
                }
                Ok(())
            };
            let cut = self.replicas[index].ask(cut).wait();
            self.lost_if(order, index, cut)?;
        }
        let state = &mut order.states[index];
        state.lacks.remove(size, u64::MAX);
        let Some((from, to)) = state.lacks.first(PIECE_BYTES) else {
            self.take_in(order, index)?;
            return Ok(true);
        };
        let len = (to - from) as usize;
        let holders = order.holders(from, to);
        // Both reads run at the same time.
        let own = self.replicas[index].ask(move |side| read_from(side, from, len));
        let bytes = self.ask_each(&holders, move |side| read_from(side, from, len));
        let own = own.wait();
        let mut bytes = bytes?;
        bytes.resize(len, 0);
        done.compared_bytes += len as u64;
        let is_right = own.as_ref().is_ok_and(|own| *own == bytes);
        if !is_right {
            let write = move |side: &mut Side| match bytes.iter().all(|byte| *byte == 0) {
                // Freed ranges take no space here, either.
                true => side.free(from, len as u64),
                false => side.file()?.write(from, &bytes).and_then(|()| side.file()?.flush()),
            };
            let written = own.map(drop).and_then(|()| self.replicas[index].ask(write).wait());
            self.lost_if(order, index, written)?;
            done.written_bytes += len as u64;
        }
        order.states[index].lacks.remove(from, to);
        Ok(false)
    }

    /// The replica holds all bytes; it gets the size and the epoch of the others.
    fn take_in(&self, order: &mut Order, index: usize) -> Result<()> {
        let (size, view) = (order.size, order.view);
        let end = move |side: &mut Side| {
            let file = side.file()?;
            if file.size()? != size {
                file.set_size(size)?;
            }
            side.note(&view)
        };
        let ended = self.replicas[index].ask(end).wait();
        self.lost_if(order, index, ended)?;
        let state = &mut order.states[index];
        state.is_in = true;
        state.catches_up = false;
        state.why = None;
        Ok(())
    }

    /// Leaves a replica that fails meanwhile out again.
    fn lost_if(&self, order: &mut Order, index: usize, result: std::result::Result<(), RemoteError>) -> Result<()> {
        if let Err(error) = result {
            // Except the last one: no replica is ahead of it.
            let others = order
                .states
                .iter()
                .enumerate()
                .any(|(other, state)| other != index && state.is_in);
            if others {
                order.leave_out(index, error.to_string());
                self.raise(order);
            }
            return Err(error.into());
        }
        Ok(())
    }
}
