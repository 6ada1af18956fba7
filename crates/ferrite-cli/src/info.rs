//! `ferrite info`: the layout, state and activity of a pool.

use ferrite::volume::{Address, VolumeInfo};

use super::control::Request;
use super::target::{Target, address};
use super::{Failure, Outcome, say};

/// Show the layout, state and activity of a pool
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Queries the daemon of a mounted pool. Any other pool is read through a private copy: one that crashed is recovered in \
memory, and nothing is written. A pool in a database that a server owns is looked at from outside: the server is named, \
and space is not known.")]
pub(crate) struct Info {
    /// Pool, or a directory where one is mounted
    #[arg(value_parser = address(), value_hint = clap::ValueHint::AnyPath)]
    pool: Address,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

/// Information about a pool, from its daemon or from the pool itself.
pub(crate) fn gather(address: &Address) -> Result<VolumeInfo, Failure> {
    let target = Target::new(address);
    if let Some(info) = target.ask(&Request::Info)? {
        return Ok(info);
    }
    #[cfg(feature = "nvme")]
    if address.scheme() == "nvme"
        && let Some(info) = super::nvme::look(target.pool())?
    {
        return Ok(info);
    }
    Ok(target.inspect()?.info()?)
}

impl Info {
    pub(crate) fn run(self) -> Outcome {
        let info = gather(&self.pool)?;
        if self.json {
            say(info.json);
        } else {
            for line in info.lines {
                say(format!("{:<18}{}", line.name, line.value));
            }
        }
        Ok(0)
    }
}
