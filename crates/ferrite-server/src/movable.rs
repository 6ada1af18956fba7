//! Volumes that servers hand to each other.
//!
//! Contents: [`Movable`], the handle of such a volume's exports for the code that knows whether this server owns it;
//! [`Place`], their place in the server.
//!
//! A volume's exports are known from the start, so that the handshake knows their keys. While another server owns the
//! volume, a Hello is answered by the owner's address. The state of sessions lies in the volume, so a session that
//! begins at one server continues at the next, as after a restart.
//!
//! *Architecture invariant:* this crate does not know how a volume is owned. It asks the [`Ownership`] that comes with
//! the engine whether an answer may leave.

use std::sync::Arc;

use ferrite_checks::ranked::Mutex;
use ferrite_vfs::volume::Ownership;
use ferrite_vfs::{FileSystem, FsError, Result};

use super::common::Common;
use super::export::{Export, ExportOptions};
use super::running::withdraw_leases;
use super::{Inner, Opened, Running};
use crate::lock_order;

/// An export, and the engines that have it.
pub(super) type Found = (Arc<Inner>, Arc<Export>);

enum Served {
    /// Another server has the volume, or none; clients reach it at this address, if it is not empty.
    Elsewhere(String),
    Here(Running),
}

/// The place of a movable volume in a server.
pub(super) struct Place {
    pub(super) exports: Vec<ExportOptions>,
    served: Mutex<lock_order::Place, Served>,
}

impl Place {
    pub(super) fn new(exports: Vec<ExportOptions>) -> Arc<Place> {
        Arc::new(Place {
            exports,
            served: Mutex::new(Served::Elsewhere(String::new())),
        })
    }

    /// The engines of the volume, if this server has it.
    pub(super) fn here(&self) -> Option<Arc<Inner>> {
        match &*self.served.lock() {
            Served::Here(running) => Some(Arc::clone(&running.inner)),
            Served::Elsewhere(_) => None,
        }
    }

    /// The export that a client means.
    ///
    /// # Errors
    /// [`FsError::NotOwner`].
    pub(super) fn find(&self, means: impl Fn(&ExportOptions) -> bool) -> Result<Found> {
        let address = match &*self.served.lock() {
            Served::Here(running) => match (running.inner.find_export(means), &running.inner.ownership) {
                (Some(found), Some(ownership)) if ownership.may_answer() => return Ok(found),
                _ => String::new(),
            },
            Served::Elsewhere(address) => address.clone(),
        };
        Err(FsError::NotOwner { address })
    }

    /// Ends the service of the volume here. `None` if it is elsewhere.
    pub(super) fn take_away(&self) -> Option<Running> {
        let mut served = self.served.lock();
        if matches!(&*served, Served::Elsewhere(_)) {
            return None;
        }
        match std::mem::replace(&mut *served, Served::Elsewhere(String::new())) {
            Served::Here(running) => Some(running),
            Served::Elsewhere(_) => None,
        }
    }
}

/// A volume that servers hand to each other, as one of them sees it.
pub struct Movable {
    pub(super) place: Arc<Place>,
    pub(super) common: Arc<Common>,
}

impl Movable {
    /// Notes where clients reach the owner, as `HOST:PORT`, while it is another server; empty if that is not known.
    pub fn is_at(&self, address: &str) {
        if let Served::Elsewhere(known) = &mut *self.place.served.lock() {
            address.clone_into(known);
        }
    }

    /// Serves the volume from now on. `ownership` is asked before each answer leaves; an answer
    /// that may not leave closes its connection instead, and the client asks again, here or at the next owner. Blocks
    /// for the record of earlier sessions.
    ///
    /// # Errors
    /// The root of an export is no directory; errors of the engine; the system has no threads.
    pub fn serve(&self, engine: Arc<dyn FileSystem>, ownership: Arc<dyn Ownership>) -> Result<()> {
        let engines = vec![(engine, self.place.exports.clone())];
        let opened = Opened::open(engines, &self.common.options, Some(&ownership))?;
        let running = Running::start(opened, &self.common, Some(ownership))?;
        *self.place.served.lock() = Served::Here(running);
        Ok(())
    }

    /// Ends the service here: connections are closed, and sessions are kept for the next owner. Close the engine before
    /// the result is dropped, or open files without names are freed. `None` if this server does not have the volume.
    /// Blocks as [`super::Server::stop`] does.
    pub fn stop(&self) -> Option<Stopped> {
        let mut running = self.place.take_away()?;
        withdraw_leases(&running.inner);
        running.stop();
        Some(Stopped(running))
    }

    /// The same after the volume was lost: nothing is written to it any more.
    pub fn abandon(&self) -> Option<Stopped> {
        let mut running = self.place.take_away()?;
        running.abandon();
        Some(Stopped(running))
    }
}

/// The sessions of a volume whose service has ended. Dropping it releases what they have in the engine.
pub struct Stopped(#[expect(dead_code, reason = "it is dropped")] Running);
