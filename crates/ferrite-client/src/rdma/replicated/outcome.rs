//! Results of calls: which replicas hold what, and why a call failed.

use std::fmt;

use crate::rdma::RemoteError;

/// Whether a replica holds a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Held {
    /// Durably, and everything before it.
    Yes,
    /// Durably, but it is being resynchronised, and lacks other bytes still.
    CatchingUp,
    /// It may hold all, a part or nothing of it: the replica failed.
    Unknown {
        /// The failure.
        why: String,
    },
    /// No; it was left out before.
    No {
        /// The reason.
        why: String,
    },
}

/// The result of a write or an append.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Where the bytes are.
    pub offset: u64,
    /// For each replica, in the order of opening.
    pub replicas: Vec<Held>,
}

impl Outcome {
    /// Replicas that hold it, and everything before it.
    pub fn holders(&self) -> usize {
        self.replicas.iter().filter(|held| **held == Held::Yes).count()
    }
}

/// The standing of a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It holds everything.
    Current,
    /// It holds everything acknowledged. Unacknowledged writes, of a writer that ended or when all replicas failed, may
    /// differ between replicas.
    InDoubt,
    /// It is being resynchronised.
    CatchingUp,
    /// It was left out, and lacks something.
    Behind,
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Standing::Current => "current",
            Standing::InDoubt => "in doubt",
            Standing::CatchingUp => "catching up",
            Standing::Behind => "behind",
        })
    }
}

/// The known state of a replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaStatus {
    /// As it was given.
    pub name: String,
    /// Its standing.
    pub standing: Standing,
    /// Bytes that it may lack.
    pub lacks_bytes: u64,
    /// Why it was left out.
    pub why: Option<String>,
}

/// The result of a resync for one replica.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Resynced {
    /// Bytes that were compared.
    pub compared_bytes: u64,
    /// Bytes that were written, because they differed.
    pub written_bytes: u64,
    /// Why it is not current now, if it is not.
    pub why: Option<String>,
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplicatedError {
    /// There must be at least one replica, and at most this number.
    #[error("a replicated file has 1 to {most} replicas, not {count}")]
    Count {
        /// How many were given.
        count: usize,
        /// How many there may be.
        most: usize,
    },
    /// The set was made with another number of replicas.
    #[error("{name} is one of {of} replicas, and {given} were given: name them all")]
    OtherCount {
        /// A replica.
        name: String,
        /// How many its set has.
        of: u32,
        /// How many were given.
        given: usize,
    },
    /// Replicas of different files were given.
    #[error("{name} is a replica of another file than {first}")]
    OtherSet {
        /// A replica.
        name: String,
        /// Another one.
        first: String,
    },
    /// Another client writes.
    #[error("{name} is being written by another client, or was given twice")]
    Locked {
        /// The replica.
        name: String,
    },
    /// Another client has opened it for writing since: the lock was lost with the session of this client, which writes
    /// nothing more.
    #[error(
        "another client has opened {name} for writing since this one was cut off from it, so nothing more is written: \
         open the replicas again"
    )]
    Superseded {
        /// A replica that knows of the other one.
        name: String,
    },
    /// Too few replicas answer to know what was written.
    #[error("{reached} of {count} replicas answer, and {needed} are needed: {why}")]
    Unreachable {
        /// How many answer.
        reached: usize,
        /// How many there are.
        count: usize,
        /// How many must.
        needed: usize,
        /// The errors of the others.
        why: String,
    },
    /// Too few replicas hold the write. Those that do keep it.
    #[error("{} of {} replicas hold it, and {needed} must", outcome.holders(), outcome.replicas.len())]
    TooFew {
        /// The replicas that do.
        outcome: Outcome,
        /// How many must.
        needed: usize,
    },
    /// No replica is known to hold the range to read, or none answers.
    #[error("no replica could be read: {why}")]
    NoSource {
        /// Their errors.
        why: String,
    },
    /// It was opened for reading.
    #[error("the file was opened for reading only")]
    ReadOnly,
    /// The system has no threads.
    #[error("no thread for a replica: {0}")]
    Thread(std::io::Error),
    /// Anything else.
    #[error(transparent)]
    Remote(#[from] RemoteError),
}
