//! Changes with tokens: each happens once, however often it is requested.
//!
//! Contents: [`Engine::dedup`], through which the traits call every operation that changes something. One with a token
//! stores its outcome in its own record ([`crate::pool`]); a change that was refused, or found nothing to do, is
//! recorded here.

use std::sync::{Arc, PoisonError};

use ferrite_vfs::{Attr, Ctx, FsError, Outcome, ROOT_INO, Result, Written, dedup};

use super::handle::Engine;
use crate::cache::inodes::InodeMem;
use crate::pool::core::Core;
use crate::tree::lookup;
use crate::tree::open::Taken;

/// The result of a change, and how a repetition restores it from the outcome.
pub(super) trait Answer: Sized {
    /// The outcome to keep.
    fn outcome(&self) -> Outcome;

    /// The repeated result; `None` if the outcome is that of another kind of change, so that the token was used for
    /// two.
    fn again(core: &Core, ctx: &Ctx, outcome: Outcome) -> Result<Option<Self>>;
}

impl Answer for () {
    fn outcome(&self) -> Outcome {
        Outcome::Done
    }

    fn again(_: &Core, _: &Ctx, outcome: Outcome) -> Result<Option<()>> {
        Ok((outcome == Outcome::Done).then_some(()))
    }
}

impl Answer for Written {
    fn outcome(&self) -> Outcome {
        Outcome::Wrote {
            offset: self.offset,
            len_bytes: self.len_bytes as u64,
        }
    }

    fn again(_: &Core, _: &Ctx, outcome: Outcome) -> Result<Option<Self>> {
        Ok(match outcome {
            Outcome::Wrote { offset, len_bytes } => Some(Written::new(offset, len_bytes as usize)),
            _ => None,
        })
    }
}

impl Answer for Attr {
    fn outcome(&self) -> Outcome {
        Outcome::Attr(*self)
    }

    fn again(core: &Core, ctx: &Ctx, outcome: Outcome) -> Result<Option<Self>> {
        let Outcome::Attr(attr) = outcome else {
            return Ok(None);
        };
        if ctx.pins && attr.ino != ROOT_INO {
            lookup::pin(core, &core.inode(attr.ino)?, attr.generation)?;
        }
        Ok(Some(attr))
    }
}

impl Answer for Taken {
    fn outcome(&self) -> Outcome {
        Outcome::Opened {
            attr: self.attr,
            created: self.created,
        }
    }

    fn again(core: &Core, ctx: &Ctx, outcome: Outcome) -> Result<Option<Self>> {
        let Outcome::Opened { attr, created } = outcome else {
            return Ok(None);
        };
        let inode: Arc<InodeMem> = core.inode(attr.ino)?;
        lookup::pin(core, &inode, attr.generation)?;
        // The first pin keeps it alive for the second.
        inode.pin(u64::from(ctx.pins));
        Ok(Some(Taken { inode, attr, created }))
    }
}

impl Engine {
    /// Makes a change, unless one with the same token was made: then it returns the first result again. Waits while a
    /// tree is cloned. Must not be called by a change.
    pub(super) fn dedup<T: Answer>(&self, ctx: &Ctx, change: impl FnOnce() -> Result<T>) -> Result<T> {
        let change = || {
            let _shared = self.core().changes.read().unwrap_or_else(PoisonError::into_inner);
            change()
        };
        self.dedup_alone(ctx, change)
    }

    /// The same for a change that keeps others out itself.
    pub(super) fn dedup_alone<T: Answer>(&self, ctx: &Ctx, change: impl FnOnce() -> Result<T>) -> Result<T> {
        match ctx.token {
            None => change(),
            Some(_) => self.with_token(ctx, change),
        }
    }

    #[cold]
    fn with_token<T: Answer>(&self, ctx: &Ctx, change: impl FnOnce() -> Result<T>) -> Result<T> {
        let Some(token) = ctx.token else {
            return change();
        };
        let core = self.core();
        core.check_readable()?;
        let _turn = core.slots.lock(token);
        match core.told(core.find_outcome(token))? {
            Some(Outcome::Failed(error)) => return Err(error),
            Some(outcome) => return T::again(core, ctx, outcome)?.ok_or(FsError::Superseded),
            None => {}
        }
        let answer = change();
        let outcome = match &answer {
            Ok(answer) => answer.outcome(),
            Err(error) if dedup::keeps(error) => Outcome::Failed(error.clone()),
            Err(_) => return answer,
        };
        if core.find_outcome(token)?.is_none() {
            core.record_outcome(token, &outcome)?;
        }
        answer
    }
}
