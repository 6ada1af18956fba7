//! RUFS figures 10 and 14, and 11 to 13 for the server alone: the NVMe engine, without a network.
//!
//! Contents: the five figures and their verdicts. `test_bed` has devices, and engines on them; `backends` measures
//! figure 10, `transfers` 11 to 13, `devices` 14. These exist only with the cargo feature `nvme`.
//!
//! The paper has SSDs, and a driver that bypasses the kernel. Here devices are this machine's memory behind the
//! kernel's block layer, for all contenders alike. The cost of a promise, the comparison of engines on the same kind of
//! device, and the use of several devices at once transfer.

use super::{EXT4_DIRECT, EXT4_SYNC, LARGE_PANEL, LATENCY_PANEL, READ, READ_PANEL, WRITE, WRITE_PANEL};
use crate::data::{FigureData, Verdict};
use crate::error::LabError;
use crate::figures::{Figure, Judge, panel_of};
use crate::plan::Plan;
use crate::progress::Progress;

#[cfg(feature = "nvme")]
mod backends;
#[cfg(feature = "nvme")]
mod devices;
#[cfg(feature = "nvme")]
mod test_bed;
#[cfg(feature = "nvme")]
mod transfers;

const SERVER: &str = "ferrite's NVMe engine";
/// The same of one thread, which does not wait.
const SUBMITTED: &str = "ferrite's NVMe engine, submitted";
#[cfg(feature = "nvme")]
const RAW: &str = "the device alone";
const BACKENDS_PANEL: &str = "Metadata operations, one at a time";
const FS_SYNC: &str = "directory of ext4, each commit synchronous";
const FS_GROUP: &str = "directory of ext4, commits in groups";
const BLOBS_SYNC: &str = "blob store, each commit synchronous";
const BLOBS_GROUP: &str = "blob store, commits in groups";
/// Operations that write to RocksDB.
const WRITING: [&str; 4] = ["D-creat", "D-remove", "F-creat", "F-remove"];
/// Requests under way.
const DEPTHS: [u64; 4] = [1, 4, 8, 16];
/// Numbers of devices.
const COUNTS: [u64; 6] = [1, 2, 3, 4, 5, 6];
const SMALL_PANEL: &str = "4 KiB at random places";
/// Required rate of six devices in units of one: the least that the paper found.
const SPEEDUP: f64 = 3.46;

pub(in crate::figures) const BACKENDS: Figure = Figure {
    id: "rufs-10",
    title: "Metadata operations by RocksDB's store: synchronous or in groups, in a directory or on a blob store",
    claim: "Synchronous commits cost every operation that writes; on a blob store at most 38.8 %, in a directory of a \
    kernel's file system up to 98.7 %, both of creating files. Operations that only read lose nothing.",
    on_fresh_pools: false,
    applies_media: false,
    steps: |_| 1,
    run: |plan, progress| run("rufs-10", plan, progress),
    check: check_backends,
};

pub(in crate::figures) const SERVER_LATENCY: Figure = Figure {
    id: "rufs-11-server",
    title: "Latency of 4 KiB: the NVMe engine alone, with ext4 and the device",
    claim: "RUFS's server alone reads in 20 % of ext4's time and writes slightly faster than O_DIRECT; O_SYNC, which \
    makes the same promise, takes nearly 60 times as long.",
    on_fresh_pools: false,
    applies_media: false,
    steps: |_| 2,
    run: |plan, progress| run("rufs-11-server", plan, progress),
    check: check_latency,
};

pub(in crate::figures) const SERVER_SMALL: Figure = Figure {
    id: "rufs-12-server",
    title: "Throughput of 4 KiB with more and more requests: the NVMe engine alone, with ext4 and the device",
    claim: "RUFS's server alone is far above ext4 with O_SYNC and slightly above ext4 with O_DIRECT, in reads and writes.",
    on_fresh_pools: false,
    applies_media: false,
    steps: |_| 2 * DEPTHS.len() as u64,
    run: |plan, progress| run("rufs-12-server", plan, progress),
    check: check_small,
};

pub(in crate::figures) const SERVER_LARGE: Figure = Figure {
    id: "rufs-13-server",
    title: "Throughput of 4 MiB, in order: the NVMe engine alone, with ext4 and the device",
    claim: "RUFS's server alone is faster than ext4 in reads and writes, by at most 30 %.",
    on_fresh_pools: false,
    applies_media: false,
    steps: |_| 2,
    run: |plan, progress| run("rufs-13-server", plan, progress),
    check: check_large,
};

pub(in crate::figures) const DEVICES: Figure = Figure {
    id: "rufs-14",
    title: "Throughput with one to six devices for data",
    claim: "With six SSDs and a reactor for each, RUFS's server moves 246 % to 450 % more than with one.",
    on_fresh_pools: false,
    applies_media: false,
    steps: |_| 2 * COUNTS.len() as u64,
    run: |plan, progress| run("rufs-14", plan, progress),
    check: check_devices,
};

