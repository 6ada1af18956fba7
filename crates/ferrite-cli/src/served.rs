//! The volumes that a server has now: [`Volumes`], for its reports.
//!
//! Invariant: the list is that of now. Volumes that servers hand to each other come and go.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ferrite::volume::Volume;

/// The volumes that a server has now. Those that servers hand to each other come and go.
#[derive(Clone, Default)]
pub(crate) struct Volumes(Arc<Mutex<Vec<Named>>>);

/// A volume with the path of its pool.
pub(crate) type Named = (String, Arc<dyn Volume>);

impl Volumes {
    pub(crate) fn add(&self, path: &str, volume: &Arc<dyn Volume>) {
        self.list().push((path.to_owned(), Arc::clone(volume)));
    }

    pub(crate) fn remove(&self, volume: &Arc<dyn Volume>) {
        self.list().retain(|(_, known)| !Arc::ptr_eq(known, volume));
    }

    /// The list of now. Looking at a volume may block, which must not keep another from coming or going.
    pub(crate) fn now(&self) -> Vec<Named> {
        self.list().clone()
    }

    fn list(&self) -> MutexGuard<'_, Vec<Named>> {
        // A list is whole after each step.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
