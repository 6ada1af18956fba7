//! Measures figure 10: RocksDB in a directory and on a blob store, its commits synchronous and in groups.

use ferrite_vfs::{FileSystem, ROOT_INO, SYSTEM};

use super::test_bed::TestBed;
use super::{BACKENDS_PANEL, BLOBS_GROUP, BLOBS_SYNC, FS_GROUP, FS_SYNC};
use crate::data::{FigureData, point};
use crate::error::LabError;
use crate::figures::bars;
use crate::figures::rufs::metadata::{OPERATIONS, token};
use crate::figures::rufs::{count, timed};
use crate::plan::Plan;
use crate::progress::Progress;

pub(super) fn run(plan: &Plan, progress: &mut dyn Progress) -> Result<FigureData, LabError> {
    progress.step("directories, then files");
    let mut panel = bars(BACKENDS_PANEL, "operation", "throughput", "operations/s", true);
    let mut test_bed = TestBed::new()?;
    let mut sides = Vec::new();
    for (name, in_directory, is_sync) in [
        (FS_SYNC, true, true),
        (FS_GROUP, true, false),
        (BLOBS_SYNC, false, true),
        (BLOBS_GROUP, false, false),
    ] {
        let short = format!("pool{}", sides.len());
        let dir = test_bed.ext4().map(|root| root.join(&short));
        if in_directory && dir.is_none() {
            continue;
        }
        let server = test_bed.engine(&short, dir.filter(|_| in_directory), is_sync)?;
        let dir = server.fs.mkdir(SYSTEM, ROOT_INO, b"d", 0o755)?.ino;
        sides.push((name, server, dir, [(); OPERATIONS.len()].map(|()| Vec::new())));
    }
    let count = count(plan, 2);
    let mut data = vec![0; 4096];
    for round in 0..=plan.rounds {
        for (index, (_, operation, _)) in OPERATIONS.iter().enumerate() {
            for (_, server, dir, samples) in &mut sides {
                let us = timed(0, count, &mut |n| token(&server.fs, *dir, operation, n, &mut data))?;
                if round > 0 {
                    samples[index].push(1e6 / us);
                }
            }
        }
    }
    for (name, _, _, samples) in &mut sides {
        for (index, ((label, ..), samples)) in OPERATIONS.iter().zip(samples).enumerate() {
            panel.push(name, point(index as f64, *label, samples));
        }
    }
    // Drop engines before the stores below them.
    drop(sides);
    Ok(FigureData {
        panels: vec![panel],
        notes: vec![
            test_bed.note(),
            "Data lie on a blob store of another device in all four. Commits in groups are what the paper calls so: \
             RocksDB writes its log when it likes, and a crash loses the last operations. The paper runs mdtest with \
             8 processes; here one thread waits for each operation in one directory."
                .into(),
        ],
    })
}
