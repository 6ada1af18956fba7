//! The check of quotas: a directory counts for the quota of the one that it is in, or has one of its own, with a
//! record; and what is counted is there.

use std::sync::atomic::Ordering;

use ferrite_vfs::{Ino, QuotaLimits, ROOT_INO};

use super::{Mend, Report, Seen};
use crate::core::Core;
use crate::format::key;
use crate::quotas::{Account, Quotas};

/// Judges quotas. `before`: the counter of changes, and what the counts have seen, before anything was read.
pub(super) fn judge(core: &Core, report: &mut Report, seen: &Seen, before: (u64, Option<u64>)) {
    records(report, seen);
    // By number, so that two checks report the same.
    let mut inos: Vec<Ino> = seen.nodes.keys().copied().collect();
    inos.sort_unstable();
    for ino in inos {
        dir(report, seen, ino);
    }
    // A file that is open may have a later size than its node, and another owner's counts are elsewhere.
    if seen.ahead.is_empty() && !core.is_owned_elsewhere() {
        let found = counts(core, seen);
        let now = (core.changes.load(Ordering::Relaxed), core.quotas.settled());
        if now == before && now.1.is_some() {
            found
                .into_iter()
                .for_each(|what| report.found(what, Some(Mend::Recount)));
        }
    }
}

fn records(report: &mut Report, seen: &Seen) {
    let mut dirs: Vec<Ino> = seen.quotas.keys().copied().collect();
    dirs.sort_unstable();
    for dir in dirs {
        let is_named = seen.nodes.get(&dir).is_some_and(|node| node.has_own_quota(dir));
        match (is_named, seen.quotas.get(&dir)) {
            // One that has ended tells of inodes that still name it.
            (false, Some(Some(record))) if record.has_ended => {}
            (false, _) => {
                let what = format!("a record of a quota of inode {dir}, which has none");
                report.found(what, Some(Mend::Drop(key::quota(dir).to_vec())));
            }
            (true, Some(None)) => {
                let what = format!("directory {dir}: the record of its quota cannot be read");
                report.found(what, Some(Mend::Limits(dir)));
            }
            _ => {}
        }
    }
}

/// Judges the quota that a directory counts for. A file may have names in several trees, and then counts for one of
/// them. While a quota is set or removed it has no limits, and a crash may leave that half done, so then either quota
/// is right.
fn dir(report: &mut Report, seen: &Seen, ino: Ino) {
    let Some(node) = seen.nodes.get(&ino).filter(|node| node.is_dir()) else {
        return;
    };
    if node.has_own_quota(ino) {
        if !seen.quotas.contains_key(&ino) {
            let what = format!("directory {ino}: it has a quota, and no record tells its limits");
            report.found(what, Some(Mend::Limits(ino)));
        }
        return;
    }
    let names = seen.names.get(&ino).map_or(&[][..], Vec::as_slice);
    let expected = match names.first().and_then(|name| seen.nodes.get(&name.parent)) {
        Some(parent) => parent.inherited_quota(),
        // One without a name may count for whichever; the root counts for none but its own.
        None if ino == ROOT_INO => 0,
        None => return,
    };
    let is_half_done = |quota: Ino| {
        let record = seen.quotas.get(&quota).copied().flatten();
        record.is_some_and(|record| record.limits == QuotaLimits::default())
    };
    if node.quota != expected && !is_half_done(node.quota) && !is_half_done(expected) {
        let what = format!(
            "directory {ino}: it counts for the quota of inode {}, but its directory for that of inode {expected}",
            node.quota
        );
        let way = Mend::Quota { ino, quota: expected };
        report.found(what, Some(way));
    }
}

fn counts(core: &Core, seen: &Seen) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut all = core.quotas.all();
    all.sort_unstable();
    let found = Quotas::default();
    let limits = |&(account, around): &(Account, Ino)| (account, QuotaLimits::default(), around);
    found.load(all.iter().map(limits).collect(), &seen.tally.used);
    for (account, _) in all {
        let (Some((_, says)), Some((_, uses))) = (core.quotas.find(account), found.find(account)) else {
            continue;
        };
        if says != uses {
            let whose = match account {
                Account::Tree(dir) => format!("directory {dir}: its quota"),
                Account::User(uid) => format!("the quota of user {uid}"),
            };
            let what = format!(
                "{whose} counts {} bytes and {} inodes, there are {} and {}",
                says.bytes, says.inodes, uses.bytes, uses.inodes
            );
            wrong.push(what);
        }
    }
    wrong
}
