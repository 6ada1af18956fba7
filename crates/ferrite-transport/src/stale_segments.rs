//! Shared memory that dead processes have left behind.
//!
//! Contents: [`begin`], which names the endpoints of this process over shm and removes those of dead processes. An
//! endpoint is a file of 16 MiB in /dev/shm, which the provider removes when it is closed; a killed process closes
//! nothing.
//!
//! Invariant: a removed file belonged to a dead Ferrite process of this PID namespace. A /dev/shm may be shared with
//! other namespaces, whose processes cannot be seen dead from here: so the name carries the namespace.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::process::{Pid, getpid, test_kill_process};

pub(crate) const DIR: &str = "/dev/shm";

/// The prefix of the names of this process's endpoints. The first call removes the files of dead processes.
pub(crate) fn begin() -> &'static str {
    static BEGIN: OnceLock<String> = OnceLock::new();
    BEGIN.get_or_init(|| {
        let namespace = namespace();
        sweep(Path::new(DIR), &namespace);
        format!("{namespace}{}", getpid().as_raw_nonzero())
    })
}

/// The prefix of the names of all Ferrite endpoints in this PID namespace.
fn namespace() -> String {
    let link = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    let number: String = link.to_string_lossy().chars().filter(char::is_ascii_digit).collect();
    format!("ferrite-{number}-")
}

/// The process that owns the endpoint of this name, if it is a Ferrite process of this PID namespace.
pub(crate) fn process_of(name: &[u8]) -> Option<Pid> {
    let name = std::str::from_utf8(name).ok()?;
    owner(name.strip_prefix("fi_shm://")?, &namespace())
}

/// The process that owns an endpoint's file. The provider appends `:USER:NUMBER`.
fn owner(name: &str, namespace: &str) -> Option<Pid> {
    let (process, _) = name.strip_prefix(namespace)?.split_once(':')?;
    let process: u32 = process.parse().ok()?;
    Pid::from_raw(process.try_into().ok()?)
}

/// Endpoints over shm in `dir` whose processes are dead: those of Ferrite, and of this PID namespace.
pub fn dead_endpoints(dir: &Path) -> Vec<PathBuf> {
    dead_in(dir, &namespace())
}

fn dead_in(dir: &Path, namespace: &str) -> Vec<PathBuf> {
    let is_dead = |name: &str| {
        let owner = owner(name, namespace);
        owner.is_some_and(|owner| test_kill_process(owner) == Err(rustix::io::Errno::SRCH))
    };
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_name().to_str().is_some_and(is_dead))
        .map(|entry| entry.path())
        .collect()
}

fn sweep(dir: &Path, namespace: &str) {
    for path in dead_in(dir, namespace) {
        // Another user's file may not be removed from here; another process may just have removed it.
        if std::fs::remove_file(&path).is_ok() {
            tracing::debug!("{} of a process that is gone was removed", path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_dead_processes_of_this_namespace_had_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        let (dead, alive) = (child.id(), std::process::id());
        let namespace = namespace();
        let gone = format!("{namespace}{dead}:0:1");
        let stay = [
            format!("{namespace}{alive}:0:1"),
            format!("ferrite-7-{dead}:0:1"),
            format!("{namespace}{dead}"),
            format!("{namespace}x:0:1"),
            format!("{namespace}0:0:1"),
            format!("{namespace}-1:0:1"),
            format!("{dead}:0:1"),
        ];
        for name in stay.iter().chain([&gone]) {
            std::fs::write(dir.path().join(name), b"").unwrap();
        }
        assert_eq!(dead_in(dir.path(), &namespace), [dir.path().join(&gone)]);
        sweep(dir.path(), &namespace);
        assert!(!dir.path().join(&gone).exists());
        for name in &stay {
            assert!(dir.path().join(name).exists(), "{name}");
        }
    }
}
