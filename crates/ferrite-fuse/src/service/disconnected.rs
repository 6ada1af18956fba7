//! Replies while the server of a mount is away, so that not everything that looks at the mount waits for it.
//!
//! Contents: [`Away`], for engines that other mounts use, too. A program that lists all mounts of a machine (`df`, a
//! monitor, a desktop) asks each for its space and for the attributes of its root. While the server does not respond,
//! it gets the last known values. Everything else waits, until the caller gives up ([`crate::interrupts`]).
//!
//! Invariant: a value kept here is a reply only after the server was asked, and was silent.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ferrite_vfs::{Attr, Ctx, FileSystem, FsError, Ino, QUOTA_XATTR, Quota, ROOT_INO, Result, StatFs, Waits};
use parking_lot::Mutex;

use super::{Known, Response, Service, to_response};
use crate::spare::Spare;

/// How long the server may take to respond.
const SILENT_AFTER: Duration = Duration::from_secs(2);
/// How long once it was silent, until it responds again.
const STILL_SILENT: Duration = Duration::from_millis(100);

/// See the head of this module.
pub(super) struct Away {
    pub(super) spare: Spare,
    is_silent: AtomicBool,
    space: Mutex<Option<StatFs>>,
    root: Mutex<Option<Attr>>,
}

impl Away {
    /// For a mount with so many readers; reads the values that may be needed later.
    pub(super) fn new(fs: &dyn FileSystem, readers: usize) -> Away {
        let away = Away {
            spare: Spare::new(readers),
            is_silent: AtomicBool::new(false),
            space: Mutex::new(None),
            root: Mutex::new(None),
        };
        let ctx = ferrite_vfs::SYSTEM;
        // Without them the first replies are errors, should the server be away by then.
        let _ = away.ask(ctx, &away.space, |ctx| fs.statfs(ctx));
        let _ = away.ask(ctx, &away.root, |ctx| fs.getattr(ctx, ROOT_INO));
        away
    }

    /// Calls the engine, for a while, and keeps the reply in `last`; or returns the previous one.
    fn ask<T: Copy>(&self, ctx: &Ctx, last: &Mutex<Option<T>>, ask: impl FnOnce(&Ctx) -> Result<T>) -> Result<T> {
        let known = || last.lock().ok_or(FsError::TimedOut);
        if self.spare.is_full() {
            return known();
        }
        let within = match self.is_silent.load(Ordering::Relaxed) {
            true => STILL_SILENT,
            false => SILENT_AFTER,
        };
        let waits = Waits {
            within: Some(within),
            ..ctx.waits
        };
        let response = ask(&ctx.clone().waiting(waits));
        let is_silent = matches!(response, Err(FsError::TimedOut));
        self.is_silent.store(is_silent, Ordering::Relaxed);
        match response {
            Ok(response) => *last.lock() = Some(response),
            Err(FsError::TimedOut) => return known(),
            Err(_) => {}
        }
        response
    }
}

impl Service {
    /// Threads for requests that would occupy the last reader, if the engine may be away.
    pub(crate) fn spare(&self) -> Option<&Spare> {
        self.away.as_ref().map(|away| &away.spare)
    }

    /// The space that is left for what is in a directory.
    pub(crate) fn statfs_at(&self, ctx: &Ctx, ino: Ino) -> Response<StatFs> {
        let space = self.statfs(ctx)?;
        let find = |ctx: &Ctx| match self.fs.getxattr(ctx, ino, QUOTA_XATTR) {
            Ok(text) => Ok(Quota::parse(&text)),
            Err(FsError::TimedOut) => Err(FsError::TimedOut),
            // Most inodes have none, and most engines.
            Err(_) => Ok(None),
        };
        let quota = match &self.away {
            Some(away) => away.ask(ctx, &Mutex::new(None), find),
            None => find(ctx),
        };
        Ok(quota.ok().flatten().map_or(space, |quota| quota.narrow(&space)))
    }

    pub(crate) fn statfs(&self, ctx: &Ctx) -> Response<StatFs> {
        to_response(match &self.away {
            Some(away) => away.ask(ctx, &away.space, |ctx| self.fs.statfs(ctx)),
            None => self.fs.statfs(ctx),
        })
    }

    pub(crate) fn getattr(&self, ctx: &Ctx, ino: Ino) -> Response<Known> {
        let attr = to_response(match &self.away {
            Some(away) if ino == ROOT_INO => away.ask(ctx, &away.root, |ctx| self.fs.getattr(ctx, ino)),
            _ => self.fs.getattr(ctx, ino),
        })?;
        Ok(self.known(attr, self.validity_of(&attr)))
    }
}
