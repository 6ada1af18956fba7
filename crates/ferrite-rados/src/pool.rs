//! Operations on the objects of a pool.

use std::ffi::CString;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::bounded::bounded;
use crate::error::{Error, Place, Result};
use crate::name::checked_name;
use crate::op::{ReadOp, WriteOp};
use crate::sys::{self, Context, Pending};

/// Names in a page. OSDs return no more at once (`osd_max_pgls`).
const PAGE_NAMES_MAX: usize = 1024;

/// A pool of a cluster, in a namespace. Clones share it. All calls may be made by several threads at once, and none
/// takes longer than [`Options::object_timeout`](crate::Options::object_timeout).
#[derive(Clone)]
pub struct Pool {
    context: Arc<Context>,
    name: Arc<str>,
    namespace: Arc<str>,
    timeout: Duration,
    monitor_timeout: Duration,
}

/// The content of all namespaces of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// Bytes of objects, not of their replicas.
    pub bytes: u64,
    /// Objects.
    pub objects: u64,
    /// Objects, each counted as often as it has replicas.
    pub copies: u64,
}

/// A reply to a [`ReadOp`]: the parts that it asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReadReply {
    /// Bytes that were read; fewer than asked for only at the end of the object.
    pub len: usize,
    /// The size of the object, in bytes.
    pub size: Option<u64>,
    /// The time of its last change, in whole seconds.
    pub modified: Option<SystemTime>,
    xattrs: Vec<(String, Vec<u8>)>,
}

impl ReadReply {
    /// The value of an xattr that the operation asked for, if the object has it.
    pub fn xattr(&self, name: &str) -> Option<&[u8]> {
        let found = self.xattrs.iter().find(|(found, _)| found == name);
        found.map(|(_, value)| value.as_slice())
    }

    /// An xattr that [`WriteOp::set_epoch`] stored.
    pub fn epoch(&self, name: &str) -> Option<u64> {
        Some(u64::from_be_bytes(self.xattr(name)?.try_into().ok()?))
    }
}

/// The name of an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct Listed {
    /// The name.
    pub object: String,
    /// The namespace that it is in.
    pub namespace: String,
}

/// Some names of a pool.
#[derive(Debug)]
#[non_exhaustive]
pub struct Page {
    /// Names, in the order of their hashes. There may be none in a page that is not the last.
    pub objects: Vec<Listed>,
    /// Objects in this page whose names are not UTF-8, so that another program made them.
    pub foreign: usize,
    /// Where the next page begins; `None` after the last one.
    pub next: Option<Cursor>,
}

/// Where a page of names begins. It stays valid while objects are created and removed.
pub struct Cursor(sys::Cursor);

impl fmt::Debug for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cursor")
    }
}

