//! Changes with tokens in the reference engine: one table, and one lock for all of them.

use super::MemFs;
use crate::{Attr, BadArgument, Ctx, FileSystem, FsError, OpenMode, Opened, Outcome, ROOT_INO, Result, SYSTEM, once};

/// Number of slots it reports.
pub(super) const SLOTS: u32 = 1024;

impl MemFs {
    /// Makes a change, unless one with the same token was made: then it returns that outcome again. `keep` turns a
    /// reply into an outcome, `again` an outcome into a reply.
    pub(super) fn once<T>(
        &self,
        ctx: &Ctx,
        change: impl FnOnce() -> Result<T>,
        keep: impl FnOnce(&T) -> Outcome,
        again: impl FnOnce(Outcome) -> Result<T>,
    ) -> Result<T> {
        let Some(once) = ctx.once else {
            return change();
        };
        if once.seq == 0 {
            return Err(FsError::Invalid(BadArgument::NoToken));
        }
        let mut kept = self.kept.lock();
        match kept.get(&once.slot) {
            Some((seq, _)) if *seq > once.seq => return Err(FsError::Superseded),
            Some((seq, Outcome::Failed(error))) if *seq == once.seq => return Err(error.clone()),
            Some((seq, outcome)) if *seq == once.seq => return again(outcome.clone()),
            _ => {}
        }
        let answer = change();
        match &answer {
            Ok(answer) => drop(kept.insert(once.slot, (once.seq, keep(answer)))),
            Err(error) if once::keeps(error) => {
                kept.insert(once.slot, (once.seq, Outcome::Failed(error.clone())));
            }
            Err(_) => {}
        }
        answer
    }

    /// The same for a change that returns nothing.
    pub(super) fn done_once(&self, ctx: &Ctx, change: impl FnOnce() -> Result<()>) -> Result<()> {
        self.once(
            ctx,
            change,
            |()| Outcome::Done,
            |outcome| match outcome {
                Outcome::Done => Ok(()),
                _ => Err(FsError::Superseded),
            },
        )
    }

    /// The same for a change that returns attributes.
    pub(super) fn attr_once(&self, ctx: &Ctx, change: impl FnOnce() -> Result<Attr>) -> Result<Attr> {
        let again = |outcome| match outcome {
            Outcome::Attr(attr) if ctx.pins && attr.ino != ROOT_INO => {
                self.pin(ctx, attr.ino, attr.generation).map(|()| attr)
            }
            Outcome::Attr(attr) => Ok(attr),
            _ => Err(FsError::Superseded),
        };
        let keep = |attr: &Attr| Outcome::Attr(Attr { change: 0, ..*attr });
        self.once(ctx, change, keep, again)
    }

    /// The same for a change that opens a file.
    pub(super) fn opened_once(
        &self,
        ctx: &Ctx,
        mode: OpenMode,
        change: impl FnOnce() -> Result<Opened>,
    ) -> Result<Opened> {
        let again = |outcome| {
            let Outcome::Opened { attr, created } = outcome else {
                return Err(FsError::Superseded);
            };
            // The pin makes sure that it is the same file, and is dropped unless the caller wants it.
            self.pin(ctx, attr.ino, attr.generation)?;
            let mode = OpenMode {
                truncate: false,
                ..mode
            };
            let file = self.open(SYSTEM, attr.ino, mode);
            if !ctx.pins || file.is_err() {
                self.unpin(ctx, attr.ino, 1);
            }
            let file = file?;
            Ok(Opened { attr, file, created })
        };
        let keep = |opened: &Opened| Outcome::Opened {
            attr: Attr {
                change: 0,
                ..opened.attr
            },
            created: opened.created,
        };
        self.once(ctx, change, keep, again)
    }
}
