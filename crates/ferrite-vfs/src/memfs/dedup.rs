//! Changes with tokens in the reference engine: one table, and one lock for all of them.

use super::MemFs;
use crate::{Attr, BadArgument, Ctx, FileSystem, FsError, OpenMode, Opened, Outcome, ROOT_INO, Result, SYSTEM, dedup};

/// Number of slots it reports.
pub(super) const SLOTS: u32 = 1024;

impl MemFs {
    /// Makes a change, unless one with the same token was made: then it returns that outcome again. `keep` turns a
    /// reply into an outcome, `again` an outcome into a reply.
    pub(super) fn dedup<T>(
        &self,
        ctx: &Ctx,
        change: impl FnOnce() -> Result<T>,
        keep: impl FnOnce(&T) -> Outcome,
        again: impl FnOnce(Outcome) -> Result<T>,
    ) -> Result<T> {
        let Some(token) = ctx.token else {
            return change();
        };
        if token.seq == 0 {
            return Err(FsError::Invalid(BadArgument::NoToken));
        }
        let mut kept = self.kept.lock();
        match kept.get(&token.slot) {
            Some((seq, _)) if *seq > token.seq => return Err(FsError::Superseded),
            Some((seq, Outcome::Failed(error))) if *seq == token.seq => return Err(error.clone()),
            Some((seq, outcome)) if *seq == token.seq => return again(outcome.clone()),
            _ => {}
        }
        let answer = change();
        match &answer {
            Ok(answer) => drop(kept.insert(token.slot, (token.seq, keep(answer)))),
            Err(error) if dedup::keeps(error) => {
                kept.insert(token.slot, (token.seq, Outcome::Failed(error.clone())));
            }
            Err(_) => {}
        }
        answer
    }

    /// The same for a change that returns nothing.
    pub(super) fn dedup_done(&self, ctx: &Ctx, change: impl FnOnce() -> Result<()>) -> Result<()> {
        self.dedup(
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
    pub(super) fn dedup_attr(&self, ctx: &Ctx, change: impl FnOnce() -> Result<Attr>) -> Result<Attr> {
        let again = |outcome| match outcome {
            Outcome::Attr(attr) if ctx.pins && attr.ino != ROOT_INO => {
                self.pin(ctx, attr.ino, attr.generation).map(|()| attr)
            }
            Outcome::Attr(attr) => Ok(attr),
            _ => Err(FsError::Superseded),
        };
        let keep = |attr: &Attr| Outcome::Attr(Attr { change: 0, ..*attr });
        self.dedup(ctx, change, keep, again)
    }

    /// The same for a change that opens a file.
    pub(super) fn dedup_open(
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
        self.dedup(ctx, change, keep, again)
    }
}