impl Pool {
    /// The timeouts are those for objects and for monitors.
    pub(crate) fn new(context: Arc<Context>, name: &str, namespace: &str, timeouts: [Duration; 2]) -> Pool {
        Pool {
            context,
            name: name.into(),
            namespace: namespace.into(),
            timeout: timeouts[0],
            monitor_timeout: timeouts[1],
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The namespace of the objects that it sees; empty for the default one.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Carries out `op` on an object. On return it is durable, whole. After an error nothing of it happened, or all of
    /// it if [`Error::is_outcome_unknown`] says so.
    ///
    /// # Errors
    ///
    /// Any of [`Error`]: [`Error::NotFound`], [`Error::Exists`] and [`Error::Fenced`] if a step that demands something
    /// is not satisfied.
    pub fn write(&self, object: &str, op: &WriteOp<'_>) -> Result<()> {
        let name = self.check(object, op.check())?;
        sys::write(&self.context, &name, op.steps()).map_err(|returned| self.error(object, returned))
    }

    /// Submits `op`, so that several are in progress. Blocks only if 1,024 are, or 100 MiB (`objecter_inflight_ops`,
    /// `objecter_inflight_op_bytes`), until one ends. Writes to one object take effect in the order in which one
    /// thread submits them.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`], [`Error::Refused`]. All else comes from [`PendingWrite::wait`].
    pub fn submit_write(&self, object: &str, op: &WriteOp<'_>) -> Result<PendingWrite> {
        let name = self.check(object, op.check())?;
        let pending = sys::submit_write(&self.context, &name, op.steps());
        Ok(PendingWrite {
            pending: pending.map_err(|returned| self.error(object, returned))?,
            of: Subject::new(self, object),
        })
    }

    /// Carries out `op`, which reads into `buffer`; its length is the number of bytes asked for. After an error the
    /// content of the buffer is undefined.
    ///
    /// # Errors
    ///
    /// Any of [`Error`].
    pub fn read(&self, object: &str, op: &ReadOp<'_>, buffer: &mut [u8]) -> Result<ReadReply> {
        let name = self.check(object, op.check(buffer.len()))?;
        let reply = sys::read(&self.context, &name, op, buffer);
        reply
            .map(|reply| parts(op.has_stat, reply))
            .map_err(|returned| self.error(object, returned))
    }

    /// Submits `op`, which reads into `buffer`. Blocks as [`submit_write`](Self::submit_write) does.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`], [`Error::Refused`]. All else comes from [`PendingRead::wait`].
    pub fn submit_read(&self, object: &str, op: &ReadOp<'_>, buffer: Vec<u8>) -> Result<PendingRead> {
        let name = self.check(object, op.check(buffer.len()))?;
        let pending = sys::submit_read(&self.context, &name, op, buffer);
        Ok(PendingRead {
            pending: pending.map_err(|returned| self.error(object, returned))?,
            has_stat: op.has_stat,
            of: Subject::new(self, object),
        })
    }

    /// The next page of at most `count` names (at most 1,024) in the namespace, from `from` or the beginning on.
    /// Objects that exist the whole time are listed once; others may be.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`], [`Error::Blocklisted`], [`Error::Refused`].
    pub fn list(&self, from: Option<&Cursor>, count: usize) -> Result<Page> {
        let count = count.clamp(1, PAGE_NAMES_MAX);
        let listed = sys::list(&self.context, from.map(|cursor| &cursor.0), count);
        let (names, next) = listed.map_err(|returned| {
            let place = Place::Pool(self.name.to_string());
            Error::from_return(place, returned, self.timeout)
        })?;
        let all = names.len();
        let utf8 = |(object, namespace)| {
            Some(Listed {
                object: String::from_utf8(object).ok()?,
                namespace: String::from_utf8(namespace).ok()?,
            })
        };
        let objects: Vec<Listed> = names.into_iter().filter_map(utf8).collect();
        Ok(Page {
            foreign: all - objects.len(),
            objects,
            next: next.map(Cursor),
        })
    }

    /// Counts the content of the pool, as the manager did some seconds ago. Without a manager all is zero. Blocks up to
    /// the timeout for monitors.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`], [`Error::Blocklisted`], [`Error::Refused`].
    pub fn usage(&self) -> Result<Usage> {
        let (context, limit) = (self.context.clone(), self.monitor_timeout);
        let place = || Place::Pool(self.name.to_string());
        match bounded(limit, move || context.usage()) {
            Some(Ok((bytes, objects, copies))) => Ok(Usage { bytes, objects, copies }),
            Some(Err(returned)) => Err(Error::from_return(place(), returned, limit)),
            None => Err(Error::TimedOut { place: place(), limit }),
        }
    }

    fn check(&self, object: &str, checked: std::result::Result<(), String>) -> Result<CString> {
        let place = self.place(object);
        checked.map_err(|why| Error::invalid(&place, why))?;
        checked_name(&place, "object", object)
    }

    fn place(&self, object: &str) -> Place {
        Place::Object {
            pool: self.name.to_string(),
            namespace: self.namespace.to_string(),
            object: object.to_owned(),
        }
    }

    fn error(&self, object: &str, returned: i32) -> Error {
        Error::from_return(self.place(object), returned, self.timeout)
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Pool");
        shown
            .field("name", &self.name)
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

/// The subject of an operation in progress, for its error.
#[derive(Debug)]
struct Subject {
    pool: Arc<str>,
    namespace: Arc<str>,
    object: Box<str>,
    timeout: Duration,
}

impl Subject {
    fn new(pool: &Pool, object: &str) -> Subject {
        Subject {
            pool: pool.name.clone(),
            namespace: pool.namespace.clone(),
            object: object.into(),
            timeout: pool.timeout,
        }
    }

    fn error(&self, returned: i32) -> Error {
        let place = Place::Object {
            pool: self.pool.to_string(),
            namespace: self.namespace.to_string(),
            object: self.object.to_string(),
        };
        Error::from_return(place, returned, self.timeout)
    }
}

/// A write in progress. Dropping it waits for its end, as [`wait`](Self::wait) does.
#[must_use = "an operation ends with an error that only `wait` returns"]
pub struct PendingWrite {
    pending: Pending,
    of: Subject,
}

impl PendingWrite {
    /// Whether [`wait`](Self::wait) would return at once.
    pub fn is_complete(&self) -> bool {
        self.pending.is_complete()
    }

    /// Waits until it is durable, or failed: at most the timeout for objects after it was submitted.
    ///
    /// # Errors
    ///
    /// Those of [`Pool::write`].
    pub fn wait(self) -> Result<()> {
        let PendingWrite { pending, of } = self;
        pending.wait().map_err(|returned| of.error(returned))
    }
}

impl fmt::Debug for PendingWrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PendingWrite").field(&self.of.object).finish()
    }
}

/// A read in progress. Dropping it waits for its end, as [`wait`](Self::wait) does.
#[must_use = "only `wait` returns what was read"]
pub struct PendingRead {
    pending: Pending,
    has_stat: bool,
    of: Subject,
}

impl PendingRead {
    /// Whether [`wait`](Self::wait) would return at once.
    pub fn is_complete(&self) -> bool {
        self.pending.is_complete()
    }

    /// Waits for its end, at most the timeout for objects after it was submitted; returns the buffer in any case.
    ///
    /// # Errors
    ///
    /// In the second value: those of [`Pool::read`].
    pub fn wait(self) -> (Vec<u8>, Result<ReadReply>) {
        let PendingRead { pending, has_stat, of } = self;
        let (buffer, reply) = pending.wait_read();
        let reply = reply
            .map(|reply| parts(has_stat, reply))
            .map_err(|returned| of.error(returned));
        (buffer, reply)
    }
}

impl fmt::Debug for PendingRead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PendingRead").field(&self.of.object).finish()
    }
}

fn parts(has_stat: bool, reply: sys::Reply) -> ReadReply {
    let since_1970 = Duration::from_secs(u64::try_from(reply.time).unwrap_or(0));
    ReadReply {
        len: reply.bytes_read,
        size: has_stat.then_some(reply.size),
        modified: has_stat
            .then(|| SystemTime::UNIX_EPOCH.checked_add(since_1970))
            .flatten(),
        xattrs: reply.xattrs,
    }
}
