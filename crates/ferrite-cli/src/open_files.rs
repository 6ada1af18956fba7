//! The limit of open files. A shell's is low, for programs that use select(2); a server has one for each client, and a
//! copy of a deep tree one for each directory on the way down.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// As many as a service of systemd gets.
const WANTED: u64 = 65_536;

/// Raises the limit as far as this process may, and needs.
pub(crate) fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.map_or(WANTED, |maximum| maximum.min(WANTED));
    if limit.current.is_some_and(|current| current < wanted) {
        let raised = Rlimit {
            current: Some(wanted),
            maximum: limit.maximum,
        };
        if let Err(error) = setrlimit(Resource::Nofile, raised) {
            tracing::debug!(%error, "the limit of open files stays as it is");
        }
    }
}
