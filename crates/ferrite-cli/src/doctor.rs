//! `ferrite doctor`: what this machine supports, or whether the servers of a pool will do, and how to get what is
//! missing.

#[cfg(feature = "fabric")]
mod fabric;

use std::path::Path;

use ferrite::volume::Address;
use ferrite_pm::{Access, PmError, Region, cpu_features};
use rustix::thread::CapabilitySet;

use super::target::local_address;
use super::{Failure, Outcome, USAGE, mounts, say, say_json, size};

/// Check what this machine supports, or the servers of a pool, and say how to get what is missing
#[derive(Debug, clap::Args)]
#[command(after_help = "\
With a pool, the check is of the database and the Ceph cluster that its file names, and not of this machine. Nothing of \
the pool is taken or changed, also while it is in use. To see whether a dead owner can be fenced, an address that no \
machine has is on Ceph's blocklist for a second.

Exit code: 0 if pools can be mounted, 1 if a requirement is missing.")]
pub(crate) struct Doctor {
    /// Pool nvme:POOL.toml with metadata in a database
    #[arg(value_parser = local_address(), value_hint = clap::ValueHint::AnyPath)]
    pool: Option<Address>,
    /// Print one line of JSON per check
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    /// Present.
    Good,
    /// Works without it, but slower or with fewer features.
    Missing,
    /// Mounting needs it.
    Bad,
}

#[derive(serde::Serialize)]
struct Check {
    name: &'static str,
    state: State,
    found: String,
    mend: Option<String>,
}

impl Check {
    fn new(name: &'static str, good: bool, otherwise: State, found: impl Into<String>, mend: &str) -> Check {
        let state = if good { State::Good } else { otherwise };
        Check {
            name,
            state,
            found: found.into(),
            mend: (!good).then(|| mend.to_string()),
        }
    }
}

impl Doctor {
    pub(crate) fn run(self) -> Outcome {
        let checks = match &self.pool {
            Some(pool) => checks_of(pool)?,
            None => checks(),
        };
        for check in &checks {
            if self.json {
                say_json(check)?;
                continue;
            }
            let mark = match check.state {
                State::Good => "ok",
                State::Missing => "--",
                State::Bad => "!!",
            };
            say(format!("{mark}  {:<20} {}", check.name, check.found));
            if let Some(mend) = &check.mend {
                say(format!("    {:<20} -> {mend}", ""));
            }
        }
        Ok(u8::from(checks.iter().any(|check| check.state == State::Bad)))
    }
}

/// The servers of a pool.
#[cfg(feature = "nvme")]
fn checks_of(pool: &Address) -> Result<Vec<Check>, Failure> {
    use ferrite_nvme::Verdict;
    if pool.scheme() != "nvme" {
        return Err(no_servers());
    }
    let check = |found: ferrite_nvme::PoolCheck| Check {
        name: found.name,
        state: match found.verdict {
            Verdict::Good => State::Good,
            Verdict::Risk => State::Missing,
            Verdict::Bad => State::Bad,
        },
        found: found.found,
        mend: found.mend,
    };
    Ok(ferrite_nvme::examine(pool.path())?.into_iter().map(check).collect())
}

#[cfg(not(feature = "nvme"))]
fn checks_of(_pool: &Address) -> Result<Vec<Check>, Failure> {
    Err(no_servers())
}

fn no_servers() -> Failure {
    let text =
        "only pools with metadata in a database (nvme:POOL.toml) have servers to check; `ferrite fsck` checks others";
    Failure::new(USAGE, text.to_owned())
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_string()
}

fn in_path(program: &str) -> Option<String> {
    let paths = std::env::var_os("PATH")?;
    let found = std::env::split_paths(&paths)
        .map(|dir| dir.join(program))
        .find(|path| path.is_file())?;
    Some(found.display().to_string())
}

