//! `ferrite df`: space and inodes, of mounted pools and others.

use std::path::PathBuf;

use ferrite::volume::{Address, VolumeInfo};

use super::mounts::MountPoint;
use super::target::local_address;
use super::{FAILED, Failure, Outcome, complain, dead_mounts, info, mounts, say, say_json, size};

/// Show free space and inodes
#[derive(Debug, clap::Args)]
pub(crate) struct Df {
    /// Pools or mount points [default: all mounted pools]
    #[arg(value_parser = local_address(), value_hint = clap::ValueHint::AnyPath)]
    pools: Vec<Address>,
    /// Print one line of JSON per pool
    #[arg(long)]
    json: bool,
}

#[derive(serde::Serialize)]
struct Row {
    pool: PathBuf,
    mounted_on: Option<PathBuf>,
    /// `None` for a server's pool whose mount is dead, and one that a server elsewhere owns: it cannot be queried.
    #[serde(flatten)]
    space: Option<Space>,
    state: State,
    /// Content that is on its way to a bucket.
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting: Option<Waiting>,
}

/// Content that a bucket does not have yet.
#[derive(serde::Serialize)]
struct Waiting {
    bytes: u64,
    /// The age of the oldest.
    oldest_s: u64,
}

impl Waiting {
    /// `None`: there is no bucket, or nothing waits.
    fn of(info: &VolumeInfo) -> Option<Waiting> {
        let json: serde_json::Value = serde_json::from_str(&info.json).ok()?;
        let number = |name: &str| json["s3"][name].as_u64();
        let waiting = Waiting {
            bytes: number("buffered_bytes")? + number("spilled_bytes")?,
            oldest_s: number("oldest_s")?,
        };
        (waiting.bytes > 0).then_some(waiting)
    }
}

#[derive(serde::Serialize)]
struct Space {
    size_bytes: u64,
    used_bytes: u64,
    available_bytes: u64,
    inodes: u64,
    inodes_free: u64,
}

/// The health of a pool.
#[derive(Clone, Copy, serde::Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    /// All is well.
    Ok,
    /// Damage was found at mount time, or since.
    Damaged,
    /// It became read-only because the medium failed.
    Failed,
    /// A server elsewhere owns it, and knows how much space is left.
    Elsewhere,
    /// It is mounted, but its daemon was killed.
    Dead,
    /// Its daemon does not answer us.
    Unknown,
}

impl State {
    fn of(info: &VolumeInfo) -> State {
        match () {
            () if info.in_use_by.is_some() => State::Elsewhere,
            () if info.failed.is_some() => State::Failed,
            () if !info.damage.is_empty() || info.findings_since_open > 0 => State::Damaged,
            () => State::Ok,
        }
    }

    fn word(self) -> &'static str {
        match self {
            State::Ok => "ok",
            State::Damaged => "DAMAGED",
            State::Failed => "READ-ONLY",
            State::Elsewhere => "elsewhere",
            State::Dead => "DEAD",
            State::Unknown => "?",
        }
    }
}

impl Row {
    fn of(mount: &MountPoint, space: Option<Space>, state: State) -> Row {
        Row {
            pool: mount.pool.clone(),
            mounted_on: Some(mount.dir.clone()),
            space,
            state,
            waiting: None,
        }
    }
}

impl Df {
    pub(crate) fn run(self) -> Outcome {
        let asks_for_all = self.pools.is_empty();
        let wanted: Vec<(Address, Option<MountPoint>)> = match asks_for_all {
            true => mounts::all()
                .into_iter()
                .map(|mount| (Address::of_pool(&mount.dir), Some(mount)))
                .collect(),
            false => self
                .pools
                .into_iter()
                .map(|pool| {
                    let mount = mounts::find(pool.path());
                    (pool, mount)
                })
                .collect(),
        };
        let (mut rows, mut code) = (Vec::new(), 0);
        for (address, mount) in wanted {
            match row(&address, mount) {
                Ok(row) => rows.push(row),
                // It was unmounted while the list was being processed.
                Err(_) if asks_for_all && mounts::find(address.path()).is_none() => {}
                // The others can still be shown.
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
            "{:<32} {:>10} {:>10} {:>10} {:>12}  {:<9} mounted on",
            "pool", "size", "used", "available", "free inodes", "state"
        ));
        for row in rows {
            let bytes = |of: fn(&Space) -> u64| row.space.as_ref().map_or("-".into(), |space| size::human(of(space)));
            say(format!(
                "{:<32} {:>10} {:>10} {:>10} {:>12}  {:<9} {}",
                row.pool.display().to_string(),
                bytes(|space| space.size_bytes),
                bytes(|space| space.used_bytes),
                bytes(|space| space.available_bytes),
                row.space
                    .as_ref()
                    .map_or("-".into(), |space| space.inodes_free.to_string()),
                row.state.word(),
                row.mounted_on.map_or("-".into(), |dir| dir.display().to_string())
            ));
            if let Some(Waiting { bytes, oldest_s }) = row.waiting {
                let bytes = size::human(bytes);
                say(format!(
                    "  {bytes} are not in the bucket yet, the oldest for {oldest_s} s"
                ));
            }
        }
        Ok(code)
    }
}

fn row(address: &Address, mount: Option<MountPoint>) -> Result<Row, Failure> {
    let is_dead = mount.as_ref().is_some_and(dead_mounts::is_dead);
    let info = match (info::gather(address), &mount) {
        (Ok(info), _) => info,
        // It may have died since.
        (Err(_), Some(mount)) if is_dead || dead_mounts::is_dead(mount) => {
            return Ok(Row::of(mount, None, State::Dead));
        }
        // It belongs to another user, but the kernel knows how much space is left.
        (Err(failure), Some(mount)) => return told_by_kernel(mount).ok_or(failure),
        (Err(failure), None) => return Err(failure),
    };
    Ok(Row {
        pool: mount
            .as_ref()
            .map_or_else(|| address.path().to_path_buf(), |mount| mount.pool.clone()),
        mounted_on: mount.map(|mount| mount.dir),
        space: info.in_use_by.is_none().then_some(Space {
            size_bytes: info.capacity_bytes,
            used_bytes: info.used_bytes,
            available_bytes: info.available_bytes,
            inodes: info.inodes,
            inodes_free: info.inodes_free,
        }),
        waiting: Waiting::of(&info),
        state: if is_dead { State::Dead } else { State::of(&info) },
    })
}

fn told_by_kernel(mount: &MountPoint) -> Option<Row> {
    let fs = rustix::fs::statvfs(&mount.dir).ok()?;
    let space = Space {
        size_bytes: fs.f_blocks.saturating_mul(fs.f_frsize),
        used_bytes: fs.f_blocks.saturating_sub(fs.f_bfree).saturating_mul(fs.f_frsize),
        available_bytes: fs.f_bavail.saturating_mul(fs.f_frsize),
        inodes: fs.f_files,
        inodes_free: fs.f_ffree,
    };
    Some(Row::of(mount, Some(space), State::Unknown))
}
