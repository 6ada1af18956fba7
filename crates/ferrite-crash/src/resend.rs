//! The clients' behaviour after a crash: each resends the last change of each slot, once or more, slot by slot in
//! random order; and the sequence number before it, which the slot must refuse.
//!
//! Invariants: a change that was answered before the crash gets the same reply and changes nothing. The one in progress
//! either happened, and then the same holds, or it happens now. Either way it has happened once.
//!
//! Not resent: a change with a reply that no slot keeps; one through a handle on a file that a crash frees; and one in
//! progress that was refused for want of space, because the reference has no tree with it.

use ferrite_testkit::apply::CanonAttr;
use ferrite_testkit::rng::Rng;
use ferrite_testkit::snapshot::Snapshot;
use ferrite_vfs::{DedupToken, FileSystem, FsError, Outcome};

use crate::allowed::Allowed;
use crate::record::{Tree, capture};
use crate::session::{Resend, lacked_space};

/// Whether two replies differ only where another run may differ: numbers, times and blocks.
fn alike(told: &Outcome, other: &Outcome) -> bool {
    match (told, other) {
        (Outcome::Attr(told), Outcome::Attr(other)) => CanonAttr::from(told) == CanonAttr::from(other),
        _ => told == other,
    }
}

/// Sends `resends` to a recovered pool with this `tree`. Returns the tree then, and the number of resent changes.
///
/// # Errors
/// A change that happened twice, or not at all, or with a different reply to its sender.
pub(crate) fn send(fs: &dyn FileSystem, allowed: &Allowed<'_>, tree: Tree, seed: u64) -> Result<(Tree, u64), String> {
    let resends = allowed.resends();
    let mut rng = Rng::new(seed ^ 0x2e5e7d);
    let mut order: Vec<usize> = (0..resends.len()).collect();
    order.extend((0..rng.below(3)).map(|_| rng.below(resends.len() as u64) as usize));
    for at in (1..order.len()).rev() {
        order.swap(at, rng.below(at as u64 + 1) as usize);
    }
    let mut given: Vec<Option<Outcome>> = vec![None; resends.len()];
    let mut count = 0;
    for which in order {
        let Resend {
            sent,
            thread,
            told,
            in_progress,
        } = resends[which];
        let happened = allowed.is_before_and_after(&allowed.share(&tree, thread), thread) == [false, true];
        // The reply that must recur, if one must.
        let expected = match (&given[which], told) {
            (Some(given), _) => Some(given),
            (None, Some(told)) if !in_progress || happened => Some(told),
            _ => None,
        };
        if expected.is_none() && !sent.is_possible(fs) {
            continue;
        }
        let before = sent.change(fs);
        let Some(again) = sent.again(fs, sent.token) else {
            continue;
        };
        count += 1;
        let about = |what: &str| {
            Err(format!(
                "slot {}, number {} sent again: {what} {again:?}, the first time {:?}",
                sent.token.slot,
                sent.token.seq,
                expected.unwrap_or(&sent.told)
            ))
        };
        match expected {
            Some(expected) if again != *expected => return about("another answer:"),
            Some(_) if sent.change(fs) != before => return about("it changed something, and was told"),
            None if !alike(&again, &sent.told) && !lacked_space(&again) => return about("another outcome:"),
            _ => given[which] = Some(again),
        }
    }
    for (resend, given) in resends.iter().zip(&given) {
        let DedupToken { slot, seq } = resend.sent.token;
        // A change that was refused before the engine looked at its token is refused likewise.
        let same = given.as_ref().filter(|given| matches!(given, Outcome::Failed(_)));
        let older = DedupToken { slot, seq: seq - 1 };
        match given.is_some().then(|| resend.sent.again(fs, older)).flatten() {
            None | Some(Outcome::Failed(FsError::Superseded)) => {}
            Some(told) if Some(&told) == same => {}
            Some(told) => return Err(format!("slot {slot} holds number {seq}, and told {} {told:?}", seq - 1)),
        }
    }
    let after = capture(fs)?;
    check(allowed, resends, &given, &tree, &after)?;
    Ok((after, count))
}

