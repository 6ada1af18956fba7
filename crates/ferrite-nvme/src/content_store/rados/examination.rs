//! The state of a cluster, for an administrator who asks whether it will do.
//!
//! Contents: [`examine`], with its answer [`ClusterState`]. It takes nothing over, so content in use may be examined;
//! it judges nothing either. Each step waits for a timeout of the options at most.

use ferrite_rados::{Client, Error as RadosError};
use serde_json::Value;

use super::{RadosContent, RadosOptions};
use crate::content_store::{Error, Result};

/// An address that no machine has (RFC 5737), which may be put on the blocklist without harm.
const NOBODY: &str = "192.0.2.1:0/1";
/// Health checks that are kept.
const CHECKS_MAX: usize = 64;

/// A cluster, as its monitors and OSDs answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClusterState {
    /// Its version, such as `16.2.15`; empty if this client may not know.
    pub version: String,
    /// The pool; `None` if no pool has this name.
    pub pool: Option<PoolState>,
    /// Whether this client may put others on the blocklist.
    pub may_blocklist: bool,
    /// Health checks that report something: their codes, such as `OSD_NEARFULL`, with a sentence each.
    pub health: Vec<(String, String)>,
    /// The epoch of the last owner in the namespace; `None` if it holds no pool of Ferrite, or cannot be read.
    pub epoch: Option<u64>,
}

/// A pool of Ceph.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolState {
    /// Replicas of an object; `None` if this client may not know.
    pub size: Option<u64>,
    /// Replicas that a write needs.
    pub min_size: Option<u64>,
}

/// Looks at a cluster and a pool. To find out what the client may do, it removes an address from the blocklist that no
/// machine has, or puts it there for a second. Blocks for eight timeouts at most.
///
/// # Errors
/// [`Error::Failed`] and [`Error::Unknown`] if no monitor answers.
pub fn examine(options: &RadosOptions) -> Result<ClusterState> {
    let failed = |error: RadosError| match error {
        RadosError::TimedOut { .. } => Error::Unknown(error.to_string()),
        error => Error::Failed(error.to_string()),
    };
    let keyring = options.keyring.as_deref();
    let client = Client::connect_with_key(&options.conf, &options.client, keyring, options.timeouts).map_err(failed)?;
    let mut state = ClusterState {
        version: version_of(&ask(&client, &serde_json::json!({ "prefix": "version" }))),
        health: health_of(&ask(&client, &serde_json::json!({ "prefix": "health" }))),
        may_blocklist: may_blocklist(&client).map_err(failed)?,
        ..ClusterState::default()
    };
    match client.pool_in(&options.pool, &options.namespace) {
        Err(RadosError::NotFound(_)) => return Ok(state),
        pool => drop(pool.map_err(failed)?),
    }
    let number = |word: &str| {
        let command = serde_json::json!({ "prefix": "osd pool get", "pool": options.pool, "var": word });
        ask(&client, &command).get(word).and_then(Value::as_u64)
    };
    state.pool = Some(PoolState {
        size: number("size"),
        min_size: number("min_size"),
    });
    drop(client);
    let contents = RadosContent::connect(options).and_then(|content| content.contents(0, false));
    state.epoch = contents
        .ok()
        .filter(|found| found.pool.is_some())
        .map(|found| found.epoch);
    Ok(state)
}

/// An answer, or null: what a client may not know is left open.
fn ask(client: &Client, command: &Value) -> Value {
    let mut command = command.clone();
    command["format"] = "json".into();
    let answer = client.monitor_command(&command.to_string());
    let answer = answer.map(|bytes| serde_json::from_slice(&bytes).unwrap_or(Value::Null));
    answer.unwrap_or_else(|error| {
        tracing::debug!(%error, %command, "the monitors did not answer");
        Value::Null
    })
}

fn may_blocklist(client: &Client) -> std::result::Result<bool, RadosError> {
    for (op, expires_s) in [("rm", None), ("add", Some(1.0))] {
        let mut command = serde_json::json!({ "prefix": "osd blocklist", "blocklistop": op, "addr": NOBODY });
        if let Some(expires_s) = expires_s {
            command["expire"] = expires_s.into();
        }
        match client.monitor_command(&command.to_string()) {
            // Some profiles allow additions alone.
            Err(error) if error.is_denied() => {}
            Err(error @ RadosError::TimedOut { .. }) => return Err(error),
            // It is not there, for example.
            _ => return Ok(true),
        }
    }
    Ok(false)
}

/// `ceph version 16.2.15 (…) pacific (stable)` has the version as its third word.
fn version_of(answer: &Value) -> String {
    let text = answer["version"].as_str().unwrap_or_default();
    text.split_whitespace().nth(2).unwrap_or_default().to_owned()
}

fn health_of(answer: &Value) -> Vec<(String, String)> {
    let checks = answer["checks"].as_object().into_iter().flatten();
    let told = checks.map(|(code, check)| {
        let message = check["summary"]["message"].as_str().unwrap_or_default();
        (code.clone(), message.to_owned())
    });
    told.take(CHECKS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_monitors_are_read() {
        let version = r#"{"version":"ceph version 16.2.15 (618f440) pacific (stable)","release":"pacific"}"#;
        assert_eq!(version_of(&serde_json::from_str(version).unwrap()), "16.2.15");
        let health = r#"{"status":"HEALTH_WARN","checks":{"OSD_NEARFULL":{"severity":"HEALTH_WARN","summary":
            {"message":"1 nearfull osd(s)","count":1},"muted":false}},"mutes":[]}"#;
        let found = health_of(&serde_json::from_str(health).unwrap());
        assert_eq!(found, [("OSD_NEARFULL".to_owned(), "1 nearfull osd(s)".to_owned())]);
        assert!(version_of(&Value::Null).is_empty() && health_of(&Value::Null).is_empty());
    }
}
