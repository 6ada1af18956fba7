//! `ferrite df`: space and inodes, of mounted pools and others.

use std::path::PathBuf;

use super::{Outcome, info, mounts, say, say_json, size};

/// Show free space and inodes
#[derive(Debug, clap::Args)]
pub(crate) struct Df {
    /// Pools or mount points [default: all mounted pools]
    pools: Vec<PathBuf>,
    /// Print one line of JSON a pool
    #[arg(long)]
    json: bool,
}

#[derive(serde::Serialize)]
struct Row {
    pool: PathBuf,
    mounted_on: Option<PathBuf>,
    size_bytes: u64,
    used_bytes: u64,
    available_bytes: u64,
    inodes: u64,
    inodes_free: u64,
}

impl Df {
    pub(crate) fn run(self) -> Outcome {
        let paths = if self.pools.is_empty() {
            mounts::all().into_iter().map(|mount| mount.pool).collect()
        } else {
            self.pools
        };
        let mut rows = Vec::new();
        for path in paths {
            let mount = mounts::find(&path);
            let info = info::gather(&path)?;
            let block = u64::from(info.block_bytes);
            rows.push(Row {
                pool: mount.as_ref().map_or(path, |mount| mount.pool.clone()),
                mounted_on: mount.map(|mount| mount.dir),
                size_bytes: info.blocks * block,
                used_bytes: (info.blocks - info.blocks_free) * block,
                available_bytes: info.blocks_free.saturating_sub(info.blocks_reserved) * block,
                inodes: info.inodes,
                inodes_free: info.inodes_free,
            });
        }
        if self.json {
            for row in &rows {
                say_json(row)?;
            }
            return Ok(0);
        }
        say(format!(
            "{:<32} {:>10} {:>10} {:>10} {:>12}  mounted on",
            "pool", "size", "used", "available", "free inodes"
        ));
        for row in rows {
            say(format!(
                "{:<32} {:>10} {:>10} {:>10} {:>12}  {}",
                row.pool.display().to_string(),
                size::human(row.size_bytes),
                size::human(row.used_bytes),
                size::human(row.available_bytes),
                row.inodes_free,
                row.mounted_on.map_or("-".into(), |dir| dir.display().to_string())
            ));
        }
        Ok(0)
    }
}