/// The feature that this build lacks to run a figure, and the remedy.
pub(in crate::figures) fn lacking(id: &str) -> Option<&'static str> {
    let figures = [BACKENDS, SERVER_LATENCY, SERVER_SMALL, SERVER_LARGE, DEVICES];
    let needs_engine = figures.iter().any(|figure| figure.id == id);
    (needs_engine && cfg!(not(feature = "nvme"))).then_some(
        "this build has no NVMe engine; make one that has: scripts/setup-debian.sh build && cargo build --release -p \
         ferrite-lab --features nvme",
    )
}

#[cfg(feature = "nvme")]
fn run(id: &str, plan: &Plan, progress: &mut dyn Progress) -> Result<FigureData, LabError> {
    match id {
        "rufs-10" => backends::run(plan, progress),
        "rufs-11-server" => transfers::run_latency(plan, progress),
        "rufs-12-server" => transfers::run_small(plan, progress),
        "rufs-13-server" => transfers::run_large(plan, progress),
        "rufs-14" => devices::run(plan, progress),
        _ => Err(LabError::UnknownFigure(id.into())),
    }
}

#[cfg(not(feature = "nvme"))]
fn run(id: &str, _plan: &Plan, _progress: &mut dyn Progress) -> Result<FigureData, LabError> {
    Err(LabError::NotInThisBuild {
        figure: id.into(),
        mend: lacking(id).unwrap_or_default(),
    })
}

/// More is better in all panels but that of latencies: the contender that must do more comes first.
fn check_backends(data: &FigureData) -> Verdict {
    let (mut judge, panel) = (Judge::default(), panel_of(data, BACKENDS_PANEL));
    // The cost of synchronous commits, for either backend.
    for label in WRITING {
        judge.at_least(&panel, label, FS_GROUP, FS_SYNC, 1.1);
        judge.at_least(&panel, label, BLOBS_GROUP, BLOBS_SYNC, 1.1);
    }
    judge.at_least(&panel, "F-creat", FS_GROUP, FS_SYNC, 10.0);
    judge.at_least(&panel, "F-creat", BLOBS_SYNC, BLOBS_GROUP, 0.61);
    for label in WRITING {
        judge.at_least(&panel, label, BLOBS_SYNC, FS_SYNC, 2.0);
    }
    for label in ["D-stat", "F-stat"] {
        judge.at_least(&panel, label, FS_SYNC, FS_GROUP, 0.8);
        judge.at_least(&panel, label, BLOBS_SYNC, BLOBS_GROUP, 0.8);
    }
    judge.verdict(
        "ext4's journal lies in memory here, where a synchronous commit takes some tens of microseconds instead of the \
         milliseconds of an SSD without a protected cache; what is left of the difference is the work of the kernel's \
         file system. Empty files live in their nodes here, so creating one is nothing but a commit; the paper's also \
         makes a blob, which takes as long whatever RocksDB does.",
    )
}

fn check_latency(data: &FigureData) -> Verdict {
    let (mut judge, panel) = (Judge::default(), panel_of(data, LATENCY_PANEL));
    judge.at_least(&panel, READ, EXT4_DIRECT, SERVER, 5.0);
    judge.at_least(&panel, WRITE, EXT4_DIRECT, SERVER, 1.0);
    judge.at_least(&panel, WRITE, EXT4_SYNC, SERVER, 10.0);
    judge.verdict(KERNEL)
}

fn check_small(data: &FigureData) -> Verdict {
    let mut judge = Judge::default();
    let (reads, writes) = (panel_of(data, READ_PANEL), panel_of(data, WRITE_PANEL));
    for depth in DEPTHS {
        let label = depth.to_string();
        judge.at_least(&reads, &label, SUBMITTED, EXT4_DIRECT, 1.0);
        judge.at_least(&writes, &label, SUBMITTED, EXT4_DIRECT, 1.0);
        judge.at_least(&writes, &label, SUBMITTED, EXT4_SYNC, 3.0);
    }
    judge.verdict(KERNEL)
}

fn check_large(data: &FigureData) -> Verdict {
    let (mut judge, panel) = (Judge::default(), panel_of(data, LARGE_PANEL));
    for operation in [READ, WRITE] {
        judge.at_least(&panel, operation, SERVER, EXT4_DIRECT, 1.0);
        judge.at_least(&panel, operation, EXT4_DIRECT, SERVER, 0.77);
    }
    judge.verdict(KERNEL)
}

const KERNEL: &str = "the paper's engine has a driver of its own and asks no kernel; ours asks it through io_uring, \
    and every contender waits for the worker of a loop device, which is most of the time. That device is \
    memory: it flushes in no time, which is what ext4 with O_SYNC waited for on an SSD. With O_DIRECT alone ext4 leaves \
    the flush out, and so promises less than the engine. With several threads, two cores are what limits everybody.";

fn check_devices(data: &FigureData) -> Verdict {
    let mut judge = Judge::default();
    for title in [SMALL_PANEL, LARGE_PANEL] {
        let panel = panel_of(data, title);
        for operation in [READ, WRITE] {
            judge.grows(&panel, operation, "1", "6", SPEEDUP);
        }
    }
    judge.verdict(
        "two cores do the work of all devices' requests, and copy the data into memory besides; where they are busy, \
         more devices cannot move more.",
    )
}