/// The devices whose names begin with `prefix`, sorted by name.
fn devices(prefix: &str) -> Vec<String> {
    let entries = std::fs::read_dir("/dev").into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut devices: Vec<String> = names
        .filter(|name| {
            name.strip_prefix(prefix)
                .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
        })
        .map(|name| format!("/dev/{name}"))
        .collect();
    devices.sort_unstable();
    devices
}

fn checks() -> Vec<Check> {
    let mut checks = vec![fuse(), rings(), fusermount(), allow_other()];
    checks.extend(capability());
    checks.extend(cpu());
    checks.extend(memory());
    checks.extend(persistent_memory());
    checks.extend(fabrics());
    checks
}

/// The requirements of `fabric://`.
#[cfg(feature = "fabric")]
fn fabrics() -> Vec<Check> {
    let check = |it: fabric::Finding| Check::new(it.name, it.is_good, State::Missing, it.found, &it.mend);
    fabric::findings().into_iter().map(check).collect()
}

#[cfg(not(feature = "fabric"))]
fn fabrics() -> Vec<Check> {
    let mend = "build with the cargo feature `fabric`, which needs libfabric-dev; tcp:// works without";
    vec![Check::new(
        "libfabric",
        false,
        State::Missing,
        "not in this build",
        mend,
    )]
}

fn fuse() -> Check {
    let opened = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
    let found = match &opened {
        Ok(_) => "/dev/fuse can be opened".to_string(),
        Err(error) => format!("/dev/fuse: {error}"),
    };
    let mend = "load it with `modprobe fuse`; in a container, pass --device /dev/fuse and --cap-add SYS_ADMIN. The \
        library does not need it";
    Check::new("FUSE", opened.is_ok(), State::Bad, found, mend)
}

/// Whether the CPU that sends a mount's request can answer it.
fn rings() -> Check {
    const NAME: &str = "FUSE over io_uring";
    match ferrite_fuse::rings_offered() {
        Ok(()) => Check::new(NAME, true, State::Missing, "fuse.enable_uring is on", ""),
        Err((why, mend)) => {
            let mend = format!("{mend} (for mounts that are made from then on; a small request costs about half)");
            Check::new(NAME, false, State::Missing, why, &mend)
        }
    }
}

/// Root mounts without a helper, which takes a capability that a container's root may lack.
fn capability() -> Option<Check> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let may = rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN));
    let found = if may {
        "CAP_SYS_ADMIN is available"
    } else {
        "CAP_SYS_ADMIN is missing"
    };
    let mend = "in a container, pass --cap-add SYS_ADMIN. The library does not need it";
    Some(Check::new("mounting as root", may, State::Bad, found, mend))
}

fn fusermount() -> Check {
    let root = rustix::process::geteuid().is_root();
    let found = in_path("fusermount3");
    let otherwise = if root { State::Missing } else { State::Bad };
    let text = found.clone().unwrap_or_else(|| "not found".into());
    Check::new(
        "fusermount3",
        found.is_some(),
        otherwise,
        text,
        "apt-get install fuse3 (needed by users other than root)",
    )
}

fn allow_other() -> Check {
    let root = rustix::process::geteuid().is_root();
    let allowed = read("/etc/fuse.conf")
        .lines()
        .any(|line| line.trim() == "user_allow_other");
    let found = match (root, allowed) {
        (true, _) => "root may allow other users",
        (_, true) => "user_allow_other is set",
        _ => "only root may allow other users",
    };
    let mend = "add `user_allow_other` to /etc/fuse.conf to use -o allow_other";
    Check::new("allow_other", root || allowed, State::Missing, found, mend)
}

