//! The suites can fail: each of these deliberately broken engines must be caught, by the suite that claims to protect
//! from its fault.

use std::panic::{AssertUnwindSafe, catch_unwind};

use ferrite_testkit::generate::Profile;
use ferrite_testkit::loops::{self, Effort, Progress};
use ferrite_testkit::model::check_against_reference;
use ferrite_testkit::{TestEngine, linear, posix};

use crate::faulty::{Fault, FaultyEngine};

fn maker(fault: Fault) -> impl Fn() -> Box<dyn TestEngine> {
    move || Box::new(FaultyEngine::new(fault))
}

/// The text of the panic that `body` must end in.
fn caught(fault: Fault, body: impl FnOnce()) -> String {
    let Err(panic) = catch_unwind(AssertUnwindSafe(body)) else {
        panic!("{fault:?} was not noticed")
    };
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_default()
}

#[test]
fn posix_suite_notices() {
    for (fault, area) in [
        (Fault::LinkCountAfterRename, "rename/"),
        (Fault::LostByteAtPageEdge, "data/"),
        (Fault::EntryTwice, "readdir/"),
        (Fault::TimeStandsStill, "times/"),
        (Fault::ForgottenAtRemount, "before the remount"),
        (Fault::UnlinkedIsGone, "unlinked/"),
        (Fault::HoleWhereDataIs, "sparse/"),
        (Fault::Unchecked, "checks/"),
        (Fault::Unpinned, "compound/"),
        (Fault::PinsRefused, "compound/"),
        (Fault::ChangeIsTime, "change/"),
        (Fault::LinkNotFollowed, "paths/"),
    ] {
        // The cases of the area that claims to protect from the fault; any will do for state that a remount forgets.
        let wanted = if area.ends_with('/') { area } else { "links/" };
        let cases: Vec<_> = posix::suite()
            .into_iter()
            .filter(|case| case.name.starts_with(wanted))
            .collect();
        let report = posix::run(maker(fault), &cases);
        assert!(
            report.failed.iter().any(|failure| failure.contains(area)),
            "{fault:?}: {report:?}"
        );
    }
}

#[test]
fn model_notices_and_shrinks() {
    for (fault, profile) in [
        (Fault::LinkCountAfterRename, Profile::Renames),
        (Fault::LostByteAtPageEdge, Profile::Data),
        (Fault::ForgottenAtRemount, Profile::Metadata),
        (Fault::HoleWhereDataIs, Profile::Data),
        (Fault::EntryTwice, Profile::Metadata),
    ] {
        let text = caught(fault, || {
            (0..20).for_each(|seed| check_against_reference(maker(fault), profile, seed, 400))
        });
        assert!(text.contains("FERRITE_SEED="), "{text}");
        let shrunk = text
            .split("shrunk to ")
            .nth(1)
            .and_then(|rest| rest.split(' ').next())
            .expect("a count");
        let count: usize = shrunk.parse().expect("a number");
        assert!(count <= 12, "{fault:?} needs a few operations, not {count}:\n{text}");
    }
}

#[test]
fn concurrent_suite_notices() {
    for fault in [
        Fault::TornWrite,
        Fault::AppendInTwoSteps,
        Fault::RenameInTwoSteps,
        Fault::ChecksFirst,
    ] {
        // On a busy machine the threads of one run may never meet, so the test repeats it until it catches the fault.
        caught(fault, || (0..20).for_each(|_| linear::run_all(maker(fault), 1)));
    }
}

/// Faults that no short history shows, each caught by the loop that repeats the operation alone.
#[test]
fn long_loops_notice() {
    let effort = Effort {
        moves: 1,
        turns_min: 400,
        turns_max: 400,
    };
    for (fault, name, told) in [
        (Fault::LeakAfterLong, "one_name", "free now, and when it was empty"),
        // The last turn before the first look: the next one would have covered it up.
        (Fault::LostByteAfterLong, "one_page_over", "trees differ"),
    ] {
        let of = loops::all().find(|of| of.name == name).expect("a loop");
        let progress = Progress::default();
        let text = caught(fault, || {
            loops::run(&mut FaultyEngine::new(fault), of, 1, effort, &progress)
        });
        assert!(text.contains(told), "{fault:?}: {text}");
    }
}
