//! The crash explorer: enumerates the possible contents of a medium after a crash, and tries the engine on each
//! (docs/design.md, "Proof").
//!
//! Contents: [`source`], the workloads and their names; [`record`], a workload run on a recorded engine and on the
//! reference engine; [`omission`], mistakes made in the recording; [`choices`], the images of a crash point that
//! are tried; [`allowed`], their allowed contents, and [`verify`], all their requirements; [`session`] and
//! [`resend`], changes with tokens, and resent changes; [`explore`], all of it together, on several threads;
//! [`plan`], the order of workloads; [`shrink`], the shortest workload that still fails; [`report`], the report of
//! a failure, and the file with its image.
//!
//! The program `ferrite-crash` is the command line of all this.
//!
//! Invariants: everything follows from a [`source::Source`] and an [`explore::Effort`], so the name of a failure
//! replays it. Only workloads of several threads depend on other load of the machine. A file keeps the image of every
//! failure, so those can be examined again, too, though without the reference engine's verdict on the contents. The
//! reference engine defines what is allowed after a crash, never the engine under test.
#![forbid(unsafe_code)]

pub mod allowed;
pub mod choices;
pub mod explore;
pub mod omission;
pub mod plan;
pub mod record;
pub mod report;
pub mod resend;
pub mod session;
pub mod shrink;
pub mod source;
pub mod verify;

pub use ferrite_fs::Mapping;

use omission::Omission;

/// The kind of pool to try. A mapping stands for pools with that mapping and default options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Variant {
    /// Mapping structure.
    pub mapping: Mapping,
    /// Whether data carries checksums.
    pub data_checksum: bool,
    /// Size of the units of page logs, as larger pools have; `None` for that of the pool's size.
    pub log_unit_bytes: Option<u32>,
    /// Whether its mounts hold stores back until a sync, as with `durability=fsync`.
    pub deferred: bool,
    /// A mistake that the engine makes in all workloads.
    pub omission: Option<Omission>,
}

impl From<Mapping> for Variant {
    fn from(mapping: Mapping) -> Self {
        Variant {
            mapping,
            data_checksum: false,
            log_unit_bytes: None,
            deferred: false,
            omission: None,
        }
    }
}

/// Every mapping structure. A new one is added here.
pub const MAPPINGS: &[Mapping] = Mapping::ALL;
