//! `ferrite df`: space and inodes, of mounted pools and others.

use std::path::PathBuf;

use super::mounts::MountPoint;
use super::{FAILED, Failure, Outcome, complain, info, mounts, say, say_json, size};

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
        let asks_for_all = self.pools.is_empty();
        let wanted: Vec<(PathBuf, Option<MountPoint>)> = match asks_for_all {
            true => mounts::all()
                .into_iter()
                .map(|mount| (mount.dir.clone(), Some(mount)))
                .collect(),
            false => self
                .pools
                .into_iter()
                .map(|path| (path.clone(), mounts::find(&path)))
                .collect(),
        };
        let (mut rows, mut code) = (Vec::new(), 0);
        for (path, mount) in wanted {
            match row(path.clone(), mount) {
                Ok(row) => rows.push(row),
                // It was unmounted while the list was gone through.
                Err(_) if asks_for_all && mounts::find(&path).is_none() => {}
                // The others can be shown all the same.
                Err(failure) => {
                    complain(format_args!("ferrite: {}", failure.message));
                    code = FAILED;
                }
            }
        }
        if self.json {
            for row in &rows {
                say_json(row)?;
            }
            return Ok(code);
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
        Ok(code)
    }
}

fn row(path: PathBuf, mount: Option<MountPoint>) -> Result<Row, Failure> {
    let info = info::gather(&path)?;
    let block = u64::from(info.block_bytes);
    Ok(Row {
        pool: mount.as_ref().map_or(path, |mount| mount.pool.clone()),
        mounted_on: mount.map(|mount| mount.dir),
        size_bytes: info.blocks * block,
        used_bytes: (info.blocks - info.blocks_free) * block,
        available_bytes: info.blocks_free.saturating_sub(info.blocks_reserved) * block,
        inodes: info.inodes,
        inodes_free: info.inodes_free,
    })
}
