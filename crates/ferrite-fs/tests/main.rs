//! The tests of the engine of persistent memory, in one program.
//!
//! They are linked once; `scripts/run-tests.py` runs each module in a process of its own.

mod ageing;
#[path = "../../../fuzz/src/attacks.rs"]
mod attacks;
mod bound_model;
mod cleaning;
mod clone_trees;
mod clones;
mod common;
mod crash;
mod damage;
mod data_checksum;
mod dedup;
mod dir_churn;
mod durability;
mod faults;
mod freeze;
mod full_pool;
mod full_pool_fuzz;
mod fuzz_corpus;
mod golden;
mod growth;
mod journal;
mod large_pools;
mod limits;
mod loops;
mod merge_model;
mod order;
mod orphans;
mod pagelog;
mod quotas;
mod regions;
mod regions_random;
mod rights;
mod ring_model;
mod slot_model;
mod snapshots;
mod sparse_directory;
mod suites;
mod unmount;
mod whole;
