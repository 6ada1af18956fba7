//! Outcomes of changes that carry a token ([`ferrite_vfs::dedup`]).
//!
//! Contents: [`Core::find_outcome`], and [`Tx::note_outcome`], which every operation calls for the record that
//! makes its change visible (of several records, the first: the others only complete it).
//!
//! Invariant: an entry of the table changes only by a record, under the lock of its slot, which the engine holds for
//! the whole of a change with a token.
//!
//! Crash argument: the entry's words are set by the record that makes the change, so a crash leaves both or neither.
//! A refused change, and one that found nothing to do, leaves a record of its entry alone.

use ferrite_checks::fault_injection::{Bug, is_seeded};
use ferrite_vfs::{BadArgument, Ctx, DedupToken, FsError, Outcome, Result, Unsupported};

use crate::format::outcome;
use crate::pool::core::Core;
use crate::pool::tx::{Purpose, Tx};

impl Core {
    /// The outcome of the change with this token, if it was made; `Superseded` if a later one took its slot.
    pub(crate) fn find_outcome(&self, token: DedupToken) -> Result<Option<Outcome>> {
        if token.seq == 0 {
            return Err(FsError::Invalid(BadArgument::NoToken));
        }
        if u64::from(token.slot) >= self.superblock.dedup_slots {
            return Err(FsError::NotSupported(Unsupported::DedupSlot));
        }
        match outcome::load(&self.region, self.superblock.dedup_slot_offset(token.slot), token.slot)? {
            Some((seq, outcome)) if seq == token.seq => Ok(Some(outcome)),
            Some((seq, _)) if seq > token.seq => Err(FsError::Superseded),
            _ => Ok(None),
        }
    }

    /// Records the outcome of a change that left no record of its own. Durable when it returns.
    pub(crate) fn record_outcome(&self, token: DedupToken, outcome: &Outcome) -> Result<()> {
        let mut tx = Tx::new(self, Purpose::Change);
        tx.set_outcome(token, outcome);
        tx.commit(&[])
    }
}

impl Tx<'_> {
    /// Adds the caller's result to the record, if the context has a token.
    #[inline]
    pub(crate) fn note_outcome(&mut self, ctx: &Ctx, make: impl FnOnce() -> Result<Outcome>) -> Result<()> {
        if let Some(token) = ctx.token
            && !is_seeded(Bug::OutcomeOutsideRecord)
        {
            let outcome = make()?;
            self.set_outcome(token, &outcome);
        }
        Ok(())
    }
}
