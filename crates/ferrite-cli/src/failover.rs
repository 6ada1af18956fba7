//! `ferrite failover`: asking the owner of a pool to hand it over.
//!
//! Contents: the command. It talks to nobody but the database, where the owner finds the request, so it works on every
//! machine that has the pool's file.

use std::path::Path;
use std::time::{Duration, Instant};

use ferrite::MountOptions;
use ferrite::volume::{Address, Candidacy, Tenancy, VolumeError};

use super::target::local_address;
use super::{FAILED, Failure, Outcome, about, say, say_json};

/// Between looks at the owner.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Hand a pool from the server that owns it to another
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The pool's metadata is in a database, and other servers (`ferrite serve`) stand by for it. Its owner ends the service in \
order, and another takes it over; clients that know both continue with their files open and their locks held.

Examples:
  ferrite failover nvme:/etc/ferrite/pool.toml   # before maintenance
  ferrite failover nvme:/etc/ferrite/pool.toml --to b.example:7447

Exit codes: 0 another server owns the pool; 1 none does, or not in time; 2 the command line is wrong.")]
pub(crate) struct Failover {
    /// The pool
    #[arg(value_parser = local_address(), value_hint = clap::ValueHint::AnyPath)]
    pool: Address,
    /// The server that is to have it, as it advertises itself [default: any other]
    #[arg(long, value_name = "HOST:PORT", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    to: Option<String>,
    /// Seconds to wait for the new owner
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: u64,
    /// Print the old and the new owner as JSON
    #[arg(long)]
    json: bool,
}

#[derive(serde::Serialize)]
struct Report<'t> {
    from: &'t str,
    from_address: &'t str,
    to: &'t str,
    to_address: &'t str,
    epoch: u64,
    took_ms: u64,
}

impl Failover {
    pub(crate) fn run(self) -> Outcome {
        let path = self.pool.path();
        let failed = |text: String| Failure::new(FAILED, format!("{}: {text}", path.display()));
        let candidacy = self.pool.candidacy("", MountOptions::default()).map_err(of(path))?;
        let candidacy = candidacy.ok_or_else(|| {
            failed(
                "its metadata is on this machine, so no other server can have it; `[metadata] postgres` changes that"
                    .into(),
            )
        })?;
        let before = candidacy.look().map_err(of(path))?;
        if before.left.is_zero() {
            return Err(failed("no server owns it; start one with `ferrite serve`".into()));
        }
        if self.to.as_deref() == Some(&*before.address) {
            return Err(failed(format!("the server at {} has it already", before.address)));
        }
        let since = Instant::now();
        let to = self.to.as_deref().unwrap_or_default();
        candidacy.ask_for_hand_over(before.epoch, to).map_err(of(path))?;
        let after = self.wait(&*candidacy, before.epoch, since).map_err(of(path))?;
        let Some(after) = after else {
            return Err(failed(format!(
                "{} s after {} was asked to hand it over, no other server owns it; is one standing by?",
                self.timeout,
                shown(&before)
            )));
        };
        if self.json {
            say_json(&Report {
                from: &before.owner,
                from_address: &before.address,
                to: &after.owner,
                to_address: &after.address,
                epoch: after.epoch,
                took_ms: since.elapsed().as_millis() as u64,
            })?;
        } else {
            let (from, to) = (shown(&before), shown(&after));
            say(format_args!("{}: handed from {from} to {to}", path.display()));
        }
        Ok(0)
    }

    /// The next owner; `None` if no server took the pool in time.
    fn wait(&self, candidacy: &dyn Candidacy, epoch: u64, since: Instant) -> Result<Option<Tenancy>, VolumeError> {
        while since.elapsed() < Duration::from_secs(self.timeout) {
            let now = candidacy.look()?;
            if now.epoch != epoch && !now.left.is_zero() {
                return Ok(Some(now));
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(None)
    }
}

fn of(path: &Path) -> impl Fn(VolumeError) -> Failure + '_ {
    |error| match error.names_volume() {
        true => error.into(),
        false => about(path)(error),
    }
}

/// A server, for people.
fn shown(tenancy: &Tenancy) -> String {
    match &*tenancy.address {
        "" => tenancy.owner.clone(),
        address => format!("the server at {address}"),
    }
}
