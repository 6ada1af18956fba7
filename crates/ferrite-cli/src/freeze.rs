//! `ferrite freeze` and `ferrite thaw`: holding back the changes of a mount, so that its pool can be copied.
//!
//! Contents: the commands. The daemon's side is in [`super::freeze_guard`].

use std::path::Path;

use ferrite::volume::Address;

use super::control::Request;
use super::target::{Target, local_address, not_mounted};
use super::{Outcome, mounts};

/// Block changes on a mount, so that its pool can be copied or a snapshot taken
#[derive(Debug, clap::Args)]
#[command(after_help = "\
While the mount is frozen, the pool's file is in the state of a cleanly unmounted pool, so any copy or snapshot of it is \
sound. Programs that change something on the mount wait until `ferrite thaw`; reads continue. `ferrite copy` freezes and \
thaws automatically.

Example:
  ferrite freeze /mnt
  lvcreate --snapshot --name backup --size 1G vg/pools
  ferrite thaw /mnt")]
pub(crate) struct Freeze {
    /// Directory where a pool is mounted, or the pool
    #[arg(value_parser = local_address(), value_hint = clap::ValueHint::AnyPath)]
    dir: Address,
    /// Thaw automatically after this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: u64,
}

/// Allow changes on a frozen mount again
#[derive(Debug, clap::Args)]
pub(crate) struct Thaw {
    /// Directory where a pool is mounted, or the pool
    #[arg(value_parser = local_address(), value_hint = clap::ValueHint::AnyPath)]
    dir: Address,
}

impl Freeze {
    pub(crate) fn run(self) -> Outcome {
        write_out(self.dir.path());
        ask(&self.dir, &Request::Freeze(self.timeout))
    }
}

impl Thaw {
    pub(crate) fn run(self) -> Outcome {
        ask(&self.dir, &Request::Thaw)
    }
}

fn ask(dir: &Address, request: &Request) -> Outcome {
    let answer: Option<bool> = Target::new(dir).ask_without_timeout(request)?;
    answer.map(|_| 0).ok_or_else(|| not_mounted(dir.path()))
}

/// Makes the kernel send the data that programs stored in shared mappings, as fsfreeze(8) does. It does not wait for
/// all of it: data that must be in a copy needs an `msync`.
pub(crate) fn write_out(path: &Path) {
    let mount = mounts::find(path);
    if let Some(dir) = mount.and_then(|mount| std::fs::File::open(mount.dir).ok()) {
        let _ = rustix::fs::syncfs(dir);
    }
}
