//! The Ceph cluster of a pool: whether it answers, what its pool survives, what the client may do, and its space.

use super::{PoolCheck, TIMEOUT, Verdict};
use crate::ceph;
use crate::config::{Config, Rados};
use crate::content_store::{self, ClusterState, PoolState};

/// Health checks that say a write may be refused now.
const FULL: &[&str] = &["OSD_FULL", "POOL_FULL"];
/// Those that say so of soon.
const NEARLY_FULL: &[&str] = &["OSD_NEARFULL", "OSD_BACKFILLFULL", "POOL_NEARFULL", "POOL_BACKFILLFULL"];

/// Asks and judges.
pub(super) fn examine(config: &Config) -> Vec<PoolCheck> {
    let Some(rados) = config.rados() else { return Vec::new() };
    let mut options = ceph::options(config, rados);
    options.timeouts.connect_timeout = TIMEOUT;
    options.timeouts.monitor_timeout = TIMEOUT;
    options.timeouts.object_timeout = TIMEOUT;
    match content_store::examine(&options) {
        Ok(state) => judge(&state, rados, config.namespace(rados)),
        Err(error) => {
            let mend = "start a monitor, or correct `conf`, `client` or `keyring`";
            vec![PoolCheck::not("Ceph", Verdict::Bad, error.to_string(), mend)]
        }
    }
}

fn judge(state: &ClusterState, rados: &Rados, namespace: &str) -> Vec<PoolCheck> {
    let version = match state.version.is_empty() {
        true => format!("a monitor answers {}", rados.client),
        false => format!("{}, {}", state.version, rados.client),
    };
    let mut checks = vec![PoolCheck::good("Ceph", version)];
    checks.extend(pool(state.pool.as_ref(), rados));
    checks.push(fencing(state, rados, namespace));
    checks.push(space(state));
    if state.pool.is_some() {
        checks.push(match state.epoch {
            Some(epoch) => PoolCheck::good(
                "namespace",
                format!("{namespace} holds a pool of Ferrite (epoch {epoch})"),
            ),
            None => PoolCheck::not(
                "namespace",
                Verdict::Bad,
                format!("{namespace} holds no pool of Ferrite that {} can read", rados.client),
                "`ferrite mkfs` makes one; or correct `pool` or `namespace`, or the client's capabilities",
            ),
        });
    }
    checks
}

fn pool(state: Option<&PoolState>, rados: &Rados) -> Vec<PoolCheck> {
    const NAME: &str = "Ceph pool";
    let name = &rados.pool;
    let Some(state) = state else {
        let mend = format!("`ceph osd pool create {name}`, then `ceph osd pool application enable {name} ferrite`");
        return vec![PoolCheck::not(
            NAME,
            Verdict::Bad,
            format!("{name} does not exist"),
            mend,
        )];
    };
    let (Some(size), Some(min_size)) = (state.size, state.min_size) else {
        let mend = "`allow r` on the monitors lets the client ask";
        return vec![PoolCheck::not(
            NAME,
            Verdict::Risk,
            format!("{name}: its replicas are unknown"),
            mend,
        )];
    };
    let mut checks = Vec::new();
    if size == 1 {
        let found = format!("{name} has size 1: with one OSD, the content of files is lost");
        let mend = format!("`ceph osd pool set {name} size 3`");
        checks.push(PoolCheck::not(NAME, Verdict::Risk, found, mend));
    }
    if min_size == 1 {
        let found = format!("{name} has min_size 1: an acknowledged write may be on one OSD alone, and lost with it");
        let mend = format!("`ceph osd pool set {name} min_size 2`");
        checks.push(PoolCheck::not(NAME, Verdict::Risk, found, mend));
    }
    if checks.is_empty() {
        checks.push(PoolCheck::good(
            NAME,
            format!("{name}, size {size}, min_size {min_size}"),
        ));
    }
    checks
}

