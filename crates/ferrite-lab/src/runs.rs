//! The lengths of runs of consecutive blocks that files written in order get, on an aged pool.
//!
//! Contents: [`run_rows`]. The engine itself, on a pool that is filled with files of mixed sizes; half of them are
//! deleted and others written, repeatedly, until the pool is filled to a little below the target. Then some files are
//! written in order, up to that target, and their runs counted.

use std::sync::Arc;

use ferrite_fs::{Engine, Mapping, MkfsOptions, MountOptions};
use ferrite_vfs::{FileSystem, Ino, OpenFile, OpenMode, ROOT_INO, SYSTEM};

use crate::churn::{ChurnPlan, MappingRow};
use crate::engine::{engine_in_memory, new_file};
use crate::error::LabError;
use ferrite_measure::Rng;

/// Fill of the pool after the counted files have been written.
const FILL_PERCENT: u64 = 80;
/// Share of the pool that these files take.
const COUNTED_PERCENT: u64 = 4;
const COUNTED_FILES: u64 = 8;
/// Bytes of a write.
const WRITE_BYTES: usize = 128 << 10;
/// A file's size is a block times a power of two with a random fraction, up to 2 to this.
const SIZE_BITS: f64 = 10.0;
const BLOCK_BYTES: u64 = 4096;
/// Shortest mean run that is required of `leaf`.
const REQUIRED_BLOCKS: f64 = 64.0;
const MEASURED: [Mapping; 2] = [Mapping::Leaf, Mapping::Hashfs];

/// Mean runs with `leaf`, which must be 64 blocks long, and with HashFS for comparison. `step` is called when each
/// begins.
pub fn run_rows(plan: &ChurnPlan, step: &mut dyn FnMut(&str)) -> Result<Vec<MappingRow>, LabError> {
    let mut rows = Vec::new();
    for mapping in MEASURED {
        step(&format!("runs with {mapping}"));
        let mean_run = mean_run(plan, mapping)?;
        let ratio = REQUIRED_BLOCKS / mean_run;
        rows.push(MappingRow {
            ratio,
            required_ratio: (mapping == MEASURED[0]).then_some(1.0),
            run_blocks: Some(mean_run),
            ..MappingRow::new("run_length", mapping.name(), "64 blocks", FILL_PERCENT as u32)
        });
    }
    Ok(rows)
}

fn mean_run(plan: &ChurnPlan, mapping: Mapping) -> Result<f64, LabError> {
    let mkfs = MkfsOptions::default().mapping(mapping).seed(plan.seed);
    let options = MountOptions::default().cleaner(false);
    let mut pool = Pool {
        engine: engine_in_memory(plan.runs_pool_bytes, &mkfs, &options)?,
        rng: Rng::new(plan.seed),
        files: Vec::new(),
        number: 0,
        chunk: vec![0x5a; WRITE_BYTES],
    };
    let aged_percent = FILL_PERCENT - COUNTED_PERCENT;
    pool.fill_to(aged_percent)?;
    for _ in 0..plan.turnovers {
        pool.delete_half()?;
        pool.fill_to(aged_percent)?;
    }
    let bytes = pool.engine.statfs(SYSTEM)?.blocks * BLOCK_BYTES * COUNTED_PERCENT / 100 / COUNTED_FILES;
    let (mut blocks, mut runs) = (0, 0);
    for _ in 0..COUNTED_FILES {
        let (ino, _name) = pool.write_file(bytes)?;
        let pages = pool.engine.dump(ino)?;
        let breaks = pages
            .windows(2)
            .filter(|pair| pair[1].block != pair[0].block.wrapping_add(1));
        runs += 1 + breaks.count() as u64;
        blocks += pages.len() as u64;
    }
    Ok(blocks as f64 / runs as f64)
}

struct Pool {
    engine: Engine,
    rng: Rng,
    /// Names of the files.
    files: Vec<String>,
    number: u64,
    chunk: Vec<u8>,
}

impl Pool {
    fn full_percent(&self) -> Result<u64, LabError> {
        let stat = self.engine.statfs(SYSTEM)?;
        Ok((stat.blocks - stat.blocks_free) * 100 / stat.blocks)
    }

    /// Writes files of mixed sizes until the pool is that full.
    fn fill_to(&mut self, percent: u64) -> Result<(), LabError> {
        while self.full_percent()? < percent {
            let blocks = (self.rng.unit() * SIZE_BITS).exp2();
            let (_, name) = self.write_file(blocks as u64 * BLOCK_BYTES)?;
            self.files.push(name);
        }
        Ok(())
    }

    /// Deletes every other file, at random, and frees its blocks.
    fn delete_half(&mut self) -> Result<(), LabError> {
        self.rng.shuffle(&mut self.files);
        for name in self.files.split_off(self.files.len() / 2) {
            self.engine.unlink(SYSTEM, ROOT_INO, name.as_bytes())?;
        }
        self.engine.clean(usize::MAX)?;
        Ok(())
    }

    /// A new file, written in order.
    fn write_file(&mut self, bytes: u64) -> Result<(Ino, String), LabError> {
        self.number += 1;
        let name = format!("file{}", self.number);
        let ino = new_file(&self.engine, ROOT_INO, &name)?;
        let file: Arc<dyn OpenFile> = self.engine.open(SYSTEM, ino, OpenMode::read_write())?;
        let mut offset = 0;
        while offset < bytes {
            let len = (bytes - offset).min(WRITE_BYTES as u64) as usize;
            let written = file.write_at(SYSTEM, offset, &self.chunk[..len])?;
            if written != len {
                return Err(LabError::Wrong(format!("{written} of {len} bytes written")));
            }
            offset += len as u64;
        }
        Ok((ino, name))
    }
}
