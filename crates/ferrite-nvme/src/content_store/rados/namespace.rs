//! A namespace as a whole: which pool has it, which owners it had, and emptying it for a new pool.
//!
//! Contents: [`Contents`], what a namespace has; [`RadosView`], for those who show it; the methods of [`RadosContent`]
//! that making, opening and showing a pool need beyond those of a content store.
//!
//! Invariant: nothing is removed before earlier owners are fenced, and nothing that Ferrite did not make.

use std::sync::Arc;

use ferrite_rados::WriteOp;

use super::connection::{Change, Connection};
use super::{PAGE_NAMES, RadosContent, claim, fence, object_name};
use crate::content_store::{Error, RadosUsage, Result, UniqueId};

/// The parts of a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Contents {
    /// The pool that it belongs to.
    pub pool: Option<[u8; 16]>,
    /// The epoch of the last owner; 0 if there was none.
    pub epoch: u64,
    /// Whether an owner has not closed it: it works, or was killed.
    pub has_owner: bool,
    /// The name of an object of another program, if there is one.
    pub foreign: Option<String>,
    /// Whether there are objects of Ferrite.
    pub has_objects: bool,
}

/// A view of an open content store, for those who show it.
#[derive(Clone)]
pub struct RadosView(Arc<Connection>);

impl RadosView {
    /// The space, unless the cluster has not counted it. Does not block for long.
    pub fn usage(&self) -> Option<RadosUsage> {
        self.0.space.usage()
    }

    /// As [`ContentStore::health`](crate::content_store::ContentStore::health).
    ///
    /// # Errors
    /// [`Error::Fenced`].
    pub fn health(&self) -> Result<()> {
        self.0.health()
    }
}

/// Objects in a listing.
enum Found {
    Chunk(UniqueId, u64),
    /// The claim, or a record of owners.
    Own,
    Foreign(String),
}

impl RadosContent {
    /// For those who show it.
    pub fn view(&self) -> RadosView {
        RadosView(Arc::clone(&self.connection))
    }

    /// The parts of the namespace. `lists`: objects, too, for which it reads at least a page of names.
    ///
    /// # Errors
    /// Errors of the cluster; [`Error::Damaged`].
    pub fn contents(&self, shard: u64, lists: bool) -> Result<Contents> {
        let connection = &self.connection;
        let owner = fence::last(&connection.pool, shard)?;
        let mut contents = Contents {
            pool: claim::read(&connection.pool, |error| connection.failed(error))?,
            epoch: owner.map_or(0, |(epoch, _)| epoch),
            has_owner: owner.is_some_and(|(_, has_owner)| has_owner),
            foreign: None,
            has_objects: owner.is_some(),
        };
        if lists {
            self.each_object(|found| match found {
                Found::Foreign(name) => {
                    contents.foreign.get_or_insert(name);
                }
                Found::Chunk(..) | Found::Own => contents.has_objects = true,
            })?;
        }
        Ok(contents)
    }

    /// Takes the namespace from the pool that has it, and removes all blobs of all owners. This client has taken the
    /// content over. Durable when it returns.
    ///
    /// # Errors
    /// Errors of the cluster; [`Error::Failed`] if an object is not Ferrite's: then nothing was removed.
    pub fn empty(&self) -> Result<()> {
        self.connection.check_owner()?;
        let (mut chunks, mut foreign) = (Vec::new(), None);
        // Names are few bytes: a listing that removes meanwhile could miss some.
        self.each_object(|found| match found {
            Found::Chunk(id, chunk) => chunks.push((id, chunk)),
            Found::Foreign(name) => foreign = Some(name),
            Found::Own => {}
        })?;
        if let Some(name) = foreign {
            return Err(Error::Failed(format!("object {name} is not Ferrite's")));
        }
        claim::remove(&self.connection.pool, |error| self.connection.failed(error))?;
        // Chunks of one blob follow each other.
        chunks.sort_unstable_by_key(|&(id, chunk)| (id, std::cmp::Reverse(chunk)));
        for same in chunks.chunk_by(|one, other| one.0 == other.0) {
            let removals = same.iter().map(|&(_, chunk)| Change {
                chunk,
                op: WriteOp::new().remove(),
                may_be_missing: true,
            });
            let removed = self.connection.write_all(same[0].0, removals);
            removed.map_err(|(_, error)| error)?;
        }
        Ok(())
    }

    /// Gives the namespace to a pool. This client has taken the content over. Durable when it returns.
    ///
    /// # Errors
    /// Errors of the cluster.
    pub fn give_to(&self, pool: [u8; 16]) -> Result<()> {
        self.connection.check_owner()?;
        claim::write(&self.connection.pool, pool, |error| self.connection.failed(error))
    }

    /// Visits all objects of the namespace, page by page.
    fn each_object(&self, mut visit: impl FnMut(Found)) -> Result<()> {
        let mut next = None;
        loop {
            let page = self.connection.pool.list(next.as_ref(), PAGE_NAMES);
            let page = page.map_err(|error| self.connection.failed(error))?;
            if page.foreign > 0 {
                visit(Found::Foreign("with a name that is not UTF-8".into()));
            }
            for listed in page.objects {
                let name = listed.object;
                visit(match object_name::parse(&name) {
                    Some((id, chunk)) => Found::Chunk(id, chunk),
                    None if claim::is_name(&name) || object_name::is_of_owner(&name) => Found::Own,
                    None => Found::Foreign(name),
                });
            }
            match page.next {
                Some(cursor) => next = Some(cursor),
                None => return Ok(()),
            }
        }
    }
}
