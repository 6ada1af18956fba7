//! Volumes that servers hand to each other, of which one server at a time is the owner.
//!
//! Contents: [`Ownership`], the owner's side; [`Candidacy`], the side of a server that may become the owner;
//! [`Tenancy`], who is; [`TenureReport`], the owner's work so far.
//!
//! Invariant: whatever is asked here decides only when a server tries to take a volume, and when it stops trying to
//! answer. That no two owners change a volume is the affair of the store below.

use std::sync::Arc;
use std::time::Duration;

use super::{Volume, VolumeError};

/// The right of this process to answer for a volume.
pub trait Ownership: Send + Sync {
    /// Whether an answer may be given that is made of what was read before. Cheap, and never waits.
    fn may_answer(&self) -> bool;

    /// For how long answers may be given unless the right is renewed: no other server answers before that time is over.
    /// Cheap, and never waits.
    fn left(&self) -> Duration;

    /// How long the right is that has just been renewed. It is renewed whenever a third of that has passed.
    fn length(&self) -> Duration;

    /// Why this opening will make no more changes, if so: another server has the volume, or a commit failed.
    fn lost(&self) -> Option<String>;

    /// Ends the use of a volume that another server may have by now: every later call of the engine that would ask its
    /// store fails at once, and nothing is stored any more. The volume is then to be closed.
    fn abandon(&self);

    /// The work of the owner since it took the volume. Never waits for another machine.
    fn report(&self) -> TenureReport;
}

/// The work of an owner, for administrators.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TenureReport {
    /// The number of the tenure.
    pub epoch: u64,
    /// For how long the owner may still answer, unless it renews its lease.
    pub left: Duration,
    /// Renewals of the lease that failed.
    pub renewals_failed: u64,
    /// The number of the volume's last batch of changes.
    pub last_batch: u64,
    /// Batches sent, and the commits in them.
    pub batches: u64,
    /// See [`Self::batches`].
    pub commits: u64,
    /// The time that batches took, in all.
    pub commit_time: Duration,
    /// The time that the slowest batch took.
    pub commit_time_max: Duration,
}

/// The owner of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tenancy {
    /// The number of the tenure; 0 before the first.
    pub epoch: u64,
    /// The owner's name.
    pub owner: String,
    /// Where clients reach the owner, as `HOST:PORT`; may be empty.
    pub address: String,
    /// The owner is the asking candidate.
    pub is_own: bool,
    /// Until another server may take the volume; zero if one may now.
    pub left: Duration,
    /// Since when one may; zero if none may.
    pub free: Duration,
    /// Somebody asked the owner to hand the volume over: to the server at this address, or to any if it is empty.
    pub asked_to: Option<String>,
}

/// A server that may own a volume.
pub trait Candidacy: Send + Sync {
    /// The owner of the volume. Blocks for a bounded time.
    ///
    /// # Errors
    /// Those of the place where servers agree on that.
    fn look(&self) -> Result<Tenancy, VolumeError>;

    /// Takes the volume, and opens it. Blocks.
    ///
    /// # Errors
    /// [`super::VolumeErrorKind::InUse`] while another server owns it; those of opening a volume.
    fn open(&self) -> Result<Arc<dyn Volume>, VolumeError>;

    /// Asks the owner of this epoch to hand the volume over: to the server at this address, or to any if it is empty.
    /// The owner does so when it next looks. False if that tenure has ended.
    ///
    /// # Errors
    /// As for [`Self::look`].
    fn ask_for_hand_over(&self, epoch: u64, to: &str) -> Result<bool, VolumeError>;
}
