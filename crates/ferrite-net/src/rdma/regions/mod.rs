//! Files behind keys, over [`ferrite_vfs::regions`].
//!
//! What lives here: [`RegionFiles`], all that are bound and who has keys for them (this file); a bound file and where
//! its pages lie (`bound`); what a thread of the adapter does with them (`memory`).
//!
//! Invariants:
//! * A key is looked at under the same guard under which bytes move, so a key that has ended moves none.
//! * A file is bound as long as there is a key for it.
//! * Nothing here calls the engine while it holds a lock that the engine's calls take.

mod bound;
mod memory;

use std::collections::HashMap;
use std::sync::Arc;

use ferrite_roce::wire::Qpn;
use ferrite_vfs::regions::{Adapter, Binding};
use ferrite_vfs::{Ctx, FileSystem, FsError, Ino, Result, SYSTEM, Unsupported};
use parking_lot::{Mutex, RwLock};

use super::adapter::Files;
use crate::wire::BoundTold;
use bound::{Bound, Right};
use memory::Reach;

/// How often a number is drawn until one is free.
const DRAWS: u32 = 64;

/// What all threads look up.
#[derive(Default)]
struct Tables {
    keys: RwLock<HashMap<u32, Arc<Bound>>>,
    /// The sessions of queue pairs.
    sessions: RwLock<HashMap<Qpn, u64>>,
}

/// Names an engine: as long as a file of it is bound, no other has its place.
type Place = (usize, Ino);

/// Bound files of any number of engines, and their keys.
#[derive(Default)]
pub struct RegionFiles {
    tables: Arc<Tables>,
    /// Held while files are bound and unbound.
    files: Mutex<HashMap<Place, Arc<Bound>>>,
}

fn place(fs: &Arc<dyn FileSystem>, ino: Ino) -> Place {
    (Arc::as_ptr(fs).cast::<()>() as usize, ino)
}

impl RegionFiles {
    /// Without any.
    pub fn new() -> RegionFiles {
        RegionFiles::default()
    }

    /// The file as it is bound, or bound now. One that was bound for reading is bound anew to be written.
    fn bound(
        &self,
        files: &mut HashMap<Place, Arc<Bound>>,
        fs: &Arc<dyn FileSystem>,
        ctx: &Ctx,
        ino: Ino,
        binding: Binding,
    ) -> Result<Arc<Bound>> {
        let regions = fs.regions().ok_or(FsError::NotSupported(Unsupported::Region))?;
        if let Some(bound) = files.get(&place(fs, ino)) {
            if !bound.has_ended() && (bound.binding().writable || !binding.writable) {
                bound.may_use(ctx, binding.writable)?;
                return Ok(Arc::clone(bound));
            }
            // Before others lose their keys for it.
            bound.may_use(ctx, binding.writable)?;
            let bound = Arc::clone(bound);
            self.end(files, &bound)?;
        }
        let bound = Arc::new(Bound::new(Arc::clone(fs), ino, binding));
        let region = regions.bind(ctx, ino, binding, Arc::clone(&bound) as Arc<dyn Adapter>)?;
        bound.set_region(region);
        files.insert(place(fs, ino), Arc::clone(&bound));
        Ok(bound)
    }

    /// Ends a binding, and all its keys.
    fn end(&self, files: &mut HashMap<Place, Arc<Bound>>, bound: &Arc<Bound>) -> Result<()> {
        self.tables.keys.write().retain(|_, of| !Arc::ptr_eq(of, bound));
        files.retain(|_, of| !Arc::ptr_eq(of, bound));
        bound.unbind()
    }

    /// Ends the bindings that nobody has a key for.
    fn end_unused(&self, files: &mut HashMap<Place, Arc<Bound>>) {
        let unused: Vec<Arc<Bound>> = files.values().filter(|bound| bound.keys() == 0).cloned().collect();
        for bound in unused {
            if let Err(error) = self.end(files, &bound) {
                tracing::warn!(ino = bound.ino(), "a bound file could not be sealed: {error}");
            }
        }
    }
}

impl Files for RegionFiles {
    type Memory = Reach;

    fn memory(&self) -> Reach {
        Reach::new(Arc::clone(&self.tables))
    }

    fn attach(&self, session: u64, qpn: Qpn) {
        self.tables.sessions.write().insert(qpn, session);
    }

    fn detach(&self, qpn: Qpn) {
        self.tables.sessions.write().remove(&qpn);
    }

    fn bind(
        &self,
        session: u64,
        fs: &Arc<dyn FileSystem>,
        ctx: &Ctx,
        ino: Ino,
        binding: Binding,
        atomic: bool,
    ) -> Result<(u32, u64)> {
        let mut files = self.files.lock();
        let bound = self.bound(&mut files, fs, ctx, ino, binding)?;
        let right = Right {
            session,
            writable: binding.writable,
            atomic,
            ctx: ctx.clone(),
        };
        for _ in 0..DRAWS {
            let key = u32::from_le_bytes(crate::server::random()?);
            let mut keys = self.tables.keys.write();
            if key != 0 && !keys.contains_key(&key) {
                bound.give(key, right);
                keys.insert(key, Arc::clone(&bound));
                return Ok((key, bound.size()));
            }
        }
        self.end_unused(&mut files);
        Err(FsError::TooManyOpen)
    }

    fn release(&self, session: u64, key: u32) {
        let mut files = self.files.lock();
        let bound = self.tables.keys.read().get(&key).cloned();
        if let Some(bound) = bound.filter(|bound| bound.take_back(key, session)) {
            self.tables.keys.write().remove(&key);
            drop(bound);
            self.end_unused(&mut files);
        }
    }

    fn end_session(&self, session: u64) {
        let mut files = self.files.lock();
        let ended: Vec<u32> = files.values().flat_map(|bound| bound.end_session(session)).collect();
        self.tables.keys.write().retain(|key, _| !ended.contains(key));
        self.end_unused(&mut files);
    }

    fn unbind(&self, fs: &Arc<dyn FileSystem>, ino: Ino) -> Result<()> {
        let mut files = self.files.lock();
        match files.get(&place(fs, ino)).cloned() {
            Some(bound) => self.end(&mut files, &bound),
            // One that was bound when the server ended.
            None => match fs.regions() {
                Some(regions) => regions.seal(SYSTEM, ino),
                None => Ok(()),
            },
        }
    }

    fn list(&self, fs: &Arc<dyn FileSystem>) -> Vec<BoundTold> {
        let files = self.files.lock();
        let bound = fs.regions().map(|regions| regions.bound()).unwrap_or_default();
        let told = bound.into_iter().map(|file| match files.get(&place(fs, file.ino)) {
            Some(bound) => bound.told(),
            None => BoundTold {
                ino: file.ino,
                is_attached: file.is_attached,
                entries: file.runs,
                ..BoundTold::default()
            },
        });
        told.collect()
    }
}
