//! The tests of the command line and its mounts, in one program.
//!
//! They are linked once; `scripts/run-tests.py` runs each module in a process of its own.

mod acls;
mod addresses;
mod administrator;
mod away_server;
mod bad_input;
mod bench;
mod coherence;
mod commands;
mod common;
mod console;
mod copies;
mod copy;
mod crash_kill;
mod data_checksum;
mod events;
mod exporter;
#[cfg(feature = "fabric")]
mod fabric;
#[cfg(feature = "nvme")]
mod failover;
mod files;
mod fsck_repair;
mod full_device;
mod growth;
mod habits;
mod handles;
mod leased_mounts;
mod loops_mount;
mod manual;
mod mapped_stores;
mod messages;
mod metrics;
mod mount_basic;
mod mount_calls;
mod mount_flags;
mod mount_locks;
mod mount_options;
mod mount_quotas;
mod mount_snapshots;
#[cfg(feature = "nvme")]
mod nvme;
#[cfg(feature = "nvme")]
mod nvme_admin;
#[cfg(feature = "nvme")]
mod nvme_damage;
#[cfg(feature = "nvme")]
mod nvme_postgres;
#[cfg(feature = "rados")]
mod nvme_rados;
#[cfg(feature = "nvme")]
mod nvme_s3;
#[cfg(feature = "nvme")]
mod nvme_s3_mirror;
mod operations;
mod output;
mod packages;
#[path = "../../ferrite/tests/posix/mod.rs"]
mod posix;
mod posix_mount;
mod privileges;
mod progress;
#[cfg(feature = "rdma")]
mod rdma;
mod real_programs;
#[cfg(feature = "rdma")]
mod replicas;
mod resize;
mod send;
mod serve;
mod serve_config;
mod signature;
mod support_bundle;
mod untrusted;