fn fencing(state: &ClusterState, rados: &Rados, namespace: &str) -> PoolCheck {
    const NAME: &str = "fencing";
    let client = &rados.client;
    match state.may_blocklist {
        true => PoolCheck::good(NAME, format!("{client} may put a dead owner on the blocklist")),
        false => PoolCheck::not(
            NAME,
            Verdict::Bad,
            format!("{client} may not put a dead owner on the blocklist: no server can take the pool over"),
            format!(
                "`ceph auth caps {client} mon 'allow r, allow command \"osd blocklist\"' osd 'allow rwx pool={} \
                 namespace={namespace}'`",
                rados.pool
            ),
        ),
    }
}

fn space(state: &ClusterState) -> PoolCheck {
    const NAME: &str = "health";
    let is_one = |codes: &[&str]| state.health.iter().any(|(code, _)| codes.contains(&code.as_str()));
    let found: Vec<String> = state
        .health
        .iter()
        .map(|(code, message)| format!("{code}: {message}"))
        .collect();
    let found = found.join("; ");
    let mend = "add OSDs, or delete something";
    match found.is_empty() {
        true => PoolCheck::good(NAME, "no warnings"),
        false if is_one(FULL) => PoolCheck::not(NAME, Verdict::Bad, found, mend),
        false if is_one(NEARLY_FULL) => PoolCheck::not(NAME, Verdict::Risk, found, mend),
        false => PoolCheck::not(NAME, Verdict::Risk, found, "`ceph health detail` says more"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::cases::{self, check};
    use super::*;

    fn rados() -> Rados {
        Rados {
            pool: "p".into(),
            conf: "c".into(),
            client: "client.x".into(),
            keyring: None,
            namespace: None,
        }
    }

    fn good() -> ClusterState {
        ClusterState {
            version: "16.2.15".into(),
            pool: Some(PoolState {
                size: Some(3),
                min_size: Some(2),
            }),
            may_blocklist: true,
            health: Vec::new(),
            epoch: Some(3),
        }
    }

    fn judged(change: impl FnOnce(&mut ClusterState)) -> Vec<PoolCheck> {
        let mut state = good();
        change(&mut state);
        let checks = judge(&state, &rados(), "n");
        checks
            .into_iter()
            .filter(|check| check.verdict != Verdict::Good)
            .collect()
    }

    #[test]
    fn each_shortcoming_is_one_finding_with_its_mend() {
        assert_eq!(judged(|_| ()), []);
        let size = |size, min_size| PoolState {
            size: Some(size),
            min_size: Some(min_size),
        };
        let nearly = |code: &str| vec![(code.to_owned(), "some".to_owned())];
        type Case = cases::Case<ClusterState>;
        let cases = [
            Case::risk(move |state| state.pool = Some(size(1, 2)), "size 1", "size 3"),
            Case::risk(move |state| state.pool = Some(size(3, 1)), "min_size 1", "min_size 2"),
            Case::risk(|state| state.pool = Some(PoolState::default()), "unknown", "allow r"),
            Case::bad(|state| state.pool = None, "does not exist", "pool create p"),
            Case::bad(
                |state| state.may_blocklist = false,
                "blocklist",
                "ceph auth caps client.x mon 'allow r, allow command \"osd blocklist\"' \
                 osd 'allow rwx pool=p namespace=n'",
            ),
            Case::risk(
                move |state| state.health = nearly("OSD_NEARFULL"),
                "NEARFULL",
                "add OSDs",
            ),
            Case::bad(
                |state| state.health = vec![("POOL_FULL".into(), String::new())],
                "FULL",
                "add",
            ),
            Case::bad(|state| state.epoch = None, "no pool of Ferrite", "mkfs"),
        ];
        check(cases, |change| judged(change));
        assert_eq!(
            judged(|state| state.pool = Some(PoolState {
                size: Some(1),
                min_size: Some(1)
            }))
            .len(),
            2
        );
    }
}