/// The tree `after` equals `before` with the changes that were in progress, each once.
fn check(
    allowed: &Allowed<'_>,
    resends: &[Resend<'_>],
    given: &[Option<Outcome>],
    before: &Tree,
    after: &Tree,
) -> Result<(), String> {
    for thread in 0..allowed.threads() {
        let is_done = resends.iter().zip(given).any(|(resend, given)| {
            let is_told = given.as_ref().is_some_and(|given| !lacked_space(given));
            resend.thread == thread && resend.in_progress && is_told
        });
        let [before, after] = [before, after].map(|tree| allowed.share(tree, thread));
        if before == after && !is_done || is_done && allowed.is_before_and_after(&after, thread)[1] {
            continue;
        }
        let wanted = allowed.tree_after(thread).filter(|_| is_done).unwrap_or(&before);
        let difference = Snapshot(after).difference(&Snapshot(wanted.clone()), ["found", "wanted"]);
        return Err(format!(
            "thread {thread}: the tree is wrong once changes were sent again: {}",
            difference.unwrap_or_default()
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use ferrite_fs::Superblock;
    use ferrite_pm::{Choice, Image, Region};

    use crate::allowed::Allowed;
    use crate::record::{Recorded, record};
    use crate::source::{Name, Source, alphabet};
    use crate::verify::verify;
    use crate::{Mapping, Variant};

    /// A workload in which each change has a token.
    fn recorded(source: Source) -> Recorded {
        record(
            Variant::from(Mapping::default()),
            &Name::from(source).with_tokens(6).workload(),
        )
        .unwrap()
    }

    /// After all operations have returned.
    fn finally(recorded: &Recorded) -> Allowed<'_> {
        let mut cursor = recorded.log.cursor();
        while cursor.advance() {}
        Allowed::after(recorded, cursor.marks())
    }

    fn outcomes(image: &[u8]) -> Range<usize> {
        let superblock = Superblock::find(&Region::from_image(image).unwrap()).unwrap();
        let start = superblock.dedup_offset as usize;
        start..start + 128 * superblock.dedup_slots as usize
    }

    /// Pools that have forgotten their replies make changes again, or refuse them now.
    #[test]
    fn forgotten_outcomes_are_noticed() {
        let (mut workloads, mut sent) = (0, 0);
        for source in (0..40).map(Source::Pair).chain((0..4).map(|n| Source::Random(n, 7))) {
            let recorded = recorded(source);
            let allowed = finally(&recorded);
            let mut image = recorded.log.final_image();
            let verified = verify(&Image::from(&image[..]), &allowed, &recorded.mount, 3, None).unwrap();
            let table = outcomes(&image);
            image[table].fill(0);
            let forgotten = verify(&Image::from(&image[..]), &allowed, &recorded.mount, 3, None);
            // A few changes are refused the second time as they were the first time.
            let is_told = forgotten.is_err_and(|what| what.contains("sent again"));
            workloads += u64::from(verified.resent > 0);
            sent += u64::from(is_told);
        }
        // Some name a missing file, so that no change is sent.
        assert!(workloads >= 40, "{workloads} workloads sent something again");
        assert!(sent >= 36, "noticed in {sent} workloads of {workloads}");
    }

    /// The opposite: a pool with the outcome of a change that a crash has lost.
    #[test]
    fn outcomes_without_their_changes_are_noticed() {
        let (mut changes, mut noticed) = (0, 0);
        for source in (0..alphabet().len() as u64).map(Source::Pair) {
            let recorded = recorded(source);
            if recorded.states[0][0] == recorded.states[0][1] {
                continue;
            }
            changes += 1;
            let allowed = Allowed::after(&recorded, &[]);
            let mut image = recorded.log.cursor().with_image(Choice::None, |image| image.to_vec());
            let verified = verify(&Image::from(&image[..]), &allowed, &recorded.mount, 3, None).unwrap();
            assert!(verified.resent > 0, "{source}");
            let table = outcomes(&image);
            image[table.clone()].copy_from_slice(&recorded.log.final_image()[table]);
            let lost = verify(&Image::from(&image[..]), &allowed, &recorded.mount, 3, None);
            noticed += u64::from(lost.is_err_and(|what| what.contains("once changes were sent again")));
        }
        assert!(changes >= 30, "{changes} operations change something");
        assert_eq!(noticed, changes);
    }
}
