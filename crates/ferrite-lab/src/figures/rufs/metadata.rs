//! RUFS figure 9: metadata operations, as in mdtest.

use ferrite_vfs::{FileSystem, Ino, NewFile, OpenMode, ROOT_INO, SYSTEM};

use super::{NFS, Peer, REMOTE, Remote, count, network_note, timed};
use crate::data::{FigureData, Verdict};
use crate::error::LabError;
use crate::figures::{Figure, Judge, bars, panel_of};
use crate::plan::Plan;
use crate::progress::Progress;

const PANEL: &str = "Metadata operations, one at a time";
/// Required time of NFS for each unit of Ferrite's. The paper's two slowest, which are as fast as NFS, must not be
/// slower.
pub(super) const OPERATIONS: [(&str, &str, f64); 7] = [
    ("D-creat", "dir_create", 10.0),
    ("D-stat", "dir_stat", 1.7),
    ("D-remove", "dir_remove", 1.7),
    ("F-creat", "file_create", 1.0),
    ("F-stat", "file_stat", 1.7),
    ("F-read", "file_read", 1.7),
    ("F-remove", "file_remove", 1.0),
];

pub(crate) const FIGURE: Figure = Figure {
    id: "rufs-9",
    title: "Metadata operations with RUFS's mdtest",
    claim: "RUFS makes directories 5693.8 % faster than NFS + ext4, creates and removes files as fast, and does \
    everything else at least 70 % faster.",
    on_fresh_pools: false,
    applies_media: false,
    steps: |_| 1,
    run,
    check,
};

/// Carries out one operation on the directory or file of that number.
pub(super) fn token(
    fs: &dyn FileSystem,
    dir: Ino,
    operation: &str,
    number: u64,
    data: &mut [u8],
) -> Result<(), LabError> {
    let name = format!("{}{number}", &operation[..1]);
    let name = name.as_bytes();
    match operation {
        "dir_create" => drop(fs.mkdir(SYSTEM, dir, name, 0o755)?),
        "dir_remove" => fs.rmdir(SYSTEM, dir, name)?,
        "file_create" => {
            let new = NewFile {
                mode: 0o644,
                open: OpenMode::read_write(),
                exclusive: true,
            };
            drop(fs.create(SYSTEM, dir, name, &new)?);
        }
        "file_read" => {
            let ino = fs.lookup(SYSTEM, dir, name)?.ino;
            fs.open(SYSTEM, ino, OpenMode::read_only())?.read_at(SYSTEM, 0, data)?;
        }
        "file_remove" => fs.unlink(SYSTEM, dir, name)?,
        _ => drop(fs.lookup(SYSTEM, dir, name)?),
    }
    Ok(())
}

fn run(plan: &Plan, progress: &mut dyn Progress) -> Result<FigureData, LabError> {
    let mut panel = bars(PANEL, "operation", "time", "us", true);
    let remote = Remote::new()?;
    let dir = remote.client.mkdir(SYSTEM, ROOT_INO, b"d", 0o755)?.ino;
    let mut peer = Peer::new()?;
    let count = count(plan, 5);
    progress.step("directories, then files");
    // A round is a whole life: each operation finds the results of the earlier ones, and the last removes everything.
    let mut samples = [(); OPERATIONS.len()].map(|()| [Vec::new(), Vec::new()]);
    let mut data = vec![0; 4096];
    for round in 0..=plan.rounds {
        for ((_, operation, _), samples) in OPERATIONS.iter().zip(&mut samples) {
            let ours = timed(0, count, &mut |n| token(&remote.client, dir, operation, n, &mut data))?;
            let theirs = peer.sample(operation, count, 1)?;
            if round > 0 {
                samples[0].push(ours);
                samples[1].extend(theirs);
            }
        }
    }
    for (index, ((label, ..), samples)) in OPERATIONS.iter().zip(&mut samples).enumerate() {
        for (name, samples) in [REMOTE, NFS].into_iter().zip(samples) {
            if !samples.is_empty() {
                panel.push(name, crate::data::point(index as f64, *label, samples));
            }
        }
    }
    Ok(FigureData {
        panels: vec![panel],
        notes: vec![
            peer.note(),
            network_note(),
            "The paper runs 8 processes over half a million files, four directories deep, and counts operations a \
             second; here one client waits for each operation in one directory, so that two cores measure work and \
             not turns. Files are empty."
                .into(),
        ],
    })
}

fn check(data: &FigureData) -> Verdict {
    let (mut judge, panel) = (Judge::default(), panel_of(data, PANEL));
    for (label, _, times) in OPERATIONS {
        judge.at_least(&panel, label, NFS, REMOTE, times);
    }
    judge.verdict(
        "the paper's ext4 writes a directory to an SSD before it answers, ours to memory, and both clients wake a \
         thread for each answer; what is left is the software's own time.",
    )
}
