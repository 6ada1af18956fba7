//! Whether the servers of a pool will do: its database, its cluster, its bucket with the log in front of it.
//!
//! Contents: [`examine`], with its [`PoolCheck`]s. The servers are asked and judged; nothing of the pool is taken or
//! changed, so a pool in use may be examined. Every wait is bounded: two minutes at most if nothing answers.

use std::path::Path;
use std::time::Duration;

use ferrite_vfs::volume::{VolumeError, VolumeErrorKind};

use crate::config::{Config, S3};
use crate::refusal::{Result, invalid, medium, refuse};
use crate::s3;

#[cfg(feature = "rados")]
mod cluster;
#[cfg(feature = "postgres")]
mod database;
mod log;

/// How long a server may take for one answer.
#[cfg_attr(
    not(feature = "rados"),
    allow(dead_code, reason = "only clusters have it as an option")
)]
const TIMEOUT: Duration = Duration::from_secs(10);

/// How good something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// As it should be.
    Good,
    /// The pool works, but something may be lost, or stop, for which there is a mend.
    Risk,
    /// The pool cannot be used, or not after a failure.
    Bad,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolCheck {
    /// Its name.
    pub name: &'static str,
    /// How good it is.
    pub verdict: Verdict,
    /// The finding.
    pub found: String,
    /// The remedy, unless it is good.
    pub mend: Option<String>,
}

impl PoolCheck {
    fn good(name: &'static str, found: impl Into<String>) -> PoolCheck {
        PoolCheck {
            name,
            verdict: Verdict::Good,
            found: found.into(),
            mend: None,
        }
    }

    fn not(name: &'static str, verdict: Verdict, found: impl Into<String>, mend: impl Into<String>) -> PoolCheck {
        PoolCheck {
            name,
            verdict,
            found: found.into(),
            mend: Some(mend.into()),
        }
    }
}

/// Looks at the servers of a pool that a file describes.
///
/// # Errors
/// The file cannot be read, or the pool has no servers. A server that does not answer is a finding.
pub fn examine(path: &Path) -> Result<Vec<PoolCheck>> {
    let text = std::fs::read_to_string(path).map_err(|error| medium(path, error))?;
    let base = path.parent().unwrap_or(Path::new("."));
    let config = Config::parse(&text, base)
        .map_err(|error| invalid(format!("{}: {error}", path.display())).with_name_in_text())?;
    if config.metadata.postgres.is_none() && config.s3().is_none() {
        let text = format!(
            "{}: the pool is on this machine alone, without a server to look at; `ferrite fsck` checks the pool",
            path.display()
        );
        return Err(invalid(text).with_name_in_text());
    }
    let mut checks = Vec::new();
    if config.metadata.postgres.is_some() {
        checks.extend(of_database(&config)?);
    }
    if config.rados().is_some() {
        checks.extend(of_cluster(&config)?);
    }
    if let Some(s3) = config.s3() {
        checks.push(of_bucket(s3));
    }
    checks.extend(config.tier.iter().flat_map(log::examine));
    Ok(checks)
}

/// Whether the bucket of a pool answers, and has its content.
fn of_bucket(s3: &S3) -> PoolCheck {
    match s3::look(s3) {
        Ok(found) => PoolCheck::good("bucket", format!("{} answers: {found}", s3.address)),
        Err(error) => {
            let mend = format!(
                "make {} be there for this process; docs/s3.md has the settings",
                s3.address
            );
            PoolCheck::not("bucket", Verdict::Bad, error.to_string(), mend)
        }
    }
}

#[cfg(feature = "postgres")]
fn of_database(config: &Config) -> Result<Vec<PoolCheck>> {
    database::examine(config)
}

#[cfg(not(feature = "postgres"))]
fn of_database(config: &Config) -> Result<Vec<PoolCheck>> {
    Err(absent(config.metadata_place(), "PostgreSQL", "postgres"))
}

#[cfg(feature = "rados")]
fn of_cluster(config: &Config) -> Result<Vec<PoolCheck>> {
    Ok(cluster::examine(config))
}

#[cfg(not(feature = "rados"))]
fn of_cluster(config: &Config) -> Result<Vec<PoolCheck>> {
    Err(absent(config.content_place(), "Ceph", "rados"))
}

#[cfg_attr(
    all(feature = "postgres", feature = "rados"),
    allow(dead_code, reason = "for builds that lack one of them")
)]
fn absent(place: String, what: &str, feature: &str) -> VolumeError {
    let text = format!("{place}: this program was built without {what}; build it with the feature `{feature}`");
    refuse(VolumeErrorKind::Invalid, text).with_name_in_text()
}

/// Shortcomings of a good state, each of which must be one finding with its remedy.
#[cfg(all(test, any(feature = "postgres", feature = "rados")))]
mod cases {
    use super::{PoolCheck, Verdict};

    pub(super) type Change<S> = Box<dyn FnOnce(&mut S)>;

    pub(super) struct Case<S> {
        change: Change<S>,
        verdict: Verdict,
        found: &'static str,
        mend: &'static str,
    }

    impl<S> Case<S> {
        pub(super) fn bad(change: impl FnOnce(&mut S) + 'static, found: &'static str, mend: &'static str) -> Case<S> {
            Case {
                change: Box::new(change),
                verdict: Verdict::Bad,
                found,
                mend,
            }
        }

        pub(super) fn risk(change: impl FnOnce(&mut S) + 'static, found: &'static str, mend: &'static str) -> Case<S> {
            Case {
                verdict: Verdict::Risk,
                ..Case::bad(change, found, mend)
            }
        }
    }

    /// `judged` has the findings after a change, without what is good.
    pub(super) fn check<S>(cases: impl IntoIterator<Item = Case<S>>, judged: impl Fn(Change<S>) -> Vec<PoolCheck>) {
        for case in cases {
            let checks = judged(case.change);
            assert_eq!(checks.len(), 1, "{checks:?}");
            assert_eq!(checks[0].verdict, case.verdict, "{checks:?}");
            assert!(checks[0].found.contains(case.found), "{checks:?}");
            assert!(
                checks[0].mend.as_deref().is_some_and(|text| text.contains(case.mend)),
                "{checks:?}"
            );
        }
    }
}
