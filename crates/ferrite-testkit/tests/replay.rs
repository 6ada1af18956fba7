//! The suites' own parts: replay from a seed, and the search for a sequential order.

use ferrite_testkit::generate::{OpGenerator, Profile};
use ferrite_testkit::linear::history::{Answer, Call, Event, linearizable};
use ferrite_testkit::rng::pattern;

/// A seed must mean the same sequence, whatever its length, or no failure could be replayed.
#[test]
fn sequences_are_fixed_by_their_seed() {
    for profile in Profile::ALL {
        let long = OpGenerator::new(profile, 42).take(500);
        assert_eq!(OpGenerator::new(profile, 42).take(200), long[..200]);
        assert_ne!(OpGenerator::new(profile, 43).take(200), long[..200]);
    }
}

/// Every operation of the contract is generated, or a part of it would go untested unnoticed.
#[test]
fn every_operation_is_generated() {
    let ops = OpGenerator::new(Profile::Mixed, 7).take(20_000);
    let name = |text: String| text.split([' ', '(']).next().unwrap_or_default().to_owned();
    let seen: std::collections::BTreeSet<_> = ops.iter().map(|op| name(format!("{op:?}"))).collect();
    assert_eq!(seen.len(), 36, "{seen:?}");
}

#[test]
fn patterns_hold_no_zero_byte() {
    assert!(pattern(0, 100).iter().all(|&byte| byte == 0));
    assert!(pattern(5, 100_000).iter().all(|&byte| byte != 0));
    assert_ne!(pattern(5, 100), pattern(6, 100));
}

fn event(thread: usize, call: Call, answer: Answer, invoked: u64, returned: u64) -> Event {
    Event {
        thread,
        call,
        answer,
        invoked,
        returned,
    }
}

/// Overlapping calls may take effect in either order; sequential calls may not.
#[test]
fn search_respects_the_order_of_time() {
    let read = Call::Read {
        file: 0,
        at: 0,
        grains: 2,
    };
    let write = Call::Write {
        file: 0,
        at: 0,
        grains: 2,
        byte: 9,
    };
    let old = Answer::Grains(vec![1; 2]);
    let new = Answer::Grains(vec![9; 2]);
    let overlapping = |answer: &Answer| {
        linearizable(&[
            event(0, write, Answer::Done, 0, 3),
            event(1, read, answer.clone(), 1, 2),
        ])
    };
    assert!(overlapping(&old) && overlapping(&new));
    assert!(!overlapping(&Answer::Grains(vec![9, 1])), "a torn read");
    let after = |answer: &Answer| {
        linearizable(&[
            event(0, write, Answer::Done, 0, 1),
            event(1, read, answer.clone(), 2, 3),
        ])
    };
    assert!(after(&new) && !after(&old), "a stale read");
}

/// Two appends that both report the same offset have lost one of the two.
#[test]
fn search_notices_a_lost_append() {
    let append = |byte| Call::Append {
        file: 0,
        grains: 1,
        byte,
    };
    let history = |second| {
        [
            event(0, append(5), Answer::At(2), 0, 2),
            event(1, append(6), Answer::At(second), 1, 3),
        ]
    };
    assert!(linearizable(&history(3)));
    assert!(!linearizable(&history(2)));
}

/// Sequences that meet only errors would test little: each operation must succeed often enough in some profile.
#[test]
fn every_operation_succeeds_often() {
    use ferrite_testkit::TestEngine;
    use ferrite_testkit::apply::{Outcome, Runner};
    use ferrite_testkit::model::ReferenceEngine;
    use std::collections::BTreeMap;

    let mut succeeded: BTreeMap<String, usize> = BTreeMap::new();
    for profile in Profile::ALL {
        for seed in 0..24 {
            let engine = ReferenceEngine::new();
            let mut runner = Runner::new(engine.fs());
            for op in OpGenerator::new(profile, seed).take(400) {
                let outcome = runner.apply(&op).expect("the reference keeps the rules");
                let refused = matches!(outcome, Outcome::Error(_) | Outcome::Refused | Outcome::Skipped);
                let name = format!("{op:?}")
                    .split([' ', '('])
                    .next()
                    .unwrap_or_default()
                    .to_owned();
                *succeeded.entry(name).or_default() += usize::from(!refused);
            }
        }
    }
    println!("{succeeded:?}");
    for (name, count) in &succeeded {
        assert!(
            *count >= 20,
            "{name} succeeded {count} times in 57,600 operations: {succeeded:?}"
        );
    }
}
