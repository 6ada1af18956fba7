//! The purpose of an operation, chosen when its transaction is created.
//!
//! Contents: [`Purpose`] and [`WhenFrozen`]. Only the steps of the commit ask what a purpose implies:
//!
//! | purpose | on a frozen pool | inodes count as changed | commit waits for a sync | may change snapshots | has quotas |
//! | --- | --- | --- | --- | --- | --- |
//! | `Change` | waits | yes | yes | no | yes |
//! | `ObservedChange` | fails | yes | yes | no | no |
//! | `Clone` | waits | yes | yes | yes | yes |
//! | `Upkeep` | as it says | no | yes | yes | no |
//! | `Background` | fails | no | no | yes | no |

/// The purpose of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A caller changes what others see.
    Change,
    /// Adapters have changed a bound file in place, and the engine records that they did.
    ObservedChange,
    /// Makes or removes a clone of a tree, which may be a snapshot.
    Clone,
    /// Changes how a file is kept, or attributes that a service keeps with it, but not what readers see.
    Upkeep(WhenFrozen),
    /// The same, if no caller waits for it, as for an access time: it need not be durable soon.
    Background,
}

/// The behaviour of an operation on a frozen pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WhenFrozen {
    /// Waits for the thaw.
    Wait,
    /// Fails with [`ferrite_vfs::FsError::ReadOnly`].
    Fail,
}

impl Purpose {
    pub(super) fn waits_for_thaw(self) -> bool {
        matches!(
            self,
            Purpose::Change | Purpose::Clone | Purpose::Upkeep(WhenFrozen::Wait)
        )
    }

    pub(super) fn counts_as_change(self) -> bool {
        matches!(self, Purpose::Change | Purpose::ObservedChange | Purpose::Clone)
    }

    /// Whether it may change inodes of snapshots that have a name.
    pub(super) fn may_change_snapshots(self) -> bool {
        !matches!(self, Purpose::Change | Purpose::ObservedChange)
    }

    /// Whether quotas limit it.
    pub(super) fn is_limited(self) -> bool {
        matches!(self, Purpose::Change | Purpose::Clone)
    }

    pub(super) fn waits_for_sync(self) -> bool {
        self != Purpose::Background
    }
}
