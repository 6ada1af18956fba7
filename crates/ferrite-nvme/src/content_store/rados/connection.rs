//! One owner's connection: operations on objects, several at a time, and what their errors mean.
//!
//! Contents: [`Connection`]; [`Change`], an operation on one chunk.
//!
//! Invariant: no call returns before each operation that it sent was answered or timed out.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ferrite_rados::{Client, Error as RadosError, PendingWrite, Pool, ReadOp, WriteOp};

use super::object_name;
use super::space::SpaceCount;
use crate::content_store::{Error, Guard, Result, UniqueId};

/// Operations of one call that are under way at once.
pub(super) const DEPTH: usize = 16;
/// The error of an OSD for bytes whose checksums are wrong on all replicas.
const EIO: i32 = 5;

/// A connection.
pub(super) struct Connection {
    pub(super) client: Client,
    pub(super) pool: Pool,
    /// Set once earlier owners are fenced.
    pub(super) guard: OnceLock<Guard>,
    /// The epoch of the owner that has taken over, once an operation was refused for it.
    newer: AtomicU64,
    /// A change has timed out, and may still be under way.
    has_unknown: AtomicBool,
    pub(super) space: Arc<SpaceCount>,
}

/// An operation on a chunk.
pub(super) struct Change<'c> {
    pub(super) chunk: u64,
    pub(super) op: WriteOp<'c>,
    /// The chunk need not exist.
    pub(super) may_be_missing: bool,
}

impl Connection {
    pub(super) fn new(client: Client, pool: Pool) -> Connection {
        let space = SpaceCount::new(&client, &pool);
        Connection {
            client,
            pool,
            guard: OnceLock::new(),
            newer: AtomicU64::new(0),
            has_unknown: AtomicBool::new(false),
            space,
        }
    }

    /// Whether every change was answered.
    pub(super) fn is_settled(&self) -> bool {
        !self.has_unknown.load(Ordering::Acquire)
    }

    pub(super) fn health(&self) -> Result<()> {
        match self.newer.load(Ordering::Acquire) {
            0 => Ok(()),
            epoch => Err(Error::Fenced { epoch }),
        }
    }

    pub(super) fn check_owner(&self) -> Result<()> {
        match self.guard.get() {
            Some(_) => self.health(),
            None => Err(Error::Failed("the content was opened for reading only".into())),
        }
    }

    /// The meaning of an error.
    pub(super) fn failed(&self, error: RadosError) -> Error {
        match error {
            RadosError::NotFound(_) => Error::NotFound,
            RadosError::Exists(_) => Error::Exists,
            RadosError::NoSpace(_) => Error::NoSpace,
            RadosError::TimedOut { .. } => Error::Unknown(error.to_string()),
            RadosError::Blocklisted(_) => {
                // This client may not read any more who it is.
                let epoch = self.guard.get().map_or(1, |guard| guard.epoch.saturating_add(1));
                self.newer.store(epoch, Ordering::Release);
                Error::Fenced { epoch }
            }
            RadosError::Refused { errno: EIO, .. } => Error::Damaged(error.to_string()),
            other => Error::Failed(other.to_string()),
        }
    }

    fn changed(&self, change: std::result::Result<(), RadosError>) -> Result<()> {
        change.map_err(|error| {
            if matches!(error, RadosError::TimedOut { .. }) {
                self.has_unknown.store(true, Ordering::Release);
            }
            self.failed(error)
        })
    }

    /// Makes one change.
    pub(super) fn write(&self, id: UniqueId, chunk: u64, op: &WriteOp<'_>) -> Result<()> {
        self.check_owner()?;
        self.changed(self.pool.write(&object_name::of_chunk(id, chunk), op))
    }

    /// Makes changes, several at a time, in any order. After a failure no more are sent. Returns how many were made,
    /// and the gravest error.
    pub(super) fn write_all<'c>(
        &self,
        id: UniqueId,
        changes: impl Iterator<Item = Change<'c>>,
    ) -> std::result::Result<(), (usize, Error)> {
        self.check_owner().map_err(|error| (0, error))?;
        let mut pending: VecDeque<(PendingWrite, bool)> = VecDeque::new();
        let (mut made, mut failure) = (0, None);
        let mut end = |(write, may_be_missing): (PendingWrite, bool), failure: &mut Option<Error>| match self
            .changed(write.wait())
        {
            Err(Error::NotFound) if may_be_missing => {}
            Ok(()) => made += 1,
            Err(error) => keep_gravest(failure, error),
        };
        for change in changes {
            if pending.len() >= DEPTH
                && let Some(first) = pending.pop_front()
            {
                end(first, &mut failure);
            }
            if failure.is_some() {
                break;
            }
            let name = object_name::of_chunk(id, change.chunk);
            match self.pool.submit_write(&name, &change.op) {
                Ok(write) => pending.push_back((write, change.may_be_missing)),
                Err(error) => keep_gravest(&mut failure, self.failed(error)),
            }
        }
        pending.into_iter().for_each(|write| end(write, &mut failure));
        match failure {
            None => Ok(()),
            Some(error) => Err((made, error)),
        }
    }

    /// A read that sees all changes of this owner that were sent before.
    pub(super) fn read_op<'o>(&self) -> ReadOp<'o> {
        match self.is_settled() {
            true => ReadOp::new(),
            false => ReadOp::new().after_writes(),
        }
    }

    /// The lengths of chunks; 0 for one that does not exist.
    pub(super) fn lengths(&self, id: UniqueId, chunks: &[u64]) -> Result<Vec<u64>> {
        let mut lengths = Vec::with_capacity(chunks.len());
        for some in chunks.chunks(DEPTH) {
            let sent = some.iter().map(|&chunk| {
                let op = self.read_op().stat();
                self.pool
                    .submit_read(&object_name::of_chunk(id, chunk), &op, Vec::new())
            });
            for read in sent.collect::<Vec<_>>() {
                match read.and_then(|read| read.wait().1) {
                    Ok(reply) => lengths.push(reply.size.unwrap_or(0)),
                    Err(RadosError::NotFound(_)) => lengths.push(0),
                    Err(error) => return Err(self.failed(error)),
                }
            }
        }
        Ok(lengths)
    }
}

/// A fenced owner stops; after an unknown outcome the change may still come; a store that is full has refused it.
fn keep_gravest(failure: &mut Option<Error>, error: Error) {
    let grave = |error: &Error| match error {
        Error::Fenced { .. } => 4,
        Error::Unknown(_) => 3,
        Error::NoSpace => 1,
        _ => 2,
    };
    if failure.as_ref().is_none_or(|known| grave(&error) > grave(known)) {
        *failure = Some(error);
    }
}
