//! The requirements of `fabric://` on this machine: libfabric's providers, RDMA devices, space in /dev/shm.
//!
//! Contents: [`findings`], one line for each. No finding here prevents mounts, or `tcp://`.

use std::path::{Path, PathBuf};

use ferrite_transport::{Provider, dead_endpoints, library_version};

use crate::size;

/// A finding, and the repair if it is not good.
pub(super) struct Finding {
    pub(super) name: &'static str,
    pub(super) is_good: bool,
    pub(super) found: String,
    pub(super) mend: String,
}

/// Where shared memory of the provider `shm` lies.
const SHM: &str = "/dev/shm";
/// Where the devices of adapters are.
const DEVICES: &str = "/dev/infiniband";
/// A server and a few clients over shm: each has 16 MiB.
const SHM_BYTES: u64 = 64 << 20;

/// All findings.
pub(super) fn findings() -> Vec<Finding> {
    let (major, minor) = library_version();
    let mut findings = vec![Finding {
        name: "libfabric",
        is_good: major > 0,
        found: match major {
            0 => "not installed".into(),
            _ => format!("version {major}.{minor}"),
        },
        mend: "apt-get install libfabric1 (only fabric:// needs it)".into(),
    }];
    findings.extend(Provider::ALL.map(provider));
    findings.push(space(Path::new(SHM)));
    findings.extend(stale_segments(dead_endpoints(Path::new(SHM))));
    findings
}

fn provider(provider: Provider) -> Finding {
    let (name, use_of, mend) = match provider {
        Provider::Shm => (
            "fabric:// over shm",
            "between processes of one host",
            "it needs a /dev/shm that can be written: `mount -t tmpfs tmpfs /dev/shm`",
        ),
        Provider::Verbs if !Path::new(DEVICES).is_dir() => (
            "fabric:// over verbs",
            "RDMA",
            "there is no /dev/infiniband: no RDMA adapter, or no driver for it (`apt-get install rdma-core \
             ibverbs-providers`, then `modprobe ib_uverbs`); in a container, pass --device /dev/infiniband and --ulimit \
             memlock=-1. Without an adapter use tcp://, and between processes of one host ?provider=shm",
        ),
        Provider::Verbs => (
            "fabric:// over verbs",
            "RDMA",
            "there is /dev/infiniband, but no adapter that works: `ibv_devices` lists those with a driver (`apt-get \
             install ibverbs-providers`), `rdma link` says whether one is up",
        ),
        _ => (
            "fabric:// over tcp",
            "for tests; tcp:// is faster",
            "libfabric was built without it; Debian's libfabric1 has it",
        ),
    };
    let is_good = provider.is_there();
    // The variable hides a provider most easily, and least visibly.
    let chosen = std::env::var("FI_PROVIDER").ok();
    Finding {
        name,
        is_good,
        found: match is_good {
            true => format!("available ({use_of})"),
            false => "not available".into(),
        },
        mend: match chosen {
            Some(chosen) => {
                format!("unset FI_PROVIDER, which is `{chosen}` and leaves libfabric no other; else {mend}")
            }
            None => mend.into(),
        },
    }
}

/// Whether shared memory has space for endpoints.
fn space(dir: &Path) -> Finding {
    let free = rustix::fs::statvfs(dir).map(|fs| fs.f_bavail * fs.f_frsize);
    let (is_good, found) = match free {
        Ok(free) => (
            free >= SHM_BYTES,
            format!("{} free in {}", size::human(free), dir.display()),
        ),
        Err(error) => (false, format!("{}: {error}", dir.display())),
    };
    Finding {
        name: "memory for shm",
        is_good,
        found,
        mend: format!(
            "each end of fabric:// over shm takes 16 MiB of it: `mount -o remount,size=1G {}`, in a container \
             --shm-size=1g",
            dir.display()
        ),
    }
}

/// Segments that killed processes left. The next user of shm removes them, if it runs as the same user.
fn stale_segments(dead: Vec<PathBuf>) -> Option<Finding> {
    let first = dead.first()?.display().to_string();
    let bytes: u64 = dead
        .iter()
        .filter_map(|path| Some(path.symlink_metadata().ok()?.len()))
        .sum();
    Some(Finding {
        name: "left in shm",
        is_good: false,
        found: format!(
            "{} of killed processes in {SHM}, of {}, {first} first",
            dead.len(),
            size::human(bytes)
        ),
        mend: "the next process of the same user that uses fabric:// over shm removes it; or remove it with rm(1)"
            .into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named_with_its_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let none = space(&dir.path().join("none"));
        assert!(!none.is_good && none.mend.contains("--shm-size"), "{}", none.found);
        assert!(stale_segments(Vec::new()).is_none());
        let file = dir.path().join("endpoint");
        std::fs::write(&file, [0; 2048]).unwrap();
        let left = stale_segments(vec![file]).unwrap();
        assert!(
            left.found.contains("2.0 KiB") && left.found.contains("endpoint"),
            "{}",
            left.found
        );
        assert!(left.mend.contains("rm(1)"));
    }
}
