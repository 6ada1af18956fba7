//! The lab: the experiments of the HashFS, HDPM, RUFS and FileMR papers as commands, with plots and verdicts.
//!
//! | module | what lives there |
//! | --- | --- |
//! | [`plan`], `progress` | how much is done, and progress reports |
//! | `structure` | what is measured: every mapping of `ferrite-map`, and the baselines |
//! | `baselines` | level hashing, HashFS with tombstones, extent trees behind a page cache |
//! | `alloc` | the papers' block allocator and ours, with the layout score |
//! | `misses` | cache misses of cold lookups, where the CPU counts them |
//! | `pool`, `tx` | a mapping on a pool of its own; a transaction that pays for a journal |
//! | `engine` | a whole engine on a pool in memory |
//! | [`mixes`] | filebench's mixes, on whatever stores files |
//! | `measure` | cold and hot timing |
//! | `churn`, `compare`, `published`, `runs` | mappings after churn, `leaf` against HashFS, all against the papers' own code, lengths of runs: `ferrite-lab bench mapping` |
//! | [`peers`] | whom a remote client is measured with, also for `ferrite-lab bench net` |
//! | `rdma` | files behind an adapter in software, raw datagrams, where pages lie: also for `ferrite-lab bench mr` |
//! | `traces` | recorded writes of programs, cut into pages, and replayed |
//! | `figures` | one file for each figure or family |
//! | [`data`], `report` | results, and the page that shows them |
//!
//! ```no_run
//! use ferrite_lab::{Plan, Silent};
//!
//! let results = ferrite_lab::run(&["hashfs-5", "hdpm-9"], &Plan::quick(), &mut Silent)?;
//! std::fs::write("report.html", ferrite_lab::report(&results)).expect("space for the report");
//! std::fs::write("results.json", ferrite_lab::to_json(&results)?).expect("space for the results");
//! # Ok::<(), ferrite_lab::LabError>(())
//! ```
//!
//! YCSB on LevelDB (HashFS 13 and 14) needs the cargo feature `leveldb`, a C++ compiler and LevelDB; the figures of
//! FileMR need the feature `rdma`, which is on by default; the NVMe engine (RUFS 10, 14, and 11 to 13 for the server
//! alone) needs the feature `nvme`, a C++ compiler and RocksDB.
//!
//! A new figure is a file in `figures` and a line in its list; a new mapping of `ferrite-map` is included
//! automatically.
//!
//! *Architecture invariant:* the engine and the library do not depend on this crate; only the program does, for `lab`
//! and `bench`. *Architecture invariant:* no `unsafe`; code that needs it lies in `ferrite-pm`.
#![forbid(unsafe_code)]

mod alloc;
mod baselines;
mod churn;
mod compare;
pub mod data;
mod engine;
mod error;
mod figures;
mod measure;
mod misses;
pub mod mixes;
pub mod peers;
pub mod plan;
mod pool;
mod progress;
mod published;
#[cfg(feature = "rdma")]
pub mod rdma;
mod report;
mod run;
mod runs;
mod structure;
mod traces;
mod tx;

pub use churn::{ChurnPlan, MappingRow, churn_rows};
pub use compare::lookup_rows;
pub use data::{FigureData, FigureInfo, FigureResult, Panel, Point, Series, Verdict};
pub use engine::{FILE_NODE, engine_in_memory, new_file};
pub use error::LabError;
pub use misses::{MissRow, miss_rows, uncounted};
pub use plan::Plan;
pub use progress::{Progress, Silent};
pub use published::{PUBLISHED_ROWS, published_rows};
pub use report::report;
pub use run::{from_json, judge_again, lacks, list, merge, run, to_json};
pub use runs::run_rows;
