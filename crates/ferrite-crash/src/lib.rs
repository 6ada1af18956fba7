//! The crash explorer: enumerates what a medium may hold after a crash, and tries the engine on it (docs/design.md,
//! "Proof").
//!
//! Contents: [`source`], which workloads there are and their names; [`record`], a workload run on a recorded
//! engine and on the reference engine; [`choices`], which images of a crash point are tried; [`allowed`], what an image
//! may hold, and [`verify`], all that it must satisfy; [`session`] and [`resend`], changes with tokens, and those that
//! are sent again; [`explore`], all of it together, on several threads; [`plan`], in which order; [`shrink`], the
//! shortest workload that still fails; [`report`], the report of a failure, and its image kept in a file. The program
//! `ferrite-crash` is its command line.
//!
//! Invariants: everything follows from a [`source::Source`] and an [`explore::Effort`], so a failure is replayed by its
//! name. Only workloads of several threads depend on what else the machine does. The image of every failure is kept in
//! a file, so those can be examined again, too, though without the reference engine's answer on what must be in it. The
//! reference engine defines what is allowed after a crash, never the engine under test.
#![forbid(unsafe_code)]

pub mod allowed;
pub mod choices;
pub mod explore;
pub mod plan;
pub mod record;
pub mod report;
pub mod resend;
pub mod session;
pub mod shrink;
pub mod source;
pub mod verify;

pub use ferrite_fs::Mapping;

/// The kind of pool to try. A mapping stands for pools with that mapping and default options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Variant {
    /// Mapping structure.
    pub mapping: Mapping,
    /// Whether data carries checksums.
    pub data_checksum: bool,
    /// Whether it is used with stores held back until a sync, as with `durability=fsync`.
    pub held: bool,
}

impl From<Mapping> for Variant {
    fn from(mapping: Mapping) -> Self {
        Variant {
            mapping,
            data_checksum: false,
            held: false,
        }
    }
}

/// Every mapping structure. A new one is added here.
pub const MAPPINGS: &[Mapping] = Mapping::ALL;
