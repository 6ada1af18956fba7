//! `ferrite flush`: everything that a pool has staged, in memory or in a log, goes to where it stays.

use ferrite::volume::Address;

use super::control::Request;
use super::target::{Target, local_address, not_mounted};
use super::{Outcome, freeze};

/// Store everything that a mount has staged, and wait until it is there
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Content in S3 is staged in memory, and on the device of `[tier]` if the pool has one; it goes to the bucket after a \
while by itself. The kernel does not pass sync(1) to mounts; this command stores the content of all files, and returns \
when the bucket has it. Pools without S3 have nothing staged that was synced.

Example:
  ferrite flush /mnt")]
pub(crate) struct Flush {
    /// Directory where a pool is mounted, or the pool
    #[arg(value_parser = local_address(), value_hint = clap::ValueHint::AnyPath)]
    dir: Address,
}

impl Flush {
    pub(crate) fn run(self) -> Outcome {
        freeze::write_out(self.dir.path());
        let answer: Option<bool> = Target::new(&self.dir).ask_without_timeout(&Request::Flush)?;
        answer.map(|_| 0).ok_or_else(|| not_mounted(self.dir.path()))
    }
}
