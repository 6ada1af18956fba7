//! Errors of operations on objects.
//!
//! Invariant: an error whose outcome is not unknown ([`Error::is_outcome_unknown`]) has changed nothing.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;

/// The subject of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Place {
    /// The cluster that a configuration file names.
    Cluster(PathBuf),
    /// A pool.
    Pool(String),
    /// An object of a pool.
    Object {
        /// The pool.
        pool: String,
        /// The namespace; empty for the default one.
        namespace: String,
        /// The object.
        object: String,
    },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Cluster(conf) => write!(f, "Ceph cluster of {}", conf.display()),
            Place::Pool(pool) => write!(f, "Ceph pool {pool}"),
            Place::Object {
                pool,
                namespace,
                object,
            } if namespace.is_empty() => write!(f, "object {object} of Ceph pool {pool}"),
            Place::Object {
                pool,
                namespace,
                object,
            } => write!(f, "object {object} in namespace {namespace} of Ceph pool {pool}"),
        }
    }
}

/// Errors of this crate.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// The object, the pool or the configuration file does not exist.
    #[error("{0} does not exist; create it, or correct its name")]
    NotFound(Place),
    /// The object exists, and the operation was to create it.
    #[error("{0} exists already")]
    Exists(Place),
    /// An xattr is missing or has another value than the operation demands: somebody else owns the object by now.
    #[error("{0} has another owner: it refused the epoch of this writer; take it over again before writing")]
    Fenced(Place),
    /// This instance is on the cluster's blocklist. All its operations fail from now on; only a new connection helps.
    #[error("{0}: this client is on the cluster's blocklist, because another one took over; connect again")]
    Blocklisted(Place),
    /// No reply came in time. **The outcome of a write is unknown**, and an OSD may still carry it out.
    #[error("{place}: no reply in {} s; look at `ceph -s` for OSDs and monitors that are down", limit.as_secs())]
    TimedOut {
        /// The subject.
        place: Place,
        /// The limit.
        limit: Duration,
    },
    /// The cluster, the pool or its quota is full. Operations that only free space still succeed.
    #[error("{0}: no space; delete something, raise the pool's quota, or add OSDs")]
    NoSpace(Place),
    /// The operation makes no sense, and was not sent.
    #[error("{place}: {why}")]
    Invalid {
        /// The subject.
        place: Place,
        /// The reason, and the limit if it is one.
        why: String,
    },
    /// Ceph refused for another reason.
    #[error("{place}: Ceph refused with error {errno} ({})", std::io::Error::from_raw_os_error(*errno))]
    Refused {
        /// The subject.
        place: Place,
        /// A number of `errno(3)`.
        errno: i32,
    },
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

// Numbers of Linux, which librados returns with the opposite sign.
pub(crate) const ENOENT: i32 = 2;
const EPERM: i32 = 1;
const EACCES: i32 = 13;
const EEXIST: i32 = 17;
const ENOSPC: i32 = 28;
const ESHUTDOWN: i32 = 108;
const ETIMEDOUT: i32 = 110;
const EDQUOT: i32 = 122;
const ECANCELED: i32 = 125;

impl Error {
    /// Whether a write that met this error may have taken effect all the same, or may still do so. That includes
    /// [`Error::Blocklisted`]: an OSD may have carried the write out, lost the connection before it replied, and
    /// refused the repetition.
    pub fn is_outcome_unknown(&self) -> bool {
        matches!(
            self,
            Error::TimedOut { .. } | Error::Blocklisted(_) | Error::Refused { .. }
        )
    }

    /// Whether the client lacks a capability for what it tried.
    pub fn is_denied(&self) -> bool {
        matches!(
            self,
            Error::Refused {
                errno: EPERM | EACCES,
                ..
            }
        )
    }

    /// The error for a return value of librados, which is negative.
    pub(crate) fn from_return(place: Place, returned: i32, limit: Duration) -> Error {
        match returned.checked_neg().unwrap_or(i32::MAX) {
            ENOENT => Error::NotFound(place),
            EEXIST => Error::Exists(place),
            ECANCELED => Error::Fenced(place),
            ESHUTDOWN => Error::Blocklisted(place),
            ETIMEDOUT => Error::TimedOut { place, limit },
            ENOSPC | EDQUOT => Error::NoSpace(place),
            errno => Error::Refused { place, errno },
        }
    }

    pub(crate) fn invalid(place: &Place, why: impl Into<String>) -> Error {
        Error::Invalid {
            place: place.clone(),
            why: why.into(),
        }
    }
}
