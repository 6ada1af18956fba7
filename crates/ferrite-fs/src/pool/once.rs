//! Outcomes of changes that carry a token ([`ferrite_vfs::once`]).
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
use ferrite_vfs::{BadArgument, Ctx, FsError, Once, Outcome, Result, Unsupported};

use crate::format::outcome;
use crate::pool::core::Core;
use crate::pool::tx::Tx;

impl Core {
    /// The outcome of the change with this token, if it was made; `Superseded` if a later one took its slot.
    pub(crate) fn find_outcome(&self, once: Once) -> Result<Option<Outcome>> {
        if once.seq == 0 {
            return Err(FsError::Invalid(BadArgument::NoToken));
        }
        if u64::from(once.slot) >= self.superblock.once_slots {
            return Err(FsError::NotSupported(Unsupported::OnceSlot));
        }
        match outcome::load(&self.region, self.superblock.once_slot_offset(once.slot), once.slot)? {
            Some((seq, outcome)) if seq == once.seq => Ok(Some(outcome)),
            Some((seq, _)) if seq > once.seq => Err(FsError::Superseded),
            _ => Ok(None),
        }
    }

    /// Records the outcome of a change that left no record of its own. Durable when it returns.
    pub(crate) fn record_outcome(&self, once: Once, outcome: &Outcome) -> Result<()> {
        let mut tx = Tx::new(self);
        tx.set_outcome(once, outcome);
        tx.commit(&[])
    }
}

impl Tx<'_> {
    /// Adds the caller's result to the record, if the context has a token.
    #[inline]
    pub(crate) fn note_outcome(&mut self, ctx: &Ctx, make: impl FnOnce() -> Result<Outcome>) -> Result<()> {
        if let Some(once) = ctx.once
            && !is_seeded(Bug::OutcomeOutsideRecord)
        {
            let outcome = make()?;
            self.set_outcome(once, &outcome);
        }
        Ok(())
    }
}
