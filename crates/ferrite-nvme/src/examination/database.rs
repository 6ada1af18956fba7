//! The database of a pool: its version, what its commits survive, and who owns the volume.

use ferrite_meta::{ServerState, VolumeState};

use super::{PoolCheck, Verdict};
use crate::config::Config;
use crate::metadata;
use crate::refusal::Result;

/// The oldest version with all that the statements use.
const VERSION_MIN: u32 = 13;

/// Asks and judges.
///
/// # Errors
/// The description of the database cannot be used.
pub(super) fn examine(config: &Config) -> Result<Vec<PoolCheck>> {
    Ok(match metadata::examine(config)? {
        Ok(state) => judge(&state),
        Err(error) => {
            let mend = "start the server, or correct the connection string, the role or the password";
            vec![PoolCheck::not("PostgreSQL", Verdict::Bad, error.to_string(), mend)]
        }
    })
}

fn judge(state: &ServerState) -> Vec<PoolCheck> {
    vec![
        version(state),
        commits(state),
        standbys(state),
        encryption(state),
        volume(state.volume.as_ref()),
    ]
}

fn version(state: &ServerState) -> PoolCheck {
    let found = format!("{}, {}", state.version, state.place);
    match state.version_major >= VERSION_MIN {
        true => PoolCheck::good("PostgreSQL", found),
        false => PoolCheck::not("PostgreSQL", Verdict::Bad, found, "use PostgreSQL 13 or later"),
    }
}

/// The settings without which a commit that was acknowledged could be lost.
fn commits(state: &ServerState) -> PoolCheck {
    const NAME: &str = "commits";
    let found = format!(
        "fsync = {}, full_page_writes = {}, synchronous_commit = {}",
        state.fsync, state.full_page_writes, state.synchronous_commit
    );
    let is_safe = state.fsync == "on"
        && state.full_page_writes == "on"
        && matches!(&*state.synchronous_commit, "on" | "remote_apply");
    match is_safe {
        true => PoolCheck::good(NAME, found),
        false => PoolCheck::not(
            NAME,
            Verdict::Bad,
            found,
            "set all of them to on; Ferrite refuses to commit otherwise",
        ),
    }
}

fn standbys(state: &ServerState) -> PoolCheck {
    const NAME: &str = "standbys";
    let (names, attached) = (&state.standby_names, state.standbys);
    let waits_for_none = names.is_empty();
    // Without the right to see it, each standby that is attached may be one.
    let synchronous = state.standbys_synchronous.unwrap_or(attached);
    match (waits_for_none, synchronous) {
        (true, _) if attached == 0 => PoolCheck::not(
            NAME,
            Verdict::Risk,
            "none: without this server the pool is unavailable, and with its disk the metadata is lost",
            "attach two standbys, and set synchronous_standby_names = 'ANY 1 (*)'",
        ),
        (true, _) => PoolCheck::not(
            NAME,
            Verdict::Risk,
            format!("{attached} attached, and commits wait for none: a promoted one may lack acknowledged operations"),
            "set synchronous_standby_names, such as 'ANY 1 (*)', and keep two attached",
        ),
        (false, 0) => PoolCheck::not(
            NAME,
            Verdict::Bad,
            format!("synchronous_standby_names is '{names}', and no such standby is attached: changes wait, then fail"),
            "start the standby, or change synchronous_standby_names",
        ),
        (false, 1) => PoolCheck::not(
            NAME,
            Verdict::Risk,
            format!("one for which commits wait ('{names}'): while it is away, changes fail"),
            "attach a second one, and set synchronous_standby_names = 'ANY 1 (…)'",
        ),
        (false, count) if state.standbys_synchronous.is_none() => PoolCheck::good(
            NAME,
            format!("'{names}', {count} attached; this role may not see whether they are synchronous (pg_monitor may)"),
        ),
        (false, count) => PoolCheck::good(
            NAME,
            format!("'{names}', {count} of {attached} attached are synchronous"),
        ),
    }
}

fn encryption(state: &ServerState) -> PoolCheck {
    const NAME: &str = "connection";
    match state.is_encrypted {
        true => PoolCheck::good(NAME, "encrypted, and the server's certificate is verified"),
        false => PoolCheck::not(
            NAME,
            Verdict::Risk,
            "not encrypted: names and small files can be read on the network",
            "enable ssl on the server, and add sslmode=require to the connection string",
        ),
    }
}

fn volume(state: Option<&VolumeState>) -> PoolCheck {
    const NAME: &str = "volume";
    let Some(state) = state else {
        let mend = "`ferrite mkfs` makes it; or correct `volume`";
        return PoolCheck::not(NAME, Verdict::Bad, "there is no such volume in this database", mend);
    };
    let epoch = state.epoch;
    let left = state.left.as_secs_f32();
    PoolCheck::good(
        NAME,
        match (state.owner.is_empty(), state.left.is_zero()) {
            (true, _) => "nobody has owned it yet".into(),
            (false, true) => format!("nobody owns it (epoch {epoch}, last {})", state.owner),
            (false, false) => format!(
                "{} owns it for {left:.1} s more, or renews that (epoch {epoch})",
                state.owner
            ),
        },
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::cases::{self, check};
    use super::*;

    fn good() -> ServerState {
        let mut state = ServerState::default();
        state.version = "15.6".into();
        state.version_major = 15;
        for word in [
            &mut state.fsync,
            &mut state.full_page_writes,
            &mut state.synchronous_commit,
        ] {
            *word = "on".into();
        }
        state.standby_names = "ANY 1 (*)".into();
        state.standbys = 2;
        state.standbys_synchronous = Some(2);
        state.is_encrypted = true;
        let mut volume = VolumeState::default();
        volume.owner = "a process 1".into();
        volume.left = Duration::from_millis(2500);
        state.volume = Some(volume);
        state
    }

    fn judged(change: impl FnOnce(&mut ServerState)) -> Vec<PoolCheck> {
        let mut state = good();
        change(&mut state);
        let checks = judge(&state).into_iter();
        checks.filter(|check| check.verdict != Verdict::Good).collect()
    }

    #[test]
    fn each_shortcoming_is_one_finding_with_its_mend() {
        assert_eq!(judged(|_| ()), []);
        let owned = volume(good().volume.as_ref());
        assert!(owned.found.contains("a process 1 owns it for 2.5 s"), "{owned:?}");
        type Case = cases::Case<ServerState>;
        let cases = [
            Case::bad(|state| state.version_major = 12, "15.6", "13 or later"),
            Case::bad(|state| state.fsync = "off".into(), "fsync = off", "set all"),
            Case::bad(|state| state.synchronous_commit = "local".into(), "= local", "set all"),
            Case::bad(|state| state.standbys_synchronous = Some(0), "no such standby", "start"),
            Case::risk(|state| state.standbys_synchronous = Some(1), "one for which", "second"),
            Case::risk(|state| state.standby_names.clear(), "commits wait for none", "ANY 1"),
            Case::risk(
                |state| {
                    state.standby_names.clear();
                    (state.standbys, state.standbys_synchronous) = (0, None);
                },
                "unavailable",
                "attach two",
            ),
            Case::risk(|state| state.is_encrypted = false, "not encrypted", "sslmode=require"),
            Case::bad(|state| state.volume = None, "no such volume", "mkfs"),
        ];
        check(cases, |change| judged(change));
        // A role that may not see which ones are synchronous does not say that there are none.
        assert_eq!(judged(|state| state.standbys_synchronous = None), []);
    }
}