/// A pool can use device DAX directly; a block device only through a file on a file system with DAX.
fn persistent_memory() -> Vec<Check> {
    const NAME: &str = "persistent memory";
    let check = |found: String, mend: &str| Check::new(NAME, mend.is_empty(), State::Missing, found, mend);
    let mut checks = Vec::new();
    for device in devices("dax") {
        let size = Region::open(Path::new(&device), Access::ReadOnlyPrivate).map(|region| size::human(region.len()));
        checks.push(match size {
            Ok(size) => check(format!("{device}: device DAX of {size}"), ""),
            // Most likely a pool.
            Err(error @ PmError::InUse { .. }) => check(error.to_string(), ""),
            Err(error) => check(
                error.to_string(),
                "run as root, or with permission to read and write the device",
            ),
        });
    }
    for device in devices("pmem") {
        let name = device.trim_start_matches("/dev/");
        // A partition shares the queue of the whole device.
        let has_dax = ["queue", "../queue"]
            .iter()
            .any(|queue| read(&format!("/sys/class/block/{name}/{queue}/dax")) == "1");
        checks.push(match mounts::dax_dir_of(Path::new(&device)) {
            Some(dir) => check(
                format!("{device}: mounted with DAX; make pools in {}", dir.display()),
                "",
            ),
            None if has_dax => check(
                format!("{device}: no file system is mounted from it with DAX"),
                "run `mkfs.ext4`, then `mount -o dax=always`, and make the pool in a file there with `ferrite mkfs`; \
                 or turn the namespace into device DAX (`ndctl create-namespace --mode devdax`)",
            ),
            None => check(
                format!("{device}: a block device without DAX (mode raw or sector)"),
                "a pool needs mode fsdax with a file system mounted with DAX, or mode devdax: `ndctl \
                 create-namespace --mode …`, which destroys the content",
            ),
        });
    }
    if checks.is_empty() {
        let mend = "no device; pools on tmpfs survive a killed process, pools on a disk file also a power loss";
        checks.push(check("none".into(), mend));
    }
    checks
}

fn cpu() -> Vec<Check> {
    let cpu = cpu_features();
    let write_back = match cpu {
        _ if cpu.clwb => "clwb",
        _ if cpu.clflushopt => "clflushopt",
        _ if cpu.clflush => "clflush",
        _ => "none",
    };
    let vectors = match cpu {
        _ if cpu.avx512 => "AVX-512",
        _ if cpu.avx2 => "AVX2",
        _ => "none; scalar code is used",
    };
    vec![
        Check::new(
            "cache write-back",
            cpu.clwb || cpu.clflushopt,
            State::Missing,
            write_back,
            "pools on DAX are slow with clflush, and cannot be used without any of these",
        ),
        Check::new(
            "vectors",
            cpu.avx2,
            State::Missing,
            vectors,
            "lookups of several pages at once are slower",
        ),
    ]
}

fn memory() -> Vec<Check> {
    let shmem = read("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
    let shmem_good = ["[always]", "[within_size]", "[advise]", "[force]"]
        .iter()
        .any(|mode| shmem.contains(mode));
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    let limit_text = limit.map_or("unlimited".into(), size::human);
    let shm = rustix::fs::statvfs(Path::new("/dev/shm"));
    let shm_text = shm.as_ref().map_or("not mounted".into(), |fs| {
        format!(
            "{} free of {}",
            size::human(fs.f_bavail * fs.f_frsize),
            size::human(fs.f_blocks * fs.f_frsize)
        )
    });
    vec![
        Check::new(
            "huge pages on tmpfs",
            shmem_good,
            State::Missing,
            if shmem.is_empty() { "unknown".into() } else { shmem },
            "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled (random access to a pool costs up to \
             half less)",
        ),
        Check::new(
            "tmpfs",
            shm.is_ok(),
            State::Missing,
            format!("/dev/shm: {shm_text}"),
            "mount -t tmpfs tmpfs /dev/shm",
        ),
        Check::new(
            "locked memory",
            limit.is_none_or(|bytes| bytes >= 64 << 20),
            State::Missing,
            limit_text,
            "ulimit -l unlimited, or LimitMEMLOCK=infinity in a systemd unit (fabric:// over verbs needs it; nothing \
             else does)",
        ),
        Check::new("kernel", true, State::Good, read("/proc/sys/kernel/osrelease"), ""),
    ]
}
