//! Whether the devices of the log in front of a bucket are there, and whether two of them can be lost together.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use super::{PoolCheck, Verdict};
use crate::config::Tier;
use crate::device;

/// How long a look may take: the file may be on a mount whose server is away.
const LIMIT: Duration = Duration::from_secs(10);

/// The content of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    Nothing,
    /// A file of this file system.
    On(u64),
    /// A device, or whatever else.
    Device,
    Silence,
}

fn look(path: &Path) -> Found {
    let path = path.to_path_buf();
    let found = device::within(LIMIT, move || std::fs::metadata(path));
    match found {
        None => Found::Silence,
        Some(Err(_)) => Found::Nothing,
        Some(Ok(found)) if found.is_file() => Found::On(found.dev()),
        Some(Ok(_)) => Found::Device,
    }
}

/// Looks at both devices, or at the one.
pub(super) fn examine(tier: &Tier) -> Vec<PoolCheck> {
    let near = look(&tier.device);
    let far = tier.mirror.as_deref().map(|mirror| (mirror, look(mirror)));
    let mut checks = vec![of_near(tier, near)];
    checks.extend(far.map(|(mirror, found)| of_far(mirror, near, found)));
    checks
}

fn of_near(tier: &Tier, found: Found) -> PoolCheck {
    let device = tier.device.display();
    let mend = "attach it; without `[tier]` the pool can be opened, and what it alone has cannot be read";
    match (found, tier.size) {
        (Found::On(_) | Found::Device, _) => PoolCheck::good("tier", format!("{device} is there")),
        (Found::Nothing, Some(_)) => PoolCheck::good("tier", format!("{device} is made at the next opening")),
        (Found::Nothing, None) => PoolCheck::not("tier", Verdict::Bad, format!("{device} is not there"), mend),
        (Found::Silence, _) => PoolCheck::not("tier", Verdict::Bad, format!("{device} does not answer"), mend),
    }
}

fn of_far(mirror: &Path, near: Found, found: Found) -> PoolCheck {
    let mirror = mirror.display();
    let risk = |what: &str, mend: &str| PoolCheck::not("mirror", Verdict::Risk, format!("{mirror} {what}"), mend);
    match found {
        Found::On(_) if found == near => risk(
            "is on the same file system as the first device, and lost with it",
            "name a file on another machine, or on another disk",
        ),
        Found::On(_) | Found::Device => PoolCheck::good("mirror", format!("{mirror} is there")),
        Found::Nothing => risk(
            "is not there; fsync waits for the bucket",
            "mount what it is on; if it is to be new, make it with `truncate -s`, as long as the first device",
        ),
        Found::Silence => risk(
            "does not answer; fsync waits for the bucket",
            "see whether its server runs; the log is used again when it answers",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::TierMode;

    #[test]
    fn two_devices_that_can_be_lost_together_are_a_risk() {
        let dir = tempfile::tempdir().unwrap();
        let (near, far) = (dir.path().join("near"), dir.path().join("far"));
        let tier = Tier {
            device: near.clone(),
            size: Some(1 << 30),
            mirror: Some(far.clone()),
            mode: Some(TierMode::Mirror),
            age_s: 30,
        };
        let verdicts = || examine(&tier).iter().map(|check| check.verdict).collect::<Vec<_>>();
        assert_eq!(verdicts(), [Verdict::Good, Verdict::Risk]);
        std::fs::write(&far, "").unwrap();
        assert_eq!(verdicts(), [Verdict::Good, Verdict::Good]);
        std::fs::write(&near, "").unwrap();
        let checks = examine(&tier);
        assert!(checks[1].found.contains("same file system"), "{checks:?}");
        let alone = Tier { size: None, ..tier };
        std::fs::remove_file(&near).unwrap();
        assert_eq!(examine(&alone)[0].verdict, Verdict::Bad);
    }
}
